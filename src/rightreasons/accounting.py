"""What a remembered explanation takes: the target layer, the map's size, and its bytes by dtype."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from rightreasons.explainers import taps_of
from rightreasons.nets.base import INPUT, Net
from rightreasons.terms.base import DTYPES, encode


class Storage(NamedTuple):
    """One row of memory: a map beside its image of 3 HW bytes."""

    layer: str | None  # None for maps of the image's own size
    size: tuple[int, int]  # u, v
    bytes: dict[str, int]  # of map and scale, by dtype
    image: int  # bytes of the image, uint8

    def share(self, dtype: str) -> float:
        """Of the image's bytes."""
        return self.bytes[dtype] / self.image


def storage(
    net: Net, size: int = 224, *, explain: str = "gradcam", target: str = "paper"
) -> Storage:
    """What one map of an explainer takes for images of ``size`` px, found by building one.

    >>> import rightreasons as rr
    >>> rr.storage(rr.net("resnet18-cifar"), 32).bytes["float32"]  # 4x4 numbers and a scale
    68
    """
    pixels = INPUT in taps_of(explain, target)
    device = next(net.parameters()).device
    cells = (size, size)
    if not pixels:
        net = copy.deepcopy(net).eval()
        net.grow(max(net.classes, 1))
        with torch.no_grad():
            out = net(torch.zeros(1, 3, size, size, device=device), taps=(target,))
        cells = (out.maps[target].shape[2], out.maps[target].shape[3])
    found = {}
    for dtype in DTYPES:
        values, scale = encode(torch.ones(1, *cells), dtype)
        found[dtype] = values.nbytes + scale.nbytes
    return Storage(None if pixels else net.path(target), cells, found, 3 * size * size)


def storage_table(net: Net, size: int) -> str:
    """Markdown: the paper's target, the last block and a map of pixels, bytes by dtype."""
    rows = [("gradcam", "paper"), ("gradcam", "last_block"), ("backprop", "paper")]
    heads = ["map", "layer", "size", *(f"{dtype}, bytes" for dtype in DTYPES)]
    lines = [f"| {' | '.join(heads)} |", f"|---|---|--:|{'--:|' * len(DTYPES)}"]
    for explain, target in rows:
        s = storage(net, size, explain=explain, target=target)
        words = [
            f"{explain}, {target}" if s.layer else "of pixels",
            s.layer or "the image",
            f"{s.size[0]}x{s.size[1]}",
            *(f"{s.bytes[d]:,} ({100 * s.share(d):.1f} %)" for d in DTYPES),
        ]
        lines.append(f"| {' | '.join(words)} |")
    lines.append(
        f"\nIn brackets the share of the image's {3 * size * size:,} bytes; scales included."
    )
    return "\n".join(lines)
