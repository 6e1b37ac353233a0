"""Tables of groups against numbers by hand."""

from __future__ import annotations

from statistics import mean, stdev

import pytest

from rightreasons.config import resolve
from rightreasons.reports.measures import MEASURES, interval, spread
from rightreasons.reports.read import read
from rightreasons.stats import t_interval
from rightreasons.tables import costs, differences, every, means, pairs, sentences, values

WORDS = ["stream.tasks=3", "stream.classes=6"]


@pytest.fixture(scope="module")
def group(made_up, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for method in ("er", "er+rrr"):
        for seed in (0, 1, 2):
            config = resolve("glyphs-small", method, WORDS, seed)
            made_up.make_run(folder / method / str(seed), config, 3, maps=False)
    return read([folder]).groups[0]


def test_means_and_deviations_are_those_of_the_seeds(group):
    table = means(group, ["accuracy", "bwt"])
    for row, line in zip(table.rows, group.lines, strict=True):
        values = [100 * run.result.accuracy for run in line.runs]
        assert row[:2] == [line.label, f"{mean(values):.1f} ± {stdev(values):.1f}"]
    assert table.title == "glyphs-small, 3 seeds, %, mean ± std"


def test_pairs_are_over_matched_seeds_with_their_interval(group):
    er, rrr = group.lines
    gaps = [
        100 * (b.result.accuracy - a.result.accuracy)
        for a, b in zip(er.runs, rrr.runs, strict=True)
    ]  # noqa: E501
    assert [100 * d for d in differences(rrr, er, "accuracy")] == pytest.approx(gaps)
    low, high = t_interval(gaps)
    (row,) = every(group)["pairs"].rows
    assert row[:3] == ["er+rrr - er", "3", f"{mean(gaps):+.1f} [{low:+.1f}, {high:+.1f}]"]
    (said,) = sentences(group)
    assert said.startswith(f"er+rrr against er: accuracy {mean(gaps):+.1f} points over 3 matched")
    assert ("includes zero, so nothing is shown" in said) == (low <= 0 <= high)


def test_a_ratio_that_one_run_has_not_is_left_out_there_and_nowhere_else(group, monkeypatch):
    er, rrr = group.lines
    whole = differences(rrr, er, "Re_Ti")
    monkeypatch.setitem(rrr.runs[1].numbers, "Re_Ti", None)
    gaps = differences(rrr, er, "Re_Ti")
    assert gaps == [whole[0], whole[2]]
    table = pairs(group, ["accuracy", "Re_Ti"])
    assert table.rows[0][-1] == f"{interval('Re_Ti', gaps)} (2 of 3 seeds)"
    assert "seeds" not in table.rows[0][2]
    assert means(group, ["Re_Ti"]).rows[1][1] == spread("Re_Ti", values(rrr, "Re_Ti"))


def test_every_table_has_its_columns_and_every_row_a_link(group):
    tables = every(group)
    assert list(tables) == [
        "final", "pairs", "seen", "seeds", "pointing", "pointing-task-aware", "pointing-seen",
        "drift", "costs", "settings", "runs",
    ]  # fmt: skip
    for name, table in tables.items():
        assert all(len(row) == len(table.head) for row in table.rows), name
        assert len(table.links) == len(table.rows) and all(table.links), name
    head = tables["pointing"].head
    for name in ("PG-ACC", "PG-BWT", "Pr_ii", "Pr_Ti", "Re_ii", "Re_Ti"):
        assert any(name in column for column in head)
    images = tables["pointing"].rows[0][1]
    assert int(images) == sum(group.lines[0].runs[0].records[-1]["pointing"]["images"])
    assert tables["costs"].rows[0][1:5] == ["300 kB", "12 kB", "1024 kB", "2 kB"]


def test_runs_of_older_versions_do_not_say_what_their_learner_held(group, monkeypatch):
    runs = [run for line in group.lines for run in line.runs]
    for run in runs[3:]:
        monkeypatch.setitem(run.numbers, "bytes", {"images": 1024, "maps": 1024, "model": 1024})
    assert [row[4] for row in costs(group).rows] == ["2 kB", ""]
    for run in runs[:3]:
        monkeypatch.setitem(run.numbers, "bytes", {"images": 1024, "maps": 1024, "model": 1024})
    assert costs(group).head[:5] == ["method", "images", "maps", "model", "ms of CPU a step"]


def test_the_table_over_tasks_is_the_papers(group):
    table = every(group)["seen"]
    assert table.head == ["method", "1", "2", "3"]
    curves = [run.result.seen for run in group.lines[0].runs]
    assert table.rows[0][2] == spread("accuracy", [float(c[1]) for c in curves])


def test_cells():
    assert spread("accuracy", [0.5]) == "50.0" and spread("accuracy", [0.5, 0.7]) == "60.0 ± 14.1"
    assert interval("accuracy", [0.01]) == "+1.0" and interval("accuracy", []) == ""
    assert interval("drift_displacement", [0.5, 0.5]) == "+0.50 [+0.50, +0.50]"
    assert {"accuracy", "bwt", "forgetting", "PG-BWT"} <= set(MEASURES)


def test_the_pointing_game_task_by_task_counts_every_image_once(group):
    table = every(group)["pointing-seen"]
    runs = group.lines[0].finished
    for k in range(group.tasks):
        rates = []
        for run in runs:
            counts = run.records[k]["pointing"]["task"]
            total = sum(sum(counts[name]) for name in ("tp", "fp", "fn", "tn"))
            rates.append(100 * (sum(counts["tp"]) + sum(counts["fn"])) / total)
        assert table.rows[1][k + 1].startswith(f"{sum(rates) / len(rates):.1f}")
    assert table.rows[1][0] == f"{group.lines[0].label}, task-aware"


def test_accuracy_of_first_and_later_tasks_make_up_the_whole(group):
    for run in (run for line in group.lines for run in line.finished):
        numbers, images = run.numbers, run.records[-1]["test_images"]
        parts = numbers["first"] * images[0] + numbers["later"] * sum(images[1:])
        assert parts / sum(images) == pytest.approx(numbers["accuracy"])
        inverse = (1 / numbers["first"] + 1 / numbers["later"]) / 2
        assert numbers["harmonic"] == pytest.approx(1 / inverse)


@pytest.mark.parametrize(
    ("method", "words", "named"),
    [("er", [], False), ("er", ["memory.pick=herding"], True), ("topic", [], True)],
)
def test_pairs_whose_nets_choose_the_rows_say_so(made_up, tmp_path, method, words, named):
    for name in (method, f"{method}+rrr"):
        config = resolve("glyphs-small", name, [*WORDS, *words], 0)
        made_up.make_run(tmp_path / name / "0", config, 3, maps=False)
    note = every(read([tmp_path]).groups[0])["pairs"].note
    assert (f"({method}, {method}+rrr)" in note) == named
