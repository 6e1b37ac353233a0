"""The page of a study: tables between markers, made from the records alone; other text is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from rightreasons.paper import paper_tables
from rightreasons.reports.measures import cell, interval, measure
from rightreasons.reports.read import Group, Line
from rightreasons.reports.table import Table
from rightreasons.runfiles import write
from rightreasons.study.picture import drawn, gaps_of
from rightreasons.study.plan import TUNING, Chosen, Row, Study
from rightreasons.study.records import Record, find_all
from rightreasons.study.tune import default_table, read_chosen
from rightreasons.study.tune import tables as tuning_tables
from rightreasons.tables import (
    DRIFT,
    ENOUGH,
    costs,
    differences,
    intervals,
    is_clear,
    known,
    masked,
    means,
    picked_by_net,
    pointed,
    pointing,
    seen,
    sentence,
)

COMPARED = (
    *("accuracy", "first", "later", "harmonic", "average", "LA", "forgetting"),
    *("PG-ACC", "PG-BWT", "Pr_Ti", "Re_Ti"),
    *("share", "drift_cosine", "drift_iou"),
)
SEEDS = ("accuracy", "average", "forgetting", "PG-ACC", "drift_cosine")
MEANS = (
    *("accuracy", "first", "later", "harmonic", "average", "LA", "bwt", "forgetting"),
    "task_aware_accuracy",
)
Rows = Mapping[str, Line]  # of a part on a benchmark, by name
Lines = dict[str, dict[str, dict[str, Line]]]  # benchmark -> part -> row
Pair = tuple[Line, Line]
SHOWN = "matched differences with 95 % intervals, filled where they leave out zero"
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"


@dataclass
class Found:
    """What the records say."""

    lines: Lines = field(default_factory=dict)
    status: list[str] = field(default_factory=list)
    """how much of each part has ended"""
    failures: list[str] = field(default_factory=list)
    """runs that diverged"""


def write_page(study: Study, records: Path, chosen: Path, page: Path) -> None:
    """Every generated section in its place; a section that the page lacks comes at its end."""
    found = _found(study, records, read_chosen(chosen))
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = _write_pictures(study, found.lines, page.parent)
    text = page.read_text("utf-8") if page.exists() else f"# {study.about}\n"
    for name, content in _sections(study, found, chosen, pictures).items():
        text = placed(text, name, content)
    if not page.exists() or page.read_text("utf-8") != text:
        write(page, text)


def _write_pictures(study: Study, lines: Lines, folder: Path) -> dict[str, str]:
    """Part -> the name of its picture, for the parts that ask for one."""
    made = {}
    for part, own in study.parts.items():
        panels = {
            benchmark: gaps
            for benchmark in study.cheap(part)
            if (gaps := gaps_of(own.figure, lines.get(benchmark, {}).get(part, {})))
        }
        if panels:
            made[part] = f"{study.name}-{part}.svg"
            write(folder / made[part], drawn(panels))
    return made


def placed(text: str, name: str, content: str) -> str:
    """The text with this content between the markers of a section."""
    begin, end = BEGIN.format(name), END.format(name)
    block = f"{begin}\n{content.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(text):
        return pattern.sub(lambda _: block, text)
    return f"{text.rstrip()}\n\n{block}\n"


def _found(study: Study, records: Path, chosen: Chosen) -> Found:
    found = Found()
    spent = 0.0
    for part in study.names:
        tuning = part.startswith(TUNING)
        ready = [] if tuning else [b for b in study.cheap(part) if _ready(study, part, chosen, b)]
        done = find_all(records, study.runs(part, chosen, ready))
        found.status.append(_status(study, part, list(done.values())))
        spent += sum(record.seconds for record in done.values()) / 3600
        if tuning:
            continue
        for run, record in done.items():
            if record.diverged:
                found.failures.append(f"- {run.label} diverged: {record.diverged}")
                continue
            rows = found.lines.setdefault(run.benchmark, {}).setdefault(part, {})
            rows.setdefault(run.row, Line(run.row, [])).runs.append(record.run)
    found.status.append(
        f"- In all {spent:.1f} hours of one core, {spent / 2:.1f} with two runs at a time, less "
        "what runs share: a first task counts in each."
    )
    return found


def _sections(
    study: Study, found: Found, chosen: Path, pictures: Mapping[str, str]
) -> dict[str, str]:
    failures = ["", *found.failures] if found.failures else []
    made = {"status": "\n".join([*found.status, *failures])}
    if chosen.exists():
        content = json.loads(chosen.read_text("utf-8"))
        tables = [*tuning_tables(study, content)]
        tables += [default_table(study, content)] if len(study.benchmarks) > 1 else []
        made["tuning"] = "\n".join(t.markdown() for t in tables if t.rows)
    for part, own in study.parts.items():
        text = [f"![{own.about}: {SHOWN}]({pictures[part]})\n"] if part in pictures else []
        text += [
            _benchmark(study, part, benchmark, found.lines[benchmark])
            for benchmark in study.cheap(part)
            if part in found.lines.get(benchmark, {})
        ]
        made[part] = "\n".join(text) if text else "No run of this part has ended yet."
    table = summary(study, found.lines)
    made["summary"] = table.markdown() if table.rows else "No run has ended yet."
    return made


def _ready(study: Study, part: str, chosen: Chosen, benchmark: str) -> bool:
    """Are the choices that a part's rows take made?"""
    made = chosen.get(benchmark, {})
    return all(row.tuned is None or row.tuned in made for row in study.rows[part].values())


