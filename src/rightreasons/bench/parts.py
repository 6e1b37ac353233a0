"""What happens between tasks: maps, herding, Fisher information, evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.bench.pairs import Call, compare, flops
from rightreasons.bench.rig import begun, pictures, steps
from rightreasons.bench.table import Row, share
from rightreasons.evaluate import evaluate
from rightreasons.feed import Feed
from rightreasons.keep import look
from rightreasons.learners.base import Learner
from rightreasons.learners.er import ER
from rightreasons.learners.fisher import fisher
from rightreasons.memory import Memory, herd
from rightreasons.nets import net as make_net
from rightreasons.nets.base import Net
from rightreasons.radam import RAdam
from rightreasons.registry import LEARNERS, find
from rightreasons.streams import stream
from rightreasons.terms import RRR, Evidence, Term
from rightreasons.types import Batch, Images


@torch.no_grad()
def forward(net: Net, feed: Feed, images: Images) -> None:
    """One plain pass over images."""
    for index in feed.chunks(torch.arange(len(images))):
        net(feed.normalise(images.pixels(index)))


def map_rows(pairs: int) -> Iterator[Row]:
    data = pictures([90, 10], 100, train=20)
    loop = begun(ER(memory=Memory(2000)), "resnet8", data, 1, 16, learn=False)
    net, feed = loop.net.eval(), loop.feed
    images = data[0].train.join(data[1].train)
    plain = partial(forward, net, feed, images)
    yield Row("a forward of 2,000 rows again (A/A)", compare(plain, plain, pairs, warm=1))
    cases: dict[str, tuple[Term, float | None]] = {
        "gradcam at last_block": (RRR(target="last_block"), 1.2),
        "evidence of 100 classes": (Evidence(), None),
        "gradcam at the paper's target": (RRR(), None),
    }
    for what, (term, bar) in cases.items():

        def ours(term: Term = term) -> None:
            look(net, feed, (term,), images, torch.arange(len(images)))

        more = share(flops(ours) / flops(plain))
        name = f"{what}: maps of 2,000 rows / a forward of them"
        yield Row(name, compare(plain, ours, pairs, warm=1), bar, more)


def herd_literally(z: Tensor, y: Tensor, count: int) -> Tensor:
    """Algorithm 4 of iCaRL as it stands: every candidate of every pick looked at."""
    chosen: list[int] = []
    for label in sorted(set(y.tolist())):
        own = (y == label).nonzero().flatten().tolist()
        phi = F.normalize(z[own], dim=1)
        mean = phi.mean(0)
        picked: list[int] = []
        total = torch.zeros_like(mean)
        for k in range(1, count + 1):
            gaps = [
                float("inf") if i in picked else float((mean - (phi[i] + total) / k).norm())
                for i in range(len(own))
            ]
            best = min(range(len(own)), key=gaps.__getitem__)
            picked.append(best)
            total = total + phi[best]
        chosen += [own[i] for i in picked]
    return torch.tensor(chosen)


def herd_rows(pairs: int) -> Iterator[Row]:
    z = torch.randn(5000, 64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(10).repeat_interleave(500)
    ours, literal = herd(z, y, 20), herd_literally(z, y, 20)
    assert sorted(ours.tolist()) == sorted(literal.tolist())
    quick, slow = partial(herd, z, y, 20), partial(herd_literally, z, y, 20)
    yield Row("herding again (A/A)", compare(quick, quick, pairs))
    ratio = compare(slow, quick, pairs, warm=1)
    yield Row("herding 500 to 20, 10 classes / a literal loop", ratio, 1 / 50)


def fisher_literally(net: Net, batch: Batch) -> dict[str, Tensor]:
    """One image at a time."""
    named = dict(net.module.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for x, y in zip(batch.x, batch.y, strict=True):
        loss = F.cross_entropy(net(x[None]).logits, y[None])
        for name, slope in zip(named, torch.autograd.grad(loss, list(named.values())), strict=True):
            total[name] += slope.square()
    return {name: value / len(batch.y) for name, value in total.items()}


def fisher_rows(pairs: int) -> Iterator[Row]:
    for name, count, bar in (
        ("resnet20", 128, 0.7), ("resnet8", 128, None), ("resnet18-cifar", 16, None)
    ):  # fmt: skip
        draw = torch.Generator().manual_seed(0)
        x, y = torch.randn(count, 3, 32, 32, generator=draw), torch.arange(count) % 10
        batch = Batch(x, y, torch.zeros_like(y), torch.full_like(y, -1))
        net = make_net(name)
        net.grow(10)
        net.eval()
        one_by_one, ours = partial(fisher_literally, net, batch), partial(fisher, net, [batch])
        if bar is not None:
            yield Row(f"{name}: Fisher again (A/A)", compare(ours, ours, pairs, warm=1))
        ratio = compare(one_by_one, ours, pairs, warm=1)
        yield Row(f"{name}: Fisher of {count} images / one by one", ratio, bar)


def optimiser_rows(pairs: int) -> Iterator[Row]:
    """The optimiser alone: our RAdam and torch's by lists of tensors, on weights and gradients."""
    for name in ("resnet8", "resnet18-cifar", "mobilenet-v2", "alexnet"):
        net = make_net(name)
        net.grow(100)
        weights = list(net.module.parameters())
        for p in weights:
            p.grad = torch.full_like(p, 1e-3)
        ours, again, torchs = (
            RAdam(weights),
            RAdam(weights),
            torch.optim.RAdam(weights, foreach=True),
        )
        if name == "resnet8":
            yield Row(f"{name}: our RAdam again (A/A)", compare(ours.step, again.step, pairs))
        yield Row(f"{name}: our RAdam / torch's", compare(torchs.step, ours.step, pairs))


