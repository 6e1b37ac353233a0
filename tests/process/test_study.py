"""``rrr study`` as a user types it: killed half-way, gone on with, skipped by record."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_stop import wait_for

from rightreasons.study.plan import load
from rightreasons.study.records import path_of, write_record
from rightreasons.sweep import execute

TINY = Path(__file__).parents[1] / "study" / "tiny.yaml"
RUNS = 6


def words(folder, *more):
    study = [sys.executable, "-m", "rightreasons", "study", TINY, "--out", folder / "runs"]
    return [str(word) for word in (*study, "--records", folder / "results" / "records", *more)]


def rrr(folder, *more):
    return subprocess.run(words(folder, *more), capture_output=True, text=True)


def records(folder):
    return {path: path.read_bytes() for path in (folder / "results").rglob("[0-9]*.json")}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A study that was killed with all its processes once it had a record, then gone on with."""
    folder = tmp_path_factory.mktemp("study")
    begun = subprocess.Popen(
        words(folder), start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: records(folder), begun)
    os.killpg(begun.pid, signal.SIGKILL)
    begun.wait()
    before = records(folder)
    done = rrr(folder)
    assert done.returncode == 0, done.stderr
    return folder, before, done


def test_a_seed_that_another_cpu_has_begun_is_named(killed, tmp_path):
    folder, *_ = killed
    shutil.copytree(folder / "results", tmp_path / "results")
    base = tmp_path / "results" / "records" / "methods" / "glyphs-spurious"
    path = base / "er" / "1.json"
    path.write_text(path.read_text("utf-8").replace('"cpu": "', '"cpu": "not '), "utf-8")
    assert "rounds otherwise" not in rrr(tmp_path, "--plan").stdout  # nothing is left to compare
    (base / "er+rrr" / "1.json").unlink()
    (base / "er+rrr" / "0.json").unlink()
    (said,) = [line for line in rrr(tmp_path, "--plan").stdout.splitlines() if "rounds" in line]
    assert said.startswith("methods, glyphs-spurious, seed 1: 1 of its runs were made on not ")
    assert said.endswith("remove methods/glyphs-spurious/er/1.json")


def test_a_killed_study_goes_on_with_what_has_no_record(killed):
    folder, before, done = killed
    assert 0 < len(before) < RUNS
    after = records(folder)
    assert len(after) == RUNS and all(after[path] == content for path, content in before.items())
    left = 2 - sum("tuning" in path.parts for path in before)
    assert f"tuning-methods: 2 runs, {left} left" in done.stdout


def test_its_records_are_those_of_runs_in_peace(killed, tmp_path):
    folder, _, _ = killed
    chosen = json.loads((folder / "results" / "tuned-tiny.json").read_text("utf-8"))["chosen"]
    run = load(str(TINY)).runs("methods", chosen)[1]
    execute(run.config, tmp_path / "run")
    write_record(tmp_path, run, tmp_path / "run")
    ours, alone = (
        json.loads(path_of(base, run).read_text("utf-8"))
        for base in (folder / "results" / "records", tmp_path)
    )
    for content in (ours, alone):
        content.pop("seconds")
        for of in (content["result"], *content["tasks"]):
            for key in ("seconds", "seconds_a_step", "cpu_a_step"):
                of.pop(key, None)
    assert ours == alone


def test_what_has_a_record_is_skipped_and_needs_no_run_folder(killed):
    folder, _, first = killed
    assert not list((folder / "runs").rglob("*.pt"))  # no checkpoint that nobody needs
    before, page = records(folder), (folder / "results" / "tiny.md").read_bytes()
    again = rrr(folder, "--only", "methods")
    assert again.returncode == 0 and "methods: 4 runs, 0 left" in again.stdout
    assert records(folder) == before
    (folder / "results" / "tiny.md").unlink()
    report = rrr(folder, "--report")
    assert report.returncode == 0
    assert (folder / "results" / "tiny.md").read_bytes() == page
    assert b"er+rrr against er: accuracy" in page


def test_a_damaged_record_ends_it_by_name(killed):
    folder, _, _ = killed
    path = next(iter(records(folder)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    try:
        done = rrr(folder)
    finally:
        path.write_bytes(whole)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("rrr: ") and path.name in said and "is no record" in said


def test_the_plan_counts_and_starts_nothing(tmp_path):
    done = rrr(tmp_path, "--plan")
    assert done.returncode == 0 and "methods: 4 runs, 4 left, 0.01 hours" in done.stdout
    assert "about 0.00 hours with 2 at a time (0 of 4 by runs that are done" in done.stdout
    assert not list(tmp_path.iterdir())
