"""The page from records alone: numbers by hand, honest sentences, text by hand kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from statistics import mean

import pytest

from rightreasons.errors import Diverged
from rightreasons.reports.read import Line
from rightreasons.stats import t_interval
from rightreasons.study.drive import Folders
from rightreasons.study.page import placed, write_page
from rightreasons.study.picture import draw, gaps_of
from rightreasons.study.plan import Study, load, studies
from rightreasons.study.records import find, path_of, write_record

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CHOSEN = {"glyphs-spurious": {"rrr": 0.1}}


@pytest.fixture
def place(made_up, tiny, tmp_path):
    """Records of all runs but nothing else, and what was chosen."""
    study = Study("tiny", tiny)
    for run in study.runs("methods", CHOSEN):
        folder = made_up.make_run(tmp_path / "runs" / run.place, run.config, 2, maps=False)
        write_record(tmp_path / "records", run, folder)
    shutil.rmtree(tmp_path / "runs")
    content = {"chosen": CHOSEN, "tries": {"glyphs-spurious": {"rrr": {"0.1": [0.5], "1": [0.4]}}}}
    (tmp_path / "tuned.json").write_text(json.dumps(content), "utf-8")
    return study, tmp_path


def page(place):
    study, folder = place
    path = folder / "README.md"
    write_page(study, folder / "records", folder / "tuned.json", path)
    return path.read_text("utf-8")


def accuracy(place, row):
    study, folder = place
    runs = [run for run in study.runs("methods", CHOSEN) if run.row == row]
    return [100 * find(folder / "records", run).run.numbers["accuracy"] for run in runs]


def test_every_seed_difference_and_interval_stand_on_the_page(place):
    text = page(place)
    er, rrr = accuracy(place, "er"), accuracy(place, "er+rrr")
    assert f"| er | {er[0]:.1f} {er[1]:.1f} |" in text
    gaps = [b - a for a, b in zip(er, rrr, strict=True)]
    low, high = t_interval(gaps)
    assert f"| er+rrr - er | 2 | {mean(gaps):+.1f} [{low:+.1f}, {high:+.1f}]" in text
    assert "+1.0, +1.9 (RRR - ER" in text  # the paper's, after the last task and on average
    assert "4 of 4 runs have ended" in text
    for word in ("PG-ACC", "precision Pr_Ti", "recall Re_Ti", "drift: cosine", "ms a step"):
        assert word in text


def lift(place, by):
    """Give er+rrr the accuracy of er plus so much, seed by seed."""
    study, folder = place
    runs = study.runs("methods", CHOSEN)
    for seed, gain in zip((0, 1), by, strict=True):
        tasks = {}
        for row in ("er", "er+rrr"):
            run = next(r for r in runs if (r.row, r.seed) == (row, seed))
            path = path_of(folder / "records", run)
            content = json.loads(path.read_text("utf-8"))
            level = 0.5 + gain * (row == "er+rrr")
            for task in content["tasks"]:
                task["accuracy"]["class"] = [level] * len(task["accuracy"]["class"])
            path.write_text(json.dumps(content), "utf-8")
            tasks[row] = level


def test_a_difference_whose_interval_holds_zero_shows_nothing(place):
    lift(place, [0.1, -0.02])
    said = next(line for line in page(place).splitlines() if line.startswith("- er+rrr against"))
    assert "accuracy +4.0 points over 2 matched seeds" in said
    assert "includes zero, so nothing is shown" in said


def test_nothing_is_claimed_of_few_seeds(place):
    lift(place, [0.1, 0.1001])
    said = next(line for line in page(place).splitlines() if line.startswith("- er+rrr against"))
    assert "2 seeds are few: below 5 nothing is claimed" in said


def test_all_comparisons_stand_in_one_table(place, monkeypatch):
    lift(place, [0.1, 0.12])
    low, high = t_interval([10.0, 12.0])
    row = f"| methods | er+rrr - er | +11.0 [{low:+.1f}, {high:+.1f}] |"
    assert low < 0 < high and row in page(place)
    lift(place, [0.1, 0.1001])
    assert "| methods | er+rrr - er | +10.0 [+9.9, +10.1] |" in page(
        place
    )  # clear, but of two seeds
    monkeypatch.setattr("rightreasons.tables.ENOUGH", 2)
    assert "| methods | er+rrr - er | **+10.0 [+9.9, +10.1]** |" in page(place)


def test_a_part_with_a_base_of_its_own_is_compared_with_that(made_up, place):
    """er of the second part is lifted far above everything: only there may it be subtracted."""
    study, folder = place
    rows = {"er": {"method": "er"}, "er twice": {"method": "er", "against": ["er", "er+rrr"]}}
    study = add_part(study, folder, made_up, rows)
    runs = study.runs("more", CHOSEN)
    for run in runs:
        path = path_of(folder / "records", run)
        content = json.loads(path.read_text("utf-8"))
        for task in content["tasks"]:
            level = 0.9 if run.row == "er" else 0.8
            task["accuracy"]["class"] = [level] * len(task["accuracy"]["class"])
        path.write_text(json.dumps(content), "utf-8")
    text = page((study, folder))
    assert "| more | er twice - er | -10.0 [-10.0, -10.0] |" in text
    gaps = [80 - other for other in accuracy(place, "er+rrr")]  # the first part's: more has none
    low, high = t_interval(gaps)
    assert f"| more | er twice - er+rrr | {mean(gaps):+.1f} [{low:+.1f}, {high:+.1f}] |" in text


def add_part(study, folder, made_up, rows):
    """The same study with one part more, and the records of its runs."""
    parts = {name: dataclasses.asdict(part) for name, part in study.parts.items()}
    more = {"about": "more", "benchmarks": ["glyphs-spurious"], "rows": rows}
    benchmarks = {name: dataclasses.asdict(bench) for name, bench in study.benchmarks.items()}
    content = {"about": study.about, "seeds": study.seeds, "benchmarks": benchmarks}
    wider = Study("tiny", content | {"parts": parts | {"more": more}})
    for run in wider.runs("more", CHOSEN):
        made = made_up.make_run(folder / "runs" / run.place, run.config, 2, maps=False)
        write_record(folder / "records", run, made)
    return wider


def made_on(place, kinds):
    """Let the runs of seed 1 have been made on these kinds of CPU, row by row."""
    study, folder = place
    for run in study.runs("methods", CHOSEN):
        if run.seed == 1:
            path = path_of(folder / "records", run)
            content = json.loads(path.read_text("utf-8"))
            content["versions"] = {"cpu": kinds[run.row]} if kinds[run.row] else {}
            path.write_text(json.dumps(content), "utf-8")


def test_a_pair_of_two_kinds_of_cpu_is_named(place):
    made_on(place, {"er": "AVX2", "er+rrr": "AVX512"})
    assert "two kinds of CPU, so that first tasks differ: er+rrr - er (seed 1)." in page(place)
    for other in ("AVX2", ""):  # the same, or an older record that does not know
        made_on(place, {"er": "AVX2", "er+rrr": other})
        assert "kinds of CPU" not in page(place)


def test_a_part_has_the_picture_that_its_file_asks_for(place):
    study, folder = place
    assert "matched differences with 95 % intervals" in page(place)
    assert "](tiny-methods.svg)" in page(place)
    first = (folder / "tiny-methods.svg").read_bytes()
    page(place)
    assert (folder / "tiny-methods.svg").read_bytes() == first  # nothing to commit
    lift(place, [0.2, 0.1])
    page(place)
    assert (folder / "tiny-methods.svg").read_bytes() != first


def test_a_picture_shows_pairs_of_two_seeds_or_more(place):
    study, folder = place
    er, rrr = accuracy(place, "er"), accuracy(place, "er+rrr")
    found = [find(folder / "records", run) for run in study.runs("methods", CHOSEN)]
    rows = {
        name: Line(name, [record.run for record in found if record.content["row"] == name])
        for name in ("er", "er+rrr")
    }
    figure = {"er": ["er+rrr", "bic"], "joint": ["er"]}
    gaps = gaps_of(figure, rows)
    assert gaps == {"er+rrr - er": pytest.approx([b - a for a, b in zip(er, rrr, strict=True)])}
    axes = draw({"glyphs-spurious": gaps}).axes[0]
    low, high = t_interval(gaps["er+rrr - er"])
    assert [list(line.get_xdata()) for line in axes.lines[1:3]] == [
        [low, high],
        [mean(gaps["er+rrr - er"])],
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["er+rrr - er"]
    rows["er"].runs.pop()
    assert gaps_of(figure, rows) == {}


def test_words_by_hand_are_kept_and_tables_are_written_anew(place):
    first = page(place)
    path = place[1] / "README.md"
    path.write_text(first.replace("# A tiny study", "# By hand\n\nA null result is one."), "utf-8")
    lift(place, [0.2, 0.2])
    second = page(place)
    assert second.startswith("# By hand\n\nA null result is one.")
    assert second != first and second.count("<!-- begin methods -->") == 1
    assert page(place) == second
    text = placed("a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n", "x", "new")
    assert text == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"


def test_a_run_that_diverged_is_named_and_not_averaged(made_up, place, tmp_path):
    study, folder = place
    run = study.runs("methods", CHOSEN)[1]
    left = made_up.make_run(tmp_path / "again", run.config, 2, maps=False)
    write_record(folder / "records", run, left, Diverged("the rrr loss is nan"))
    text = page(place)
    assert "glyphs-spurious: er+rrr, seed 0 diverged: the rrr loss is nan" in text
    assert "one seed says nothing about a difference" in text


def test_half_a_study_has_a_page(place):
    study, folder = place
    shutil.rmtree(folder / "records")
    (folder / "tuned.json").unlink()
    text = page(place)
    assert "0 of 4 runs have ended" in text and "No run of this part has ended yet" in text


def test_a_row_that_is_tested_by_groups_stands_beside_one_that_is_not(place):
    """iTAML has an accuracy for 20 images at a time, and others have none."""
    study, folder = place
    for run in study.runs("methods", CHOSEN):
        if run.row == "er+rrr":
            path = path_of(folder / "records", run)
            content = json.loads(path.read_text("utf-8"))
            for task in content["tasks"]:
                task["accuracy"]["p20"] = [0.125] * len(task["accuracy"]["class"])
            path.write_text(json.dumps(content), "utf-8")
    lines = page(place).splitlines()
    start = next(i for i, line in enumerate(lines) if ": every seed (" in line)
    assert "accuracy, p=20" in lines[start + 2]
    assert "| - - |" in lines[start + 4] and "| 12.5 12.5 |" in lines[start + 5]


@pytest.mark.parametrize("name", studies())
def test_the_pages_that_ship_are_those_of_their_records(name, tmp_path):
    folders = Folders(tmp_path / "runs", RESULTS / "records")
    page = folders.page(name)
    copy = shutil.copy(page, tmp_path / page.name)
    write_page(load(name), folders.records, folders.chosen(name), Path(copy))
    said = f"{page.name} is old; type rrr study {name} --report --records docs/results/records"
    assert Path(copy).read_text("utf-8") == page.read_text("utf-8"), said
    for picture in tmp_path.glob("*.svg"):
        assert (RESULTS / picture.name).is_file(), said
