"""Streams: labels by order of appearance, ways to cut and to order, moments, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rightreasons as rr
from rightreasons.data import glyphs
from rightreasons.errors import UserError
from rightreasons.streams import cut, moments
from rightreasons.types import Images, Splits

NAMES = glyphs.Glyphs.names


def arrays(labels, size=2, offset=0):
    """Images whose every pixel is the number of the image, so that it can be told later."""
    n = len(labels)
    numbers = np.arange(offset, offset + n, dtype=np.uint8)
    return np.broadcast_to(numbers[:, None, None, None], (n, size, size, 3)).copy(), labels


def numbers(images):
    return images.pixels(torch.arange(len(images)))[:, 0, 0, 0].tolist()


def few(tasks=2, classes=6, **options):
    return rr.stream("glyphs", tasks, classes=classes, train=2, test=1, size=16, **options)


@st.composite
def splits(draw):
    """Labels of train and test images, every class in both, the classes' order, and task sizes."""
    names = draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, unique=True))
    extra = draw(st.lists(st.sampled_from(names), max_size=8))
    train = draw(st.permutations(names + extra))
    test = draw(st.permutations(names))
    order = draw(st.permutations(names))
    counts, left = [], len(names)
    while left:
        counts.append(draw(st.integers(1, left)))
        left -= counts[-1]
    return train, test, order, counts


@given(splits())
@settings(max_examples=40, deadline=None)
def test_labels_are_a_bijection_by_order_of_appearance(case):
    train, test, order, counts = case
    stream = rr.stream(
        arrays(np.array(train)), counts, order=order, test=arrays(np.array(test), offset=100)
    )
    assert stream.class_names == tuple(order)
    assert [len(task.classes) for task in stream] == counts
    assert [c for task in stream for c in task.classes] == list(range(len(order)))
    assert stream.task_of.tolist() == [k for k, n in enumerate(counts) for _ in range(n)]
    met = []
    for k, task in enumerate(stream):
        assert task.index == k and task.seen == sum(counts[: k + 1])
        for part, given_labels, offset in ((task.train, train, 0), (task.test, test, 100)):
            assert set(part.y.tolist()) == set(task.classes)
            for number, label in zip(numbers(part), part.y.tolist(), strict=True):
                assert stream.class_names[label] == given_labels[number - offset]
                met.append(number)
    assert sorted(met) == [*range(len(train)), *range(100, 100 + len(test))]


def test_an_equal_number_of_tasks():
    stream = few(3)
    assert [task.classes for task in stream] == [(0, 1), (2, 3), (4, 5)]
    assert len(stream) == 3 and stream[-1].seen == 6
    assert [len(task.train) for task in stream] == [4, 4, 4]
    assert [len(task.test) for task in stream] == [2, 2, 2]


def test_a_list_of_counts_may_leave_classes_out():
    stream = few([1, 3], classes=6)
    assert [task.classes for task in stream] == [(0,), (1, 2, 3)]
    assert stream.class_names[:4] == NAMES[:4]
    assert {int(y) for task in stream for y in task.train.y} == {0, 1, 2, 3}


def test_names_know_only_the_classes_of_the_tasks():
    stream = few([1, 3], classes=6)
    assert len(stream.class_names) == 4


def test_lists_of_class_names():
    wanted = [["sign-heart"], ["latin-B", "digit-7"]]
    stream = rr.stream("glyphs", wanted, train=2, test=1, size=16)
    assert stream.class_names == ("sign-heart", "latin-B", "digit-7")
    assert [task.classes for task in stream] == [(0,), (1, 2)]
    whole = glyphs.Glyphs(size=16, train=2, test=1).load([NAMES.index("digit-7")]).train
    mine = stream[1].train
    assert torch.equal(mine.pixels((mine.y == 2).nonzero().flatten()), whole.x)


def test_natural_order_is_the_source_s():
    assert few().class_names == NAMES[:6]


def test_an_order_by_names_is_cut_to_the_first_classes():
    order = list(reversed(NAMES))
    assert few(order=order, classes=4).class_names == tuple(order[:4])


def test_a_seeded_order_is_reproducible_and_depends_on_the_seed():
    first, again, other = (few(order="seed", seed=s) for s in (3, 3, 4))
    assert first.class_names == again.class_names
    assert torch.equal(
        first[0].train.pixels(torch.arange(2)), again[0].train.pixels(torch.arange(2))
    )
    assert first.class_names != other.class_names
    assert first.class_names != NAMES[:6]


def test_a_seeded_order_holds_every_class_once():
    stream = rr.stream("glyphs", 10, order="seed", seed=1, train=1, test=1, size=16)
    assert sorted(stream.class_names) == sorted(NAMES)


def test_fewer_classes_are_the_beginning_of_the_same_seeded_order():
    assert few(classes=4, order="seed").class_names == few(order="seed").class_names[:4]


