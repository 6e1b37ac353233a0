"""Result: what a run measured, as matrices over tasks, and what it left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rightreasons import metrics
from rightreasons.learners.base import Learner
from rightreasons.metrics import Matrix
from rightreasons.nets.net import Net


@dataclass
class Result:
    """The records of a run, one a task, and the numbers that follow from them."""

    records: list[dict[str, Any]]
    net: Net | None = field(default=None, repr=False)
    learner: Learner | None = field(default=None, repr=False)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """(T,T) each: ``class`` over all classes seen, ``task`` within the image's own task."""
        return {name: self._matrix(name) for name in self.records[0]["accuracy"]}

    def _matrix(self, name: str) -> Matrix:
        rows = [record["accuracy"][name] for record in self.records]
        matrix = np.full((len(rows), len(rows)), np.nan)
        for k, row in enumerate(rows):
            matrix[k, : len(row)] = [np.nan if v is None else v for v in row]
        return matrix

    @property
    def R(self) -> Matrix:
        """``R[k, i]``: after task k on task i over all classes seen, NaN where i > k."""
        return self._matrix("class")

    @property
    def sizes(self) -> Matrix:
        """(T,) test images of each task."""
        return np.array(self.records[-1]["test_images"], dtype=float)

    @property
    def seen(self) -> Matrix:
        """(T,) accuracy on all classes seen so far, what the paper plots."""
        return metrics.seen_accuracy(self.R, self.sizes)

    @property
    def accuracy(self) -> float:
        """On all classes after the last task, every test image the same say."""
        return float(self.seen[-1])

    @property
    def average(self) -> float:
        return metrics.average_incremental_accuracy(self.R, self.sizes)

    @property
    def bwt(self) -> float:
        return metrics.backward_transfer(self.R)

    @property
    def forgetting(self) -> float:
        return metrics.forgetting(self.R)

    def summary(self) -> dict[str, Any]:
        """All of it as plain numbers, NaN as None, for ``result.json``."""
        last = self.records[-1]
        return {
            "R": _plain(self.R),
            "matrices": {name: _plain(matrix) for name, matrix in self.matrices.items()},
            "seen": _plain(self.seen),
            "ACC": metrics.final_accuracy(self.R),
            "accuracy": self.accuracy,
            "average": self.average,
            "bwt": _plain(np.array(self.bwt)),
            "forgetting": _plain(np.array(self.forgetting)),
            "task_aware_accuracy": metrics.final_accuracy(self.matrices["task"]),
            "bytes": last["bytes"],
            "seconds": sum(record["seconds"] for record in self.records),
            "seconds_a_step": last["seconds_a_step"],
        }


def _plain(values: Matrix) -> Any:
    return np.where(np.isnan(values), None, values.astype(object)).tolist()
