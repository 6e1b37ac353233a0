"""iTAML (Rajasegaran et al. 2020): the meta-update in both variants, slice losses, its test."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from literal import batch_of, binary_cross_entropy, linear_net, logits_of, task_of

import rightreasons as rr
from rightreasons.evaluate import vote
from rightreasons.learners.itaml import slice_loss, task_scores
from rightreasons.types import Out, Stage

MAIN = Stage()


class Spy:
    """Stands for objective and optimiser: sets the weights that each inner step asks for."""

    def __init__(self, net, values):
        self.net, self.values, self.saw = net, list(values), []

    def objective(self, batch, task=None):
        self.saw.append((task, batch.task.tolist(), self.weight()))
        return torch.zeros(())

    def update(self, loss):
        value = self.values.pop(0)
        with torch.no_grad():
            for p in self.net.parameters():
                p.fill_(value)

    def weight(self):
        return next(self.net.parameters()).flatten()[0].item()


def mixed(tasks):
    batch = batch_of([0] * len(tasks), seed=1)
    return batch._replace(task=torch.tensor(tasks))


TEN = SimpleNamespace(tasks=10)  # what the learner may look at


def at_task(learner, index):
    for i in range(index + 1):
        learner.begin(linear_net(2 * i + 2, 0), task_of(i, [2 * i, 2 * i + 1]), None, TEN)
    return learner


@pytest.mark.parametrize(("variant", "after"), [("paper", 2.809675), ("released", 3.714512)])
def test_the_update_of_two_tasks(variant, after):
    """Weights 1; the steps on two tasks lead to 2 and 4; task 2 of 10, beta = 1: eta = .904837."""
    learner = at_task(rr.ITAML(variant=variant, horizon=10), 1)
    assert learner.rate(1) == pytest.approx(0.904837, abs=1e-6)
    net = linear_net(4, 0)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    spy = Spy(net, [2.0, 4.0])
    learner.step(net, mixed([1, 0, 1, 0, 0]), spy.objective, spy.update)
    for p in net.parameters():
        assert p.flatten().tolist() == pytest.approx([after] * p.numel(), abs=1e-6)
    second = 1.0 if variant == "paper" else 2.0  # from the base, or from the first task's weights
    assert spy.saw == [(0, [0, 0, 0], 1.0), (1, [1, 1], second)]


def test_the_stream_says_how_many_tasks_there_are(tiny_stream, tiny_net, tiny_train):
    told = {}
    for horizon in (None, 10):
        learner = rr.ITAML(memory=rr.Memory(6), horizon=horizon, group=4)
        made = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
        told[horizon] = made.learner.rate(2)
    assert told[None] == pytest.approx(math.exp(-2 / 3)) != told[10]  # task 3 of 3


def test_inner_steps_follow_each_other_from_the_base():
    learner = at_task(rr.ITAML(inner=3), 1)
    net = linear_net(4, 0)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    spy = Spy(net, [2.0, 3.0, 5.0, 7.0, 8.0, 9.0])
    learner.step(net, mixed([0, 1]), spy.objective, spy.update)
    assert [weight for _, _, weight in spy.saw] == [1.0, 2.0, 3.0, 1.0, 7.0, 8.0]
    assert spy.weight() == pytest.approx(0.904837 * 7 + 0.095163, abs=1e-5)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_step_of_gradient_descent_as_algorithm_1(variant):
    """With real losses and plain gradient descent, against a loop over tasks and weights."""
    learner = at_task(rr.ITAML(variant=variant, beta=2.0, horizon=5), 2)
    net, rate = linear_net(6, 3), 0.1
    batch = batch_of([0, 3, 5, 1, 2, 4, 4], seed=9)
    batch = batch._replace(task=batch.y // 2)
    literal = copy.deepcopy(net)

    def objective(part, task=None):
        return learner.loss(net, net(part.x), part, MAIN)

    def update(loss):
        grads = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, slope in zip(net.parameters(), grads, strict=True):
                p -= rate * slope

    learner.step(net, batch, objective, update)
    base = copy.deepcopy(literal)
    found = []
    for task in (0, 1, 2):
        if variant == "paper":
            literal = copy.deepcopy(base)
        own = batch.where(batch.task == task)
        logits = literal(own.x).logits[:, 2 * task : 2 * task + 2]
        hot = torch.nn.functional.one_hot(own.y - 2 * task, 2).double()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, hot)
        grads = torch.autograd.grad(loss, list(literal.parameters()))
        with torch.no_grad():
            for p, slope in zip(literal.parameters(), grads, strict=True):
                p -= rate * slope
        found.append([p.detach().clone() for p in literal.parameters()])
    eta = math.exp(-2.0 * 2 / 5)
    for i, (p, b) in enumerate(zip(net.parameters(), base.parameters(), strict=True)):
        last = found[-1][i] if variant == "released" else sum(f[i] for f in found) / 3
        torch.testing.assert_close(p, eta * last + (1 - eta) * b, rtol=1e-12, atol=1e-12)


def test_the_loss_is_over_the_classes_of_the_image_s_task():
    learner = at_task(rr.ITAML(), 2)
    net = linear_net(6, 4)
    batch = batch_of([4, 5, 5], seed=2)._replace(task=torch.tensor([2, 2, 2]))
    z = [row[4:6] for row in logits_of(net, batch.x)]
    expected = binary_cross_entropy(z, [[1, 0], [0, 1], [0, 1]])
    assert learner.loss(net, net(batch.x), batch, MAIN).item() == pytest.approx(expected)
    logits = torch.tensor([[0.0, 0.0, 50.0], [9.0, 9.0, 0.0]])
    own = torch.tensor([[True, True, False], [False, False, True]])
    ours = slice_loss(logits, torch.tensor([0, 2]), own)  # what is not its own costs nothing
    assert ours.item() == pytest.approx(math.log(2))


# --- the test ------------------------------------------------------------------------------------


def test_a_task_is_found_by_its_largest_logit():
    logits = torch.tensor([[1.0, 5.0, 2.0, 4.0, 0.0], [-3.0, -2.0, -9.0, -1.0, -4.0]])
    owner = torch.tensor([0, 0, 1, 2, 2])
    assert task_scores(logits, owner).tolist() == [[5.0, 2.0, 4.0], [-2.0, -9.0, -1.0]]


class Feeding:
    seed = 0


def test_groups_are_of_one_task_and_share_an_answer():
    draw = torch.Generator().manual_seed(0)
    of = torch.tensor([0] * 11 + [1] * 8)
    scores = torch.randn(19, 2, generator=draw)
    for count in (1, 4, 8, 100):
        given = vote(scores, of, count, Feeding)
        for task, size in ((0, 11), (1, 8)):
            seen = given[of == task]
            assert len(seen) == size
            if count == 1:
                assert torch.equal(seen, scores[of == task].argmax(1))
            if count == 100:  # all of a task are one group
                assert set(seen.tolist()) == {int(scores[of == task].mean(0).argmax())}


def test_a_group_corrects_single_images():
    """Noisy scores whose mean is right: single images err, groups of twenty do not."""
    of = torch.tensor([0] * 60 + [1] * 60)
    right = torch.nn.functional.one_hot(of, 2).float()
    scores = right + 2 * torch.randn(120, 2, generator=torch.Generator().manual_seed(1))
    alone, together = vote(scores, of, 1, Feeding), vote(scores, of, 20, Feeding)
    assert (alone != of).sum() > 20 and torch.equal(together, of)


class Fixed(torch.nn.Module):
    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def __call__(self, x):
        return Out(self.logits.expand(len(x), -1), x, {})


def test_the_class_is_the_adapted_copy_s_best_within_the_task():
    learner = at_task(rr.ITAML(), 1)
    learner.adapted_ = [Fixed([3.0, 1.0, 99.0, 99.0]), Fixed([99.0, 99.0, -8.0, -7.0])]
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.5], [5.0, 0.0, 9.0, 0.0]])
    out = Out(logits, logits, {})
    scores = learner.predict(None, torch.zeros(2, 3), out, None)
    assert scores.argmax(1).tolist() == [0, 3]  # task 0 by its logit 2, task 1 by its logit 9
    assert scores[0].tolist() == [3.0, 1.0, -0.5, 0.0]  # the others stay below, in their order
    assert scores[1].tolist() == [-9.0, -14.0, -8.0, -7.0]
    told = learner.predict_within(None, torch.zeros(2, 3), out, None, torch.tensor([1, 1]))
    assert told.argmax(1).tolist() == [3, 3]


def test_a_run_reports_both_and_adapts_once_a_task(tiny_net, tiny_stream, tiny_train, monkeypatch):
    learner = rr.ITAML(memory=rr.Memory(12), group=8, replay="paired")
    made = []
    real = rr.ITAML._adapted
    monkeypatch.setattr(
        rr.ITAML,
        "_adapted",
        lambda self, net, i, *rest: made.append(i) or real(self, net, i, *rest),
    )
    result = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert made == [0, 0, 1, 0, 1, 2]  # tasks 1, 2 and 3
    assert {"p8", "p1", "class", "task"} <= set(result.matrices)
    assert result.groups == ["p8", "p1"]
    assert (result.matrices["p1"] == result.R)[~torch.tensor(result.R).isnan().numpy()].all()
    summary = result.summary()
    assert 0 <= summary["p8"] <= 1 and summary["p1"] == summary["accuracy"]
    for adapted in result.learner.adapted_:
        assert not adapted.training and not any(p.requires_grad for p in adapted.parameters())
        assert not torch.equal(adapted.head.weight, result.net.head.weight)


def test_terms_are_of_the_inner_step_s_task(tiny_net, tiny_stream, tiny_train, monkeypatch):
    """RRR in the steps of earlier tasks, on rows of that task; none in the current task's."""
    saw = []
    real = rr.RRR.__call__

    def counted(self, net, out, batch, columns):
        saw.append(set(batch.task.tolist()))
        return real(self, net, out, batch, columns)

    monkeypatch.setattr(rr.RRR, "__call__", counted)
    for options in ({}, {"view": "shared", "target": "last_block"}):
        saw.clear()
        learner = rr.ITAML(memory=rr.Memory(12), group=4, replay="paired") + rr.RRR(
            rows=4, **options
        )
        train = replace(tiny_train, epochs=1)
        rr.fit(learner, tiny_net, tiny_stream, train=train, progress=False)
        assert all(len(tasks) == 1 for tasks in saw)
        assert [tasks for tasks in saw if tasks == {2}] == []
        assert {0} in saw and {1} in saw


