"""Keep: what the memory takes when a task ends, and how often the net looks for it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.feed import Look
from rightreasons.keep import keep
from rightreasons.loop import Loop
from rightreasons.memory import Ragged, herd
from rightreasons.progress import Reporter
from rightreasons.types import Pool, Stage


@pytest.fixture
def forwards(monkeypatch):
    """How many images each forward had, and its taps."""
    seen = []
    real = rr.Net.forward

    def counted(self, x, taps=()):
        seen.append((len(x), tuple(taps)))
        return real(self, x, taps)

    monkeypatch.setattr(rr.Net, "forward", counted)
    return seen


def loop_of(learner, net, stream, train):
    loop = Loop(learner, net, stream, train, seed=0)
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    return loop


def trained(loop, task):
    """The steps of a task, up to the moment at which the memory takes rows."""
    loop._train(task, Reporter("", 1, show=False))
    loop.net.eval()


NEW, ROWS = 24, 12  # images of a task; rows of memory

HERDING = [  # terms; forwards of the second task's keep: all new images, and the chosen ones again
    ((), [(NEW, ())]),
    ((rr.Evidence(rows=4),), [(NEW, ("last_block",))]),
    ((rr.RRR(rows=4, target="last_block"),), [(NEW, ("last_block",))]),
    (
        (rr.Evidence(rows=4), rr.RRR(rows=4, target="last_block")),
        [(NEW, ("last_block", "last_block"))],
    ),
    # derivatives are needed at a layer inside the net: taken for the chosen ones alone
    ((rr.RRR(rows=4, target="paper"),), [(NEW, ()), (6, ("paper",))]),
]


@pytest.mark.parametrize(("terms", "expected"), HERDING)
def test_herding_maps_and_class_means_come_from_one_pass(
    tiny_stream, tiny_net, tiny_train, forwards, terms, expected
):
    learner = rr.ICaRL(memory=rr.Memory(ROWS, pick="herding"), terms=terms)
    loop = loop_of(learner, tiny_net, tiny_stream, tiny_train)
    for task in tiny_stream[:2]:
        trained(loop, task)
        forwards.clear()
        fresh = keep(learner, loop.net, loop.feed, task)
        kept = list(forwards)
        forwards.clear()
        learner.end(loop.net, task, learner.memory, Look(loop.feed, loop.net, task, fresh))
        old = 0 if task.index == 0 else 6  # rows of the first task: 12, cut to 6
        straight = [] if task.index == 0 else [(old, ())]
        assert forwards == [*straight, (ROWS, ())]  # old rows, then every mirror image
    assert kept == expected
    assert loop.net.training is False


def test_a_random_memory_without_terms_needs_no_look(tiny_stream, tiny_net, tiny_train, forwards):
    learner = rr.ER(memory=rr.Memory(ROWS))
    loop = loop_of(learner, tiny_net, tiny_stream, tiny_train)
    trained(loop, tiny_stream[0])
    forwards.clear()
    assert keep(learner, loop.net, loop.feed, tiny_stream[0]) is None
    assert forwards == []


@pytest.mark.parametrize("terms", [terms for terms, _ in HERDING])
def test_what_comes_from_the_shared_pass_is_what_two_passes_give(
    tiny_stream, tiny_net, tiny_train, terms
):
    """Rows are those of herding on the net's embeddings; columns are of those very images."""
    learner = rr.ICaRL(memory=rr.Memory(ROWS, pick="herding"), terms=terms)
    loop = loop_of(learner, tiny_net, tiny_stream, tiny_train)
    task = tiny_stream[0]
    trained(loop, task)
    fresh = keep(learner, loop.net, loop.feed, task)
    images, memory = task.train, learner.memory
    x = images.pixels(torch.arange(NEW)).float()
    x = (x - tiny_stream.mean.view(3, 1, 1)) / tiny_stream.std.view(3, 1, 1)
    with torch.no_grad():
        z = loop.net(x).z
    assert memory["index"].tolist() == herd(z, images.y, 6).tolist()
    assert torch.equal(memory["x"], images.pixels(memory["index"]))
    assert torch.equal(memory["y"], images.y[memory["index"]])
    assert torch.allclose(fresh, z[memory["index"]], atol=1e-5)
    for term in terms:
        batch = loop.feed.remembered(torch.arange(ROWS))
        own = term.remember(loop.net, batch, loop.net(batch.x, taps=term.taps))
        for name, column in own.items():
            stored = memory[name]
            if isinstance(column, Ragged):
                assert torch.equal(stored.lengths, column.lengths)
                stored, column = stored.values, column.values
            close = torch.allclose(stored.float(), column.float(), rtol=2e-3, atol=1e-3)
            assert close, name


def test_class_means_of_a_run_are_those_of_its_rows(tiny_stream, tiny_net, tiny_train):
    """Recomputed with the net as it is after each task, for old classes too."""
    learner = rr.ICaRL(memory=rr.Memory(ROWS, pick="herding")) + rr.Evidence(rows=4)
    result = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    memory, net = result.learner.memory, result.net.eval()
    x = (memory["x"].float() - tiny_stream.mean.view(3, 1, 1)) / tiny_stream.std.view(3, 1, 1)
    with torch.no_grad():
        z = torch.stack([F.normalize(net(v).z) for v in (x, x.flip(3))]).mean(0)
    for c in range(6):
        mean = z[memory["y"] == c].mean(0)
        assert torch.allclose(result.learner.means_[c], mean / mean.norm(), atol=1e-5)


def test_held_out_images_are_among_the_rows_and_herding_picks_from_the_others(
    tiny_stream, tiny_net, tiny_train
):
    learner = rr.BiC(memory=rr.Memory(ROWS, pick="herding"), held_out=0.4)
    loop = loop_of(learner, tiny_net, tiny_stream, tiny_train)
    task = tiny_stream[0]
    trained(loop, task)
    keep(learner, loop.net, loop.feed, task)
    memory, (rest, held) = learner.memory, loop.feed.parts(task)
    is_held = memory["held"]
    assert set(memory["index"][is_held].tolist()) <= set(held.tolist())
    x = task.train.pixels(rest).float()
    x = (x - tiny_stream.mean.view(3, 1, 1)) / tiny_stream.std.view(3, 1, 1)
    with torch.no_grad():
        z = loop.net(x).z
    picked = rest[herd(z, task.train.y[rest], 6)]
    for c in task.classes:
        mine = memory["index"][~is_held & (memory["y"] == c)].tolist()
        order = picked[task.train.y[picked] == c].tolist()
        assert mine == order[: len(mine)]
        assert int(is_held[memory["y"] == c].sum()) == 2  # ceil(5 * .4)


def test_a_balanced_stage_of_the_first_task_has_all_its_images(tiny_stream, tiny_net, tiny_train):
    """There is nothing old to balance them with; a learner need not know."""

    class Even(rr.ER):
        def stages(self, task):
            return [Stage(pool=Pool(mix="paired", balance=True))]

    learner = Even(memory=rr.Memory(6))
    result = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    images = len(tiny_stream[0].train)
    assert result.records[0]["steps"] == tiny_train.epochs * -(-images // tiny_train.batch)
    assert result.records[1]["steps"] < result.records[0]["steps"]
