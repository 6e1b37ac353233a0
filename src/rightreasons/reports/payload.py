"""What the page's script draws, as plain values: matrices, pictures and the maps over them."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rightreasons.reports.evolution import Gallery, Look, Picture
from rightreasons.reports.read import Group

MATRICES = {
    "class": "R, all classes seen",
    "task": "R, within the task",
    "top5": "R, top-5",
    "pointing": "peak on the object",
}
LARGE = 8000  # bytes of a picture


def matrices(found: Group) -> dict[str, Any]:
    made = []
    names: dict[str, str] = {}
    for line in found.lines:
        for run in (run for run in line.runs if run.records):
            several = [key for key in run.result.groups if key != "p1"]  # which is R itself
            grouped = {key: f"R, by groups of {key[1:]}" for key in several}
            titles = {k: v for k, v in (MATRICES | grouped).items() if k in run.result.matrices}
            names |= titles
            known = {key: run.result.matrices[key] for key in titles}
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


def evolution(seen: Gallery) -> dict[str, Any]:
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
        "name": picture.name,
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
        return address(file.getvalue(), "png")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "jpeg", quality=88)
    return address(file.getvalue(), "jpeg")


def address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _colours(name: str) -> list[list[int]]:
    """64 colours of a map that is even in brightness."""
    from matplotlib import colormaps

    table = colormaps[name](np.linspace(0, 1, 64))[:, :3]
    return [[int(c) for c in row] for row in np.rint(255 * table)]
