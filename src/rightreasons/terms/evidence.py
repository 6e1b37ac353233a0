"""Evidence: remember the signed evidence for every class seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.errors import UserError
from rightreasons.explainers import NOT_POOLED, evidence
from rightreasons.memory import Column, Ragged
from rightreasons.nets.base import Net
from rightreasons.terms.base import (
    DTYPES,
    REFERENCES,
    Term,
    check_amount,
    decode,
    encode,
    refer,
)
from rightreasons.types import Batch, Out


@dataclass
class Evidence(Term):
    """Remember the evidence for and against every class seen, where it lies.

    ``L = mean over rows, classes seen at storing, cells of (E - E_stored)^2`` with the signed maps
    ``E_c(i,j) = b_c + sum_k w_ck A_k(i,j)`` of `explainers.evidence`, over the last block. The mean
    of ``E_c`` over the cells is the logit of ``c``: this is logit replay resolved in space. All but
    the first value of `classes`, `cells` and `reference` are ablations.
    """

    weight: float = 0.1
    view: str = "auto"
    bias: bool = True
    """count the head's bias"""
    classes: str | int = "all"
    """all that were seen; mean: their mean map; a number: those with the largest logits"""
    cells: str | int = "full"
    """full; mean: one number a class; a number n: n x n means"""
    reference: str = "own"
    """own; shuffled: the map of another row of the class; cells: permuted cells; noise"""
    dtype: str = "uint8"
    """of the stored maps, which have a scale a row: float16, float32 or uint8"""

    name: ClassVar[str] = "evidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "dtype", DTYPES)
        check_choice(self, "reference", REFERENCES)
        check_amount(self, "classes", "all", "mean")
        check_amount(self, "cells", "full", "mean")

    @property
    def taps(self) -> tuple[str, ...]:
        return ("last_block",)

    @property
    def pooled(self) -> bool:
        return self.cells != "full"

    def check(self, net: Net, x: Tensor) -> None:
        super().check(net, x)
        if not net.pooled_linear:
            raise UserError(NOT_POOLED.format(net.name))

    def maps(self, net: Net, out: Out, classes: int | None = None) -> Tensor:
        """(B,C,u,v), in as few cells as are kept."""
        full = evidence(net, out, classes=classes, bias=self.bias)
        if self.cells == "full":
            return full
        return F.adaptive_avg_pool2d(full, 1 if self.cells == "mean" else int(self.cells))

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        maps = self.maps(net, out)  # (B,C,u,v)
        count, seen = maps.shape[:2]
        chosen = None  # which classes the maps are of, if not all in their order
        if isinstance(self.classes, int):
            chosen = out.logits.topk(min(self.classes, seen), 1).indices
            maps = _pick(maps, chosen)
        elif self.classes == "mean":
            chosen = torch.arange(seen, device=maps.device).expand(count, seen)
            maps = maps.mean(1, keepdim=True)
        values, scale = encode(maps, self.dtype)
        columns: dict[str, Column] = {"evidence.map": Ragged.of(values), "evidence.scale": scale}
        if chosen is not None:
            columns["evidence.class"] = Ragged.of(chosen.short())
        return columns

    def refer(
        self, columns: dict[str, Column], y: Tensor, generator: torch.Generator
    ) -> dict[str, Column]:
        names = ("evidence.map", "evidence.scale", "evidence.class")
        return refer(columns, names, self.reference, y, generator)

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        stored, scale = columns["evidence.map"], columns["evidence.scale"]
        assert isinstance(stored, Ragged) and isinstance(scale, Tensor)
        values, real = stored.padded()  # (B,C,u,v), (B,C)
        if self.classes == "all":
            now = self.maps(net, out, values.shape[1])
        else:
            of = columns["evidence.class"]
            assert isinstance(of, Ragged)
            chosen, known = of.padded()
            now = _pick(self.maps(net, out), chosen.long())
            if self.classes == "mean":
                weights = known / known.sum(1, keepdim=True)
                now = (now * weights[:, :, None, None]).sum(1, keepdim=True)
        before, covered = self.follow(decode(values, scale, now), batch)
        gap = (now - before).square() * covered[:, None]
        per_class = gap.sum((2, 3)) / covered.sum((1, 2))[:, None].clamp_min(1)  # (B,C)
        return over_classes(per_class, real)


def _pick(maps: Tensor, classes: Tensor) -> Tensor:
    """(B,C,u,v) and (B,k) -> (B,k,u,v)."""
    return maps.gather(1, classes[:, :, None, None].expand(-1, -1, *maps.shape[2:]))


def over_classes(cost: Tensor, real: Tensor) -> Tensor:
    """Mean over the classes that a row knew, then over rows: each row has the same say."""
    return ((cost * real).sum(1) / real.sum(1)).mean()
