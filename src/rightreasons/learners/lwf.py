"""Learning without Forgetting: the net before the task teaches the net after it, on new images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.feed import Look
from rightreasons.learners.base import SCOPES, Learner, cross_entropy
from rightreasons.learners.distil import (
    binary_targets,
    check_temperature,
    distil,
    frozen,
    taught,
)
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out, Stage, Task


@dataclass
class LwF(Learner):
    """Cross entropy, and distillation of the old classes on new images (Li and Hoiem 2016).

    ``L = CE(z, y) - weight * sum_{i<=n} p_i(z_old / T) log p_i(z / T)`` over the n old classes.
    """

    weight: float = 1.0
    """of the distillation, lambda_o"""
    temperature: float = 2.0
    scope: str = "all"
    """cross entropy over all classes seen, or over the new ones alone"""

    name: ClassVar[str] = "lwf"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.name, self.temperature)
        check_choice(self, "scope", SCOPES)

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        if not hasattr(self, "teacher_"):
            return cross_entropy(out, batch, self.scope, old=0)
        old = taught(self.teacher_, batch)  # (B,n)
        n = old.shape[1]
        loss = cross_entropy(out, batch, self.scope, n)
        return loss + self.weight * distil(out.logits[:, :n], old, self.temperature)

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.teacher_ = frozen(net)


@dataclass
class LwFMC(Learner):
    """LwF with one sigmoid a class, the baseline of iCaRL's tables (Rebuffi et al. 2017).

    Binary cross entropy over all classes seen; the targets of old classes are the teacher's.
    """

    name: ClassVar[str] = "lwf-mc"

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        old = taught(self.teacher_, batch) if hasattr(self, "teacher_") else None
        targets = binary_targets(batch.y, out.logits, old)
        return F.binary_cross_entropy_with_logits(out.logits, targets)

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.teacher_ = frozen(net)
