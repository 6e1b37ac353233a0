"""Writing a report: the page, ``tables/`` and ``figures/`` beside it; and following runs."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rightreasons.errors import UserError
from rightreasons.metrics import percent
from rightreasons.progress import Reporter
from rightreasons.reports import plots
from rightreasons.reports.beside import beside
from rightreasons.reports.curves import curve
from rightreasons.reports.evolution import Gallery, gallery
from rightreasons.reports.read import Book, Group, RunData, read
from rightreasons.reports.view import page
from rightreasons.runfiles import write
from rightreasons.tables import every

PAUSE = 2.0  # seconds between two looks at runs that are followed


def report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path | None = None,
    *,
    paper: bool = False,
    tensorboard: bool = False,
) -> Path:
    """Write the page of all runs below some folders, with tables and figures beside it.

    ``out`` is the page (``report.html``) or a folder for it, by default ``report`` inside the first
    folder. ``paper`` sets the paper's numbers beside ours; ``tensorboard`` also writes events.
    Returns where the page is.
    """
    folders = [runs] if isinstance(runs, (str, Path)) else list(runs)
    target = place(folders, out)
    book = read(folders)
    write_all(book, target, paper)
    if tensorboard:
        from rightreasons.reports.events import Events

        with Events(target.parent / "tensorboard") as events:
            events.add(book)
    return target


def place(folders: Sequence[str | Path], out: str | Path | None) -> Path:
    """Where the page goes."""
    if not folders:
        raise UserError("no folder of runs was given; type for example rrr report runs")
    if out is None and not Path(folders[0]).is_dir():
        raise UserError(f"{folders[0]} is not a folder; pass one that rrr run or compare wrote")
    target = Path(folders[0]) / "report" if out is None else Path(out)
    if target.suffix.lower() not in (".html", ".htm"):
        target = target / "report.html"
    blocked = next((p for p in target.parents if p.exists()), None)
    if target.is_dir() or (blocked is not None and not blocked.is_dir()):
        raise UserError(f"{target} cannot be a page: something else is there; pass another --out")
    return target


def write_all(book: Book, target: Path, paper: bool = False, follow: bool = False) -> None:
    """Tables, figures, then the page: when it is there, all is."""
    for folder in ("tables", "figures"):
        (target.parent / folder).mkdir(parents=True, exist_ok=True)
    parts = len(book.groups) + 1
    with Reporter("report", parts, show=not follow, unit="parts") as reporter:
        for name, group in zip(_names(book), book.groups, strict=True):
            tables = every(group)
            if paper:
                tables |= {f"paper-{part.table.key}": part.rows() for part in beside(group)}
            for key, table in tables.items():
                path = target.parent / "tables" / f"{name}-{key}"
                write(path.with_name(path.name + ".md"), table.markdown())
                write(path.with_name(path.name + ".tex"), table.latex())
                write(path.with_name(path.name + ".csv"), table.csv())
            for key, figure in figures(group, paper):
                reporter.at(f"{name}: {key}", 0, {})
                path = target.parent / "figures" / f"{name}-{key}"
                figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None})
                figure.savefig(path.with_name(path.name + ".png"), dpi=200)
            reporter.at(name, 1, {})
        reporter.at("page", 0, {})
        write(target, page(book, paper, follow))


def _names(book: Book) -> list[str]:
    """Names of files: letters, digits and dashes, each once."""
    made: list[str] = []
    for group in book.groups:
        made.append(slug(group.title, made))
    return made


def slug(text: str, taken: Collection[str] = (), longest: int = 60) -> str:
    """Letters, digits and dashes, and not those of another; ``runs`` if the text has none."""
    name = re.sub(r"[^A-Za-z0-9.+]+", "-", text).strip("-.")[:longest].rstrip("-.") or "runs"
    return name if name not in taken else f"{name}-{len(taken) + 1}"


def figures(group: Group, paper: bool = False) -> Iterator[tuple[str, Any]]:
    """The figures of a group by the name of their file."""
    for key, measure in (
        ("curves", "seen"),
        ("groups", "groups"),
        ("top5", "top5"),
        ("drift", "cosine"),
    ):
        if any(curve(run, measure) is not None for run in group.runs):
            yield key, plots.draw_curves(group, measure)
    names: list[str] = []
    for line in group.finished:
        run = line.finished[0]
        title = f"{line.label}, seed {run.seed}"
        names.append(slug(line.label, names))
        yield f"R-{names[-1]}", plots.draw_matrix(run.result.R, title)
    seen = gallery(group)
    if seen is not None:
        yield "evolution", plots.draw_evolution(seen, seen.example)
        yield from _pointing(seen)
    for part in beside(group) if paper else ():
        if part.curves():
            yield f"paper-{part.table.key}", plots.draw_beside(part)


def _pointing(seen: Gallery) -> Iterator[tuple[str, Any]]:
    """The example that has a mask, after the last task, for each method."""
    picture = next((p for p in [seen.example, *seen.pictures] if p.mask is not None), None)
    if picture is None:
        return
    names: list[str] = []
    for label, looks in seen.looks.items():
        after = looks.get(picture.place)
        if after:
            last = max(after)
            names.append(slug(label, names))
            yield f"pointing-{names[-1]}", plots.draw_pointing(picture, label, after[last], last)


# --- following -----------------------------------------------------------------------------------


def follow(
    folders: Sequence[str | Path],
    out: str | Path | None = None,
    paper: bool = False,
    tensorboard: bool = False,
) -> None:
    """Write the report anew whenever a task ends and say how far runs are, until all have ended."""
    target = place(folders, out)
    said: dict[str, str] = {}
    with ExitStack() as stack:
        events = None
        if tensorboard:
            from rightreasons.reports.events import Events

            events = stack.enter_context(Events(target.parent / "tensorboard"))
        written: dict[str, tuple[int, bool]] = {}
        while True:
            book = read(folders)
            for run in book.runs:
                line = standing(run)
                if said.get(run.name) != line:
                    said[run.name] = line
                    print(f"{run.name}  {line}", flush=True)
            state = {run.name: (len(run.records), run.finished) for run in book.runs}
            if events is not None:
                events.add(book)
            if state != written:
                write_all(book, target, paper, follow=True)
                if not written:
                    print(f"page: {target}, written anew as tasks end; Ctrl-C stops following")
                written = state
            if all(run.finished or run.problem for run in book.runs):
                print(f"all runs have ended; page: {target}")
                return
            time.sleep(PAUSE)


def standing(run: RunData) -> str:
    """How far a run is: its records, and the last line of its diary."""
    from rightreasons.progress import duration, last_note

    text = run.state
    if run.numbers:
        text += f", accuracy on all classes seen {percent(run.numbers['accuracy'])}"
    note = None if run.finished or run.folder is None else last_note(run.folder)
    if note is not None:
        losses = "  ".join(f"{name} {value:.3g}" for name, value in note["losses"].items())
        left = f"about {duration(note['left'])} left"
        text += f"; {note['at']}  {losses}  step {note['step']}/{note['of']}, {left}"
    return text
