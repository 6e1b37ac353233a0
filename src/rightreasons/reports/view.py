"""The page: a book of runs as the plain values that the template shows."""

from __future__ import annotations

import base64
import io
import json
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import yaml
from numpy.typing import NDArray

from rightreasons import __version__
from rightreasons.config import benchmarks
from rightreasons.reports import charts, curves, plots
from rightreasons.reports.beside import beside
from rightreasons.reports.command import command
from rightreasons.reports.evolution import Gallery, Look, Picture, gallery
from rightreasons.reports.read import Book, Group, RunData
from rightreasons.tables import every, sentences

TITLE = "Does it still look at the right thing?"
MATRICES = {
    "class": "R, all classes seen",
    "task": "R, within the task",
    "top5": "R, top-5",
    "pointing": "peak on the object",
}
LARGE = 8000  # bytes of a picture
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
    going_on = any(not run.finished for run in book.runs)
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
        "matrices": _matrices(found),
        "evolution": _evolution(seen) if seen else None,
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
        found = json.loads(path.read_text("utf-8"))
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
    first = next(iter(measures))
    return {
        "id": name,
        "measures": measures,
        "alt": _alt(found, first),
        "spec": charts.curves(found, list(measures)) if interactive else None,
        "picture": "" if interactive else _svg(plots.draw_curves(found, first)),
    }


def _alt(found: Group, measure: str) -> str:
    """The curve in words: where each method begins and ends."""
    parts = []
    for line in found.finished:
        whole = [c for run in line.finished if (c := curves.curve(run, measure)) is not None]
        if whole:
            mean = np.mean(whole, axis=0)
            parts.append(f"{line.label} from {mean[0]:.1f} to {mean[-1]:.1f}")
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
                "alt": f"Accuracy on all classes seen, per cent, at the end: {'; '.join(ends)}.",
                "spec": charts.paper_curves(part) if interactive else None,
                "picture": "" if interactive else _svg(plots.draw_beside(part)),
            }
        title = f"{part.table.title} ({part.table.label})"
        made.append({"title": title, "apart": part.apart, "chart": chart, "table": part.rows()})
    return made


def _svg(figure: Any) -> str:
    text = io.BytesIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return _data(text.getvalue(), "svg+xml")


# --- matrices and maps ---------------------------------------------------------------------------


def _matrices(found: Group) -> dict[str, Any]:
    made = []
    names: dict[str, str] = {}
    for line in found.lines:
        for run in (run for run in line.runs if run.records):
            known = {k: m for k, m in run.result.matrices.items() if k in MATRICES}
            names |= {key: MATRICES[key] for key in MATRICES if key in known}
            state = "" if run.finished else f", {run.state}"
            own = {key: _rows(matrix) for key, matrix in known.items()}
            made.append({"label": f"{line.label}, seed {run.seed}{state}", "matrices": own})
    return {"runs": made, "names": names, "colours": _colours("viridis")}


def _rows(matrix: NDArray[np.float64]) -> list[list[float | None]]:
    """The lower triangle in per cent."""
    return [
        [None if np.isnan(v) else round(100 * float(v), 1) for v in row[: k + 1]]
        for k, row in enumerate(matrix)
    ]


def _evolution(seen: Gallery) -> dict[str, Any]:
    shapes = {
        label: next(iter(next(iter(looks.values())).values())).map.shape
        for label, looks in seen.looks.items()
    }
    return {
        "seed": seen.seed,
        "tasks": seen.tasks,
        "masks": any(p.mask is not None for p in seen.pictures),
        "pictures": [_picture(picture) for picture in seen.pictures],
        "example": seen.pictures.index(seen.example),
        "shape": shapes,
        "looks": {
            label: [
                {k: _look(look) for k, look in looks.get(picture.place, {}).items()}
                for picture in seen.pictures
            ]
            for label, looks in seen.looks.items()
        },
        "colours": _colours("inferno"),
    }


def _picture(picture: Picture) -> dict[str, Any]:
    mask = None if picture.mask is None else _image(picture.mask.astype(np.uint8) * 255)
    return {
        "title": picture.title,
        "task": picture.place[0] + 1,
        "pixels": _image(picture.pixels),
        "mask": mask,
    }


def _look(look: Look) -> dict[str, Any]:
    return {
        "answer": look.answer,
        "correct": look.correct,
        "hit": look.hit,
        "map": _cells(look.map),
        "peak": _place(look.peak),
        "label_map": _cells(look.label_map),
        "label_peak": _place(look.label_peak),
    }


def _cells(values: NDArray[np.float32]) -> str:
    cells = np.clip(np.rint(255 * values), 0, 255).astype(np.uint8)
    return base64.b64encode(cells.tobytes()).decode()


def _place(peak: tuple[float, float] | None) -> list[float] | None:
    return None if peak is None else [round(share, 3) for share in peak]


def _image(pixels: NDArray[np.uint8]) -> str:
    """A data address: PNG, or JPEG where that would be large."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", optimize=True)
    if len(file.getvalue()) <= LARGE:
        return _data(file.getvalue(), "png")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=88)
    return _data(file.getvalue(), "jpeg")


def _data(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _colours(name: str) -> list[list[int]]:
    """64 colours of a map that is even in brightness."""
    from matplotlib import colormaps

    table = colormaps[name](np.linspace(0, 1, 64))[:, :3]
    return [[int(c) for c in row] for row in np.rint(255 * table)]
