"""What the functions for notebooks take: folders of runs, or results that are still in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rightreasons.errors import UserError
from rightreasons.reports.read import Book, Group, RunData, group, read
from rightreasons.result import Result

EXPECTED = "expected a folder of runs, rr.fit's result, or {'er': result, ('er+rrr', 1): result}"


def book(source: Any) -> Book:
    """Runs out of a folder, several folders, a result, or results by method (and seed)."""
    if isinstance(source, (str, Path)):
        return read([source])
    if isinstance(source, Result):
        return group([_run(source.learner.method if source.learner else "run", 0, source)])
    if isinstance(source, Mapping):
        return group(_named(source))
    if isinstance(source, Sequence) and source and all(isinstance(s, (str, Path)) for s in source):
        return read(list(source))
    raise UserError(f"runs are a {type(source).__name__}, {EXPECTED}")


def one_group(source: Any) -> Group:
    """The one group of a source: runs of different benchmarks are not drawn together."""
    found = book(source)
    if len(found.groups) > 1:
        titles = ", ".join(g.title for g in found.groups)
        raise UserError(f"these are runs of different benchmarks: {titles}; pass one at a time")
    return found.groups[0]


def _named(source: Mapping[Any, Any]) -> Iterable[RunData]:
    for key, value in source.items():
        method, seed = key if isinstance(key, tuple) and len(key) == 2 else (key, 0)
        results = list(value) if isinstance(value, (list, tuple)) else [value]
        for i, result in enumerate(results):
            if not isinstance(result, Result) or not isinstance(method, str):
                raise UserError(f"{key!r} is a {type(result).__name__}, {EXPECTED}")
            yield _run(method, int(seed) + i, result)


def _run(method: str, seed: int, result: Result) -> RunData:
    if not result.records:
        raise UserError(f"the result of {method} has no task yet")
    tasks: dict[str, Any] = {
        "tasks": [["?"] * record["classes"] for record in result.records],
        "images": result.records[-1]["test_images"],
    }
    config = {"method": method, "seed": seed, "stream": tasks}
    return RunData(f"{method}, seed {seed}", config, result.records, True)
