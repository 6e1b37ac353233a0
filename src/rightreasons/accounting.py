"""What a remembered explanation takes: the target layer, the map's size, and its bytes by dtype."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch

from rightreasons.explainers import EXPLAINERS, find_explainer, options_of
from rightreasons.nets.base import Net
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
    cells = (size, size)
    pixels = explain in EXPLAINERS and explain != "gradcam"
    if not pixels:
        net = copy.deepcopy(net).eval()
        net.grow(max(net.classes, 1))
        x = torch.zeros(1, 3, size, size, device=next(net.parameters()).device)
        y = torch.zeros(1, dtype=torch.long, device=x.device)
        call = find_explainer(explain)
        made = call(net, x, y, **options_of(explain, {"target": target}))
        cells = (made.shape[1], made.shape[2])
        pixels = explain != "gradcam" and cells == (size, size)
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
