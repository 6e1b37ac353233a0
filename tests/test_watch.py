"""Watched images: which they are, what is kept of them, and that going on changes nothing."""

from __future__ import annotations

import os
import random
import shutil

import numpy as np
import pytest
import torch

import rightreasons as rr
from rightreasons.reports.evolution import read_maps
from rightreasons.reports.read import read_run
from rightreasons.types import Images
from rightreasons.watch import IMAGES, SIDE, _small, _small_masks, watched

DAMAGED = ["er/maps/task-3.npz is damaged: maps from task 3 on are left out"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run from Python of two methods, matched."""
    base = tmp_path_factory.mktemp("watch")
    stream = rr.stream("glyphs", tasks=3, classes=6, train=12, test=4, size=16)
    train = rr.Train(epochs=1, batch=8, optimiser="adamw", augment=rr.Augment(2, False))
    for name, learner in (("er", rr.ER(memory=rr.Memory(12))), ("rrr", rr.ER() + rr.RRR())):
        rr.fit(learner, rr.net("resnet8"), stream, train=train, run=base / name, progress=False)
    return base, stream, train


def arrays(folder):
    files = sorted((folder / "maps").iterdir())
    return {f.name: dict(np.load(f, allow_pickle=False)) for f in files}


def test_matched_runs_watch_the_same_images(ran):
    base, _, _ = ran
    one, other = arrays(base / "er"), arrays(base / "rrr")
    assert list(one) == list(other) == ["task-1.npz", "task-2.npz", "task-3.npz"]
    for name in one:
        for key in ("image", "label", "pixels", "masks", "names"):
            assert np.array_equal(one[name][key], other[name][key]), key
    assert any(not np.array_equal(one[n]["maps"], other[n]["maps"]) for n in one)


def test_what_is_kept_is_what_the_finished_model_says(ran):
    base, _, _ = ran
    found = read_maps(read_run(base / "er"))
    assert len(found.pictures) == 3 * IMAGES and not found.problems
    places = sorted(found.pictures)
    pixels = np.stack([found.pictures[place].pixels for place in places])
    said = rr.load(base / "er").predict(pixels)
    for i, place in enumerate(places):
        look = found.looks[place][3]
        assert sorted(found.looks[place]) == list(range(place[0] + 1, 4))
        assert look.answer == said.names[i]
        assert look.correct == (said.names[i] == found.pictures[place].name)
        assert look.peak == pytest.approx((said.peaks[i] + 0.5) / 16)
        row, column = said.peaks[i]
        assert look.hit == bool(found.pictures[place].mask[row, column])


def test_going_on_writes_the_same_files(ran, tmp_path):
    base, stream, train = ran
    cut = tmp_path / "er"
    shutil.copytree(base / "er", cut)
    before = {p.name: p.read_bytes() for p in (cut / "maps").iterdir()}
    (cut / "result.json").unlink()
    (cut / "checkpoints" / "task-3.pt").unlink()
    (cut / "maps" / "task-2.npz").write_bytes(b"an older try")  # of a finished task: stays
    learner = rr.ER(memory=rr.Memory(12))
    rr.fit(learner, rr.net("resnet8"), stream, train=train, run=cut, progress=False)
    after = {p.name: p.read_bytes() for p in (cut / "maps").iterdir()}
    assert after.pop("task-2.npz") == b"an older try" and before.pop("task-2.npz")
    assert after == before


def test_images_with_a_mask_come_first():
    x = torch.zeros(10, 3, 4, 4, dtype=torch.uint8)
    masks = torch.zeros(10, 4, 4, dtype=torch.bool)
    masks[[3, 8, 9]] = True
    assert watched(Images(x, torch.arange(10), masks)).y.tolist() == [3, 9]
    masks[[8, 9]] = False  # one is not enough
    assert watched(Images(x, torch.arange(10), masks)).y.tolist() == [2, 7]
    assert watched(Images(x, torch.arange(10))).y.tolist() == [2, 7]
    assert watched(Images(x[:1], torch.arange(1))).y.tolist() == [0]
    assert len(watched(Images(x[:0], torch.arange(0)))) == 0


def test_large_pictures_are_kept_small_and_masks_with_them():
    x = torch.zeros(1, 3, 224, 160, dtype=torch.uint8)
    x[..., :80] = 200
    small = _small(x)
    assert small.shape == (1, 3, SIDE, 69) and small[0, 0, 0].tolist()[:34] == [200] * 34
    masks = torch.zeros(1, 224, 160, dtype=torch.bool)
    masks[:, :112] = True
    assert _small_masks(masks, small.shape[2:])[0, :, 0].tolist() == [True] * 48 + [False] * 48
    assert _small(x[..., :32, :32]).shape == (1, 3, 32, 32)


def test_a_damaged_file_is_named_and_left_out(ran, tmp_path):
    base, _, _ = ran
    cut = tmp_path / "er"
    shutil.copytree(base / "er", cut)
    (cut / "maps" / "task-3.npz").write_bytes(b"PK\x03\x04 not a zip")
    found = read_maps(read_run(cut, "er/0"))
    assert found.problems == ["er/0/maps/task-3.npz is damaged: maps from task 3 on are left out"]
    assert all(max(looks) == 2 for looks in found.looks.values())
    (cut / "maps" / "task-2.npz").write_bytes(b"")
    found = read_maps(read_run(cut, "er/0"))  # the third refers to images of the second
    assert found.problems == ["er/0/maps/task-2.npz is damaged: maps from task 2 on are left out"]


def test_a_byte_that_is_another_never_stops_a_report(ran, tmp_path):
    base, _, _ = ran
    shutil.copytree(base / "er", tmp_path / "er")
    run, path = read_run(tmp_path / "er", "er"), tmp_path / "er" / "maps" / "task-3.npz"
    data, draw = path.read_bytes(), random.Random("flip")
    seen = 0
    for place in draw.sample(range(len(data)), 400):
        path.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
        )
        seen += read_maps(run).problems == [
            "er/maps/task-3.npz is damaged: maps from task 3 on are left out"
        ]
    assert seen > 300  # dates and such are in it, too
    path.unlink()
    os.mkfifo(path)  # would be waited for
    assert read_maps(run).problems == [
        "er/maps/task-3.npz is damaged: maps from task 3 on are left out"
    ]


def test_pickles_are_not_loaded(ran, tmp_path):
    base, _, _ = ran
    cut = tmp_path / "er"
    shutil.copytree(base / "er", cut)
    good = arrays(cut)["task-1.npz"]
    np.savez(cut / "maps" / "task-1.npz", **{**good, "names": np.array([print, print], object)})
    assert read_maps(read_run(cut, "er")).problems[0].startswith("er/maps/task-1.npz")
