"""What notebooks use: plain tables and matplotlib figures, from folders and from results."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

import rightreasons as rr
from rightreasons.config import resolve
from rightreasons.reports.curves import CURVES, curve
from rightreasons.reports.payload import matrices
from rightreasons.reports.read import read


@pytest.fixture(scope="module")
def folder(made_up, tmp_path_factory):
    base = tmp_path_factory.mktemp("notebook")
    for method in ("er", "er+rrr"):
        for seed in (0, 1):
            words = ["stream.tasks=3", "stream.classes=6"]
            config = resolve("glyphs-small", method, words, seed)
            names = ["$a$", "b", "c", "d", "e"]
            made_up.make_run(base / "g" / method / str(seed), config, 3, names=names)
    config = resolve("glyphs-spurious", "er")
    made_up.make_run(base / "other" / "er", config, 5, masks=False, maps=False)
    return base


@pytest.fixture
def results(folder):
    """As rr.fit returns them, by method and seed."""
    runs = read([folder / "g"]).runs
    return {(run.method, run.seed): rr.Result(run.records) for run in runs}


def test_a_table_from_a_folder_and_from_results(folder, results):
    table = rr.table(folder / "g")
    assert [row[0] for row in table.rows] == ["er", "er+rrr"] and table.head[1] == "accuracy"
    again = rr.table(results)
    assert again.rows == table.rows
    assert rr.table(results, "pairs").rows[0][:2] == ["er+rrr - er", "2"]
    assert rr.table(results, ["PG-ACC"]).head == ["method", "PG-ACC"]
    assert len(rr.table({"mine": list(results.values())[:2]}, "runs").rows) == 2
    one = rr.table(next(iter(results.values())))
    assert one.rows[0][0] == "run" and "<table>" in one._repr_html_()


def test_curves_draw_every_seed_and_the_mean(folder):
    figure = rr.plot_curves(folder / "g")
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert len(axes.lines) == 2 * (2 + 1)
    runs = read([folder / "g"]).groups[0].lines[0].runs
    mean = np.mean([100 * run.result.seen for run in runs], axis=0)
    assert any(np.allclose(line.get_ydata(), mean) for line in axes.lines)
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["er", "er+rrr"]


@pytest.mark.parametrize("measure", CURVES)
def test_every_measure_can_be_drawn(measure, folder):
    expected = (
        0 if measure == "groups" else 6
    )  # of groups of images, which these learners do not have
    assert len(rr.plot_curves(folder / "g", measure).axes[0].lines) == expected


def test_curves_by_hand(folder):
    run = read([folder / "g"]).runs[0]
    last = run.records[2]
    drift = last["drift"]["cosine"][:2]
    assert curve(run, "cosine")[2] == pytest.approx(100 * sum(drift) / 2)
    game = last["pointing"]["class"]
    hits, total = (
        sum(game["tp"]) + sum(game["fn"]),
        sum(map(sum, [game[c] for c in ("tp", "fp", "fn", "tn")])),
    )  # noqa: E501
    assert curve(run, "pointing")[2] == pytest.approx(100 * hits / total)
    assert curve(run, "seconds")[1] == run.records[1]["seconds"]
    assert curve(run, "cpu") == pytest.approx([np.nan, 51, 52], nan_ok=True)
    for record in run.records:  # as older runs have it
        del record["cpu_a_step"]
    assert curve(run, "cpu") is None
    without = read([folder / "other"]).runs[0]
    assert curve(without, "pointing") is None


def test_groups_of_any_size_are_drawn_and_in_tables(made_up, tmp_path):
    config = resolve("glyphs-small", "er", ["stream.tasks=3", "stream.classes=6"])
    made_up.make_run(tmp_path / "er" / "0", config, 3, maps=False)
    path = tmp_path / "er" / "0" / "records.jsonl"
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for record in records:
        record["accuracy"] |= {"p10": [0.75] * record["task"], "p1": [0.5] * record["task"]}
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    group = read([tmp_path]).groups[0]
    assert curve(group.runs[0], "groups") == [75, 75, 75]
    names = matrices(group)["names"]
    assert names["p10"] == "R, by groups of 10" and "p1" not in names
    assert rr.table(tmp_path, ["p10"]).rows[0][1] == "75.0"


def test_evolution_has_a_row_a_method_and_a_column_a_task(folder):
    figure = rr.plot_evolution(folder / "g")
    titles = [axes.get_title() for axes in figure.axes]
    assert sum(title in ("correct", "incorrect") for title in titles) == 2 * 2  # after tasks 2, 3
    assert len(figure.axes) == 2 * 3
    chosen = rr.plot_evolution(folder / "g", image=(1, 2), tasks=[1, 3], seed=1)
    assert len(chosen.axes) == 2 * 3
    chosen.canvas.draw()  # a name with dollar signs is no mathematics


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda f: rr.table(f), "different benchmarks: glyphs-small, glyphs-spurious"),
        (lambda f: rr.table(f / "g", "finale"), "did you mean 'final'"),
        (lambda f: rr.table(f / "g", ["accurracy"]), "did you mean 'accuracy'"),
        (lambda f: rr.table(3), "runs are a int, expected a folder of runs"),
        (lambda f: rr.table({"er": 3}), "'er' is a int"),
        (lambda f: rr.table(rr.Result([])), "has no task yet"),
        (lambda f: rr.plot_curves(f / "g", "sen"), "did you mean 'seen'"),
        (lambda f: rr.plot_evolution(f / "other"), "no maps of watched images"),
        (lambda f: rr.plot_evolution(f / "g", image=(9, 1)), "choose one of (1, 1), (1, 2)"),
        (lambda f: rr.plot_evolution(f / "g", tasks=[1]), "task 1 has no map of this image"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(call, said, folder):
    with pytest.raises(rr.UserError) as caught:
        call(folder)
    assert said in str(caught.value)


def test_results_have_no_maps_and_that_is_said(results):
    with pytest.raises(rr.UserError, match="pass run= to rr.fit"):
        rr.plot_evolution(results)
