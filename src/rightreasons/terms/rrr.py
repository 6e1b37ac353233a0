"""RRR: remember for the right reasons (Ebrahimi et al., ICLR 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.config import check_choice
from rightreasons.errors import UserError, unknown, why
from rightreasons.explainers import (
    CHANNELS,
    EXPLAINERS,
    by_layer,
    closed_form,
    content_keys,
    find_explainer,
    has_own_passes,
    options_of,
    taps_of,
)
from rightreasons.finite import check_gradient
from rightreasons.memory import Column
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

FROM_PROFILE: Any = type("FromProfile", (), {"__repr__": lambda self: "from the profile"})()

PROFILES: dict[str, dict[str, Any]] = {
    # what eq. 2 and algorithm 1 say; class, statistics and view, which they leave open, are ours
    "paper": {
        "weight": 1.0,
        "view": "canonical",
        "rows": 32,
        "bn": "auto",
        "target": "paper",
        "score": "label",
        "distance": "l1",
        "normalize": "none",
        "signed": False,
        "reduction": "pixel_sum",
        "schedule": "joint",
        "detach_weights": False,
        "dtype": "float16",
    },
    # what the authors' code meant to do: a pass over the memory before each epoch
    "released": {
        "weight": 100.0,
        "view": "ignore",
        "rows": 10,
        "bn": "train",
        "target": "paper",
        "score": "current_prediction",
        "distance": "l1",
        "normalize": "none",
        "signed": False,
        "reduction": "pixel_mean",
        "schedule": "alternate",
        "detach_weights": True,
        "dtype": "float16",
    },
    # the form was the best of five on glyphs; weight, view and bits follow from the study
    # (docs/results/README.md: what becomes a default)
    "recommended": {
        "weight": 0.3,
        "view": "auto",
        "rows": 32,
        "bn": "auto",
        "target": "last_block",
        "score": "label",
        "distance": "l1",
        "normalize": "none",
        "signed": True,
        "reduction": "pixel_sum",
        "schedule": "joint",
        "detach_weights": False,
        "dtype": "uint8",
    },
}


@dataclass
class RRR(Term):
    """Remember for the right reasons (Ebrahimi et al., ICLR 2021), eq. 2.

    ``L = E over ((x,y),s) of memory  || XAI(f(x)) - s ||_1`` with the map ``s`` that explained the
    image when its task had just been learned. Fields that the paper leaves open default to the
    chosen ``profile``.
    """

    weight: float = FROM_PROFILE
    view: str = FROM_PROFILE
    rows: int = FROM_PROFILE
    bn: str = FROM_PROFILE
    profile: str = "paper"
    """paper, released (what the authors' code meant) or recommended (the form of eq. 2 that gained
    accuracy in our study, where the other two did not: docs/results)"""
    explain: str = "gradcam"
    """the explainer: gradcam, backprop, smoothgrad, guided, deconvnet, gradient_x_input,
    integrated_gradients or guided_gradcam; all but gradcam give maps of the image's size. Also
    captum:CLASS, and what other packages have registered"""
    target: str = FROM_PROFILE
    """paper, last_block, or the name of a layer; several with + between them: the mean of their
    losses"""
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
    schedule: str = FROM_PROFILE
    """joint: in the learner's step; alternate: a pass over the memory before each epoch"""
    alternate_lr: float = 5e-4
    """learning rate of that pass, which has its own optimiser"""
    detach_weights: bool = FROM_PROFILE
    """treat Grad-CAM's alpha as constants"""
    channels: str = "max"
    """three channels of gradients to one map, by magnitude: max, sum, mean or l2; with signed they
    are added up"""
    samples: int = 4
    """noisy copies of smoothgrad, or points of integrated_gradients; the stored map is averaged
    over the very same ones"""
    noise: float = 0.2
    """deviation of smoothgrad's noise, as a share of the image's range"""
    cells: str | int = "full"
    """full, or a number n: compare and store n x n means"""
    only_correct: bool = False
    """leave out rows that were misclassified when they were stored"""
    refresh: str = "never"
    """never, or each_task: explain old rows anew after each task"""
    reference: str = "own"
    """own; controls: shuffled (of another row of the class), cells (permuted), noise"""
    dtype: str = FROM_PROFILE
    """of the stored map, which has a scale of its own: float16, float32 or uint8"""

    name: ClassVar[str] = "rrr"

    def __post_init__(self) -> None:
        if self.profile not in PROFILES:
            raise unknown("rrr.profile", self.profile, PROFILES)
        for f in fields(self):
            if getattr(self, f.name) is FROM_PROFILE:
                setattr(self, f.name, PROFILES[self.profile][f.name])
        super().__post_init__()
        find_explainer(self.explain)  # or a sentence
        check_choice(self, "score", ("label", "stored_prediction", "current_prediction"))
        check_choice(self, "distance", ("l1", "l2"))
        check_choice(self, "normalize", ("none", "l2", "max"))
        check_choice(self, "reduction", ("pixel_sum", "pixel_mean"))
        check_choice(self, "schedule", ("joint", "alternate"))
        check_choice(self, "refresh", ("never", "each_task"))
        check_choice(self, "reference", REFERENCES)
        check_choice(self, "dtype", DTYPES)
        check_choice(self, "channels", CHANNELS)
        if self.samples < 1 or not 0 < self.noise < math.inf:
            raise UserError(
                f"rrr.samples is {self.samples} and rrr.noise {self.noise}, expected at least 1 "
                "and a number above 0"
            )
        check_amount(self, "cells", "full")
        if not 0 < self.alternate_lr < math.inf:
            raise UserError(f"rrr.alternate_lr is {self.alternate_lr}, expected a number above 0")
        if len(self.targets) > 1 and not by_layer(self.explain):
            raise UserError(
                f"rrr.target names {len(self.targets)} layers, and {self.explain} has one map, "
                "which is the image's; type one of them, or rrr.explain=gradcam"
            )
        if self.balance and self.schedule == "alternate":
            raise UserError(
                "rrr.schedule=alternate has no loss beside it to balance with; type "
                "rrr.schedule=joint, or rrr.balance=false"
            )
        if self.view == "shared" and self.schedule == "alternate":
            raise UserError("rrr.view=shared has no pass of its own; type rrr.schedule=joint")
        if self.view == "shared" and self.explain == "smoothgrad":
            raise UserError(
                "smoothgrad's noise does not follow crop and flip; type rrr.view=canonical"
            )

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.target.split("+"))

    @property
    def taps(self) -> tuple[str, ...]:
        every = [tap for target in self.targets for tap in taps_of(self.explain, target)]
        return tuple(dict.fromkeys(every))

    @property
    def pooled(self) -> bool:
        return self.cells != "full"

    @property
    def can_share(self) -> bool:
        """What the net at hand must say is asked in `check`."""
        closed = self.explain == "gradcam" and self.target == "last_block"
        return closed and self.schedule == "joint" and super().can_share

    @property
    def apart(self) -> float | None:
        return self.alternate_lr if self.schedule == "alternate" else None

    @property
    def refreshes(self) -> bool:
        return self.refresh == "each_task"

    def check(self, net: Net, x: Tensor) -> None:
        super().check(net, x)
        with torch.no_grad():
            net(x, taps=self.taps)  # a layer without maps is refused before anything else
        if self.view == "shared" and self.norm != "frozen" and self._by_slope(net):
            last = net.pooled_linear and self.explain == "gradcam"
            other = f"{'rrr.target=last_block or ' if last else ''}rrr.view=canonical"
            what = f"rrr.target={self.target}" if self.explain == "gradcam" else self.explain
            raise UserError(
                f"rrr.view=shared with {what} may mix images through the batch "
                f"statistics of BatchNorm; type {other}"
            )
        self._try(net, x)

    def _by_slope(self, net: Net) -> bool:
        """Is the map a derivative of the given pass?"""
        if self.explain == "gradcam":
            return not all(closed_form(net, target) for target in self.targets)
        return not has_own_passes(self.explain)

    def _try(self, net: Net, x: Tensor) -> None:
        """Explain and differentiate the maps; ``net`` is a copy, and gets gradients.

        A net that the maps cannot train fails here and not after the first task.
        """
        y = torch.arange(len(x), device=x.device) % net.classes
        once = replace(self, samples=1, signed=True)
        for sign in (1, -1):  # a ReLU behind a fresh head may shut it; its opposite is then open
            for p in net.head.parameters():
                p.data.mul_(sign)
            with net.frozen_statistics():
                maps = once.maps(net, net(x, taps=self.taps), y)
            if all(of.abs().amax() > 0 for of in maps):
                break
        else:
            raise UserError(
                f"{self.explain} gives empty maps for {net.name}: a part without a derivative, "
                "such as rounding, lies before the logits; choose a layer behind it, or replace it"
            )
        if self.explain not in EXPLAINERS:  # not ours, so our tests have not seen it
            check_gradient(self.explain, partial(_explained, once), net, x, y)
            return
        try:
            sum(of.sum() for of in maps).backward()  # type: ignore[union-attr]
        except (RuntimeError, NotImplementedError) as error:
            raise UserError(
                f"the maps of {self.explain} on {net.name} cannot be differentiated "
                f"({why(error)}); replace the part of the net that has no second derivative"
            ) from error

    def needs_graph(self, net: Net) -> bool:
        return self._by_slope(net)

    def maps(self, net: Net, out: Out, y: Tensor, keys: Tensor | None = None) -> list[Tensor]:
        """For each target the raw maps (B,u,v) of classes ``y``, in as few cells as are kept."""
        explain, found = find_explainer(self.explain), []
        given = {f.name: getattr(self, f.name) for f in fields(self)} | {"keys": keys}
        for target in self.targets:
            options = options_of(self.explain, given | {"target": target})
            maps = explain(net, out, y, **options)
            whole = self.cells == "full"
            found.append(maps if whole else F.adaptive_avg_pool2d(maps, int(self.cells)))
        return found

    @property
    def stored(self) -> list[tuple[str, str]]:
        """For each target the columns of maps and of scales."""
        more = [f".{number}" for number in range(2, len(self.targets) + 1)]
        return [(f"rrr.map{which}", f"rrr.scale{which}") for which in ("", *more)]

    def remember(self, net: Net, batch: Batch, out: Out) -> dict[str, Column]:
        answer = out.logits.argmax(1)
        y = batch.y if self.score == "label" else answer
        columns: dict[str, Column] = {"rrr.class": y, "rrr.correct": answer == batch.y}
        keys = None
        if self.explain == "smoothgrad":  # a row keeps its noise wherever it moves in memory
            keys = columns["rrr.noise"] = content_keys(batch.x)
        for names, maps in zip(self.stored, self.maps(net, out, y, keys), strict=True):
            columns |= zip(names, encode(maps, self.dtype), strict=True)
        return columns

    def refer(
        self, columns: dict[str, Column], y: Tensor, generator: torch.Generator
    ) -> dict[str, Column]:
        if self.reference == "shuffled":  # every layer of the same other row, and its class
            names = [name for pair in self.stored for name in pair]
            return refer(columns, [*names, "rrr.class"], self.reference, y, generator)
        for values, _ in self.stored:
            columns = refer(columns, [values], self.reference, y, generator)
        return columns

    def counted(self, columns: Mapping[str, Column]) -> Tensor:
        right = columns["rrr.correct"]
        assert isinstance(right, Tensor)
        return right if self.only_correct else super().counted(columns)

    def __call__(self, net: Net, out: Out, batch: Batch, columns: Mapping[str, Column]) -> Tensor:
        y, keys = columns["rrr.class"], columns.get("rrr.noise")
        assert isinstance(y, Tensor) and (keys is None or isinstance(keys, Tensor))
        if self.score == "current_prediction":
            y = out.logits.argmax(1)
        costs = []
        for now, (name, of) in zip(self.maps(net, out, y, keys), self.stored, strict=True):
            values, scale = columns[name], columns[of]
            assert isinstance(values, Tensor) and isinstance(scale, Tensor)
            costs.append(self.cost(now, *self.follow(decode(values, scale, now), batch)))
        per_row = torch.stack(costs).mean(0) if len(costs) > 1 else costs[0]
        if self.only_correct:
            right = self.counted(columns)
            return (per_row * right).sum() / right.sum().clamp_min(1)
        return per_row.mean()

    def cost(self, now: Tensor, stored: Tensor, covered: Tensor) -> Tensor:
        """(B,) how far maps (B,u,v) are from the stored ones, over the cells that count."""
        gap = normalise(now * covered, self.normalize) - normalise(stored * covered, self.normalize)
        cost = gap.abs() if self.distance == "l1" else gap.square()  # (B,u,v)
        per_row = cost.sum((1, 2))
        if self.reduction == "pixel_mean":
            per_row = per_row / covered.sum((1, 2)).clamp_min(1)
        return per_row


def _explained(term: RRR, net: Net, x: Tensor, y: Tensor) -> Tensor:
    """A term's maps, as an explainer."""
    with net.frozen_statistics():
        return term.maps(net, net(x, taps=term.taps), y)[0]


def normalise(maps: Tensor, how: str) -> Tensor:
    """Divide each map by its l2 norm or its largest magnitude; zero stays zero."""
    if how == "none":
        return maps
    flat = maps.flatten(1)
    size = flat.square().sum(1) if how == "l2" else flat.abs().amax(1)
    size = torch.where(size == 0, 1.0, size)  # before the root: its slope at zero is infinite
    return maps / (size.sqrt() if how == "l2" else size)[:, None, None]
