"""Student's t against its tables, and the interval against one by hand."""

from __future__ import annotations

import math

import pytest

from rightreasons.stats import t_interval, t_quantile


@pytest.mark.parametrize(
    ("p", "freedom", "value"),
    [  # printed tables
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 4, 2.776),
        (0.975, 5, 2.571),
        (0.975, 9, 2.262),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.975, 100, 1.984),
        (0.95, 1, 6.314),
        (0.95, 7, 1.895),
        (0.995, 1, 63.657),
        (0.995, 2, 9.925),
        (0.995, 29, 2.756),
        (0.75, 1, 1.000),
        (0.9995, 1, 636.619),
        (0.9995, 3, 12.924),
    ],
)
def test_quantiles_are_those_of_the_tables(p, freedom, value):
    assert t_quantile(p, freedom) == pytest.approx(value, abs=6e-4)


@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.999])
def test_quantiles_of_one_and_two_degrees_have_closed_forms(p):
    assert t_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-9)
    q = 2 * p - 1
    assert t_quantile(p, 2) == pytest.approx(q * math.sqrt(2 / (1 - q * q)), rel=1e-9)


def test_the_median_is_zero_and_the_limit_is_normal():
    assert t_quantile(0.5, 3) == pytest.approx(0, abs=1e-9)
    assert t_quantile(0.975, 2000) == pytest.approx(1.95996, abs=2e-3)


def test_the_interval_by_hand():
    low, high = t_interval([1.0, 2.0, 4.5])
    # mean 2.5; squares 2.25 + 0.25 + 4 over 2 degrees: variance 3.25
    half = 4.302653 * math.sqrt(3.25 / 3)
    assert low == pytest.approx(2.5 - half, abs=1e-5)
    assert high == pytest.approx(2.5 + half, abs=1e-5)


def test_the_level_widens_the_interval():
    values = [0.0, 1.0, 3.0, 2.0]
    half = 2.353363 * math.sqrt((2.25 + 0.25 + 2.25 + 0.25) / 3 / 4)
    assert t_interval(values, 0.9) == pytest.approx((1.5 - half, 1.5 + half), abs=1e-5)
    assert t_interval(values, 0.99)[0] < t_interval(values, 0.9)[0]


def test_equal_values_have_no_width():
    assert t_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_below_two_values_there_is_no_interval(values):
    assert all(math.isnan(v) for v in t_interval(values))
