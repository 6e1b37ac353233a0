"""CUB-200-2011: the official files, masks in lock-step, few-shot lists."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import rightreasons as rr
from rightreasons.data.cub200 import Cub200, sessions
from rightreasons.errors import DataWarning, UserError

NAMES = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")


def birds(base, each=6, segmentations="segmentations"):
    """A small CUB_200_2011: the bird is white, and image 0 of every class has no mask."""
    rows = []
    for c, name in enumerate(NAMES):
        for i in range(each):
            grey = np.zeros((30, 50), np.uint8)
            x, y = 12 + 2 * i, 2 + 4 * c
            grey[y : y + 10, x : x + 12] = 255
            path = f"{name}/bird_{i:04d}.png"
            for folder in ("images", segmentations):
                (base / folder / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(grey).convert("RGB").save(base / "images" / path)
            if i:  # grey levels are the share of five people; fewer than three are no bird
                levels = np.where(grey > 0, 153 if i % 2 else 255, 102).astype(np.uint8)
                Image.fromarray(levels).save(base / segmentations / path)
            rows.append((path, c + 1, int(i % 2 == 0)))
    texts = {
        "images": [row[0] for row in rows],
        "image_class_labels": [row[1] for row in rows],
        "train_test_split": [row[2] for row in rows],
        "bounding_boxes": ["12.0 2.0 13.0 14.0" for _ in rows],
        "classes": NAMES,
    }
    for name, values in texts.items():
        text = "".join(f"{i + 1} {value}\n" for i, value in enumerate(values))
        (base / f"{name}.txt").write_text(text)
    return base


def edit(file, old, new):
    file.write_text(file.read_text().replace(old, new, 1))


def test_images_labels_and_the_official_split(tmp_path):
    source = Cub200(str(birds(tmp_path / "CUB_200_2011")), size=16)
    assert source.names == NAMES and source.flip
    train, test = source.load([2, 0])
    assert train.y.tolist() == test.y.tolist() == [0, 0, 0, 1, 1, 1]
    lit = [(part.pixels(torch.arange(6))[:, 0] > 127).any(2) for part in (train, test)]
    for rows in lit:  # the third class's birds are lower than the first's
        low = [int(row.nonzero().min()) for row in rows]
        assert max(low[3:]) < min(low[:3])
    assert Cub200(str(tmp_path)).names == NAMES  # the folder above it


@pytest.mark.parametrize("where", ["segmentations", "../segmentations"])
@pytest.mark.parametrize("size", [15, 30])
def test_masks_are_cut_and_resized_with_their_images(tmp_path, where, size):
    source = Cub200(str(birds(tmp_path / "CUB_200_2011", segmentations=where)), size=size)
    assert source.unmasked == 3
    for part in source.load(range(3)):
        for i in range(len(part)):
            row = part.positions(torch.tensor([i]))
            white = part.pixels(torch.tensor([i]))[0, 0] > 127
            mask = part.masks[row][0]
            assert not mask.any() or torch.equal(mask, white)
    masked = [part.masks[part.rows].flatten(1).any(1) for part in source.load(range(3))]
    assert masked[0].tolist() == [False, True, True] * 3 and masked[1].all()


def test_without_masks(tmp_path):
    base = birds(tmp_path / "CUB_200_2011", segmentations="elsewhere")
    with pytest.warns(DataWarning, match="has no segmentations.*segmentations.tgz"):
        assert Cub200(str(base), size=16).load([0]).train.masks is None
    assert Cub200(str(base), size=16, masks=False).load([0]).train.masks is None


def test_a_box_stands_for_a_mask_that_is_missing(tmp_path):
    base = birds(tmp_path / "CUB_200_2011")
    plain, boxed = (Cub200(str(base), size=30, boxes=b).load(range(3)) for b in (False, True))
    for before, after in zip(plain, boxed, strict=True):
        masks = [part.masks[part.rows] for part in (before, after)]
        known = masks[0].flatten(1).any(1)
        assert torch.equal(masks[0][known], masks[1][known])  # a mask goes before the box
    train = boxed.train.masks[boxed.train.rows]
    assert train.flatten(1).any(1).all() and Cub200(str(base), boxes=True).unmasked == 3
    none = birds(tmp_path / "none" / "CUB_200_2011", segmentations="elsewhere")
    (none / "bounding_boxes.txt").write_text(
        "".join(f"{i + 1} 10 0 5 6\n" for i in range(18))  # of which the middle square has a part
    )
    masks = Cub200(str(none), size=30, boxes=True).load([0]).train.masks
    assert masks[0].nonzero().amax(0).tolist() == [5, 4] and masks[0].sum() == 30


@pytest.mark.parametrize("line", ["1 a b c d", "1 2 3 4", "99 1 2 3 4", "1 nan 2 3 4"])
def test_a_line_that_is_no_box(tmp_path, line):
    base = birds(tmp_path / "CUB_200_2011")
    (base / "bounding_boxes.txt").write_text(line + "\n")
    with pytest.raises(UserError, match="bounding_boxes.txt has the line .* four numbers"):
        Cub200(str(base), size=16, boxes=True).load([0])


def test_it_is_found_below_rrr_data(tmp_path, monkeypatch):
    birds(tmp_path / "CUB_200_2011")
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    stream = rr.stream("cub200", tasks=[2, 1], size=16)
    assert stream.class_names == NAMES and stream.data["source"] == "cub200"
    assert [len(task.train) for task in stream] == [6, 3]


def listed(folder, train, test):
    """Lists of sessions; ``(class, image)`` names a file."""
    folder.mkdir(exist_ok=True)
    for kind, parts in (("session", train), ("test", test)):
        for k, part in enumerate(parts):
            lines = [f"CUB_200_2011/images/{NAMES[c]}/bird_{i:04d}.png\n" for c, i in part]
            (folder / f"{kind}_{k + 1}.txt").write_text("".join(lines))
    return folder


TRAIN = [[(0, 1), (0, 4), (1, 0)], [(2, 5)]]
TEST = [[(0, 0), (1, 1), (1, 2)], [(2, 0), (2, 1)]]


def test_lists_replace_the_split(tmp_path, monkeypatch):
    birds(tmp_path / "CUB_200_2011")
    listed(tmp_path / "lists", TRAIN, TEST)
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    made = sessions("lists")
    assert [(len(s.train), len(s.test)) for s in made] == [(3, 3), (1, 2)]
    assert made[1].train == (f"{NAMES[2]}/bird_0005.png",)
    source = Cub200(size=30, lists="lists")
    train, test = source.load(range(3))
    assert train.y.tolist() == [0, 0, 1, 2] and test.y.tolist() == [0, 1, 1, 2, 2]
    assert source.unmasked == 3
    official = Cub200(size=30)
    whole = official.load(range(3))
    assert torch.equal(train.pixels(torch.tensor([3]))[0], whole.test.pixels(torch.tensor([8]))[0])


# --- refusals ------------------------------------------------------------------------------------


def refusal(path, **options):
    with pytest.raises(UserError) as caught:
        Cub200(str(path), size=16, **options).load(range(3))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_nothing_there(tmp_path):
    assert "is not in" in refusal(tmp_path) and "Caltech" in refusal(tmp_path)
    with pytest.raises(UserError, match="data.size is 2"):
        Cub200(size=2)


@pytest.mark.parametrize("name", ["classes", "image_class_labels", "train_test_split"])
def test_a_missing_list(tmp_path, name):
    base = birds(tmp_path)
    (base / f"{name}.txt").unlink()
    assert f"there is no file {base / name}.txt" in refusal(base)


@pytest.mark.parametrize(
    ("name", "old", "new", "seen"),
    [
        ("image_class_labels", "3 1\n", "3 9\n", "image 3 is '001.Black_footed_Albatross/bird_"),
        ("image_class_labels", "3 1\n", "", "of class unknown"),
        ("train_test_split", "3 1\n", "3 2\n", "and part 2"),
        ("images", "001.Black_footed_Albatross/bird_0000", "../../x/y", "'../../x/y.png'"),
        ("images", "001.Black_footed_Albatross/bird_0000", "../bird", "'../bird.png'"),
        ("images", "001.Black_footed_Albatross/bird_0000", "/etc/passwd", "'/etc/passwd.png'"),
        ("images", "2 001", "1 001", "expected a new id and a value"),
        ("classes", "2 002", "5 002", "does not count 1, 2, 3"),
    ],
)
def test_lists_that_do_not_fit(tmp_path, name, old, new, seen):
    base = birds(tmp_path)
    edit(base / f"{name}.txt", old, new)
    assert seen in refusal(base)


def test_images_that_are_missing_or_bad(tmp_path):
    base = birds(tmp_path)
    file = base / "images" / NAMES[0] / "bird_0001.png"
    file.write_bytes(file.read_bytes()[:60])
    assert f"{file} cannot be read as an image" in refusal(base)
    file.unlink()
    assert f"{file} is not there; remove or replace it, or leave out" in refusal(base)
    with pytest.warns(DataWarning, match="1 of 18 images are left out"):
        splits = Cub200(str(base), size=16, skip_bad=True).load(range(3))
    assert len(splits.train) + len(splits.test) == 17


def test_a_mask_of_another_size(tmp_path):
    base = birds(tmp_path)
    Image.new("L", (20, 20)).save(base / "segmentations" / NAMES[0] / "bird_0001.png")
    assert "is 20x20 pixels and its image 50x30" in refusal(base)


def test_few_shot_lists_that_do_not_fit(tmp_path):
    base = birds(tmp_path / "CUB_200_2011")
    lists = tmp_path / "lists"

    def text(train, test):
        return refusal(base, lists=str(listed(lists, train, test)))

    assert "holds no session_1.txt" in refusal(base, lists=str(tmp_path))
    overlap = text(TRAIN, [[*TEST[0], (0, 4)], TEST[1]])
    assert "bird_0004.png is in session_1.txt and in test_1.txt" in overlap
    assert "is in session_1.txt and in session_1.txt" in text([[(0, 1), (0, 1)], TRAIN[1]], TEST)
    assert "is in session_1.txt and in session_2.txt" in text([TRAIN[0], [(0, 1)]], TEST)
    missing = text([[*TRAIN[0], (0, 77)], TRAIN[1]], TEST)
    assert "session_1.txt" in missing and "bird_0077.png'; did you mean" in missing
    assert text([TRAIN[0], []], TEST) == (
        f"class '003.Sooty_Albatross' is in no session_K.txt of {lists}, expected every class of "
        "the stream; leave it out with stream.tasks, or add its list"
    )
    none = text(TRAIN, [TEST[0][:1], []])
    assert none.startswith("class '002.Laysan_Albatross' (and 1 more) is in no test_K.txt of")
    listed(lists, TRAIN, TEST)
    (lists / "test_2.txt").unlink()
    assert "holds 2 sessions and no test_2.txt" in refusal(base, lists=str(lists))
    (lists / "test_2.txt").write_text("images/../x.jpg\n")
    assert "expected CUB_200_2011/images/CLASS/FILE" in refusal(base, lists=str(lists))


# --- the real data -------------------------------------------------------------------------------


@pytest.fixture
def real():
    data = os.environ.get("RRR_DATA")
    if not data or not (Path(data) / "CUB_200_2011").exists():
        pytest.skip("RRR_DATA is not set: real CUB-200-2011 not tested")
    return Path(data)


def test_real_few_shot_lists_have_the_sizes_of_the_protocol(real):
    made = sessions(real / "fscil_cub200")
    assert [len(session.train) for session in made] == [3000] + [50] * 10
    sizes = [2864, 279, 287, 298, 300, 298, 288, 297, 295, 288, 300]
    assert [len(session.test) for session in made] == sizes
    source = Cub200(str(real / "CUB_200_2011"), lists=str(real / "fscil_cub200"))
    official = {entry.path: entry for entry in source.entries}
    assert all(official[entry.path].train == entry.train for entry in source.chosen())
    labels = [official[path].label for session in made for path in session.train]
    assert np.bincount(labels).tolist() == [30] * 100 + [5] * 100


def test_real_cub200(real):
    source = Cub200(str(real / "CUB_200_2011"), size=64)
    assert source.names[0] == NAMES[0] and len(source.names) == 200
    assert len(source.entries) == 11788 and source.unmasked == 2000
    train, test = source.load([0, 199])
    assert train.y.tolist() == [0] * 30 + [1] * 30 and len(test) == 60
    cover = train.masks[train.rows].float().mean((1, 2))
    assert 0.02 < float(cover[cover > 0].mean()) < 0.6
