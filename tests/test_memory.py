"""Memory: quotas, rows that stay together, ragged columns, and which images are chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rightreasons as rr
from rightreasons.errors import UserError
from rightreasons.memory import (
    Memory,
    Ragged,
    choose,
    draw,
    held_count,
    held_ranks,
    herd,
    interleave,
    join,
)
from rightreasons.randomness import generator

TEN = [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]
TWENTY = [
    *(400, 200, 133, 100, 80, 66, 57, 50, 44, 40),
    *(36, 33, 30, 28, 26, 25, 23, 22, 21, 20),
]


def columns(ids, y, task):
    """Every column tells the row's id: pixels, index, map and a ragged one of its own length."""
    ids, y = torch.as_tensor(ids), torch.as_tensor(y)
    pixels = torch.stack([ids // 256, ids % 256], -1).to(torch.uint8)
    lengths = ids % 4
    return {
        "x": pixels[:, None, None, :].expand(-1, 3, 2, 2).contiguous(),
        "y": y,
        "task": torch.full_like(y, task),
        "index": ids,
        "t.map": ids[:, None, None].float().expand(-1, 2, 2).contiguous(),
        "t.many": Ragged(ids.repeat_interleave(lengths).float()[:, None].expand(-1, 2), lengths),
    }


def go_through(memory, classes, images, seed=0):
    """Tasks with so many new classes each; returns what a list per class would keep."""
    expected, seen, given_ids = {}, 0, 0
    for task, count in enumerate(classes):
        labels = torch.arange(seen, seen + count).repeat_interleave(images)
        labels = labels[torch.randperm(len(labels), generator=generator(seed, "data", task))]
        ids = torch.arange(given_ids, given_ids + len(labels))
        seen, given_ids = seen + count, given_ids + len(labels)
        memory.shrink(seen)
        quota = memory.quota(seen, first=task == 0)
        chosen = choose(labels, quota, generator(seed, "memory", task))
        memory.add(columns(ids[chosen], labels[chosen], task))
        for label in range(seen - count, seen):
            expected[label] = [int(ids[i]) for i in chosen if labels[i] == label]
        if memory.per_class is None:
            expected = {label: rows[: memory.size // seen] for label, rows in expected.items()}
        yield seen, expected


def check_rows(memory, expected):
    ids = memory.tensor("index")
    x = memory.tensor("x").long()
    assert (x[..., 0] * 256 + x[..., 1] == ids[:, None, None]).all()
    assert (memory.tensor("t.map") == ids[:, None, None]).all()
    values, real = memory["t.many"].padded()
    assert real.sum(1).tolist() == (ids % 4).tolist()
    assert torch.equal(values[real], ids.repeat_interleave(ids % 4).float()[:, None].expand(-1, 2))
    assert {len(column) for column in memory.columns_.values()} == {len(memory)}
    kept = {}
    for label, i in zip(memory.tensor("y").tolist(), ids.tolist(), strict=True):
        kept.setdefault(label, []).append(i)
    assert kept == expected


# --- quotas --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "counts"), [(10, TEN), (5, TWENTY)])
def test_a_budget_of_2000_over_100_classes(step, counts):
    memory = Memory(2000)
    assert [memory.quota(seen) for seen in range(step, 101, step)] == counts


def test_thirty_classes_at_2000_keep_66_each_and_1980_rows():
    memory = Memory(2000)
    for _seen, _expected in go_through(memory, [10, 10, 10], 250):
        pass
    assert torch.bincount(memory.tensor("y")).tolist() == [66] * 30
    assert len(memory) == 1980


def test_per_class_does_not_shrink():
    memory = Memory(per_class=4)
    for seen, _ in go_through(memory, [3, 2, 2], 6):
        assert torch.bincount(memory.tensor("y")).tolist() == [4] * seen


def test_few_shots_keep_four_of_the_first_classes_and_one_of_later_ones():
    memory = Memory(per_class=(4, 1))
    sizes = [len(memory) for _ in go_through(memory, [100, *[10] * 10], 5)]
    assert sizes == list(range(400, 501, 10))
    assert torch.bincount(memory.tensor("y")).tolist() == [4] * 100 + [1] * 100


def test_a_list_of_two_is_the_pair():
    assert Memory(per_class=[4, 1]) == Memory(per_class=(4, 1))


def test_classes_with_fewer_images_than_the_quota_give_all_they_have():
    memory = Memory(100)
    list(go_through(memory, [2], 3))
    assert torch.bincount(memory.tensor("y")).tolist() == [3, 3]


def test_a_memory_smaller_than_the_classes_is_refused():
    with pytest.raises(UserError) as caught:
        Memory(3).quota(4)
    assert str(caught.value) == (
        "the memory has 3 rows for 4 classes, expected at least one row a class; "
        "type memory.size=4 or more"
    )
    assert Memory(4).quota(4) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "memory.size is 0"),
        ({"size": -5}, "memory.size is -5"),
        ({"per_class": 0}, "memory.per_class is 0"),
        ({"per_class": -1}, "memory.per_class is -1"),
        ({"per_class": (4, 0)}, "memory.per_class is (4, 0)"),
        ({"per_class": (0, 4)}, "memory.per_class is (0, 4)"),
        ({"per_class": (4,)}, "memory.per_class is (4,)"),
        ({"per_class": (4, 1, 1)}, "memory.per_class is (4, 1, 1)"),
        ({"pick": "randm"}, "unknown memory.pick 'randm'; did you mean 'random'?"),
    ],
)
def test_other_settings_are_refused(options, said):
    with pytest.raises(UserError) as caught:
        Memory(**options)
    assert str(caught.value).startswith(said)


# --- rows ----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(0, 40),
    st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_columns_stay_together_through_shrinking(classes, images, more, seed):
    memory = Memory(sum(classes) + more)
    for _, expected in go_through(memory, classes, images, seed):
        check_rows(memory, expected)


def test_maps_stay_with_their_images_when_the_quota_halves():
    memory = Memory(2000)
    rounds = [len(memory) for _, kept in go_through(memory, [10, 10], 250) if kept]
    assert rounds == [2000, 2000]
    first = memory.tensor("y") < 10
    assert int(first.sum()) == 1000
    ids = memory.tensor("index")[first]
    assert torch.equal(memory.tensor("t.map")[first, 0, 0], ids.float())


def test_shrinking_again_to_the_same_classes_changes_nothing():
    memory = Memory(12)
    *_, (seen, expected) = go_through(memory, [2, 2], 8)
    memory.shrink(seen)
    check_rows(memory, expected)


def test_take_gives_rows_of_all_columns_but_pixels():
    memory = Memory(40)
    list(go_through(memory, [2, 2], 9))
    rows = torch.tensor([7, 0, 7, 30])
    part = memory.take(rows)
    assert set(part) == {"y", "task", "index", "t.map", "t.many"}
    ids = memory.tensor("index")[rows]
    assert torch.equal(part["index"], ids)
    assert torch.equal(part["t.map"][:, 0, 0], ids.float())
    assert torch.equal(part["t.many"].lengths, ids % 4)
    assert torch.equal(part["t.many"].values[:, 0], ids.repeat_interleave(ids % 4).float())


def test_replace_changes_the_named_columns_only():
    memory = Memory(8)
    *_, (_, expected) = go_through(memory, [2], 4)
    before = memory.tensor("x").clone()
    memory.replace({"t.map": torch.zeros(8, 1)})
    assert memory.tensor("t.map").shape == (8, 1)
    assert torch.equal(memory.tensor("x"), before)
    assert memory.tensor("index").tolist() == expected[0] + expected[1]


def test_rows_that_do_not_fit_are_refused():
    memory = Memory(8)
    memory.add(columns([0, 1], [0, 0], 0))
    with pytest.raises(ValueError, match="different length"):
        memory.add(columns([2, 3], [0, 0], 0) | {"y": torch.zeros(3, dtype=torch.int64)})
    lacking = columns([2, 3], [0, 0], 0)
    del lacking["t.map"]
    with pytest.raises(ValueError, match="do not fit"):
        memory.add(lacking)
    assert memory.tensor("index").tolist() == [0, 1]


def test_an_unknown_column_suggests_the_nearest():
    memory = Memory(8)
    memory.add(columns([0], [0], 0))
    with pytest.raises(UserError, match="unknown memory column 't.mpa'; did you mean 't.map'"):
        memory["t.mpa"]


def test_draws_are_different_rows_and_depend_on_the_key():
    memory = Memory(40)
    list(go_through(memory, [4], 10))
    every = memory.part(held=False)
    rows = draw(every, 16, generator(0, "replay", 1))
    assert len(set(rows.tolist())) == 16 and int(rows.min()) >= 0 and int(rows.max()) < 40
    assert torch.equal(rows, draw(every, 16, generator(0, "replay", 1)))
    assert not torch.equal(rows, draw(every, 16, generator(0, "replay", 2)))
    assert sorted(draw(every, 99, generator(0, "replay", 1)).tolist()) == list(range(40))


def test_bytes_are_those_that_are_stored():
    memory = Memory(8)
    assert memory.nbytes() == {}
    memory.add(
        {
            "x": torch.zeros(5, 3, 8, 6, dtype=torch.uint8),
            "y": torch.zeros(5, dtype=torch.int64),
            "task": torch.zeros(5, dtype=torch.int64),
            "a": torch.zeros(5, 4, 4, dtype=torch.float16),
            "b": Ragged.of(torch.zeros(5, 7, 2, 2, dtype=torch.float16)),
        }
    )
    per_row = {"x": 3 * 8 * 6, "y": 8, "task": 8, "a": 2 * 16, "b": 2 * 7 * 4 + 8}
    assert memory.nbytes() == {name: 5 * size for name, size in per_row.items()}
    memory.shrink(4)
    assert memory.nbytes() == {name: 2 * size for name, size in per_row.items()}


# --- ragged columns ------------------------------------------------------------------------------


@st.composite
def ragged_rows(draw):
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=7))
    shape = draw(st.sampled_from([(), (2,), (2, 3)]))
    start, rows = 0, []
    for length in lengths:
        numbers = torch.arange(1 + start, 1 + start + length)
        rows.append(numbers.view(-1, *[1] * len(shape)).expand(length, *shape).clone())
        start += length
    picked = draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    return rows, picked


