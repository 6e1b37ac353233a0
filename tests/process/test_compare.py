"""``rrr compare`` as a user types it: runs that share their first task equal separate ones."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from rightreasons.config import resolve
from rightreasons.sweep import execute
from rightreasons.tables import markdown

TINY = [
    "stream.tasks=2", "stream.classes=4", "data.train=8", "data.test=4", "train.epochs=1",
    "train.batch=8", "memory.size=8",
]  # fmt: skip
METHODS = ["er", "er+rrr", "er+evidence"]


def rrr(*words):
    return subprocess.run(
        [sys.executable, "-m", "rightreasons", *map(str, words)], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    table = folder / "table.md"
    done = rrr(
        "compare", "glyphs-small", ",".join(METHODS), *TINY, "rrr.weight=2", "--seeds", 2,
        "--out", folder / "runs", "--table", table,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "runs", table, done


def weights(folder):
    saved = torch.load(folder / "checkpoints" / "task-2.pt", weights_only=True)
    return saved["net"]["tensors"], saved["learner"]


def test_runs_with_a_shared_first_task_equal_separate_runs(compared, tmp_path):
    runs, _, _ = compared
    assert len(list((runs / "prefix").iterdir())) == 2  # one a seed, for three methods
    for method in METHODS:
        words = [*TINY, "rrr.weight=2"] if "rrr" in method else TINY
        execute(resolve("glyphs-small", method, words, seed=1), tmp_path / method)
        (ours, state), (alone, other) = weights(runs / method / "1"), weights(tmp_path / method)
        assert all(torch.equal(ours[name], alone[name]) for name in ours)
        for name, column in state["memory"]["columns_"].items():
            theirs = other["memory"]["columns_"][name]
            if isinstance(column, dict):
                assert all(map(torch.equal, column["ragged!"], theirs["ragged!"])), name
            else:
                assert torch.equal(column, theirs), name


def test_the_table_shows_seeds_differences_and_a_sentence(compared):
    runs, table, done = compared
    text = table.read_text("utf-8")
    results = {
        (m, s): json.loads((runs / m / str(s) / "result.json").read_text("utf-8"))
        for m in METHODS
        for s in (0, 1)
    }
    for result in results.values():
        assert f"{100 * result['accuracy']:.1f}" in text
    gap = [100 * (results["er+rrr", s]["accuracy"] - results["er", s]["accuracy"]) for s in (0, 1)]
    assert f"{sum(gap) / 2:+.1f} [" in text
    assert "er+rrr against er: accuracy" in text and "over 2 matched seeds" in text
    for word in ("forgetting", "PG-ACC", "share on object", "maps", "ms a step"):
        assert word in text and word in done.stdout
    folders = [runs / m / str(s) for s in (0, 1) for m in METHODS]
    assert markdown(folders) == text


def test_matched_runs_remember_the_same_images(compared):
    runs, _, _ = compared
    rows = [weights(runs / method / "0")[1]["memory"]["columns_"] for method in METHODS]
    assert all(torch.equal(rows[0][c], r[c]) for r in rows[1:] for c in ("x", "y", "index"))


def test_comparing_again_is_done_at_once_and_other_settings_are_refused(compared):
    runs, _, first = compared
    again = rrr("compare", "glyphs-small", "er", *TINY, "--seeds", 2, "--out", runs)
    assert again.returncode == 0
    other = rrr(
        "compare", "glyphs-small", "er", *TINY, "memory.size=4", "--seeds", 1, "--out", runs
    )
    assert other.returncode == 2
    assert other.stderr.strip().splitlines()[-1].startswith("rrr: ")
    assert "memory.size: 8 there, 4 asked" in other.stderr and "Traceback" not in other.stderr
