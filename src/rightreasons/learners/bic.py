"""BiC: large scale incremental learning by bias correction (Wu et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.errors import UserError
from rightreasons.feed import Look
from rightreasons.learners.base import REPLAYS, Learner
from rightreasons.learners.distil import check_temperature, distil, frozen, taught
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.optimise import part_of_run
from rightreasons.types import Batch, Out, Pool, Stage, Task


@dataclass
class BiC(Learner):
    """Distillation, then two numbers that take the bias off the new classes' logits.

    Eq. 1 to 3: ``L = lambda KD + (1 - lambda) CE`` with ``lambda = n / (n + m)`` for n old and m
    new classes; the teacher's logits are corrected. Eq. 4: ``q_c = beta z_c + gamma`` for the new
    classes, learned on images that are held out: a share of the exemplars, and as many of each new
    class. Terms see raw logits and the part that trains.
    """

    replay: str = "concat"
    """concat: new images and exemplars in one shuffled pool; paired: rows beside each batch"""
    temperature: float = 2.0
    held_out: float = 0.1
    """share of the exemplars that only the bias stage sees"""
    groups: str = "newest"
    """newest: one pair (beta, gamma) at a time, as the authors' code; all: one pair a task is kept,
    and the student is corrected in training too"""
    decay: float = 0.1
    """of gamma: decay / 2 * gamma^2 joins the bias stage's loss"""
    bias: dict[str, Any] = field(
        default_factory=lambda: {"optimiser": "sgd", "lr": 0.05, "weight_decay": 0.0}
    )
    """what is different in the bias stage: fields of train such as epochs and lr"""

    name: ClassVar[str] = "bic"
    replays: ClassVar[bool] = True
    picks: ClassVar[str] = "herding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "replay", REPLAYS)
        check_choice(self, "groups", ("newest", "all"))
        check_temperature(self.name, self.temperature)
        part_of_run(self.bias, "bic.bias")
        if not 0 < self.held_out < 1:
            raise UserError(f"bic.held_out is {self.held_out}, expected a share such as 0.1")

    @property
    def holds_out(self) -> float:
        return self.held_out

    def stages(self, task: Task) -> list[Stage]:
        main = Stage(pool=Pool(mix=self.replay))
        if not task.index:
            return [main]
        pool = Pool(mix="concat", held=True)
        return [main, Stage("bias", pool, train=self.bias, params="bias_", terms=False)]

    def begin(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        identity = net.head.weight.new_tensor([1.0, 0.0])
        kept = self.groups == "all" and task.index > 0
        # newest: the student of a corrected teacher has taken in what the teacher's pair did
        self.past_ = self.teacher_bias_ if kept else identity.repeat(task.index, 1)  # (T-1,2)
        self.bias_ = identity  # beta, gamma of the new classes
        self.sizes_ = [*getattr(self, "sizes_", []), len(task.classes)]

    def corrected(self, logits: Tensor) -> Tensor:
        """``beta z + gamma``, each class by the pair of its task."""
        return correct(logits, torch.cat([self.past_, self.bias_[None]]), self.sizes_)

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        if stage.name == "bias":
            gamma = self.bias_[1]
            fit = F.cross_entropy(self.corrected(out.logits), batch.y)
            return fit + self.decay / 2 * gamma.square()
        logits = self.corrected(out.logits) if self.groups == "all" else out.logits
        fit = F.cross_entropy(logits, batch.y)
        if not hasattr(self, "teacher_"):
            return fit
        old = correct(taught(self.teacher_, batch), self.teacher_bias_, self.sizes_[:-1])  # (B,n)
        n, seen = old.shape[1], logits.shape[1]
        kept = distil(logits[:, :n], old, self.temperature)
        return n / seen * kept + (1 - n / seen) * fit

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.teacher_ = frozen(net)
        self.teacher_bias_: Tensor = torch.cat([self.past_, self.bias_.detach()[None]])

    def predict(self, net: Net, x: Tensor, out: Out, memory: Memory) -> Tensor:
        return self.corrected(out.logits)


def correct(logits: Tensor, pairs: Tensor, sizes: list[int]) -> Tensor:
    """Logits (B,C) by pairs (T,2) of beta and gamma, one for the classes of each task."""
    beta, gamma = pairs.repeat_interleave(torch.tensor(sizes, device=pairs.device), 0).T  # (C,)
    moved: Tensor = beta * logits + gamma
    return moved