def flat(rows):
    return Ragged(torch.cat(rows), torch.tensor([len(row) for row in rows]))


@given(ragged_rows())
@settings(max_examples=80, deadline=None)
def test_ragged_take_is_a_list_s_take(case):
    rows, picked = case
    taken = flat(rows).take(torch.tensor(picked, dtype=torch.int64))
    assert taken.lengths.tolist() == [len(rows[i]) for i in picked]
    assert len(taken) == len(picked)
    expected = torch.cat([rows[i] for i in picked] or [rows[0][:0]])
    assert torch.equal(taken.values, expected)


@given(ragged_rows())
@settings(max_examples=80, deadline=None)
def test_ragged_padded_holds_each_row_at_its_start(case):
    rows, _ = case
    values, real = flat(rows).padded()
    longest = max(len(row) for row in rows)
    assert values.shape == (len(rows), longest, *rows[0].shape[1:])
    for i, row in enumerate(rows):
        assert real[i].tolist() == [True] * len(row) + [False] * (longest - len(row))
        assert torch.equal(values[i, : len(row)], row)


@given(ragged_rows(), ragged_rows())
@settings(max_examples=30, deadline=None)
def test_ragged_join_is_one_list_below_the_other(a, b):
    above, below = ([row.flatten(1)[:, :1] if row.ndim > 1 else row[:, None] for row in rows]
                    for rows, _ in (a, b))  # fmt: skip
    joined = join([flat(above), flat(below)])
    assert torch.equal(joined.values, torch.cat(above + below))
    assert joined.lengths.tolist() == [len(row) for row in above + below]


