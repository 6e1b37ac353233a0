"""Curves over tasks: one number a task, of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rightreasons.metrics import over_images
from rightreasons.reports.read import Line, RunData

Values = list[float]


class Curve(NamedTuple):
    name: str
    of: Callable[[RunData], Values | None]  # None where a run does not have it


def curve(run: RunData, measure: str) -> Values | None:
    """The values of a run after task 1, 2, ...; NaN where one is unknown."""
    return CURVES[measure].of(run) if run.records else None


def of_line(line: Line, measure: str) -> list[Values]:
    """Those of its finished runs that have it."""
    return [c for run in line.finished if (c := curve(run, measure)) is not None]


def _accuracy(how: str) -> Callable[[RunData], Values | None]:
    def of(run: RunData) -> Values | None:
        if any(how not in record["accuracy"] for record in run.records):
            return None
        return [100 * float(v) for v in run.result.curve(how)]

    return of


def _by_groups(run: RunData) -> Values | None:
    """The largest: that of single images is the accuracy itself."""
    known = run.result.groups
    return _accuracy(known[0])(run) if known else None


def _pointing(run: RunData) -> Values | None:
    """Hits over all images of tasks so far that have a mask."""
    if any("pointing" not in record for record in run.records):
        return None
    return [100 * float(rate) for rate in run.result.pointing_curve()]


def _drift(name: str, scale: float) -> Callable[[RunData], Values | None]:
    """Over the tasks before the last one learned; nothing has moved after the first."""

    def of(run: RunData) -> Values | None:
        rows: list[list[float | None]] = [record["drift"][name] for record in run.records]
        means = [over_images(row[:-1], [1] * (len(row) - 1)) for row in rows[1:]]
        still = rows[0][0]
        return [scale * (np.nan if still is None else still), *(scale * m for m in means)]

    return of


def _of_record(scale: float, *path: str) -> Callable[[RunData], Values | None]:
    def of(run: RunData) -> Values | None:
        found = []
        for record in run.records:
            value: Any = record
            for key in path:
                value = value.get(key)
            found.append(np.nan if value is None else scale * float(value))
        return None if np.isnan(found).all() else found

    return of


CURVES = {
    "seen": Curve("accuracy on all classes seen, %", _accuracy("class")),
    "top5": Curve("top-5 accuracy on all classes seen, %", _accuracy("top5")),
    "groups": Curve("accuracy by groups of images of one task, %", _by_groups),
    "task": Curve("task-aware accuracy, %", _accuracy("task")),
    "pointing": Curve("peak on the object, %", _pointing),
    "cosine": Curve("maps of old images: cosine, %", _drift("cosine", 100)),
    "iou": Curve("maps of old images: IoU of top cells, %", _drift("iou", 100)),
    "displacement": Curve("maps of old images: peak moved, cells", _drift("displacement", 1)),
    "cpu": Curve("ms of CPU a step", _of_record(1000, "cpu_a_step")),
    "step": Curve("ms a step", _of_record(1000, "seconds_a_step")),
    "seconds": Curve("seconds a task", _of_record(1, "seconds")),
    "images": Curve("bytes of remembered images, kB", _of_record(1 / 1024, "bytes", "images")),
    "maps": Curve("bytes of remembered maps, kB", _of_record(1 / 1024, "bytes", "maps")),
}
ACCURACY = ("seen", "groups", "top5", "task", "pointing")
DRIFT = ("cosine", "iou", "displacement")
COSTS = ("cpu", "step", "seconds", "images", "maps")
