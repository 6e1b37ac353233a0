"""A user's own folder as it is typed: bad files, where the run goes, and going on with it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

WORDS = ("train.epochs=1", "data.size=8", "memory.size=4", "train.threads=1")


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    (tmp_path / "photos" / "cat" / "bad.jpg").write_text("no image")
    return tmp_path


def rrr(place, *words):
    command = [sys.executable, "-m", "rightreasons", *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_bad_files_are_left_out_when_asked_and_the_run_is_named_after_the_folder(photos):
    refused = rrr(photos, "run", "photos", "er", *WORDS)
    assert refused.returncode == 2 and not (photos / "runs").exists()
    (line,) = refused.stderr.splitlines()
    assert "photos/cat/bad.jpg cannot be read as an image" in line and "--skip-bad" in line
    done = rrr(photos, "run", "photos", "er", *WORDS, "--skip-bad")
    assert done.returncode == 0, done.stderr
    assert "1 of 11 images are left out: photos/cat/bad.jpg" in done.stderr
    assert (photos / "runs" / "photos" / "er" / "0" / "result.json").exists()
    again = rrr(photos, "run", "photos", "er", *WORDS, "--skip-bad")
    assert "runs/photos/er/0 is finished already" in again.stdout
    other = rrr(photos, "run", "photos", "er", *WORDS)
    assert other.returncode == 2 and "finished" not in other.stdout
