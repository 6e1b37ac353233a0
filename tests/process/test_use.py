"""Commands on a finished run, as a user types them, with good and with bad words."""

from __future__ import annotations

import shutil
import subprocess
import sys

import inside
import numpy as np
import pytest
import torch
from PIL import Image

import rightreasons as rr

TINY = [
    "stream.tasks=2", "stream.classes=4", "data.train=8", "data.test=4", "train.epochs=1",
    "train.batch=8", "memory.size=8",
]  # fmt: skip


def rrr(*words, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "rightreasons", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run, images of a class it knows, and two new class folders."""
    base = tmp_path_factory.mktemp("use")
    done = rrr("run", "glyphs-small", "er+evidence", *TINY, "--out", base / "run")
    assert done.returncode == 0, done.stderr
    stream = rr.stream("glyphs", tasks=1, train=6, test=1)
    known = rr.load(base / "run").class_names
    new = [name for name in stream.class_names if name not in known][:2]
    images = stream[0].train
    for i in range(len(images)):
        name = stream.class_names[int(images.y[i])]
        if name not in new:
            continue
        folder = base / "new" / name
        folder.mkdir(parents=True, exist_ok=True)
        pixels = images.pixels(torch.tensor([i]))[0].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return base


def test_predict_names_classes_and_draws_where_it_looked(place):
    image = next((place / "new").glob("*/*.png"))
    done = rrr("predict", place / "run", image, image, "--pictures", place / "looks", "--top", 2)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"{image}: ") and first.count("%") >= 2
    drawn = sorted((place / "looks").iterdir())
    assert len(drawn) == 2
    with Image.open(drawn[0]) as picture:
        assert picture.size[0] > 200


def test_explain_draws_explainers_side_by_side_for_every_task(place):
    grey, clear = place / "grey.png", place / "clear.png"
    image = next((place / "new").glob("*/*.png"))
    with Image.open(image) as pixels:
        pixels.convert("L").save(grey)
        pixels.convert("RGBA").save(clear)
    words = ["--explainers", "gradcam,guided", "--tasks", "all", "--out", place / "why.png"]
    done = rrr("explain", place / "run", image, grey, clear, *words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 and lines[0].startswith(f"{image}: task 1: ")
    assert all(line.count("%") == 2 for line in lines[:3])
    with Image.open(place / "why.png") as picture:
        width, height = picture.size
    assert height > 1.5 * width  # six rows of three
    one = rrr("explain", place / "run", image, "--out", place / "one.png")
    assert one.returncode == 0, one.stderr
    with Image.open(place / "one.png") as picture:
        assert picture.size[0] > 3 * picture.size[1]


def test_the_picture_says_which_class_is_explained_whatever_its_name(place):
    """A class may be called $x$, which would be read as mathematics."""
    from rightreasons.model import Explanations
    from rightreasons.use import draw_explanations

    pixels = np.zeros((1, 3, 8, 8), np.uint8)
    name = "$\\frac{"  # as mathematics it is an error
    maps = {"gradcam": np.ones((1, 8, 8), np.float32)}
    found = Explanations([name], np.ones(1, np.float32), pixels, maps)
    for of in (None, name):
        draw_explanations([("", found)], place / "odd.png", of)
    image = next((place / "new").glob("*/*.png"))
    known = rr.load(place / "run").class_names[0]
    done = rrr("explain", place / "run", image, "--of", known, "--out", place / "of.png")
    assert done.returncode == 0, done.stderr


def test_extend_learns_new_folders_beside_the_run(place):
    before = (place / "run" / "result.json").read_text("utf-8")
    done = rrr("extend", "run", "new", cwd=place)
    assert done.returncode == 0, done.stderr
    assert (place / "run+3" / "result.json").exists()
    assert (place / "run" / "result.json").read_text("utf-8") == before
    model = rr.load(place / "run+3")
    assert len(model.class_names) == 4 + len(list((place / "new").iterdir()))
    again = rrr("predict", "run+3", next((place / "new").glob("*/*.png")), cwd=place)
    assert again.returncode == 0, again.stderr
    shutil.copytree(next((place / "new").iterdir()), place / "more" / "another")
    bad = place / "more" / "another" / "bad.png"
    bad.write_bytes(b"no image")
    assert rrr("extend", "run+3", "more", cwd=place).returncode == 2
    once_more = rrr("extend", "run+3", "more", "--skip-bad", cwd=place)
    assert once_more.returncode == 0, once_more.stderr
    assert (place / "run+3+4" / "result.json").exists()


@pytest.mark.parametrize(
    "name",
    [
        "rrr",
        "er+evidence",
        "glyphs-small",
        "train",
        "folder",
        "smoothgrad",
        "squeezenet1_1",
        "resnet34",
    ],
)
def test_show_prints_fields_and_defaults(name, tmp_path):
    done = inside.rrr("show", name, cwd=tmp_path)
    assert done.code == 0, done.err
    expected = {
        "rrr": ["paper", "released", "recommended", "rrr.weight", "100.0"],
        "er+evidence": ["er.replay", "evidence.weight", "0.1"],
        "glyphs-small": ["tasks: 5", "resnet8"],
        "train": ["train.epochs", "train.later"],
        "folder": ["data.path", "(needed)"],
        "smoothgrad": ["Smilkov", "samples=40", "rrr.explain=smoothgrad"],
        "squeezenet1_1": ["features.12.expand3x3", "13x13", "33.3 %"],
        "resnet34": ["layer4", "7x7"],
    }[name]
    assert all(word in done.out for word in expected)


def test_list_names_everything(tmp_path):
    done = inside.rrr("list", cwd=tmp_path)
    for word in ("glyphs-small", "cifar100-10", "finetune", "evidence", "gradcam", "resnet8"):
        assert word in done.out


def test_a_folder_of_class_folders_is_a_benchmark(place):
    words = ["train.epochs=1", "data.size=16", "memory.size=4", "--out", place / "own"]
    done = rrr("run", place / "new", "er+rrr", *words)
    assert done.returncode == 0, done.stderr
    model = rr.load(place / "own")
    assert set(model.class_names) == {f.name for f in (place / "new").iterdir()}
    assert model.config["benchmark"] == "folder" and model.size == (16, 16)
    missing = rrr("run", "folder", "er")
    assert missing.returncode == 2 and "FOLDER" in missing.stderr
