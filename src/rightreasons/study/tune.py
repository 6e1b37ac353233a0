"""The rule by which every side of a study is tuned, and what it has chosen.

Each side has the same number of tries, on the same seeds. What is compared is the average accuracy
on a validation split of classes that no result is reported on, as the mean over seeds; the highest
wins, of equal ones the smallest. A run that diverged counts as zero. No try is added afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from rightreasons.errors import Damaged
from rightreasons.reports.table import Table
from rightreasons.runfiles import write
from rightreasons.study.plan import TUNING, Study
from rightreasons.study.records import find

T = TypeVar("T")
TITLE = "{}, average accuracy on the validation split, %"
Tries = Mapping[float, Sequence[float]]  # value -> a number for each seed


def choose(tries: Tries) -> float:
    """The value with the highest mean over seeds; of equal ones the smallest.

    >>> choose({0.1: [0.5, 0.7], 1.0: [0.4, 0.7], 0.01: [0.6, 0.6]})
    0.01
    """
    return best({value: tries[value] for value in sorted(tries)})


def best(tries: Mapping[T, Sequence[float]]) -> T:
    """What has the highest mean over seeds; of equal ones the first.

    >>> best({"b": [0.5, 0.7], "a": [0.6, 0.6], "c": [0.4, 0.7]})
    'b'
    """
    return max(tries, key=lambda value: round(mean(tries[value]), 6))


def tried(study: Study, base: Path) -> dict[str, dict[str, dict[float, list[float]]]]:
    """Benchmark -> side -> value -> average accuracy by seed, of the sides that are complete."""
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for part, sides in study.sides.items():
        runs = study.runs(f"{TUNING}-{part}", {})
        for benchmark in study.parts[part].benchmarks:
            for name, side in sides.items():
                numbers: dict[float, list[float]] = {}
                for value in side.tries:
                    mine = [r for r in runs if r.benchmark == benchmark]
                    mine = [r for r in mine if r.row == f"{name} {value:g}"]
                    records = [find(base, run) for run in mine]
                    numbers[value] = [record.average for record in records if record is not None]
                if all(len(v) == len(study.tuning_seeds(part)) for v in numbers.values()):
                    found.setdefault(benchmark, {})[name] = numbers
    return found


def write_chosen(study: Study, base: Path, path: Path) -> None:
    """Choose, and keep what was chosen beside every number that it was chosen by."""
    found = tried(study, base)
    content = {
        "study": study.name,
        "chosen": {
            benchmark: {name: choose(tries) for name, tries in sides.items()}
            for benchmark, sides in found.items()
        },
        "tries": {
            benchmark: {
                name: {f"{value:g}": numbers for value, numbers in tries.items()}
                for name, tries in sides.items()
            }
            for benchmark, sides in found.items()
        },
    }
    text = json.dumps(content, indent=1) + "\n"
    before = path.read_text("utf-8") if path.exists() else None
    if (found or before is not None) and text != before:
        write(path, text)


def read_chosen(path: Path) -> dict[str, dict[str, float]]:
    """Benchmark -> side -> value; nothing if nothing was chosen yet."""
    if not path.exists():
        return {}
    try:
        chosen = json.loads(path.read_text("utf-8"))["chosen"]
        return {b: {n: float(v) for n, v in sides.items()} for b, sides in chosen.items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Damaged(
            f"{path} does not say what was chosen ({error}); remove it and type the command "
            "with --report"
        ) from error


def tables(study: Study, content: dict[str, Any]) -> list[Table]:
    """What was tried and chosen, a table a benchmark."""
    made = []
    for benchmark, sides in content["tries"].items():
        rows = []
        for name, tries in sides.items():
            key = study.side(name)[1].key
            chosen = content["chosen"][benchmark][name]
            values = sorted(float(value) for value in tries)
            for value, numbers in tries.items():
                mark = "chosen" if float(value) == chosen else ""
                edge = ", at the edge" if mark and chosen in (values[0], values[-1]) else ""
                rows.append([name, f"{key}={value}", *percents(numbers), mark + edge])
        head = ["side", "try", "mean", "every seed", ""]
        made.append(Table(TITLE.format(benchmark), head, rows))
    return made


def defaults(study: Study, content: dict[str, Any]) -> dict[str, float]:
    """Side -> the value with the highest mean over data sets, of sides tried on all of them."""
    return {name: choose(means) for name, means in _everywhere(study, content).items()}


def default_table(study: Study, content: dict[str, Any]) -> Table:
    """The mean of every try over data sets, and the highest: what becomes a default."""
    chosen = defaults(study, content)
    rows = []
    for name, tries in _everywhere(study, content).items():
        key = study.side(name)[1].key
        for value, numbers in tries.items():
            mark = "highest" if value == chosen[name] else ""
            rows.append([name, f"{key}={value:g}", *percents(numbers), mark])
    head = ["side", "try", "mean", ", ".join(study.benchmarks), ""]
    return Table(TITLE.format("all data sets"), head, rows)


def _everywhere(study: Study, content: dict[str, Any]) -> dict[str, dict[float, list[float]]]:
    """Side -> value -> its mean on each data set, of the sides that were tried on all of them."""
    tries = content["tries"]
    first = tries.get(next(iter(study.benchmarks)), {})
    names = [name for name in first if all(name in tries.get(b, {}) for b in study.benchmarks)]
    return {
        name: {
            float(value): [mean(tries[b][name][value]) for b in study.benchmarks]
            for value in first[name]
        }
        for name in names
    }


def percents(numbers: Sequence[float]) -> list[str]:
    """The mean of a try over its seeds (or data sets), and each of them."""
    each = ", ".join(f"{100 * number:.1f}" for number in numbers)
    return [f"{100 * mean(numbers):.1f}", each]
