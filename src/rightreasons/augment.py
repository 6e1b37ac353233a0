"""Batched crop and flip on uint8 images; both return the geometry they used."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.errors import UserError
from rightreasons.types import Geometry


@dataclass(frozen=True)
class Augment:
    """Random shift inside a black border of `crop` pixels, and a mirror image half of the time."""

    crop: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.crop < 0:
            raise UserError(f"augment.crop is {self.crop}, expected 0 or more pixels")


def augment(x: Tensor, how: Augment, generator: torch.Generator) -> tuple[Tensor, Geometry]:
    """Shift and mirror each image by its own draw; (B,3,H,W) uint8 in and out."""
    batch, channels, height, width = x.shape
    draws = torch.randint(0, 2 * how.crop + 1, (2, batch), generator=generator) - how.crop
    coin = torch.rand(batch, generator=generator) < 0.5
    flip = coin if how.flip else torch.zeros_like(coin)
    down, right = draws.to(x.device)  # where the window lies on the bordered image
    flip = flip.to(x.device)

    rows = torch.arange(height, device=x.device) + how.crop + down[:, None]  # (B,H)
    ahead = torch.arange(width, device=x.device).expand(batch, width)
    columns = torch.where(flip[:, None], width - 1 - ahead, ahead) + how.crop + right[:, None]
    border = width + 2 * how.crop
    index = (rows[:, :, None] * border + columns[:, None, :]).reshape(batch, 1, -1)  # (B,1,HW)
    bordered = F.pad(x, [how.crop] * 4).flatten(2)  # (B,3,H'W')
    moved = bordered.gather(2, index.expand(-1, channels, -1)).view_as(x)

    theta = x.new_zeros((batch, 2, 3), dtype=torch.float32)
    theta[:, 0, 0] = 1 - 2 * flip.float()
    theta[:, 1, 1] = 1
    theta[:, 0, 2] = 2 * right / width
    theta[:, 1, 2] = 2 * down / height
    return moved, Geometry(theta)


def follow(maps: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Move maps (B,...,u,v) as their images were moved; (B,u,v) tells which cells the image covers.

    Bilinear at map resolution. A cell is covered when all that it is made of lies in the image.
    """
    u, v = maps.shape[-2:]
    layers = maps.reshape(len(maps), -1, u, v)
    grid = F.affine_grid(geometry.theta.to(maps), [len(maps), 1, u, v], align_corners=False)
    stacked = torch.cat([layers, torch.ones_like(layers[:, :1])], 1)
    moved = F.grid_sample(stacked, grid, align_corners=False)
    return moved[:, :-1].reshape(maps.shape), moved[:, -1] > 1 - 1e-4
