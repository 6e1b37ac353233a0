"""The paper's benchmarks as presets: splits, class orders, memory, schedules."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rightreasons.config import build, resolve
from rightreasons.data import cache
from rightreasons.data.files import SHIPPED
from rightreasons.errors import UserError
from rightreasons.keep import keep
from rightreasons.loop import Loop
from rightreasons.types import Images, Splits

PAPER = ["cifar100-10", "cifar100-20", "imagenet100-10", "cub200-11"]
TEN = [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]
TWENTY = [400, 200, 133, 100, 80, 66, 57, 50, 44, 40]
TWENTY += [36, 33, 30, 28, 26, 25, 23, 22, 21, 20]


class Blank:
    """A source of as many classes and images as the real one, one black pixel each."""

    flip = True

    def __init__(self, names, train, test=1):
        self.names, self.train, self.test = tuple(names), train, test

    def load(self, classes):
        parts = []
        for each in (self.train, self.test):
            y = torch.arange(len(classes)).repeat_interleave(each)
            parts.append(Images(torch.zeros(len(y), 3, 1, 1, dtype=torch.uint8), y))
        return Splits(*parts)


def stream_of(name, source=None, *overrides):
    parts = build(resolve(name, "er", overrides))
    parts.source = source or parts.source
    return parts, parts.load()[1]


def remembered(parts, stream):
    """Rows of each class after every task, as the loop stores them."""
    loop = Loop(parts.learner, parts.load()[0], stream, parts.train, 0)
    for task in stream:
        keep(loop.learner, loop.net, loop.feed, task)
        yield torch.bincount(loop.memory.tensor("y"), minlength=task.seen).tolist()


@pytest.mark.parametrize(("name", "counts"), [("cifar100-10", TEN), ("cifar100-20", TWENTY)])
def test_cifar100_keeps_so_many_images_of_each_class_after_every_task(name, counts):
    names = [f"c{i}" for i in range(100)]
    parts, stream = stream_of(name, Blank(names, train=500))
    assert stream.class_names == tuple(names)  # the natural order
    step = 100 // len(counts)
    assert [task.classes for task in stream] == [
        tuple(range(i, i + step)) for i in range(0, 100, step)
    ]
    kept = list(remembered(parts, stream))
    assert kept == [[count] * (step * (k + 1)) for k, count in enumerate(counts)]


def test_cub200_keeps_four_of_the_base_classes_and_one_of_later_ones():
    parts, stream = stream_of("cub200-11", Blank([f"{i:03d}" for i in range(200)], train=5))
    kept = list(remembered(parts, stream))
    assert kept == [[4] * 100 + [1] * (10 * k) for k in range(11)]


@pytest.mark.parametrize("name", PAPER)
def test_schedules_are_the_paper_s(name):
    train = build(resolve(name, "er")).train
    assert (train.epochs, train.batch, train.optimiser, train.lr) == (70, 128, "radam", 1e-3)
    assert (train.milestones, train.gamma, train.weight_decay) == ((20, 40, 60), 0.2, 0)
    assert dict(train.later) == ({"batch": 10} if name == "cub200-11" else {})


# --- ImageNet100 ---------------------------------------------------------------------------------


def shipped():
    return (SHIPPED / "imagenet100.txt").read_text("utf-8").split()


def test_the_class_list_is_the_first_100_wnids_in_the_order_of_seed_1993():
    wnids = sorted(shipped())
    assert len(set(wnids)) == 100 and (wnids[0], wnids[-1]) == ("n01440764", "n01855672")
    assert hashlib.sha256("\n".join(wnids).encode()).hexdigest()[:16] == "e685f52fed1378fd"
    order = np.arange(100)
    np.random.RandomState(1993).shuffle(order)  # noqa: NPY002 the order that others used
    assert order[:6].tolist() == [68, 56, 78, 8, 23, 84] and order[-4:].tolist() == [29, 49, 57, 33]
    assert shipped() == [wnids[i] for i in order]


def imagenet(base, wnids, others=()):
    """A folder as ImageNet's, with classes beside the wanted ones that cannot even be read."""
    for i, name in enumerate([*wnids, *others]):
        for part, n in (("train", 2), ("val", 1)):
            folder = base / "imagenet" / part / name
            folder.mkdir(parents=True)
            for j in range(n):
                file = folder / f"{name}_{part}{j}.JPEG"
                if name in others:
                    file.write_text("no image")
                else:
                    pixels = np.full((30, 40, 3), 2 * i, np.uint8)
                    pixels[0, 0] = 40 * j, 100 * (part == "val"), 0  # no file twice
                    Image.fromarray(pixels).save(file, quality=95)


