"""The order of work, and what a failure means for the others, on a pool that only pretends."""

from __future__ import annotations

import pytest

from rightreasons.config import resolve
from rightreasons.errors import Diverged, UserError
from rightreasons.sweep.drive import Failures, drive, ready
from rightreasons.sweep.jobs import Job, nothing, prefix_of, prefixes

WORDS = ["stream.tasks=2", "stream.classes=4"]


class Pretended:
    """Ends a job a look, with the error that it is told to; a run that ends well has its tasks."""

    slots = 1

    def __init__(self, made_up, errors):
        self.made_up, self.errors = made_up, errors
        self.started, self.running = [], []

    def start(self, job):
        self.started.append(job)
        self.running.append(job)

    def ended(self, seconds, board):
        job = self.running.pop(0)
        error = self.errors.get(job.name)
        if error is None:
            self.made_up.make_run(job.folder, job.config, 2, maps=False)
        return [(job, error)]


@pytest.fixture
def jobs(tmp_path):
    config = resolve("glyphs-small", "er", WORDS)
    return [Job(config, tmp_path / name, None, name=name) for name in "abc"]


def test_a_run_that_fails_does_not_stop_the_others(jobs, made_up, capsys):
    pool, done = Pretended(made_up, {"b": UserError("no such layer")}), []
    with pytest.raises(Failures, match="1 of 3 runs failed; b: no such layer") as failed:
        drive(pool, jobs, done.append)
    assert [job.name for job in done] == ["a", "c"] and list(failed.value.errors) == [jobs[1]]
    assert "[2/6] b  failed: no such layer" in capsys.readouterr().err


def test_what_fails_before_anything_has_got_anywhere_is_wrong_for_all(jobs, made_up, capsys):
    pool, error = Pretended(made_up, {"a": UserError("no data")}), "^no data$"
    with pytest.raises(UserError, match=error):
        drive(pool, jobs, nothing)
    assert len(pool.started) == 1 and capsys.readouterr().err == ""


def test_a_run_that_diverges_stops_nobody_even_as_the_first(jobs, made_up):
    with pytest.raises(Failures, match="1 of 3 runs failed; a: NaN"):
        drive(Pretended(made_up, {"a": Diverged("NaN")}), jobs, nothing)


def test_what_is_no_bad_input_stops_all(jobs, made_up):
    pool = Pretended(made_up, {"b": OSError(28, "No space left on device")})
    with pytest.raises(OSError, match="No space"):
        drive(pool, jobs, nothing)
    assert len(pool.started) == 2


def test_one_run_waits_for_the_first_task_that_another_trains(jobs, tmp_path):
    shared = tmp_path / "prefix.pt"
    jobs[0].prefix = jobs[1].prefix = shared
    assert list(ready(jobs, [], 3)) == [jobs[0], jobs[2]]
    assert list(ready(jobs[1:], jobs[:1], 2)) == [jobs[2]]
    shared.write_bytes(b"")
    assert list(ready(jobs[1:], jobs[:1], 3)) == jobs[1:]
    assert list(ready(jobs[1:], jobs[:1], 1)) == []


def test_only_what_two_runs_need_is_shared(tmp_path):
    configs = [resolve("glyphs-small", method, WORDS) for method in ("er", "er+rrr", "finetune")]
    er, er_rrr, finetune = prefixes(configs, tmp_path)
    assert er == er_rrr == prefix_of(configs[0], tmp_path) and finetune is None
