"""Elastic Weight Consolidation: weights that mattered for old tasks are held in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.distributed import group, total
from rightreasons.errors import UserError
from rightreasons.feed import Look
from rightreasons.learners.base import SCOPES, Learner, cross_entropy
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out, Stage, Task

Weights = dict[str, Tensor]
BYTES = 2**28  # of the gradients of single images at a time
LARGE = 2**24  # bytes of weights, beyond which a CPU gains nothing from several images at a time


@dataclass
class EWC(Learner):
    """Cross entropy, and a spring on each weight (Kirkpatrick et al. 2017, eq. 3).

    ``L = CE + weight / 2 * sum_i F_i (theta_i - theta*_i)^2`` with the diagonal Fisher information
    ``F_i = E_x[(d log p(y|x) / d theta_i)^2]`` of earlier tasks, from the gradients of single
    images. Rows of the head that a task adds are free.
    """

    weight: float = 1000.0
    """of the springs, lambda"""
    merge: str = "online"
    """online: one sum of Fishers and the last weights; separate: a spring for each old task"""
    decay: float = 1.0
    """of the older Fishers when a new one joins the sum, gamma"""
    labels: str = "true"
    """y in the Fisher: true, or sampled from the net's own answer"""
    scope: str = "all"
    """cross entropy over all classes seen, or over the new ones alone"""

    name: ClassVar[str] = "ewc"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "merge", ("online", "separate"))
        check_choice(self, "labels", ("true", "sampled"))
        check_choice(self, "scope", SCOPES)
        if not 0 <= self.decay <= 1:
            raise UserError(f"ewc.decay is {self.decay}, expected 0 to 1")

    def begin(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.old_ = task.classes[0]

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        loss = cross_entropy(out, batch, self.scope, self.old_)
        now = dict(net.module.named_parameters())
        for spring in getattr(self, "springs_", ()):
            loss = loss + self.weight / 2 * pull(now, spring["fisher"], spring["weights"])
        return loss

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        sample = look.generator("fisher") if self.labels == "sampled" else None
        new = fisher(net, look.images(), sample)
        weights = {name: p.detach().clone() for name, p in net.module.named_parameters()}
        springs = list(getattr(self, "springs_", ()))
        if self.merge == "online" and springs:
            (before,) = springs
            new = {n: f + self.decay * fill(before["fisher"][n], f) for n, f in new.items()}
            springs = []
        self.springs_ = [*springs, {"fisher": new, "weights": weights}]


def pull(now: Mapping[str, Tensor], fisher: Weights, weights: Weights) -> Tensor:
    """``sum_i F_i (theta_i - theta*_i)^2`` over the weights that were there."""
    parts = [
        (f * (now[name][there(f)] - weights[name]).square()).sum() for name, f in fisher.items()
    ]
    return torch.stack(parts).sum()


def fill(old: Tensor, like: Tensor) -> Tensor:
    """Zero for the rows that a head has grown since."""
    filled = torch.zeros_like(like)
    filled[there(old)] = old
    return filled


def there(old: Tensor) -> tuple[slice, ...]:
    """The part of a weight that was there before it grew; a single number has no rows."""
    return tuple(map(slice, old.shape))


def fisher(net: Net, batches: Iterable[Batch], sample: torch.Generator | None = None) -> Weights:
    """The diagonal Fisher information, mean over images; the net's mode is the caller's.

    The square is taken of each image's gradient: that of a batch's mean gradient is another, and
    far smaller, number.
    """
    weights = {name: p.detach() for name, p in net.module.named_parameters()}
    on_cpu = all(w.device.type == "cpu" for w in weights.values())
    large = on_cpu and sum(w.nbytes for w in weights.values()) > LARGE
    squares = {name: torch.zeros_like(w) for name, w in weights.items()}
    count = 0
    for number, batch in enumerate(batches):
        y = batch.y
        if sample is not None:
            with torch.no_grad():
                p = net(batch.x).logits.softmax(1).cpu()
            y = torch.multinomial(p, 1, generator=sample)[:, 0].to(batch.y.device)
        count += len(y)
        if number % group().size == group().rank:  # else another process has this one
            add = add_one_by_one if large else add_together
            add(squares, net, weights, batch.x, y)
    return {name: value / count for name, value in total(squares).items()}


def add_together(squares: Weights, net: Net, weights: Weights, x: Tensor, y: Tensor) -> None:
    """The gradients of many images in one go."""
    buffers = dict(net.module.named_buffers())

    def surprise(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(net.module, (weights, buffers), (x[None],))
        return F.cross_entropy(logits, y[None])

    # one grouped convolution of all images, which channels_last weights make slow
    weights = {name: w.contiguous() for name, w in weights.items()}
    chunk = max(1, BYTES // sum(w.nbytes for w in weights.values()))
    each = vmap(grad(surprise), in_dims=(None, 0, 0))
    for x_, y_ in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        for name, slope in each(weights, x_, y_).items():
            squares[name] += slope.square().sum(0)


@torch.enable_grad()
def add_one_by_one(squares: Weights, net: Net, weights: Weights, x: Tensor, y: Tensor) -> None:
    """One image at a time, which is quicker where a single one fills the processor."""
    leaves = {name: w.requires_grad_() for name, w in weights.items()}
    for x_, y_ in zip(torch.split(x, 1), torch.split(y, 1), strict=True):
        laid = x_.contiguous(memory_format=torch.channels_last) if net.channels_last else x_
        loss = F.cross_entropy(functional_call(net.module, leaves, (laid,)), y_)
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for square, slope in zip(squares.values(), slopes, strict=True):
            square.addcmul_(slope, slope)
