"""Term: an extra loss that any learner can carry, with its own columns of memory.

A term never samples: the loop draws rows of memory, forwards them with the taps that the term
names, and hands over what came out beside the rows' columns.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rightreasons.augment import follow
from rightreasons.config import check_choice, check_types
from rightreasons.distributed import means
from rightreasons.errors import UserError
from rightreasons.memory import Column, Ragged, take
from rightreasons.nets.base import Net
from rightreasons.types import Batch, Out

DTYPES = ("float16", "float32", "uint8")
REFERENCES = ("own", "shuffled", "cells", "noise")
VIEWS = ("auto", "canonical", "shared", "ignore")
BN = ("auto", "frozen", "batch", "train")


@dataclass
class Term(ABC):
    """Base of all terms; ``weight`` multiplies what a call returns."""

    weight: float = 1.0
    """multiplies the loss, whose reduction each term states"""
    view: str = "canonical"
    """canonical: images as they are, in a forward of their own; shared: the learner's forward of
    replayed images, stored maps following crop and flip; auto: shared if the learner replays and
    that forward gives what is compared, else canonical; ignore: augmented images, maps that do
    not follow (the authors' mismatch, for ablation)"""
    rows: int = 32
    """memory rows a step, in a forward of their own"""
    bn: str = "auto"
    """BatchNorm by running statistics (frozen), by the batch, or by the batch that also moves the
    running statistics (train); auto: frozen in a forward of its own, train in the shared one"""
    balance: bool = False
    """let weight be a ratio of gradients: at each step the term's, at the last block, is so many
    times as long as that of the learner's loss, however small it would be"""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_types(self, self.name)
        check_choice(self, "view", VIEWS)
        check_choice(self, "bn", BN)
        if self.bn == "batch" and self.view == "shared":
            raise UserError(
                f"{self.name}.bn=batch is for a forward of the term's own, and the shared one is "
                f"the learner's; type {self.name}.view=canonical, or {self.name}.bn=train"
            )
        if self.rows < 1:
            raise UserError(f"{self.name}.rows is {self.rows}, expected at least 1")
        if not 0 <= self.weight < math.inf:
            raise UserError(f"{self.name}.weight is {self.weight}, expected 0 or more")

    @property
    def taps(self) -> tuple[str, ...]:
        """Activations that the forward must return."""
        return ()

    @property
    def norm(self) -> str:
        """What BatchNorm does in the forward: frozen, batch or train."""
        if self.bn != "auto":
            return self.bn
        return "train" if self.view == "shared" else "frozen"

    @property
    def can_share(self) -> bool:
        """May a view that was left open be the shared one?"""
        return self.bn != "batch"

    def beside(self, shares: bool) -> Term:
        """The term as it joins a learner, whose forward it can share or not."""
        if self.view != "auto":
            return self
        joined = copy.copy(self)
        joined.view = "shared" if shares and self.can_share else "canonical"
        return joined

    @property
    def apart(self) -> float | None:
        """The learning rate of steps of its own, if it does not join the learner's."""
        return None

    @property
    def pooled(self) -> bool:
        """Are the stored maps means over wider cells than the net's?"""
        return False

    @property
    def rough(self) -> bool:
        """Have neighbouring cells of the stored maps nothing to do with one another?"""
        return getattr(self, "reference", "own") in ("cells", "noise")

    @property
    def refreshes(self) -> bool:
        """Are old rows remembered anew after each task?"""
        return False

    def check(self, net: Net, x: Tensor) -> None:
        """Refuse a net that the term cannot explain; ``net`` is a copy to try it on, with a head
        of a few classes, and ``x`` a batch like those to come."""
        for tap in self.taps:
            net.check_tap(tap)

    def needs_graph(self, net: Net) -> bool:
        """Must the forward for `remember` build a graph?"""
        return False

    @abstractmethod
    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        """Columns for newly stored rows."""

    @abstractmethod
    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        """The loss of these rows, before the weight: a mean over those that are `counted`."""

    def factor(self, net: Net, value: Tensor, loss: Tensor) -> Tensor | float:
        """What a call's ``value`` is multiplied by before it joins the learner's ``loss``."""
        if not self.balance:
            return self.weight
        own, other = strength(net, value), strength(net, loss)
        return torch.where(own > 0, self.weight * other / own, 0.0)

    def counted(self, columns: Mapping[str, Column]) -> Tensor:
        """(B,) which rows the mean of a call is over: all of them, unless a term leaves some out.

        Where several processes share the rows, the mean of all is made of theirs.
        """
        y = columns["y"]
        assert isinstance(y, Tensor)
        return torch.ones_like(y, dtype=torch.bool)

    def refer(
        self, columns: dict[str, Column], y: Tensor, generator: torch.Generator
    ) -> dict[str, Column]:
        """The columns of all new rows, labels ``y``, once more before they are stored: controls put
        other references in their place."""
        return columns

    def follow(self, stored: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Stored maps (B,...,u,v) in the place where the batch's images are, and (B,u,v) cells that
        the image covers."""
        if self.view == "shared" and batch.geometry is not None:
            return follow(stored, batch.geometry, wide=self.pooled, rough=self.rough)
        return stored, torch.ones_like(stored[:, 0] if stored.ndim == 4 else stored).bool()


def strength(net: Net, loss: Tensor) -> Tensor:
    """The length of a loss's gradient at the last block, or at the head if that alone trains.

    Every loss passes there, and the way back to it is short.
    """
    last = [p for p in net.last_parameters() if p.requires_grad]
    last = last or [p for p in net.head.parameters() if p.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(last)
    if loss.requires_grad and last:  # without rows of its own a process has no graph
        found = torch.autograd.grad(loss, last, retain_graph=True, allow_unused=True)
    slopes = [torch.zeros_like(p) if g is None else g for p, g in zip(last, found, strict=True)]
    return sum((g.square().sum() for g in means(slopes)), loss.new_zeros(())).sqrt()


def all_taps(terms: Sequence[Term]) -> list[str]:
    return [tap for term in terms for tap in term.taps]


def encode(maps: Tensor, dtype: str) -> tuple[Tensor, Tensor]:
    """Values and one scale a row: the largest magnitude, so that no dtype over- or underflows."""
    maps = maps.detach()
    scale = maps.flatten(1).abs().amax(1)  # (B,)
    unit = maps / scale.clamp_min(torch.finfo(torch.float32).tiny).view(-1, *[1] * (maps.ndim - 1))
    if dtype == "float32":
        return maps.float(), torch.ones_like(scale)
    if dtype == "float16":
        return unit.half(), scale
    return (unit * 127 + 128).round().to(torch.uint8), scale


def decode(values: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    """Maps from values and scales; an all-zero map is zero again."""
    unit = values.to(like)
    if values.dtype == torch.uint8:
        unit = (unit - 128) / 127
    return unit * scale.to(like).view(-1, *[1] * (values.ndim - 1))


def refer(
    columns: dict[str, Column],
    names: Sequence[str],
    how: str,
    y: Tensor,
    generator: torch.Generator,
) -> dict[str, Column]:
    """Controls: maps that are not the rows' own. ``names`` are the columns of values, then those
    that go with them to another row: scales, and the classes that the maps are of."""
    if how == "own":
        return columns
    if how == "shuffled":
        other = _others(y, generator)
        return columns | {name: take(columns[name], other) for name in names if name in columns}
    column = columns[names[0]]
    values = column.padded()[0] if isinstance(column, Ragged) else column  # (n,...,u,v)
    if how == "cells":
        flat = values.flatten(-2)
        order = torch.rand(len(flat), flat.shape[-1], generator=generator).argsort(1)
        order = order.view(len(flat), *[1] * (flat.ndim - 2), -1).expand_as(flat)
        values = flat.gather(-1, order.to(flat.device)).view_as(values)
    else:
        level = values.float().flatten(1)
        noise = torch.randn(level.shape, generator=generator).to(level)
        drawn = noise * level.std(1, keepdim=True) + level.mean(1, keepdim=True)
        if values.dtype == torch.uint8:
            drawn = drawn.round().clamp(0, 255)
        values = drawn.view_as(values).to(values.dtype)
    kept = Ragged(values.flatten(0, 1), column.lengths) if isinstance(column, Ragged) else values
    return columns | {names[0]: kept}


def _others(y: Tensor, generator: torch.Generator) -> Tensor:
    """For each row another row of its class, itself if it is alone: a random cycle a class."""
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # class by class, at random inside
    counts = torch.bincount(y)
    counts = counts[counts > 0]
    firsts = counts.cumsum(0) - counts
    following = torch.arange(1, len(y) + 1, device=y.device)
    following[firsts + counts - 1] = firsts
    other = torch.empty_like(order)
    other[order] = order[following]
    return other


def check_amount(term: Term, name: str, *words: str) -> None:
    """A field is one of some words, or a number above 0."""
    value = getattr(term, name)
    if value not in words and (isinstance(value, str) or value < 1):
        said = " or ".join(words)
        raise UserError(f"{term.name}.{name} is {value!r}, expected {said}, or a number above 0")
