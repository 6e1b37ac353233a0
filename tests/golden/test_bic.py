"""BiC (Wu et al. 2019): eq. 1 to 4 over three tasks, in both forms, and what its stages move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from literal import (
    MAIN,
    TASKS,
    batch_of,
    cross_entropy,
    distillation,
    linear_net,
    logits_of,
    part,
    softmax,
    task_of,
    three_tasks,
)

import rightreasons as rr
from rightreasons.loop import Loop
from rightreasons.progress import Reporter
from rightreasons.types import Out, Stage

BIAS = Stage("bias")
LEARNED = ((1.0, 0.0), (0.5, -0.4), (0.7, 0.3))  # what the bias stage is to have found


def corrected(logits, pairs):
    """q_c = beta z_c + gamma by the pair of the task of class c; without a pair as it is."""
    said = []
    for z in logits:
        row = []
        for c, value in enumerate(z):
            (index,) = [i for i, classes in enumerate(TASKS) if c in classes]
            beta, gamma = pairs.get(index, (1.0, 0.0))
            row.append(beta * value + gamma)
        said.append(row)
    return said


def test_the_worked_example():
    """(2,1|3) with beta=.5, gamma=-.5 is (2,1,1.0), and .0125 joins the loss."""
    learner, net = rr.BiC(), linear_net(3, seed=0)
    learner.sizes_ = [2]
    learner.begin(net, task_of(1, [2]), learner.memory, None)
    learner.bias_ = torch.tensor([0.5, -0.5], dtype=torch.float64)
    z = torch.tensor([[2.0, 1.0, 3.0]], dtype=torch.float64)
    out, batch = Out(z, z, {}), batch_of([2], seed=0)
    assert learner.predict(net, batch.x, out, learner.memory).tolist() == [[2.0, 1.0, 1.0]]
    loss = learner.loss(net, out, batch, BIAS).item()
    assert loss - cross_entropy([[2.0, 1.0, 1.0]], [2]) == pytest.approx(0.0125)


def test_the_weight_of_distillation_is_two_thirds_for_20_old_classes_of_30():
    learner, net = rr.BiC(), linear_net(30, seed=0)
    learner.teacher_, learner.sizes_ = linear_net(20, seed=1), [10, 10]
    learner.teacher_bias_ = torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64)
    learner.begin(net, task_of(2, range(20, 30)), learner.memory, None)
    batch = batch_of([25, 3, 12], seed=2)
    z, old = logits_of(net, batch.x), logits_of(learner.teacher_, batch.x)
    kept, fit = distillation(part(z, 0, 20), old, 2.0), cross_entropy(z, batch.y.tolist())
    ours = learner.loss(net, net(batch.x), batch, MAIN).item()
    assert (ours - fit) / (kept - fit) == pytest.approx(2 / 3)


@pytest.mark.parametrize("groups", ["newest", "all"])
@pytest.mark.parametrize("temperature", [2.0, 1.5])
def test_both_stages_over_three_tasks(groups, temperature):
    """newest: the pair of the newest task alone, on the teacher and at test; all: every task's pair
    on teacher and student, in training too, and the new task's begins as (1,0)."""
    learner = rr.BiC(groups=groups, temperature=temperature, decay=0.3)
    for net, before, batch, task in three_tasks(learner):
        index, labels = task.index, batch.y.tolist()
        z = logits_of(net, batch.x)
        kept = range(index) if groups == "all" else ()  # pairs of earlier tasks, still in use
        student = corrected(z, {i: LEARNED[i] for i in kept}) if groups == "all" else z
        expected = cross_entropy(student, labels)
        if before is not None:
            at_teacher = range(index) if groups == "all" else (index - 1,)
            old = corrected(logits_of(before, batch.x), {i: LEARNED[i] for i in at_teacher})
            n, m = task.classes[0], len(task.classes)
            weight = n / (n + m)
            kd = distillation(part(student, 0, n), old, temperature)
            expected = weight * kd + (1 - weight) * expected
        out = net(batch.x)
        assert learner.loss(net, out, batch, MAIN).item() == pytest.approx(expected, rel=1e-12)
        # stage 2 has found its pair
        beta, gamma = LEARNED[index]
        learner.bias_ = torch.tensor([beta, gamma], dtype=torch.float64)
        q = corrected(z, {i: LEARNED[i] for i in (*kept, index)})
        expected = cross_entropy(q, labels) + 0.3 * gamma**2 / 2
        assert learner.loss(net, out, batch, BIAS).item() == pytest.approx(expected, rel=1e-12)
        scores = learner.predict(net, batch.x, out, learner.memory)
        assert scores.tolist() == [pytest.approx(row, rel=1e-12) for row in q]


