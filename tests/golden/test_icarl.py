"""iCaRL (Rebuffi et al. 2017): algorithms 1, 3 and 4 against ours."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from literal import (
    MAIN,
    average,
    batch_of,
    binary_cross_entropy,
    distance,
    distilled_targets,
    linear_net,
    logits_of,
    sigmoid,
    task_of,
    three_tasks,
    unit,
)

import rightreasons as rr
from rightreasons.memory import herd
from rightreasons.types import Out


class Rows:
    """What a learner may look at when a task ends, for given embeddings of the memory's rows."""

    def __init__(self, z, mirrored):
        self.z = {False: z, True: mirrored}

    def embeddings(self, flip=False):
        return self.z[flip]


def rows_of(classes, count, dimensions, seed):
    """A memory of ``count`` rows a class, in a mixed order, and embeddings of both views."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(classes).repeat(count)
    y = y[torch.randperm(len(y), generator=draw)]
    memory = rr.Memory(len(y))
    memory.add({"x": torch.zeros(len(y), 3, 2, 2, dtype=torch.uint8), "y": y,
                "task": torch.zeros_like(y), "index": y})  # fmt: skip
    z, mirrored = (
        torch.randn(len(y), dimensions, generator=draw, dtype=torch.float64) for _ in range(2)
    )
    return memory, Rows(z, mirrored)


# --- algorithm 3: the loss -----------------------------------------------------------------------


def test_the_worked_example_of_the_loss():
    """One old class and one new, z=(0,0), sigma(z_old)=.8, label new: .693147."""
    learner, batch = rr.ICaRL(), batch_of([1], seed=0)
    learner.teacher_ = linear_net(1, seed=0)
    with torch.no_grad():
        learner.teacher_.head.weight.zero_()
        learner.teacher_.head.bias.fill_(math.log(0.8 / 0.2))
    assert sigmoid(math.log(0.8 / 0.2)) == pytest.approx(0.8)
    for z, expected in (
        ((0.0, 0.0), 0.693147),
        ((2.0, -1.0), (0.2 * 2.126928 + 0.8 * 0.126928 + 1.313262) / 2),  # targets .8 and 1
    ):
        logits = torch.tensor([z], dtype=torch.float64)
        loss = learner.loss(None, Out(logits, logits, {}), batch, MAIN).item()
        assert loss == pytest.approx(expected, abs=1e-6)


def test_the_loss_over_three_tasks():
    """Exemplars get distilled targets too, for their own class as well."""
    learner, look, seen = rr.ICaRL(), Rows(None, None), 0
    for net, before, batch, task in three_tasks(learner, look):
        seen += 1
        learner.memory, stored = rows_of(task.seen, 2, 4, seed=seen)
        look.z = stored.z
        ours = learner.loss(net, net(batch.x), batch, MAIN).item()
        old = None if before is None else logits_of(before, batch.x)
        targets = distilled_targets(batch.y.tolist(), net.classes, old)
        expected = binary_cross_entropy(logits_of(net, batch.x), targets)
        assert ours == pytest.approx(expected, rel=1e-12)
        if old is not None:  # a remembered image in the batch: its own class is distilled
            remembered = [i for i, y in enumerate(batch.y.tolist()) if y < task.classes[0]]
            assert remembered and all(0 < targets[i][batch.y[i]] < 1 for i in remembered)
    assert seen == 3


# --- algorithm 1: the nearest mean of exemplars --------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_class_means_with_the_mirror_images_and_nearest_mean(count):
    classes, dimensions = 4, 3
    memory, look = rows_of(classes, count, dimensions, seed=count)
    learner = rr.ICaRL(memory=memory)
    learner.end(linear_net(classes, seed=0), task_of(1, [2, 3]), memory, look)
    means = []
    for c in range(classes):
        vectors = []
        for i, y in enumerate(memory["y"].tolist()):
            if y == c:
                vectors += [unit(look.z[False][i].tolist()), unit(look.z[True][i].tolist())]
        means.append(unit(average(vectors)))
    assert learner.means_.tolist() == [pytest.approx(m, rel=1e-9) for m in means]
    draw = torch.Generator().manual_seed(9)
    z = 5 * torch.randn(40, dimensions, generator=draw, dtype=torch.float64)
    scores = learner.predict(None, None, Out(torch.zeros(40, classes), z, {}), memory)
    assert scores.shape == (40, classes)
    for i in range(40):
        gaps = [distance(unit(z[i].tolist()), m) for m in means]
        assert int(scores[i].argmax()) == gaps.index(min(gaps))
        assert scores[i].tolist() == pytest.approx([-(gap**2) for gap in gaps], abs=1e-9)


# --- algorithm 4: herding ------------------------------------------------------------------------


def literal_herding(vectors, m):
    """p_k = argmin_x || mu - (phi(x) + sum_j<k phi(p_j)) / k || over images not yet picked; also
    the distance at each pick."""
    phi = [unit(v) for v in vectors]
    mu = average(phi)
    picked, gaps = [], []
    for k in range(1, min(m, len(phi)) + 1):
        best, nearest = None, math.inf
        for i in range(len(phi)):
            if i in picked:
                continue
            chosen = [phi[j] for j in picked] + [phi[i]]
            gap = distance(mu, [sum(column) / k for column in zip(*chosen, strict=True)])
            if gap < nearest:
                best, nearest = i, gap
        picked.append(best)
        gaps.append(nearest)
    return picked, gaps


def test_the_worked_example_of_herding():
    """Rows (1,0),(0,1),(.6,.8), mean (.5333,.6): order 2,0,1, distances .2108,.3333,0."""
    rows = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    order, gaps = literal_herding(rows, 3)
    assert order == [2, 0, 1]
    assert gaps == pytest.approx([0.2108, 0.3333, 0.0], abs=5e-5)
    assert average(rows) == pytest.approx([0.5333, 0.6], abs=5e-5)
    assert herd(torch.tensor(rows), torch.zeros(3, dtype=torch.int64), 3).tolist() == [2, 0, 1]


@given(
    st.lists(st.integers(1, 12).filter(lambda n: n != 2), min_size=1, max_size=5),
    st.integers(1, 14),
    st.integers(2, 6),
    st.integers(0, 10_000),
)
@settings(max_examples=150, deadline=None)
def test_herding_makes_the_picks_of_the_literal_algorithm(sizes, quota, dimensions, seed):
    """For classes of different sizes, in any order, with gaps in their labels (two images tie)."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.full((size,), 3 + 2 * c) for c, size in enumerate(sizes)])
    y = y[torch.randperm(len(y), generator=draw)]
    z = torch.randn(len(y), dimensions, generator=draw, dtype=torch.float64)
    z *= 10 ** torch.randn(len(y), 1, generator=draw, dtype=torch.float64)  # lengths do not matter
    expected = []
    for c in range(len(sizes)):
        places = [i for i, label in enumerate(y.tolist()) if label == 3 + 2 * c]
        order, _ = literal_herding([z[i].tolist() for i in places], quota)
        expected += [places[i] for i in order]
    assert herd(z, y, quota).tolist() == expected


