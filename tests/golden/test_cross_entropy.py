"""Finetune, ER and Joint: cross entropy over all classes seen, on their own images."""

from __future__ import annotations

import pytest
from literal import MAIN, batch_of, cross_entropy, linear_net, logits_of, task_of

import rightreasons as rr


@pytest.mark.parametrize("kind", [rr.Finetune, rr.ER, rr.Joint])
def test_loss_is_cross_entropy_over_all_classes_seen(kind):
    net, batch = linear_net(5, seed=0), batch_of([0, 3, 4, 4, 1, 2, 0], seed=1)
    learner = kind()
    learner.begin(net, task_of(1, [3, 4]), learner.memory, None)
    ours = learner.loss(net, net(batch.x), batch, MAIN)
    assert ours.item() == pytest.approx(cross_entropy(logits_of(net, batch.x), batch.y.tolist()))


@pytest.mark.parametrize(
    ("learner", "mix", "past"),
    [
        (rr.Finetune(), "none", False),
        (rr.ER(), "paired", False),
        (rr.ER(replay="concat"), "concat", False),
        (rr.Joint(), "none", True),
    ],
)
def test_which_images_they_learn_from(learner, mix, past):
    (stage,) = learner.stages(task_of(1, [3, 4]))
    assert (stage.pool.mix, stage.pool.past) == (mix, past)
    assert not stage.pool.held and not stage.pool.balance
    assert stage.params == "all" and stage.terms
