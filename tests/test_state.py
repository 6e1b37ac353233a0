"""State by naming rule: out, through a file that cannot execute, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import rightreasons as rr
from rightreasons.memory import Memory, Ragged
from rightreasons.nets.base import Net
from rightreasons.pointing import Drift
from rightreasons.state import get_state, pack, restore, set_state, unpack


@dataclass
class Keeper(rr.Learner):
    strength: float = 2.0
    seen_: int = field(default=0, init=False)

    name: ClassVar[str] = "keeper"


@dataclass
class Counting(rr.Term):
    name: ClassVar[str] = "counting"

    def remember(self, net, batch, out):
        return {}

    def __call__(self, net, out, batch, columns):
        return out.logits.sum()


def through_a_file(state, tmp_path):
    path = tmp_path / "state.pt"
    torch.save(state, path)
    return torch.load(path, weights_only=True)


def grown(classes, seed=0) -> Net:
    net = rr.net("resnet8")
    net.initialise(net, torch.Generator().manual_seed(seed))
    net.grow(classes, torch.Generator().manual_seed(seed))
    net.train()(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(seed)))
    return net


def assert_equal(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    elif isinstance(a, Ragged):
        assert torch.equal(a.values, b.values) and torch.equal(a.lengths, b.lengths)
    elif isinstance(a, Net):
        assert a.classes == b.classes
        assert_equal(dict(a.state_dict()), dict(b.state_dict()))
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, two in zip(a, b, strict=True):
            assert_equal(one, two)
    else:
        assert a == b


VALUES = {
    "tensor": torch.arange(6).view(2, 3),
    "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "scalar": torch.tensor(True),
    "ragged": Ragged(torch.arange(10.0).view(5, 2), torch.tensor([2, 0, 3])),
    "numbers": [1, 2.5, True, None, "word"],
    "nested": {"a": [{"b": torch.ones(2)}, [torch.zeros(1), {"c": 3}]], 7: "seven", "": {}},
    "empty": [],
    "tuple": (1, (torch.ones(2), []), {"a": ()}),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_from_a_file(name, tmp_path):
    state = through_a_file(pack(VALUES[name]), tmp_path)
    assert_equal(unpack(state, rr.net("resnet8")), VALUES[name])


def test_a_net_comes_back_with_its_classes_and_statistics(tmp_path):
    net = grown(5)
    state = through_a_file(pack({"old": [net]}), tmp_path)
    back = unpack(state, grown(2, seed=1))["old"][0]
    assert back.classes == 5
    assert_equal(back, net)
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    assert torch.equal(back.eval()(x).logits, net.eval()(x).logits)


def test_the_net_that_serves_as_a_pattern_is_left_alone():
    pattern = grown(2, seed=1)
    before = {name: value.clone() for name, value in pattern.state_dict().items()}
    unpack(pack(grown(5)), pattern)
    assert pattern.classes == 2
    assert_equal(dict(pattern.state_dict()), before)


@pytest.mark.parametrize("classes", [0, 2, 7])
def test_restore_gives_a_net_of_any_size_the_packed_one(classes):
    net, other = grown(4), rr.net("resnet8")
    other.grow(classes)
    assert restore(other, pack(net)) is other
    assert_equal(other, net)


def full_learner():
    learner = Keeper(memory=Memory(6)) + Counting() + rr.RRR()
    learner.seen_ = 3
    learner.teacher_ = grown(3)
    learner.table_ = {"a": [torch.ones(2), Ragged.of(torch.ones(2, 3))], "b": None}
    learner.terms[0].calls_ = [4, torch.tensor(2.0)]
    learner.memory.add(
        {
            "x": torch.ones(2, 3, 2, 2, dtype=torch.uint8),
            "y": torch.tensor([0, 1]),
            "task": torch.tensor([0, 0]),
            "many": Ragged(torch.arange(3.0), torch.tensor([1, 2])),
        }
    )
    return learner


def test_a_learner_comes_back_with_its_memory_and_terms(tmp_path):
    learner = full_learner()
    state = through_a_file(get_state(learner), tmp_path)
    assert set(state) == {"seen_", "teacher_", "table_", "memory", "terms.0"}
    fresh = Keeper(memory=Memory(6)) + Counting() + rr.RRR()
    set_state(fresh, state, grown(1, seed=2))
    assert fresh.seen_ == 3 and fresh.strength == 2.0
    assert_equal(fresh.teacher_, learner.teacher_)
    assert_equal(fresh.table_, learner.table_)
    assert_equal(fresh.terms[0].calls_, learner.terms[0].calls_)
    assert_equal(fresh.memory.columns_, learner.memory.columns_)
    assert_equal(get_state(fresh), get_state(learner))
    assert len(fresh.memory) == 2


def test_configuration_is_no_state():
    learner = Keeper(memory=Memory(6)) + Counting(weight=3)
    learner.seen_ = 1
    assert get_state(learner) == {"seen_": 1, "memory": {"columns_": {}}}


def test_tensors_leave_their_graph_behind():
    weight = torch.ones(2, requires_grad=True)
    packed = pack([weight * 2, torch.nn.Parameter(torch.ones(1))])
    assert [t.requires_grad for t in packed] == [False, False]


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, print, np.zeros(2), torch.nn.Linear(1, 1), b"bytes", 1j, Drift(0, 0, 0)],
    ids=["object", "set", "function", "array", "module", "bytes", "complex", "named tuple"],
)
def test_foreign_objects_are_refused_with_their_kind(value):
    with pytest.raises(TypeError, match=f"state holds a {type(value).__name__}"):
        pack({"a": [value]})


@pytest.mark.parametrize("value", [np.float64(0.5), np.int64(3), np.bool_(True)])
def test_numpy_numbers_are_refused_or_can_be_read_again(value, tmp_path):
    try:
        state = pack({"mean_": value})
    except TypeError:
        return
    assert through_a_file(state, tmp_path) == {"mean_": value}


def test_a_state_with_a_foreign_object_names_it_before_anything_is_written():
    learner = Keeper()
    learner.odd_ = object()
    with pytest.raises(TypeError, match="state holds a object"):
        get_state(learner)
