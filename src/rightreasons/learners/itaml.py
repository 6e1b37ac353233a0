"""iTAML: an incremental task-agnostic meta-learning approach (Rajasegaran et al., CVPR 2020)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.distributed import forward
from rightreasons.errors import UserError
from rightreasons.feed import Look
from rightreasons.learners.base import REPLAYS, Learner, Objective
from rightreasons.learners.distil import frozen
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.optimise import Train, Updater, part_of_run
from rightreasons.randomness import own_noise, seed_noise
from rightreasons.types import Batch, Out, Pool, Stage, Task

VARIANTS = ("paper", "released")


@dataclass
class ITAML(Learner):
    """One shared net, moved on average towards what each task wants; a test first finds the task.

    A step (algorithm 1): for each task i in the batch, ``inner`` steps on its images from the
    weights ``theta`` give ``theta_i``; then ``theta <- eta mean_i theta_i + (1 - eta) theta`` with
    ``eta = exp(-beta (k - 1) / T)`` at task k of T. The loss of an image is the binary cross
    entropy over the classes of its own task. A test image, or a group of images of one task, is
    first given a task: the one whose largest logit is largest on average; its class is then that
    task's best by a copy of the net that was adapted to the task's exemplars, once for all images.
    """

    replay: str = "concat"
    """concat: new images and exemplars in one shuffled pool; paired: rows beside each batch"""
    variant: str = "paper"
    """paper: a copy of the weights for each task, averaged; released: what the authors' code does,
    one task's steps after the other's, the last weights taken for the average"""
    inner: int = 1
    """steps on each task's images, r"""
    beta: float = 1.0
    horizon: int | None = None
    """tasks in all, T; those of the stream by default"""
    group: int = 20
    """test images of one task that are given a task together, p; single images are tested too"""
    adapt: dict[str, Any] = field(
        default_factory=lambda: {"optimiser": "adamw", "lr": 1e-3, "epochs": 1, "batch": 64}
    )
    """how a copy adapts to a task's exemplars before a test: fields of train"""

    name: ClassVar[str] = "itaml"
    replays: ClassVar[bool] = True
    one_program: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "replay", REPLAYS)
        check_choice(self, "variant", VARIANTS)
        for name in ("inner", "horizon", "group"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"itaml.{name} is {value}, expected at least 1")
        if not 0 <= self.beta < math.inf:
            raise UserError(f"itaml.beta is {self.beta}, expected 0 or more")
        part_of_run(self.adapt, "itaml.adapt")

    def check(self, net: Net, tasks: Sequence[Task]) -> None:
        tested = [task for task in tasks if len(task.test)]  # those of an old task may be gone
        least = min(tested, key=lambda task: len(task.test), default=None)
        if least is not None and len(least.test) < self.group:
            raise UserError(
                f"itaml.group is {self.group} and task {least.index + 1} has {len(least.test)} "
                f"test images, expected a group of at most that; type itaml.group={len(least.test)}"
            )

    @property
    def continua(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.group, 1)))

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool(mix=self.replay))]

    def begin(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        old = getattr(self, "owner_", torch.zeros(0, dtype=torch.int64))
        own = torch.full((len(task.classes),), task.index)
        self.tasks_ = self.horizon or look.tasks
        self.owner_ = torch.cat([old.cpu(), own]).to(net.head.weight.device)  # (C,) task of a class

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        """Mean over images and over the classes of each one's task."""
        return slice_loss(out.logits, batch.y, self.owner_ == batch.task[:, None])

    def step(
        self, net: Net, batch: Batch, objective: Objective, update: Callable[[Tensor], None]
    ) -> None:
        before = weights_of(net)
        total = [torch.zeros_like(w) for w in before]
        tasks = torch.unique(batch.task).tolist()
        for task in tasks:
            if self.variant == "paper":
                put(net, before)
            own = batch.where(batch.task == task)
            for _ in range(self.inner):
                # a single image has no statistics of its own
                with net.frozen_statistics() if len(own.y) == 1 else nullcontext():
                    loss = objective(own, task)
                update(loss)
            torch._foreach_add_(total, weights_of(net))
        average = weights_of(net) if self.variant == "released" else [w / len(tasks) for w in total]
        eta = self.rate(int(self.owner_[-1]))
        moved = zip(before, average, strict=True)
        put(net, [eta * now + (1 - eta) * then for then, now in moved])

    def rate(self, index: int) -> float:
        """eta at the task of this index, from 0."""
        return math.exp(-self.beta * index / self.tasks_)

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        train = part_of_run(self.adapt, "itaml.adapt")
        self.adapted_ = [self._adapted(net, i, memory, look, train) for i in range(task.index + 1)]

    def _adapted(self, net: Net, index: int, memory: Memory, look: Look, train: Train) -> Net:
        """A copy of the net after some epochs on a task's exemplars."""
        made = copy.deepcopy(net).train()
        update = Updater([p for p in made.parameters() if p.requires_grad], train)
        rows = (memory.tensor("task") == index).nonzero().flatten()
        draw = look.generator(f"adapt {index}")
        device = next(made.parameters()).device
        with own_noise(device):
            seed_noise(device, int(torch.randint(2**62, (), generator=draw)))
            for epoch in range(train.epochs):
                order = rows[torch.randperm(len(rows), generator=draw)]
                for step, batch in enumerate(look.rows(order, train.batch)):
                    with made.frozen_statistics() if len(batch.y) == 1 else nullcontext():
                        out = forward(made, batch)
                    update((index, "adapt", epoch, step), self.loss(made, out, batch, Stage()))
        return frozen(made)

    def task_scores(self, out: Out) -> Tensor:
        """(B,T): the largest logit of each task's classes."""
        return task_scores(out.logits, self.owner_)

    def predict(self, net: Net, x: Tensor, out: Out, memory: Memory) -> Tensor:
        return self.predict_within(net, x, out, memory, self.task_scores(out).argmax(1))

    @torch.no_grad()
    def predict_within(self, net: Net, x: Tensor, out: Out, memory: Memory, task: Tensor) -> Tensor:
        """The classes of the task come first, by the adapted copy; the others below, by the net."""
        scores = out.logits.detach().clone()
        for index in torch.unique(task).tolist():
            chosen, own = task == index, self.owner_ == index
            found = self.adapted_[index](x[chosen]).logits[:, own]  # (b,q)
            rest = scores[chosen][:, ~own]
            if rest.shape[1]:
                rest = rest - rest.amax(1, keepdim=True) + found.amin(1, keepdim=True) - 1
            part = torch.empty_like(scores[chosen])
            part[:, own], part[:, ~own] = found, rest
            scores[chosen] = part
        return scores


def slice_loss(logits: Tensor, y: Tensor, own: Tensor) -> Tensor:
    """Binary cross entropy, mean over the logits (B,C) that are among an image's ``own`` (B,C)."""
    hot = F.one_hot(y, logits.shape[1]).to(logits)
    cost = F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
    return (cost * own).sum() / own.sum()


def task_scores(logits: Tensor, owner: Tensor) -> Tensor:
    """(B,T): the largest of the logits (B,C) of each task's classes."""
    tasks = torch.arange(int(owner.max()) + 1, device=owner.device)
    mine = owner == tasks[:, None]  # (T,C)
    return logits[:, None].masked_fill(~mine, -math.inf).amax(2)


def weights_of(net: Net) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


@torch.no_grad()
def put(net: Net, weights: Sequence[Tensor]) -> None:
    for p, w in zip(net.parameters(), weights, strict=True):
        p.copy_(w)
