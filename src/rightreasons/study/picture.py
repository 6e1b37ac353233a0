"""The picture of a part: matched differences with their t intervals, a panel for each benchmark."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from rightreasons.reports.plots import COLOURS, plain
from rightreasons.reports.read import Line
from rightreasons.stats import t_interval
from rightreasons.tables import differences, is_clear

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLEAR, OPEN = COLOURS[0], COLOURS[4]
Gaps = Mapping[str, Sequence[float]]  # what is compared -> points, a number for each seed


def gaps_of(
    figure: Mapping[str, Sequence[str]], rows: Mapping[str, Line]
) -> dict[str, list[float]]:
    """The differences of final accuracy that a part's ``figure`` asks for, as far as there are runs
    of both, from two seeds on."""
    found = {}
    for base, names in figure.items():
        for name in names:
            if base in rows and name in rows:
                gaps = [100 * gap for gap in differences(rows[name], rows[base], "accuracy")]
                if len(gaps) > 1:
                    found[f"{name} - {base}"] = gaps
    return found


def drawn(panels: Mapping[str, Gaps]) -> str:
    """The picture as SVG, the same text for the same numbers."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "rightreasons"}):
        draw(panels).savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def draw(panels: Mapping[str, Gaps]) -> Figure:
    """A row for each difference: its mean, its interval, and a tick for every seed."""
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(label for gaps in panels.values() for label in gaps))
    size = (2.2 + 2.1 * len(panels), 0.9 + 0.2 * len(labels))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (benchmark, gaps) in zip(grid, panels.items(), strict=True):
        _panel(axes, [gaps.get(label) for label in labels])
        axes.set_title(plain(benchmark), fontsize=8)
        axes.set_xlabel("points of final accuracy", fontsize=7)
    grid[0].set_yticks(range(len(labels)), [plain(label) for label in labels])
    grid[0].set_ylim(len(labels) - 0.4, -0.6)
    return figure


def _panel(axes: Axes, rows: Sequence[Sequence[float] | None]) -> None:
    axes.axvline(0, color="black", lw=0.7)
    for place, gaps in enumerate(rows):
        if gaps is None:
            continue
        low, high = t_interval(gaps)
        clear = is_clear(gaps)
        style: dict[str, Any] = {"color": CLEAR if clear else OPEN}
        axes.plot([low, high], [place, place], lw=1.6, **style)
        axes.plot(mean(gaps), place, "o", ms=5, mfc=style["color"] if clear else "white", **style)
        axes.plot(gaps, [place + 0.28] * len(gaps), "|", ms=3.5, alpha=0.7, **style)
    axes.tick_params(labelsize=7, length=2)
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
