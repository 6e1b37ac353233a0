"""Elastic Weight Consolidation: weights that mattered for old tasks are held in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rightreasons.config import check_choice
from rightreasons.errors import UserError
from rightreasons.feed import Look
from rightreasons.learners.base import SCOPES, Learner, cross_entropy
from rightreasons.learners.fisher import Weights, fisher
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out, Stage, Task


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
        if self.merge == "online":
            for before in springs:  # one, unless a branch was of a run that kept them separate
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