def test_moments_are_those_of_the_first_task_s_train_images():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3], 5)
    x = rng.integers(0, 256, (20, 4, 6, 3), dtype=np.uint8)
    x[10:] //= 4  # a later task is darker
    held = rng.integers(0, 256, (4, 4, 6, 3), dtype=np.uint8)
    stream = rr.stream((x, y), 2, test=(held, np.arange(4)))
    first = x[:10].astype(np.float64)
    assert np.allclose(stream.mean.numpy(), first.mean((0, 1, 2)), rtol=1e-6)
    assert np.allclose(stream.std.numpy(), first.std((0, 1, 2)), rtol=1e-6)


def test_moments_do_not_depend_on_chunks():
    x = torch.randint(0, 256, (7, 3, 3, 5), generator=torch.Generator().manual_seed(0))
    images = Images(x.to(torch.uint8), torch.zeros(7, dtype=torch.int64))
    for chunk in (1, 3, 7, 100):
        mean, std = moments(images, chunk)
        assert torch.allclose(mean, x.double().mean((0, 2, 3)).float())
        assert torch.allclose(std, x.double().transpose(0, 1).flatten(1).std(1, False).float())


def test_flat_images_have_a_finite_scale():
    mean, std = moments(Images(torch.full((2, 3, 2, 2), 9, dtype=torch.uint8), torch.zeros(2)))
    assert mean.tolist() == [9, 9, 9] and std.tolist() == [1, 1, 1]


def test_glyphs_are_not_flipped_and_arrays_are():
    assert few().flip is False
    assert rr.stream(arrays(np.repeat([0, 1], 5)), 2).flip is True


def test_a_stream_is_a_sequence():
    stream = few(3)
    assert [task.index for task in stream] == [0, 1, 2]
    assert stream[1:] == (stream[1], stream[2])
    assert stream[-1] is stream[2]


# --- refusals ------------------------------------------------------------------------------------


def refusal(*args, **options):
    with pytest.raises(UserError) as caught:
        rr.stream(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("tasks", "classes", "typed"),
    [(4, 6, "tasks=[2,2,1,1]"), (3, 20, "tasks=[7,7,6]"), (7, 10, "tasks=[2,2,2,1,1,1,1]")],
)
def test_tasks_that_do_not_divide_show_the_list_to_type(tasks, classes, typed):
    text = refusal("glyphs", tasks, classes=classes)
    assert f"{classes} classes" in text and f"{tasks} equal tasks" in text
    assert text.endswith(typed)
    counts = [int(n) for n in typed.removeprefix("tasks=").strip("[]").split(",")]
    assert [len(t.classes) for t in few(counts, classes=classes)] == counts


@pytest.mark.parametrize("tasks", [0, -1, 7])
def test_a_number_of_tasks_out_of_range(tasks):
    assert refusal("glyphs", tasks, classes=6) == (
        f"stream.tasks is {tasks}, expected 1 to 6, the classes"
    )


@pytest.mark.parametrize("tasks", [[0, 2], [3, 4], [-1, 3]])
def test_counts_that_do_not_fit(tasks):
    text = refusal("glyphs", tasks, classes=6)
    assert f"{sum(tasks)} classes" in text and "6 or less" in text


@pytest.mark.parametrize("classes", [0, -2, 101])
def test_a_number_of_classes_out_of_range(classes):
    assert refusal("glyphs", 1, classes=classes) == (
        f"stream.classes is {classes}, expected 1 to 100"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"tasks": [["latin-A", "latin-small-z"]]},
        {"tasks": 2, "order": ["latin-A", "latin-small-z"]},
    ],
)
def test_an_unknown_class_suggests_the_nearest(options):
    text = refusal("glyphs", **options)
    assert text.startswith("unknown class 'latin-small-z'; did you mean 'latin-small-")


def test_a_class_named_twice():
    text = refusal("glyphs", [["latin-A", "latin-B"], ["latin-A"]])
    assert "'latin-A'" in text and "once" in text


@pytest.mark.parametrize(
    "tasks",
    [
        ["latin-A", "latin-B"],  # names that are not in lists
        [["latin-A"], 3],
        [1.5, 2],
        [None],
        [["latin-A"], []],  # a task without a class
        [[]],
        2.0,
        "five",
        None,
    ],
)
def test_tasks_of_another_shape_are_refused_with_what_was_seen(tasks):
    text = refusal("glyphs", tasks, train=1, test=1, size=16)
    assert "tasks" in text


def test_an_unknown_order_suggests_the_nearest():
    assert refusal("glyphs", 2, order="sed") == ("unknown stream.order 'sed'; did you mean 'seed'?")


def test_an_unknown_source_suggests_the_nearest():
    assert refusal("glyps") == "unknown data source 'glyps'; did you mean 'glyphs'?"


