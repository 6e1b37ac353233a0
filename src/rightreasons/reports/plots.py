"""Figures that fit a paper, as plain matplotlib: nothing is shown, nothing global is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rightreasons.errors import UserError, unknown
from rightreasons.reports.beside import Beside
from rightreasons.reports.curves import CURVES, curve
from rightreasons.reports.evolution import Gallery, Look, Picture, gallery
from rightreasons.reports.read import Group, Line
from rightreasons.reports.sources import one_group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito: told apart by colour-blind readers; dashes and markers differ as well
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7F7F7F", "#E69F00", "#56B4E9")
DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 1), (1, 1), (10, 3))
MARKERS = ("o", "s", "^", "D", "v", "X", "P")
CROSS = {"marker": "x", "color": "#00E5FF", "markersize": 7, "markeredgewidth": 2.2}
WIDTH = 4.2  # inches


def plot_curves(runs: Any, measure: str = "seen") -> Figure:
    """A curve over tasks: every seed thin, the mean of each method thick.

    ``runs`` is a folder of runs, a result, or ``{method: result}``; ``measure`` is ``seen`` (what
    the paper plots), ``groups`` (of images whose task is looked for), ``top5``, ``task``,
    ``pointing``, ``cosine``, ``iou``, ``displacement``, ``cpu``, ``step``, ``seconds``, ``images``
    or ``maps``.
    """
    if measure not in CURVES:
        raise unknown("measure", measure, CURVES)
    return draw_curves(one_group(runs), measure)


def plot_evolution(
    runs: Any,
    image: tuple[int, int] | None = None,
    tasks: Sequence[int] | None = None,
    seed: int | None = None,
) -> Figure:
    """How the map of a test image moves as tasks are learned: a row a method, a column a task.

    ``image`` is (task, which of its watched images), from 1; by default the first of task 2
    (of task 1, if there are two).
    """
    found = gallery(one_group(runs), seed)
    if found is None:
        raise UserError(
            "no maps of watched images were found; they are kept by runs that have a folder, "
            "so pass run= to rr.fit, or run again with this version"
        )
    if image is None:
        return draw_evolution(found, found.example, tasks)
    chosen = [p for p in found.pictures if p.place == (image[0] - 1, image[1] - 1)]
    if not chosen:
        known = ", ".join(f"({p.place[0] + 1}, {p.place[1] + 1})" for p in found.pictures)
        raise UserError(f"image {image} is not watched; choose one of {known}")
    return draw_evolution(found, chosen[0], tasks)


def draw_curves(found: Group, measure: str = "seen") -> Figure:
    """Unfinished runs are dotted and in no mean."""
    figure, axes = _figure(WIDTH, 3.0)
    for i, line in enumerate(found.lines):
        _draw_line(axes, line, measure, i)
    _finish(axes, found.tasks, CURVES[measure].name, found.title)
    return figure


def draw_beside(found: Beside) -> Figure:
    """Ours solid, the paper's dotted, the same colour for the same cell."""
    figure, axes = _figure(WIDTH, 3.4)
    cell = 0
    for name, whose, values in found.curves():
        theirs = whose == "the paper"
        style: dict[str, Any] = {"color": COLOURS[cell % len(COLOURS)], "lw": 1.4}
        style |= {"linestyle": ":"} if theirs else {"marker": "o", "markersize": 3}
        axes.plot(range(1, len(values) + 1), values, label=plain(f"{name}, {whose}"), **style)
        cell += theirs
    tasks = max(len(values) for *_, values in found.curves())
    _finish(axes, tasks, CURVES["seen"].name, f"{found.table.title}: two protocols")
    return figure