def _status(study: Study, part: str, done: Sequence[Record]) -> str:
    if part.startswith(TUNING):
        planned, about = len(study.runs(part, {})), "tries of weights"
    else:
        rows, own = study.rows[part], study.parts[part]
        planned, about = len(rows) * len(own.benchmarks) * len(study.seeds_of(part)), own.about
    hours = sum(record.seconds for record in done) / 3600
    return (
        f"- `{part}` ({about}): {len(done)} of {planned} runs have ended, {hours:.1f} hours of one "
        "core by their own clocks."
    )


def summary(study: Study, lines: Lines) -> Table:
    """The final accuracy of every comparison on every benchmark."""
    benchmarks = [b for b in study.benchmarks if b in lines]
    rows = []
    for part in study.parts:
        cells: dict[str, dict[str, str]] = {}
        for benchmark in benchmarks:
            for line, base in pairs(study, part, lines[benchmark]):
                gaps = differences(line, base, "accuracy")
                label = f"{line.label} - {base.label}"
                shown = interval("accuracy", gaps)
                cells.setdefault(label, {})[benchmark] = f"**{shown}**" if is_clear(gaps) else shown
        rows += [[part, label, *(of.get(b, "") for b in benchmarks)] for label, of in cells.items()]
    title = "accuracy after the last task: matched differences in points, mean and 95 % t interval"
    note = (
        f"Bold: {ENOUGH} seeds or more, and the interval leaves out zero. Of twenty such intervals "
        "one leaves it out by chance; nothing is corrected for the number of rows."
    )
    return Table(title, ["part", "difference", *benchmarks], rows, note)


# --- one benchmark of one part -------------------------------------------------------------------


def _benchmark(study: Study, part: str, benchmark: str, found: Mapping[str, Rows]) -> str:
    rows, both = study.rows[part], pairs(study, part, found)
    mine = Group(benchmark, [found[part][name] for name in rows if name in found[part]])
    made = [compared(benchmark, rows, both), every_seed(mine), means(mine, MEANS), seen(mine)]
    if masked(mine):
        made += [pointing(mine), pointing(mine, True)]
    made += [
        pointed(mine),
        means(mine, DRIFT, "maps of old probe images against those after their task"),
    ]
    made += [costs(mine)]
    said = [f"- {s}" for s in sentences(both)]
    tables = [table.markdown() for table in made if table.rows]
    return "\n".join([f"### {benchmark}", "", *said, "", *tables])


