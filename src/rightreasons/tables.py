"""Tables of finished runs: every seed, mean and deviation, matched differences and their intervals.

A table is a list of rows of text; it is printed by rich and written as Markdown from the same rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from rightreasons.errors import printable
from rightreasons.registry import split_method
from rightreasons.runfiles import read_config
from rightreasons.stats import t_interval

MEASURES = {  # key in result.json: row, in percent
    "accuracy": "accuracy",
    "average": "average accuracy",
    "forgetting": "forgetting",
    "task_aware_accuracy": "task-aware accuracy",
    "PG-ACC": "PG-ACC",
    "PG-BWT": "PG-BWT",
    "Pr_ii": "precision Pr_ii",
    "Pr_Ti": "precision Pr_Ti",
    "Re_ii": "recall Re_ii",
    "Re_Ti": "recall Re_Ti",
    "share": "share on object",
    "PG-ACC_task": "PG-ACC, task-aware",
    "Pr_Ti_task": "Pr_Ti, task-aware",
    "Re_Ti_task": "Re_Ti, task-aware",
    "drift_cosine": "drift: cosine",
    "drift_iou": "drift: IoU of top cells",
}
PAIRED = ("accuracy", "average", "forgetting", "PG-ACC", "share", "drift_cosine")
SEEDS = ("accuracy", "average", "forgetting", "PG-ACC")


@dataclass
class Table:
    title: str
    head: list[str]
    rows: list[list[str]]

    def rich(self) -> RichTable:
        title = Text(printable(self.title), style="bold")  # a folder's name may look like markup
        table = RichTable(title=title, title_justify="left")
        for i, name in enumerate(self.head):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.head) + " |"]
        lines.append("|" + "|".join("---" if not i else "--:" for i in range(len(self.head))) + "|")
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows), ""])


@dataclass
class Finished:
    """One finished run."""

    method: str
    seed: int
    config: dict[str, Any]
    result: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Finished:
        config = read_config(folder)
        result = json.loads((folder / "result.json").read_text("utf-8"))
        return cls(config["method"], config["seed"], config, result)


def single(folder: Path) -> RenderableType:
    """The numbers of one run."""
    run = Finished.read(folder)
    rows = [[name, _percent(run.result.get(key))] for key, name in MEASURES.items()]
    rows = [row for row in rows if row[1]]
    rows += [["images", _bytes(run.result["bytes"]["images"])]]
    rows += [["maps", _bytes(run.result["bytes"]["maps"])]]
    rows += [["seconds a step", f"{run.result['seconds_a_step']:.3f}"]]
    table = Table(f"{run.method} seed {run.seed}: {folder}", ["measure", "value"], rows)
    return table.rich()


def tables(folders: Sequence[Path]) -> tuple[list[Table], list[str]]:
    """All tables of matched runs, and a sentence for each difference in accuracy."""
    runs = [Finished.read(folder) for folder in folders]
    groups: dict[str, list[Finished]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    for group in groups.values():
        group.sort(key=lambda run: run.seed)
    made = [_means(groups), _seeds(groups), _costs(groups)]
    pairs, sentences = _pairs(groups)
    if pairs.rows:
        made.insert(1, pairs)
    return made, sentences


def compared(folders: Sequence[Path]) -> RenderableType:
    made, sentences = tables(folders)
    return Group(*(t.rich() for t in made), *(Text(sentence) for sentence in sentences))


def markdown(folders: Sequence[Path]) -> str:
    made, sentences = tables(folders)
    return "\n".join([*(t.markdown() for t in made), *(f"- {s}" for s in sentences), ""])


def _known(groups: dict[str, list[Finished]], keys: Sequence[str]) -> list[str]:
    """Measures that every run has."""
    every = [run.result for group in groups.values() for run in group]
    return [key for key in keys if all(result.get(key) is not None for result in every)]


def _means(groups: dict[str, list[Finished]]) -> Table:
    first = next(iter(groups.values()))
    rows = [
        [MEASURES[key], *(_spread([run.result[key] for run in g]) for g in groups.values())]
        for key in _known(groups, list(MEASURES))
    ]
    title = f"{first[0].config.get('benchmark', '')}, {len(first)} seeds, %, mean ± std"
    return Table(title, ["", *groups], rows)


def _seeds(groups: dict[str, list[Finished]]) -> Table:
    seeds = sorted({run.seed for group in groups.values() for run in group})
    rows = []
    for key in _known(groups, SEEDS):
        for seed in seeds:
            found = [[r.result[key] for r in g if r.seed == seed] for g in groups.values()]
            cells = [_percent(f[0]) if f else "" for f in found]
            rows.append([f"{MEASURES[key]}, seed {seed}", *cells])
    return Table("every seed, %", ["", *groups], rows)


def _pairs(groups: dict[str, list[Finished]]) -> tuple[Table, list[str]]:
    pairs = {m: split_method(m)[0] for m in groups}
    pairs = {m: base for m, base in pairs.items() if base != m and base in groups}
    rows, sentences = [], []
    for key in _known(groups, PAIRED):
        row = [MEASURES[key]]
        for method, base in pairs.items():
            partner = {run.seed: run.result[key] for run in groups[base]}
            both = [run for run in groups[method] if run.seed in partner]
            differences = [100 * (run.result[key] - partner[run.seed]) for run in both]
            row.append(_interval(differences))
            if key == "accuracy":
                sentences.append(_sentence(method, base, differences))
        rows.append(row)
    head = ["", *(f"{method} - {base}" for method, base in pairs.items())]
    title = "matched differences in points, mean and 95 % t interval over seeds"
    return Table(title, head, rows if pairs else []), sentences


def _sentence(method: str, base: str, differences: list[float]) -> str:
    n = len(differences)
    if n < 2:
        return f"{method} against {base}: one seed says nothing about a difference."
    low, high = t_interval(differences)
    says = (
        f"{method} against {base}: accuracy {mean(differences):+.1f} points over {n} matched seeds"
    )
    if low <= 0 <= high:
        return f"{says}; the interval {low:+.1f} to {high:+.1f} includes zero, so nothing is shown."
    word = "gain" if low > 0 else "loss"
    few = "" if n >= 5 else f", though {n} seeds are few"
    return f"{says}; the interval {low:+.1f} to {high:+.1f} excludes zero: a {word}{few}."


def _costs(groups: dict[str, list[Finished]]) -> Table:
    sizes = [group[0].result["bytes"] for group in groups.values()]
    rows = [[name, *(_bytes(size[name]) for size in sizes)] for name in ("images", "maps", "model")]
    for name, key, scale in (("ms a step", "seconds_a_step", 1000), ("s a run", "seconds", 1)):
        times = [mean(run.result[key] for run in group) for group in groups.values()]
        rows.append([name, *(f"{scale * t:.1f}" for t in times)])
    return Table("memory and time", ["", *groups], rows)


def _percent(value: Any) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return f"{100 * values[0]:.1f}"
    return f"{100 * mean(values):.1f} ± {100 * stdev(values):.1f}"


def _interval(differences: list[float]) -> str:
    low, high = t_interval(differences)
    if math.isnan(low):
        return f"{differences[0]:+.1f}"
    return f"{mean(differences):+.1f} [{low:+.1f}, {high:+.1f}]"


def _bytes(size: int) -> str:
    return f"{size / 1024:.0f} kB" if size < 10 * 1024**2 else f"{size / 1024**2:.0f} MB"