def test_data_of_another_kind():
    text = refusal(7)
    assert "int" in text and "(x, y[, masks])" in text


def test_an_option_that_the_source_lacks_suggests_the_nearest():
    assert "train" in refusal("glyphs", 2, trian=3)


@pytest.mark.parametrize("which", ["train", "test"])
def test_a_source_that_gives_no_image_of_a_class(which):
    x = torch.zeros(2, 3, 2, 2, dtype=torch.uint8)
    whole, lacking = Images(x, torch.tensor([0, 1])), Images(x[:1], torch.tensor([0]))
    parts = Splits(lacking, whole) if which == "train" else Splits(whole, lacking)
    with pytest.raises(UserError, match=f"class 'b' has no {which} image, expected at least one"):
        cut(parts, [1, 1], ["a", "b"], True)


def test_later_tasks_have_so_many_shots_and_whole_test_sets():
    whole = rr.stream("glyphs", [4, 2, 2], classes=8, train=9, test=3, size=16)
    few = rr.stream("glyphs", [4, 2, 2], classes=8, train=9, test=3, size=16, shots=5)
    assert [len(task.train) for task in few] == [36, 10, 10]
    assert [len(task.test) for task in few] == [len(task.test) for task in whole]
    for a, b in zip(few[1:], whole[1:], strict=True):
        assert torch.bincount(a.train.y)[list(a.classes)].tolist() == [5, 5]
        assert set(a.train.positions(torch.arange(10)).tolist()) <= set(
            b.train.positions(torch.arange(len(b.train))).tolist()
        )
    again = rr.stream("glyphs", [4, 2, 2], classes=8, train=9, test=3, size=16, shots=5)
    other = rr.stream("glyphs", [4, 2, 2], classes=8, train=9, test=3, size=16, shots=5, seed=1)
    assert torch.equal(few[1].train.rows, again[1].train.rows)
    assert not torch.equal(few[1].train.rows, other[1].train.rows)
    with pytest.raises(rr.UserError, match="has 9 train images, expected at least stream.shots=10"):
        rr.stream("glyphs", [4, 2], classes=6, train=9, test=3, size=16, shots=10)


def test_classes_are_drawn_inside_a_pool():
    names = rr.stream("glyphs", 1, train=1, test=1, size=16).class_names
    pool = names[10:30]
    drawn = rr.stream(
        "glyphs", 2, classes=6, order="seed", among=pool, train=1, test=1, size=16, seed=3
    )
    assert set(drawn.class_names) <= set(pool) and len(drawn.class_names) == 6
    with pytest.raises(rr.UserError, match="class of the pool"):
        rr.stream("glyphs", 1, among=["latin-AA"], train=1, test=1, size=16)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 50), st.floats(0.1, 0.9))
def test_validation_tests_on_a_share_of_each_class_and_trains_on_the_rest(sizes, seed, share):
    labels = [f"class {c}" for c, size in enumerate(sizes) for _ in range(size)]
    test = arrays(sorted(set(labels)), offset=200)
    kept = [min(max(1, round(size * share)), size - 1) for size in sizes]  # a half: to even
    make = lambda: rr.stream(arrays(labels), len(sizes), test=test, validation=share, seed=seed)  # noqa: E731
    if 1 in sizes:
        name = f"class {sizes.index(1)}"
        with pytest.raises(UserError, match=f"'{name}' has one train image, expected two or more"):
            make()
        return
    made = make()
    for task, size, count in zip(made, sizes, kept, strict=True):
        assert (len(task.train), len(task.test)) == (size - count, count)
        assert not set(numbers(task.train)) & set(numbers(task.test))
        assert max(numbers(task.test)) < 200, "the test images are left alone"
    assert [numbers(t.test) for t in made] == [numbers(t.test) for t in make()]


@pytest.mark.parametrize("share", [-1, 1, 2.0, float("nan"), float("inf"), "0.2", None])
def test_a_share_of_python_that_is_none_is_refused(share):
    assert refusal("glyphs", 2, classes=4, train=4, test=1, size=16, validation=share) == (
        f"stream.validation is {share}, expected a share such as 0.2, or 0 to test on test images"
    )


def test_a_class_of_three_images_has_one_to_validate_on():
    labels = ["a", "a", "a", "b", "b", "b"]
    made = rr.stream(arrays(labels), 2, test=arrays(["a", "b"], offset=200), validation=0.1)
    assert [(len(task.train), len(task.test)) for task in made] == [(2, 1), (2, 1)]


def test_a_share_that_is_none_is_refused():
    from rightreasons.config import resolve

    with pytest.raises(UserError, match=r"stream.validation is 1.0, expected a share such as 0.2"):
        resolve("glyphs-small", "er", ["stream.validation=1.0"])
