"""What the memory takes when a task ends: which images, and what the terms need of each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rightreasons.distributed import dealt
from rightreasons.feed import Feed, move
from rightreasons.learners.base import Learner
from rightreasons.memory import Column, interleave, join, take
from rightreasons.nets.base import Net
from rightreasons.randomness import generator
from rightreasons.terms.base import Term, all_taps
from rightreasons.types import Images, Task

CPU = torch.device("cpu")


def keep(learner: Learner, net: Net, feed: Feed, task: Task) -> Tensor | None:
    """Make room, choose images of the new classes, and store what the terms need of them.

    A learner that picks by embeddings looks at every new image; the maps of the chosen ones come
    from that same pass, unless a term needs derivatives, which are taken for the chosen ones
    alone. Returns the embeddings of the new rows if they were looked at: class means need not look
    again.
    """
    memory, terms, images = learner.memory, learner.terms, task.train
    memory.shrink(task.seen)
    _refresh(learner, net, feed, task)
    quota = memory.quota(task.seen, first=task.index == 0)
    rest, held = feed.parts(task)
    seen: dict[str, Column] = {}  # of every new image, at its place, once one is looked at

    def embeddings() -> Tensor:
        shared = () if any(term.needs_graph(net) for term in terms) else terms
        seen.update(look(net, feed, shared, images, torch.arange(len(images))))
        return _embeddings(seen)[rest]

    draw = generator(feed.seed, "memory", task.index)
    chosen = rest[learner.pick(task, images.y[rest], embeddings, quota, draw)]
    index = interleave(chosen, held, images.y, quota, feed.held_out) if len(held) else chosen
    seen = {name: take(column, index) for name, column in seen.items()}
    if terms and not set(seen) - {"z"}:
        seen = look(net, feed, terms, images, index)
    y = images.y[index]
    rows: dict[str, Column] = {
        "x": images.pixels(index), "y": y, "task": feed.task_of[y], "index": index
    }  # fmt: skip
    if feed.held_out:
        rows["held"] = torch.isin(index, held)
    fresh = seen.pop("z", None)
    memory.add(rows | _referred(terms, seen, y, feed, task))
    assert fresh is None or isinstance(fresh, Tensor)
    return None if fresh is None else fresh.to(feed.device)


def balance(learner: Learner, net: Net, feed: Feed, task: Task) -> Tensor:
    """Places of so many new images a class as the memory keeps of an old one, chosen like rows."""
    memory, images = learner.memory, task.train
    rest, _ = feed.parts(task)
    if not task.classes[0]:  # nothing old to balance them with
        return rest
    quota = memory.quota(task.classes[0], first=False)
    was_training = net.training
    net.eval()

    def embeddings() -> Tensor:
        return _embeddings(look(net, feed, (), images, torch.arange(len(images))))[rest]

    draw = generator(feed.seed, "memory", task.index, "balance")
    chosen = learner.pick(task, images.y[rest], embeddings, quota, draw)
    net.train(was_training)
    return rest[chosen]


def _embeddings(seen: dict[str, Column]) -> Tensor:
    z = seen["z"]
    assert isinstance(z, Tensor)
    return z


def _refresh(learner: Learner, net: Net, feed: Feed, task: Task) -> None:
    """Old rows once more, for terms that want it."""
    memory = learner.memory
    terms = [term for term in learner.terms if term.refreshes]
    if not terms or not len(memory):
        return
    images = Images(memory.tensor("x"), memory.tensor("y"))
    seen = look(net, feed, terms, images, torch.arange(len(images)))
    del seen["z"]
    memory.replace(_referred(terms, seen, images.y, feed, task))


@torch.no_grad()
def look(
    net: Net, feed: Feed, terms: Sequence[Term], images: Images, index: Tensor
) -> dict[str, Column]:
    """One pass over these images, as they are: the terms' columns, and the embeddings ``z``."""
    graph = any(term.needs_graph(net) for term in terms)
    taps = all_taps(terms)

    def one(chunk: Tensor) -> dict[str, Column]:
        row = torch.full_like(chunk, -1)
        batch = feed.canonical(images.pixels(chunk), images.y[chunk], row)
        with torch.set_grad_enabled(graph):
            out = net(batch.x, taps=taps)
        stored: dict[str, Column] = {"z": out.z.detach()}
        for term in terms:
            stored |= term.remember(net, batch, out)
        return {name: move(c, CPU) for name, c in stored.items()}

    parts = dealt(one, feed.chunks(index))
    return {name: join([part[name] for part in parts]) for name in parts[0]}


def _referred(
    terms: Sequence[Term], columns: dict[str, Column], y: Tensor, feed: Feed, task: Task
) -> dict[str, Column]:
    """The columns with the references that the terms want: their own, or a control's."""
    for term in terms:
        draw = generator(feed.seed, "noise", "reference", term.name, task.index)
        columns = term.refer(columns, y, draw)
    return columns
