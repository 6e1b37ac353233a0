"""Vega-Lite charts of the page, made with Altair; and the runtime that draws them without network.

Both come with the extra ``report``. Without it the page has the same curves as plain pictures.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from rightreasons.reports.beside import Beside
from rightreasons.reports.curves import CURVES, curve
from rightreasons.reports.plots import COLOURS, DASHES
from rightreasons.reports.read import Group

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "stroke")
NEEDED = ("altair", "vl_convert")
MISSING = (
    "the curves of the page are plain pictures; pip install 'rightreasons[report]' makes them "
    "interactive"
)


def available() -> bool:
    return all(importlib.util.find_spec(name) for name in NEEDED)


@cache
def runtime() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, of the version that Altair writes for."""
    import altair
    import vl_convert

    version = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    return str(script).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def rows(found: Group, measures: Sequence[str]) -> list[dict[str, Any]]:
    """Long form: method m, seed s, task k, measure q, value v, finished f."""
    made: list[dict[str, Any]] = []
    for line in found.lines:
        for run in line.runs:
            for measure in measures:
                for k, value in enumerate(curve(run, measure) or ()):
                    if np.isfinite(value):
                        own = {"m": line.label, "s": run.seed, "k": k + 1, "q": measure}
                        made.append(own | {"v": round(value, 2), "f": int(run.finished)})
    return made


def curves(found: Group, measures: Sequence[str]) -> dict[str, Any]:
    """Every seed thin, the mean thick; signals ``shown`` and ``measure`` choose what is drawn."""
    import altair as alt

    labels = [line.label for line in found.lines]
    shown = alt.param(name="shown", value=labels)
    measure = alt.param(name="measure", value=measures[0])
    chosen = "indexof(shown, datum.m) >= 0 && datum.q == measure"
    data = alt.NamedData(name="rows")
    x = alt.X("k:Q", title="tasks learned", axis=_whole(found.tasks), scale=_span(found.tasks))
    y = alt.Y("v:Q", title=None, scale=alt.Scale(zero=True))
    colour = alt.Color("m:N", legend=None, scale=_scale(labels, COLOURS))
    tip = [
        alt.Tooltip("m:N", title="method"),
        alt.Tooltip("k:Q", title="tasks learned"),
        alt.Tooltip("v:Q", title="value", format=".1f"),
    ]
    seeds = (
        alt.Chart(data)
        .transform_filter(chosen)
        .mark_line(opacity=0.55, strokeWidth=1)
        .encode(x, y, colour, detail="s:N", tooltip=[*tip, alt.Tooltip("s:N", title="seed")])
    )
    averaged = (
        alt.Chart(data)
        .transform_filter(f"{chosen} && datum.f == 1")
        .transform_aggregate(v="mean(v)", groupby=["m", "k"])
    )
    dash = alt.StrokeDash(
        "m:N", legend=None, scale=_scale(labels, [list(d or (1, 0)) for d in DASHES])
    )
    shape = alt.Shape("m:N", legend=None, scale=_scale(labels, SHAPES))
    mean = averaged.mark_line(strokeWidth=2.5).encode(x, y, colour, dash)
    points = averaged.mark_point(filled=True, size=55, opacity=1).encode(
        x, y, colour, shape, tooltip=tip
    )
    chart = alt.layer(seeds, mean, points).add_params(shown, measure)
    return _plain(chart, rows(found, measures))


def paper_curves(found: Beside) -> dict[str, Any]:
    """Ours solid, the paper's dotted, the same colour for the same cell."""
    import altair as alt

    pairs = found.curves()
    colours, made = {}, []
    cell = 0
    for name, whose, values in pairs:
        label = f"{name}, {whose}"
        colours[label] = COLOURS[cell % len(COLOURS)]
        cell += whose == "the paper"
        made += [{"m": label, "w": whose, "k": k + 1, "v": v} for k, v in enumerate(values)]
    tasks = max(len(values) for *_, values in pairs)
    x = alt.X("k:Q", title="tasks learned", axis=_whole(tasks), scale=_span(tasks))
    y = alt.Y("v:Q", title="%", scale=alt.Scale(zero=True))
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    legend = alt.Legend(title=None, orient="bottom", columns=2, labelLimit=300)
    dashes = alt.Scale(domain=["ours", "the paper"], range=[[1, 0], [2, 3]])
    base = alt.Chart(alt.NamedData(name="rows")).encode(
        x,
        y,
        alt.Color("m:N", scale=scale, legend=legend),
        alt.StrokeDash("w:N", scale=dashes, legend=alt.Legend(title=None, orient="bottom")),
        tooltip=["m:N", "k:Q", alt.Tooltip("v:Q", format=".1f")],
    )
    return _plain(base.mark_line(strokeWidth=2, point=True), made)


def _whole(tasks: int) -> Any:
    import altair as alt

    return alt.Axis(values=list(range(1, tasks + 1, max(1, tasks // 10))), format="d", grid=False)


def _span(tasks: int) -> Any:
    import altair as alt

    return alt.Scale(domain=[1, max(tasks, 2)], nice=False, padding=12)


def _scale(labels: list[str], values: Sequence[Any]) -> Any:
    import altair as alt

    return alt.Scale(domain=labels, range=[values[i % len(values)] for i in range(len(labels))])


def _plain(chart: Any, values: list[dict[str, Any]]) -> dict[str, Any]:
    """The specification, as wide as the page lets it be; colours of ink are the page's.

    The values join it last: Altair would check each of them against its schema.
    """
    made: dict[str, Any] = (
        chart.properties(width="container", height=300, background="transparent")
        .configure_view(stroke=None)
        .configure_axis(labelFontSize=12, titleFontSize=12, titleFontWeight="normal")
        .to_dict()
    )
    return made | {"datasets": {"rows": values}}


def measures(found: Group, names: Sequence[str]) -> dict[str, str]:
    """The curves that a run of the group has, with their names."""
    return {
        name: CURVES[name].name
        for name in names
        if any(curve(run, name) is not None for run in found.runs)
    }
