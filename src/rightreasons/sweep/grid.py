"""``rrr sweep``: a grid over any keys of one method, and the choice among its tries.

The rule is that of `rightreasons.study.tune`: what is compared is the average accuracy on a
validation split, which is cut from the train images, as the mean over seeds. Test images are not
looked at: what was chosen is run again, by another command, to be reported.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from rightreasons.config import resolve
from rightreasons.errors import Diverged, UserError
from rightreasons.reports.table import Table
from rightreasons.runfiles import load_json, write
from rightreasons.study.plan import slug
from rightreasons.study.tune import TITLE, best, percents
from rightreasons.sweep.drive import Failures
from rightreasons.sweep.jobs import Job, prefixes
from rightreasons.sweep.one import check_interval, check_out, check_seeds, name_of
from rightreasons.sweep.place import HERE, Where

SHARE = 0.2  # of the train images, if nobody says otherwise
VALIDATION = "stream.validation"

Try = tuple[str, ...]  # key=value words, one for each key of the grid


@dataclass(frozen=True)
class Grid:
    """The words of a sweep: those of all its runs, and the values of each key that varies."""

    fixed: list[str]
    axes: dict[str, list[str]]

    @property
    def tries(self) -> list[Try]:
        words = [[f"{key}={value}" for value in values] for key, values in self.axes.items()]
        return list(product(*words))

    def at_edge(self, chosen: Try) -> list[str]:
        """Keys whose chosen value is the smallest or largest of its numbers: try further ones."""
        found = []
        for word, (key, texts) in zip(chosen, self.axes.items(), strict=True):
            with suppress(ValueError):  # words have no edge
                values = [float(text) for text in texts]
                here = float(word.partition("=")[2])
                found += [key] if here in (min(values), max(values)) else []
        return found


def read_grid(words: Sequence[str]) -> Grid:
    """``rrr.weight=1,10`` is two values; ``train.milestones=[2,4]`` is one, a list."""
    fixed: list[str] = []
    axes: dict[str, list[str]] = {}
    for word in words:
        key, _, text = word.partition("=")
        values = split(text)
        if len(values) == 1:
            fixed.append(word)
            continue
        if key in ("seed", VALIDATION):
            instead = "--seeds N" if key == "seed" else f"{VALIDATION}={SHARE}"
            raise UserError(f"{word!r} is nothing to choose among; type {instead}")
        if "" in values:
            raise UserError(f"{word!r} has an empty value; type values with commas between them")
        if key in axes or len(set(values)) < len(values):
            raise UserError(f"{word!r} names a key or a value twice; name each once")
        axes[key] = values
    if not axes:
        raise UserError(
            "rrr sweep has nothing to choose among; give a key several values, such as "
            "rrr.weight=1,10,100"
        )
    return Grid(fixed, axes)


def split(text: str) -> list[str]:
    """At commas that are not inside of brackets.

    >>> split("[1,2],{a: [3,4]},5")
    ['[1,2]', '{a: [3,4]}', '5']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def choose_in_grid(
    benchmark: str,
    method: str,
    words: Sequence[str],
    seeds: int = 3,
    out: Path | None = None,
    checkpoint: int | None = None,
    where: Where = HERE,
) -> Try:
    """Train every try with every seed, and print which is best on the validation split."""
    grid = read_grid(words)
    check_seeds(seeds)
    check_out(out)
    check_interval(checkpoint)
    configs = _configs(benchmark, method, grid, seeds)
    where.check()
    first = configs[grid.tries[0]][0]
    base = (out or Path("runs") / "sweep" / name_of(first)) / method
    jobs = _jobs(configs, base, checkpoint)
    begun = time.monotonic()
    try:
        where.run([job for some in jobs.values() for job in some])
    except Failures as failures:
        diverged = all(isinstance(error, Diverged) for error in failures.errors.values())
        if not diverged or len(failures.errors) == len(configs) * seeds:
            raise
    tries = {words: [_average(job) for job in some] for words, some in jobs.items()}
    chosen = best(tries)
    _keep(base, benchmark, method, grid, tries, chosen)
    console = Console(highlight=False)
    console.print(_table(f"{benchmark} {method}", grid, tries, chosen).rich())
    console.print(
        f"{len(tries) * seeds} runs in {time.monotonic() - begun:.0f} s: {base}; chosen on "
        f"{first['stream']['validation']:.0%} of the train images, which trained nothing; no test "
        "image was looked at",
        soft_wrap=True,
        markup=False,  # a folder may be called [v2]
    )
    for key in grid.at_edge(chosen):
        console.print(f"{key} is at the edge of what was tried: try further values", soft_wrap=True)
    left = [word for word in grid.fixed if not word.startswith((f"{VALIDATION}=", "seed="))]
    command = shlex.join(["rrr", "run", benchmark, method, *left, *chosen])
    console.print(f"test it with: {command}", soft_wrap=True, markup=False)
    return chosen


def _configs(
    benchmark: str, method: str, grid: Grid, seeds: int
) -> dict[Try, list[dict[str, Any]]]:
    """Of every try, seed by seed; each tests on a validation split."""
    plain = resolve(benchmark, method, [*grid.fixed, *grid.tries[0]])
    said = any(word.startswith(f"{VALIDATION}=") for word in grid.fixed)
    if said and not plain["stream"]["validation"]:
        raise UserError(
            f"{VALIDATION} is 0, and a sweep never chooses on test images; leave it out or type "
            f"{VALIDATION}={SHARE}"
        )
    share = [] if plain["stream"]["validation"] else [f"{VALIDATION}={SHARE}"]
    found: dict[Try, list[dict[str, Any]]] = {}
    for words in grid.tries:
        for seed in range(plain["seed"], plain["seed"] + seeds):
            all_words = [*grid.fixed, *share, *words, f"seed={seed}"]
            config = resolve(benchmark, method, all_words)
            config["train"]["threads"] = config["train"]["threads"] or 1
            found.setdefault(words, []).append(config)
    return found


def _jobs(
    configs: Mapping[Try, Sequence[dict[str, Any]]], base: Path, checkpoint: int | None
) -> dict[Try, list[Job]]:
    shared = iter(prefixes([config for some in configs.values() for config in some], base))
    return {
        words: [
            Job(
                config,
                base / slug(" ".join(words)) / str(config["seed"]),
                next(shared),
                checkpoint,
                f"{' '.join(words)} seed {config['seed']}",
            )
            for config in some
        ]
        for words, some in configs.items()
    }


def _average(job: Job) -> float:
    """Average accuracy on the validation split; 0 of a run that diverged: it is not chosen."""
    path = job.folder / "result.json"
    return float(load_json(path.read_bytes())["average"]) if path.is_file() else 0.0


def _keep(
    base: Path,
    benchmark: str,
    method: str,
    grid: Grid,
    tries: Mapping[Try, Sequence[float]],
    chosen: Try,
) -> None:
    """What was chosen, beside every number that it was chosen by."""
    content = {
        "benchmark": benchmark,
        "method": method,
        "words": grid.fixed,
        "chosen": list(chosen),
        "tries": [{"words": list(words), "average": list(n)} for words, n in tries.items()],
    }
    write(base / "chosen.json", json.dumps(content, indent=1) + "\n")


def _table(title: str, grid: Grid, tries: Mapping[Try, Sequence[float]], chosen: Try) -> Table:
    rows = [
        [*(word.partition("=")[2] for word in words), *percents(numbers)]
        + ["chosen" if words == chosen else ""]
        for words, numbers in tries.items()
    ]
    return Table(TITLE.format(title), [*grid.axes, "mean", "every seed", ""], rows)
