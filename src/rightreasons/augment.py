"""Batched crop, flip, brightness and contrast on uint8 images, with the geometry that was used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.errors import UserError
from rightreasons.types import Geometry


@dataclass(frozen=True)
class Augment:
    """A random window on the image, and a mirror image half of the time."""

    crop: int = 4
    """width of a black border that the window may reach into"""
    flip: bool | None = None
    """half of the images as in a mirror; null: if the data allows it"""
    cut: int | None = None
    """side of the window, the image's own by default; what is not augmented is cut in the middle"""
    brightness: float = 0.0
    """largest shift of all pixels, as a share of white"""
    contrast: float = 0.0
    """largest change of the distance of pixels from the image's mean, as a share of it"""

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise UserError(f"train.augment.crop is {self.crop}, expected 0 or more pixels")
        if self.cut is not None and self.cut < 1:
            raise UserError(f"train.augment.cut is {self.cut}, expected at least 1 pixel")
        for name in ("brightness", "contrast"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"train.augment.{name} is {getattr(self, name)}, expected 0 to 1")


def middle(x: Tensor, cut: int | None) -> Tensor:
    """The middle (...,cut,cut) of images or masks (...,H,W): the view that is not augmented."""
    height, width = x.shape[-2:]
    if cut is None or (height, width) == (cut, cut):
        return x
    if min(height, width) < cut:
        raise UserError(
            f"train.augment.cut is {cut} and the images are {height}x{width}; type a smaller one"
        )
    top, left = (height - cut) // 2, (width - cut) // 2
    return x[..., top : top + cut, left : left + cut]


def augment(x: Tensor, how: Augment, generator: torch.Generator) -> tuple[Tensor, Geometry]:
    """A window on each image by its own draw; uint8 (B,3,H,W) in, (B,3,h,w) out.

    The geometry is relative to the `middle` of the image.
    """
    batch, channels, tall, wide = x.shape
    height, width = (how.cut or tall), (how.cut or wide)
    top, left = (tall - height) // 2, (wide - width) // 2  # where the middle begins
    down, right = (  # where the window lies on the bordered image
        torch.randint(0, spare + 2 * how.crop + 1, (batch,), generator=generator).to(x.device)
        for spare in (tall - height, wide - width)
    )
    coin = torch.rand(batch, generator=generator) < 0.5
    flip = (coin if how.flip is not False else torch.zeros_like(coin)).to(x.device)

    rows = torch.arange(height, device=x.device) + down[:, None]  # (B,h)
    ahead = torch.arange(width, device=x.device).expand(batch, width)
    columns = torch.where(flip[:, None], width - 1 - ahead, ahead) + right[:, None]
    border = wide + 2 * how.crop
    index = (rows[:, :, None] * border + columns[:, None, :]).reshape(batch, 1, -1)  # (B,1,hw)
    bordered = F.pad(x, [how.crop] * 4).flatten(2)  # (B,3,H'W')
    moved = bordered.gather(2, index.expand(-1, channels, -1)).view(batch, -1, height, width)

    theta = x.new_zeros((batch, 2, 3), dtype=torch.float32)
    theta[:, 0, 0] = 1 - 2 * flip.float()
    theta[:, 1, 1] = 1
    theta[:, 0, 2] = 2 * (right - how.crop - left) / width
    theta[:, 1, 2] = 2 * (down - how.crop - top) / height
    if how.brightness or how.contrast:
        moved = recolour(moved, how, generator)
    return moved, Geometry(theta)


def recolour(x: Tensor, how: Augment, generator: torch.Generator) -> Tensor:
    """Another brightness and contrast for each image, uint8 in and out."""
    draws = (2 * torch.rand(2, len(x), generator=generator) - 1).to(x.device)  # in -1..1
    shift, factor = draws[0] * how.brightness * 255, 1 + draws[1] * how.contrast
    mean = x.float().mean((1, 2, 3), keepdim=True)
    changed = (x - mean) * factor.view(-1, 1, 1, 1) + mean + shift.view(-1, 1, 1, 1)
    return changed.round().clamp(0, 255).to(torch.uint8)


def follow(
    maps: Tensor, geometry: Geometry, *, wide: bool = False, rough: bool = False
) -> tuple[Tensor, Tensor]:
    """Move maps (B,...,u,v) as their images were moved; (B,u,v) tells which cells the image covers.

    Bilinear at map resolution. A cell is covered when all that it is made of lies in the image.
    Cells that are ``wide``, means of many, all count, the outermost ones going on outside: by the
    same rule hardly any would be left of four, and none of one. Maps that are ``rough``, whose
    neighbours have nothing to do with one another, take the nearest cell: a mean of four would
    level them.
    """
    u, v = maps.shape[-2:]
    layers = maps.reshape(len(maps), -1, u, v)
    grid = F.affine_grid(geometry.theta.to(maps), [len(maps), 1, u, v], align_corners=False)
    stacked = torch.cat([layers, torch.ones_like(layers[:, :1])], 1)
    outside = "border" if wide else "zeros"
    moved = F.grid_sample(stacked, grid, padding_mode=outside, align_corners=False)
    covered = moved[:, -1] > 1 - 1e-4
    if rough:
        moved = F.grid_sample(stacked, grid, "nearest", padding_mode=outside, align_corners=False)
    return moved[:, :-1].reshape(maps.shape), covered
