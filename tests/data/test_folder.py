"""Class folders: layouts, splits, masks, boxes, class lists, and bad files."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import rightreasons as rr
from rightreasons.data import cache
from rightreasons.data.folder import Folder
from rightreasons.data.splits import read_all
from rightreasons.errors import DataWarning, UserError

SIZE = 8


def picture(file, seed=None, size=(12, 8), colour=None):
    """A PNG of noise, or of one colour."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if colour is not None:
        Image.new("RGB", size, colour).save(file)
        return
    rng = np.random.default_rng(abs(hash(file.as_posix())) % 2**32 if seed is None else seed)
    Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(file)


def fill(base, layout, n=3):
    """So many images in each of the folders."""
    for i, folder in enumerate(layout):
        for j in range(n):
            picture(base / folder / f"{folder.split('/')[0]}{j}.png", seed=100 * i + j)
    return base


def pixels(images):
    return images.pixels(torch.arange(len(images)))


def load(base, chosen=None, **options):
    source = Folder(str(base), size=SIZE, **options)
    return source.load(range(len(source.names)) if chosen is None else chosen)


# --- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["val", "test", "valid", "validation"])
@pytest.mark.parametrize("inner", ["", "/images"])
def test_train_and_test_folders(tmp_path, held, inner):
    fill(tmp_path, [f"{part}/{c}{inner}" for part in ("train", held) for c in "ab"])
    train, test = load(tmp_path, [1, 0])
    assert train.y.tolist() == test.y.tolist() == [0, 0, 0, 1, 1, 1]
    files = [tmp_path / f"train/{c}{inner}/train{j}.png" for c in "ba" for j in range(3)]
    assert torch.equal(pixels(train), read_all(files, SIZE))
    assert train.x is test.x and train.masks is None


def test_tiny_imagenet_as_it_is_distributed(tmp_path):
    fill(tmp_path, ["train/n01/images", "train/n02/images", "val/images"], n=4)
    (tmp_path / "train/n01/n01_boxes.txt").write_text("x")
    rows = [(3, "n01"), (0, "n02"), (1, "n01"), (2, "n02")]
    text = "".join(f"val{i}.png\t{name}\t0\t0\t5\t5\n" for i, name in rows)
    (tmp_path / "val/val_annotations.txt").write_text(text)
    fill(tmp_path, ["test/images"])
    test = load(tmp_path).test
    files = [tmp_path / f"val/images/val{i}.png" for i in (1, 3, 0, 2)]
    assert test.y.tolist() == [0, 0, 1, 1] and torch.equal(pixels(test), read_all(files, SIZE))
    (tmp_path / "val/val_annotations.txt").write_text("../../x.png n01")
    assert "expected `file class`" in refusal(tmp_path)


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_one_folder_is_split_by_seed(tmp_path, prefix):
    fill(tmp_path, [f"{prefix}{c}" for c in "abc"], n=10)
    splits = load(tmp_path, test=0.3)
    for part, count in ((splits.train, 7), (splits.test, 3)):
        assert part.y.bincount().tolist() == [count] * 3
    rows = torch.cat([splits.train.rows, splits.test.rows])
    assert sorted(rows.tolist()) == list(range(30))
    again, other = load(tmp_path, test=0.3), load(tmp_path, test=0.3, seed=1)
    assert torch.equal(splits.test.rows, again.test.rows)
    assert not torch.equal(splits.test.rows, other.test.rows)
    few = load(tmp_path, [2], test=0.3)  # what else is loaded does not matter
    assert torch.equal(pixels(few.test), pixels(splits.test)[6:])


def test_three_splits_train_on_one_and_test_on_one_and_say_so(tmp_path):
    fill(tmp_path, [f"{part}/{c}" for part in ("train", "valid", "test") for c in "ab"])
    with pytest.warns(DataWarning, match=r"images in .*/valid are not used: .*/test tests"):
        test = load(tmp_path).test
    assert torch.equal(pixels(test)[:3], read_all(sorted((tmp_path / "test/a").iterdir()), SIZE))


