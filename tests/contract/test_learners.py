"""Every learner with every term: trains, obeys the state rule, weight 0 changes nothing."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
import torch

import rightreasons as rr
from rightreasons.errors import RunWarning
from rightreasons.memory import Ragged
from rightreasons.registry import LEARNERS, TERMS, find
from rightreasons.state import get_state
from rightreasons.terms.base import Term

PLAIN = sorted(LEARNERS)
OPTIONS = {"itaml": {"group": 4}}  # a task has 8 test images
PAIRS = [(a, t) for a in PLAIN if a != "joint" for t in sorted(TERMS)]


def learner(name, *terms):
    made = find("method", LEARNERS, name)(memory=rr.Memory(12), **OPTIONS.get(name, {}))
    for term in terms:
        made = made + term
    return made


def term(name, view="canonical", **options):
    return find("term", TERMS, name)(rows=4, view=view, **options)


def weights(result):
    return dict(result.net.state_dict())


def same(a, b, skip=()):
    """Two states, bit by bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(k in skip or same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and a.keys() == b.keys()


@pytest.fixture(scope="module")
def plain(request):
    """Each plain learner trained once."""
    return {}


def trained(plain, name, stream, net, train):
    if name not in plain:
        plain[name] = rr.fit(learner(name), net, stream, train=train, progress=False)
    return plain[name]


@pytest.mark.parametrize("name", PLAIN)
def test_a_learner_trains_and_stays_a_recipe(plain, name, tiny_stream, tiny_net, tiny_train):
    recipe, before = learner(name), copy.deepcopy(tiny_net.state_dict())
    result = rr.fit(recipe, tiny_net, tiny_stream, train=tiny_train, progress=False)
    plain.setdefault(name, result)
    assert result.R.shape == (3, 3)
    assert ((result.R >= 0) & (result.R <= 1))[result.R == result.R].all()
    assert len(recipe.memory) == 0
    assert equal(before, tiny_net.state_dict())
    assert result.net.classes == 6


@pytest.mark.parametrize("name, with_", PAIRS)
def test_a_term_moves_weights_and_its_memory_is_kept(
    plain, name, with_, tiny_stream, tiny_net, tiny_train
):
    base = trained(plain, name, tiny_stream, tiny_net, tiny_train)
    result = rr.fit(
        learner(name, term(with_, weight=5.0)),
        tiny_net,
        tiny_stream,
        train=tiny_train,
        progress=False,
    )
    assert not equal(weights(base), weights(result))
    assert result.records[0]["losses"].keys() == {"task"}
    assert all(record["losses"][with_] > 0 for record in result.records[1:])
    assert result.records[-1]["bytes"]["maps"] > 0
    assert len(result.learner.memory) == 12


@pytest.mark.parametrize("name, with_", PAIRS)
def test_a_term_of_weight_zero_equals_the_plain_learner_bit_by_bit(
    plain, name, with_, tiny_stream, tiny_net, tiny_train, monkeypatch
):
    base = trained(plain, name, tiny_stream, tiny_net, tiny_train)
    calls = []
    kind = type(term(with_))
    real = kind.__call__

    def counted(self, *args):
        value = real(self, *args)
        calls.append(value.item())
        assert value.requires_grad
        return value

    monkeypatch.setattr(kind, "__call__", counted)
    result = rr.fit(
        learner(name, term(with_, weight=0.0)),
        tiny_net,
        tiny_stream,
        train=tiny_train,
        progress=False,
    )
    assert len(calls) >= 2 * 2 * 3  # two tasks with a memory, two epochs, three batches or more
    assert max(calls) > 0
    assert equal(weights(base), weights(result))
    assert same(get_state(base.learner), get_state(result.learner), skip=("memory",))
    for a, b in zip(base.records, result.records, strict=True):
        assert a["accuracy"] == b["accuracy"]
    if base.learner.remembers:
        for column in ("x", "y", "task", "index"):
            assert torch.equal(base.learner.memory[column], result.learner.memory[column])


@pytest.mark.parametrize("name, with_", [*PAIRS, *((n, None) for n in PLAIN)])
def test_state_ends_in_an_underscore_and_a_run_that_is_gone_on_with_ends_with_the_same_bits(
    name, with_, tiny_stream, tiny_net, tiny_train, tmp_path
):
    recipe = learner(name, *([term(with_)] if with_ else []))
    whole = rr.fit(
        recipe, tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a", progress=False
    )
    for part in (whole.learner, whole.learner.memory, *whole.learner.terms):
        allowed = {f.name for f in fields(part)}
        assert {n for n in vars(part) if not n.endswith("_")} <= allowed
    assert [vars(t) for t in whole.learner.terms] == [vars(t) for t in recipe.terms]
    for task in (2, 3):
        (tmp_path / "a" / "checkpoints" / f"task-{task}.pt").unlink()
    (tmp_path / "a" / "result.json").unlink()
    again = rr.fit(
        recipe, tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a", progress=False
    )
    assert equal(weights(whole), weights(again))
    assert same(get_state(whole.learner), get_state(again.learner))
    for name_, column in whole.learner.memory.columns_.items():
        other = again.learner.memory.columns_[name_]
        if isinstance(column, Ragged):
            assert torch.equal(column.values, other.values)
        else:
            assert torch.equal(column, other)
    for a, b in zip(whole.records, again.records, strict=True):
        times = ("seconds", "seconds_a_step", "cpu_a_step")
        assert {k: v for k, v in a.items() if k not in times} == {
            k: v for k, v in b.items() if k not in times
        }


@pytest.mark.parametrize("with_", sorted(TERMS))
def test_runs_that_share_the_first_task_equal_separate_runs(
    with_, tiny_stream, tiny_net, tiny_train, tmp_path
):
    shared = tmp_path / "prefix" / "one.pt"
    rr.fit(learner("er"), tiny_net, tiny_stream, train=tiny_train, prefix=shared, progress=False)
    assert shared.exists()
    recipe = learner("er", term(with_))
    joined = rr.fit(recipe, tiny_net, tiny_stream, train=tiny_train, prefix=shared, progress=False)
    alone = rr.fit(recipe, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert equal(weights(joined), weights(alone))
    for a, b in zip(joined.records, alone.records, strict=True):
        assert a["losses"] == b["losses"] and a["accuracy"] == b["accuracy"]


def test_a_first_task_of_other_images_is_not_shared(tiny_stream, tiny_net, tiny_train, tmp_path):
    """The folder of images may have changed since: its name is all that the file's name knows."""
    how = {"train": tiny_train, "progress": False}
    names = tuple(reversed(tiny_stream.class_names))
    for k, other in enumerate(
        (
            replace(tiny_stream, class_names=names),
            replace(tiny_stream, mean=tiny_stream.mean + 9),
        )
    ):
        shared = tmp_path / f"{k}.pt"
        rr.fit(learner("er"), tiny_net, other, prefix=shared, **how)
        with pytest.warns(RunWarning, match="was trained on other images; the first task is"):
            anew = rr.fit(learner("er"), tiny_net, tiny_stream, prefix=shared, **how)
        alone = rr.fit(learner("er"), tiny_net, tiny_stream, **how)
        assert equal(weights(anew), weights(alone))


def test_terms_of_one_learner_share_a_forward(tiny_stream, tiny_net, tiny_train, monkeypatch):
    """Two terms that look at the same rows cost one forward, not two."""
    seen = []
    forward = rr.Net.forward

    def counted(self, x, taps=()):
        seen.append(tuple(taps))
        return forward(self, x, taps)

    monkeypatch.setattr(rr.Net, "forward", counted)
    both = learner("er", term("rrr", target="last_block"), term("evidence"))
    rr.fit(both, tiny_net, tiny_stream, train=replace(tiny_train, epochs=1), progress=False)
    together = [taps for taps in seen if taps == ("last_block", "last_block")]
    assert len(together) == 2 * 3 + 3  # a step each in tasks 2 and 3, and one to store a task


@pytest.mark.parametrize(
    "with_, options",
    [
        ("rrr", {"view": "shared", "target": "last_block"}),
        ("rrr", {"view": "shared", "target": "paper", "bn": "frozen"}),
        ("rrr", {"view": "ignore"}),
        ("evidence", {"view": "shared"}),
        ("evidence", {"view": "shared", "bn": "frozen"}),
        ("evidence", {"view": "ignore", "bn": "train"}),
        ("evidence", {"view": "canonical", "bn": "batch"}),
        ("rrr", {"view": "canonical", "bn": "batch", "target": "last_block"}),
    ],
)
def test_other_views_train(with_, options, plain, tiny_stream, tiny_net, tiny_train):
    joined = learner("er", term(with_, weight=5.0, **options))
    result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    base = trained(plain, "er", tiny_stream, tiny_net, tiny_train)
    assert not equal(weights(base), weights(result))
    assert all(record["losses"][with_] > 0 for record in result.records[1:])


@pytest.mark.parametrize("with_", ["rrr", "evidence", "logits"])
def test_the_shared_view_of_weight_zero_equals_the_plain_learner(
    with_, plain, tiny_stream, tiny_net, tiny_train
):
    options = {"target": "last_block"} if with_ == "rrr" else {}
    joined = learner("er", term(with_, view="shared", weight=0.0, **options))
    result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert result.records[-1]["losses"][with_] > 0
    assert equal(weights(trained(plain, "er", tiny_stream, tiny_net, tiny_train)), weights(result))


def test_a_forward_by_batch_statistics_of_weight_zero_leaves_the_running_ones_alone(
    plain, tiny_stream, tiny_net, tiny_train
):
    joined = learner("er", term("evidence", bn="batch", weight=0.0))
    result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert result.records[-1]["losses"]["evidence"] > 0
    base = trained(plain, "er", tiny_stream, tiny_net, tiny_train)
    assert equal(weights(base), weights(result))
    assert equal(dict(base.net.named_buffers()), dict(result.net.named_buffers()))


def test_the_released_profile_makes_a_pass_over_the_memory_before_each_epoch(
    tiny_stream, tiny_net, tiny_train, monkeypatch
):
    calls = []
    real = rr.RRR.__call__

    def counted(self, net, out, batch, columns):
        calls.append(sorted(batch.row.tolist()))
        return real(self, net, out, batch, columns)

    monkeypatch.setattr(rr.RRR, "__call__", counted)
    joined = learner("er", rr.RRR(profile="released", rows=5))
    rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert len(calls) == 2 * 2 * 3  # tasks 2 and 3, two epochs, 12 rows in batches of 5
    assert sorted(row for part in calls[:3] for row in part) == list(range(12))


def test_refresh_explains_old_rows_anew(tiny_stream, tiny_net, tiny_train):
    maps = {}
    for refresh in ("never", "each_task"):
        joined = learner("er", rr.RRR(rows=4, weight=0.0, refresh=refresh, dtype="float32"))
        result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
        memory = result.learner.memory
        maps[refresh] = memory["rrr.map"][memory["task"] == 0]
    assert not torch.equal(maps["never"], maps["each_task"])


def test_a_term_says_what_to_implement():
    with pytest.raises(TypeError):
        Term()


@pytest.mark.parametrize("with_", ["rrr", "evidence"])
def test_a_shared_frozen_term_of_weight_zero_equals_its_partner(
    with_, plain, tiny_stream, tiny_net, tiny_train
):
    """Its partner is the plain learner whose BatchNorm is frozen in the same way."""
    joined = learner("er", term(with_, view="shared", bn="frozen", weight=0.0))
    result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    frozen = replace(tiny_train, freeze_bn=True)
    partner = rr.fit(learner("er"), tiny_net, tiny_stream, train=frozen, progress=False)
    assert result.records[-1]["losses"][with_] > 0
    assert equal(weights(partner), weights(result))
    base = trained(plain, "er", tiny_stream, tiny_net, tiny_train)
    assert not equal(weights(base), weights(result))


@pytest.mark.parametrize("with_", ["rrr", "evidence"])
def test_the_loop_stores_what_the_loop_compares(with_, tiny_stream, tiny_net, tiny_train):
    """Through the loop's own rows and views the loss is zero right after storing."""
    from rightreasons.keep import keep
    from rightreasons.loop import Loop

    joined = learner("er", term(with_, dtype="float32"))
    loop = Loop(joined, tiny_net, tiny_stream, tiny_train, seed=0)
    loop.net.grow(tiny_stream[0].seen)
    for _ in range(3):  # statistics that are not those of a fresh net
        loop.net.train()(loop.feed.normalise(tiny_stream[0].train.x[:8]))
    out = loop.net(loop.feed.normalise(tiny_stream[0].train.x[:8]))
    keep(joined, loop.net.eval(), loop.feed, tiny_stream[0])
    batch = loop.feed.canonical(
        tiny_stream[0].train.x[:8], tiny_stream[0].train.y[:8], torch.full((8,), -1)
    )
    ((_, value),) = loop._terms(joined.terms, out, batch, batch, (1, "main", 0, 0))
    stored = joined.memory[f"{with_}.map"]
    size = (stored.values if isinstance(stored, Ragged) else stored).abs().mean()
    assert size > 0 and value < 1e-5 * size


class Teacher(rr.ER):
    """A learner whose state holds a frozen net, as distillation does."""

    def loss(self, net, out, batch, stage):
        plain = super().loss(net, out, batch, stage)
        if not hasattr(self, "old_"):
            return plain
        assert not self.old_.training and not any(p.requires_grad for p in self.old_.parameters())
        taught = self.old_(batch.x).logits
        return plain + (out.logits[:, : taught.shape[1]] - taught).square().mean()

    def end(self, net, task, memory, look):
        self.old_ = copy.deepcopy(net).requires_grad_(False).eval()


def test_a_learner_with_a_teacher_is_gone_on_with_bit_by_bit(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    recipe = Teacher(memory=rr.Memory(12))
    whole = rr.fit(recipe, tiny_net, tiny_stream, train=tiny_train, run=tmp_path, progress=False)
    for task in (2, 3):
        (tmp_path / "checkpoints" / f"task-{task}.pt").unlink()
    again = rr.fit(recipe, tiny_net, tiny_stream, train=tiny_train, run=tmp_path, progress=False)
    assert equal(weights(whole), weights(again))


def test_dropout_is_keyed_too(tiny_stream, tiny_train):
    """Equal seeds are equal, and a term leaves the learner's dropout as it is."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.ReLU(inplace=True), torch.nn.Dropout(0.5),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 2),
    )  # fmt: skip
    net = rr.net(module, size=16)
    runs = [
        weights(rr.fit(made, net, tiny_stream, train=tiny_train, progress=False))
        for made in (learner("er"), learner("er"), learner("er", term("rrr", weight=0.0)))
    ]
    assert equal(runs[0], runs[1]) and equal(runs[0], runs[2])
