"""What is said of a data set: what it is, whether it is whole, and what to do if it is not."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from rightreasons.data import check as module
from rightreasons.data.check import check
from rightreasons.errors import UserError


def pictures(base, folders, n=3):
    for i, folder in enumerate(folders):
        (base / folder).mkdir(parents=True)
        for j in range(n):
            pixels = np.random.default_rng(10 * i + j).integers(0, 256, (9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(base / folder / f"{j}.png")
    return base


def cifar(base, monkeypatch, n=200):
    base.mkdir()
    rows = {b"data": np.zeros((n, 3072), np.uint8), b"fine_labels": [i % 100 for i in range(n)]}
    names = {b"fine_label_names": [f"c{i}" for i in range(100)]}
    for name, value in (("train", rows), ("test", rows), ("meta", names)):
        (base / name).write_bytes(pickle.dumps(value))
    monkeypatch.setattr(module, "CIFAR", {"train": n, "test": n})
    return base


def cub(base, monkeypatch):
    names = ["001.A", "002.B"]
    paths = [f"{name}/{i}.png" for name in names for i in range(4)]
    pictures(base / "images", names, n=4)
    pictures(base / "segmentations", names, n=3)
    texts = {
        "images": paths,
        "classes": names,
        "image_class_labels": [int(path[2]) for path in paths],
        "train_test_split": [int(path[6]) % 2 for path in paths],
        "bounding_boxes": ["1 2 3 4"] * 8,
    }
    for name, values in texts.items():
        text = "".join(f"{i + 1} {value}\n" for i, value in enumerate(values))
        (base / f"{name}.txt").write_text(text)
    monkeypatch.setattr(module, "CUB", {"classes": 2, "train": 4, "test": 4})
    return base


def said(report):
    assert all("\n" not in line for line in report.lines)
    return "\n".join(report.lines)


def test_class_folders(tmp_path):
    report = check(pictures(tmp_path, ["train/a", "train/b", "val/a", "val/b"]))
    assert report.passed
    text = said(report)
    for part in ("class folders: passed", "2 classes", "train  6 images, 3 a class", "val  6"):
        assert part in text
    assert "12 of 12 images can be read" in text and "problem" not in text


def test_class_folders_without_a_split(tmp_path):
    text = said(check(pictures(tmp_path, ["a", "b"], n=5)))
    assert "train  8 images, 4 a class" in text and "test, 20% of each class  2 images" in text


def test_everything_that_is_wrong_with_class_folders_is_said(tmp_path):
    pictures(tmp_path, ["train/a", "val/a", "train/b", "val/b", "train/c"], n=6)
    (tmp_path / "train/d").mkdir()
    for j in range(5):
        (tmp_path / f"train/a/{j}.png").write_text("no image")
    (tmp_path / "val/b/copy.png").write_bytes((tmp_path / "train/b/0.png").read_bytes())
    (tmp_path / "val/b/photo.heic").write_text("x")
    report = check(tmp_path)
    text = said(report)
    assert not report.passed and "6 problems" in text
    assert "class 'c' has no test image" in text and "train/d has no image" in text
    assert text.count("cannot be read as an image") == 3 and "2 more files cannot be read" in text
    assert "note: 1 test images are train images too" in text
    assert "note: 1 files in class folders have no image ending" in text


def test_images_that_are_not_used_are_said(tmp_path):
    pictures(tmp_path, ["train/a", "train/b", "valid/a", "valid/b", "train/a/sub", "dev/a"])
    report = check(tmp_path)
    text = said(report)
    assert report.passed and "valid  6 images, 3 a class" in text
    assert "note: 3 images in folders below class folders are left out" in text
    assert f"note: images in {tmp_path / 'dev'} are not used" in text


def test_masks_among_the_class_folders_are_told_what_to_type(tmp_path):
    report = check(pictures(tmp_path, ["a", "b", "masks/a", "masks/b"]))
    text = said(report)
    assert not report.passed and "1 problem" in text and "left out" not in text
    assert "masks has no image of its own, but folders of other classes; if they hold" in text
    assert "type data.masks=masks with rrr run" in text


def test_a_class_list_chooses_the_class_folders_that_are_read(tmp_path):
    pictures(tmp_path / "x", ["train/a", "train/b", "val/a", "val/b"])
    (tmp_path / "x/train/b/0.png").write_text("no image")
    (tmp_path / "list.txt").write_text("a\n")
    report = check(tmp_path / "x", str(tmp_path / "list.txt"))
    assert report.passed and "6 of 6 images can be read" in said(report)
    (tmp_path / "list.txt").write_text("a\nc\n")
    assert "unknown class in" in said(check(tmp_path / "x", str(tmp_path / "list.txt")))
    (tmp_path / "list.txt").write_text("a\nc\nd\n")
    text = said(check(tmp_path / "x", str(tmp_path / "list.txt")))
    assert "lacks 2 of the 3 classes of" in text and "such as c; add their folders" in text
    text = said(check(tmp_path / "x", "imagenet100.txt"))
    assert "lacks 100 of the 100 classes of" in text and "image-net.org" in text
    with pytest.raises(UserError, match="--classes is for class folders"):
        check(tmp_path, "list.txt")


def test_cifar100(tmp_path, monkeypatch):
    base = cifar(tmp_path / "cifar-100-python", monkeypatch)
    report = check(base)
    text = said(report)
    assert report.passed and "train  200 images, 2 a class" in text
    assert text.count("is not the official file byte by byte") == 3
    monkeypatch.setattr(module, "CIFAR", {"train": 200, "test": 300})
    report = check(base)
    assert not report.passed and "test has 200 images, expected 300; get" in said(report)
    (base / "train").write_bytes(b"cos\nsystem\n(S'exit'\ntR.")
    assert "problem: " in said(check(base)) and "os.system" in said(check(base))
    (base / "train").unlink()
    assert "CIFAR-100 is not in" in said(check(base))


def test_cub200(tmp_path, monkeypatch):
    base = cub(tmp_path / "CUB_200_2011", monkeypatch)
    report = check(base)
    text = said(report)
    assert report.passed and "masks  of 6 of 8 images" in text and "8 of 8 images can be" in text
    Image.fromarray(np.full((9, 9), 3, np.uint8)).save(base / "segmentations/001.A/0.png")
    assert "note: 1 masks show no object, such as" in said(check(base))
    (base / "images/001.A/0.png").unlink()
    (base / "bounding_boxes.txt").unlink()
    monkeypatch.setattr(module, "CUB", {"classes": 200, "train": 4, "test": 4})
    report = check(base)
    text = said(report)
    assert not report.passed and "0.png is not there" in text
    assert "no bounding_boxes.txt" in text and "there are 2 classes, expected 200; get" in text
    (base / "images.txt").unlink()
    assert "CUB-200-2011 is not in" in said(check(base))


def test_a_folder_of_data_sets(tmp_path, monkeypatch):
    cifar(tmp_path / "cifar-100-python", monkeypatch)
    pictures(tmp_path / "mine", ["a", "b"])
    (tmp_path / "notes").mkdir()
    report = check(tmp_path)
    text = said(report)
    assert report.passed and "mine: class folders: passed" in text and "CIFAR-100: passed" in text
    assert "CUB-200-2011 is not here; if you need it, get" in text
    cub(tmp_path / "CUB_200_2011", monkeypatch)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/session_1.txt").write_text("CUB_200_2011/images/001.A/1.png\n")
    (tmp_path / "lists/test_1.txt").write_text("CUB_200_2011/images/001.A/9.png\n")
    report = check(tmp_path)
    text = said(report)
    assert not report.passed and "lists: few-shot lists: 1 problem" in text and "9.png" in text
    (tmp_path / "lists/test_1.txt").write_text("CUB_200_2011/images/001.A/2.png\n")
    assert check(tmp_path).passed


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_what_is_no_data_set(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    report = check(str(tmp_path / name))
    text = said(report)
    assert not report.passed
    for part in (str(tmp_path / name), "Toronto", "Caltech", "image-net.org", "FOLDER/CLASS"):
        assert part in text


def test_real_data():
    data = os.environ.get("RRR_DATA")
    if not data:
        pytest.skip("RRR_DATA is not set: real data not checked")
    report = check(data)
    assert report.passed, said(report)