def test_of_two_images_either_is_as_near_and_both_are_taken_in_the_end():
    """Two vectors of length one are equally far from their mean: a tie."""
    z, y = torch.randn(2, 3, generator=torch.Generator().manual_seed(3)), torch.zeros(2).long()
    assert literal_herding(z.tolist(), 2)[1] == pytest.approx(
        literal_herding(z.flip(0).tolist(), 2)[1]
    )
    assert sorted(herd(z, y, 2).tolist()) == [0, 1]


def test_herding_of_equal_images_takes_each_once():
    z = torch.tensor([[1.0, 2.0]]).repeat(6, 1)
    assert sorted(herd(z, torch.tensor([0, 1, 0, 1, 0, 0]), 4).tolist()) == [0, 1, 2, 3, 4, 5]


def test_a_smaller_quota_is_the_beginning_of_a_larger_one():
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(40, 5, generator=draw), torch.arange(4).repeat(10)
    few, many = herd(z, y, 3), herd(z, y, 8)
    for c in range(4):
        assert many[y[many] == c][:3].tolist() == few[y[few] == c].tolist()


def test_herding_is_near_the_class_mean_where_random_picks_are_not():
    draw = torch.Generator().manual_seed(1)
    z, y = torch.randn(200, 8, generator=draw, dtype=torch.float64), torch.zeros(200).long()
    phi = [unit(v) for v in z.tolist()]
    mu = average(phi)
    ours = distance(mu, average([phi[i] for i in herd(z, y, 10).tolist()]))
    random = distance(mu, average([phi[i] for i in range(10)]))
    assert ours < 0.5 * random
