"""Learner: the loss, and what is kept from task to task. The loop is in `loop`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_types
from rightreasons.errors import UserError, unknown
from rightreasons.feed import Look
from rightreasons.memory import Memory, choose, herd
from rightreasons.nets.base import Net
from rightreasons.terms import Term
from rightreasons.types import Batch, Out, Pool, Stage, Task

REPLAYS = ("paired", "concat")
SCOPES = ("all", "new")
PARTS = ("all", "last_block", "head", "new_rows")  # of a net that a stage may train


class Objective(Protocol):
    """Loss and terms of a batch, or of a part of it.

    With ``task``, terms that draw rows of memory draw those of that task alone, if there are any.
    """

    def __call__(self, batch: Batch, task: int | None = None) -> Tensor: ...


@dataclass
class Learner:
    """A recipe: fields are configuration, attributes that end in ``_`` are state.

    ``fit`` works on a copy. State may hold tensors, numbers, strings, `Net`s, and lists, tuples or
    dictionaries of these; it is checkpointed without further code.
    """

    memory: Memory = field(default_factory=Memory)
    terms: tuple[Term, ...] = ()

    name: ClassVar[str]
    replays: ClassVar[bool] = False
    """does the task loss see remembered images"""
    picks: ClassVar[str] = "random"
    """how images are chosen for the memory, if it does not say"""
    one_program: ClassVar[bool] = True
    """does `predict` compute the same whatever the images show, so that it can be exported"""

    def __post_init__(self) -> None:
        if not getattr(self, "name", ""):
            kind = type(self).__name__
            raise UserError(
                f'{kind} has no name; write name: ClassVar[str] = "{kind.lower()}" in the class'
            )
        if not isinstance(self.memory, Memory):
            raise UserError(f"memory is {self.memory!r}, expected rr.Memory(200)")
        if self.memory.pick is None:
            self.memory = copy.copy(self.memory)
            self.memory.pick = self.picks
        check_types(self, self.name, skip=("memory", "terms"))
        self.terms = tuple(term.beside(self.shares) for term in self.terms)
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise UserError(f"{self.method} has a term twice; it has {names[-1]!r} already")

    def __add__(self, term: Term) -> Learner:
        """The same learner with one more term: ``ER() + RRR()``."""
        if not isinstance(term, Term):
            return NotImplemented
        joined = copy.deepcopy(self)
        joined.terms = (*joined.terms, copy.deepcopy(term))
        joined.__post_init__()
        return joined

    @property
    def method(self) -> str:
        """The method's word, such as ``er+rrr``."""
        return "+".join([self.name, *(term.name for term in self.terms)])

    @property
    def shares(self) -> bool:
        """Are replayed images forwarded, so that a term can share it?"""
        return self.replays

    @property
    def remembers(self) -> bool:
        """Is a memory kept? Without replay it is for explanation only: no task loss sees it."""
        return self.replays or bool(self.terms)

    @property
    def holds_out(self) -> float:
        """The share of a class's memory rows that only stages with a held pool see."""
        return 0.0

    def check(self, net: Net, tasks: Sequence[Task]) -> None:
        """Refuse before training what would fail later."""

    def begin(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        """Before a task; the head has grown already."""

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool())]

    def trained(self, net: Net, stage: Stage) -> list[Tensor]:
        """The parameters of a stage, each once; what the net came with frozen stays so."""
        found = [p for part in stage.params.split("+") for p in self._part(net, part)]
        kept = {id(p) for p in net.parameters() if not p.requires_grad}
        trains = [p for p in dict.fromkeys(found) if id(p) not in kept]
        if not trains:
            raise UserError(
                f"all weights of {net.name} that {self.name} would train are frozen; call "
                "requires_grad_(True) on some"
            )
        return trains

    def _part(self, net: Net, part: str) -> list[Tensor]:
        if part == "all":
            return list(net.parameters())
        if part == "last_block":
            return net.last_parameters()
        if part in ("head", "new_rows"):
            return list(net.head.parameters())
        own = getattr(self, part, None)
        if not isinstance(own, Tensor):
            state = [name for name in vars(self) if name.endswith("_")]
            raise unknown("stage.params", part, [*PARTS, *state])
        return [own]

    def begin_stage(self, net: Net, task: Task, stage: Stage, memory: Memory) -> None:
        """Before a stage of a task."""

    def loss(self, net: Net, out: Out, batch: Batch, stage: Stage) -> Tensor:
        """Cross entropy over all classes seen."""
        return F.cross_entropy(out.logits, batch.y)

    def step(
        self,
        net: Net,
        batch: Batch,
        objective: Objective,
        update: Callable[[Tensor], None],
    ) -> None:
        """One step on one batch: ``objective`` is loss and terms, ``update`` moves the weights."""
        update(objective(batch))

    def pick(
        self, task: Task, y: Tensor, z: Callable[[], Tensor], quota: int, draw: torch.Generator
    ) -> Tensor:
        """Places of the images that the memory takes, ``quota`` a class, best first in each.

        ``y`` (n,) are labels of new images; ``z`` looks at them all and gives embeddings (n,D).
        """
        if self.memory.pick == "herding":
            return herd(z(), y, quota)
        return choose(y, quota, draw)

    def end(self, net: Net, task: Task, memory: Memory, look: Look) -> None:
        """After the last stage; the memory has taken rows of this task, the net is in eval mode."""

    def predict(self, net: Net, x: Tensor, out: Out, memory: Memory) -> Tensor:
        """Scores (B,C) of normalised images, given what the net said of them."""
        return out.logits

    @property
    def continua(self) -> tuple[int, ...]:
        """Numbers of test images of one task that are given a task together, for learners that
        first look for the task; the accuracy is measured for each number."""
        return ()

    def task_scores(self, out: Out) -> Tensor:
        """(B,T): how well each task fits an image; for learners with `continua`."""
        raise NotImplementedError

    def predict_within(self, net: Net, x: Tensor, out: Out, memory: Memory, task: Tensor) -> Tensor:
        """Scores (B,C) of images whose tasks (B,) are known, or were found by groups."""
        return self.predict(net, x, out, memory)


def check_params(name: str, params: str) -> None:
    """Refuse parts of a net that there are not, for learners whose ``params`` is a field."""
    for part in params.split("+"):
        if part not in PARTS:
            raise unknown(f"{name}.params", part, PARTS)


def cross_entropy(out: Out, batch: Batch, scope: str, old: int) -> Tensor:
    """Over all classes seen, or over those that are not among the ``old`` first ones."""
    first = old if scope == "new" else 0
    return F.cross_entropy(out.logits[:, first:], batch.y - first)
