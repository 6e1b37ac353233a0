"""Feed: which images a step sees, augmented and normalised, on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rightreasons.augment import Augment, augment, middle
from rightreasons.memory import Column, Memory, Ragged
from rightreasons.optimise import Train
from rightreasons.randomness import generator
from rightreasons.streams import Stream
from rightreasons.types import Batch, Images, Stage, Task

Where = tuple[int | str, ...]  # task, stage, epoch, step: the key of a draw


class Feed:
    """Draws from a stream and a memory by the seed; every draw has its own key."""

    def __init__(
        self,
        stream: Stream,
        memory: Memory,
        seed: int,
        device: torch.device,
        cut: int | None = None,
    ) -> None:
        self.stream, self.memory, self.seed, self.device = stream, memory, seed, device
        self.cut = cut
        self.task_of = stream.task_of
        self.mean = stream.mean.view(3, 1, 1).to(device)
        self.std = stream.std.view(3, 1, 1).to(device)

    def pool(self, task: Task, stage: Stage) -> Images:
        """The images of a stage."""
        if not stage.pool.past:
            return task.train
        first, *rest = (t.train for t in self.stream[: task.index + 1])
        return first.join(*rest)

    def batches(self, task: Task, stage: Stage, train: Train, epoch: int) -> Iterator[Batch]:
        """One epoch: new images and, as the stage mixes them, rows of memory."""
        images = self.pool(task, stage)
        new, old = len(images), len(self.memory) if stage.pool.mix != "none" else 0
        where = (task.index, stage.name, epoch)
        together = stage.pool.mix == "concat"
        order = torch.randperm(
            new + old if together else new, generator=generator(self.seed, "batches", *where)
        )
        rows = torch.zeros(0, dtype=torch.int64)
        for step, index in enumerate(_split(order, train.batch)):
            if together:
                index, rows = index[index < new], index[index >= new] - new
            elif old:
                draw = generator(self.seed, "replay", *where, step)
                rows = self.memory.draw(train.replay or train.batch, draw)
            assert train.augment is not None
            yield self._mixed(images, index, rows, train.augment, (*where, step))

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
        return (middle(x, self.cut).to(self.device).float() - self.mean) / self.std

    def explained(self, count: int, where: Where, how: Augment | None) -> Batch:
        """Rows of memory for a term's own forward, as they are or, with ``how``, augmented."""
        rows = self.memory.draw(count, generator(self.seed, "explain", *where))
        return self.remembered(rows, where, how)

    def remembered(self, rows: Tensor, where: Where = (), how: Augment | None = None) -> Batch:
        x, y = self.memory.tensor("x")[rows], self.memory.tensor("y")[rows]
        if how is None:
            return self.canonical(x, y, rows)
        return self._augmented(x, y, rows, how, generator(self.seed, "explain", "view", *where))

    def columns(self, rows: Tensor) -> dict[str, Column]:
        """What memory keeps beside these rows, on the device."""
        columns = self.memory.take(rows.cpu())
        return {name: move(column, self.device) for name, column in columns.items()}


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
