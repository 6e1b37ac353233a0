"""Checks for your own parts: what the tests of this library ask of every learner and explainer.

    import rightreasons as rr

    def test_mine():
        rr.testing.check_learner(Mine())
        rr.testing.check_explainer(my_explainer)

Each check raises ``AssertionError`` with a sentence at the first thing that does not hold. They
train on sixteen-pixel glyphs with a net of two narrow stages, a second or so for each check.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from rightreasons.augment import Augment
from rightreasons.config import make, plain
from rightreasons.errors import UserError
from rightreasons.explainers import Explainer
from rightreasons.feed import Look
from rightreasons.finite import check_gradient
from rightreasons.learners.base import Learner
from rightreasons.loop import Loop
from rightreasons.memory import Memory, Ragged
from rightreasons.nets.base import INPUT, Net
from rightreasons.nets.small import SmallResNet, initialise
from rightreasons.optimise import Train
from rightreasons.progress import Reporter
from rightreasons.result import Result
from rightreasons.state import get_state
from rightreasons.steps import Steps
from rightreasons.streams import Stream, stream
from rightreasons.terms import RRR, Evidence, Term
from rightreasons.train import fit
from rightreasons.types import Stage

TRAIN = Train(epochs=2, batch=8, optimiser="adamw", augment=Augment(2, False), threads=1)
ROWS = 12


def small_stream() -> Stream:
    """Six glyph classes in three tasks."""
    return stream("glyphs", tasks=3, classes=6, train=12, test=4, size=16)


def small_net() -> Net:
    """A residual net of two narrow stages: 4x4 maps of sixteen-pixel images."""
    taps = {"last_block": "stages.1", "paper": "stages.1.0.conv2"}
    module = SmallResNet((4, 8), (2, 2), 1)
    return Net(module, "fc", taps, pooled_linear=True, initialise=initialise, name="small")


# --- learners ------------------------------------------------------------------------------------


def check_learner(learner: Learner) -> None:
    """Does a learner keep the contract? Every learner of this library does.

    It trains and stays a recipe; equal seeds give equal bits; its fields come back from a config;
    all that it sets ends in ``_`` and can be checkpointed; a run that was stopped, twice and inside
    a task, ends with the same bits; a term of weight 0 changes nothing, and of another weight it
    does; the gradient of its loss equals finite differences in float64. It takes ten seconds or
    so and returns nothing.
    """
    if isinstance(learner, type):
        raise AssertionError(f"{learner.__name__} is a class; pass a learner, {learner.__name__}()")
    _demand(isinstance(learner, Learner), f"{learner!r} is no rr.Learner")
    try:
        _check_learner(learner)
    except UserError as error:  # what a run would refuse
        raise AssertionError(str(error)) from error


def _check_learner(learner: Learner) -> None:
    _declares_fields(learner)
    learner = copy.deepcopy(learner)
    learner.memory = replace(learner.memory, size=ROWS, per_class=None)
    _says_its_stages(learner)
    base = _trains(learner)
    _comes_back(learner)
    _obeys_the_state_rule(_parts(base)[1])
    _keeps_its_fields(learner, _parts(base)[1])
    twice = f"{learner.name} trained twice with one seed gives different bits"
    _same(
        base, _fit(learner), f"{twice}; draw from look.generator(...), or in loss from torch's own"
    )
    _goes_on(learner, base)
    if not any(stage.pool.past for stage in learner.stages(small_stream()[1])):
        for term in (RRR(rows=4, weight=5.0), Evidence(rows=4, weight=5.0)):
            _carries(learner, term, base)
    for stage in learner.stages(small_stream()[1]):
        _differentiates(learner, stage)


def _fit(learner: Learner, run: Path | None = None, checkpoint: int = 200) -> Result:
    return fit(
        learner,
        small_net(),
        small_stream(),
        train=TRAIN,
        run=run,
        progress=False,
        checkpoint=checkpoint,
    )


def _declares_fields(learner: Learner) -> None:
    """What a class annotates is a field: without the decorator no config would know it."""
    known = {f.name for f in fields(learner)}
    for kind in type(learner).__mro__:
        for name, hint in inspect.get_annotations(kind).items():
            _demand(
                name in known or name.endswith("_") or "ClassVar" in str(hint),
                f"{kind.__name__} declares {name}, which is no field; put @dataclass above it",
            )


def _says_its_stages(learner: Learner) -> None:
    for task in small_stream():
        stages = learner.stages(task)
        _demand(
            isinstance(stages, list) and all(isinstance(stage, Stage) for stage in stages),
            f"stages of {learner.name} returns {stages!r}, expected a list of rr.Stage",
        )
        _demand(
            learner.replays or all(stage.pool.mix == "none" for stage in stages),
            f"{learner.name} mixes remembered images into a stage and has replays = False; write "
            "replays: ClassVar[bool] = True in the class",
        )


def _trains(learner: Learner) -> Result:
    before = {name: value for name, value in vars(learner).items()}
    result = _fit(learner)
    _demand(
        vars(learner).keys() == before.keys() and not len(learner.memory),
        f"{learner.name} is a recipe, and training has written into it",
    )
    R = result.R[~torch.from_numpy(result.R).isnan().numpy()]
    _demand(bool(((R >= 0) & (R <= 1)).all()), f"{learner.name} has an accuracy outside 0..1")
    return result


def _comes_back(learner: Learner) -> None:
    """From what a run's config keeps."""
    values = {k: v for k, v in plain(learner).items() if k not in ("memory", "terms")}
    memory = make(Memory, plain(learner.memory), "memory")
    again = make(type(learner), values, learner.name, memory=memory, terms=())
    _demand(
        plain(again) == plain(learner),
        f"{learner.name} does not come back from its config: {plain(again)}, not {plain(learner)}",
    )


