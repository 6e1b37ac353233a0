"""How far a map that follows its image is from the map of the moved image.

    python benchmarks/equivariance.py

The warp itself is exact for flips and whole-cell shifts; a convolutional net is not equivariant to
them. Reported: the L1 distance between the warped reference and the map of the warped image over
the cells that the image covers, relative to the reference's L1 norm there; running statistics.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.augment import follow
from rightreasons.types import Geometry

CELL = 4  # pixels of a cell: an 8x8 map at 32 px
MOVES = {  # name: flip, pixels to the right, pixels down
    "identity": (False, 0, 0),
    "flip": (True, 0, 0),
    "one cell to the right": (False, CELL, 0),
    "one cell right and down": (False, CELL, CELL),
    "2 pixels to the right": (False, 2, 0),
    "1 pixel right and down": (False, 1, 1),
    "flip and 3 pixels down": (True, 0, 3),
}


def geometry(flip: bool, right: int, down: int, count: int, size: int) -> Geometry:
    theta = torch.tensor([[-1.0 if flip else 1.0, 0, 2 * right / size], [0, 1, 2 * down / size]])
    return Geometry(theta.expand(count, 2, 3))


def moved(x: Tensor, where: Geometry) -> Tensor:
    """The images themselves, moved by whole pixels; black comes in from outside."""
    grid = F.affine_grid(where.theta, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", align_corners=False)


@torch.no_grad()
def gaps(net: rr.Net, stream: rr.Stream) -> dict[str, float]:
    images = stream[0].test
    pixels = images.pixels(torch.arange(len(images))).float()
    mean, std = stream.mean.view(3, 1, 1), stream.std.view(3, 1, 1)
    net.eval()
    reference = rr.gradcam(net, (pixels - mean) / std, images.y)
    found = {}
    for name, move in MOVES.items():
        where = geometry(*move, len(images), pixels.shape[-1])
        warped, covered = follow(reference, where)
        now = rr.gradcam(net, (moved(pixels, where) - mean) / std, images.y)
        gap = ((warped - now).abs() * covered).sum() / (warped.abs() * covered).sum()
        found[name] = float(gap)
    return found


def main() -> None:
    torch.set_num_threads(1)
    stream = rr.stream("glyphs", tasks=1, classes=10, train=200, test=50)
    train = rr.Train(epochs=6, batch=16, optimiser="adamw", lr=3e-3, augment=rr.Augment(4, False))
    fresh = rr.net("resnet8")
    fresh.grow(10, torch.Generator().manual_seed(0))
    untrained = gaps(fresh, stream)
    result = rr.fit(rr.Finetune(), rr.net("resnet8"), stream, train=train)
    assert result.net is not None
    trained = gaps(result.net, stream)
    print(f"resnet8, 10 glyph classes, test accuracy of the trained net {result.accuracy:.3f}\n")
    print("| move | untrained | trained |\n|---|--:|--:|")
    for name in MOVES:
        print(f"| {name} | {untrained[name]:.3f} | {trained[name]:.3f} |")


if __name__ == "__main__":
    main()
