"""The training loop. There is one, for all learners.

For each task: the head grows, the learner's stages run, the memory takes rows with the columns of
the learner's terms, all classes seen are tested in one pass, and the run folder gets a checkpoint.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rightreasons.augment import Augment, augment
from rightreasons.errors import UserError, unknown
from rightreasons.learners.base import Learner
from rightreasons.memory import Column, Ragged, choose
from rightreasons.nets.net import Net
from rightreasons.progress import Reporter
from rightreasons.randomness import generator
from rightreasons.result import Result
from rightreasons.runs import Run
from rightreasons.state import get_state, pack, restore, set_state
from rightreasons.streams import Stream
from rightreasons.terms import Term
from rightreasons.types import Batch, Images, Out, Stage, Task

OPTIMISERS = ("radam", "sgd", "adamw")
CHUNK = 256  # images a pass when nothing is trained
LOOK = 20  # steps between two looks at the losses


@dataclass(frozen=True)
class Train:
    """How to train: what is the same for every learner."""

    epochs: int = 5
    batch: int = 32
    replay: int | None = None
    """memory rows beside each batch of new images (paired replay); as many as `batch` by default"""
    optimiser: str = "radam"
    lr: float = 2e-3
    milestones: tuple[int, ...] = ()
    """epochs after which the learning rate is multiplied by `gamma`"""
    gamma: float = 0.2
    momentum: float = 0.9
    """of sgd"""
    weight_decay: float = 0.0
    clip: float | None = None
    """largest norm of the gradient"""
    augment: Augment | None = None
    """by default a crop of 4 pixels, and a flip if the data allows it"""
    device: str = "auto"
    threads: int | None = None
    """CPU threads; results are equal bit by bit at an equal number"""

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise unknown("train.optimiser", self.optimiser, OPTIMISERS)
        for name in ("epochs", "batch", "replay", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"train.{name} is {value}, expected at least 1")
        if not self.lr > 0 or not math.isfinite(self.lr):
            raise UserError(f"train.lr is {self.lr}, expected a number above 0")


def fit(
    learner: Learner,
    net: Net,
    stream: Stream,
    *,
    train: Train | None = None,
    run: str | Path | Run | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Result:
    """Learn a stream, task by task; learner and net are recipes and stay as they are.

    With ``run`` the folder gets config, records, checkpoints and result; a folder that holds the
    beginning of this very run is gone on with.
    """
    if not isinstance(learner, Learner):
        raise UserError(f"learner is a {type(learner).__name__}, expected one such as rr.ER()")
    if not isinstance(net, Net):
        raise UserError(
            f'net is a {type(net).__name__}, expected rr.net("resnet8") or rr.net(module)'
        )
    train = train or Train()
    train = replace(train, augment=train.augment or Augment(flip=stream.flip))
    loop = Loop(copy.deepcopy(learner), copy.deepcopy(net), stream, train, seed)
    loop.check()
    if run is not None and not isinstance(run, Run):
        run = Run(Path(run), describe(learner, net, stream, train, seed))
    with _threads(train.threads):
        return loop.run(run, progress)


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe(learner: Learner, net: Net, stream: Stream, train: Train, seed: int) -> dict[str, Any]:
    """The config of a run that was started from Python, for its folder."""
    from rightreasons.config import plain

    sizes = [[len(task.train), len(task.test)] for task in stream]
    return {
        "method": learner.method,
        "seed": seed,
        "stream": {
            "tasks": [[stream.class_names[c] for c in task.classes] for task in stream],
            "images": sizes,
        },
        "net": {"name": net.name},
        "train": plain(train),
        "learner": plain(learner),
    }


class Loop:
    """One run in the making."""

    def __init__(self, learner: Learner, net: Net, stream: Stream, train: Train, seed: int) -> None:
        self.learner, self.net, self.stream, self.train, self.seed = (
            learner,
            net,
            stream,
            train,
            seed,
        )
        self.memory = learner.memory
        self.device = _device(train.device)
        self.task_of = stream.task_of
        self.mean = stream.mean.view(3, 1, 1).to(self.device)
        self.std = stream.std.view(3, 1, 1).to(self.device)
        self.records: list[dict[str, Any]] = []
        self.sums: dict[str, Tensor] = {}
        self.steps = 0

    def check(self) -> None:
        """Refuse before training what would fail later."""
        for term in self.learner.terms:
            term.check(self.net)
        if self.learner.remembers:
            for task in self.stream:
                self.memory.quota(task.seen)

    def run(self, run: Run | None, progress: bool) -> Result:
        if self.net.initialise is not None:
            self.net.initialise(self.net, generator(self.seed, "init"))
        self.net.to(self.device)
        if run is not None:
            saved = run.open()
            if saved is not None:
                self._resume(saved)
        label = f"{self.learner.method} seed {self.seed}"
        total = [self._steps_of(task) for task in self.stream]
        done = len(self.records)
        with Reporter(label, sum(total), sum(total[:done]), progress) as reporter:
            for task in self.stream[done:]:
                self.learn(task, reporter, run)
                reporter.say(_line(self.records[-1], len(self.stream)))
        result = Result(self.records, self.net, self.learner)
        if run is not None:
            run.finish(result.summary())
        return result

    def _resume(self, saved: dict[str, Any]) -> None:
        restore(self.net, saved["net"])
        set_state(self.learner, saved["learner"], self.net)
        self.records = saved["records"]

    def learn(self, task: Task, reporter: Reporter, run: Run | None) -> None:
        """One task, from the growth of the head to its record."""
        begun = time.perf_counter()
        self.sums, self.steps = {}, 0
        self.net.grow(task.seen, generator(self.seed, "head", task.index))
        self.net.to(self.device).train()
        self.learner.begin(self.net, task, self.memory)
        for stage in self.learner.stages(task):
            self.stage(task, stage, reporter)
        trained = time.perf_counter()
        self.learner.end(self.net, task, self.memory)
        if self.learner.remembers:
            self.remember(task)
        record = self.evaluate(task)
        record |= {
            "task": task.index + 1,
            "classes": len(task.classes),
            "rows": len(self.memory),
            "bytes": self._bytes(),
            "losses": {name: float(value) / self.steps for name, value in self.sums.items()},
            "steps": self.steps,
            "seconds": time.perf_counter() - begun,
            "seconds_a_step": (trained - begun) / self.steps,
        }
        self.records.append(record)
        if run is not None:
            run.save(
                task.index + 1,
                {
                    "net": pack(self.net),
                    "learner": get_state(self.learner),
                    "records": self.records,
                },
            )

    # --- training ----------------------------------------------------------------------------

    def stage(self, task: Task, stage: Stage, reporter: Reporter) -> None:
        train = replace(self.train, **stage.train)
        self.learner.begin_stage(self.net, task, stage, self.memory)
        parameters = trainable(self.net, stage.params)
        optimiser = make_optimiser(parameters, train)
        images = self._pool(task, stage)
        terms = self.learner.terms if stage.terms and len(self.memory) else ()

        def update(loss: Tensor) -> None:
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if train.clip is not None:
                nn.utils.clip_grad_norm_(parameters, train.clip)
            optimiser.step()

        for epoch in range(train.epochs):
            set_lr(optimiser, train, epoch)
            for step, (index, rows) in enumerate(self.batches(images, stage, task, epoch)):
                where = (task.index, stage.name, epoch, step)
                batch = self.batch(images, index, rows, train, where)

                def objective(batch: Batch, where: tuple[int | str, ...] = where) -> Tensor:
                    return self.objective(batch, stage, terms, where)

                self.learner.step(self.net, batch, objective, update)
                self.steps += 1
                if self.steps % LOOK == 0:
                    place = f"task {task.index + 1}/{len(self.stream)}"
                    place += f" epoch {epoch + 1}/{train.epochs}"
                    reporter.at(place, LOOK, self._means())

    def objective(
        self, batch: Batch, stage: Stage, terms: Sequence[Term], where: tuple[int | str, ...]
    ) -> Tensor:
        """The learner's loss and its terms on one batch."""
        out = self.net(batch.x)
        loss = self.learner.loss(self.net, out, batch, stage)
        self._note("task", loss)
        for term, seen, rows, columns in self.explained(terms, where):
            value = term(self.net, seen, rows, columns)
            self._note(term.name, value)
            loss = loss + term.weight * value
        return loss

    def explained(
        self, terms: Sequence[Term], where: tuple[int | str, ...]
    ) -> Iterator[tuple[Term, Out, Batch, dict[str, Column]]]:
        """For each term the forward of its rows; terms that look at the same rows share it."""
        for count in dict.fromkeys(term.rows for term in terms):
            group = [term for term in terms if term.rows == count]
            rows = self.memory.draw(count, generator(self.seed, "explain", *where))
            batch = self._canonical(
                self.memory.tensor("x")[rows], self.memory.tensor("y")[rows], rows
            )
            columns = self._to_device(self.memory.take(rows))
            with self.net.frozen_statistics():
                out = self.net(batch.x, taps=[tap for term in group for tap in term.taps])
            for term in group:
                yield term, out, batch, columns

    def batches(
        self, images: Images, stage: Stage, task: Task, epoch: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Places of new images and rows of memory, batch by batch."""
        train = replace(self.train, **stage.train)
        new, old = len(images), len(self.memory) if stage.pool.mix != "none" else 0
        where = (task.index, stage.name, epoch)
        if stage.pool.mix == "concat":
            order = torch.randperm(new + old, generator=generator(self.seed, "batches", *where))
            for part in _split(order, train.batch):
                yield part[part < new], part[part >= new] - new
            return
        order = torch.randperm(new, generator=generator(self.seed, "batches", *where))
        none = torch.zeros(0, dtype=torch.int64)
        for step, part in enumerate(_split(order, train.batch)):
            draw = generator(self.seed, "replay", *where, step)
            yield part, self.memory.draw(train.replay or train.batch, draw) if old else none

    def batch(
        self,
        images: Images,
        index: Tensor,
        rows: Tensor,
        train: Train,
        where: tuple[int | str, ...],
    ) -> Batch:
        """New images and remembered ones, augmented and normalised, on the device."""
        x, y = images.pixels(index), images.y[index]
        row = torch.full_like(y, -1)
        if len(rows):
            x = torch.cat([x, self.memory.tensor("x")[rows]])
            y = torch.cat([y, self.memory.tensor("y")[rows]])
            row = torch.cat([row, rows])
        assert train.augment is not None
        x, geometry = augment(
            x.to(self.device), train.augment, generator(self.seed, "augment", *where)
        )
        batch = Batch(self.normalise(x), y, self.task_of[y], row, geometry)
        return Batch(*(v.to(self.device) for v in batch[:4]), geometry)

    def normalise(self, x: Tensor) -> Tensor:
        return (x.to(self.device).float() - self.mean) / self.std

    def _canonical(self, x: Tensor, y: Tensor, rows: Tensor) -> Batch:
        """Images as they are."""
        y = y.to(self.device)
        return Batch(self.normalise(x), y, self.task_of.to(y.device)[y], rows.to(y.device))

    def _pool(self, task: Task, stage: Stage) -> Images:
        if not stage.pool.past:
            return task.train
        first, *rest = (t.train for t in self.stream[: task.index + 1])
        return first.join(*rest)

    def _steps_of(self, task: Task) -> int:
        """Steps of a task, for the time that is left."""
        total = 0
        for stage in self.learner.stages(task):
            train = replace(self.train, **stage.train)
            images = len(self._pool(task, stage))
            if stage.pool.mix == "concat" and task.index:
                images += self.memory.size
            total += train.epochs * max(1, math.ceil(images / train.batch))
        return total

    # --- after training ----------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, task: Task) -> None:
        """Make room, choose images of the new classes, and store what the terms need of them."""
        memory, terms = self.memory, self.learner.terms
        memory.shrink(task.seen)
        quota = memory.quota(task.seen, first=task.index == 0)
        index = choose(task.train.y, quota, generator(self.seed, "memory", task.index))
        columns: list[dict[str, Column]] = []
        taps = [tap for term in terms for tap in term.taps]
        self.net.eval()
        for part in torch.split(index, CHUNK):
            x, y = task.train.pixels(part), task.train.y[part]
            chunk: dict[str, Column] = {"x": x, "y": y, "task": self.task_of[y], "index": part}
            if terms:
                batch = self._canonical(x, y, torch.full_like(y, -1))
                with torch.set_grad_enabled(any(term.needs_graph(self.net) for term in terms)):
                    out = self.net(batch.x, taps=taps)
                    for term in terms:
                        chunk |= _to_cpu(term.remember(self.net, batch, out))
            columns.append(chunk)
        self.net.train()
        for chunk in columns:
            memory.add(chunk)

    @torch.no_grad()
    def evaluate(self, task: Task) -> dict[str, Any]:
        """Accuracy on each task so far, over all classes seen and within the task, in one pass."""
        first, *rest = (t.test for t in self.stream[: task.index + 1])
        images = first.join(*rest)
        hits = {name: torch.zeros(task.index + 1) for name in ("class", "task")}
        sizes = torch.bincount(self.task_of[images.y])
        owner = self.task_of[: task.seen].to(self.device)  # (C,)
        self.net.eval()
        for index in torch.split(torch.arange(len(images)), CHUNK):
            x, y = self.normalise(images.pixels(index)), images.y[index].to(self.device)
            scores = self.learner.predict(self.net, x, self.net(x), self.memory)  # (B,C)
            own = owner[y]
            within = scores.masked_fill(owner[None] != own[:, None], -math.inf)
            for name, s in (("class", scores), ("task", within)):
                right = (s.argmax(1) == y).float().cpu()
                hits[name].scatter_add_(0, own.cpu(), right)
        self.net.train()
        return {
            "accuracy": {name: (h / sizes).tolist() for name, h in hits.items()},
            "test_images": sizes.tolist(),
        }

    # --- bookkeeping -------------------------------------------------------------------------

    def _note(self, name: str, value: Tensor) -> None:
        """Add up on the device; a number is only looked at now and then."""
        value = value.detach()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def _means(self) -> dict[str, float]:
        means = {name: float(value) / self.steps for name, value in self.sums.items()}
        for name, value in means.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the {name} loss is {value} in task {len(self.records) + 1} at lr "
                    f"{self.train.lr}; try a smaller train.lr, train.clip=1 or a smaller weight"
                )
        return means

    def _bytes(self) -> dict[str, int]:
        columns = self.memory.nbytes()
        images = columns.pop("x", 0)
        maps = sum(size for name, size in columns.items() if "." in name)
        model = sum(p.nbytes for p in self.net.parameters())
        return {"images": images, "maps": maps, "model": model}

    def _to_device(self, columns: dict[str, Column]) -> dict[str, Column]:
        if self.device.type == "cpu":
            return columns
        return {name: _move(c, self.device) for name, c in columns.items()}


def _to_cpu(columns: dict[str, Column]) -> dict[str, Column]:
    return {name: _move(c, torch.device("cpu")) for name, c in columns.items()}


def _move(column: Column, device: torch.device) -> Column:
    if isinstance(column, Ragged):
        return Ragged(column.values.to(device), column.lengths.to(device))
    return column.to(device)


def _split(order: Tensor, size: int) -> list[Tensor]:
    """Batches; one image left over joins the last, for BatchNorm needs two."""
    parts = list(torch.split(order, size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def trainable(net: Net, which: str) -> list[nn.Parameter]:
    """The parameters of a stage."""
    choices = {"all": net, "head": net.head}
    if which not in choices:
        raise unknown("stage.params", which, choices)
    return list(choices[which].parameters())


def make_optimiser(parameters: list[nn.Parameter], train: Train) -> torch.optim.Optimizer:
    """A fresh optimiser: its state belongs to one stage of one task."""
    decay = train.weight_decay
    if train.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, train.lr, train.momentum, weight_decay=decay, foreach=True
        )
    kind = torch.optim.RAdam if train.optimiser == "radam" else torch.optim.AdamW
    return kind(parameters, train.lr, weight_decay=decay, foreach=True)


def set_lr(optimiser: torch.optim.Optimizer, train: Train, epoch: int) -> None:
    passed = sum(epoch >= milestone for milestone in train.milestones)
    for group in optimiser.param_groups:
        group["lr"] = train.lr * train.gamma**passed


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError:
        raise unknown("train.device", name, ("auto", "cpu", "cuda", "mps")) from None


def _line(record: dict[str, Any], tasks: int) -> str:
    row = record["accuracy"]["class"]
    sizes = record["test_images"]
    seen = sum(a * n for a, n in zip(row, sizes, strict=True)) / sum(sizes)
    losses = "  ".join(f"{name} {value:.3g}" for name, value in record["losses"].items())
    kb = {name: f"{size / 1024:.0f} kB" for name, size in record["bytes"].items()}
    return (
        f"task {record['task']}/{tasks}  accuracy on all classes seen {100 * seen:.1f} %  {losses}  "
        f"memory {record['rows']} rows, images {kb['images']}, maps {kb['maps']}"
        f"  {record['seconds']:.1f} s"
    )
