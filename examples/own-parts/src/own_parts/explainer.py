"""HiResCAM (Draelos & Carin 2020): Grad-CAM without averaging the gradient over the map."""

from __future__ import annotations

from rightreasons.slopes import explained, slope


def hirescam(net, at, y, *, target="last_block", signed=False):
    """HiResCAM: ``ReLU(sum_k dy_c/dA_k(i,j) A_k(i,j))`` at the target layer."""
    out = explained(net, at, target)
    maps = (slope(net, out, y, target) * out.maps[target]).sum(1)
    return maps if signed else maps.relu()
