"""Tables of runs: every seed, mean and deviation, matched differences and their intervals.

Each is a function of a `Group`: methods or runs in rows, measures in columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Group as RichGroup
from rich.console import RenderableType
from rich.text import Text

from rightreasons.metrics import groups
from rightreasons.reports.measures import (
    MEASURES,
    cell,
    interval,
    measure,
    size,
    spread,
)
from rightreasons.reports.read import Group, Line, group, read_run
from rightreasons.reports.table import Table
from rightreasons.stats import t_interval

ACCURACY = (
    *("accuracy", "first", "later", "harmonic", "ACC", "average"),
    *("LA", "bwt", "forgetting", "top5"),
    "task_aware_accuracy",
)
POINTING = ("PG-ACC", "PG-BWT", "Pr_ii", "Pr_Ti", "Re_ii", "Re_Ti", "share")
POINTING_TASK = tuple(f"{key}_task" for key in POINTING[:6])
DRIFT = ("drift_cosine", "drift_iou", "drift_displacement")
PAIRED = (
    *("accuracy", "average", "LA", "bwt", "forgetting"),
    *("PG-ACC", "share", "drift_cosine"),
)
SEEDS = ("accuracy", "average", "forgetting", "PG-ACC")


# --- what rrr run and rrr compare print ----------------------------------------------------------


def single(folder: Path) -> RenderableType:
    """The numbers of one run."""
    run = read_run(folder)
    keys = [*groups(run.numbers), *MEASURES]
    rows = [[measure(key).name, cell(key, run.numbers.get(key))] for key in keys]
    rows = [row for row in rows if row[1]]
    rows += [["images", size(run.numbers["bytes"]["images"])]]
    rows += [["maps", size(run.numbers["bytes"]["maps"])]]
    rows += [["seconds a step", f"{run.numbers['seconds_a_step']:.3f}"]]
    return Table(f"{run.method} seed {run.seed}: {folder}", ["measure", "value"], rows).rich()


def compared(folders: Sequence[Path]) -> RenderableType:
    made, sentences = tables(folders)
    return RichGroup(*(t.rich() for t in made), *(Text(sentence) for sentence in sentences))


def markdown(folders: Sequence[Path]) -> str:
    made, sentences = tables(folders)
    return "\n".join([*(t.markdown() for t in made), *(f"- {s}" for s in sentences), ""])


def tables(folders: Sequence[Path]) -> tuple[list[Table], list[str]]:
    """All tables of matched runs, and a sentence for each difference; methods in columns, and
    where every run is shown, runs in rows: there may be many."""
    made: list[Table] = []
    said: list[str] = []
    for found in group(read_run(folder) for folder in folders).groups:
        parts = [means(found).turned(), pairs(found).turned(), seeds(found), costs(found).turned()]
        made += [table for table in parts if table.rows and len(table.head) > 1]
        said += sentences(found)
    return made, said


# --- one table each ------------------------------------------------------------------------------


def known(found: Group, keys: Sequence[str]) -> list[str]:
    """Measures that a finished run has; beside accuracy, those by groups. Some, such as a ratio
    without a denominator, may be undefined in a few runs."""
    every = [run.numbers for line in found.finished for run in line.finished]
    have = [key for key in keys if any(n.get(key) is not None for n in every)]
    some = groups(key for numbers in every for key in numbers) if "accuracy" in have else []
    return [*have[:1], *some, *have[1:]] if have[:1] == ["accuracy"] else have


def masked(found: Group) -> bool:
    """Has every finished run played the pointing game?"""
    runs = [run for line in found.finished for run in line.finished]
    return bool(runs) and all("PG-images" in run.numbers for run in runs)


def values(line: Line, key: str) -> list[float]:
    """Of a method's finished runs, if they have it."""
    found = [run.numbers.get(key) for run in line.finished]
    return [value for value in found if value is not None]