def test_ragged_of_rows_of_one_length():
    rows = torch.arange(24).view(3, 4, 2)
    made = Ragged.of(rows)
    values, real = made.padded()
    assert torch.equal(values, rows) and bool(real.all())
    assert torch.equal(made.take(torch.tensor([2, 0])).padded()[0], rows[[2, 0]])


# --- choosing ------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 50),
)
@settings(max_examples=60, deadline=None)
def test_choose_takes_the_quota_of_each_class_and_a_smaller_one_is_its_beginning(y, a, b, seed):
    labels = torch.tensor(y)
    few, many = (choose(labels, q, generator(seed, "memory")) for q in sorted((a, b)))
    for chosen, quota in ((few, min(a, b)), (many, max(a, b))):
        assert len(set(chosen.tolist())) == len(chosen)
        assert labels[chosen].tolist() == sorted(labels[chosen].tolist())
        for label in set(y):
            assert int((labels[chosen] == label).sum()) == min(quota, y.count(label))
    for label in set(y):
        first, more = (c[labels[c] == label].tolist() for c in (few, many))
        assert more[: len(first)] == first


def test_choose_depends_on_the_key_alone():
    y = torch.arange(4).repeat(25)
    one = choose(y, 5, generator(0, "memory", 1))
    torch.manual_seed(1)
    assert torch.equal(one, choose(y, 5, generator(0, "memory", 1)))
    assert not torch.equal(one, choose(y, 5, generator(0, "memory", 2)))
    assert not torch.equal(one, choose(y, 5, generator(1, "memory", 1)))


