"""All that passes between modules: images, tasks, batches, what a net returns, stages of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rightreasons.errors import unknown

MIXES = ("none", "paired", "concat")
Where = tuple[int | str, ...]  # task, stage, epoch, step: the key of a draw


@dataclass(frozen=True)
class Images:
    """Labelled images; a subset shares the pixels of the whole and only carries their positions."""

    x: Tensor  # (M,3,H,W) uint8, the pixels of the whole source
    y: Tensor  # (N,) int64
    masks: Tensor | None = None  # (M,H,W) bool, where the object is; all False where unknown
    rows: Tensor | None = None  # (N,) positions in x; None means all, in order

    def __len__(self) -> int:
        return len(self.y)

    def positions(self, index: Tensor) -> Tensor:
        return index if self.rows is None else self.rows[index]

    def subset(self, index: Tensor) -> Images:
        return Images(self.x, self.y[index], self.masks, self.positions(index))

    def between(self, first: int, last: int) -> Images:
        """The images with labels from ``first`` up to, not including, ``last``."""
        return self.subset(((self.y >= first) & (self.y < last)).nonzero().flatten())

    def join(self, *others: Images) -> Images:
        """One set of images out of several; the pixels are shared where they are the same."""
        parts = [self, *others]
        y = torch.cat([p.y for p in parts])
        if all(p.x is self.x for p in parts):
            rows = torch.cat([p.positions(torch.arange(len(p))) for p in parts])
            return Images(self.x, y, self.masks, rows)
        places = [p.positions(torch.arange(len(p))) for p in parts]
        x = torch.cat([p.x[place] for p, place in zip(parts, places, strict=True)])
        if all(p.masks is None for p in parts):
            return Images(x, y)
        nothing = torch.zeros(x.shape[0], *x.shape[2:], dtype=torch.bool)  # no mask is an empty one
        masks = [
            nothing[: len(p)] if p.masks is None else p.masks[place]
            for p, place in zip(parts, places, strict=True)
        ]
        return Images(x, y, torch.cat(masks))

    def has_masks(self) -> bool:
        """Does any of these images have a mask that is not empty?"""
        every = self.positions(torch.arange(len(self)))
        return self.masks is not None and any(
            bool(self.masks[part].any()) for part in torch.split(every, 256)
        )

    def pixels(self, index: Tensor) -> Tensor:
        """The uint8 images (B,3,H,W) at these places of the subset."""
        return self.x[self.positions(index)]


class Splits(NamedTuple):
    """What a data source gives for a list of classes; labels are places in that list."""

    train: Images
    test: Images


@dataclass(frozen=True)
class Task:
    """One step of a stream: new classes with their images."""

    index: int
    classes: tuple[int, ...]  # labels in 0..C-1, by order of appearance in the stream
    train: Images
    test: Images

    @property
    def seen(self) -> int:
        """How many classes the stream has shown once this task is here."""
        return self.classes[-1] + 1


class Geometry(NamedTuple):
    """Where each output pixel came from, as ``F.affine_grid`` takes it (align_corners=False)."""

    theta: Tensor  # (B,2,3): output coordinates in -1..1 -> input coordinates


class Batch(NamedTuple):
    """What one step sees; ``x`` is augmented and normalised."""

    x: Tensor  # (B,3,H,W)
    y: Tensor  # (B,) label in 0..C-1
    task: Tensor  # (B,) index of the sample's task
    row: Tensor  # (B,) row in memory, -1 for data of the current task
    geometry: Geometry | None = None  # None: the image as it is

    def where(self, chosen: Tensor) -> Batch:
        """The part of the batch that a mask or an index chooses."""
        geometry = self.geometry and Geometry(self.geometry.theta[chosen])
        return Batch(self.x[chosen], self.y[chosen], self.task[chosen], self.row[chosen], geometry)

    def join(self, other: Batch) -> Batch:
        """Both, one below the other."""
        parts = [self.located(), other.located()]
        x, y, task, row = (
            torch.cat(column) for column in zip(*(p[:4] for p in parts), strict=True)
        )
        theta = torch.cat([p.geometry.theta for p in parts if p.geometry is not None])
        return Batch(x, y, task, row, Geometry(theta))

    def located(self) -> Batch:
        """With a geometry: that of images as they are, if there is none."""
        if self.geometry is not None:
            return self
        theta = torch.eye(2, 3, device=self.x.device).repeat(len(self.y), 1, 1)
        return self._replace(geometry=Geometry(theta))


class Out(NamedTuple):
    """What a net returns."""

    logits: Tensor  # (B,C)
    z: Tensor  # (B,D) the input of the head, pooled
    maps: Mapping[str, Tensor]  # (B,K,u,v) for each tap, images included, in the graph
    cut: tuple[Mapping[str, Tensor], Tensor | None] | None = None
    """of a part or a copy: the maps of the whole, which the logits hang on, and which rows of them
    were chosen (None: all)"""

    def where(self, chosen: Tensor) -> Out:
        maps = {name: value[chosen] for name, value in self.maps.items()}
        whole, before = self.cut or (self.maps, None)
        rows = chosen if before is None else before[chosen]
        return Out(self.logits[chosen], self.z[chosen], maps, (whole, rows))


@dataclass(frozen=True)
class Pool:
    """Which images a stage trains on, and how new ones and remembered ones mix."""

    mix: str = "none"
    """none: new images only; paired: as many memory rows beside each batch; concat: one pool"""
    past: bool = False
    """all images of earlier tasks too (joint training)"""
    balance: bool = False
    """of new images only as many a class as the memory keeps of an old one"""
    held: bool = False
    """only what the learner holds out, of new images and of rows; without it, all but that"""
    plain: bool = False
    """rows of memory as they are; new images are augmented all the same (paired only)"""

    def __post_init__(self) -> None:
        if self.mix not in MIXES:
            raise unknown("mix of a pool", self.mix, MIXES)


@dataclass(frozen=True)
class Stage:
    """One pass of training inside a task; most learners have one."""

    name: str = "main"
    pool: Pool = Pool()
    train: Mapping[str, Any] = field(default_factory=dict)
    """overrides of the run's `Train`, such as epochs or lr"""
    params: str = "all"
    """which parameters train: all, last_block, head, new_rows (of the head: old rows stay as they
    are, bit by bit), a tensor of the learner's state such as bias_, or several of these joined by
    +; unless all do, BatchNorm keeps its running statistics"""
    terms: bool = True
    """do the learner's terms apply"""
