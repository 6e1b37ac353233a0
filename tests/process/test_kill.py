"""Killed at random points and gone on with, every learner ends with the bits of a run in peace."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from victim import Server, recipe

import rightreasons as rr
from rightreasons.checkpoints import load_checkpoint
from rightreasons.registry import LEARNERS

KILLS = 3
SEED = int(os.environ.get("RRR_KILL_SEED", "0"))
TIMES = ("seconds", "seconds_a_step", "cpu_a_step")


def methods() -> list[str]:
    """Every learner that is registered, plain, with RRR and with evidence, if it takes terms."""
    words = [name + term for name in sorted(LEARNERS) for term in ("", "+rrr", "+evidence")]
    found = []
    for word in words:
        try:
            recipe(word)
        except rr.UserError:
            assert word.startswith("joint+"), word
            continue
        found.append(word)
    return found


@pytest.fixture(scope="session")
def server():
    made = Server()
    yield made
    made.close()


@dataclass
class Case:
    """What is drawn for a method: how often it saves, its optimiser, where it is killed."""

    method: str
    seed: int

    def __post_init__(self) -> None:
        draw = random.Random(f"{self.seed} {self.method}")
        self.every = draw.choice([1, 2, 3, 5])
        self.optimiser = draw.choice(["adamw", "radam", "sgd"])
        self.shares = sorted(draw.random() for _ in range(KILLS))

    def run(self, server: Server, folder: Path, kill: int | None = None) -> dict:
        return server.run(
            method=self.method,
            folder=str(folder),
            every=self.every,
            optimiser=self.optimiser,
            kill=kill,
        )


def content(folder: Path) -> dict[str, object]:
    """Everything that a run has left, by file, without times."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name == "progress.jsonl":  # it says when, and nothing else
            continue
        if path.suffix == ".pt":
            found[name] = load_checkpoint(path)
        elif path.suffix == ".json":
            found[name] = json.loads(path.read_text("utf-8"))
        elif path.suffix == ".jsonl":
            found[name] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        elif path.is_file():
            found[name] = path.read_bytes()
    return found


def assert_same(a: object, b: object, where: str) -> None:
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), where
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            if key not in TIMES:
                assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}/{i}")
    else:
        assert a == b, where


def survive(server: Server, method: str, seed: int, base: Path) -> int:
    """A run in peace, and one that is killed so often; how often it was."""
    case = Case(method, seed)
    calls = case.run(server, base / "peace")["calls"]
    assert calls, f"{method} did not end by itself"
    points = [0, *(max(1, int(share * calls)) for share in case.shares)]
    told = f"RRR_KILL_SEED={seed} method {method}"
    kills = 0
    for before, point in pairwise(points):  # what was reached before a kill is not reached again
        kills += case.run(server, base / "war", max(1, point - before))["killed"]
    end = case.run(server, base / "war")
    assert end["calls"], told
    assert kills == KILLS, told
    assert_same(content(base / "peace"), content(base / "war"), told)
    return kills


@pytest.mark.parametrize("method", methods())
def test_killed_three_times_the_bits_are_the_same(method, server, tmp_path):
    assert survive(server, method, SEED, tmp_path) == KILLS


@pytest.mark.skipif("RRR_SOAK" not in os.environ, reason="make soak")
def test_two_hundred_kills(server, tmp_path):
    kills, seed = 0, SEED + 1000
    while kills < 200:
        for method in methods():
            folder = tmp_path / f"{method}-{seed}"
            kills += survive(server, method, seed, folder)
            shutil.rmtree(folder)
        seed += 1
    print(f"{kills} kills, none lost, none different")