def test_imagenet100_reads_and_caches_the_listed_classes_alone(tmp_path, monkeypatch):
    wnids = shipped()
    imagenet(tmp_path, sorted(wnids), [f"n09{i:06d}" for i in range(40)])
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    monkeypatch.setenv("RRR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALL", 1)
    parts, stream = stream_of("imagenet100-10", None, "data.size=16")
    assert stream.class_names == tuple(wnids)
    assert [task.classes for task in stream] == [tuple(range(k, k + 10)) for k in range(0, 100, 10)]
    assert len(stream[0].train.x) == 300  # pixels of the cache: 100 classes of 2 + 1
    for task in stream:
        seen = task.train.pixels(torch.arange(len(task.train)))[:, 0, 8, 8].int()
        expected = [2 * sorted(wnids).index(wnids[y]) for y in task.train.y.tolist()]
        assert (seen - torch.tensor(expected)).abs().max() <= 2
    assert parts.train.augment.cut == 224
    assert resolve("imagenet100-10", "er")["data"]["size"] == 256


def test_another_class_list_takes_the_place_of_the_one_that_ships(tmp_path, monkeypatch):
    imagenet(tmp_path, ["n03", "n01", "n02"])
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    (tmp_path / "mine.txt").write_text("n02\nn03\n")
    _, stream = stream_of(
        "imagenet100-10", None, "data.size=16", "data.classes=mine.txt", "stream.tasks=2"
    )
    assert stream.class_names == ("n02", "n03")
    (tmp_path / "imagenet" / "imagenet100.txt").write_text("n01\nn02\n")  # below the folder
    _, stream = stream_of("imagenet100-10", None, "data.size=16", "stream.tasks=2")
    assert stream.class_names == ("n01", "n02")


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        stream_of("imagenet100-10", None, "data.size=16", *overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_missing_of_imagenet_is_said_with_where_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    where = "get ImageNet (ILSVRC2012) from image-net.org"
    assert "imagenet is not a folder" in refusal() and where in refusal()
    (tmp_path / "imagenet").mkdir()
    assert "holds no class folder" in refusal() and where in refusal()
    wnids = shipped()
    imagenet(tmp_path, wnids[:97])
    text = refusal()
    assert "lacks 3 of the 100 classes of" in text and wnids[97] in text and where in text
    for name in wnids[97:]:
        (tmp_path / "imagenet" / "train" / name).mkdir()
    text = refusal()
    assert f"{wnids[97]} has no image" in text
    held = tmp_path / "imagenet" / "val"
    for folder in list(held.iterdir()):  # as the official archive unpacks
        for file in folder.iterdir():
            file.rename(held / file.name)
        folder.rmdir()
    text = refusal()
    assert text.startswith(f"the images in {held} lie in no class folder; get ImageNet")


# --- the real data -------------------------------------------------------------------------------


def real(folder):
    data = os.environ.get("RRR_DATA")
    if not data or not (Path(data) / folder).exists():
        pytest.skip(f"RRR_DATA is not set: real {folder} not tested")


@pytest.mark.filterwarnings("ignore::rightreasons.errors.DataWarning")
@pytest.mark.parametrize(("name", "tasks"), [("cifar100-10", 10), ("cifar100-20", 20)])
def test_real_cifar100_comes_in_its_official_order(name, tasks):
    real("cifar-100-python")
    _, stream = stream_of(name)
    assert [len(task.train) for task in stream] == [50_000 // tasks] * tasks
    assert [len(task.test) for task in stream] == [10_000 // tasks] * tasks
    assert stream.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert stream.class_names == tuple(sorted(stream.class_names))  # the official labels' order


def test_real_cub200_has_the_sizes_of_the_protocol(tmp_path, monkeypatch):
    real("CUB_200_2011")
    monkeypatch.setenv("RRR_CACHE", str(tmp_path))
    _, stream = stream_of("cub200-11", None, "data.size=8", "data.masks=false")
    assert [len(task.train) for task in stream] == [3000] + [50] * 10
    sizes = [2864, 279, 287, 298, 300, 298, 288, 297, 295, 288, 300]
    assert [len(task.test) for task in stream] == sizes
    numbers = [int(name[:3]) for name in stream.class_names]
    assert numbers == list(range(1, 201))
    assert [len(task.classes) for task in stream] == [100] + [10] * 10
