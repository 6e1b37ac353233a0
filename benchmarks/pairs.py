"""Two things timed against each other in one process: alternated pairs, CPU time, medians."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def timed(step: Callable[[], None]) -> float:
    begun = time.process_time()
    step()
    return time.process_time() - begun


def measure(a: Callable[[], None], b: Callable[[], None], pairs: int) -> list[tuple[float, float]]:
    for _ in range(3):
        a()
        b()
    times = []
    for i in range(pairs):
        if i % 2:
            second, first = timed(b), timed(a)
        else:
            first, second = timed(a), timed(b)
        times.append((first, second))
    return times


def ratio(times: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Ratio of medians b/a, and its 95 % bootstrap interval over pairs."""
    t = torch.tensor(times, dtype=torch.float64)
    draws = torch.randint(len(t), (2000, len(t)), generator=torch.Generator().manual_seed(0))
    medians = t[draws].median(1).values  # (2000,2)
    low, high = (medians[:, 1] / medians[:, 0]).quantile(torch.tensor([0.025, 0.975]).double())
    a, b = t.median(0).values
    return float(b / a), float(low), float(high)
