"""Result: what a run measured, as matrices over tasks, and what it left behind."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rightreasons import metrics
from rightreasons.learners.base import Learner
from rightreasons.metrics import Matrix
from rightreasons.nets.base import Net
from rightreasons.pointing import Outcomes, ratio, right_after_and_at_the_end

MODES = ("class", "task")


@dataclass
class Result:
    """The records of a run, one a task, and the numbers that follow from them."""

    records: list[dict[str, Any]]
    net: Net | None = field(default=None, repr=False)
    learner: Learner | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """One line; ``records`` and `summary` have the rest."""
        accuracies = ", ".join(f"{value:.3f}" for value in self.seen)
        return f"Result(accuracy on all classes seen, task by task: {accuracies})"

    @property
    def matrices(self) -> dict[str, Matrix]:
        """(T,T) each: ``class`` over all classes seen, ``task`` within the image's own task,
        ``top5`` where every record has it; for learners that look for the image's task, ``p20``
        with groups of 20 images of one task and ``p1`` with single ones."""
        made = {how: self._accuracy(how) for how in (*MODES, *self.groups)}
        if self.has_top5:
            made["top5"] = self._accuracy("top5")
        if self.has_masks:
            made["pointing"] = self.outcomes("class").accuracy()
            made["pointing_task"] = self.outcomes("task").accuracy()
        return made

    @property
    def has_top5(self) -> bool:
        return all("top5" in record["accuracy"] for record in self.records)

    @property
    def groups(self) -> list[str]:
        """``p20`` and ``p1``: by how many test images of one task its task was found, if it was."""
        return metrics.groups(set.intersection(*(set(r["accuracy"]) for r in self.records)))

    @property
    def has_masks(self) -> bool:
        return "pointing" in self.records[-1]

    def outcomes(self, how: str = "class") -> Outcomes:
        """(T,T) counts of the pointing game; ``how``: class or task, as in `matrices`."""
        rows = [record.get("pointing", {}).get(how, {}) for record in self.records]
        return Outcomes(*(_matrix([row.get(n, []) for row in rows]) for n in Outcomes._fields))

    def pointing_curve(self, how: str = "class") -> Matrix:
        """(T,) hits over all test images so far that have a mask."""
        counts = self.outcomes(how)
        return ratio(np.nansum(counts.tp + counts.fn, 1), np.nansum(sum(counts), 1))

    def _accuracy(self, how: str) -> Matrix:
        return _matrix([record["accuracy"][how] for record in self.records])

    @property
    def R(self) -> Matrix:
        """``R[k, i]``: after task k on task i over all classes seen, NaN where i > k."""
        return self._accuracy("class")

    @property
    def seen(self) -> Matrix:
        """(T,) accuracy on all classes seen so far, what the paper plots."""
        return self.curve("class")

    def curve(self, how: str) -> Matrix:
        """(T,) over all test images so far; ``how``: a key of `matrices` that counts answers."""
        pairs = [(record["accuracy"][how], record["test_images"]) for record in self.records]
        return np.array([metrics.over_images(*pair) for pair in pairs])

    @property
    def accuracy(self) -> float:
        """On all classes after the last task, every test image the same say."""
        return float(self.seen[-1])

    @property
    def later(self) -> float:
        """On the classes of all tasks but the first, after the last task."""
        last = self.records[-1]
        if len(self.records) == 1:
            return math.nan
        return metrics.over_images(last["accuracy"]["class"][1:], last["test_images"][1:])

    @property
    def harmonic(self) -> float:
        """The harmonic mean of the accuracies on the first task and on later ones, at the end: high
        only for those that have learned and not forgotten."""
        first = float(self.R[-1, 0])
        return 2 * first * self.later / (first + self.later) if first else self.later * 0

    @property
    def average(self) -> float:
        """Of `seen` over tasks."""
        return float(np.mean(self.seen))

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
            "ACC": _plain(metrics.final_accuracy(self.R)),
            "accuracy": _plain(self.accuracy),
            "first": _plain(float(self.R[-1, 0])),
            "later": _plain(self.later),
            "harmonic": _plain(self.harmonic),
            "average": _plain(self.average),
            "LA": _plain(metrics.learning_accuracy(self.R)),
            "bwt": _plain(self.bwt),
            "forgetting": _plain(self.forgetting),
            "task_aware_accuracy": _plain(metrics.final_accuracy(self.matrices["task"])),
            **({"top5": _plain(float(self.curve("top5")[-1]))} if self.has_top5 else {}),
            **{how: _plain(float(self.curve(how)[-1])) for how in self.groups},
            **(self._pointing() if self.has_masks else {}),
            "drift": last["drift"],
            "drift_cosine": _mean(last["drift"]["cosine"]),
            "drift_iou": _mean(last["drift"]["iou"]),
            "drift_displacement": _mean(last["drift"]["displacement"]),
            "bytes": last["bytes"],
            "seconds": sum(record["seconds"] for record in self.records),
            "seconds_a_step": last["seconds_a_step"],
            "cpu_a_step": last.get("cpu_a_step"),
        }

    def _pointing(self) -> dict[str, Any]:
        """PG-ACC and PG-BWT, precision and recall right after a task and at the end, and the share
        of positive saliency on the object; with the suffix ``_task`` for task-aware prediction."""
        found: dict[str, Any] = {"PG-images": self.records[-1]["pointing"]["images"]}
        for how, suffix in (("class", ""), ("task", "_task")):
            counts = self.outcomes(how)
            R = counts.accuracy()
            found[f"PG-ACC{suffix}"] = _plain(metrics.final_accuracy(R))
            found[f"PG-BWT{suffix}"] = _plain(metrics.backward_transfer(R))
            for name, values in (("Pr", counts.precision()), ("Re", counts.recall())):
                after, end, missing = right_after_and_at_the_end(values)
                found[f"{name}_ii{suffix}"] = _plain(after)
                found[f"{name}_Ti{suffix}"] = _plain(end)
                found[f"{name}_undefined{suffix}"] = missing
            shares = [
                np.nan if s is None else s for s in self.records[-1]["pointing"][how]["share"]
            ]
            found[f"share{suffix}"] = _plain(float(np.mean(shares)))
        return found


def _mean(values: list[float | None]) -> float | None:
    """Over the tasks before the last, whose maps have had time to move; None if one is unknown."""
    old = values[:-1]
    return None if not old or None in old else float(np.mean([v for v in old if v is not None]))


def _matrix(rows: list[list[float | None]]) -> Matrix:
    """(T,T), NaN above the diagonal."""
    matrix = np.full((len(rows), len(rows)), np.nan)
    for k, row in enumerate(rows):
        matrix[k, : len(row)] = [np.nan if value is None else value for value in row]
    return matrix


def _plain(values: Any) -> Any:
    if isinstance(values, float):
        return None if np.isnan(values) else values
    return [_plain(value) for value in list(values)]
