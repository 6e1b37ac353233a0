"""Finite differences: is the gradient of a map the gradient that autograd gives?"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from rightreasons.errors import UserError, why
from rightreasons.explainers import Explainer
from rightreasons.nets.base import Net

STEPS = (1e-6, 1e-7, 1e-8)  # of the weights' length, in float64; a ReLU that switches spoils one
AGREE = 1e-3


def check_gradient(name: str, explain: Explainer, net: Net, x: Tensor, y: Tensor) -> None:
    """Refuse an explainer whose maps a loss could not train, or would train wrongly.

    The derivative of ``sum(r * maps)`` along a random direction of all weights, by autograd and by
    finite differences, on a copy of the net in float64. A method that detaches a part on its way
    still gives maps that require a gradient: the two numbers differ then.
    """
    net = copy.deepcopy(net).double()
    x = x.double()
    maps = explain(net, x, y)
    if not maps.requires_grad:
        raise UserError(
            f"{name} gives maps without a graph, and no loss on them would train; use an explainer "
            "that keeps it, such as gradcam"
        )
    draw = torch.Generator().manual_seed(0)
    mix = torch.randn(maps.shape, generator=draw, dtype=torch.float64).to(maps)
    weights: list[Tensor] = [p for p in net.parameters() if p.requires_grad]
    along = []  # as long as the weights themselves
    for p in weights:
        v = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
        along.append(v * p.detach().norm() / v.norm().clamp_min(1e-12))
    try:
        found = torch.autograd.grad((mix * maps).sum(), weights, allow_unused=True)
    except (RuntimeError, AttributeError, TypeError) as error:  # hooks of others raise what they do
        raise UserError(
            f"the maps of {name} on {net.name} cannot be differentiated ({why(error)}); use an "
            "explainer that can, such as gradcam"
        ) from error
    by_graph = sum(float((g * v).sum()) for g, v in zip(found, along, strict=True) if g is not None)

    def loss() -> float:
        return float((mix * explain(net, x, y)).sum().detach())

    for step in STEPS:
        by_steps = (_at(loss, weights, along, step) - _at(loss, weights, along, -step)) / (2 * step)
        if abs(by_graph - by_steps) <= AGREE * max(abs(by_steps), abs(by_graph)):
            break
    else:
        raise UserError(
            f"{name} loses a part of its gradient: along a random direction it is {by_graph:.4g}, "
            f"and finite differences give {by_steps:.4g}; a loss on its maps would train something "
            "else; use an explainer that keeps the whole graph, such as gradcam"
        )


def _at(loss: Callable[[], float], weights: list[Tensor], along: list[Tensor], by: float) -> float:
    """The loss so far along the direction."""
    kept = [p.detach().clone() for p in weights]
    with torch.no_grad():
        for p, v in zip(weights, along, strict=True):
            p.add_(v, alpha=by)
    value = loss()
    with torch.no_grad():
        for p, before in zip(weights, kept, strict=True):
            p.copy_(before)
    return value
