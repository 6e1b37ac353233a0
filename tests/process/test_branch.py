"""``rrr run --from RUN@task1``: the same beginning, other keys from there on."""

from __future__ import annotations

import pytest
from inside import rrr
from refusals import TINY
from test_kill import assert_same, content


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("branch")
    answer = rrr("run", "glyphs-small", "er+rrr", *TINY, "--out", "run", cwd=folder)
    assert answer.code == 0, answer.err
    return folder


def without(found, *names):
    return {name: value for name, value in found.items() if name not in names}


def test_a_branch_that_changes_nothing_is_the_run(runs):
    answer = rrr("run", "--from", "run@task1", "--out", "same", "--checkpoint", 1, cwd=runs)
    assert answer.code == 0, answer.err
    assert "task 1/2" not in answer.err and "task 2/2" in answer.err
    a, b = (without(content(runs / name), "config.yaml") for name in ("run", "same"))
    assert_same(a, b, "branch")
    assert "branch:\n  run: run\n  task: 1\n" in (runs / "same" / "config.yaml").read_text("utf-8")


def test_a_branch_changes_keys_from_its_task_on_and_goes_on(runs):
    before = content(runs / "run")
    words = ["run", "--from", "run@task1", "rrr.weight=9", "train.lr=0.02"]
    answer = rrr(*words, cwd=runs)
    assert answer.code == 0, answer.err
    found = content(runs / "run@task1,rrr.weight=9,train.lr=0.02")
    assert_same(found["checkpoints/task-1.pt"], before["checkpoints/task-1.pt"], "first task")
    assert found["records.jsonl"][0] == before["records.jsonl"][0]
    assert found["records.jsonl"][1]["losses"] != before["records.jsonl"][1]["losses"]
    again = rrr(*words, cwd=runs)
    assert again.code == 0 and "is finished already" in again.out
    assert_same(content(runs / "run"), before, "the run itself")


def test_a_branch_may_have_the_name_of_a_path_in_its_keys(runs):
    answer = rrr("run", "--from", "run@task1", "train.device=../../cpu", cwd=runs)
    assert answer.code == 2 and "train.device is '../../cpu'" in answer.err
    assert not answer.faults