def _finish(axes: Axes, tasks: int, name: str, title: str) -> None:
    axes.set_xlabel("tasks learned")
    axes.set_ylabel(name)
    axes.set_xticks(range(1, tasks + 1, max(1, tasks // 10)))
    axes.set_title(plain(title), fontsize=8)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7, handlelength=3)


def _draw_line(axes: Axes, line: Line, measure: str, i: int) -> None:
    colour, whole = COLOURS[i % len(COLOURS)], []
    for run in line.runs:
        values = curve(run, measure)
        if values is None:
            continue
        dotted: dict[str, Any] = {} if run.finished else {"linestyle": (0, (1, 2))}
        axes.plot(range(1, len(values) + 1), values, color=colour, alpha=0.35, lw=0.7, **dotted)
        if run.finished:
            whole.append(values)
    if whole:
        style: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "markersize": 3.5}
        style |= {"dashes": DASHES[i % len(DASHES)] or (None, None)}
        mean = np.mean(whole, axis=0)
        axes.plot(
            range(1, len(mean) + 1), mean, color=colour, lw=1.6, label=plain(line.label), **style
        )


def draw_matrix(R: Any, title: str) -> Figure:
    """The heat map of R: after task k (down) on task i (across), in per cent."""
    count = len(R)
    side = min(WIDTH, 1.4 + 0.32 * count)
    figure, axes = _figure(side + 0.5, side)
    picture = axes.imshow(100 * np.asarray(R), cmap="viridis", vmin=0, vmax=100)
    if count <= 12:
        for k in range(count):
            for i in range(k + 1):
                value = 100 * R[k][i]
                if not np.isnan(value):
                    ink = "black" if value > 60 else "white"
                    axes.text(
                        i,
                        k,
                        f"{np.floor(value + 0.5):.0f}",
                        ha="center",
                        va="center",
                        color=ink,
                        fontsize=6,
                    )
    ticks = range(0, count, max(1, count // 10))
    axes.set_xticks(ticks, [str(t + 1) for t in ticks])
    axes.set_yticks(ticks, [str(t + 1) for t in ticks])
    axes.set_xlabel("accuracy on task")
    axes.set_ylabel("after task")
    axes.set_title(plain(title), fontsize=8)
    bar = figure.colorbar(picture, ax=axes, shrink=0.85)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("%", fontsize=8)
    return figure


def draw_evolution(
    found: Gallery, picture: Picture, tasks: Sequence[int] | None = None, most: int = 6
) -> Figure:
    """The paper's figure: rows by method, columns by task, correct or incorrect above each map."""
    after = [k for k in range(picture.place[0] + 1, found.tasks + 1)]
    if tasks is not None:
        wrong = [k for k in tasks if k not in after]
        if wrong:
            raise UserError(f"task {wrong[0]} has no map of this image; choose from {after}")
        after = list(tasks)
    elif len(after) > most:
        after = [after[round(i * (len(after) - 1) / (most - 1))] for i in range(most)]
    labels = [label for label in found.looks if picture.place in found.looks[label]]
    figure, grid = _figure(
        1.1 * len(after) + 1.3, 1.25 * len(labels) + 0.45, len(labels), len(after) + 1
    )
    for row, label in zip(grid, labels, strict=True):
        row[0].imshow(picture.pixels)
        row[0].set_ylabel(plain(label), fontsize=8)
        looks = found.looks[label][picture.place]
        for k, axes in zip(after, row[1:], strict=True):
            if k in looks:
                overlay(axes, picture, looks[k])
                axes.set_title("correct" if looks[k].correct else "incorrect", fontsize=7)
    for axes, name in zip(grid[-1], ["image", *(f"after task {k}" for k in after)], strict=True):
        axes.set_xlabel(name, fontsize=7)
    for axes in grid.flat:
        _bare(axes)
    figure.suptitle(plain(picture.title), fontsize=8)
    return figure


def draw_pointing(picture: Picture, label: str, look: Look, task: int) -> Figure:
    """One turn of the pointing game: the map over the image, and its peak on the object's mask."""
    figure, grid = _figure(WIDTH, 2.4, 1, 2)
    left, right = grid[0]
    overlay(left, picture, look)
    assert picture.mask is not None
    right.imshow(picture.mask, cmap="gray", vmin=0, vmax=1)
    _cross(right, picture, look, {**CROSS, "color": "#D00000"})
    left.set_title(f"{plain(label)} after task {task}: {plain(look.answer)}", fontsize=7)
    right.set_title("hit" if look.hit else "miss", fontsize=7)
    for axes in (left, right):
        _bare(axes)
    return figure


def overlay(axes: Axes, picture: Picture, look: Look) -> None:
    """The map over the grey image, its peak marked."""
    height, width = picture.pixels.shape[:2]
    axes.imshow(picture.pixels.mean(2), cmap="gray", vmin=0, vmax=255)
    axes.imshow(
        look.map,
        cmap="inferno",
        alpha=0.6,
        vmin=0,
        vmax=1,
        interpolation="bilinear",
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
    )
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)
    _cross(axes, picture, look, CROSS)


def _cross(axes: Axes, picture: Picture, look: Look, style: dict[str, Any]) -> None:
    if look.peak is not None:
        height, width = picture.pixels.shape[:2]
        axes.plot(look.peak[1] * width - 0.5, look.peak[0] * height - 0.5, **style)


def _figure(width: float, height: float, rows: int = 0, columns: int = 0) -> tuple[Figure, Any]:
    """A figure with one axes, or with a grid of them; pyplot would keep it alive."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if rows:
        return figure, figure.subplots(rows, columns, squeeze=False)
    axes = figure.subplots()
    axes.tick_params(labelsize=7)
    axes.xaxis.label.set_fontsize(8)
    axes.yaxis.label.set_fontsize(8)
    return figure, axes


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def plain(text: str) -> str:
    """Text as it is: a dollar sign would start mathematics."""
    return text.replace("$", r"\$")
