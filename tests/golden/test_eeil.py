"""EEIL (Castro et al. 2018): losses of both stages, its groups, and the noise on gradients."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from literal import (
    LABELS,
    TASKS,
    cross_entropy,
    distillation,
    logits_of,
    part,
    shake,
    task_of,
    three_tasks,
)

import rightreasons as rr
from rightreasons.optimise import Updater, noise_level


@pytest.mark.parametrize("temperature", [1.0, 2.0, 3.5])
def test_both_stages_over_three_tasks(temperature):
    """Eq. 1 with one distillation loss for each earlier task, the most recent one too; in the
    balanced stage one more for the new classes, by the net as the first stage left it."""
    learner = rr.EEIL(temperature=temperature)
    kinds = []
    for net, before, batch, task in three_tasks(learner):
        stages = learner.stages(task)
        kinds.append([stage.name for stage in stages])
        labels, between = batch.y.tolist(), None
        for stage in stages:
            learner.begin_stage(net, task, stage, learner.memory)
            if stage.name == "balanced":
                between = copy.deepcopy(net)
                shake(net, seed=77)  # else the temporary loss would have no gradient
            z = logits_of(net, batch.x)
            expected = cross_entropy(z, labels)
            if before is not None:
                old = logits_of(before, batch.x)
                for group in TASKS[: task.index]:
                    span = group[0], group[-1] + 1
                    expected += distillation(part(z, *span), part(old, *span), temperature)
            if between is not None:
                new, first = logits_of(between, batch.x), task.classes[0]
                expected += distillation(part(z, first), part(new, first), temperature)
            ours = learner.loss(net, net(batch.x), batch, stage).item()
            assert ours == pytest.approx(expected, rel=1e-12)
    assert kinds == [["main"], ["main", "balanced"], ["main", "balanced"]]
    assert not hasattr(learner, "between_")  # the temporary teacher is gone with its loss


def test_the_batches_here_have_images_of_every_group():
    """Else a wrong group could go unseen."""
    for index, labels in enumerate(LABELS[True]):
        assert any(y in TASKS[index] for y in labels)
        assert index == 0 or any(y in TASKS[index - 1] for y in labels)


def test_terms_apply_in_both_stages_and_the_second_is_balanced():
    learner = rr.EEIL(balanced={"epochs": 3, "lr": 0.01})
    task = task_of(1, TASKS[1])
    main, balanced = learner.stages(task)
    assert main.terms and balanced.terms
    assert not main.pool.balance and balanced.pool.balance
    assert main.pool.mix == balanced.pool.mix == "concat"
    at = rr.Train(epochs=7, lr=0.1).at(task, balanced)
    assert (at.epochs, at.lr) == (3, 0.01)


def test_the_level_of_the_noise():
    """.3 in the first epoch; .3 / 10^.55 = .084551 in the tenth."""
    assert noise_level(0.3, 0) == pytest.approx(0.3)
    assert noise_level(0.3, 9) == pytest.approx(0.084551, abs=1e-6)


@pytest.mark.parametrize("epoch, level", [(0, 0.3), (9, 0.084551)])
def test_noise_reaches_the_gradients_of_every_parameter(epoch, level):
    """With a gradient of one and a step of one, what is not one is noise."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in ((200, 50), (300,), (4, 5, 60))]
    train = rr.Train(optimiser="sgd", lr=1.0, momentum=0.0, noise=0.3)
    update = Updater(parameters, train, seed=0)
    update((1, "main", epoch, 0), sum(p.sum() for p in parameters))
    for p in parameters:
        noise = -p.detach().flatten() - 1
        count = len(noise)
        assert noise.std().item() == pytest.approx(level, rel=4 / (2 * count) ** 0.5)
        assert abs(noise.mean().item()) < 4 * level / count**0.5
    drawn = torch.cat([p.detach().flatten() for p in parameters])
    assert len(drawn.unique()) > 0.99 * len(drawn)  # parameters do not share a draw


def test_each_step_has_its_own_noise_and_none_is_none():
    def moved(where, noise):
        p = torch.nn.Parameter(torch.zeros(50))
        train = rr.Train(optimiser="sgd", lr=1.0, momentum=0.0, noise=noise)
        Updater([p], train, seed=0)(where, p.sum())
        return p.detach()

    place, other = (1, "main", 0, 0), (1, "main", 0, 1)
    assert torch.equal(moved(place, 0.3), moved(place, 0.3))
    assert not torch.equal(moved(place, 0.3), moved(other, 0.3))
    assert torch.equal(moved(place, 0.0), -torch.ones(50))


def test_noise_changes_a_run(tiny_stream, tiny_net, tiny_train):
    runs = [
        rr.fit(
            rr.EEIL(memory=rr.Memory(12, pick="herding")),
            tiny_net,
            tiny_stream,
            train=replace(tiny_train, epochs=1, noise=noise),
            progress=False,
        ).net.state_dict()
        for noise in (0.0, 0.3, 0.3)
    ]
    name = "module.conv1.weight"
    assert not torch.equal(runs[0][name], runs[1][name])
    assert torch.equal(runs[1][name], runs[2][name])
