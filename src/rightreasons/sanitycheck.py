"""The sanity check of saliency maps (Adebayo et al. 2018): does a map depend on the weights at all?

Layers are randomised one after another, from the head down to the first. A map that explains what
the net has learned must change with them; one that does not shows the image, not the decision.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rightreasons.errors import UserError
from rightreasons.explainers import find_explainer
from rightreasons.metrics import Matrix
from rightreasons.nets.base import Net
from rightreasons.randomness import generator


class Sanity(NamedTuple):
    """Rank correlation of maps before and after, the mean over images."""

    layers: list[str]  # randomised down to this one
    correlation: dict[str, Matrix]  # (L,) of each explainer; NaN where every map was constant

    def table(self) -> str:
        """Markdown, a row an explainer."""
        heads = ["explainer", *self.layers]
        lines = [_line(heads), _line(["---", *["--:"] * len(self.layers)])]
        for name, values in self.correlation.items():
            lines.append(_line([name, *(f"{v:.2f}" for v in values)]))
        return "\n".join(lines)


def _line(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


@torch.no_grad()
def sanity(
    net: Net,
    x: Tensor,
    y: Tensor | None = None,
    *,
    explain: Sequence[str] = ("gradcam", "backprop", "guided"),
    steps: int = 6,
    seed: int = 0,
) -> Sanity:
    """Randomise the weights from the head down and follow the maps of normalised images ``x``.

    ``y`` are the classes explained, by default those that the net predicts and then the same all
    the way. Each tensor of a layer is drawn anew from a normal of its own deviation, around zero
    or, for biases and norms, around its own mean.
    ``steps`` stops are made on the way, the first at the head, the last when nothing is left.
    """
    if steps < 2:
        raise UserError(f"steps is {steps}, expected 2 or more: the head, and all layers")
    calls = {name: find_explainer(name) for name in explain}
    changed = copy.deepcopy(net).eval()
    y = changed(x).logits.argmax(1) if y is None else y
    before = {name: call(changed, x, y) for name, call in calls.items()}
    layers = [(n, m) for n, m in changed.module.named_modules() if m._parameters]
    layers.sort(key=lambda layer: layer[0] != changed.head_name)  # the head first, stable
    layers = [layers[0], *reversed(layers[1:])]
    stops = sorted({round(place) for place in np.linspace(0, len(layers) - 1, steps)})
    draw = generator(seed, "noise", "sanity")
    names: list[str] = []
    found: dict[str, list[float]] = {name: [] for name in calls}
    for i, (path, layer) in enumerate(layers):
        _randomise(layer, draw)
        if i in stops:
            names.append(path)
            for name, call in calls.items():
                found[name].append(rank_correlation(before[name], call(changed, x, y)))
    return Sanity(names, {name: np.array(values) for name, values in found.items()})


def _randomise(layer: nn.Module, draw: torch.Generator) -> None:
    for p in layer.parameters(recurse=False):
        middle = p.mean() if p.ndim == 1 else torch.zeros_like(p.mean())
        spread = (p - middle).square().mean().sqrt()
        p.copy_(middle + spread * torch.randn(p.shape, generator=draw).to(p))


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, the mean over pairs of maps (B,u,v); constant maps have none and are left out."""
    values = []
    for one, other in zip(a.flatten(1).double(), b.flatten(1).double(), strict=True):
        p, q = (_ranks(v) - (len(v) + 1) / 2 for v in (one, other))
        size = float((p.square().sum() * q.square().sum()).sqrt())
        if size > 0:
            values.append(float((p * q).sum()) / size)
    return float(np.mean(values)) if values else float("nan")


def _ranks(values: Tensor) -> Tensor:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: Tensor = count.cumsum(0) - (count - 1) / 2
    return ranks[place]
