"""Controls: what is left of explanation replay without a place, and without a class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.memory import Column, Ragged
from rightreasons.nets.base import Net
from rightreasons.terms.base import DTYPES, Term, check_amount, decode, encode
from rightreasons.terms.evidence import over_classes
from rightreasons.types import Batch, Out


@dataclass
class Logits(Term):
    """Control: remember the logits (as DER does, Buzzega et al. 2020), without a place."""

    weight: float = 0.1
    view: str = "auto"

    name: ClassVar[str] = "logits"

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        return {"logits.value": Ragged.of(out.logits.detach())}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        stored = columns["logits.value"]
        assert isinstance(stored, Ragged)
        values, real = stored.padded()  # (B,C)
        now = out.logits[:, : values.shape[1]]
        return over_classes((now - values.to(now)).square(), real)


@dataclass
class Activations(Term):
    """Control: remember the activations that an explanation is made of, whatever class they serve.

    ``L = mean over rows, channels, cells of (A - A_stored)^2`` at one layer.
    """

    weight: float = 0.1
    view: str = "auto"
    target: str = "last_block"
    """paper, last_block, or the name of a layer"""
    cells: str | int = "full"
    """full, or a number n: compare and store n x n means"""
    dtype: str = "float16"
    """of the stored activations, which have a scale a row: float16, float32 or uint8"""

    name: ClassVar[str] = "activations"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "dtype", DTYPES)
        check_amount(self, "cells", "full")

    @property
    def taps(self) -> tuple[str, ...]:
        return (self.target,)

    @property
    def pooled(self) -> bool:
        return self.cells != "full"

    def maps(self, out: Out) -> Tensor:
        """(B,K,u,v), in as few cells as are kept."""
        full = out.maps[self.target]
        return full if self.cells == "full" else F.adaptive_avg_pool2d(full, int(self.cells))

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        values, scale = encode(self.maps(out), self.dtype)
        return {"activations.map": values, "activations.scale": scale}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        values, scale = columns["activations.map"], columns["activations.scale"]
        assert isinstance(values, Tensor) and isinstance(scale, Tensor)
        now = self.maps(out)
        before, covered = self.follow(decode(values, scale, now), batch)
        gap = (now - before).square().mean(1) * covered  # (B,u,v)
        return (gap.sum((1, 2)) / covered.sum((1, 2)).clamp_min(1)).mean()
