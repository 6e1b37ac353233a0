"""Does a run fit together? What would fail later is refused before it starts."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rightreasons.distributed import group
from rightreasons.errors import UserError, why
from rightreasons.evaluate import TARGET
from rightreasons.feed import Feed
from rightreasons.learners.base import Learner
from rightreasons.nets.base import Net
from rightreasons.optimise import Train
from rightreasons.terms.base import all_taps


def check_fit(learner: Learner, net: Net, train: Train, feed: Feed) -> None:
    """Refuse a learner, net, settings and data that do not go with each other."""
    probe, x = _probe(net, feed)
    _check_images(probe, x)
    _check_crop(train, x)
    learner.check(probe, feed.stream)
    _check_terms(learner, probe, x)
    _check_batches(learner, train, feed)
    _check_memory(learner, feed)
    masked = [task.test for task in feed.stream if task.test.masks is not None]
    if masked and not any(images.has_masks() for images in masked):
        raise UserError("masks are given and every one of them is empty; pass real ones or none")
    with torch.no_grad():  # a layer without maps is refused here
        probe(x, taps=[TARGET, *all_taps(learner.terms)])


def _probe(net: Net, feed: Feed) -> tuple[Net, Tensor]:
    """A copy of the net with a head of a few classes, and as many images, to try terms on."""
    probe = copy.deepcopy(net).to(feed.device).eval()
    probe.resize(0)
    probe.grow(4, torch.Generator().manual_seed(0))
    return probe.to(feed.device), feed.normalise(feed.stream[-1].train.x[:4])


def _check_images(net: Net, x: Tensor) -> None:
    try:
        with torch.no_grad():
            net(x)
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        raise UserError(
            f"{net.name} refuses images of {x.shape[2]}x{x.shape[3]} ({why(error)}); choose "
            "another size or another net"
        ) from error


def _check_crop(train: Train, x: Tensor) -> None:
    border, side = (0 if train.augment is None else train.augment.crop), min(x.shape[2:])
    if border >= side:
        raise UserError(
            f"train.augment.crop is {border} and images are {side} pixels wide, so that some would "
            "be all border; type a smaller one"
        )


def _check_terms(learner: Learner, net: Net, x: Tensor) -> None:
    for term in learner.terms:
        term.check(net, x)
        if term.view == "shared" and not learner.shares:
            raise UserError(
                f"{term.name}.view is shared and {learner.name} replays nothing to share; "
                f"type {term.name}.view=canonical"
            )
    norms = {term.name: term.norm for term in learner.terms if term.view == "shared"}
    if len(set(norms.values())) > 1:
        said = ", ".join(f"{name} {norm}" for name, norm in norms.items())
        raise UserError(
            f"terms that share the forward have different bn ({said}); give them the same, or all "
            "but one view=canonical"
        )


def _check_batches(learner: Learner, train: Train, feed: Feed) -> None:
    """Refuse more processes than images of a batch."""
    for task in feed.stream if group().size > 1 else ():
        for stage in learner.stages(task):
            batch = train.at(task, stage).batch
            if batch < group().size:
                raise UserError(
                    f"{group().size} processes share batches of {batch} images in task "
                    f"{task.index + 1}, expected an image each or more; start at most "
                    f"{batch}, or type a larger train.batch"
                )


def _check_memory(learner: Learner, feed: Feed) -> None:
    memory, seen = learner.memory, feed.stream[-1].seen
    if learner.remembers:
        memory.quota(seen)
    there = [task for task in feed.stream if len(task.train)]  # those of an old task may be gone
    if learner.holds_out and not all(feed.held_count(task) for task in there):
        needed = "per_class=2" if memory.per_class is not None else f"size={2 * seen}"
        raise UserError(
            f"{learner.name} holds out rows of each class, and one has too few rows or "
            f"images to spare one; type memory.{needed} or more"
        )
