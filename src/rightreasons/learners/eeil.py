"""EEIL: end-to-end incremental learning (Castro et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.feed import Look
from rightreasons.learners.base import REPLAYS, Learner
from rightreasons.learners.distil import check_temperature, distil, frozen, taught
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.optimise import part_of_run
from rightreasons.types import Batch, Out, Pool, Stage, Task


@dataclass
class EEIL(Learner):
    """Cross entropy and one distillation loss for each earlier task; then balanced fine-tuning.

    Eq. 1: ``L = CE(z, y) + sum_f KD(z_f, z_old,f)`` over the groups f of classes of earlier tasks,
    on new images and exemplars. The second stage sees as many images of a new class as exemplars of
    an old one, and holds the new classes too, to the net as the first stage left it.
    """

    replay: str = "concat"
    """concat: new images and exemplars in one shuffled pool; paired: rows beside each batch"""
    temperature: float = 2.0
    balanced: dict[str, Any] = field(default_factory=lambda: {"lr": 2e-4})
    """what differs in the balanced stage: fields of train; by default a tenth of its default lr"""

    name: ClassVar[str] = "eeil"
    replays: ClassVar[bool] = True
    picks: ClassVar[str] = "herding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "replay", REPLAYS)
        check_temperature(self.name, self.temperature)
        part_of_run(self.balanced, "eeil.balanced")

    def stages(self, task: Task) -> list[Stage]:
        main = Stage(pool=Pool(mix=self.replay))
        if not task.index:
            return [main]
        pool = Pool(mix="concat", balance=True)
        return [main, Stage("balanced", pool, train=self.balanced)]

    def begin_stage(self, net: Net, task: Task, stage: Stage, memory: Memory) -> None:
        if stage.name == "balanced":
            self.between_ = frozen(net)

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        loss = F.cross_entropy(out.logits, batch.y)
        if not hasattr(self, "teacher_"):
            return loss
        old = taught(self.teacher_, batch)  # (B,n)
        for first, last in pairwise([0, *self.ends_]):
            group = slice(first, last)
            loss = loss + distil(out.logits[:, group], old[:, group], self.temperature)
        if stage.name == "balanced":  # the temporary loss on the new classes
            new = taught(self.between_, batch)[:, last:]
            loss = loss + distil(out.logits[:, last:], new, self.temperature)
        return loss

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.teacher_ = frozen(net)
        self.ends_ = [*getattr(self, "ends_", []), task.seen]  # where the classes of each task end
        if task.index:
            del self.between_