def _single(found: Group) -> str:
    """What accuracy means for learners that are tested by groups too."""
    names = [line.label for line in found.finished if groups(line.finished[0].numbers)]
    if not names:
        return ""
    return (
        f"{', '.join(names)} look for the image's task first: p=20, say, by 20 test images that "
        "are known to be of one task; p=1, and all that does not name p, by the image alone."
    )


def means(found: Group, keys: Sequence[str] = tuple(MEASURES), what: str = "") -> Table:
    """Mean and deviation over seeds."""
    keys = known(found, keys)
    rows = [
        [line.label, *(spread(key, values(line, key)) for key in keys)] for line in found.finished
    ]
    counts = sorted({len(line.finished) for line in found.finished})
    many = " or ".join(map(str, counts)) + (" seed" if counts == [1] else " seeds")
    title = f"{found.title}, {what + ', ' if what else ''}{many}, %, mean ± std"
    links = [_anchor(line) for line in found.finished]
    head = ["method", *(measure(key).name for key in keys)]
    note = _single(found) if "accuracy" in keys else ""
    return Table(title, head, rows if keys else [], note, links)


def pointing(found: Group, task_aware: bool = False) -> Table:
    """The pointing game, with how many images have a mask and how many ratios are undefined."""
    keys = POINTING_TASK if task_aware else POINTING
    how = "the answer among the classes of the image's task" if task_aware else "all classes seen"
    table = means(found, keys, f"pointing game, {how}")
    suffix = "_task" if task_aware else ""
    for row, line in zip(table.rows, found.finished, strict=False):
        played = [run.numbers for run in line.finished if "PG-images" in run.numbers]
        row.insert(1, str(sum(played[0]["PG-images"])) if played else "")
        undefined = [
            str(sum(numbers[f"{ratio}_undefined{suffix}"] for numbers in played))
            for ratio in ("Pr", "Re")
        ]
        row.append(", ".join(undefined) if played else "")
    table.head = [table.head[0], "images with mask", *table.head[1:], "undefined Pr, Re"]
    return table


def seen(found: Group) -> Table:
    """Accuracy on all classes seen so far, task by task: the paper's tables."""
    rows, links = [], []
    for line in found.finished:
        for how in groups(line.finished[0].numbers) or ["class"]:
            curves = [run.result.curve(how) for run in line.finished]
            cells = [spread("accuracy", [float(c[k]) for c in curves]) for k in range(found.tasks)]
            rows.append([line.label if how == "class" else f"{line.label}, p={how[1:]}", *cells])
            links.append(_anchor(line))
    head = ["method", *(str(k + 1) for k in range(found.tasks))]
    title = f"{found.title}, accuracy on all classes seen after each task, %, mean ± std"
    return Table(title, head, rows, links=links)


def pointed(found: Group) -> Table:
    """The pointing game over all classes seen so far, task by task."""
    rows, lines = [], found.finished if masked(found) else []
    for line in lines:
        for how, name in (("class", line.label), ("task", f"{line.label}, task-aware")):
            curves = [run.result.pointing_curve(how) for run in line.finished]
            cells = [spread("PG-ACC", [float(c[k]) for c in curves]) for k in range(found.tasks)]
            rows.append([name, *cells])
    head = ["method", *(str(k + 1) for k in range(found.tasks))]
    title = f"{found.title}, peak on the object after each task, %, mean ± std"
    return Table(title, head, rows, links=[_anchor(line) for line in lines for _ in "ct"])


def seeds(found: Group, keys: Sequence[str] = SEEDS) -> Table:
    """Every finished run."""
    keys = known(found, keys)
    runs = [(line, run) for line in found.finished for run in line.finished]
    rows = [
        [f"{line.label}, seed {run.seed}", *(cell(key, run.numbers.get(key)) for key in keys)]
        for line, run in runs
    ]
    head = ["run", *(measure(key).name for key in keys)]
    links = [f"run-{run.name}" for _, run in runs]
    return Table("every seed, %", head, rows, links=links)


