"""Paired differences and their t intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The t interval of the mean, with n-1 degrees of freedom; NaN below two values."""
    if len(values) < 2:
        return math.nan, math.nan
    half = t_quantile((1 + level) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def t_quantile(p: float, freedom: int) -> float:
    """The p-quantile (p >= 1/2) of Student's t, by bisection of its distribution function.

    >>> round(t_quantile(0.975, 2), 3), round(t_quantile(0.975, 4), 3)
    (4.303, 2.776)
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, freedom: int) -> float:
    """Abramowitz & Stegun 26.7.3 and 26.7.4: finite sums in theta = atan(t / sqrt(n))."""
    theta = math.atan2(t, math.sqrt(freedom))
    cosine, total, factor = math.cos(theta), 0.0, 1.0
    if freedom % 2:
        factor = cosine
        for k in range(1, freedom - 1, 2):
            total += factor
            factor *= cosine**2 * (k + 1) / (k + 2)
        inside = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        for k in range(0, freedom, 2):
            total += factor
            factor *= cosine**2 * (k + 1) / (k + 2)
        inside = math.sin(theta) * total
    return (1 + inside) / 2
