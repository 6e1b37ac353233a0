"""LwF (Li and Hoiem 2016) and LwF.MC (Rebuffi et al. 2017) against their equations."""

from __future__ import annotations

import math

import pytest
import torch
from literal import (
    MAIN,
    batch_of,
    binary_cross_entropy,
    cross_entropy,
    distillation,
    distilled_targets,
    linear_net,
    logits_of,
    part,
    softmax,
    three_tasks,
)

import rightreasons as rr
from rightreasons.types import Out


def says(*logits):
    """A net that gives these logits for every image."""
    net = linear_net(len(logits), seed=0)
    with torch.no_grad():
        net.head.weight.zero_()
        net.head.bias.copy_(torch.tensor(logits))
    return net


def test_the_worked_example():
    """Old logits (2,0), new (1,1), T=2: p_old = (.731059,.268941), KD = .693147."""
    assert softmax([2.0, 0.0], 2.0) == pytest.approx([0.731059, 0.268941], abs=1e-6)
    learner, batch = rr.LwF(), batch_of([0], seed=0)
    learner.teacher_ = says(2.0, 0.0)
    z = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    loss = learner.loss(says(1.0, 1.0), Out(z, z, {}), batch, MAIN).item()
    assert loss - math.log(2) == pytest.approx(0.693147, abs=1e-6)


@pytest.mark.parametrize("scope", ["all", "new"])
@pytest.mark.parametrize("weight, temperature", [(1.0, 2.0), (3.0, 1.0), (0.5, 5.0)])
def test_lwf_over_three_tasks(scope, weight, temperature):
    """``L = CE + lambda_o KD`` over all n old classes together, without a factor T^2."""
    learner = rr.LwF(weight=weight, temperature=temperature, scope=scope)
    for net, before, batch, task in three_tasks(learner):
        ours = learner.loss(net, net(batch.x), batch, MAIN).item()
        z, n = logits_of(net, batch.x), task.classes[0]
        first = n if scope == "new" else 0
        expected = cross_entropy(part(z, first), [y - first for y in batch.y.tolist()])
        if before is not None:
            old = logits_of(before, batch.x)
            expected += weight * distillation(part(z, 0, n), old, temperature)
        assert ours == pytest.approx(expected, rel=1e-12)


def test_lwf_mc_over_three_tasks():
    """Binary cross entropy over all classes; what the old net says is the target of old ones."""
    learner = rr.LwFMC()
    for net, before, batch, _ in three_tasks(learner):
        ours = learner.loss(net, net(batch.x), batch, MAIN).item()
        old = None if before is None else logits_of(before, batch.x)
        targets = distilled_targets(batch.y.tolist(), net.classes, old)
        expected = binary_cross_entropy(logits_of(net, batch.x), targets)
        assert ours == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [rr.LwF, rr.LwFMC])
def test_new_images_alone_are_learned_from_and_the_teacher_gets_no_gradient(kind):
    learner = kind()
    for net, before, batch, task in three_tasks(learner):
        (stage,) = learner.stages(task)
        assert stage.pool.mix == "none"
        learner.loss(net, net(batch.x), batch, stage).backward()
        assert net.head.weight.grad.abs().max() > 0
        net.zero_grad()
        if before is not None:
            assert not any(
                p.requires_grad or p.grad is not None for p in learner.teacher_.parameters()
            )
            assert not learner.teacher_.training
            assert learner.teacher_.head.weight.tolist() == before.head.weight.tolist()
