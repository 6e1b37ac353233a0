"""Is a line of ``records.jsonl`` a whole record? Reports must not stumble over half a file."""

from __future__ import annotations

import math
from typing import Any

from rightreasons.metrics import groups
from rightreasons.runfiles import load_json

DRIFT = ("cosine", "iou", "displacement")
COUNTS = ("tp", "fp", "fn", "tn")


def damage(line: str, k: int) -> str:
    """What is wrong with the record of task k (from 0), in a few words; nothing if it is whole."""
    try:
        record = load_json(line)
    except ValueError:
        return "it is not valid JSON"
    if not isinstance(record, dict):
        return f"it is a {type(record).__name__}, expected keys"
    return next(_wrong(record, k + 1), "")


def _wrong(record: dict[str, Any], tasks: int) -> Any:
    if record.get("task") != tasks:
        yield f"it says task {str(record.get('task'))[:20]}"
    accuracy = _keys(record.get("accuracy"))
    for how in ("class", "task", *(["top5"] if "top5" in accuracy else []), *groups(accuracy)):
        if not _row(accuracy.get(how), tasks, 1.0):
            yield f"accuracy.{how} is no row of {tasks} shares"
    if not _row(record.get("test_images"), tasks) or None in record["test_images"]:
        yield f"test_images is no row of {tasks} counts"
    drift = _keys(record.get("drift"))
    for name in DRIFT:
        if not _row(drift.get(name), tasks):
            yield f"drift.{name} is no row of {tasks} numbers"
    if "pointing" in record:
        pointing = _keys(record["pointing"])
        for how in ("class", "task"):
            counts = _keys(pointing.get(how))
            if not all(_row(counts.get(name), tasks) for name in (*COUNTS, "share")):
                yield f"pointing.{how} has no rows of {tasks} counts"
    sizes = _keys(record.get("bytes"))
    for key in ("images", "maps", "model", *(["learner"] if "learner" in sizes else [])):
        if not _number(sizes.get(key)):
            yield f"bytes.{key} is no number"
    known = ["cpu_a_step"] if record.get("cpu_a_step") is not None else []
    for key in ("seconds", "seconds_a_step", *known):
        if not _number(record.get(key)):
            yield f"{key} is no number"


def _keys(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _row(value: Any, length: int, most: float = math.inf) -> bool:
    """Numbers, or None where something is unknown."""
    return (
        isinstance(value, list)
        and len(value) == length
        and all(v is None or (_number(v) and v <= most) for v in value)
    )


def _number(value: Any) -> bool:
    whole = isinstance(value, (int, float)) and not isinstance(value, bool)
    return whole and math.isfinite(value)