def test_a_single_image_of_a_task_needs_no_statistics(tiny_stream, tiny_train):
    """The last map is one cell: BatchNorm refuses a lone image in training."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 16), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 2),
    )  # fmt: skip
    net = rr.net(module, size=16)
    train = replace(tiny_train, replay=1, epochs=1)
    learner = rr.ITAML(memory=rr.Memory(6), group=4, replay="paired")
    assert rr.fit(learner, net, tiny_stream, train=train, progress=False).accuracy >= 0


# --- what is refused -----------------------------------------------------------------------------


def test_groups_larger_than_a_task_s_test_set(tiny_net, tiny_stream):
    with pytest.raises(rr.UserError) as caught:
        rr.fit(rr.ITAML(memory=rr.Memory(12)), tiny_net, tiny_stream, progress=False)
    assert str(caught.value) == (
        "itaml.group is 20 and task 1 has 8 test images, expected a group of at most that; type "
        "itaml.group=8"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rr.ITAML(variant="code"), "unknown itaml.variant 'code'"),
        (lambda: rr.ITAML(replay="pared"), "unknown itaml.replay 'pared'"),
        (lambda: rr.ITAML(group=0), "itaml.group is 0, expected at least 1"),
        (lambda: rr.ITAML(horizon=0), "itaml.horizon is 0"),
        (lambda: rr.ITAML(beta=-1), "itaml.beta is -1.0, expected 0 or more"),
        (lambda: rr.ITAML(adapt={"epoch": 2}), "did you mean 'itaml.adapt.epochs'"),
    ],
)
def test_fields_that_say_nothing(make, words):
    with pytest.raises(rr.UserError, match=words):
        make()