def _obeys_the_state_rule(learner: Learner) -> None:
    allowed = {f.name for f in fields(learner)}
    wrong = sorted(n for n in vars(learner) if not n.endswith("_") and n not in allowed)
    _demand(
        not wrong,
        f"{learner.name} has set {', '.join(wrong)}; state must end in _, or it is not kept",
    )
    try:
        get_state(learner)
    except TypeError as error:
        raise AssertionError(f"{learner.name}: {error}") from error


def _keeps_its_fields(given: Learner, trained: Learner) -> None:
    before, after = plain(given), plain(trained)
    for name in sorted(before.keys() - {"memory", "terms"}):
        _demand(
            before[name] == after[name],
            f"{given.name} has changed its field {name} from {before[name]} to {after[name]}; "
            "fields are configuration, keep what changes under a name that ends in _",
        )


class _Halt(Exception):
    """Stops a run inside a task."""


def _halting(after: int) -> Callable[..., Tensor]:
    """The objective of a step, which can be had so many times."""
    real, calls = Steps.objective, [0]

    def counted(self: Steps, *given: Any, **words: Any) -> Tensor:
        calls[0] += 1
        if calls[0] > after:
            raise _Halt
        return real(self, *given, **words)

    return counted


def _goes_on(learner: Learner, base: Result) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        part = int(0.4 * sum(record["steps"] for record in base.records))
        for _ in range(2):
            with mock.patch.object(Steps, "objective", _halting(part)), suppress(_Halt):
                _fit(learner, folder, checkpoint=2)
        again = _fit(learner, folder, checkpoint=2)
    _same(
        base,
        again,
        f"{learner.name} that was stopped and gone on with ends with other bits; what it goes by "
        "must be kept under names of its own that end in _",
    )


def _carries(learner: Learner, term: Term, base: Result) -> None:
    """A term moves the weights, unless its weight is 0."""
    still = _fit(learner + replace(term, weight=0.0))
    moved = _fit(learner + term)
    _same(base, still, f"{learner.name}+{term.name} with weight 0 is not {learner.name}", False)
    _demand(
        not _equal(*(dict(_parts(result)[0].state_dict()) for result in (base, moved))),
        f"{learner.name}+{term.name} trains as {learner.name} does: the term has no effect",
    )


def _differentiates(learner: Learner, stage: Stage) -> None:
    """The gradient of the loss of a stage in float64, against central differences."""
    loop = Loop(copy.deepcopy(learner), small_net().double(), small_stream(), TRAIN, seed=0)
    loop.learn(loop.stream[0], Reporter("", 1, show=False))
    task = loop.stream[1]
    loop.net.grow(task.seen, torch.Generator().manual_seed(1))
    loop.net.train()
    loop.learner.begin(loop.net, task, loop.memory, Look(loop.feed, loop.net, task))
    loop.learner.begin_stage(loop.net, task, stage, loop.memory)
    if stage.params != "all":
        return  # its own tensors: their gradient is the learner's to test
    batches = loop.feed.batches(task, stage, loop.train.at(task, stage), 0)
    batch = max(batches, key=lambda b: int((b.row >= 0).sum()))
    objective = partial(loop.objective, stage, (), (1, stage.name, 0, 0), batch)
    _compare(learner.name, objective, [loop.net.head.weight, next(loop.net.parameters())])