def test_images_beside_train_that_nothing_uses_are_warned_of(tmp_path):
    fill(tmp_path, ["train/a", "train/b", "dev/a", "old"])
    (tmp_path / "notes").mkdir()
    said = r"images in .*/dev \(and 1 more\) are not used: .*/train trains and a share of it tests"
    with pytest.warns(DataWarning, match=said):
        load(tmp_path)


def test_masks_beside_train_are_used(tmp_path):
    fill(tmp_path, ["train/a", "val/a"])
    for part in ("train", "val"):
        picture(tmp_path / f"more/masks/{part}/a/{part}0.png", colour="white")
    with pytest.warns(DataWarning, match=r"if they are masks type data.masks=more with rrr run"):
        load(tmp_path)
    splits = load(tmp_path, masks="more/masks")  # warnings are errors
    assert splits.train.masks.any()


def test_a_class_may_be_called_train(tmp_path):
    fill(tmp_path, ["train", "bus"])
    assert Folder(str(tmp_path)).names == ("bus", "train")
    assert load(tmp_path).train.y.bincount().tolist() == [2, 2]


@pytest.mark.parametrize("beside", [[], ["val"], ["notes"]])
def test_train_without_class_folders_is_no_class_beside_a_test_split_or_alone(tmp_path, beside):
    fill(tmp_path, ["train"])
    for name in beside:
        (tmp_path / name).mkdir()
    assert "train holds no class folder" in refusal(tmp_path)


def test_relative_paths_are_looked_for_below_rrr_data(tmp_path, monkeypatch):
    fill(tmp_path / "mine", ["a", "b"])
    (tmp_path / "mine" / "list").write_text("b\n")
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    assert Folder("mine").names == ("a", "b")
    assert Folder("mine", classes="list").names == ("b",)


def test_a_class_list_chooses_and_orders(tmp_path):
    fill(tmp_path, ["cat", "dog", "emu"])
    (tmp_path / "list.txt").write_text("emu\n\n  cat\n")
    source = Folder(str(tmp_path), classes=str(tmp_path / "list.txt"))
    assert source.names == ("emu", "cat")
    assert rr.stream(source, tasks=2).class_names == ("emu", "cat")


def test_a_list_may_begin_with_a_mark_of_its_bytes(tmp_path):
    spotted(tmp_path, ["cat", "dog"])
    (tmp_path / "list.txt").write_text("dog\ncat\n", encoding="utf-8-sig")
    assert Folder(str(tmp_path), classes="list.txt").names == ("dog", "cat")
    (tmp_path / "boxes.txt").write_text("cat/0.png 4 2 8 6\n", encoding="utf-8-sig")
    assert load(tmp_path, boxes="boxes.txt").train.masks.any()


def test_the_cache_does_not_depend_on_the_order_of_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("RRR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALL", 1)
    fill(tmp_path / "x", ["a", "b"])
    one, two = load(tmp_path / "x", [0, 1]), load(tmp_path / "x", [1, 0])
    assert len(list((tmp_path / "cache").glob("x-*"))) == 1
    for label in (0, 1):
        rows = [
            part.x[part.positions((part.y == y).nonzero().flatten())]
            for part, y in ((one.train, label), (two.train, 1 - label))
        ]
        assert torch.equal(*rows)


# --- masks and boxes -----------------------------------------------------------------------------


def spotted(base, folders, n=3, size=(24, 16)):
    """Black images with a white rectangle, and where it is."""
    places = {}
    for i, folder in enumerate(folders):
        for j in range(n):
            x, y = 4 + 2 * j, 2 + 2 * i
            pixels = np.zeros((*size[::-1], 3), np.uint8)
            pixels[y : y + 6, x : x + 8] = 255
            file = base / folder / f"{j}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
            places[f"{folder}/{j}.png"] = (x, y, 8, 6)
    return places


