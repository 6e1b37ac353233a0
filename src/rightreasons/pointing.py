"""The pointing game (Zhang et al. 2018; section 5 of the paper), and the drift of maps.

Does the peak of a map lie on the object? Precision asks how often a right answer looked at it,
recall how often a look at it led to the right answer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.metrics import Matrix


class Pointed(NamedTuple):
    hit: Tensor  # (B,) bool: the peak lies on the object
    share: Tensor  # (B,) share of the map's positive saliency that lies on the object


def point(maps: Tensor, masks: Tensor) -> Pointed:
    """Play the game on maps (B,u,v) of any size and masks (B,H,W). A map without a peak misses."""
    large = enlarge(maps.clamp_min(0), masks.shape[-2:])
    row, column = peaks(large)
    alive = large.flatten(1).amax(1) > 0
    hit = masks[torch.arange(len(masks), device=masks.device), row, column] & alive
    total = large.flatten(1).sum(1)
    share = (large * masks).flatten(1).sum(1) / torch.where(alive, total, 1.0)
    return Pointed(hit, share)


def enlarge(maps: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """(B,u,v) -> (B,H,W), bilinear between cell centres.

    Two products of matrices: torch's kernel is slow for maps of one channel.
    """
    down, across = (
        _linear(few, many).to(maps) for few, many in zip(maps.shape[1:], size, strict=True)
    )
    return down @ maps @ across.T


@lru_cache(maxsize=64)
def _linear(few: int, many: int) -> Tensor:
    """(many,few): how much of each cell there is in each pixel, along one side."""
    cells = torch.eye(few, dtype=torch.float64)[:, None]
    return F.interpolate(cells, many, mode="linear", align_corners=False)[:, 0].T.contiguous()


def peaks(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each map's maximum; of several, their mean place rounded down.

    One cell of a small map becomes a plateau of equal pixels when enlarged: its middle is meant.
    """
    top = maps == maps.flatten(1).amax(1)[:, None, None]
    count = top.flatten(1).sum(1).clamp_min(1)  # NaN is no maximum, and the caller's to refuse
    rows = torch.arange(maps.shape[1], device=maps.device)
    columns = torch.arange(maps.shape[2], device=maps.device)
    row = (top.sum(2) * rows).sum(1) // count
    column = (top.sum(1) * columns).sum(1) // count
    return row, column


class Drift(NamedTuple):
    cosine: float
    iou: float  # of the 20 % of cells with the largest values
    displacement: float  # of the peak, in cells


def drift(before: Tensor, now: Tensor) -> Drift:
    """How maps (B,u,v) of the same images and classes have moved; means over images."""
    cosine = F.cosine_similarity(before.flatten(1), now.flatten(1), dim=1)
    both_zero = (before.flatten(1).abs().amax(1) == 0) & (now.flatten(1).abs().amax(1) == 0)
    cosine = torch.where(both_zero, 1.0, cosine)
    a, b = _top(before), _top(now)
    iou = (a & b).sum(1) / (a | b).sum(1)
    (r0, c0), (r1, c1) = peaks(before), peaks(now)
    distance = ((r0 - r1).float().square() + (c0 - c1).float().square()).sqrt()
    return Drift(float(cosine.mean()), float(iou.mean()), float(distance.mean()))


def _top(maps: Tensor, share: float = 0.2) -> Tensor:
    flat = maps.flatten(1)
    count = max(1, round(share * flat.shape[1]))
    chosen = torch.zeros_like(flat, dtype=torch.bool)
    return chosen.scatter_(1, flat.topk(count, 1).indices, True)


class Outcomes(NamedTuple):
    """Counts per task: right and hit (tp), right and miss (fp), wrong and hit (fn), neither."""

    tp: Matrix
    fp: Matrix
    fn: Matrix
    tn: Matrix

    def accuracy(self) -> Matrix:
        """Hits over all: the pointing game's R."""
        total = self.tp + self.fp + self.fn + self.tn
        return ratio(self.tp + self.fn, total)

    def precision(self) -> Matrix:
        return ratio(self.tp, self.tp + self.fp)

    def recall(self) -> Matrix:
        return ratio(self.tp, self.tp + self.fn)


def outcomes(hit: Tensor, correct: Tensor, task: Tensor, tasks: int) -> Outcomes:
    """Count per task."""

    def count(which: Tensor) -> Matrix:
        return torch.bincount(task[which], minlength=tasks).numpy().astype(float)

    return Outcomes(
        count(correct & hit), count(correct & ~hit), count(~correct & hit), count(~correct & ~hit)
    )


def right_after_and_at_the_end(values: Matrix) -> tuple[float, float, int]:
    """From a (T,T) matrix of ratios the means of ``[i,i]`` and ``[T,i]`` over tasks, and how many
    of the 2T cells are undefined (0/0) and left out."""
    after, end = np.diag(values), values[-1]
    missing = int(np.isnan(after).sum() + np.isnan(end).sum())
    return _mean(after), _mean(end), missing


def _mean(values: Matrix) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def ratio(a: Matrix, b: Matrix) -> Matrix:
    return np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)
