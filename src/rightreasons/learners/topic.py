"""TOPIC: few-shot class-incremental learning with a neural gas (Tao et al., CVPR 2020)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.errors import UserError
from rightreasons.feed import Look
from rightreasons.learners.base import Learner, check_params
from rightreasons.learners.fscil import new_images
from rightreasons.learners.gas import (
    Gas,
    Rule,
    anchor_loss,
    base,
    grown,
    minmax_loss,
    moved,
    part,
    settle,
    widest,
)
from rightreasons.memory import Memory
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out, Pool, Stage, Task


@dataclass
class TOPIC(Learner):
    """A neural gas over the embeddings holds old classes in place and makes room for new ones.

    ``L = CE + anchor * L_AL + minmax * L_MML`` on later tasks. Cross entropy sees new images only.
    ``L_AL`` keeps the embeddings of the anchors, which are the rows of memory, at the nodes that
    they stand for; ``L_MML`` pulls new images to the node of their class and pushes that node's
    neighbours of other classes away. Only the last block and new rows of the head train, and
    BatchNorm keeps its statistics. docs/topic.md says where each formula is from.
    """

    params: str = "last_block+new_rows"
    """what trains from the second task on, as in `Stage.params`"""
    anchor: float = 0.5
    """weight of the anchor loss, lambda_1"""
    minmax: float = 0.005
    """weight of the min-max loss, lambda_2"""
    reduction: str = "mean"
    """mean: of the losses over anchors and dimensions, and over images; sum: the paper's letter"""
    target: str = "node"
    """what an anchor is held to: node (its centroid, by the node's variance), or feature (what the
    net before the task made of it, squared error, mean over dimensions: the released trainer)"""
    normalize: bool = True
    """the gas lives on embeddings of length one"""
    margin: float | None = 0.5
    """xi; null: the largest distance between two nodes"""
    anchors: int | None = None
    """anchors beside each batch; null: all of them"""
    rate: tuple[float, float] = (0.1, 0.01)
    """eta of the gas, for the first and the last image"""
    alpha: tuple[float, float] = (10.0, 0.1)
    """how many ranks of nodes an image reaches, for the first and the last image"""
    age: int = 200
    """edges that are older go, T_age"""
    passes: int = 4
    """over the images of a task when the gas learns them"""
    moves: str = "new"
    """nodes that follow the images of a later task: new or all"""
    floor: float = 0.1
    """smallest variance, as a share of the mean"""
    cache: bool = False
    """keep what the frozen trunk makes of each anchor, and forward the last block alone"""

    name: ClassVar[str] = "topic"
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_params(self.name, self.params)
        check_choice(self, "reduction", ("mean", "sum"))
        check_choice(self, "target", ("node", "feature"))
        check_choice(self, "moves", ("new", "all"))
        for name in ("rate", "alpha"):
            if min(getattr(self, name)) <= 0:
                raise UserError(f"topic.{name} is {getattr(self, name)}, expected two above 0")
        for name in ("age", "passes", "anchors"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"topic.{name} is {value}, expected at least 1")
        if not self.floor > 0:
            raise UserError(f"topic.floor is {self.floor}, expected a number above 0")
        if self.cache and (self.params.split("+")[0] != "last_block" or self.anchors is not None):
            raise UserError(
                "topic.cache keeps all anchors as the frozen trunk made them; type "
                "topic.params=last_block+new_rows topic.anchors=null"
            )
        if self.cache and any(term.view == "shared" for term in self.terms):
            term = next(term.name for term in self.terms if term.view == "shared")
            raise UserError(
                f"{term}.view is shared and topic.cache forwards no image to share; type "
                f"{term}.view=canonical"
            )

    @property
    def shares(self) -> bool:
        return not self.cache

    def check(self, net: Net, tasks: Sequence[Task]) -> None:
        if self.cache and not net.ends_in_last_block:
            raise UserError(
                f"topic.cache needs a net whose head reads the mean of the last block, and "
                f"{net.name} is none; type topic.cache=false"
            )
        if self.memory.per_class is None:
            return
        nodes = self.memory.quota(tasks[-1].seen, first=False)
        for task in tasks[1:]:
            if not len(task.train):  # of an old task, whose images may be gone
                continue
            shots = int(torch.bincount(task.train.y)[list(task.classes)].min())
            if nodes > shots:
                raise UserError(
                    f"memory.per_class asks for {nodes} nodes a new class and a class of task "
                    f"{task.index + 1} has {shots} images, expected as many or more; type "
                    f"memory.per_class=[{self.memory.quota(1)},{shots}] or less"
                )

    @property
    def rule(self) -> Rule:
        return Rule(self.rate, self.alpha, self.age, self.passes)

    def stages(self, task: Task) -> list[Stage]:
        if not task.index:
            return [Stage(pool=Pool())]
        if self.cache:
            return [Stage(pool=Pool(), params=self.params)]
        beside = {"replay": self.anchors or max(1, len(self.memory))}
        return [Stage(pool=Pool(mix="paired", plain=True), train=beside, params=self.params)]

    def begin(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        """Nodes for the new classes, where the net puts their images before it learns them."""
        if not task.index:
            return
        if self.cache and not hasattr(self, "trunk_"):  # a branch of a run that kept none
            with net.frozen_statistics():
                self.trunk_ = trunk(net, look, len(memory))
        z, y = look.features()
        f, y = self._features(z).cpu(), y.cpu()
        draw = look.generator("grow")
        start = super().pick(task, y, lambda: f, memory.quota(task.seen, first=False), draw)
        now = grown(moved(self.gas_, f.device), f, y, start, self.rule, draw, self.moves == "all")
        self.grown_ = moved(now, z.device)
        if self.target == "feature":
            with net.frozen_statistics():
                self.before_ = self._features(look.embeddings())  # (N,D)

    def _features(self, z: Tensor) -> Tensor:
        return F.normalize(z) if self.normalize else z

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        new, loss = batch.row < 0, new_images(out, batch)
        if not hasattr(self, "grown_"):
            return loss
        f, rows = self._features(out.z), batch.row[~new]
        anchors = f[~new]
        if self.cache:
            anchors, rows = self._features(self._cached(net)), torch.arange(len(self.trunk_))
        margin = widest(self.grown_) if self.margin is None else self.margin
        held = self._anchor_loss(anchors, rows)
        room = minmax_loss(f[new], batch.y[new], self.grown_, margin)
        if self.reduction == "sum":
            return loss + self.anchor * held.sum() + self.minmax * room.sum()
        return loss + self.anchor * held.mean() + self.minmax * room.mean()

    def _anchor_loss(self, f: Tensor, rows: Tensor) -> Tensor:
        """(n,): how far these rows of memory, which are nodes of the gas, are from their places."""
        if self.target == "feature":
            return (f - self.before_[rows]).square().mean(1)
        gaps = anchor_loss(f, self.gas_["centroid"][rows], self.gas_["variance"][rows])
        return gaps if self.reduction == "sum" else gaps / f.shape[1]

    def _cached(self, net: Net) -> Tensor:
        """Embeddings (N,D) of all anchors, from what the trunk made of them."""
        with net.frozen_statistics():
            maps: Tensor = net.module.get_submodule(net.last_block)(self.trunk_)
        return maps.mean((2, 3))

    def pick(
        self, task: Task, y: Tensor, z: Callable[[], Tensor], quota: int, draw: torch.Generator
    ) -> Tensor:
        """The anchors of the nodes that the gas has for these images; as the memory picks, such
        images are chosen for nodes to start from."""
        f = self._features(z())
        start = super().pick(task, y, lambda: f, quota, draw)
        if not task.index:
            gas, old = base(f, y, start, self.rule, draw), 0
        else:
            gas = self._remembered()
            old = len(gas["label"])
            gas = grown(gas, f, y, start, self.rule, draw, self.moves == "all")
        gas = settle(gas, f, y, task.index, old, self.floor)
        self.gas_ = gas
        return gas["image"][old:, 1]

    def _remembered(self) -> Gas:
        """The nodes whose anchors the memory still has."""
        kept = torch.stack([self.memory.tensor("task"), self.memory.tensor("index")], 1)
        gas = moved(self.gas_, kept.device)
        there = (gas["image"][:, None] == kept).all(2).any(1)
        return part(gas, there.nonzero().flatten())

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        device = net.head.weight.device
        self.gas_ = moved(self.gas_, device)
        for name in ("grown_", "before_"):
            if hasattr(self, name):
                delattr(self, name)
        if self.cache:
            self.trunk_ = trunk(net, look, len(memory))


@torch.no_grad()
def trunk(net: Net, look: Look, rows: int) -> Tensor:
    """(rows,K,u,v): what the last block is given of each row of memory."""
    caught: list[Tensor] = []
    block = net.module.get_submodule(net.last_block)
    handle = block.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
    try:
        for batch in look.rows(torch.arange(rows)):
            net(batch.x)
    finally:
        handle.remove()
    return torch.cat(caught)