@pytest.mark.parametrize("groups", ["newest", "all"])
def test_the_gradient_of_the_bias_stage(groups):
    """d/d beta and d/d gamma of eq. 4, written out."""
    learner = rr.BiC(groups=groups, decay=0.3)
    for net, _, batch, task in three_tasks(learner):
        beta, gamma = LEARNED[task.index]
        learner.bias_ = torch.tensor([beta, gamma], dtype=torch.float64, requires_grad=True)
        with torch.no_grad():
            out = net(batch.x)
        learner.loss(net, out, batch, BIAS).backward()
        earlier = {i: LEARNED[i] for i in range(task.index)} if groups == "all" else {}
        slope = [0.0, 0.3 * gamma]
        z = logits_of(net, batch.x)
        q = corrected(z, earlier | {task.index: (beta, gamma)})
        for i, y in enumerate(batch.y.tolist()):
            p = softmax(q[i])
            for c in task.classes:
                gap = (p[c] - (y == c)) / len(z)
                slope[0] += gap * z[i][c]
                slope[1] += gap
        assert learner.bias_.grad.tolist() == pytest.approx(slope, rel=1e-9)


# --- through the loop ----------------------------------------------------------------------------


def test_the_bias_stage_moves_two_numbers_and_nothing_else(
    tiny_stream, tiny_net, tiny_train, monkeypatch
):
    """Weights and BatchNorm's buffers stay bit by bit."""
    take_steps, seen = Loop.take_steps, []

    def watched(self, task, stage, *more):
        state = {name: value.clone() for name, value in self.net.state_dict().items()}
        bias = self.learner.bias_.clone()
        yield from take_steps(self, task, stage, *more)
        now = self.net.state_dict()
        same = {name for name in state if torch.equal(state[name], now[name])}
        moved = not torch.equal(bias, self.learner.bias_)
        seen.append((task.index, stage.name, same == set(state), moved, set(state) - same))
        assert all(p.requires_grad for p in self.net.parameters())
        assert self.net.training and not self.learner.bias_.requires_grad

    monkeypatch.setattr(Loop, "take_steps", watched)
    learner = rr.BiC(memory=rr.Memory(24, pick="herding")) + rr.Evidence(rows=4)
    rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert [place[:4] for place in seen] == [
        (0, "main", False, False),
        (1, "main", False, False),
        (1, "bias", True, True),
        (2, "main", False, False),
        (2, "bias", True, True),
    ]
    for _, stage, _, _, changed in seen:
        if stage == "main":
            assert "module.conv1.weight" in changed
            assert any(name.endswith("running_mean") for name in changed)


def test_the_pair_lowers_the_loss_on_held_out_images(tiny_stream, tiny_net, tiny_train):
    """A net that was made to prefer the new classes by 3 is corrected by about as much."""
    train = replace(tiny_train, epochs=1)
    learner = rr.BiC(
        memory=rr.Memory(24, pick="herding"),
        bias={"optimiser": "sgd", "lr": 0.1, "epochs": 40, "weight_decay": 0.0},
    )
    loop = Loop(learner, tiny_net, tiny_stream, train, seed=0)
    silent = Reporter("", 1, show=False)
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    loop.learn(tiny_stream[0], silent)
    task = tiny_stream[1]
    loop.net.grow(task.seen)
    learner.begin(loop.net, task, learner.memory, None)
    with torch.no_grad():
        loop.net.head.bias[list(task.classes)] += 3.0
    _, bias = learner.stages(task)
    for _ in loop.take_steps(task, bias):
        pass
    beta, gamma = learner.bias_.tolist()
    assert -1.5 < (beta * 3.0 + gamma) < 1.5


def test_terms_are_for_the_first_stage_alone(tiny_stream):
    main, bias = rr.BiC().stages(tiny_stream[1])
    assert main.terms and not bias.terms
    assert bias.pool.held and not main.pool.held and bias.params == "bias_"
    assert [stage.name for stage in rr.BiC().stages(tiny_stream[0])] == ["main"]
