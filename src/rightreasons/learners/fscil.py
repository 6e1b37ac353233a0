"""The few-shot variants of iCaRL and EEIL behind the paper's CUB rows (Tao et al., CVPR 2020).

Neither is what its own paper describes: both are softmax nets that distil on a few anchor images,
and of which the last block and the head train on later tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from rightreasons.feed import Look
from rightreasons.learners.base import Learner, check_params
from rightreasons.learners.distil import check_temperature, distil, frozen, taught
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out, Pool, Stage, Task


@dataclass
class ICaRLFSCIL(Learner):
    """Cross entropy on new images, and distillation on the remembered ones.

    ``L = CE(z, y) over new images + weight * KD(z, z_old) over rows of memory``, KD over the old
    classes; no sigmoid and no nearest mean.
    """

    weight: float = 1.0
    """of the distillation"""
    temperature: float = 2.0
    params: str = "last_block+head"
    """what trains from the second task on, as in `Stage.params`"""

    name: ClassVar[str] = "icarl-fscil"
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_temperature(self.name, self.temperature)
        check_params(self.name, self.params)

    def stages(self, task: Task) -> list[Stage]:
        return anchored(task, self.params)

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        loss = new_images(out, batch)
        if not hasattr(self, "teacher_"):
            return loss
        return loss + self.weight * kept(self.teacher_, out, batch, self.temperature)

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        self.teacher_ = frozen(net)


@dataclass
class EEILFSCIL(ICaRLFSCIL):
    """As `ICaRLFSCIL`, with a little cross entropy on the remembered images too.

    ``L = CE over new images + weight * KD + old * CE over rows of memory``; no balanced stage.
    """

    weight: float = 0.8
    """of the distillation"""
    old: float = 0.004
    """of the cross entropy of remembered images"""

    name: ClassVar[str] = "eeil-fscil"

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        loss = super().loss(net, out, batch, stage)
        if not hasattr(self, "teacher_"):
            return loss
        remembered = batch.row >= 0
        return loss + self.old * F.cross_entropy(out.logits[remembered], batch.y[remembered])


def anchored(task: Task, params: str) -> list[Stage]:
    """New images with rows of memory beside them; on later tasks only some parameters train."""
    return [Stage(pool=Pool(mix="paired"), params=params if task.index else "all")]


def new_images(out: Out, batch: Batch) -> Tensor:
    """Cross entropy over all classes seen, of new images alone."""
    new = batch.row < 0
    return F.cross_entropy(out.logits[new], batch.y[new])


def kept(teacher: Net, out: Out, batch: Batch, temperature: float) -> Tensor:
    """Distillation of the old classes, on rows of memory alone."""
    remembered = batch.row >= 0
    old = taught(teacher, batch.where(remembered))
    return distil(out.logits[remembered][:, : old.shape[1]], old, temperature)
