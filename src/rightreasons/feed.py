"""Feed: which images a step sees, augmented and normalised, on the device; Look: all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rightreasons.augment import Augment, augment, middle
from rightreasons.distributed import dealt
from rightreasons.memory import Column, Memory, Ragged, choose, draw, held_count
from rightreasons.nets.base import Net, chunk
from rightreasons.optimise import Train
from rightreasons.randomness import generator
from rightreasons.streams import Stream
from rightreasons.timing import DATA, span
from rightreasons.types import Batch, Images, Stage, Task, Where


class Feed:
    """Draws from a stream and a memory by the seed; every draw has its own key."""

    def __init__(
        self,
        stream: Stream,
        memory: Memory,
        seed: int,
        device: torch.device,
        cut: int | None = None,
        held_out: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.stream, self.memory, self.seed, self.device = stream, memory, seed, device
        self.cut, self.held_out = cut, held_out
        self.task_of = stream.task_of
        self.mean = stream.mean.view(3, 1, 1).to(device, dtype)
        self.std = stream.std.view(3, 1, 1).to(device, dtype)
        self.chunk = chunk(cut or stream[0].train.x.shape[-1], device)

    def pool(self, task: Task, stage: Stage, balanced: Tensor | None = None) -> Images:
        """The new images of a stage; ``balanced`` are the places of those that it may use."""
        if stage.pool.past:
            first, *rest = (t.train for t in self.stream[: task.index + 1])
            return first.join(*rest)
        if balanced is not None:
            return task.train.subset(balanced)
        if not self.held_out:
            return task.train
        rest_, held = self.parts(task)
        return task.train.subset(held if stage.pool.held else rest_)

    def parts(self, task: Task) -> tuple[Tensor, Tensor]:
        """Places of the new images that train, and of those that are held out: as many a class as
        of the rows of a class that the memory keeps."""
        y = task.train.y
        held = choose(y, self.held_count(task), generator(self.seed, "held", task.index))
        rest = torch.ones(len(y), dtype=torch.bool)
        rest[held] = False
        return rest.nonzero().flatten(), held

    def held_count(self, task: Task) -> int:
        """Held-out images of each new class."""
        if not self.held_out:
            return 0
        smallest = int(torch.bincount(task.train.y, minlength=task.seen)[list(task.classes)].min())
        kept = self.memory.quota(task.classes[0] or task.seen, first=task.index == 0)
        return held_count(min(kept, smallest), self.held_out)

    def count(self, task: Task, stage: Stage) -> int:
        """About how many images an epoch has, before the memory is there to be counted."""
        old = task.classes[0]
        kept = self.memory.quota(old, first=False) if old and stage.pool.mix != "none" else 0
        new = len(self.pool(task, stage))
        if stage.pool.balance and old:
            new = min(new, kept * len(task.classes))
        share = self.held_out if stage.pool.held else 1 - self.held_out
        return new + int(kept * old * share if stage.pool.mix == "concat" else 0)

    def batches(
        self,
        task: Task,
        stage: Stage,
        train: Train,
        epoch: int,
        balanced: Tensor | None = None,
        start: int = 0,
    ) -> Iterator[Batch]:
        """One epoch from a step on: new images and, as the stage mixes them, rows of memory."""
        images = self.pool(task, stage, balanced)
        none = torch.zeros(0, dtype=torch.int64)
        mixed = self.memory.part(stage.pool.held) if stage.pool.mix != "none" else none
        new, old = len(images), len(mixed)
        where = (task.index, stage.name, epoch)
        together = stage.pool.mix == "concat"
        order = torch.randperm(
            new + old if together else new, generator=generator(self.seed, "batches", *where)
        )
        rows = none
        for step, index in enumerate(_split(order, train.batch)[start:], start):
            if together:
                index, rows = index[index < new], mixed[index[index >= new] - new]
            elif old:
                by = generator(self.seed, "replay", *where, step)
                rows = draw(mixed, train.replay or train.batch, by)
            assert train.augment is not None
            apart, joined = (rows, none) if stage.pool.plain else (none, rows)
            with span(DATA):
                batch = self._mixed(images, index, joined, train.augment, (*where, step))
                batch = batch.join(self.remembered(apart)) if len(apart) else batch
            yield batch

    def _mixed(
        self, images: Images, index: Tensor, rows: Tensor, how: Augment, where: Where
    ) -> Batch:
        x, y = images.pixels(index), images.y[index]
        row = torch.full_like(y, -1)
        if len(rows):
            x = torch.cat([x, self.memory.tensor("x")[rows]])
            y = torch.cat([y, self.memory.tensor("y")[rows]])
            row = torch.cat([row, rows])
        return self._augmented(x, y, row, how, generator(self.seed, "augment", *where))

    def _augmented(
        self, x: Tensor, y: Tensor, row: Tensor, how: Augment, draw: torch.Generator
    ) -> Batch:
        x, geometry = augment(x.to(self.device), how, draw)
        return self.canonical(x, y, row)._replace(geometry=geometry)

    def canonical(self, x: Tensor, y: Tensor, row: Tensor) -> Batch:
        """Images as they are."""
        to = self.device
        return Batch(self.normalise(x), y.to(to), self.task_of[y].to(to), row.to(to))

    def normalise(self, x: Tensor) -> Tensor:
        """The middle of uint8 images, as the net takes it."""
        return (middle(x, self.cut).to(self.device).to(self.mean.dtype) - self.mean) / self.std

    def explained(
        self, count: int, where: Where, how: Augment | None, task: int | None = None
    ) -> Batch:
        """Rows of memory for a term's own forward, as they are or, with ``how``, augmented."""
        with span(DATA):
            return self.remembered(self.explainable(count, where, task), where, how)

    def explainable(self, count: int, where: Where, task: int | None = None) -> Tensor:
        """Rows for a term: of those that are not held out, and of a task if one is given."""
        rows = self.memory.part(held=False)
        if task is not None:
            rows, where = rows[self.memory.tensor("task")[rows] == task], (*where, "of", task)
        return draw(rows, count, generator(self.seed, "explain", *where))

    def remembered(self, rows: Tensor, where: Where = (), how: Augment | None = None) -> Batch:
        x, y = self.memory.tensor("x")[rows], self.memory.tensor("y")[rows]
        if how is None:
            return self.canonical(x, y, rows)
        return self._augmented(x, y, rows, how, generator(self.seed, "explain", "view", *where))

    def chunks(self, index: Tensor, size: int | None = None) -> Sequence[Tensor]:
        """So many at a time as a forward that trains nothing takes; not every net takes none."""
        return torch.split(index, size or self.chunk) if len(index) else ()

    def columns(self, rows: Tensor) -> dict[str, Column]:
        """What memory keeps beside these rows, on the device."""
        columns = self.memory.take(rows.cpu())
        return {name: move(column, self.device) for name, column in columns.items()}


