"""Functions of R against the worked examples and against loops over its cells."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rightreasons.metrics import (
    average_incremental_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
    learning_accuracy,
    seen_accuracy,
)


def lower(*rows):
    """A matrix from its rows; cells of tasks not yet seen are NaN."""
    R = np.full((len(rows), len(rows)), np.nan)
    for k, row in enumerate(rows):
        R[k, : k + 1] = row
    return R


FIRST = lower([80], [60, 70], [50, 40, 90])
SIZES = np.array([1000.0, 500, 500])


def test_example_1():
    assert final_accuracy(FIRST) == pytest.approx(60)
    assert backward_transfer(FIRST) == pytest.approx(-30)
    assert forgetting(FIRST) == pytest.approx(30)
    assert learning_accuracy(FIRST) == pytest.approx(80)


def test_example_2_forgetting_is_from_the_best_and_not_from_the_first():
    R = lower([80], [85, 70], [50, 40, 90])
    assert backward_transfer(R) == pytest.approx(-30)
    assert forgetting(R) == pytest.approx(32.5)


def test_example_3_every_image_has_the_same_say():
    assert seen_accuracy(FIRST, SIZES) == pytest.approx([80, 950 / 15, 57.5])
    assert average_incremental_accuracy(FIRST, SIZES) == pytest.approx((80 + 950 / 15 + 57.5) / 3)


def test_example_5_of_the_pointing_game():
    R = lower([0.7], [0.6, 0.8], [0.5, 0.6, 0.9])
    assert final_accuracy(R) == pytest.approx(2 / 3)
    assert backward_transfer(R) == pytest.approx(-0.2)


def test_one_task_has_nothing_to_forget():
    R = lower([80])
    assert math.isnan(backward_transfer(R)) and math.isnan(forgetting(R))
    assert final_accuracy(R) == 80
    assert average_incremental_accuracy(R, np.array([5.0])) == 80


def test_a_gain_counts_as_negative_forgetting():
    R = lower([50], [70, 80])
    assert backward_transfer(R) == pytest.approx(20) and forgetting(R) == pytest.approx(-20)


@st.composite
def counted(draw):
    """Right answers a cell, out of the test images of each task."""
    sizes = draw(st.lists(st.integers(1, 50), min_size=2, max_size=6))
    right = [[draw(st.integers(0, sizes[i])) for i in range(k + 1)] for k in range(len(sizes))]
    return sizes, right


@given(counted())
@settings(max_examples=60, deadline=None)
def test_formulas_against_loops_over_counts(case):
    sizes, right = case
    T = len(sizes)
    cell = [[right[k][i] / sizes[i] for i in range(k + 1)] for k in range(T)]
    R = lower(*cell)
    lost = gained = last = 0.0
    for i in range(T):
        last += cell[T - 1][i]
        if i < T - 1:
            gained += cell[T - 1][i] - cell[i][i]
            lost += max(cell[k][i] for k in range(i, T - 1)) - cell[T - 1][i]
    curve = [sum(right[k]) / sum(sizes[: k + 1]) for k in range(T)]
    assert final_accuracy(R) == pytest.approx(last / T)
    assert learning_accuracy(R) == pytest.approx(sum(cell[i][i] for i in range(T)) / T)
    assert backward_transfer(R) == pytest.approx(gained / (T - 1), abs=1e-12)
    assert forgetting(R) == pytest.approx(lost / (T - 1), abs=1e-12)
    assert seen_accuracy(R, np.array(sizes, float)) == pytest.approx(curve)
    assert average_incremental_accuracy(R, np.array(sizes, float)) == pytest.approx(sum(curve) / T)
