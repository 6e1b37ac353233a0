"""Feed and Look: which images and rows each stage of a task sees, and what is never trained on."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import rightreasons as rr
from rightreasons.feed import Feed, Look
from rightreasons.keep import balance
from rightreasons.loop import Loop
from rightreasons.memory import choose
from rightreasons.progress import Reporter
from rightreasons.randomness import generator
from rightreasons.types import Pool, Stage

CPU = torch.device("cpu")
EACH = 20  # train images a class


@pytest.fixture(scope="module")
def marked():
    """Six classes in three tasks; the first pixel of a train image is its number."""
    draw = np.random.default_rng(0)
    count = 6 * EACH
    x = draw.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    x[:, 0, 0, 0] = np.arange(count)
    y = np.arange(count) % 6
    return rr.stream((x, y), tasks=3, test=(x[:12], y[:12]))


@pytest.fixture
def plain(tiny_train):
    """No crop and no flip: every image can be told by its first pixel."""
    return replace(tiny_train, epochs=1, augment=rr.Augment(0, False))


def numbers(stream, x):
    """Which images these are."""
    first = x[:, 0, 0, 0] * stream.std[0] + stream.mean[0]
    assert (first - first.round()).abs().max() < 1e-2
    return [int(i) for i in first.round()]


VIEWS = {
    "canonical": {},
    "shared": {"view": "shared", "target": "last_block"},
    "ignore": {"view": "ignore"},
    "released": {"profile": "released"},
}
WAYS = [
    *((replay, pick, None) for replay in ("concat", "paired") for pick in ("herding", "random")),
    *(("concat", "herding", view) for view in VIEWS),
    *(("paired", "random", view) for view in VIEWS),
]


@pytest.mark.parametrize(("replay", "pick", "view"), WAYS)
def test_what_is_held_out_is_never_trained_on_nor_explained(
    marked, plain, tiny_net, monkeypatch, replay, pick, view
):
    seen, explained = {}, set()

    class Watched(rr.BiC):
        def loss(self, net, out, batch, stage):
            seen.setdefault((len(self.sizes_) - 1, stage.name), []).extend(numbers(marked, batch.x))
            return super().loss(net, out, batch, stage)

    call = rr.RRR.__call__

    def watched(self, net, out, batch, columns):
        explained.update(numbers(marked, batch.x))
        return call(self, net, out, batch, columns)

    monkeypatch.setattr(rr.RRR, "__call__", watched)
    learner = Watched(memory=rr.Memory(36, pick=pick), replay=replay)
    if view is not None:
        learner = learner + rr.RRR(rows=5, **VIEWS[view])
    memory = rr.fit(learner, tiny_net, marked, train=plain, progress=False).learner.memory

    assert set(seen) == {(0, "main"), (1, "main"), (1, "bias"), (2, "main"), (2, "bias")}
    trained = {i for (_, stage), ids in seen.items() if stage == "main" for i in ids}
    held = {i for (_, stage), ids in seen.items() if stage == "bias" for i in ids}
    assert held and not trained & held
    assert explained <= trained and bool(explained) == (view is not None)
    # quotas of 18, 9 and 6 rows a class: 2, 1 and 1 of them are held out
    for index, each in ((1, 2), (2, 1)):
        ids = seen[index, "bias"]
        assert len(set(ids)) == len(ids)
        counts = [sum(i % 6 == c for i in ids) for c in range(6)]
        assert counts == [each if c < 2 * index + 2 else 0 for c in range(6)]
    for index, each in ((0, 2), (1, 2), (2, 1)):  # all other new images train
        own = {i for i in seen[index, "main"] if i % 6 in marked[index].classes}
        assert len(own) == 2 * (EACH - each)
    stored = [int(i) for i in memory["x"][:, 0, 0, 0]]
    assert memory["held"].tolist() == [i not in trained for i in stored]


def test_the_held_out_share_stays_right_as_the_memory_shrinks(marked, plain, tiny_net):
    counts = []

    class Counted(rr.BiC):
        def end(self, net, task, memory, look):
            super().end(net, task, memory, look)
            counts.append(
                [
                    (int((memory["y"] == c).sum()), int(memory["held"][memory["y"] == c].sum()))
                    for c in range(task.seen)
                ]
            )

    for share, expected in (
        (0.1, [(18, 2), (9, 1), (6, 1)]),
        (0.3, [(18, 6), (9, 3), (6, 2)]),
        (0.5, [(18, 9), (9, 4), (6, 3)]),
    ):
        counts.clear()
        learner = Counted(memory=rr.Memory(36, pick="herding"), held_out=share)
        rr.fit(learner, tiny_net, marked, train=plain, progress=False)
        assert counts == [[pair] * (2 * i + 2) for i, pair in enumerate(expected)]


def test_the_bias_stage_of_a_class_with_few_images_stays_balanced(plain, tiny_net):
    """Classes of 4 and 20 images: as many held-out ones of each, and each class trains."""
    draw = np.random.default_rng(1)
    y = np.repeat(np.arange(4), [20, 20, 4, 20])
    x = draw.integers(0, 256, (len(y), 16, 16, 3), dtype=np.uint8)
    stream = rr.stream((x, y), tasks=2, test=(x[::4], y[::4]))
    memory = rr.Memory(40, pick="herding")
    feed = Feed(stream, memory, 0, CPU, held_out=0.1)
    rest, held = feed.parts(stream[1])
    labels = stream[1].train.y
    assert torch.bincount(labels[held]).tolist()[2:] == [1, 1]
    assert torch.bincount(labels[rest]).tolist()[2:] == [3, 19]
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(24))
    rr.fit(rr.BiC(memory=memory), tiny_net, stream, train=plain, progress=False)


def test_without_a_held_out_share_every_image_trains(marked):
    feed = Feed(marked, rr.Memory(36), 0, CPU)
    assert len(feed.pool(marked[1], Stage())) == len(marked[1].train)
    rest, held = feed.parts(marked[1])
    assert len(held) == 0 and len(rest) == len(marked[1].train)


def test_steps_that_are_announced_are_those_that_are_taken(marked, plain, tiny_net):
    """What is left of a run is told from it."""
    for learner in (
        rr.BiC(memory=rr.Memory(36, pick="herding")),
        rr.EEIL(memory=rr.Memory(36, pick="herding")),
        rr.ER(memory=rr.Memory(36), replay="concat"),
    ):
        loop = Loop(learner, copy.deepcopy(tiny_net), marked, plain, seed=0)
        announced = [loop._steps_of(task) for task in marked]
        taken = [r["steps"] for r in loop.run(False, None).records]
        assert all(abs(a - b) <= 1 for a, b in zip(announced, taken, strict=True)), learner.name


def test_progress_counts_each_step_of_every_stage_once(marked, plain, tiny_net):
    learner = rr.EEIL(memory=rr.Memory(36))
    train = replace(plain, epochs=3, batch=4)
    loop = Loop(learner, tiny_net, marked, train, seed=0)
    reporter, total = Reporter("", 1, show=False), 0
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    for task in marked[:2]:
        loop.learn(task, reporter)
        total += loop.records[-1]["steps"]
        assert reporter.done == total
    assert total > 100


# --- the balanced stage --------------------------------------------------------------------------


@pytest.mark.parametrize("pick", ["herding", "random"])
def test_the_balanced_stage_sees_as_many_of_a_new_class_as_of_an_old_one(
    marked, plain, tiny_net, pick
):
    seen = {}

    class Counted(rr.EEIL):
        def loss(self, net, out, batch, stage):
            place = seen.setdefault((out.logits.shape[1], stage.name), [])
            place += zip(numbers(marked, batch.x), (batch.row >= 0).tolist(), strict=True)
            return super().loss(net, out, batch, stage)

    memory = rr.Memory(36, pick=pick)
    rr.fit(Counted(memory=memory), tiny_net, marked, train=plain, progress=False)
    assert set(seen) == {(2, "main"), (4, "main"), (4, "balanced"), (6, "main"), (6, "balanced")}
    for classes, quota in ((4, 18), (6, 9)):  # 36 rows over the 2, then 4, classes before
        ids = seen[classes, "balanced"]
        assert len({i for i, _ in ids}) == len(ids)
        each = [[old for i, old in ids if i % 6 == c] for c in range(classes)]
        assert [len(of) for of in each] == [quota] * classes
        assert all(all(of) for of in each[:-2]) and not any(map(any, each[-2:]))
        every = [i for i, _ in seen[classes, "main"]]
        assert {i for i, _ in ids} <= set(every)
        assert sum(i % 6 >= classes - 2 for i in every) == 2 * EACH


def test_a_random_choice_of_balanced_images_has_its_own_key(marked):
    learner = rr.EEIL(memory=rr.Memory(36, pick="random"))
    feed = Feed(marked, learner.memory, 0, CPU)
    y = marked[1].train.y
    chosen = balance(learner, rr.net("resnet8"), feed, marked[1])
    assert torch.bincount(y[chosen]).tolist() == [0, 0, 18, 18]
    assert not torch.equal(chosen, choose(y, 18, generator(0, "memory", 1)))
    assert torch.equal(chosen, choose(y, 18, generator(0, "memory", 1, "balance")))


# --- parameters of a stage -----------------------------------------------------------------------


def test_a_stage_may_train_the_head_alone(marked, plain, tiny_net):
    class Headed(rr.ER):
        def stages(self, task):
            return [Stage("head", Pool(mix="concat"), params="head", train={"epochs": 2})]

    loop = Loop(Headed(memory=rr.Memory(12)), tiny_net, marked, plain, seed=0)
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    loop.net.grow(2)
    loop.net.train()
    before = {name: value.clone() for name, value in loop.net.state_dict().items()}
    loop._train(marked[0], Reporter("", 1, show=False))
    changed = {n for n, v in loop.net.state_dict().items() if not torch.equal(v, before[n])}
    assert changed == {"module.fc.weight", "module.fc.bias"}  # no buffer of BatchNorm either
    assert all(p.requires_grad for p in loop.net.parameters())
    assert loop.steps == 2 * 5  # two epochs of 40 images, 8 a step


def test_a_stage_of_unknown_parameters_says_which_there_are(marked, plain, tiny_net):
    class Odd(rr.BiC):
        def stages(self, task):
            return [Stage(params="bias")]

    learner = Odd(memory=rr.Memory(36))
    with pytest.raises(rr.UserError, match="unknown stage.params 'bias'; did you mean 'bias_'"):
        rr.fit(learner, tiny_net, marked, train=plain, progress=False)


# --- Look ----------------------------------------------------------------------------------------


def looked(marked, net, fresh):
    memory = rr.Memory(8)
    images = marked[0].train
    index = torch.tensor([0, 7, 25, 30])
    y = images.y[index]
    memory.add({"x": images.pixels(index), "y": y, "task": torch.zeros_like(y), "index": index})
    feed = Feed(marked, memory, 0, CPU)
    x = (memory["x"].float() - marked.mean.view(3, 1, 1)) / marked.std.view(3, 1, 1)
    return Look(feed, net, marked[0], fresh), x


def test_embeddings_are_those_of_all_rows_and_of_their_mirror_images(marked, tiny_net):
    tiny_net.grow(2)
    net = tiny_net.eval()
    look, x = looked(marked, net, None)
    with torch.no_grad():
        straight, mirrored = net(x).z, net(torch.flip(x, [3])).z
    assert torch.allclose(look.embeddings(), straight, atol=1e-6)
    assert torch.allclose(look.embeddings(flip=True), mirrored, atol=1e-6)
    assert not torch.allclose(straight, mirrored, atol=1e-3)
    assert not look.embeddings().requires_grad


def test_embeddings_that_are_known_are_not_looked_at_again(marked, tiny_net, monkeypatch):
    tiny_net.grow(2)
    forwards = []
    real = rr.Net.forward

    def counted(self, x, taps=()):
        forwards.append(len(x))
        return real(self, x, taps)

    monkeypatch.setattr(rr.Net, "forward", counted)
    known = torch.full((3, 8), 5.0)
    look, x = looked(marked, tiny_net.eval(), known)
    z = look.embeddings()
    assert z.shape == (4, 8) and torch.equal(z[1:], known) and forwards == [1]
    look.embeddings(flip=True)
    assert forwards == [1, 4]
    look, _ = looked(marked, tiny_net, torch.zeros(4, 8))
    assert look.embeddings().shape == (4, 8)
    assert forwards == [1, 4]  # not even of no image: some nets cannot


def test_images_are_all_new_ones_as_they_are(marked, tiny_net):
    tiny_net.grow(2)
    look, _ = looked(marked, tiny_net, None)
    batches = list(look.images(size=7))
    assert [len(b.y) for b in batches] == [7, 7, 7, 7, 7, 5]
    assert [i for b in batches for i in numbers(marked, b.x)] == [
        int(i) for i in marked[0].train.x[marked[0].train.rows][:, 0, 0, 0]
    ]
    assert all((b.row == -1).all() and b.geometry is None for b in batches)


def test_a_learner_s_own_draws_have_their_own_key(marked, tiny_net):
    look, _ = looked(marked, tiny_net, None)
    a, b, c = (torch.rand(3, generator=look.generator(p)) for p in ("fisher", "fisher", "other"))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_rows_of_the_memory_that_keep_filled_are_in_the_learner_s_hands_at_the_end(
    marked, plain, tiny_net
):
    """`end` comes after the memory took rows: class means have rows of the new classes."""
    lengths = []

    class Told(rr.ICaRL):
        def end(self, net, task, memory, look):
            lengths.append((task.seen, len(memory), sorted(set(memory["y"].tolist()))))
            assert not net.training
            assert len(look.embeddings()) == len(memory)
            super().end(net, task, memory, look)
            assert self.means_.shape == (task.seen, 8)
            assert torch.allclose(self.means_.norm(dim=1), torch.ones(task.seen))

    learner = Told(memory=rr.Memory(36, pick="herding"))
    rr.fit(learner, tiny_net, marked, train=plain, progress=False)
    assert lengths == [(2, 36, [0, 1]), (4, 36, [0, 1, 2, 3]), (6, 36, [0, 1, 2, 3, 4, 5])]
