"""The board of many runs: names, what it reads, and damaged records."""

from __future__ import annotations

import pytest

from rightreasons.config import resolve
from rightreasons.sweep import Board, Job, run_all

WORDS = ["stream.tasks=3", "stream.classes=6"]


@pytest.fixture
def jobs(made_up, tmp_path):
    made = []
    for name in ("a", "b"):
        config = resolve("glyphs-small", "er", WORDS)
        made_up.make_run(tmp_path / name, config, 3, maps=False)
        made.append(Job(config, tmp_path / name, None))
    return made


def test_two_runs_of_one_method_and_seed_are_told_apart(jobs, capsys):
    board = Board(jobs)
    board.look(jobs)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and lines[0].startswith("[3/6] er seed 0 (")
    assert [str(job.folder) in line for job, line in zip(jobs, lines, strict=True)] == [True, True]
    named = Board([Job(jobs[0].config, jobs[0].folder, None, name="a try"), jobs[1]])
    assert list(named.labels.values()) == ["a try", "er seed 0"]


def test_a_damaged_record_does_not_drop_the_others(jobs, capsys):
    path = jobs[0].folder / "records.jsonl"
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([lines[0], "{", lines[2]]) + "\n", "utf-8")
    Board(jobs[:1]).look(jobs[:1])
    assert "[2/3] er seed 0  task 2/3" in capsys.readouterr().err


def test_a_file_of_the_same_size_is_not_read_again(jobs, capsys, monkeypatch):
    board = Board(jobs)
    board.look(jobs)
    capsys.readouterr()
    monkeypatch.setattr(
        "rightreasons.sweep.board._records", lambda folder: pytest.fail("read again")
    )
    board.look(jobs)
    assert capsys.readouterr().err == ""


def test_no_jobs_are_done_at_once():
    run_all([])
