"""The numbers of a run: what they are called and how they are printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from rightreasons.metrics import GROUPS
from rightreasons.stats import t_interval


class Measure(NamedTuple):
    """How a number of a run is called and printed."""

    name: str
    scale: float = 100  # per cent and points
    digits: int = 1


MEASURES = {  # key in result.json
    "accuracy": Measure("accuracy"),
    "first": Measure("of the first task"),
    "later": Measure("of later tasks"),
    "harmonic": Measure("harmonic mean of both"),
    "ACC": Measure("ACC, mean of tasks"),
    "average": Measure("average accuracy"),
    "LA": Measure("LA, when just learned"),
    "bwt": Measure("BWT"),
    "forgetting": Measure("forgetting"),
    "top5": Measure("top-5 accuracy"),
    "task_aware_accuracy": Measure("task-aware accuracy"),
    "PG-ACC": Measure("PG-ACC"),
    "PG-BWT": Measure("PG-BWT"),
    "Pr_ii": Measure("precision Pr_ii"),
    "Pr_Ti": Measure("precision Pr_Ti"),
    "Re_ii": Measure("recall Re_ii"),
    "Re_Ti": Measure("recall Re_Ti"),
    "share": Measure("share on object"),
    "PG-ACC_task": Measure("PG-ACC, task-aware"),
    "PG-BWT_task": Measure("PG-BWT, task-aware"),
    "Pr_ii_task": Measure("Pr_ii, task-aware"),
    "Pr_Ti_task": Measure("Pr_Ti, task-aware"),
    "Re_ii_task": Measure("Re_ii, task-aware"),
    "Re_Ti_task": Measure("Re_Ti, task-aware"),
    "drift_cosine": Measure("drift: cosine"),
    "drift_iou": Measure("drift: IoU of top cells"),
    "drift_displacement": Measure("drift: peak moved, cells", 1, 2),
}


def measure(key: str) -> Measure:
    """What is known of a number."""
    match = GROUPS.fullmatch(key)
    if match is None:
        return MEASURES[key]
    return Measure(f"accuracy, p={match[1]}")


def cell(key: str, value: Any) -> str:
    """The number as it is printed; nothing if it is unknown."""
    scale, digits = measure(key)[1:]
    return "" if value is None or math.isnan(value) else f"{scale * value:.{digits}f}"


def spread(key: str, values: Sequence[float]) -> str:
    """Mean and deviation (n - 1) of what is known, or the one value; nothing if there is none."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return ""
    middle = cell(key, mean(values))
    return middle if len(values) < 2 else f"{middle} ± {cell(key, stdev(values))}"


def interval(key: str, gaps: Sequence[float]) -> str:
    if not gaps:
        return ""
    scale, digits = measure(key)[1:]
    values = [scale * gap for gap in gaps]
    low, high = t_interval(values)
    middle = f"{mean(values):+.{digits}f}"
    return middle if math.isnan(low) else f"{middle} [{low:+.{digits}f}, {high:+.{digits}f}]"


def size(count: int) -> str:
    return f"{count / 1024:.0f} kB" if count < 10 * 1024**2 else f"{count / 1024**2:.0f} MB"
