"""Evaluation: accuracy, pointing game and drift on all classes seen, in one pass."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rightreasons.augment import middle
from rightreasons.distributed import dealt
from rightreasons.errors import Diverged
from rightreasons.explainers import closed_form, gradcam
from rightreasons.feed import Feed
from rightreasons.learners.base import Learner
from rightreasons.nets.base import Net
from rightreasons.pointing import Drift, drift, outcomes, point
from rightreasons.randomness import generator
from rightreasons.types import Images, Task

TARGET = "last_block"
TOP = 5
PROBES = 64  # test images a task whose maps are followed over all tasks


def evaluate(
    learner: Learner, net: Net, feed: Feed, task: Task, probes: dict[str, Tensor]
) -> dict[str, Any]:
    """The record of a task: each number over all tasks so far.

    ``class`` predicts over all classes seen, ``task`` within the image's own task, ``top5`` asks
    whether the true class is among the best five (always, up to five classes); ``pN`` gives the
    learners that look for a task N images of one task at a time. The pointing
    game explains the class that was predicted, drift the class that is true. ``probes`` keeps the
    maps of probe images, ``K`` right after task K and ``now``.
    """
    first, *rest = (t.test for t in feed.stream[: task.index + 1])
    images = first.join(*rest)
    of = feed.task_of[images.y]  # (N,)
    tasks = task.index + 1
    probe = probe_places(of, tasks)
    was_training = net.training
    net.eval()
    chunks = feed.chunks(torch.arange(len(images)))
    parts = dealt(partial(_look, learner, net, feed, images), chunks)
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    _check(found, task)
    for count in learner.continua:
        task_of = vote(found["task_scores"], of, count, feed)
        found[f"p{count}.correct"] = _told(learner, net, feed, images, task_of)
    net.train(was_training)
    sizes = torch.bincount(of, minlength=tasks)
    record: dict[str, Any] = {
        "accuracy": {
            how: _ratios(torch.bincount(of, found[f"{how}.correct"].double(), tasks), sizes)
            for how in ("class", "task", "top5", *(f"p{count}" for count in learner.continua))
        },
        "test_images": sizes.tolist(),
    }
    if "masked" in found:
        record["pointing"] = _pointing(found, of, tasks)
    record["drift"] = _drift(found["map"][probe], of[probe], tasks, probes)
    probes["now"] = found["map"][probe]
    probes["correct"] = found["class.correct"][probe]
    return record


@torch.no_grad()
def _look(
    learner: Learner, net: Net, feed: Feed, images: Images, index: Tensor
) -> dict[str, Tensor]:
    """One chunk: what was predicted, and what the maps of the predicted and true classes show."""
    x, y = feed.normalise(images.pixels(index)), images.y[index].to(feed.device)
    with torch.set_grad_enabled(not closed_form(net, TARGET)):
        out = net(x, taps=(TARGET,))
    scores = learner.predict(net, x, out, learner.memory).detach()  # (B,C)
    finite = (scores < math.inf).all(1)  # not NaN either; -inf is how a learner rules a class out
    owner = feed.task_of[: scores.shape[1]].to(feed.device)
    known = scores
    if learner.continua:
        known = learner.predict_within(net, x, out, learner.memory, owner[y])
    within = known.masked_fill(owner[None] != owner[y][:, None], -math.inf)
    answers = {"class": scores.argmax(1), "task": within.argmax(1)}
    found = {f"{how}.correct": answer == y for how, answer in answers.items()}
    found["finite"] = finite
    best = scores.topk(min(TOP, scores.shape[1]), 1).indices  # (B,5)
    found["top5.correct"] = (best == y[:, None]).any(1)
    if learner.continua:
        found["task_scores"] = learner.task_scores(out).detach()
    found["map"] = gradcam(net, out, y, target=TARGET)
    if images.masks is not None:
        masks = middle(images.masks[images.positions(index)], feed.cut).to(feed.device)
        found["masked"] = masks.flatten(1).any(1)  # an image may lack its mask
        for how, answer in answers.items():
            pointed = point(gradcam(net, out, answer, target=TARGET), masks)
            found[f"{how}.hit"], found[f"{how}.share"] = pointed
    return {name: value.cpu() for name, value in found.items()}


def _check(found: dict[str, Tensor], task: Task) -> None:
    """Refuse a net whose weights are finite, and so large that what it makes of images is not."""
    for what, finite in (("scores", found["finite"]), ("maps", found["map"].isfinite())):
        if not finite.all():
            raise Diverged(
                f"the {what} of test images are not finite after task {task.index + 1}, though the "
                "losses and the weights are; nothing of that task's end was saved; type a smaller "
                "train.lr, or train.clip=1"
            )


def vote(scores: Tensor, of: Tensor, count: int, feed: Feed) -> Tensor:
    """(N,) the task that each image is given with ``count`` images of its own task, at random.

    ``scores`` (N,T) say how well tasks fit; the task with the highest mean over the group wins. The
    last group of a task may be smaller.
    """
    given = torch.empty_like(of)
    for task in torch.unique(of).tolist():
        own = (of == task).nonzero().flatten()
        order = torch.randperm(len(own), generator=generator(feed.seed, "learner", "groups", task))
        for group in torch.split(own[order], count):
            given[group] = scores[group].mean(0).argmax()
    return given


@torch.no_grad()
def _told(learner: Learner, net: Net, feed: Feed, images: Images, task: Tensor) -> Tensor:
    """(N,) is the answer right if the images are of these tasks?"""

    def look(index: Tensor) -> Tensor:
        x, y = feed.normalise(images.pixels(index)), images.y[index].to(feed.device)
        told = task[index].to(feed.device)
        scores = learner.predict_within(net, x, net(x), learner.memory, told)
        return (scores.argmax(1) == y).cpu()

    return torch.cat(dealt(look, feed.chunks(torch.arange(len(images)))))


def _pointing(found: dict[str, Tensor], of: Tensor, tasks: int) -> dict[str, Any]:
    masked = found["masked"]
    sizes = torch.bincount(of[masked], minlength=tasks)
    record: dict[str, Any] = {"images": sizes.tolist()}
    for how in ("class", "task"):
        hit, correct = found[f"{how}.hit"][masked], found[f"{how}.correct"][masked]
        counts = outcomes(hit, correct, of[masked], tasks)
        record[how] = {name: c.astype(int).tolist() for name, c in counts._asdict().items()}
        shares = torch.bincount(of[masked], found[f"{how}.share"][masked].double(), tasks)
        record[how]["share"] = _ratios(shares, sizes)
    return record


def _ratios(counts: Tensor, sizes: Tensor) -> list[float | None]:
    """None where there is no image: the test data of an old task may be gone."""
    pairs = zip(counts.tolist(), sizes.tolist(), strict=True)
    return [count / size if size else None for count, size in pairs]


def _drift(maps: Tensor, of: Tensor, tasks: int, probes: dict[str, Tensor]) -> dict[str, Any]:
    """How the probes of each task have moved since their own task was learned."""
    probes[str(tasks - 1)] = maps[of == tasks - 1]
    own = [maps[of == i] for i in range(tasks)]
    moved = [
        drift(before, m) if len(m) == len(before) > 0 else None  # the old test data may be gone
        for before, m in ((probes[str(i)], m) for i, m in enumerate(own))
    ]
    return {name: [d and getattr(d, name) for d in moved] for name in Drift._fields}


def probe_places(of: Tensor, tasks: int) -> Tensor:
    """Places of the probes: evenly spaced over each task's test images, class by class."""
    places = []
    for i in range(tasks):
        own = (of == i).nonzero().flatten()
        count = min(PROBES, len(own))
        places.append(own[torch.arange(count) * len(own) // max(count, 1)])
    return torch.cat(places)
