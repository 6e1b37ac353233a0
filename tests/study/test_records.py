"""Records: small, whole, of the config that is asked for, or named."""

from __future__ import annotations

import json

import pytest

from rightreasons.errors import Damaged, Diverged, UserError
from rightreasons.study.plan import Study, load
from rightreasons.study.records import digest, find, path_of, read_record, write_record

CHOSEN = {"glyphs-spurious": {"rrr": 0.1}}


@pytest.fixture
def made(made_up, tiny, tmp_path):
    """A run of the tiny study with made-up numbers, and its record."""
    planned = Study("tiny", tiny).runs("methods", CHOSEN)[1]
    folder = made_up.make_run(tmp_path / "run", planned.config, 2, maps=False)
    write_record(tmp_path / "records", planned, folder)
    return planned, tmp_path / "records", folder


def test_a_record_has_what_the_run_measured_and_is_small(made):
    planned, base, folder = made
    record = find(base, planned)
    tasks = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert record.seconds == pytest.approx(sum(task["seconds"] for task in tasks), abs=0.1)
    now, then = record.run.numbers, record.content["result"]
    for key in ("accuracy", "average", "forgetting", "PG-ACC", "PG-BWT", "Pr_Ti", "drift_cosine"):
        assert now[key] == pytest.approx(then[key], abs=1e-5)
    assert len(then["matrices"]["class"]) == 2 and then["bytes"] == tasks[-1]["bytes"]
    assert record.path.stat().st_size < 8192
    assert record.content["words"][-1] == "rrr.weight=0.1"
    assert record.content["versions"] == {"python": "3"}


def test_no_record_of_the_shipped_study_says_where_files_are():
    for run in load("reasons").runs("tuning-explainers", {})[:30]:
        assert "/" not in json.dumps([run.words, run.config["net"]])


def test_a_record_of_another_config_is_refused_by_key(made, tiny):
    _, base, _ = made
    tiny["benchmarks"]["glyphs-spurious"]["words"].append("train.lr=0.5")
    other = Study("tiny", tiny).runs("methods", CHOSEN)[1]
    with pytest.raises(UserError, match=r"another config \(train.lr: 0.003 there, 0.5 asked\)"):
        find(base, other)


def test_a_record_of_other_classes_is_refused(made, tiny):
    _, base, _ = made
    tiny["benchmarks"]["glyphs-spurious"]["words"].append("stream.pool=tuning")
    with pytest.raises(UserError, match="other classes there"):
        find(base, Study("tiny", tiny).runs("methods", CHOSEN)[1])


def test_a_record_of_a_version_that_knew_fewer_keys_still_counts(made):
    planned, base, _ = made
    path = path_of(base, planned)
    content = json.loads(path.read_text("utf-8"))
    del content["config"]["rrr"]["refresh"]
    content["digest"] = digest(content["config"], content["classes"])
    path.write_text(json.dumps(content), "utf-8")
    assert find(base, planned) is not None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[: len(text) // 2], "is no record"),
        (lambda text: "[]", "has no benchmark"),
        (lambda text: text.replace('"weight": 0.1', '"weight": 0.2'), "its digest was made of"),
        (lambda text: text.replace('"seconds_a_step"', '"second"'), "task 1: seconds_a_step"),
        (lambda text: text.replace('"result"', '"results"'), "it has no result"),
    ],
)
def test_a_damaged_record_is_named(made, change, says):
    planned, base, _ = made
    path = path_of(base, planned)
    before = path.read_text("utf-8")
    path.write_text(change(before), "utf-8")
    assert path.read_text("utf-8") != before
    with pytest.raises(Damaged, match=says) as error:
        find(base, planned)
    assert str(path) in str(error.value) and "remove it" in str(error.value)


def test_a_run_that_diverged_is_a_record_too(made):
    planned, base, folder = made
    write_record(base, planned, folder, Diverged("the rrr loss is nan"))
    record = read_record(path_of(base, planned))
    assert record.diverged == "the rrr loss is nan" and record.average == 0
    assert not record.run.finished