def agree(images, size):
    """The mask lies where the image is white."""
    for i in range(len(images)):
        row = images.positions(torch.tensor([i]))
        white = images.pixels(torch.tensor([i]))[0, 0] > 127
        assert torch.equal(images.masks[row][0], white), i
        assert white.any() and not white.all()


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("values", [255, 1])
def test_masks_follow_their_images(tmp_path, size, inside, values):
    spotted(tmp_path / "x", ["a", "b"])
    masks = tmp_path / "x" / "masks" if inside else tmp_path / "masks"
    for c in "ab":
        (masks / c).mkdir(parents=True)
        for j in range(3):
            grey = np.asarray(Image.open(tmp_path / f"x/{c}/{j}.png").convert("L"))
            Image.fromarray(grey // 255 * values).save(masks / c / f"{j}.bmp")
    train, test = Folder(str(tmp_path / "x"), size=size, masks=str(masks)).load([1, 0])
    agree(train, size)
    agree(test, size)


@pytest.mark.parametrize("form", ["xywh", "xyxy"])
def test_boxes_follow_their_images(tmp_path, form):
    places = spotted(tmp_path, ["train/a", "train/b b", "val/a", "val/b b"])
    lines = [
        f"{path} {x} {y} {w} {h}" if form == "xywh" else f"{path} {x} {y} {x + w - 1} {y + h - 1}"
        for path, (x, y, w, h) in places.items()
    ]
    (tmp_path / "boxes.txt").write_text("\n".join(lines))
    source = Folder(str(tmp_path), size=16, boxes="boxes.txt", box_format=form)
    for part in source.load([0, 1]):
        agree(part, 16)


def test_a_mask_follows_an_image_that_is_turned(tmp_path):
    seen = np.zeros((20, 40), np.uint8)
    seen[:10, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    for j in range(2):
        (tmp_path / "x" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "masks" / "a").mkdir(parents=True, exist_ok=True)
        turned = Image.fromarray(seen).convert("RGB").transpose(Image.Transpose.ROTATE_90)
        turned.save(tmp_path / f"x/a/{j}.png", exif=exif)
        Image.fromarray(seen).save(tmp_path / f"masks/a/{j}.png")
    with pytest.warns(DataWarning, match="1 test images are train images too"):
        train = Folder(str(tmp_path / "x"), size=20, masks=str(tmp_path / "masks")).load([0]).train
    agree(train, 20)


def test_images_without_a_mask_are_kept(tmp_path):
    spotted(tmp_path / "x", ["a"])
    (tmp_path / "masks" / "a").mkdir(parents=True)
    Image.new("L", (24, 16), 255).save(tmp_path / "masks/a/1.png")
    splits = load(tmp_path / "x", masks=str(tmp_path / "masks"))
    assert splits.train.masks.flatten(1).any(1).tolist() == [False, True, False]


def masked(base, values, name="0.png", palette=None):
    """Three images of class a, and a mask of these values."""
    for j in range(3):
        picture(base / f"x/a/{j}.png", size=(8, 8), seed=j)
    (base / "masks/a").mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    if palette:
        image.putpalette(palette)
    image.save(base / "masks/a" / name)
    return base / "x", str(base / "masks")


def columns(*values, kind=np.uint8):
    """8x8: each value in as many columns as there is room for."""
    return np.repeat(np.array(values, kind), 8 // len(values))[None].repeat(8, 0)


VOC = [0, 0, 0, 128, 0, 0, 192, 128, 128, 224, 224, 192]  # background, two classes, their border


@pytest.mark.parametrize(
    ("values", "palette", "object_"),
    [
        (columns(0, 3), None, [0, 1]),  # the number of a class
        (columns(0, 1, 4, 2), None, [0, 1, 1, 1]),
        (columns(0, 127), None, [0, 1]),
        (
            columns(0, 127, 128, 255),
            None,
            [0, 0, 1, 1],
        ),  # soft edges are cut where they always were
        (columns(0, 1, kind=np.uint16), None, [0, 1]),
        (columns(0, 255, kind=np.uint16), None, [0, 1]),
        (columns(0, 32895, 32896, 65535, kind=np.uint16), None, [0, 0, 1, 1]),
        (columns(0, 1), VOC, [0, 1]),
        (columns(0, 1, 2, 3), VOC, [0, 1, 1, 1]),
        (columns(0, 1), [255] * 3 + [0] * 3, [1, 0]),  # a palette of grey is bright or not
        (columns(1, 0), [253, 231, 37, 68, 1, 84], [0, 1]),  # nothing is black: yellow is bright
    ],
)
def test_masks_of_class_numbers_and_of_palettes(tmp_path, values, palette, object_):
    base, masks = masked(tmp_path, values, palette=palette)
    both = load(base, masks=masks, test=0.4)
    mask = both.train.masks[0]
    assert torch.equal(mask, torch.tensor(columns(*object_) > 0))


def test_masks_that_show_no_object_are_counted(tmp_path):
    masked(tmp_path, columns(1, 2, 3, 3))  # which of a trimap's numbers is the object?
    masked(tmp_path, columns(0, 90), "1.jpg")  # its small values may be noise
    base, masks = masked(tmp_path, columns(0, 255), "2.png")
    said = r"2 of 3 masks show no object.*masks/a/0.png: its largest value is 3, expected 128 or"
    with pytest.warns(DataWarning, match=said):
        load(base, masks=masks)
    masked(tmp_path, columns(0, 0))
    (tmp_path / "masks/a/1.jpg").unlink()
    assert load(base, masks=masks).train.masks.any()  # a black mask is an image without object


def test_masks_that_show_no_object_are_counted_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RRR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALL", 1)
    masked(tmp_path, columns(1, 2))
    base, masks = masked(tmp_path, columns(0, 255), "1.png")
    for _ in range(2):
        with pytest.warns(DataWarning, match="1 of 2 masks show no object"):
            load(base, masks=masks)


@pytest.mark.parametrize(("values", "largest"), [((1, 2), 2), ((0, 0), 0)])
def test_masks_of_which_none_shows_an_object(tmp_path, values, largest):
    base, masks = masked(tmp_path, columns(*values))
    assert refusal(base, masks=masks) == (
        f"no mask shows an object, such as {masks}/a/0.png: its largest value is {largest}, "
        "expected 128 or more where the object is, or less with 0 around it (in a PNG, not a "
        "JPEG); save them so, or leave the masks out"
    )


def test_each_of_two_images_of_one_stem_has_its_own_mask(tmp_path):
    for j, ending in enumerate(("png", "bmp", "gif")):
        picture(tmp_path / f"x/a/0.{ending}", size=(8, 8), seed=j)
    (tmp_path / "masks/a").mkdir(parents=True)
    for ending, values in (("png", (0, 255)), ("bmp", (255, 0))):
        Image.fromarray(columns(*values)).save(tmp_path / f"masks/a/0.{ending}")
    train, test = load(tmp_path / "x", masks=str(tmp_path / "masks"))
    # By name: bmp, gif (which has none: both masks belong to others), png.
    wanted = [columns(1, 0), columns(0, 0), columns(0, 1)]
    assert np.array_equal(train.masks, np.array(wanted) > 0)
    (tmp_path / "x/a/0.bmp").unlink()
    (tmp_path / "x/a/0.png").rename(tmp_path / "x/a/1.png")
    assert "has a/0.bmp and a/0.png for the image a/0.gif, expected one mask" in refusal(
        tmp_path / "x", masks=str(tmp_path / "masks")
    )


# --- refusals ------------------------------------------------------------------------------------


def refusal(base, **options):
    with pytest.raises(UserError) as caught:
        load(base, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_masks_that_do_not_fit(tmp_path):
    spotted(tmp_path / "x", ["a"])
    masks = tmp_path / "masks"
    assert "is not a folder" in refusal(tmp_path / "x", masks=str(masks))
    (masks / "a").mkdir(parents=True)
    assert "has no mask of any image, expected files such as" in refusal(
        tmp_path / "x", masks=str(masks)
    )
    Image.new("L", (16, 24)).save(masks / "a" / "0.png")
    text = refusal(tmp_path / "x", masks=str(masks))
    assert f"{masks / 'a' / '0.png'} is 16x24 pixels and its image 24x16" in text
    (masks / "a" / "0.png").write_text("no image")
    assert "cannot be read as a mask" in refusal(tmp_path / "x", masks=str(masks))
    assert "give one of them" in refusal(tmp_path / "x", masks="a", boxes="b")


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("a/0.png 1 2 3", "expected `path x y width height`"),
        ("a/0.png 1 2 3 x", "expected `path x y width height`"),
        ("a/0.png 1 2 0 3", "an empty box"),
        ("a/0.png 1 2 nan 3", "is not finite in the line 'a/0.png 1 2 nan 3', expected `path x"),
        ("a/0.png nan 2 3 4", "is not finite in the line"),
        ("a/0.png 1 2 inf 3", "is not finite in the line"),
        ("a/0.png 4 2 23 15", "leaves its image of 24x16"),
        ("c/0.png 1 2 3 4", "has no box for any image"),
    ],
)
def test_boxes_that_do_not_fit(tmp_path, line, seen):
    spotted(tmp_path, ["a", "b"])
    (tmp_path / "boxes.txt").write_text(line)
    text = refusal(tmp_path, boxes="boxes.txt")
    assert seen in text
    assert "box_format=xyxy" in text or "box for" in seen or "expected `path x" in text
    assert "did you mean 'xyxy'" in refusal(tmp_path, boxes="boxes.txt", box_format="xyxx")


def test_a_missing_list(tmp_path):
    spotted(tmp_path, ["a", "b"])
    assert "there is no file nowhere.txt" in refusal(tmp_path, boxes="nowhere.txt")
    assert "there is no file nowhere.txt" in refusal(tmp_path, classes="nowhere.txt")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("cat\ndgo\n", "'dgo'; did you mean 'dog'?"),
        ("cat\ncat\n", "names class 'cat' twice"),
        ("\n", "is empty"),
    ],
)
def test_a_wrong_class_list(tmp_path, text, seen):
    fill(tmp_path, ["cat", "dog"])
    (tmp_path / "list.txt").write_text(text)
    assert seen in refusal(tmp_path, classes="list.txt")


