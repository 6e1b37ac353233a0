"""Memory: one table whose columns are cut and kept together by row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_types
from rightreasons.errors import UserError, unknown

PICKS = ("random", "herding")


@dataclass
class Ragged:
    """A column whose rows differ in length, kept in one flat tensor."""

    values: Tensor  # (sum of lengths, ...)
    lengths: Tensor  # (n,) int64

    @classmethod
    def of(cls, rows: Tensor) -> Ragged:
        """From rows of equal length (n,L,...)."""
        lengths = torch.full((len(rows),), rows.shape[1], device=rows.device)
        return cls(rows.flatten(0, 1), lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where each row's entries are, padded to the longest: (B,L) places, (B,L) which exist."""
        starts = self.lengths.cumsum(0) - self.lengths
        lengths = self.lengths[rows]
        span = torch.arange(int(lengths.max()) if len(rows) else 0, device=lengths.device)
        real = span < lengths[:, None]
        return (starts[rows, None] + span) * real, real

    def take(self, rows: Tensor) -> Ragged:
        places, real = self._places(rows)
        return Ragged(self.values[places[real]], self.lengths[rows])

    def padded(self) -> tuple[Tensor, Tensor]:
        """All rows as (n,L,...), and which of the (n,L) entries are real."""
        places, real = self._places(torch.arange(len(self), device=self.lengths.device))
        return self.values[places], real

    def nbytes(self) -> int:
        return self.values.nbytes + self.lengths.nbytes


Column: TypeAlias = Tensor | Ragged


def take(column: Column, rows: Tensor) -> Column:
    return column.take(rows) if isinstance(column, Ragged) else column[rows]


def join(parts: Sequence[Column]) -> Column:
    """One column below the other."""
    ragged = [part for part in parts if isinstance(part, Ragged)]
    if ragged:
        return Ragged(
            torch.cat([part.values for part in ragged]),
            torch.cat([part.lengths for part in ragged]),
        )
    return torch.cat([part for part in parts if isinstance(part, Tensor)])


@dataclass
class Memory:
    """A table of remembered images and of what terms and learners keep beside them.

    The quota is ``size // classes seen`` rows a class, or ``per_class`` rows: one number, or two,
    for the classes of the first task and for later ones. Rows of a class are kept in the order in
    which they were picked, so that a smaller quota keeps the first ones.
    """

    size: int = 200
    pick: str | None = None
    """random, or herding: images whose mean embedding stays near that of their class; null: as the
    learner picks"""
    per_class: int | tuple[int, int] | None = None
    columns_: dict[str, Column] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.per_class, (list, tuple)) and len(self.per_class) != 2:
            raise UserError(
                f"memory.per_class is {self.per_class}, expected a number of rows a class, or two"
            )
        check_types(self, "memory")
        if self.pick not in (None, *PICKS):
            raise unknown("memory.pick", self.pick, PICKS)
        if self.size < 1:
            raise UserError(f"memory.size is {self.size}, expected at least one row")
        numbers = self.per_class if isinstance(self.per_class, tuple) else (self.per_class,) * 2
        if any(n is not None and n < 1 for n in numbers):
            raise UserError(
                f"memory.per_class is {self.per_class}, expected at least 1 row a class, or two "
                "such numbers, for the classes of the first task and for later ones"
            )

    def __len__(self) -> int:
        return len(self.columns_["y"]) if self.columns_ else 0

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns_:
            raise unknown("memory column", name, self.columns_)
        return self.columns_[name]

    def tensor(self, name: str) -> Tensor:
        column = self[name]
        assert isinstance(column, Tensor)
        return column

    def take(self, rows: Tensor) -> dict[str, Column]:
        """Some rows of every column, pixels excepted."""
        return {name: take(c, rows) for name, c in self.columns_.items() if name != "x"}

    def quota(self, classes: int, first: bool = True) -> int:
        """Rows a class when so many classes were seen; ``first``: it is of the first task."""
        if isinstance(self.per_class, tuple):
            return self.per_class[0 if first else 1]
        if self.per_class is not None:
            return self.per_class
        if self.size < classes:
            raise UserError(
                f"the memory has {self.size} rows for {classes} classes, expected at least one row "
                f"a class; type memory.size={classes} or more"
            )
        return self.size // classes

    def shrink(self, classes: int) -> None:
        """Cut every class to its quota, keeping its first rows."""
        if not self.columns_:
            return
        quotas = torch.where(
            self.tensor("task") == 0, self.quota(classes, True), self.quota(classes, False)
        )
        kept = (ranks(self.tensor("y")) < quotas).nonzero().flatten()
        self.columns_ = {name: take(c, kept) for name, c in self.columns_.items()}

    def add(self, columns: Mapping[str, Column]) -> None:
        """Append rows; they bring the same columns as the rows that are there."""
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different length: {lengths}")
        if self.columns_ and set(columns) != set(self.columns_):
            raise ValueError(f"columns {sorted(columns)} do not fit {sorted(self.columns_)}")
        old = self.columns_
        self.columns_ = {n: join([old[n], c]) if old else c for n, c in columns.items()}

    def replace(self, columns: Mapping[str, Column]) -> None:
        """New values for columns of the rows that are there."""
        self.columns_ = self.columns_ | dict(columns)

    def part(self, held: bool) -> Tensor:
        """Places of the rows that a learner holds out, or of all others."""
        if "held" not in self.columns_:
            return torch.arange(0 if held else len(self))
        return (self.tensor("held") == held).nonzero().flatten()

    def nbytes(self) -> dict[str, int]:
        """Bytes of each column, as stored."""
        return {
            name: c.nbytes() if isinstance(c, Ragged) else c.nbytes
            for name, c in self.columns_.items()
        }


