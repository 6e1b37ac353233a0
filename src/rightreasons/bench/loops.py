"""The loop against a loop written by hand, at later tasks, and as everything grows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.bench.pairs import Call, compare, flops
from rightreasons.bench.rig import begun, epochs, pictures, steps
from rightreasons.bench.table import Row
from rightreasons.learners.base import Learner
from rightreasons.learners.er import ER
from rightreasons.loop import Loop
from rightreasons.memory import Memory
from rightreasons.nets import net as make_net
from rightreasons.radam import RAdam
from rightreasons.streams import Stream
from rightreasons.terms import RRR, Evidence


def by_hand(name: str, data: Stream, loop: Loop, batch: int) -> Call:
    """Experience replay as one would write it for one net and one data set, and for no other.

    The same tensors, net, batch, crop, flip and optimiser as the loop's.
    """
    net = make_net(name)
    net.grow(data[1].seen)
    module = net.module.train()
    optimiser = RAdam(module.parameters(), 2e-3)  # ours, too: the loop is what differs
    new = data[1].train
    x, y = new.pixels(torch.arange(len(new))), new.y
    old_x, old_y = loop.memory.tensor("x"), loop.memory.tensor("y")
    mean, std = data.mean.view(3, 1, 1), data.std.view(3, 1, 1)
    size = x.shape[-1]

    def crop_and_flip(images: Tensor) -> Tensor:
        count = len(images)
        down, right = torch.randint(0, 9, (2, count))
        rows = torch.arange(size) + down[:, None]
        columns = torch.arange(size) + right[:, None]
        each = torch.arange(count)[:, None, None]
        bordered = F.pad(images, [4] * 4).permute(0, 2, 3, 1)
        moved = bordered[each, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return torch.where((torch.rand(count) < 0.5)[:, None, None, None], moved.flip(-1), moved)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for index in torch.split(torch.randperm(len(x)), batch):
                rows = torch.randint(len(old_x), (batch,))
                yield torch.cat([x[index], old_x[rows]]), torch.cat([y[index], old_y[rows]])

    drawn = batches()

    def step() -> None:
        images, labels = next(drawn)
        normal = (crop_and_flip(images).float() - mean) / std
        if net.channels_last:
            normal = normal.contiguous(memory_format=torch.channels_last)
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(module(normal), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def hand_rows(pairs: int) -> Iterator[Row]:
    for name, batch in (("resnet8", 16), ("resnet18-cifar", 4)):
        data = pictures([90, 10], 100, train=16)
        loop = begun(ER(memory=Memory(200)), name, data, 1, batch, learn=False)
        ours, hand = steps(loop, 1), by_hand(name, data, loop, batch)
        more = flops(ours) / flops(hand)
        yield Row(f"{name}: the loop again (A/A)", compare(ours, ours, pairs))
        yield Row(f"{name}: our er step / by hand", compare(hand, ours, pairs), 1.03, more)


def task_rows(pairs: int) -> Iterator[Row]:
    data = pictures(20, 100, train=200)
    for what, learner in {
        "er": ER(memory=Memory(2000)),
        "er+rrr": ER(memory=Memory(2000)) + RRR(target="last_block", view="shared"),
        "er+evidence": ER(memory=Memory(2000)) + Evidence(view="shared"),
    }.items():
        second = steps(begun(learner, "resnet8", data, 1, 16, learn=False), 1)
        if what == "er":
            again = steps(begun(learner, "resnet8", data, 1, 16, learn=False), 1)
            yield Row("er: step at task 2 again (A/A)", compare(second, again, pairs))
        last = steps(begun(learner, "resnet8", data, 19, 16, learn=False), 19)
        bar = 1.05 if what == "er" else None
        yield Row(f"{what}: step at task 20 / task 2", compare(second, last, pairs), bar)


def growth_rows(pairs: int) -> Iterator[Row]:
    """Each size doubled, the others as they are."""

    def er(rows: int = 1000) -> Learner:
        return ER(memory=Memory(rows))

    def last(learner: Learner, data: Stream, batch: int = 16) -> Call:
        task = len(data) - 1
        return steps(begun(learner, "resnet8", data, task, batch, learn=False), task)

    def epoch(data: Stream) -> Call:
        return epochs(begun(er(), "resnet8", data, 1, 25, learn=False), 1)

    once, twice = (pictures(2, 20, train=n) for n in (25, 50))
    yield Row("nothing doubled: an epoch again (A/A)", compare(epoch(once), epoch(once), pairs))
    yield Row("images x 2: an epoch", compare(epoch(once), epoch(twice), pairs))
    once, twice = (pictures([n - 10, 10], n, train=10) for n in (100, 200))
    more = compare(last(er(), once), last(er(), twice), pairs)
    yield Row("classes x 2 (100 to 200): a step of er", more)
    evidence = er() + Evidence(view="shared")
    more = compare(last(evidence, once), last(evidence, twice), pairs)
    yield Row("classes x 2 (100 to 200): a step of er+evidence", more)
    once, twice = (pictures(n, 2 * n, train=20) for n in (10, 20))
    more = compare(last(er(), once), last(er(), twice), pairs)
    yield Row("tasks x 2 (10 to 20): a step of the last", more)
    once = pictures([90, 10], 100, train=40)
    more = compare(last(er(1000), once), last(er(2000), once), pairs)
    yield Row("memory rows x 2 (1,000 to 2,000): a step", more)
    once, twice = (pictures([90, 10], 100, train=4, size=n) for n in (32, 45))
    more = compare(last(evidence, once, 8), last(evidence, twice, 8), pairs)
    yield Row("pixels and map cells x 2 (32 to 45 px): a step of er+evidence", more)
