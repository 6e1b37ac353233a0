"""Every learner, plain and with a term: the gradient of the whole objective in float64 equals
central differences, for weights of body and head, in each of its stages."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import rightreasons as rr
from rightreasons.feed import Look
from rightreasons.loop import Loop
from rightreasons.progress import Reporter
from rightreasons.registry import LEARNERS, find

PATHS = (
    "module.fc.weight",
    "module.fc.bias",
    "module.conv1.weight",
    "module.stages.1.0.conv2.weight",
)
TERMS = {
    "": lambda: (),
    "rrr": lambda: (rr.RRR(rows=6, dtype="float32"),),
    "evidence": lambda: (rr.Evidence(rows=6, view="canonical", weight=1.0, dtype="float32"),),
    "evidence shared": lambda: (rr.Evidence(view="shared", weight=1.0, dtype="float32"),),
}
REPLAYING = [name for name in LEARNERS if find("method", LEARNERS, name).replays]
CASES = [
    (name, term)
    for name in sorted(LEARNERS)
    for term in TERMS
    if (name != "joint" or not term) and ("shared" not in term or name in REPLAYING)
]
OPTIONS = {
    "itaml": {"group": 4},
    "topic": {"anchor": 1.0, "minmax": 1.0, "margin": 2.0},
    "ewc": {"weight": 50.0},
    "bic": {"groups": "all"},
}


def shake(parameters, seed, by=0.1):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p += by * p.std().nan_to_num(1.0) * torch.randn(p.shape, generator=draw).to(p)


@pytest.fixture
def loop(request, tiny_stream, tiny_net, tiny_train):
    """A run in float64 that has learned its first task, and a head grown for the second."""
    name, term = request.param
    learner = find("method", LEARNERS, name)(
        memory=rr.Memory(24), terms=TERMS[term](), **OPTIONS.get(name, {})
    )
    loop = Loop(learner, tiny_net.double(), tiny_stream, tiny_train, seed=0)
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    loop.learn(tiny_stream[0], Reporter("", 1, show=False))
    loop.net.grow(tiny_stream[1].seen, torch.Generator().manual_seed(1))
    loop.net.train()
    for layer in loop.net.modules():  # a forward must not move the statistics that terms use
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 0.0
    look = Look(loop.feed, loop.net, tiny_stream[1])
    learner.begin(loop.net, tiny_stream[1], learner.memory, look)
    return loop


@pytest.mark.parametrize("loop", CASES, indirect=True, ids=lambda case: "-".join(case))
def test_the_objective_s_gradient_equals_finite_differences(loop):
    learner, net, task = loop.learner, loop.net, loop.stream[1]
    for stage in learner.stages(task):
        learner.begin_stage(net, task, stage, learner.memory)
        shake(net.parameters(), seed=1)
        train = loop.train.at(task, stage)
        batch = max(loop.feed.batches(task, stage, train, 0), key=lambda b: int((b.row >= 0).sum()))
        terms = learner.terms if stage.terms else ()
        objective = partial(loop.objective, stage, terms, (1, stage.name, 0, 0), batch)

        trained = {id(p) for p in learner.trained(net, stage)}
        chosen = {path: net.get_parameter(path) for path in PATHS}
        chosen = {path: p for path, p in chosen.items() if id(p) in trained}
        if not chosen:
            chosen = {stage.params: getattr(learner, stage.params).requires_grad_()}
        grads = torch.autograd.grad(objective(), list(chosen.values()))
        for (path, parameter), grad in zip(chosen.items(), grads, strict=True):
            assert grad.abs().max() > 0, path
            places = grad.abs().flatten().topk(min(3, grad.numel())).indices.tolist()
            for place in places:
                flat = parameter.data.view(-1)
                value, sides = flat[place].item(), []
                for sign in (1, -1):
                    flat[place] = value + sign * 1e-6
                    sides.append(objective().item())
                flat[place] = value
                slope = (sides[0] - sides[1]) / 2e-6
                assert slope == pytest.approx(grad.view(-1)[place].item(), rel=2e-4), path
        if terms:  # the term has its say
            plain = loop.objective(stage, (), (1, stage.name, 0, 0), batch)
            alone = torch.autograd.grad(plain, list(chosen.values()))
            assert not torch.allclose(alone[-1], grads[-1], rtol=1e-3)
            assert not torch.allclose(alone[0], grads[0], rtol=1e-3)
        shake(net.parameters(), seed=2)