def evaluation_rows(pairs: int) -> Iterator[Row]:
    data = stream("glyphs", tasks=5, classes=20, train=4, test=50)
    loop = begun(ER(memory=Memory(80)), "resnet8", data, 4, 16, learn=False)
    net, feed = loop.net.eval(), loop.feed
    images = data[0].test.join(*(task.test for task in data[1:]))
    plain = partial(forward, net, feed, images)
    yield Row("a forward of all test images again (A/A)", compare(plain, plain, pairs, warm=1))
    bare = copy.copy(feed)
    unmasked = (replace(task, test=replace(task.test, masks=None)) for task in data)
    bare.stream = replace(data, tasks=tuple(unmasked))
    for what, fed, bar in (("accuracy and drift", bare, 1.1), ("with pointing game", feed, 1.3)):
        probes: dict[str, Tensor] = {}
        with torch.no_grad():
            for task in data:
                evaluate(loop.learner, net, fed, task, probes)
            test = partial(evaluate, loop.learner, net, fed, data[4], probes)
            ratio = compare(plain, test, pairs, warm=1)
        yield Row(f"{what}: testing all classes seen / a forward", ratio, bar)


def learner_rows(pairs: int) -> Iterator[Row]:
    """The first stage of the second task, each learner as it is by default.

    A step of those that shuffle new and remembered images together has half the images of er's.
    """
    # whole batches alone, or the step whose FLOPs are counted might be a part of one; and iTAML is
    # tested by 20 images of a task
    data = pictures([90, 10], 100, train=8, test=2)

    def of_er() -> Call:
        return steps(begun(ER(memory=Memory(400)), "resnet8", data, 1, 16, learn=False), 1)

    er = of_er()
    counted = flops(er)
    yield Row("resnet8: a step of er again (A/A)", compare(er, of_er(), pairs))
    for name in LEARNERS.own:
        if name in ("er", "joint"):
            continue
        learner: Learner = find("learner", LEARNERS, name)(memory=Memory(400))
        step = steps(begun(learner, "resnet8", data, 1, 16, learn=True), 1)
        more = share(flops(step) / counted)
        yield Row(f"resnet8: a step of {name} / of er", compare(er, step, pairs), None, more)
