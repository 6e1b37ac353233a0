"""Finite differences: is the gradient of a map the gradient that autograd gives?"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.explainers import Explainer
from rightreasons.nets.net import Net

STEP = 1e-6  # in float64, where the weights have length one
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
    weights = [p for p in net.parameters() if p.requires_grad]
    along = []  # as long as the weights themselves
    for p in weights:
        v = torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
        along.append(v * p.detach().norm() / v.norm().clamp_min(1e-12))
    try:
        found = torch.autograd.grad((mix * maps).sum(), weights, allow_unused=True)
    except (RuntimeError, AttributeError, TypeError) as error:  # hooks of others raise what they do
        why = str(error).splitlines()[0]
        raise UserError(
            f"the maps of {name} on {net.name} cannot be differentiated ({why}); use an explainer "
            "that can, such as gradcam"
        ) from error
    by_graph = sum(float((g * v).sum()) for g, v in zip(found, along, strict=True) if g is not None)
    sides = []
    for sign in (STEP, -2 * STEP, STEP):
        with torch.no_grad():
            for p, v in zip(weights, along, strict=True):
                p.add_(v, alpha=sign)
            sides.append(float((mix * explain(net, x, y)).sum()))
    by_steps = (sides[0] - sides[1]) / (2 * STEP)
    if abs(by_graph - by_steps) > AGREE * max(abs(by_steps), abs(by_graph)):
        raise UserError(
            f"{name} loses a part of its gradient: along a random direction it is {by_graph:.4g}, "
            f"and finite differences give {by_steps:.4g}; a loss on its maps would train something "
            "else; use an explainer that keeps the whole graph, such as gradcam"
        )
