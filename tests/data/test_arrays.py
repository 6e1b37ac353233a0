"""Arrays as a data source: shapes, labels and masks that are taken, and those that are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rightreasons as rr
from rightreasons.data.arrays import Arrays
from rightreasons.errors import UserError


def pixels(n, height=4, width=5, seed=0):
    shape = (n, height, width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


Y = np.array([7, 7, 3, 3, 7, 3])


def loaded(part, classes=(0, 1)):
    return Arrays(part, test=part).load(classes).train


def all_pixels(images):
    return images.pixels(torch.arange(len(images)))


@pytest.mark.parametrize("kind", ["channels last", "channels first", "torch", "list"])
def test_every_layout_gives_the_same_images(kind):
    x = pixels(6)
    first = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    give = {
        "channels last": x,
        "channels first": first,
        "torch": torch.from_numpy(first),
        "list": [image for image in x],
    }[kind]
    y = torch.from_numpy(Y) if kind == "torch" else Y.tolist() if kind == "list" else Y
    images = loaded((give, y))
    assert images.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert np.array_equal(all_pixels(images).numpy(), first[[0, 1, 4, 2, 3, 5]])


def test_grey_images_become_three_equal_channels():
    grey = pixels(6)[..., 0]
    x = all_pixels(loaded((grey, Y)))
    assert x.shape == (6, 3, 4, 5)
    for channel in range(3):
        assert np.array_equal(x[:, channel].numpy(), grey[[0, 1, 4, 2, 3, 5]])


@pytest.mark.parametrize(
    "y",
    [Y, Y.astype(np.uint8), Y.astype(np.int32), Y.astype(str), Y.astype(str).astype(object)],
    ids=["int64", "uint8", "int32", "str", "object"],
)
def test_labels_of_any_kind_name_classes_by_first_appearance(y):
    source = Arrays((pixels(6), y), test=(pixels(6), y))
    assert source.names == ("7", "3")
    assert source.load([1, 0]).train.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_numpy_integers_in_an_object_array_are_integers():
    y = np.empty(6, dtype=object)
    y[:] = [np.int64(v) for v in Y]
    assert Arrays((pixels(6), y), test=(pixels(6), Y)).names == ("7", "3")


def test_masks_stay_with_their_images():
    x = pixels(6)
    masks = x[..., 0] > 100
    images = loaded((x, Y, masks), (1, 0))
    for i in range(6):
        place = images.positions(torch.tensor([i]))
        assert torch.equal(images.masks[place][0], images.pixels(torch.tensor([i]))[0, 0] > 100)


def test_classes_that_are_not_asked_for_are_left_out():
    images = loaded((pixels(6), Y), (1,))
    assert images.y.tolist() == [0, 0, 0]
    assert np.array_equal(all_pixels(images).permute(0, 2, 3, 1).numpy(), pixels(6)[[2, 3, 5]])


@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_a_share_of_each_class_is_held_out_and_both_sides_keep_an_image(counts, share, seed):
    y = np.repeat(np.arange(len(counts)), counts)
    n = len(y)
    x = np.broadcast_to(np.arange(n, dtype=np.uint8)[:, None, None, None], (n, 2, 2, 3))
    source = Arrays((x, y), test=share, seed=seed)
    train, test = source.load(range(len(counts)))
    seen = [all_pixels(part)[:, 0, 0, 0].tolist() for part in (train, test)]
    assert sorted(seen[0] + seen[1]) == list(range(n))
    for label, count in enumerate(counts):
        held = int((test.y == label).sum())
        assert 1 <= held < count
        assert abs(held - share * count) <= 1
    for part, ids in ((train, seen[0]), (test, seen[1])):
        assert part.y.tolist() == y[ids].tolist()


def test_what_is_held_out_depends_on_the_seed_alone():
    x, y = pixels(40), np.repeat([0, 1], 20)

    def held(seed):
        return all_pixels(Arrays((x, y), seed=seed).load([0, 1]).test)

    assert len(held(0)) == 8
    assert torch.equal(held(0), held(0))
    assert not torch.equal(held(0), held(1))


def test_held_out_masks_go_with_their_images():
    x, y = pixels(20), np.repeat([0, 1], 10)
    splits = Arrays((x, y, x[..., 1] < 50)).load([0, 1])
    for part in splits:
        every = torch.arange(len(part))
        assert torch.equal(part.masks[part.positions(every)], part.pixels(every)[:, 1] < 50)


# --- refusals ------------------------------------------------------------------------------------


def refusal(train, test=None):
    with pytest.raises(UserError) as caught:
        rr.stream(train, 2, test=train if test is None else test)
    text = str(caught.value)
    assert "\n" not in text
    return text


X = pixels(6)


@pytest.mark.parametrize(
    ("x", "seen", "typed"),
    [
        (X.astype(np.float32) / 255, "float32", "(x * 255).astype('uint8')"),
        (X.astype(np.int64), "int64", "x.astype('uint8')"),
        (X > 5, "bool", "astype('uint8')"),
    ],
)
def test_images_of_another_dtype(x, seen, typed):
    text = refusal((x, Y))
    assert text.startswith(f"train images are {seen}, expected uint8") and typed in text


@pytest.mark.parametrize("shape", [(6, 4, 5, 1), (6, 2, 4, 5), (6, 20), (6, 3, 4, 5, 1), ()])
def test_images_of_another_shape(shape):
    text = refusal((np.zeros(shape, np.uint8), Y))
    assert f"shape {shape}" in text and "(N,H,W,3)" in text


def test_no_image_at_all():
    assert refusal((X[:0], Y[:0])) == "there is no train image; expected at least one a class"


@pytest.mark.parametrize("y", [Y[:5], Y[:, None], np.int64(3)])
def test_labels_of_another_shape(y):
    assert refusal((X, y)) == (
        f"train labels have shape {np.shape(y)}, expected (6,), one an image"
    )


def test_float_labels():
    text = refusal((X, Y.astype(float)))
    assert "are float64" in text and "y.astype(int)" in text


def test_nan_labels():
    text = refusal((X, np.where(Y == 3, np.nan, Y)))
    assert "train labels contain NaN" in text and "integers or strings" in text


@pytest.mark.parametrize("value", [None, 2.5, float("nan"), (1, 2)])
def test_objects_that_are_no_label(value):
    y = np.array([7, 7, 3, 3, 7, None], dtype=object)
    y[5] = value
    text = refusal((X, y))
    assert repr(value) in text and "integers or strings" in text


def test_boolean_and_byte_labels():
    assert "bool" in refusal((X, Y == 3))
    assert "b'7'" in refusal((X, Y.astype("S1")))


def test_a_class_without_a_test_image():
    text = refusal((X, Y), (X[:2], Y[:2]))
    assert text.startswith("class '3' has no test image")


def test_a_class_without_a_train_image():
    text = refusal((X[:2], Y[:2]), (X, Y))
    assert text.startswith("class '3' has test images and no train image")


def test_a_class_of_one_image_cannot_be_held_out():
    text = refusal((X, np.array([0, 0, 0, 0, 0, 1])), 0.5)
    assert text.startswith("class '1' has one image, expected two or more")


@pytest.mark.parametrize("share", [0, 1, -0.2, 1.5, float("nan")])
def test_a_share_out_of_range(share):
    text = refusal((X, Y), share)
    assert text.startswith(f"test is {float(share)}, expected a share between 0 and 1")


def test_train_and_test_of_different_sizes():
    text = refusal((X, Y), (pixels(6, 5, 5), Y))
    assert "(3, 5, 5)" in text and "(3, 4, 5)" in text and "resize" in text


@pytest.mark.parametrize("shape", [(6, 5, 4), (5, 4, 5), (6, 4, 5, 1)])
def test_masks_of_another_size(shape):
    text = refusal((X, Y, np.zeros(shape, bool)))
    assert f"shape {shape}, expected (6, 4, 5)" in text


def test_masks_of_another_dtype():
    text = refusal((X, Y, np.zeros((6, 4, 5), np.uint8)))
    assert "train masks are uint8, expected bool" in text and "masks > 0" in text


def test_masks_of_one_split_only():
    text = refusal((X, Y, X[..., 0] > 5), (X, Y))
    assert "both or none" in text


@pytest.mark.parametrize("part", [(X,), (X, Y, None, None), X, "images"])
def test_test_data_of_something_else_than_two_or_three_arrays(part):
    text = refusal((X, Y), part)
    assert text.startswith("test is not (x, y) or (x, y, masks)")


@pytest.mark.parametrize("part", [(X,), (X, Y, None, None)])
def test_train_data_of_something_else_than_two_or_three_arrays(part):
    assert refusal(part).startswith("train is not (x, y) or (x, y, masks)")
