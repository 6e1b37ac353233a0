"""Parts of other packages: found by entry points, listed, run, resumed; a broken one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import SOURCE, TINY

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-parts"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The example package, installed beside nothing else."""
    place = tmp_path_factory.mktemp("installed")
    words = ("-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    done = subprocess.run(
        [sys.executable, *words, "--disable-pip-version-check", "--target", str(place), EXAMPLE],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def call(*words, cwd, beside):
    path = os.pathsep.join([str(SOURCE), str(beside)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def rrr(*words, cwd, beside):
    return call("-m", "rightreasons", *words, cwd=cwd, beside=beside)


def test_the_example_is_listed_shown_and_passes_its_own_tests(installed, tmp_path):
    done = rrr("list", cwd=tmp_path, beside=installed)
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "(from own_parts.learner)" in lines["slow"]
    assert "hirescam" in done.stdout and "(from own_parts.explainer)" in done.stdout
    done = rrr("show", "slow", cwd=tmp_path, beside=installed)
    assert "slow.pull" in done.stdout and "distance between the logits" in done.stdout
    done = rrr("show", "hirescam", cwd=tmp_path, beside=installed)
    assert "rrr.explain=hirescam" in done.stdout
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests")
    done = call(*tests, cwd=tmp_path, beside=installed)
    assert done.returncode == 0 and done.stdout.startswith(".."), done.stdout


def test_the_example_runs_and_goes_on(installed, tmp_path):
    words = ("run", "glyphs-small", "slow+rrr", *TINY, "slow.pull=0.25", "rrr.explain=hirescam")
    whole = rrr(*words, "--out", "whole", cwd=tmp_path, beside=installed)
    assert whole.returncode == 0, whole.stderr
    cut = rrr(*words, "--out", "cut", cwd=tmp_path, beside=installed)
    assert cut.returncode == 0, cut.stderr
    (tmp_path / "cut" / "checkpoints" / "task-2.pt").unlink()
    (tmp_path / "cut" / "result.json").unlink()
    again = rrr(*words, "--out", "cut", cwd=tmp_path, beside=installed)
    assert again.returncode == 0, again.stderr
    a, b = (json.loads((tmp_path / n / "records.jsonl").read_text().splitlines()[1])
            for n in ("whole", "cut"))  # fmt: skip
    assert a["accuracy"] == b["accuracy"] and a["losses"] == b["losses"]
    assert a["losses"]["rrr"] > 0
    found = call("-c", "import rightreasons as rr; print(rr.load('cut').learner)",
                 cwd=tmp_path, beside=installed)  # fmt: skip
    assert "Slow(" in found.stdout and "pull=0.25" in found.stdout, found.stderr


def test_a_run_whose_package_is_gone_says_so(installed, tmp_path):
    words = ("run", "glyphs-small", "slow", *TINY, "--out", "run")
    assert rrr(*words, cwd=tmp_path, beside=installed).returncode == 0
    done = rrr("predict", "run", "x.png", cwd=tmp_path, beside=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "'slow'" in done.stderr and "install the package" in done.stderr


# --- the other kinds, and what can be wrong ------------------------------------------------------

PARTS = '''
"""Parts of every kind."""
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
import rightreasons as rr
from rightreasons.types import Images, Splits


@dataclass
class Embeddings(rr.Term):
    """The pooled embedding, remembered."""

    name: ClassVar[str] = "embeddings"

    def remember(self, net, batch, out):
        return {"embeddings.z": out.z.detach()}

    def __call__(self, net, out, batch, columns):
        return (out.z - columns["embeddings.z"]).square().mean()


def little():
    """A net of one convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    )


@dataclass(frozen=True)
class Stripes:
    """Bright rows at another height for each class."""

    size: int = 32
    flip = True

    @property
    def names(self):
        return ("a", "b", "c", "d")

    def load(self, classes):
        y = torch.arange(len(classes)).repeat_interleave(8)
        x = torch.zeros(len(y), 3, self.size, self.size, dtype=torch.uint8)
        for i, c in enumerate(torch.tensor(list(classes))[y]):
            x[i, :, 8 * int(c) : 8 * int(c) + 4] = 255
        return Splits(Images(x, y), Images(x, y))


not_a_learner = 3
'''
POINTS = {
    "terms": {"embeddings": "parts:Embeddings"},
    "nets": {"little": "parts:little"},
    "sources": {"stripes": "parts:Stripes"},
    "learners": {
        "broken": "no_such_module:Learner",
        "three": "parts:not_a_learner",
        "other": "rightreasons.learners.er:ER",
        "er": "parts:not_a_learner",
    },
    "explainers": {"torn": "torn:explain"},
}


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A package as pip would leave it, with parts of every kind and some that are wrong."""
    place = tmp_path_factory.mktemp("others")
    (place / "parts.py").write_text(PARTS)
    (place / "torn.py").write_text("raise RuntimeError('torn apart')\n")
    info = place / "many_parts-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: many-parts\nVersion: 1.0\n")
    groups = [
        f"[rightreasons.{group}]\n" + "\n".join(f"{n} = {v}" for n, v in points.items())
        for group, points in POINTS.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
    return place


def test_every_kind_of_part_is_used(others, tmp_path):
    words = ("data.source=stripes", "stream.tasks=2", "stream.classes=4", "train.epochs=3")
    done = rrr(
        "run", "glyphs-small", "er+embeddings", *words, "memory.size=8", "net.name=little",
        "--out", "run", cwd=tmp_path, beside=others,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert json.loads(records[1])["losses"]["embeddings"] > 0
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "source: stripes" in config and "name: little" in config
    loaded = call("-c", "import rightreasons as rr; print(rr.load('run').net.name)",
                  cwd=tmp_path, beside=others)  # fmt: skip
    assert loaded.stdout.strip() == "little", loaded.stderr


def test_a_part_that_cannot_be_imported_is_named_and_the_rest_works(others, tmp_path):
    done = rrr("list", cwd=tmp_path, beside=others)
    assert done.returncode == 0, done.stderr
    listed = " ".join(done.stdout.split())
    assert "NOT USABLE: 'broken' of package many-parts" in listed
    assert "No module named 'no_such_module'" in listed
    assert "RuntimeError: torn apart" in listed and "pip uninstall many-parts" in listed
    assert "The pooled embedding, remembered. (from parts)" in listed
    assert "A net of one convolution. (from parts)" in listed
    assert done.stdout.count("er ") and "'er' of package" not in listed  # ours stays ours


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("broken",), "'broken' of package many-parts"),
        (("three",), "is not a subclass of rr.Learner; make it one"),
        (("other",), "calls itself 'er'; let its class have name = 'other'"),
        (("er+rrr", "rrr.explain=torn"), "RuntimeError: torn apart"),
    ],
)
def test_a_broken_part_that_is_asked_for_is_refused(others, tmp_path, words, said):
    done = rrr("run", "glyphs-small", *words[:1], *TINY, *words[1:], cwd=tmp_path, beside=others)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
