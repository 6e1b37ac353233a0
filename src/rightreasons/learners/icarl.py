"""iCaRL: incremental classifier and representation learning (Rebuffi et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.feed import Look
from rightreasons.learners.base import REPLAYS
from rightreasons.learners.lwf import LwFMC
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Out, Pool, Stage, Task


@dataclass
class ICaRL(LwFMC):
    """One sigmoid a class, distilled targets for old classes, and the nearest mean of exemplars.

    Its loss is that of LwF-MC, over exemplars too. Algorithm 3: ``L = mean over images and classes
    of BCE(z, q)`` with ``q_c = sigma(z_old,c)`` for old classes, of new images and exemplars alike,
    and ``q_c = [y = c]`` for new ones. Algorithm 1: ``y* = argmin_c || phi(x) - mu_c ||`` with
    embeddings of length one. What terms explain is the logit of a class, before the sigmoid: the
    nearest mean itself has none. The pointing game explains the logit of the class that the nearest
    mean predicts.
    """

    replay: str = "concat"
    """concat: new images and exemplars in one shuffled pool; paired: rows beside each batch"""

    name: ClassVar[str] = "icarl"
    replays: ClassVar[bool] = True
    picks: ClassVar[str] = "herding"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "replay", REPLAYS)

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool(mix=self.replay))]

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        super().end(net, task, memory, look)
        z = F.normalize(look.embeddings()) + F.normalize(look.embeddings(flip=True))  # (rows,D)
        y = memory.tensor("y").to(z.device)
        sums = z.new_zeros(task.seen, z.shape[1]).index_add(0, y, z)
        self.means_ = F.normalize(sums)  # (C,D), of the net as it is now

    def predict(self, net: Net, x: Tensor, out: Out, memory: Memory) -> Tensor:
        return -torch.cdist(F.normalize(out.z), self.means_).square()