def _compare(name: str, loss: Callable[[], Tensor], weights: list[Any]) -> None:
    """The largest entries of each gradient against central differences."""
    value = loss()
    _demand(
        value.requires_grad and value.ndim == 0,
        f"the loss of {name} is no number with a gradient",
    )
    grads = torch.autograd.grad(value, weights, allow_unused=True)
    for weight, grad in zip(weights, grads, strict=True):
        _demand(
            grad is not None and bool(grad.abs().max() > 0),
            f"the loss of {name} has no gradient for a weight of shape {tuple(weight.shape)}",
        )
        for place in grad.abs().flatten().topk(3).indices.tolist():
            flat, sides = weight.data.view(-1), []
            before = flat[place].item()
            for sign in (1, -1):
                flat[place] = before + sign * 1e-6
                sides.append(loss().item())
            flat[place] = before
            slope, found = (sides[0] - sides[1]) / 2e-6, grad.reshape(-1)[place].item()
            _demand(
                abs(slope - found) <= 1e-3 * max(abs(slope), abs(found)),
                f"the gradient of the loss of {name} is {found:.6g} where finite differences give "
                f"{slope:.6g}: a part of it is detached, or drawn anew at each call",
            )


# --- explainers ----------------------------------------------------------------------------------


def check_explainer(explain: Explainer, net: Net | None = None, x: Tensor | None = None) -> None:
    """Does an explainer keep the contract? Every explainer of this library does.

    Maps (B,u,v), in the graph while gradients are enabled and not under ``no_grad``; a pass that is
    handed over is explained as its images are; an image's map does not depend on its batch; no
    hook, mode, statistic or ``.grad`` is left behind; the gradient of a loss on the maps equals
    finite differences. ``net`` and normalised images ``x`` are those to try it on, if not ours.
    """
    name = getattr(explain, "__name__", type(explain).__name__)
    net = copy.deepcopy(net) if net is not None else _trained_net()
    if x is None:
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    net, x = net.double(), x.double()
    y = torch.arange(len(x)) % net.classes
    before = _traces(net.train())
    maps = explain(net, x, y)
    _demand(before == _traces(net), f"{name} leaves hooks, modes, statistics or .grad behind")
    _demand(
        isinstance(maps, Tensor) and maps.ndim == 3 and len(maps) == len(x),
        f"{name} gives {_shape(maps)}, expected maps of shape (B,u,v)",
    )
    _demand(bool(maps.isfinite().all()), f"{name} gives maps that are not finite")
    with torch.no_grad():
        bare, alone = explain(net, x, y), explain(net, x[:1], y[:1])
    _demand(not bare.requires_grad, f"{name} builds a graph under no_grad")
    _demand(
        torch.allclose(maps, bare, rtol=1e-6, atol=1e-9),
        f"{name} gives other maps when it is called again",
    )
    _demand(
        torch.allclose(alone[0], bare[0], rtol=1e-5, atol=1e-8),
        f"{name} gives an image another map in another batch",
    )
    with net.frozen_statistics():
        given = explain(net, net(x, taps=(INPUT, "last_block", "paper")), y)
    _demand(
        torch.allclose(maps, given, rtol=1e-5, atol=1e-8),
        f"{name} explains a pass that is handed over in another way than its images",
    )
    try:
        check_gradient(name, explain, net, x, y)
    except UserError as error:
        raise AssertionError(str(error)) from error


def _trained_net() -> Net:
    """The small net with five classes, whose BatchNorm has seen data."""
    net = small_net()
    net.grow(5, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for i in range(3):
            net.train()(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(i)))
    return net


def _traces(net: Net) -> list[Any]:
    """All that a call could leave behind in a net."""
    parts = [(p.training, len(p._forward_hooks), len(p._backward_hooks)) for p in net.modules()]
    pre = [len(p._forward_pre_hooks) + len(p._backward_pre_hooks) for p in net.modules()]
    grads = [p.grad is None for p in net.parameters()]
    return [parts, pre, grads, [value.flatten().tolist() for value in net.buffers()]]


# --- what they share -----------------------------------------------------------------------------


def _demand(holds: bool, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _same(a: Result, b: Result, sentence: str, memory: bool = True) -> None:
    """Two results, bit by bit; ``memory``: its columns too."""
    states = [get_state(_parts(result)[1]) for result in (a, b)]
    for state in states:
        if not memory:
            state.pop("memory", None)
    nets = [dict(_parts(result)[0].state_dict()) for result in (a, b)]
    _demand(_equal(*nets) and _equal(*states), sentence)


def _parts(result: Result) -> tuple[Net, Learner]:
    assert result.net is not None and result.learner is not None  # it was just trained
    return result.net, result.learner


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)
    if isinstance(a, Ragged) and isinstance(b, Ragged):
        return torch.equal(a.values, b.values) and torch.equal(a.lengths, b.lengths)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