def pairs(found: Group, keys: Sequence[str] = PAIRED) -> Table:
    """Matched differences over the seeds that both have."""
    keys = known(found, keys)
    rows, links = [], []
    for line, base in found.pairs():
        gaps = {key: differences(line, base, key) for key in keys}
        matched = len(gaps[keys[0]]) if keys else 0
        if matched:
            rows.append([f"{line.label} - {base.label}", str(matched), *intervals(gaps, matched)])
            links.append(_anchor(line))
    head = ["difference", "seeds", *(measure(key).name for key in keys)]
    title = "matched differences in points, mean and 95 % t interval over seeds"
    return Table(title, head, rows, picked_by_net(found), links)


def intervals(gaps: Mapping[str, Sequence[float]], matched: int) -> list[str]:
    """A cell for each measure; one that is undefined in some of the matched seeds says so."""
    return [
        interval(key, of) + (f" ({len(of)} of {matched} seeds)" if 0 < len(of) < matched else "")
        for key, of in gaps.items()
    ]


def differences(line: Line, base: Line, key: str) -> list[float]:
    """Of the seeds that both have."""
    there = [{r.seed: r.numbers[key] for r in each.finished if r.numbers.get(key) is not None}
             for each in (line, base)]  # fmt: skip
    return [there[0][seed] - there[1][seed] for seed in there[0] if seed in there[1]]


def sentences(found: Group) -> list[str]:
    """What each pair shows of accuracy, plainly."""
    if not known(found, ["accuracy"]):
        return []
    said = []
    for line, base in found.pairs():
        for key in groups(line.finished[0].numbers if line.finished else ()) or ["accuracy"]:
            gaps = [100 * d for d in differences(line, base, key)]
            how = "" if key == "accuracy" else f" (p={key[1:]})"
            said += [sentence(f"{line.label}{how}", f"{base.label}{how}", gaps)] if gaps else []
    return said


ENOUGH = 5  # seeds for a claim


def is_clear(gaps: Sequence[float]) -> bool:
    """Are there enough seeds, and does their interval leave out zero?"""
    low, high = t_interval(gaps)
    return len(gaps) >= ENOUGH and low * high > 0


BY_NET = ("topic",)  # learners that pick so, whatever memory.pick says


def sentence(method: str, base: str, gaps: list[float]) -> str:
    n = len(gaps)
    if n < 2:
        return f"{method} against {base}: one seed says nothing about a difference."
    low, high = t_interval(gaps)
    says = f"{method} against {base}: accuracy {mean(gaps):+.1f} points over {n} matched seeds"
    if low <= 0 <= high:
        return f"{says}; the interval {low:+.1f} to {high:+.1f} includes zero, so nothing is shown."
    says = f"{says}; the interval {low:+.1f} to {high:+.1f} excludes zero"
    if n < ENOUGH:
        return f"{says}, but {n} seeds are few: below {ENOUGH} nothing is claimed."
    return f"{says}: a {'gain' if low > 0 else 'loss'}."


def picked_by_net(found: Group) -> str:
    """A note where the nets of a pair, which differ, choose what is remembered."""
    named = [
        line.label
        for line in found.lines
        if any(
            run.config.get("memory", {}).get("pick") == "herding"
            or run.config["method"].split("+")[0] in BY_NET
            for run in line.runs
        )
    ]
    if not named:
        return ""
    names = ", ".join(dict.fromkeys(named))  # a study has a line in several pairs
    return (
        f"Memory rows are chosen by what the net makes of images ({names}): the runs of a pair "
        "with one of them come to remember different images."
    )