def ranks(y: Tensor) -> Tensor:
    """The place of each row among the rows of its class: 0 for the first of each."""
    order = y.argsort(stable=True)
    counts = torch.bincount(y)
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(y)
    rank[order] = torch.arange(len(y), device=y.device) - starts[y[order]]
    return rank


def draw(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Different ones of these rows at random, all of them if there are no more."""
    return rows[torch.randperm(len(rows), generator=generator)[:count]]


def choose(y: Tensor, quota: int, generator: torch.Generator) -> Tensor:
    """Places of ``quota`` random images of each class, classes in order, in the order picked."""
    shuffled = torch.randperm(len(y), generator=generator).to(y.device)
    chosen = shuffled[ranks(y[shuffled]) < quota]
    return chosen[y[chosen].argsort(stable=True)]


def herd(z: Tensor, y: Tensor, quota: int) -> Tensor:
    """Herding (Welling 2009; iCaRL, algorithm 4), for all classes at once; places like `choose`.

    With embeddings ``phi`` of length one and their class mean ``mu`` the k-th pick is
    ``argmin_x || mu - (phi(x) + sum_j<k phi(p_j)) / k ||`` over the images not yet picked.
    """
    classes, count = torch.unique(y, return_counts=True)
    order = y.argsort(stable=True)  # class by class
    place = torch.full((len(classes), int(count.max())), -1, device=y.device)  # (C,n), -1 pads
    real = torch.arange(place.shape[1], device=y.device) < count[:, None]
    place[real] = order
    phi = F.normalize(z.double(), dim=1)[place] * real[:, :, None]  # (C,n,D)
    mu = phi.sum(1) / count[:, None]  # (C,D)
    size = phi.square().sum(2).masked_fill(~real, math.inf)  # (C,n), infinite once picked
    total = torch.zeros_like(mu)
    picks: list[Tensor] = []
    every = torch.arange(len(classes), device=y.device)
    for k in range(1, min(quota, place.shape[1]) + 1):
        rest = k * mu - total  # || rest - phi ||^2 without its constant:
        best = (size - 2 * torch.einsum("cnd,cd->cn", phi, rest)).argmin(1)  # (C,)
        picks.append(place[every, best].where(count >= k, -1))
        total = total + phi[every, best] * (count >= k)[:, None]
        size[every, best] = math.inf
    chosen = torch.stack(picks, 1).flatten()
    return chosen[chosen >= 0]


def held_count(quota: int, share: float) -> int:
    """How many rows of a class are held out: at least one of two."""
    return math.ceil((quota - 1) * share - 1e-9)


def held_ranks(quota: int, share: float) -> Tensor:
    """(quota,) which rows of a class are held out; of its first q rows `held_count(q)` are."""
    counts = [max(0, held_count(q, share)) for q in range(quota + 1)]
    return torch.tensor(counts).diff() > 0


def interleave(kept: Tensor, held: Tensor, y: Tensor, quota: int, share: float) -> Tensor:
    """Places of both, class by class, so that a smaller quota keeps the share of held-out ones.

    ``kept`` and ``held`` are places in ``y``, each in the order in which it is to be kept.
    """
    is_held = held_ranks(quota, share)
    parts, at = [], []
    for places, those in ((kept, ~is_held), (held, is_held)):
        free, rank = those.nonzero().flatten(), ranks(y[places])
        parts.append(places[rank < len(free)])
        at.append(free[rank[rank < len(free)]])
    both = torch.cat(parts)
    return both[(y[both] * quota + torch.cat(at)).argsort()]
