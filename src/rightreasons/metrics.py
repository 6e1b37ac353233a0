"""Functions of the matrix R, each with its formula.

``R[k, i]`` is the accuracy on the test images of task i after learning task k, over all classes
seen by then; NaN where i > k. T is the number of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
GROUPS = re.compile(r"p([1-9]\d*)")  # accuracy by groups of so many test images of one task


def groups(keys: Iterable[str]) -> list[str]:
    """``p20`` and ``p1`` among some keys, the largest group first."""
    return sorted({key for key in keys if GROUPS.fullmatch(key)}, key=lambda k: -int(k[1:]))


def final_accuracy(R: Matrix) -> float:
    """ACC: ``1/T sum_i R[T, i]``, every task with the same say."""
    return float(np.mean(R[-1]))


def learning_accuracy(R: Matrix) -> float:
    """LA: ``1/T sum_i R[i, i]``, each task when it has just been learned (Riemer et al. 2019)."""
    return float(np.mean(np.diag(R)))


def backward_transfer(R: Matrix) -> float:
    """BWT: ``1/(T-1) sum_{i<T} R[T, i] - R[i, i]``; NaN for one task."""
    if len(R) < 2:
        return float("nan")
    return float(np.mean(R[-1, :-1] - np.diag(R)[:-1]))


def forgetting(R: Matrix) -> float:
    """F: ``1/(T-1) sum_{i<T} max_{i<=l<T} R[l, i] - R[T, i]``; NaN for one task."""
    if len(R) < 2:
        return float("nan")
    best = np.array([np.max(R[i:-1, i]) for i in range(len(R) - 1)])
    return float(np.mean(best - R[-1, :-1]))


def seen_accuracy(R: Matrix, sizes: Matrix) -> Matrix:
    """``a_k``: accuracy on all test images of tasks 1..k after task k, every image the same say."""
    return np.array([over_images(R[k, : k + 1], sizes[: k + 1]) for k in range(len(R))])


def over_images(
    accuracy: Sequence[float | None] | Matrix, sizes: Sequence[float] | Matrix
) -> float:
    """Accuracy over the images of several tasks; NaN if that of one is unknown."""
    known = [np.nan if a is None else a for a in accuracy]
    return float(np.dot(known, sizes) / np.sum(sizes))


def percent(share: float | None) -> str:
    """An accuracy as it is said in a line."""
    return "unknown" if share is None or np.isnan(share) else f"{100 * share:.1f} %"


def average_incremental_accuracy(R: Matrix, sizes: Matrix) -> float:
    """``1/T sum_k a_k`` of `seen_accuracy`."""
    return float(np.mean(seen_accuracy(R, sizes)))
