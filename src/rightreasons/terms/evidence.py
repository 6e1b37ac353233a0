"""Evidence: remember the signed evidence for every class seen; and stored logits, its control."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.explainers import NOT_POOLED, evidence
from rightreasons.memory import Column, Ragged
from rightreasons.nets.net import Net
from rightreasons.terms.base import DTYPES, Term, check_choice, decode, encode
from rightreasons.types import Batch, Out


@dataclass
class Evidence(Term):
    """Remember the evidence for and against every class seen, where it lies.

    ``L = mean over rows, classes seen at storing, cells of (E - E_stored)^2`` with the signed maps
    ``E_c(i,j) = b_c + sum_k w_ck A_k(i,j)`` of `explainers.evidence`. The mean of ``E_c`` over the
    cells is the logit of ``c``: this is logit replay resolved in space.
    """

    weight: float = 0.1
    bias: bool = True
    """count the head's bias"""
    dtype: str = "float16"
    """of the stored maps, which have a scale a row: float16, float32 or uint8"""

    name: ClassVar[str] = "evidence"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "dtype", DTYPES)

    @property
    def taps(self) -> tuple[str, ...]:
        return ("last_block",)

    def check(self, net: Net) -> None:
        super().check(net)
        if not net.pooled_linear:
            raise UserError(NOT_POOLED.format(net.name))

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        values, scale = encode(evidence(net, out, bias=self.bias), self.dtype)
        return {"evidence.map": Ragged.of(values), "evidence.scale": scale}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        stored, scale = columns["evidence.map"], columns["evidence.scale"]
        assert isinstance(stored, Ragged) and isinstance(scale, Tensor)
        values, real = stored.padded()  # (B,C,u,v), (B,C)
        now = evidence(net, out, classes=values.shape[1], bias=self.bias)
        before, covered = self.follow(decode(values, scale, now), batch)
        gap = (now - before).square() * covered[:, None]
        per_class = gap.sum((2, 3)) / covered.sum((1, 2))[:, None].clamp_min(1)  # (B,C)
        return over_classes(per_class, real)


def over_classes(cost: Tensor, real: Tensor) -> Tensor:
    """Mean over the classes that a row knew, then over rows: each row has the same say."""
    return ((cost * real).sum(1) / real.sum(1)).mean()


@dataclass
class Logits(Term):
    """Control: remember the logits (as DER does, Buzzega et al. 2020), without a place."""

    weight: float = 0.1

    name: ClassVar[str] = "logits"

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        return {"logits.value": Ragged.of(out.logits.detach())}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        stored = columns["logits.value"]
        assert isinstance(stored, Ragged)
        values, real = stored.padded()  # (B,C)
        now = out.logits[:, : values.shape[1]]
        return over_classes((now - values.to(now)).square(), real)