def costs(found: Group) -> Table:
    """Bytes of the first run, times as means over runs. CPU time tells methods apart whatever else
    the machine did; runs of older versions have none, nor the bytes of the learner itself."""
    lines, rows = found.finished, []
    timed = any(values(line, "cpu_a_step") for line in lines)
    kinds = ["images", "maps", "model"]
    if any("learner" in line.finished[0].numbers["bytes"] for line in lines):
        kinds += ["learner"]
    for line in lines:
        runs, sizes = line.finished, line.finished[0].numbers["bytes"]
        times = [
            *([[1000 * cpu for cpu in values(line, "cpu_a_step")]] if timed else []),
            [1000 * run.numbers["seconds_a_step"] for run in runs],
            [run.numbers["seconds"] / len(run.records) for run in runs],
            [run.numbers["seconds"] for run in runs],
        ]
        cells = [size(sizes[name]) if name in sizes else "" for name in kinds]
        rows.append([line.label, *cells, *(f"{mean(t):.1f}" if t else "" for t in times)])
    clocks = [*(["ms of CPU a step"] if timed else []), "ms a step", "s a task", "s a run"]
    head = ["method", *kinds, *clocks]
    return Table("memory and time", head, rows, links=[_anchor(line) for line in lines])


SETTINGS = {  # design rule: every row says how it came about
    "net": "net.name",
    "epochs": "train.epochs",
    "batch": "train.batch",
    "replay batch": "train.replay",
    "optimiser": "train.optimiser",
    "rate": "train.lr",
    "memory rows": "memory.size",
    "a class": "memory.per_class",
}
TERM_SETTINGS = ("profile", "weight", "view", "target", "explain")


def settings(found: Group) -> Table:
    """Net, training, memory and terms of each method, and the order of classes."""
    rows = []
    for line in found.lines:
        own = line.runs[0].settings
        cells = [_word(own.get(key)) for key in SETTINGS.values()]
        terms = [
            ", ".join(
                f"{key} {_word(own[f'{term}.{key}'])}"
                for key in TERM_SETTINGS
                if own.get(f"{term}.{key}") is not None
            )
            for term in line.method.split("+")[1:]
        ]
        seeds_ = ", ".join(str(run.seed) for run in line.runs)
        rows.append([line.label, seeds_, *cells, "; ".join(terms) or "-"])
    head = ["method", "seed numbers", *SETTINGS, "terms"]
    order = found.config.get("stream", {}).get("order", "as given")
    order = "drawn by the seed" if order == "seed" else order
    note = f"Class order: {order if isinstance(order, str) else 'given by name'}."
    if any(line.runs[0].settings.get("train.replay", 0) is None for line in found.lines):
        note += " Replay batch -: as many rows as new images, where rows are replayed."
    return Table("settings", head, rows, note, [_anchor(line) for line in found.lines])


def runs(found: Group) -> Table:
    """Every run, finished or not, with how far it is."""
    rows = []
    for line in found.lines:
        for run in line.runs:
            accuracy = cell("accuracy", run.numbers.get("accuracy"))
            seconds = f"{run.numbers['seconds']:.0f}" if run.numbers else "-"
            rows.append([f"{line.label}, seed {run.seed}", run.state, accuracy or "-", seconds])
    links = [f"run-{run.name}" for run in found.runs]
    head = ["run", "state", "accuracy so far, %", "seconds"]
    return Table("every run", head, rows, links=links)


def _anchor(line: Line) -> str:
    return f"line-{line.label}"


def _word(value: Any) -> str:
    return "-" if value is None else str(value)


def every(found: Group) -> dict[str, Table]:
    """All tables of a group by the name of their file, those with nothing in them left out."""
    made = {
        "final": means(found, ACCURACY, "after the last task"),
        "pairs": pairs(found),
        "seen": seen(found),
        "seeds": seeds(found, (*SEEDS, "ACC", "bwt")),
        "pointing": pointing(found),
        "pointing-task-aware": pointing(found, True),
        "pointing-seen": pointed(found),
        "drift": means(found, DRIFT, "maps of old probe images against those after their task"),
        "costs": costs(found),
        "settings": settings(found),
        "runs": runs(found),
    }
    return {name: table for name, table in made.items() if table.rows}
