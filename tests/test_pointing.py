"""The pointing game and the drift of maps, by the worked examples and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.errors import Diverged
from rightreasons.metrics import backward_transfer, final_accuracy
from rightreasons.pointing import (
    Outcomes,
    drift,
    enlarge,
    outcomes,
    peaks,
    point,
    right_after_and_at_the_end,
)
from rightreasons.result import Result


def single(row=2, column=5):
    maps = torch.zeros(1, 7, 7)
    maps[0, row, column] = 1
    return maps


def window(rows, columns, size=224):
    mask = torch.zeros(1, size, size, dtype=torch.bool)
    mask[0, slice(*rows), slice(*columns)] = True
    return mask


@pytest.mark.parametrize("sizes", [(8, 8, 32, 32), (3, 3, 96, 96), (7, 5, 224, 160), (6, 6, 6, 6)])
def test_maps_are_enlarged_as_torch_does(sizes):
    """Between cell centres; what is highest there is highest here, plateaus and all."""
    maps = torch.rand(50, *sizes[:2], generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(maps[:, None], sizes[2:], mode="bilinear", align_corners=False)[:, 0]
    ours = enlarge(maps, sizes[2:])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
    alone = torch.zeros_like(maps)
    alone.flatten(1)[torch.arange(50), torch.arange(50) % maps[0].numel()] = maps[:, 0, 0]
    theirs = F.interpolate(alone[:, None], sizes[2:], mode="bilinear", align_corners=False)[:, 0]
    for mine, other in zip(peaks(enlarge(alone, sizes[2:])), peaks(theirs), strict=True):
        assert torch.equal(mine, other)


def test_example_6_a_peak_on_the_object_hits_and_beside_it_misses():
    assert point(single(), window((64, 96), (160, 192))).hit.tolist() == [True]
    assert point(single(), window((64, 96), (192, 224))).hit.tolist() == [False]


def test_the_peak_of_one_cell_is_the_middle_of_its_plateau():
    large = enlarge(single(), (224, 224))
    top = (large[0] == large.max()).nonzero().tolist()
    assert top == [[79, 175], [79, 176], [80, 175], [80, 176]]
    assert [int(v) for v in peaks(large)] == [79, 175]
    assert point(single(), window((79, 80), (175, 176))).hit.tolist() == [True]
    assert point(single(), window((80, 81), (175, 176))).hit.tolist() == [False]
    assert point(single(), window((79, 80), (176, 177))).hit.tolist() == [False]


def test_tied_pixels_mean_their_mean_place_rounded_down():
    maps = torch.zeros(2, 3, 8)
    maps[0, 0, 1] = maps[0, 0, 4] = maps[0, 2, 7] = 3.0
    maps[1, 2, 6] = maps[1, 1, 1] = -1
    maps[1][maps[1] == 0] = -2
    row, column = peaks(maps)
    assert row.tolist() == [2 // 3, 3 // 2]
    assert column.tolist() == [12 // 3, 7 // 2]


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_map_without_a_peak_misses_even_a_full_mask(value):
    found = point(torch.full((1, 7, 7), value), torch.ones(1, 14, 14, dtype=torch.bool))
    assert found.hit.tolist() == [False] and found.share.tolist() == [0.0]


def test_a_map_that_is_not_finite_misses_and_its_peak_is_somewhere():
    maps = torch.full((1, 7, 7), math.nan)
    assert [int(v) for v in peaks(maps)] == [0, 0]
    assert not point(maps, torch.ones(1, 14, 14, dtype=torch.bool)).hit.any()


def test_a_net_that_diverges_in_the_last_step_of_a_task_is_refused(tiny_stream, tiny_net):
    """The loss before the step is finite and so are the weights after it; nothing else is."""
    train = rr.Train(epochs=1, batch=64, optimiser="sgd", lr=1e30, augment=None)
    with pytest.raises(Diverged, match="scores of test images are not finite after task 1, .*lr"):
        rr.fit(rr.Finetune(), tiny_net, tiny_stream, train=train, progress=False)


def test_scores_that_rule_classes_out_are_no_divergence(tiny_stream, tiny_net, tiny_train):
    class Ruling(rr.Finetune):
        def predict(self, net, x, out, memory):
            return out.logits.masked_fill(out.logits < out.logits.amax(1, True), -math.inf)

    result = rr.fit(Ruling(), tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert len(result.records) == 3


def test_the_share_counts_positive_saliency_only():
    maps = torch.tensor([[[1.0, 3.0], [0.0, -2.0]], [[2.0, 2.0], [2.0, 2.0]]])
    masks = torch.tensor([[[True, False], [True, True]], [[True, True], [True, False]]])
    assert point(maps, masks).share.tolist() == [0.25, 0.75]


def test_the_share_of_an_enlarged_map_by_hand():
    # one row of 2 cells on 4 pixels: 0, 1/4, 3/4, 1 of the second cell's value
    maps = torch.tensor([[[0.0, 8.0]]])
    masks = torch.tensor([[[False, True, False, True]]])
    assert enlarge(maps, (1, 4)).tolist() == [[[0.0, 2.0, 6.0, 8.0]]]
    found = point(maps, masks)
    assert found.share.item() == pytest.approx(10 / 16) and found.hit.item() is True


def test_each_image_plays_with_its_own_mask():
    maps = torch.cat([single(1, 1), single(5, 5), single(1, 5)])
    masks = torch.cat([window((32, 64), (32, 64)), window((32, 64), (32, 64)),
                       window((32, 64), (160, 192))])  # fmt: skip
    assert point(maps, masks).hit.tolist() == [True, False, True]


# --- counts --------------------------------------------------------------------------------------

HIT = torch.tensor([1, 1, 0, 0, 1, 1, 0, 1]).bool()
CORRECT = torch.tensor([1, 0, 1, 0, 1, 1, 0, 0]).bool()


def test_example_4_counts_precision_and_recall():
    counts = outcomes(HIT, CORRECT, torch.zeros(8, dtype=torch.int64), 1)
    assert [float(v[0]) for v in counts] == [3, 1, 2, 2]
    assert counts.accuracy().tolist() == [0.625]
    assert counts.precision().tolist() == [0.75]
    assert counts.recall().tolist() == [0.6]


def test_counts_are_per_task():
    task = torch.tensor([0, 0, 2, 2, 0, 2, 0, 2])
    counts = outcomes(HIT, CORRECT, task, 3)
    for k in range(3):
        mine = [(bool(h), bool(c)) for h, c, t in zip(HIT, CORRECT, task, strict=True) if t == k]
        for name, cell in (
            ("tp", (True, True)),
            ("fp", (False, True)),
            ("fn", (True, False)),
            ("tn", (False, False)),
        ):
            assert getattr(counts, name)[k] == mine.count(cell)
    assert np.isnan(counts.accuracy()[1]) and np.isnan(counts.precision()[1])


def test_example_5_accuracy_and_transfer_of_the_game():
    R = np.array([[0.7, np.nan, np.nan], [0.6, 0.8, np.nan], [0.5, 0.6, 0.9]])
    assert final_accuracy(R) == pytest.approx(0.6667, abs=5e-5)
    assert backward_transfer(R) == pytest.approx(-0.20)


def test_means_right_after_and_at_the_end_leave_out_and_count_what_is_undefined():
    nan = np.nan
    values = np.array([[0.8, nan, nan], [0.1, nan, nan], [0.4, 0.5, nan]])
    after, end, missing = right_after_and_at_the_end(values)
    assert after == pytest.approx(0.8) and end == pytest.approx(0.45) and missing == 3
    after, end, missing = right_after_and_at_the_end(np.full((2, 2), nan))
    assert math.isnan(after) and math.isnan(end) and missing == 4


# --- drift ---------------------------------------------------------------------------------------


def test_identical_maps_have_not_moved():
    maps = torch.rand(4, 7, 7, generator=torch.Generator().manual_seed(0))
    assert drift(maps, maps) == pytest.approx((1, 1, 0), abs=1e-6)


def test_a_scaled_map_has_not_moved():
    maps = torch.rand(4, 5, 5, generator=torch.Generator().manual_seed(0))
    assert drift(maps, 3 * maps) == pytest.approx((1, 1, 0), abs=1e-6)


def test_the_drift_of_a_moved_peak_by_hand():
    before, now = torch.zeros(1, 5, 5), torch.zeros(1, 5, 5)
    before[0, 0] = torch.tensor([5.0, 4, 3, 2, 1])
    now[0, :, 0] = torch.tensor([1.0, 2, 3, 4, 5])
    # the 5 largest cells are a row and a column, which share a corner
    moved = drift(before, now)
    assert moved.cosine == pytest.approx(5 / 55)
    assert moved.iou == pytest.approx(1 / 9)
    assert moved.displacement == pytest.approx(4)
    slanted = torch.zeros(1, 5, 5)
    slanted[0, 3, 4] = 1
    assert drift(before, slanted).displacement == pytest.approx(5)


def test_drift_is_the_mean_over_images():
    before, now = torch.zeros(2, 5, 5), torch.zeros(2, 5, 5)
    for image in (before[0], before[1], now[0]):
        image[0] = torch.tensor([5.0, 4, 3, 2, 1])
    now[1, :, 0] = torch.tensor([1.0, 2, 3, 4, 5])
    assert drift(before, now) == pytest.approx(((1 + 1 / 11) / 2, (1 + 1 / 9) / 2, 2), abs=1e-6)


def test_maps_that_stay_zero_have_not_moved_and_those_that_die_have():
    zero, one = torch.zeros(1, 5, 5), torch.ones(1, 5, 5)
    assert drift(zero, zero) == pytest.approx((1, 1, 0))
    assert drift(one, zero).cosine == 0


# --- against loops over images -------------------------------------------------------------------


@st.composite
def games(draw):
    """Turns of the game after each of T tasks: task, hit and right answer of every image."""
    tasks = draw(st.integers(2, 4))
    turn = st.tuples(st.booleans(), st.booleans())
    return [
        [(i, *draw(turn)) for i in range(k + 1) for _ in range(draw(st.integers(1, 5)))]
        for k in range(tasks)
    ]


def counted(turns, tasks):
    task, hit, correct = (torch.tensor(column) for column in zip(*turns, strict=True))
    return outcomes(hit.bool(), correct.bool(), task, tasks)


def mean_known(values):
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def same(ours, theirs):
    return math.isnan(ours) if theirs is None else ours == pytest.approx(theirs, abs=1e-12)


@given(games())
@settings(max_examples=60, deadline=None)
def test_pg_acc_pg_bwt_precision_and_recall_against_loops(rows):
    T = len(rows)
    parts = [counted(turns, T) for turns in rows]
    every = Outcomes(*(np.array([getattr(p, n) for p in parts]) for n in Outcomes._fields))

    def share(k, i, among, of):
        chosen = [turn for turn in rows[k] if turn[0] == i and among(turn)]
        return sum(of(turn) for turn in chosen) / len(chosen) if chosen else None

    def is_hit(turn):
        return turn[1]

    def is_right(turn):
        return turn[2]

    def anything(turn):
        return True

    end = [share(T - 1, i, anything, is_hit) for i in range(T)]
    right_after = [share(i, i, anything, is_hit) for i in range(T)]
    assert final_accuracy(every.accuracy()) == pytest.approx(sum(end) / T)
    moved = sum(end[i] - right_after[i] for i in range(T - 1)) / (T - 1)
    assert backward_transfer(every.accuracy()) == pytest.approx(moved, abs=1e-12)
    for values, among, of in (
        (every.precision(), is_right, is_hit),
        (every.recall(), is_hit, is_right),
    ):
        after, last, missing = right_after_and_at_the_end(values)
        expected = [share(i, i, among, of) for i in range(T)]
        expected_end = [share(T - 1, i, among, of) for i in range(T)]
        assert same(after, mean_known(expected)) and same(last, mean_known(expected_end))
        assert missing == [*expected, *expected_end].count(None)


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=3, max_size=3))
@settings(max_examples=80, deadline=None)
def test_peak_hit_and_share_against_loops(rows):
    values = torch.tensor(rows, dtype=torch.float32)[None]
    mask = torch.tensor([[(r * 5 + c) % 3 == 0 for c in range(4)] for r in range(3)])[None]
    most = max(max(row) for row in rows)
    ties = [(r, c) for r in range(3) for c in range(4) if rows[r][c] == most]
    row = sum(r for r, _ in ties) // len(ties)
    column = sum(c for _, c in ties) // len(ties)
    assert [int(v) for v in peaks(values)] == [row, column]
    on = sum(rows[r][c] for r in range(3) for c in range(4) if mask[0, r, c])
    total = sum(map(sum, rows))
    found = point(values, mask)  # maps of the mask's own size are not enlarged
    assert found.hit.item() is (bool(mask[0, row, column]) and most > 0)
    assert found.share.item() == pytest.approx(on / total if total else 0.0)


def test_where_no_image_has_a_mask_the_curve_is_unknown_and_not_zero():
    counts = {"tp": [0, 3], "fp": [0, 1], "fn": [0, 1], "tn": [0, 0]}
    first = {"class": {name: values[:1] for name, values in counts.items()}}
    records = [{"pointing": first}, {"pointing": {"class": counts}}]
    early, late = Result(records).pointing_curve()
    assert math.isnan(early) and late == pytest.approx(0.8)
