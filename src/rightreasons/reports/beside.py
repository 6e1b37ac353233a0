"""The paper beside ours: for the rows of the paper that a group's runs reproduce."""

from __future__ import annotations

from dataclasses import dataclass

from rightreasons.paper import ITAML, POINTING, PaperTable, Row, differences, paper_tables
from rightreasons.reports.command import words
from rightreasons.reports.curves import of_line
from rightreasons.reports.measures import spread
from rightreasons.reports.read import Group, Line
from rightreasons.reports.table import Table


@dataclass
class Beside:
    """One table of the paper, the lines that reproduce some of its rows, and what is not alike."""

    table: PaperTable
    matches: list[tuple[Line, Row]]
    apart: list[str]

    def rows(self) -> Table:
        """Ours and the paper's, line below line."""
        made, links = [], []
        for line, row in self.matches:
            for name, cells in _ours(self.table, line):
                made.append([f"{line.label}, ours{name}", *cells])
                links.append(f"line-{line.label}")
            cells = [row.cell(i) for i in range(len(self.table.columns))]
            made.append([f"{row.name}, the paper", *cells])
            links.append("")
        head = ["row", *self.table.columns]
        title = f"{self.table.title} ({self.table.label}), %, ours and the paper's"
        return Table(title, head, made, links=links)

    def curves(self) -> list[tuple[str, str, list[float]]]:
        """Label, whose, and values after each task."""
        if not self.table.over_tasks:
            return []
        found = []
        for line, row in self.matches:
            for name, how in _accuracies(self.table, line):
                whole = of_line(line, how)
                if whole:
                    values = [sum(v) / len(v) for v in zip(*whole, strict=True)]
                    found.append((f"{line.label}{name}", "ours", values))
            found.append((row.name, "the paper", list(row.mean)))
        return found


def beside(found: Group) -> list[Beside]:
    """Tables of the paper with rows that finished runs of this group reproduce."""
    made = []
    for table in paper_tables():
        if table.benchmark != found.benchmark:
            continue
        matches = [(line, row) for line in found.finished for row in table.rows if _same(line, row)]
        if matches:
            made.append(Beside(table, matches, _apart(found, table, matches)))
    return made


def _same(line: Line, row: Row) -> bool:
    """The same method, net and explainer; other settings are listed as differences."""
    settings = line.runs[0].settings
    asked = [word.split("=", 1) for word in row.words]
    return line.method == row.method and all(settings.get(key) == value for key, value in asked)


def _apart(found: Group, table: PaperTable, matches: list[tuple[Line, Row]]) -> list[str]:
    said = list(differences(found.benchmark))
    if not table.over_tasks:
        said = [*POINTING, *said]
    if any(row.method.startswith("itaml") for _, row in matches):
        said.insert(0, ITAML)
    for line, _ in matches:
        typed = [w for w in words(line.runs[0].config) or () if not w.startswith("train.threads")]
        if typed:
            said.insert(0, f"{line.label} was run with {' '.join(typed)}: not the benchmark's own.")
        if len(line.finished) != 3:
            said.insert(0, f"{line.label}: {len(line.finished)} seeds of ours, 3 of the paper's.")
    if table.over_tasks and found.tasks != len(table.columns):
        said.insert(0, f"Ours has {found.tasks} tasks, the paper's {len(table.columns)}.")
    return list(dict.fromkeys(said))


def _accuracies(table: PaperTable, line: Line) -> list[tuple[str, str]]:
    """The paper does not say which accuracy its ImageNet100 table has: both of ours are shown."""
    known = line.finished[0].result.groups
    single = ", p=1" if known else ""
    made = [(f", p={key[1:]}", "groups") for key in known[:1] if key != "p1"]
    if table.benchmark.startswith("imagenet100"):
        return [*made, (f"{single}, top-1", "seen"), (f"{single}, top-5", "top5")]
    return [*made, (single, "seen")]


def _ours(table: PaperTable, line: Line) -> list[tuple[str, list[str]]]:
    count = len(table.columns)
    if not table.over_tasks:
        ways = ((", all classes", ""), (", within the task", "_task"))
        return [
            (name, [_measure(line, f"{column}{suffix}") for column in table.columns])
            for name, suffix in ways
        ]
    found = []
    for name, how in _accuracies(table, line):
        whole = of_line(line, how)
        if whole:
            by_task = list(zip(*whole, strict=True))[:count]
            cells = [spread("accuracy", [v / 100 for v in values]) for values in by_task]
            found.append((name, [*cells, *([""] * (count - len(cells)))]))
    return found


def _measure(line: Line, key: str) -> str:
    values = [run.numbers.get(key) for run in line.finished]
    known = [value for value in values if value is not None]
    return spread(key, known) if len(known) == len(values) else ""