def test_a_class_list_that_is_no_text(tmp_path):
    fill(tmp_path, ["cat"])
    assert "cannot be read as text" in refusal(tmp_path, classes="cat/cat0.png")


def damaged(base):
    fill(base, ["a", "b"], n=5)
    (base / "a" / "a1.png").write_text("no image")
    whole = (base / "b" / "b0.png").read_bytes()
    (base / "b" / "b0.png").write_bytes(whole[: len(whole) // 2])
    (base / "b" / "gone.jpg").symlink_to(base / "nowhere.jpg")
    return base


def test_bad_files_are_named(tmp_path):
    text = refusal(damaged(tmp_path))
    assert text.startswith(f"{tmp_path / 'a' / 'a1.png'} cannot be read as an image (no known")
    assert "(and 2 more files); remove or replace it, or leave out what cannot be read with" in text


def test_bad_files_are_skipped_and_counted(tmp_path):
    with pytest.warns(DataWarning, match="3 of 11 images are left out: .*a1.png cannot be read"):
        splits = load(damaged(tmp_path), skip_bad=True, test=0.4)
    assert len(splits.train) + len(splits.test) == 8
    assert (pixels(splits.train).flatten(1).amax(1) > 0).all()


def test_a_class_of_bad_files_alone(tmp_path):
    fill(tmp_path, ["a", "b"])
    for file in (tmp_path / "b").iterdir():
        file.write_text("no image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        text = refusal(tmp_path, skip_bad=True)
    assert text == "class 'b' has no train image that can be read; add some, or leave it out"


def test_empty_classes(tmp_path):
    assert "holds no class folder" in refusal(tmp_path)
    fill(tmp_path, ["train/a", "train/b", "val/a"])
    assert "class 'b' has no test image; put some in" in refusal(tmp_path)
    (tmp_path / "val" / "b").mkdir()
    assert "class 'b' has no test image; put some in" in refusal(tmp_path)
    (tmp_path / "train" / "c").mkdir()
    assert f"{tmp_path / 'train' / 'c'} has no image" in refusal(tmp_path, chosen=[2])
    (tmp_path / "val" / "d").mkdir()
    assert "has test images and there is no" in refusal(tmp_path)


def test_one_image_cannot_be_split(tmp_path):
    fill(tmp_path, ["a", "b"], n=1)
    assert "has one image, expected two or more" in refusal(tmp_path)


def test_the_same_file_in_train_and_test_is_warned_of(tmp_path):
    fill(tmp_path, ["train/a", "val/a"])
    file = tmp_path / "train/a/train1.png"
    (tmp_path / "val/a/other.png").write_bytes(file.read_bytes())
    with pytest.warns(DataWarning, match=r"1 test images are train images too, such as .*other"):
        splits = load(tmp_path)
    assert len(splits.test) == 4


def test_files_without_an_image_ending_are_warned_of(tmp_path):
    fill(tmp_path, ["a"])
    (tmp_path / "a" / "photo.heic").write_text("x")
    for name in (".DS_Store", "Thumbs.db", "notes.txt"):
        (tmp_path / "a" / name).write_text("x")
    with pytest.warns(DataWarning, match="1 files in class folders have no image ending"):
        load(tmp_path)


def test_images_below_a_class_folder_are_warned_of(tmp_path):
    fill(tmp_path, ["a", "a/sub/deep", "a/images/more", "a/.thumbs"], n=2)
    with pytest.warns(DataWarning, match="4 images in folders below class folders are left out"):
        load(tmp_path)


def test_a_class_folder_whose_images_lie_below_it(tmp_path):
    fill(tmp_path, ["a", "b/sub"])
    text = refusal(tmp_path)
    assert "b has no image of its own, but 3 in folders below, such as" in text
    fill(tmp_path / "b", ["a"])  # masks, it seems
    assert "if they hold masks, type data.masks=b with rrr run, otherwise" in refusal(tmp_path)


def test_bad_fields(tmp_path):
    assert "is not a folder" in refusal(tmp_path / "nowhere")
    with pytest.raises(UserError, match="data.size is 4"):
        Folder(str(tmp_path), size=4)
    assert "data.test is 1" in refusal(tmp_path, test=1)


# --- the real data -------------------------------------------------------------------------------


def test_real_tiny_imagenet():
    data = os.environ.get("RRR_DATA")
    base = Path(data or "") / "tiny-imagenet-100"
    if not data or not base.exists():
        pytest.skip("RRR_DATA is not set: real Tiny-ImageNet not tested")
    source = Folder(str(base), size=64, boxes="boxes.txt", box_format="xyxy", classes="wnids.txt")
    assert len(source.names) == 100 and source.names[0] == "n02124075"
    train, test = source.load(range(20))
    assert train.y.bincount().tolist() == [100] * 20 and test.y.bincount().tolist() == [25] * 20
    assert 0.3 < float(train.masks.float().mean()) < 0.7
    assert not isinstance(train.x.numpy(), np.memmap)
