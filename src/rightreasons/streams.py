"""Streams: a sequence of tasks, each with new classes, cut from a data source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import torch
from torch import Tensor

from rightreasons.config import check_shots, check_validation
from rightreasons.data.sources import Source, describe, source
from rightreasons.errors import UserError, unknown
from rightreasons.memory import choose, ranks
from rightreasons.randomness import generator
from rightreasons.types import Images, Splits, Task

Tasks = int | Sequence[int] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class Stream(Sequence[Task]):
    """Tasks in order. Labels are 0..C-1 by order of appearance; ``class_names[label]`` is the name.

    Pixels are normalised by ``mean`` and ``std`` (3,), taken from the first task's train images:
    later images are not known when training starts.
    """

    tasks: tuple[Task, ...]
    class_names: tuple[str, ...]
    mean: Tensor
    std: Tensor
    flip: bool
    data: Mapping[str, Any] | None = None
    """the source's name and fields, if it can be found again by them"""

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self.tasks[index]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    @property
    def task_of(self) -> Tensor:
        """(C,) the task of each label."""
        return torch.tensor([task.index for task in self.tasks for _ in task.classes])


def stream(
    data: Any,
    tasks: Tasks = 5,
    *,
    classes: int | None = None,
    order: str | Sequence[str] = "natural",
    among: Sequence[str] | None = None,
    shots: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> Stream:
    """Cut a data source into tasks of new classes.

    ``tasks``: a number of equal tasks, a list of class counts, or lists of class names. ``order``:
    natural (the source's), seed (drawn by ``seed``), or class names; ``among`` keeps the classes of
    a pool, and ``classes`` the first so many. With ``shots`` the tasks after the first have so many
    train images a class, drawn by ``seed``, and whole test sets. With ``validation`` this share of
    the train images of each class, drawn by ``seed``, is what is tested, and the test images are
    left alone. ``options`` go to the source; its own seed is a field of the source, which can be
    passed instead of its name.

    >>> [task.classes for task in stream("glyphs", tasks=[4, 2], train=2, test=1, classes=6)]
    [(0, 1, 2, 3), (4, 5)]
    """
    check_validation(validation)
    origin = source(data, **options)
    if _kind(tasks) == "names":
        names = [str(name) for group in tasks for name in group]  # type: ignore[union-attr]
        counts = [len(group) for group in tasks]  # type: ignore[union-attr, arg-type]
    else:
        names = _ordered(origin, order, seed, among, classes)
        counts = _counts(tasks, len(names))  # type: ignore[arg-type]
        names = names[: sum(counts)]
    place = {name: i for i, name in enumerate(origin.names)}
    for name in names:
        if name not in place:
            raise unknown("class", name, origin.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class {twice!r} is in two places of the stream; name each class once")
    splits = origin.load([place[name] for name in names])
    if validation:
        splits = validated(splits.train, validation, seed, names)
    made = cut(splits, counts, names, origin.flip)
    if shots is not None:
        made = few(made, shots, seed)
    return replace(made, data=describe(origin))


def validated(train: Images, share: float, seed: int, names: Sequence[str]) -> Splits:
    """Train images cut in two, class by class: what is left to train on, and what is tested.

    Both parts have at least one image of each class.
    """
    counts = torch.bincount(train.y)
    for label in (counts == 1).nonzero().flatten().tolist():
        raise UserError(
            f"class {names[label]!r} has one train image, expected two or more with "
            f"stream.validation={share}, one to train and one to test; add some, leave the class "
            "out, or type stream.validation=0"
        )
    wanted = (counts * share).round().long().clamp_min(1).minimum(counts - 1)
    shuffled = torch.randperm(len(train), generator=generator(seed, "data", "validation"))
    y = train.y[shuffled]
    tested = ranks(y) < wanted[y]
    return Splits(
        train.subset(shuffled[~tested].sort()[0]), train.subset(shuffled[tested].sort()[0])
    )


def few(stream: Stream, shots: int, seed: int) -> Stream:
    """The stream with so many train images a class from the second task on."""
    check_shots(shots)
    tasks = [stream[0]]
    for task in stream[1:]:
        counts = torch.bincount(task.train.y, minlength=task.seen)
        for label in task.classes:
            if counts[label] < shots:
                raise UserError(
                    f"class {stream.class_names[label]!r} has {int(counts[label])} train images, "
                    f"expected at least stream.shots={shots}"
                )
        chosen = choose(task.train.y, shots, generator(seed, "data", "shots", task.index))
        tasks.append(replace(task, train=task.train.subset(chosen)))
    return replace(stream, tasks=tuple(tasks))


def cut(splits: Splits, counts: Sequence[int], names: Sequence[str], flip: bool) -> Stream:
    """Tasks of so many classes each, labels in order."""
    tasks = []
    start = 0
    for index, count in enumerate(counts):
        labels = range(start, start + count)
        parts = [
            _between(part, labels, names, which)
            for part, which in ((splits.train, "train"), (splits.test, "test"))
        ]
        tasks.append(Task(index, tuple(labels), *parts))
        start += count
    mean, std = moments(tasks[0].train)
    return Stream(tuple(tasks), tuple(names), mean, std, flip)


def _between(images: Images, labels: range, names: Sequence[str], which: str) -> Images:
    part = images.between(labels.start, labels.stop)
    counts = torch.bincount(part.y, minlength=labels.stop)
    for label in labels:
        if not counts[label]:
            raise UserError(f"class {names[label]!r} has no {which} image, expected at least one")
    return part


def moments(images: Images, chunk: int = 1024) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (3,) of the pixels, in 0..255."""
    total, square, count = torch.zeros(3, dtype=torch.float64), torch.zeros(3).double(), 0
    for index in torch.split(torch.arange(len(images)), chunk):
        x = images.pixels(index).double()
        total += x.sum((0, 2, 3))
        square += x.square().sum((0, 2, 3))
        count += x.numel() // 3
    mean = total / count
    std = (square / count - mean**2).clamp_min(1.0).sqrt()  # a flat image must not divide by zero
    return mean.float(), std.float()


def _kind(tasks: Any) -> str:
    """Which of the three ways to say tasks this is."""
    if isinstance(tasks, int) and not isinstance(tasks, bool):
        return "number"
    if isinstance(tasks, (list, tuple)) and tasks:
        if all(isinstance(t, int) and not isinstance(t, bool) for t in tasks):
            return "counts"
        if all(isinstance(t, (list, tuple)) and len(t) > 0 for t in tasks):
            return "names"
    raise UserError(
        f"stream.tasks is {tasks!r}, expected a number of tasks, class counts such as [50,10,10], "
        "or lists of class names such as [[cat,dog],[bird]]"
    )


def _ordered(
    origin: Source, order: Any, seed: int, among: Sequence[str] | None, classes: int | None
) -> list[str]:
    names = list(origin.names)
    if among is not None:
        for name in among:
            if name not in names:
                raise unknown("class of the pool", name, names)
        pool = set(among)
        names = [name for name in names if name in pool]
    if order == "seed":
        shuffled = torch.randperm(len(names), generator=generator(seed, "order")).tolist()
        names = [names[i] for i in shuffled]
    elif isinstance(order, str):
        if order != "natural":
            raise unknown("stream.order", order, ("natural", "seed"))
    else:
        names = [str(name) for name in order]
    if classes is None:
        return names
    if not 1 <= classes <= len(names):
        raise UserError(f"stream.classes is {classes}, expected 1 to {len(names)}")
    return names[:classes]


def _counts(tasks: int | Sequence[int], classes: int) -> list[int]:
    if isinstance(tasks, int):
        if not 1 <= tasks <= classes:
            raise UserError(f"stream.tasks is {tasks}, expected 1 to {classes}, the classes")
        if classes % tasks:
            near = [classes // tasks + (i < classes % tasks) for i in range(tasks)]
            typed = str(near).replace(" ", "")
            raise UserError(
                f"{classes} classes do not divide into {tasks} equal tasks; type "
                f"stream.tasks={typed}"
            )
        return [classes // tasks] * tasks
    counts = [int(n) for n in tasks]
    if min(counts, default=0) < 1 or sum(counts) > classes:
        raise UserError(
            f"stream.tasks asks for {sum(counts)} classes in {counts}, expected counts of at least "
            f"1 that add up to {classes} or less"
        )
    return counts
