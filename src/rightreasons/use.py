"""What ``rrr predict`` and ``rrr extend`` print and draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from torch import Tensor

from rightreasons.augment import middle
from rightreasons.checkpoints import checkpoints
from rightreasons.data.splits import read_all
from rightreasons.errors import UserError, printable
from rightreasons.model import Predictions, extend, load
from rightreasons.tables import single


def show_predictions(
    run: Path, images: Sequence[Path], pictures: Path | None = None, top: int = 3
) -> None:
    """A line an image: its classes with confidence, and the peak of the map."""
    if top < 1:
        raise UserError(f"--top is {top}, expected at least 1")
    model = load(run)
    found = model.predict(list(images))
    for i, image in enumerate(images):
        chances = np.exp(found.scores[i] - found.scores[i].max())
        chances /= chances.sum()
        best = np.argsort(-chances)[:top]
        words = ", ".join(f"{model.class_names[c]} {100 * chances[c]:.1f} %" for c in best)
        print(printable(f"{image}: {words}; {_looked(found, i)}"))
    if pictures is not None:
        if pictures.exists() and not pictures.is_dir():
            raise UserError(f"--pictures {pictures} is a file, expected a folder")
        pictures.mkdir(parents=True, exist_ok=True)
        for i, image in enumerate(images):
            path = pictures / f"{i + 1:03d}-{image.stem}.png"
            pixels = middle(read_all([image], model.size[0])[0], model.cut)
            draw(pixels, found, i, path)
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


def extend_run(run: Path, folder: Path, out: Path | None) -> None:
    """Learn the folder's classes and print what the longer run knows."""
    run = run.absolute()
    target = out or run.with_name(f"{run.name}+{len(checkpoints(run)) + 1}")
    result = extend(run, folder, target)
    row = result.R[-1]
    lost = [str(i + 1) for i in range(len(row)) if np.isnan(row[i])]
    if lost:
        print(f"the test data of tasks {', '.join(lost)} was not found; their accuracy is unknown")
    Console(highlight=False).print(single(target))
