"""The checks for other people's parts: ours pass, and each thing that can be wrong is found."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.explainers import EXPLAINERS
from rightreasons.slopes import explained, slope
from rightreasons.types import Pool, Stage


@pytest.mark.parametrize("learner", [rr.ER(), rr.EWC(), rr.BiC(), rr.Joint()], ids=lambda x: x.name)
def test_our_learners_keep_the_contract(learner):
    rr.testing.check_learner(learner)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_our_explainers_keep_the_contract(name):
    rr.testing.check_explainer(EXPLAINERS[name])


@dataclass
class Plain(rr.Learner):
    """Replay, to be spoiled."""

    factor: float = 1.0

    name: ClassVar[str] = "plain"
    replays: ClassVar[bool] = True

    def stages(self, task):
        return [Stage(pool=Pool(mix="paired"))]


class Forgetful(Plain):
    """Its state has no underscore."""

    def end(self, net, task, memory, look):
        self.teacher = copy.deepcopy(net)


class Unpacked(Plain):
    def end(self, net, task, memory, look):
        self.when_ = torch.Generator()


class Lost(Plain):
    """What it counts is not a part of it, and a resumed run counts anew."""

    counts: ClassVar[list[int]] = []

    def begin(self, net, task, memory, look):
        if not task.index:
            self.counts.clear()

    def loss(self, net, out, batch, stage):
        self.counts.append(1)
        return F.cross_entropy(out.logits, batch.y) / len(self.counts)


class Drawing(Plain):
    """Draws from no generator of the run."""

    source = torch.Generator().manual_seed(0)

    def loss(self, net, out, batch, stage):
        noise = torch.randn(out.logits.shape, generator=self.source)
        return F.cross_entropy(out.logits + noise.to(out.logits), batch.y)


class Detached(Plain):
    def loss(self, net, out, batch, stage):
        plain = F.cross_entropy(out.logits, batch.y)
        return plain + out.logits.square().mean().detach() * out.logits.mean()


class Cut(Plain):
    def loss(self, net, out, batch, stage):
        return F.cross_entropy(out.logits, batch.y).detach()


class Each(Plain):
    def loss(self, net, out, batch, stage):
        return F.cross_entropy(out.logits, batch.y, reduction="none")


class Bare(Plain):
    def loss(self, net, out, batch, stage):
        return F.cross_entropy(out.logits, batch.y).item()


class Drifting(Plain):
    """Writes into its configuration."""

    def loss(self, net, out, batch, stage):
        self.factor *= 0.5
        return self.factor * F.cross_entropy(out.logits, batch.y)


class Undecorated(Plain):
    share: float = 0.5


class Mixing(Plain):
    replays: ClassVar[bool] = False


class Mistyped(Plain):
    def stages(self, task):
        return [Stage(pool=Pool(mix="pared"))]


class Single(Plain):
    def stages(self, task):
        return Stage()


class Shut(Plain):
    """Its own step never asks for the terms."""

    def step(self, net, batch, objective, update):
        update(self.loss(net, net(batch.x), batch, None))


@dataclass
class Changed(Plain):
    """A field that does not come back as it was given."""

    given: str = ""
    name: ClassVar[str] = "changed"

    def __post_init__(self):
        super().__post_init__()
        self.given = self.given + "!"


class Recipe(Plain):
    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (Forgetful(), "has set teacher; state must end in _"),
        (Unpacked(), "state holds a Generator"),
        (Lost(), "stopped and gone on with ends with other bits"),
        (Drawing(), "trained twice with one seed gives different bits"),
        (Detached(), "finite differences give"),
        (Cut(), "the loss of plain does not depend on the weights"),
        (Each(), r"the loss of plain has shape \(8,\), expected one number"),
        (Bare(), "the loss of plain is a float, expected a tensor"),
        (Drifting(), "has changed its field factor from 1.0 to"),
        (Undecorated(), "Undecorated declares share, which is no field; put @dataclass above it"),
        (Mixing(), "has replays = False; write replays"),
        (Mistyped(), "unknown mix of a pool 'pared'; did you mean 'paired'"),
        (Single(), "expected a list of rr.Stage"),
        (Shut(), "the term has no effect"),
        (Changed(), "does not come back from its config"),
        (Recipe(), "is a recipe, and training has written into it"),
        ("er", "'er' is no rr.Learner"),
        (Plain, r"Plain is a class; pass a learner, Plain\(\)"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, rr.Learner) else None,
)
def test_a_learner_that_breaks_the_contract_is_told(learner: Any, said):
    with pytest.raises(AssertionError, match=said):
        rr.testing.check_learner(learner)


def test_a_learner_without_a_name_is_refused():
    class Nameless(rr.Learner):
        """No word for the command line."""

    with pytest.raises(rr.UserError, match="Nameless has no name; write name"):
        Nameless()


# --- explainers ----------------------------------------------------------------------------------


def right(net, at, y):
    out = explained(net, at, "last_block")
    return (slope(net, out, y, "last_block") * out.maps["last_block"]).sum(1)


def flat(net, at, y):
    return right(net, at, y).flatten(1)


def hooked(net, at, y):
    net.head.register_forward_hook(lambda *_: None)
    return right(net, at, y)


def evaluated(net, at, y):
    net.eval()
    return right(net, at, y)


def mixed(net, at, y):
    maps = right(net, at, y)
    return maps - maps.mean()


def half(net, at, y):
    out = explained(net, at, "last_block")
    return (slope(net, out, y, "last_block").detach() * out.maps["last_block"]).sum(1)


def bare(net, at, y):
    return right(net, at, y).detach()


def always(net, at, y):
    with torch.enable_grad():
        return right(net, at, y)


def random(net, at, y):
    maps = right(net, at, y)
    return maps + torch.rand(maps.shape[1:]).to(maps)


def two_ways(net, at, y):
    return right(net, at, y) * (1 if isinstance(at, torch.Tensor) else 2)


@pytest.mark.parametrize(
    ("explain", "said"),
    [
        (flat, r"flat gives \(4, 16\), expected maps of shape \(B,u,v\)"),
        (hooked, "hooked leaves hooks"),
        (evaluated, "evaluated leaves hooks, modes"),
        (mixed, "mixed gives an image another map in another batch"),
        (half, "half loses a part of its gradient"),
        (bare, "bare gives maps without a graph"),
        (always, "always builds a graph under no_grad"),
        (random, "random gives other maps when it is called again"),
        (two_ways, "two_ways explains a pass that is handed over in another way"),
    ],
)
def test_an_explainer_that_breaks_the_contract_is_told(explain, said):
    rr.testing.check_explainer(right)
    with pytest.raises(AssertionError, match=said):
        rr.testing.check_explainer(explain)
