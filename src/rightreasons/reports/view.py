"""The page: a book of runs as the plain values that the template shows."""

from __future__ import annotations

import io
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import yaml

from rightreasons import __version__
from rightreasons.config import benchmarks
from rightreasons.reports import charts, curves, plots
from rightreasons.reports.beside import beside
from rightreasons.reports.command import command
from rightreasons.reports.evolution import Gallery, gallery
from rightreasons.reports.payload import address, evolution, matrices
from rightreasons.reports.read import Book, Group, RunData
from rightreasons.runfiles import contents, load_json
from rightreasons.tables import every, sentences

TITLE = "Does it still look at the right thing?"
REFRESH = 30  # seconds between two openings of a page that is still being written


def page(book: Book, paper: bool = False, follow: bool = False) -> str:
    """The whole HTML file as text."""
    files = resources.files("rightreasons.reports") / "page"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {}  # methods in their order, not by the alphabet
    template = environment.from_string((files / "page.html").read_text("utf-8"))
    interactive = charts.available()
    groups = [_group(group, i, paper, interactive) for i, group in enumerate(book.groups)]
    problems = [*book.problems, *(p for group in groups for p in group["map_problems"])]
    going_on = any(not (run.finished or run.problem) for run in book.runs)
    return template.render(
        title=TITLE,
        summary=_summary(book),
        problems=problems,
        groups=groups,
        version=__version__,
        refresh=REFRESH if follow and going_on else 0,
        css=(files / "page.css").read_text("utf-8"),
        script=(files / "page.js").read_text("utf-8"),
        runtime=charts.runtime() if interactive else "",
    )


def _summary(book: Book) -> str:
    done = sum(run.finished for run in book.runs)
    what = "1 benchmark" if len(book.groups) == 1 else f"{len(book.groups)} benchmarks"
    some = "all finished" if done == len(book.runs) else f"{done} finished"
    many = "1 run" if len(book.runs) == 1 else f"{len(book.runs)} runs"
    return f"{many} of {what}, {some}. Runs of different benchmarks are never averaged together."


def _group(found: Group, index: int, paper: bool, interactive: bool) -> dict[str, Any]:
    name = f"g{index + 1}"
    unfinished = [run for run in found.runs if not run.finished]
    seen = gallery(found)
    beside_ = _beside(found, name, interactive) if paper else []
    blocks = _blocks(found, name)
    return {
        "id": name,
        "title": found.title,
        "about": str(benchmarks().get(found.benchmark, {}).get("about", "")),
        "unfinished": _unfinished(unfinished),
        "sentences": sentences(found),
        "tables": {"pairs": None, "final": None, "seen": None, "pointing": None, "drift": None,
                   "costs": None, **every(found)},
        "anchors": _anchors(blocks),
        "legend": _legend(found),
        "charts": {
            key: _chart(found, f"{name}-{key}", names, interactive)
            for key, names in (
                ("accuracy", curves.ACCURACY),
                ("drift", curves.DRIFT),
                ("costs", curves.COSTS),
            )
        },
        "matrices": matrices(found),
        "evolution": evolution(seen) if seen else None,
        "no_maps": _no_maps(found, seen),
        "map_problems": seen.problems if seen else [],
        "paper": beside_,
        "no_paper": "" if beside_ or not paper else (
            "No table of the paper has the cells of these runs: the benchmark, the method or the "
            "net is another one. rrr list --paper prints what reproduces each cell."
        ),
        "blocks": blocks,
    }  # fmt: skip


def _unfinished(runs: list[RunData]) -> str:
    if not runs:
        return ""
    some = ", ".join(f"{run.name} ({run.state})" for run in runs)
    return f"Not finished, and so in no mean and no pair: {some}."


def _no_maps(found: Group, seen: Gallery | None) -> str:
    if seen is None:
        return (
            "These runs kept no maps of watched images: they were made by an older version or "
            "have not ended a task. Run again to get them."
        )
    if seen.missing:
        return f"Without maps of these images: {', '.join(seen.missing)}."
    return ""


# --- runs and where they lead --------------------------------------------------------------------


def _blocks(found: Group, name: str) -> list[dict[str, Any]]:
    blocks = []
    for i, line in enumerate(found.lines):
        runs = [_run(run, f"{name}-m{i + 1}-r{j + 1}") for j, run in enumerate(line.runs)]
        blocks.append({"id": f"{name}-m{i + 1}", "label": line.label, "runs": runs})
    return blocks


def _run(run: RunData, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "name": run.name,
        "seed": run.seed,
        "state": run.state,
        "command": command(run.config),
        "config": yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True, width=100),
        "environment": _environment(run),
    }


def _environment(run: RunData) -> str:
    path = run.folder / "environment.json" if run.folder else None
    if path is None or not path.exists():
        return ""
    try:
        found = load_json(contents(path).decode())
    except ValueError:
        return "environment.json is damaged"
    return ", ".join(f"{k} {v}" for k, v in found.items()) if isinstance(found, dict) else ""


def _anchors(blocks: list[dict[str, Any]]) -> dict[str, str]:
    """What a table's row links to, by the names that tables use."""
    lines = {f"line-{block['label']}": block["id"] for block in blocks}
    return lines | {f"run-{run['name']}": run["id"] for b in blocks for run in b["runs"]}


# --- charts --------------------------------------------------------------------------------------


def _legend(found: Group) -> list[dict[str, str]]:
    return [
        {
            "label": line.label,
            "colour": plots.COLOURS[i % len(plots.COLOURS)],
            "dashes": " ".join(map(str, plots.DASHES[i % len(plots.DASHES)])),
        }
        for i, line in enumerate(found.lines)
    ]


def _chart(found: Group, name: str, names: tuple[str, ...], interactive: bool) -> dict[str, Any]:
    measures = charts.measures(found, names) or {names[0]: curves.CURVES[names[0]].name}
    drawn = [] if interactive else [_svg(plots.draw_curves(found, key)) for key in measures]
    return {
        "id": name,
        "measures": measures,
        "alts": [_alt(found, key) for key in measures],
        "spec": charts.curves(found, list(measures)) if interactive else None,
        "pictures": drawn,
    }


def _alt(found: Group, measure: str) -> str:
    """The curve in words: where each method begins and ends."""
    parts = []
    for line in found.finished:
        whole = curves.of_line(line, measure)
        if whole:
            mean = np.mean(whole, axis=0)
            known = mean[np.isfinite(mean)]  # the first task may be another run's
            ends = f"from {known[0]:.1f} to {known[-1]:.1f}" if len(known) else "unknown"
            parts.append(f"{line.label} {ends}")
    return f"{curves.CURVES[measure].name} over {found.tasks} tasks, means: {'; '.join(parts)}."


def _beside(found: Group, name: str, interactive: bool) -> list[dict[str, Any]]:
    made = []
    for i, part in enumerate(beside(found)):
        chart = None
        if part.curves():
            ends = [f"{label}, {whose}, {values[-1]:.1f}" for label, whose, values in part.curves()]
            chart = {
                "id": f"{name}-paper-{i + 1}",
                "measures": {},
                "alts": [f"Accuracy on all classes seen, %, at the end: {'; '.join(ends)}."],
                "spec": charts.paper_curves(part) if interactive else None,
                "pictures": [] if interactive else [_svg(plots.draw_beside(part))],
            }
        title = f"{part.table.title} ({part.table.label})"
        made.append({"title": title, "apart": part.apart, "chart": chart, "table": part.rows()})
    return made


def _svg(figure: Any) -> str:
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return address(text.getvalue(), "svg+xml")