def test_every_image_has_the_same_chance():
    y = torch.zeros(10, dtype=torch.int64)
    counts = torch.zeros(10)
    for seed in range(400):
        counts[choose(y, 3, generator(seed, "memory"))] += 1
    # 400 draws of 3 out of 10: mean 120, deviation 9.2
    assert int(counts.sum()) == 1200
    assert counts.min() > 75 and counts.max() < 165


# --- rows that are held out ----------------------------------------------------------------------


def test_how_many_rows_of_a_class_are_held_out():
    """A tenth, rounded up; of two rows one, of one none: something must be left to train on."""
    assert [held_count(q, 0.1) for q in (1, 2, 10, 11, 12, 20, 21, 22, 200)] == [
        *(0, 1, 1, 1, 2, 2, 2, 3, 20),
    ]
    assert [held_count(q, 0.5) for q in (1, 2, 3, 4, 5, 20)] == [0, 1, 1, 2, 2, 10]
    assert [held_count(q, 0.99) for q in (1, 2, 3, 100)] == [0, 1, 2, 99]


@given(st.integers(1, 60), st.floats(0.01, 0.99))
@settings(max_examples=100, deadline=None)
def test_every_beginning_of_a_class_has_its_share_of_held_out_rows(quota, share):
    ranks = held_ranks(quota, share).tolist()
    assert len(ranks) == quota
    for q in range(1, quota + 1):
        assert sum(ranks[:q]) == held_count(q, share) < q
        assert q < 2 or sum(ranks[:q]) >= 1


@given(
    st.lists(st.integers(2, 25), min_size=1, max_size=4),
    st.integers(2, 20),
    st.sampled_from([0.1, 0.25, 0.5]),
    st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_interleaved_rows_keep_both_orders_and_the_share_through_shrinking(
    sizes, quota, share, seed
):
    y = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    y = y[torch.randperm(len(y), generator=generator(seed, "data"))]
    held = choose(y, held_count(min(quota, *sizes), share), generator(seed, "held"))
    rest = torch.tensor([i for i in range(len(y)) if i not in set(held.tolist())])
    z = torch.randn(len(rest), 3, generator=generator(seed, "noise"))
    kept = rest[herd(z, y[rest], quota)]
    both = interleave(kept, held, y, quota, share)
    assert len(set(both.tolist())) == len(both)
    assert y[both].tolist() == sorted(y[both].tolist())
    for c, size in enumerate(sizes):
        mine = both[y[both] == c].tolist()
        assert len(mine) <= min(quota, size)
        out = [i in set(held.tolist()) for i in mine]
        for part, order in ((True, held), (False, kept)):  # each in its own order, from its start
            own = [i for i, o in zip(mine, out, strict=True) if o == part]
            assert own == order[y[order] == c].tolist()[: len(own)]
        if size >= quota and held_count(min(quota, *sizes), share) == held_count(quota, share):
            assert len(mine) == quota
            for q in range(1, quota + 1):  # a smaller quota keeps the first rows
                assert sum(out[:q]) == held_count(q, share)


def test_rows_of_either_part():
    memory = Memory(6)
    assert memory.part(held=True).tolist() == memory.part(held=False).tolist() == []
    memory.add(columns([0, 1, 2, 3], [0, 0, 1, 1], 0))
    assert memory.part(held=True).tolist() == [] and memory.part(held=False).tolist() == [
        0,
        1,
        2,
        3,
    ]
    memory.replace({"held": torch.tensor([False, True, True, False])})
    assert memory.part(held=True).tolist() == [1, 2] and memory.part(held=False).tolist() == [0, 3]


@pytest.mark.parametrize("learner", [rr.ICaRL, rr.EEIL, rr.BiC])
def test_a_memory_that_names_its_size_alone_is_picked_as_the_learner_picks(learner):
    given = rr.Memory(40)
    assert learner(given).memory.pick == learner().memory.pick == "herding"
    assert learner(rr.Memory(40, pick="random")).memory.pick == "random"
    assert rr.ER(given).memory.pick == "random" and given.pick is None
    assert len(learner(given).memory) == 0 and learner(given).memory.size == 40
