"""Terms: extra losses that any learner can carry, each with its own columns of memory.

A term never samples and never runs the net: the loop draws rows of memory, forwards them with the
taps that the term names, and hands over what came out beside the rows' columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from rightreasons.errors import UserError, unknown
from rightreasons.explainers import EXPLAINERS, closed_form, evidence
from rightreasons.memory import Column, Ragged
from rightreasons.nets.net import Net
from rightreasons.types import Batch, Out

DTYPES = ("float16", "float32", "uint8")


@dataclass
class Term:
    """Base of all terms; ``weight`` multiplies what a call returns."""

    weight: float = 1.0
    rows: int = 32
    """memory rows a step"""
    view: str = "canonical"
    """canonical: the image as it is, in a forward of its own, BatchNorm by running statistics"""

    name: ClassVar[str]
    views: ClassVar[tuple[str, ...]] = ("canonical",)

    def __post_init__(self) -> None:
        check_choice(self, "view", self.views)
        if self.rows < 1:
            raise UserError(f"{self.name}.rows is {self.rows}, expected at least 1")

    @property
    def taps(self) -> tuple[str, ...]:
        """Activations that the forward must return."""
        return ()

    def check(self, net: Net) -> None:
        """Refuse a net that the term cannot explain."""
        for tap in self.taps:
            net.check_tap(tap)

    def needs_graph(self, net: Net) -> bool:
        """Must the forward for `remember` build a graph?"""
        return False

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        """Columns for newly stored rows."""
        raise NotImplementedError

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        """The loss of these rows, before the weight."""
        raise NotImplementedError


def check_choice(owner: Any, name: str, choices: tuple[str, ...]) -> None:
    if getattr(owner, name) not in choices:
        raise unknown(f"{owner.name}.{name}", getattr(owner, name), choices)


# --- storing maps ----------------------------------------------------------


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


# --- eq. 2 -----------------------------------------------------------------

FROM_PROFILE: Any = type("FromProfile", (), {"__repr__": lambda self: "from the profile"})()

PROFILES: dict[str, dict[str, Any]] = {
    # what eq. 2 and algorithm 1 say; true label, running statistics and view are our reading
    "paper": {
        "weight": 1.0,
        "target": "paper",
        "score": "label",
        "distance": "l1",
        "normalize": "none",
        "signed": False,
        "reduction": "pixel_sum",
        "detach_weights": False,
    },
}


@dataclass
class RRR(Term):
    """Remember for the right reasons (Ebrahimi et al., ICLR 2021), eq. 2.

    ``L = E over ((x,y),s) of memory  || XAI(f(x)) - s ||_1`` with the map ``s`` that explained the
    image when its task had just been learned. Fields that the paper leaves open default to the
    chosen ``profile``.
    """

    profile: str = "paper"
    weight: float = FROM_PROFILE
    explain: str = "gradcam"
    target: str = FROM_PROFILE
    """paper, last_block, or the name of a layer"""
    score: str = FROM_PROFILE
    """which class is explained: label, stored_prediction or current_prediction"""
    distance: str = FROM_PROFILE
    """l1 or l2 (squared)"""
    normalize: str = FROM_PROFILE
    """none, l2 or max, per map; an all-zero map stays zero"""
    signed: bool = FROM_PROFILE
    """without it, cells whose evidence fell below zero get no gradient"""
    reduction: str = FROM_PROFILE
    """pixel_sum (the norm of eq. 2) or pixel_mean; always the mean over rows"""
    detach_weights: bool = FROM_PROFILE
    """treat Grad-CAM's alpha as constants"""
    dtype: str = "float16"
    """of the stored map, which has a scale of its own: float16, float32 or uint8"""

    name: ClassVar[str] = "rrr"

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise unknown("rrr.profile", self.profile, PROFILES)
        for f in fields(self):
            if getattr(self, f.name) is FROM_PROFILE:
                setattr(self, f.name, PROFILES[self.profile][f.name])
        super().__post_init__()
        check_choice(self, "explain", tuple(EXPLAINERS))
        check_choice(self, "score", ("label", "stored_prediction", "current_prediction"))
        check_choice(self, "distance", ("l1", "l2"))
        check_choice(self, "normalize", ("none", "l2", "max"))
        check_choice(self, "reduction", ("pixel_sum", "pixel_mean"))
        check_choice(self, "dtype", DTYPES)

    @property
    def taps(self) -> tuple[str, ...]:
        return (self.target,)

    def needs_graph(self, net: Net) -> bool:
        return not closed_form(net, self.target)

    def maps(self, net: Net, out: Out, y: Tensor) -> Tensor:
        """The raw maps (B,u,v) of classes ``y``."""
        return EXPLAINERS[self.explain](
            net,
            out,
            y,
            target=self.target,
            signed=self.signed,
            detach_weights=self.detach_weights,
        )

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        y = batch.y if self.score == "label" else out.logits.argmax(1)
        values, scale = encode(self.maps(net, out, y), self.dtype)
        return {"rrr.map": values, "rrr.scale": scale, "rrr.class": y}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        values, scale, y = (columns[f"rrr.{c}"] for c in ("map", "scale", "class"))
        assert isinstance(values, Tensor) and isinstance(scale, Tensor) and isinstance(y, Tensor)
        if self.score == "current_prediction":
            y = out.logits.argmax(1)
        now = self.maps(net, out, y)
        stored = decode(values, scale, now)
        gap = normalise(now, self.normalize) - normalise(stored, self.normalize)
        cost = gap.abs() if self.distance == "l1" else gap.square()  # (B,u,v)
        per_row = cost.sum((1, 2)) if self.reduction == "pixel_sum" else cost.mean((1, 2))
        return per_row.mean()


def normalise(maps: Tensor, how: str) -> Tensor:
    """Divide each map by its l2 norm or its largest magnitude; zero stays zero."""
    if how == "none":
        return maps
    flat = maps.flatten(1)
    size = flat.square().sum(1) if how == "l2" else flat.abs().amax(1)
    empty = size == 0
    size = torch.where(empty, 1.0, size)  # before the root: its slope at zero is infinite
    if how == "l2":
        size = size.sqrt()
    return maps / size[:, None, None]


# --- ours ------------------------------------------------------------------


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
            raise UserError(
                f"evidence needs global average pooling and one linear head, and {net.name} has "
                "another end; use rrr, or a net such as resnet8"
            )

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        values, scale = encode(evidence(net, out, bias=self.bias), self.dtype)
        return {"evidence.map": Ragged.of(values), "evidence.scale": scale}

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        stored, scale = columns["evidence.map"], columns["evidence.scale"]
        assert isinstance(stored, Ragged) and isinstance(scale, Tensor)
        values, real = stored.padded()  # (B,C,u,v), (B,C)
        now = evidence(net, out, classes=values.shape[1], bias=self.bias)
        per_class = (now - decode(values, scale, now)).square().mean((2, 3))  # (B,C)
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
