"""What the scripts that choose settings have in common: tries, and tables of what came out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import harmonic_mean, mean

from rightreasons.config import resolve
from rightreasons.metrics import over_images
from rightreasons.stats import t_interval
from rightreasons.sweep import Job

SEEDS = (100, 101, 102)
Tries = Mapping[str, list[tuple[str, list[str]]]]  # of a learner: name and words of each
Made = dict[tuple[str, str, int], Job]  # learner, try, seed


def jobs(
    benchmark: str,
    out: Path,
    tries: Tries,
    shared: Mapping[str, str] | None = None,
    seeds: Iterable[int] = SEEDS,
) -> Made:
    """One run for each learner, try and seed, tested on a fifth of the train images.

    ``shared`` names the file of the first task's training that learners have in common.
    """
    made = {}
    for learner, own in tries.items():
        for name, words in own:
            typed = [*(word.format(learner) for word in words), "stream.validation=0.2"]
            for seed in seeds:
                folder = out / learner / name.replace(", ", "_").replace(" ", "-") / str(seed)
                prefix = out / f"{shared[learner]}-{seed}.pt" if shared else None
                config = resolve(benchmark, learner, typed, seed)
                made[learner, name, seed] = Job(config, folder, prefix)
    return made


def accuracy(folder: Path, how: str) -> float:
    """Percent, over all classes seen, after the last task."""
    last = json.loads((folder / "records.jsonl").read_text("utf-8").splitlines()[-1])
    return float(100 * over_images(last["accuracy"][how], last["test_images"]))


def balance(folder: Path) -> tuple[float, float, float]:
    """Percent after the last task: of the first task, of later ones, and their harmonic mean."""
    last = json.loads((folder / "records.jsonl").read_text("utf-8").splitlines()[-1])
    row, images = last["accuracy"]["class"], last["test_images"]
    first, later = 100 * row[0], float(100 * over_images(row[1:], images[1:]))
    return first, later, harmonic_mean([first, later])


def choices(
    made: Made, tries: Tries, how: Mapping[str, str], balanced: bool = False
) -> Iterator[str]:
    """Every try of every learner, and which has the highest mean over seeds.

    With ``balanced`` also how old and new classes fare, as means over seeds.
    """
    seeds = sorted({seed for _, _, seed in made})
    more = " first, later tasks | harmonic mean |" if balanced else ""
    yield f"| learner | measured | try | mean | seeds {', '.join(map(str, seeds))} |{more} |"
    yield "|---|---|---|---|---|---|" + balanced * "---|---|"
    for learner, own in tries.items():
        found = {
            name: [accuracy(made[learner, name, seed].folder, how[learner]) for seed in seeds]
            for name, _ in own
        }
        best = max(found, key=lambda name: mean(found[name]))
        for name, values in found.items():
            each = ", ".join(f"{v:.1f}" for v in values)
            mark = "chosen" if name == best else ""
            more = ""
            if balanced:
                runs = [balance(made[learner, name, seed].folder) for seed in seeds]
                first, later, both = (mean(column) for column in zip(*runs, strict=True))
                more = f" {first:.1f}, {later:.1f} | {both:.1f} |"
            said = f"| {learner} | {how[learner]} | {name} | {mean(values):.1f} | {each} |"
            yield f"{said}{more} {mark} |"


def runs_in(folder: Path) -> dict[str, dict[int, Path]]:
    """The finished runs that `rrr compare` has left: method, seed."""
    found: dict[str, dict[int, Path]] = {}
    for path in sorted(folder.glob("*/*/result.json")):
        found.setdefault(path.parts[-3], {})[int(path.parts[-2])] = path.parent
    return found


def matched(methods: Iterable[str], bases: Iterable[str]) -> list[tuple[str, str]]:
    """Each plain method beside each base, and X+term beside X."""
    methods = list(methods)
    plain = [method for method in methods if "+" not in method]
    pairs = [(method, base) for base in bases for method in plain if method != base]
    return pairs + [(method, method.partition("+")[0]) for method in methods if "+" in method]


def gap(differences: list[float]) -> str:
    """Mean and t interval; bold where the interval is clear of zero."""
    low, high = t_interval(differences)
    text = f"{mean(differences):+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{text}**" if low * high > 0 else text