def pairs(study: Study, part: str, found: Mapping[str, Rows]) -> list[Pair]:
    """Each row with those it is compared with, as far as there are runs of both."""
    homes = [
        (name, study.home(part, other), other)
        for name, row in study.rows[part].items()
        for other in row.against
    ]
    return [
        (found[part][name], found[home][other])
        for name, home, other in homes
        if name in found.get(part, {}) and other in found.get(home, {})
    ]


def compared(benchmark: str, rows: Mapping[str, Row], both: Sequence[Pair]) -> Table:
    """Matched differences over the seeds that both have, and the paper's gain."""
    every = [line for pair in both for line in pair]
    keys = known(Group(benchmark, every), COMPARED)
    made = []
    for line, base in both:
        gaps = {key: differences(line, base, key) for key in keys}
        matched = len(gaps[keys[0]]) if keys else 0
        if matched:
            first = rows[line.label].against[0] == base.label
            gain = paper_gain(rows[line.label], benchmark) if first else ""
            made.append(
                [f"{line.label} - {base.label}", str(matched), *intervals(gaps, matched), gain]
            )
    head = ["difference", "seeds", *(measure(key).name for key in keys), "the paper: final, mean"]
    title = f"{benchmark}: matched differences in points, mean and 95 % t interval over seeds"
    notes = [picked_by_net(Group(benchmark, every)), other_cpu(both)]
    return Table(title, head, made, " ".join(note for note in notes if note))


def other_cpu(both: Sequence[Pair]) -> str:
    """A note on pairs that two kinds of CPU have made: they round otherwise, and a net that rounds
    otherwise is another one after a task, so that what both begin with is no longer the same."""
    found = []
    for line, base in both:
        there = {run.seed: run.cpu for run in base.runs if run.cpu}  # older records do not know
        seeds = [str(r.seed) for r in line.runs if r.cpu and r.cpu != there.get(r.seed, r.cpu)]
        found += [f"{line.label} - {base.label} (seed {', '.join(seeds)})"] if seeds else []
    if not found:
        return ""
    return f"Made on two kinds of CPU, so that first tasks differ: {'; '.join(found)}."


def paper_gain(row: Row, benchmark: str) -> str:
    """The gain of the paper's own row, after the last task and as a mean over tasks."""
    if benchmark not in row.paper:
        return ""
    key, name, base = row.paper[benchmark]
    table = next(table for table in paper_tables() if table.key == key)
    values = {row.name: row.mean for row in table.rows}
    gaps = [a - b for a, b in zip(values[name], values[base], strict=True)]
    return f"{gaps[-1]:+.1f}, {mean(gaps):+.1f} ({name} - {base}, {table.title})"


def every_seed(found: Group) -> Table:
    """The numbers of each run, in the order of seeds."""
    keys = known(found, SEEDS)
    seeds = sorted({run.seed for run in found.runs})
    rows = []
    for line in found.lines:
        by_seed = {run.seed: run.numbers for run in line.runs}
        cells = [
            " ".join(cell(key, by_seed.get(s, {}).get(key)) or "-" for s in seeds) for key in keys
        ]
        rows.append([line.label, *cells])
    head = ["row", *(measure(key).name for key in keys)]
    said = ", ".join(map(str, seeds))
    return Table(f"{found.title}: every seed ({said}), %", head, rows)


def sentences(both: Sequence[Pair]) -> list[str]:
    """What each difference shows of the final accuracy, plainly."""
    said = []
    for line, base in both:
        gaps = [100 * gap for gap in differences(line, base, "accuracy")]
        if gaps:
            said.append(sentence(line.label, base.label, gaps))
    return said
