"""The rule on numbers by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rightreasons as rr
from rightreasons.errors import Damaged
from rightreasons.study import tune
from rightreasons.study.plan import DEFAULT, Study, load
from rightreasons.study.records import path_of, write_record
from rightreasons.study.tune import choose, read_chosen, write_chosen


def test_the_highest_mean_wins_and_of_equal_ones_the_smallest():
    assert choose({0.1: [0.5, 0.6], 0.3: [0.7, 0.5], 1.0: [0.1, 0.9]}) == 0.3
    assert choose({1.0: [0.5], 0.1: [0.5], 0.3: [0.4]}) == 0.1
    assert choose({0.1: [0.1 + 0.2], 0.01: [0.3]}) == 0.01  # no difference that a float makes


@pytest.fixture
def study(tiny):
    return Study("tiny", tiny)


def lay(made_up, study, base, tmp_path, numbers):
    """Records of the tuning runs, average accuracy as given."""
    for run, number in zip(study.runs("tuning-methods", {}), numbers, strict=True):
        folder = made_up.make_run(tmp_path / run.place, run.config, 2, maps=False)
        write_record(base, run, folder)
        path = path_of(base, run)
        content = json.loads(path.read_text("utf-8"))
        content["result"]["average"] = number
        path.write_text(json.dumps(content), "utf-8")


def test_what_is_chosen_is_kept_with_its_numbers(made_up, study, tmp_path):
    base, path = tmp_path / "records", tmp_path / "tuned.json"
    lay(made_up, study, base, tmp_path, [0.4, 0.6])
    write_chosen(study, base, path)
    assert read_chosen(path) == {"glyphs-spurious": {"rrr": 1.0}}
    content = json.loads(path.read_text("utf-8"))
    assert content["tries"] == {"glyphs-spurious": {"rrr": {"0.1": [0.4], "1": [0.6]}}}
    (table,) = tune.tables(study, content)
    assert table.rows == [
        ["rrr", "rrr.weight=0.1", "40.0", "40.0", ""],
        ["rrr", "rrr.weight=1", "60.0", "60.0", "chosen, at the edge"],
    ]


def test_a_default_is_the_best_over_data_sets_of_what_was_tried_on_all(tiny):
    tiny["benchmarks"]["glyphs-small"] = {}
    study = Study("tiny", tiny)
    tries = {
        "glyphs-spurious": {"rrr": {"0.1": [0.5, 0.7], "1": [0.65, 0.65]}},
        "glyphs-small": {"rrr": {"0.1": [0.9], "1": [0.8]}},
    }
    assert tune.defaults(study, {"tries": tries}) == {"rrr": 0.1}
    assert tune.default_table(study, {"tries": tries}).rows == [
        ["rrr", "rrr.weight=0.1", "75.0", "60.0, 90.0", "highest"],
        ["rrr", "rrr.weight=1", "72.5", "65.0, 80.0", ""],
    ]
    del tries["glyphs-small"]
    assert tune.defaults(study, {"tries": tries}) == {}


def test_the_default_weights_are_those_that_the_study_chose():
    docs = Path(__file__).parents[2] / "docs" / "results"
    content = json.loads((docs / "tuned.json").read_text("utf-8"))
    assert tune.defaults(load(DEFAULT), content) == {
        "rrr": rr.RRR(profile="recommended").weight,
        "evidence": rr.Evidence().weight,
        "logits": rr.Logits().weight,
    }


def test_nothing_is_chosen_before_every_try_has_every_seed(made_up, study, tmp_path):
    base, path = tmp_path / "records", tmp_path / "tuned.json"
    lay(made_up, study, base, tmp_path, [0.4, 0.6])
    try_ = path_of(base, study.runs("tuning-methods", {})[0])
    kept = try_.read_text("utf-8")
    try_.unlink()
    write_chosen(study, base, path)
    assert not path.exists()
    try_.write_text(kept, "utf-8")
    write_chosen(study, base, path)
    assert read_chosen(path) == {"glyphs-spurious": {"rrr": 1.0}}
    try_.unlink()  # what was chosen by it does not outlive it
    write_chosen(study, base, path)
    assert read_chosen(path) == {}


def test_a_file_that_does_not_say_what_was_chosen_is_named(tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text('{"chosen": {"a": {"rrr": "x"}}}', "utf-8")
    with pytest.raises(Damaged, match="tuned.json does not say what was chosen"):
        read_chosen(path)
