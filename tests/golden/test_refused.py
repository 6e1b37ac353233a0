"""What a learner cannot work with is refused before training starts, in one sentence."""

from __future__ import annotations

import pytest

import rightreasons as rr
from rightreasons.loop import Loop

NEEDING = [rr.ER, rr.ICaRL, rr.EEIL, rr.BiC]
TEMPERATURES = [rr.LwF, rr.EEIL, rr.BiC]


@pytest.fixture
def untrained(monkeypatch):
    """A step would fail the test."""

    def no_step(self, task, stage):
        raise AssertionError("training has started")

    monkeypatch.setattr(Loop, "take_steps", no_step)


def said(caught):
    text = str(caught.value)
    assert "\n" not in text and not text.endswith(".."), text
    return text


@pytest.mark.parametrize("kind", NEEDING)
@pytest.mark.parametrize("memory", [None, 200, {"size": 200}])
def test_a_learner_that_needs_a_memory_without_one(kind, memory):
    with pytest.raises(rr.UserError, match="expected rr.Memory") as caught:
        kind(memory=memory)
    assert repr(memory) in said(caught)


@pytest.mark.parametrize("kind", NEEDING)
@pytest.mark.parametrize("pick", ["herding", "random"])
def test_a_memory_smaller_than_one_row_a_class(untrained, tiny_stream, tiny_net, kind, pick):
    learner = kind(memory=rr.Memory(5, pick=pick))
    with pytest.raises(rr.UserError, match="5 rows for 6 classes.*memory.size=6") as caught:
        rr.fit(learner, tiny_net, tiny_stream, progress=False)
    said(caught)


@pytest.mark.parametrize("kind", [rr.Finetune, rr.EWC, rr.LwF, rr.LwFMC])
def test_the_memory_of_a_term_is_looked_at_too(untrained, tiny_stream, tiny_net, kind):
    learner = kind(memory=rr.Memory(5, pick="herding")) + rr.Evidence()
    with pytest.raises(rr.UserError, match="memory.size=6"):
        rr.fit(learner, tiny_net, tiny_stream, progress=False)


@pytest.mark.parametrize("kind", TEMPERATURES)
@pytest.mark.parametrize("temperature", [0, -1, -0.5, float("nan"), float("inf"), "warm"])
def test_a_temperature_that_is_none(kind, temperature):
    with pytest.raises(rr.UserError, match=f"{kind.name}.temperature is .*, expected") as caught:
        kind(temperature=temperature)
    said(caught)


@pytest.mark.parametrize(
    ("memory", "typed"),
    [
        (rr.Memory(7), "memory.size=12"),  # one row a class when the third task comes
        (rr.Memory(7, pick="herding"), "memory.size=12"),
        (rr.Memory(per_class=1), "memory.per_class=2"),
        (rr.Memory(per_class=(4, 1)), "memory.per_class=2"),
    ],
)
def test_a_bias_stage_without_a_held_out_row(untrained, tiny_stream, tiny_net, memory, typed):
    with pytest.raises(rr.UserError, match=typed) as caught:
        rr.fit(rr.BiC(memory=memory), tiny_net, tiny_stream, progress=False)
    assert said(caught).startswith("bic holds out rows of each class")


def test_a_class_of_a_single_image_has_none_to_spare(untrained, tiny_net):
    stream = rr.stream("glyphs", tasks=2, classes=4, train=1, test=1, size=16)
    with pytest.raises(rr.UserError, match="too few rows or images"):
        rr.fit(rr.BiC(memory=rr.Memory(40)), tiny_net, stream, progress=False)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rr.EWC(merge="onlin"), "unknown ewc.merge 'onlin'; did you mean 'online'"),
        (lambda: rr.EWC(labels="tru"), "unknown ewc.labels 'tru'; did you mean 'true'"),
        (lambda: rr.EWC(scope="old"), "unknown ewc.scope 'old'; choose one of: all, new"),
        (lambda: rr.EWC(decay=1.5), "ewc.decay is 1.5, expected 0 to 1"),
        (lambda: rr.LwF(scope="nwe"), "unknown lwf.scope 'nwe'; did you mean 'new'"),
        (lambda: rr.BiC(groups="newst"), "unknown bic.groups 'newst'; did you mean 'newest'"),
        (lambda: rr.BiC(held_out=0.0), "bic.held_out is 0.0, expected a share"),
        (lambda: rr.BiC(held_out=1.0), "bic.held_out is 1.0, expected a share"),
        *(
            (lambda kind=kind: kind(replay="pared"), f"unknown {kind.name}.replay 'pared'")
            for kind in NEEDING
        ),
        (lambda: rr.EEIL(balanced={"epoch": 2}), "did you mean 'eeil.balanced.epochs'"),
        (lambda: rr.EEIL(balanced={"lr": 0}), "lr is 0.0, expected a number above 0"),
        (lambda: rr.EEIL(balanced={"optimiser": "sdg"}), "did you mean 'sgd'"),
        (lambda: rr.EEIL(balanced=3), "eeil.balanced is 3, expected keys"),
        (lambda: rr.BiC(bias={"leer": 2}), "unknown key 'bic.bias.leer'"),
        (lambda: rr.BiC(bias={"epochs": 0}), "epochs is 0, expected at least 1"),
        (lambda: rr.BiC(bias={"epochs": "many"}), "bic.bias.epochs is 'many'"),
        # a stage has no device of its own, and what comes later has come
        (lambda: rr.BiC(bias={"device": "cuda"}), "unknown key 'bic.bias.device'"),
        (lambda: rr.EEIL(balanced={"threads": 1}), "unknown key 'eeil.balanced.threads'"),
        (lambda: rr.EEIL(balanced={"later": {"lr": 1}}), "unknown key 'eeil.balanced.later'"),
    ],
)
def test_fields_that_say_nothing(make, words):
    with pytest.raises(rr.UserError, match=words) as caught:
        make()
    said(caught)
