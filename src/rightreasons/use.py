"""What ``rrr predict``, ``rrr explain`` and ``rrr extend`` print and draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from torch import Tensor

from rightreasons.augment import middle
from rightreasons.checkpoints import by_task
from rightreasons.errors import UserError, printable, unknown
from rightreasons.model import Explanations, Predictions, extend, load
from rightreasons.progress import Reporter
from rightreasons.tables import single

AT_ONCE = 32  # images between two bursts of lines


def show_predictions(
    run: Path, images: Sequence[Path], pictures: Path | None = None, top: int = 3
) -> None:
    """A line an image, as soon as it is known: its classes with confidence, the map's peak."""
    if top < 1:
        raise UserError(f"--top is {top}, expected at least 1")
    if pictures is not None and pictures.exists() and not pictures.is_dir():
        raise UserError(f"--pictures {pictures} is a file, expected a folder")
    model = load(run)
    if pictures is not None:
        pictures.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(images), AT_ONCE):
        some = images[first : first + AT_ONCE]
        x = model.read(list(some))
        found = model.predict(x)
        for i, image in enumerate(some):
            chances = np.exp(found.scores[i] - found.scores[i].max())
            chances /= chances.sum()
            best = np.argsort(-chances)[:top]
            words = ", ".join(f"{model.class_names[c]} {100 * chances[c]:.1f} %" for c in best)
            print(printable(f"{image}: {words}; {_looked(found, i)}"), flush=True)
            if pictures is not None:
                path = pictures / f"{first + i + 1:03d}-{image.stem}.png"
                draw(middle(x[i], model.cut), found, i, path)
    if pictures is not None:
        print(printable(f"pictures: {pictures}"))


def _looked(found: Predictions, i: int) -> str:
    if found.maps[i].max() <= 0:
        return "no place speaks for it"
    row, column = (found.peaks[i] + 0.5) / found.maps[i].shape
    across = "left" if column < 1 / 3 else "right" if column > 2 / 3 else "middle"
    down = "top" if row < 1 / 3 else "bottom" if row > 2 / 3 else "middle"
    place = down if down == across else f"{down} {across}"
    return f"looked at {100 * column:.0f} % across, {100 * row:.0f} % down ({place})"


def draw(image: Tensor, found: Predictions, i: int, path: Path) -> None:
    """The image beside itself with the map laid over it, the peak marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 2.9), layout="constrained")
    plain, overlaid = figure.subplots(1, 2)
    pixels = image.permute(1, 2, 0).numpy()
    saliency = found.maps[i]
    plain.imshow(pixels)
    overlaid.imshow(pixels.mean(2), cmap="gray", vmin=0, vmax=255)
    overlaid.imshow(saliency, cmap="inferno", alpha=0.65, vmin=0, vmax=max(saliency.max(), 1e-9))
    row, column = found.peaks[i]
    overlaid.plot(column, row, "x", color="cyan", markersize=12, markeredgewidth=2.5)
    for axis in (plain, overlaid):
        axis.set_axis_off()
    title = printable(f"{found.names[i]}  {100 * found.confidence[i]:.1f} %")
    figure.suptitle(title, parse_math=False)  # a class may be called $x$
    figure.savefig(path, dpi=110)


def explain_images(
    run: Path,
    images: Sequence[Path],
    explainers: Sequence[str],
    tasks: str = "last",
    of: str | None = None,
    target: str = "last_block",
    out: Path = Path("explain.png"),
) -> None:
    """One picture: an image a row, or one a task's checkpoint; an explainer a column."""
    if tasks not in ("last", "all") and not tasks.isdecimal():
        raise UserError(f"--tasks is {tasks!r}, expected last, all, or the number of a task")
    if out.suffix.lower() != ".png" or out.is_dir() or not out.absolute().parent.is_dir():
        raise UserError(f"--out is {out}, expected a .png file in a folder that exists")
    chosen: list[int | None] = [None if tasks in ("last", "all") else int(tasks)]
    if tasks == "all":  # a folder without checkpoints is refused by load
        chosen = list(by_task(run)) or chosen
    found = []
    with Reporter("explain", len(chosen), unit="nets") as reporter:
        for task in chosen:
            model = load(run, task=task)
            if of is not None and of not in model.class_names and tasks == "all":
                continue  # the class came later
            word = "" if task is None else f"task {task}: "
            found.append((word, model.explain(images, explainers, of, target)))
            reporter.at(word.rstrip(": "), 1, {})
    if not found:
        raise unknown("class", of, load(run).class_names)
    for i, image in enumerate(images):
        said = [f"{w}{e.names[i]} {100 * e.confidence[i]:.1f} %" for w, e in found]
        print(printable(f"{image}: {'; '.join(said)}"))
    draw_explanations(found, out, of)
    print(printable(f"picture: {out}"))


def draw_explanations(
    found: Sequence[tuple[str, Explanations]], path: Path, of: str | None = None
) -> None:
    """Maps over the grey image, side by side; each map is bright where it is largest.

    ``of`` is the class explained where that is not the predicted one.
    """
    from matplotlib.figure import Figure

    explainers = list(found[0][1].maps)
    rows = [(word, e, i) for i in range(len(found[0][1].names)) for word, e in found]
    size = (1.9 * (len(explainers) + 1), 2.15 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), len(explainers) + 1, squeeze=False)
    for (word, e, i), (plain, *others) in zip(rows, axes, strict=True):
        pixels = e.images[i].transpose(1, 2, 0)
        plain.imshow(pixels)
        said = f"{word}{_short(e.names[i])}\n{100 * e.confidence[i]:.1f} %"
        plain.set_title(said, fontsize=9, parse_math=False)  # a class may be called $x$
        for name, axis in zip(explainers, others, strict=True):
            saliency = e.maps[name][i].clip(min=0)
            # a lone pixel would hide the rest
            top = max(float(np.quantile(saliency, 0.995)), 1e-12)
            axis.imshow(pixels.mean(2), cmap="gray", vmin=0, vmax=255)
            axis.imshow(saliency, cmap="inferno", alpha=0.7, vmin=0, vmax=top)
            title = name if of is None else f"{name}\nof {_short(of)}"
            axis.set_title(title, fontsize=9, parse_math=False)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.savefig(path, dpi=110)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= 20 else f"{name[:19]}…"


def extend_run(
    run: Path, folder: Path, changes: Sequence[str], out: Path | None, skip_bad: bool = False
) -> None:
    """Learn the folder's classes and print what the longer run knows."""
    run = run.absolute()
    last = max(by_task(run), default=0)  # an extended run keeps no checkpoints of earlier tasks
    target = out or run.with_name(f"{run.name}+{last + 1}")
    if target.absolute() == run:
        raise UserError(f"--out is {out}, the run itself, which stays as it is; pass another --out")
    result = extend(run, folder, target, changes=changes, skip_bad=skip_bad)
    row = result.R[-1]
    lost = [str(i + 1) for i in range(len(row)) if np.isnan(row[i])]
    if lost:
        print(f"the test data of tasks {', '.join(lost)} was not found; their accuracy is unknown")
    Console(highlight=False).print(single(target))