class Look:
    """What a learner may look at before and after a task: images as they are, by the net as it
    is."""

    def __init__(self, feed: Feed, net: Net, task: Task, fresh: Tensor | None = None) -> None:
        self._feed, self._net, self._task = feed, net, task
        self._fresh = fresh  # (n,D) embeddings of the last n rows of memory, known already

    @property
    def tasks(self) -> int:
        """How many the stream has in all."""
        return len(self._feed.stream)

    def images(self, size: int | None = None) -> Iterator[Batch]:
        """All new images."""
        images = self._task.train
        for index in torch.split(torch.arange(len(images)), size or self._feed.chunk):
            row = torch.full_like(index, -1)
            yield self._feed.canonical(images.pixels(index), images.y[index], row)

    def rows(self, which: Tensor, size: int | None = None) -> Iterator[Batch]:
        """These rows of memory."""
        for part in self._feed.chunks(which, size):
            yield self._feed.remembered(part)

    @torch.no_grad()
    def features(self) -> tuple[Tensor, Tensor]:
        """Embeddings (n,D) of all new images by BatchNorm's running statistics; labels (n,)."""
        images, feed = self._task.train, self._feed

        def look(index: Tensor) -> Tensor:
            return self._net(feed.normalise(images.pixels(index))).z

        with self._net.frozen_statistics():
            parts = dealt(look, feed.chunks(torch.arange(len(images))))
        return torch.cat(parts).to(feed.device), images.y.to(feed.device)

    @torch.no_grad()
    def embeddings(self, flip: bool = False) -> Tensor:
        """(rows,D) of all rows of memory, or of their mirror images."""
        known = [] if flip or self._fresh is None else [self._fresh]
        every = torch.arange(len(self._feed.memory) - sum(map(len, known)))

        def look(rows: Tensor) -> Tensor:
            x = self._feed.remembered(rows).x
            return self._net(x.flip(-1) if flip else x).z

        parts = [part.to(self._feed.device) for part in dealt(look, self._feed.chunks(every))]
        return torch.cat([*parts, *known])

    def generator(self, purpose: str) -> torch.Generator:
        """For a learner's own draws."""
        return generator(self._feed.seed, "learner", purpose, self._task.index)


def move(column: Column, device: torch.device) -> Column:
    if isinstance(column, Ragged):
        return Ragged(column.values.to(device), column.lengths.to(device))
    return column.to(device)


def _split(order: Tensor, size: int) -> list[Tensor]:
    """Batches; one image left over joins the last, for BatchNorm needs two."""
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
