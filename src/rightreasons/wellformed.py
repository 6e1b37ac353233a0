"""Is what a checkpoint holds what a run saves?

A checksum says that a file is whole, not whose it is: anybody can make one. What is wrong in here
is no damage that an older checkpoint could mend, so it is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.reports.check import damage

NET = {"net!": int, "tensors": dict}
STREAM = {"class_names": [str], "counts": [int], "mean": Tensor, "std": Tensor, "size": [int]}
TASK = {"net": NET, "learner": dict, "records": [dict], "probes": dict, "stream": STREAM}
STEP = {
    **{"net": NET, "learner": dict, "losses": {"sums": dict, "counts": dict}, "seconds": float},
    **{"steps": int, "stage": int, "epoch": int, "step": int, "optimisers": [dict]},
}


def check_task(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The state of a finished task, or a `UserError` that says what is odd in it."""
    _check(path, misfit(state, TASK))
    for k, record in enumerate(state["records"]):
        try:
            _check(path, damage(json.dumps(record), k), f"records/{k}: ")
        except TypeError as error:  # a tensor, say
            _check(path, str(error), f"records/{k}: ")
    stream, classes, probes = state["stream"], state["net"]["net!"], state["probes"]
    maps = [probes.get(str(k)) for k in range(len(state["records"]))]
    fits = {
        "stream/class_names": len(stream["class_names"]) == classes == sum(stream["counts"]),
        "stream/size": len(stream["size"]) == 2 and min(stream["size"]) > 0,
        "stream/mean": stream["mean"].numel() == stream["std"].numel() == 3,
        "probes": all(isinstance(m, Tensor) and m.dim() == 3 for m in maps),  # (B,u,v)
    }
    for name, good in fits.items():
        _check(path, "" if good else "it does not fit the rest", f"{name}: ")
    return state


def check_step(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The state of a step inside a task."""
    _check(path, misfit(state, STEP))
    return state


def misfit(value: Any, form: Any, where: str = "") -> str:
    """The first place that has another form: a type, a dictionary with keys, a list of one form."""
    if isinstance(form, type):
        fits = type(value) is form if form is int else isinstance(value, form)
        return "" if fits else f"{where}: {type(value).__name__}, expected {form.__name__}"
    if isinstance(form, list):
        if not isinstance(value, list):
            return misfit(value, list, where)
        inside = [(i, one, form[0]) for i, one in enumerate(value)]
    else:
        if not isinstance(value, dict):
            return misfit(value, dict, where)
        inside = [(key, value.get(key), one) for key, one in form.items()]
    found = (misfit(one, its, f"{where}/{key}".lstrip("/")) for key, one, its in inside)
    return next((text for text in found if text), "")


def _check(path: Path, wrong: str, where: str = "") -> None:
    if wrong:
        raise UserError(
            f"{path} is whole, but not a checkpoint of a run ({where}{wrong}); put the run's own "
            "file back, or remove it"
        )
