"""Explainers: differentiable saliency maps.

An explainer is a function ``(net, x or out, y) -> maps (B,u,v)``. It leaves no hook behind, changes
no mode and touches no ``.grad``. Given images it does its own forward pass, by running statistics;
given an `Out` it explains that pass and shares its graph.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.nets.net import Net
from rightreasons.types import Out

NOT_POOLED = (
    "evidence needs global average pooling and one linear head, and {} has another end; use rrr, "
    "or a net such as resnet8"
)


class Explainer(Protocol):
    def __call__(self, net: Net, at: Tensor | Out, y: Tensor, /, *, target: str) -> Tensor: ...


def gradcam(
    net: Net,
    at: Tensor | Out,
    y: Tensor,
    *,
    target: str = "last_block",
    signed: bool = False,
    detach_weights: bool = False,
    closed: bool | None = None,
) -> Tensor:
    """Grad-CAM (Selvaraju et al. 2017; eq. 1 of the paper) of class ``y``.

    ``alpha_k = mean_ij d y_c / d A_k(i,j)``, map ``ReLU(sum_k alpha_k A_k)``, without the ReLU if
    ``signed``. The derivative is taken from the class score to the tap only and stays in the graph,
    so that a loss on the map reaches the head through ``alpha`` and the body through ``A``;
    ``detach_weights`` cuts the first path. Where the closed form holds it is used, unless
    ``closed=False``.
    """
    if isinstance(at, Tensor):
        with net.frozen_statistics():
            at = net(at, taps=(target,))
    activation = at.maps[target]  # (B,K,u,v)
    if closed_form(net, target) if closed is None else closed:
        # global average pooling and one linear layer: d y_c / d A_k(i,j) = w_ck / (u v)
        alpha = net.head.weight[y] / (activation.shape[2] * activation.shape[3])  # (B,K)
    else:
        if not at.logits.requires_grad or not activation.requires_grad:
            raise RuntimeError(
                "Grad-CAM was asked of a forward pass without a graph; enable gradients for it"
            )
        score = at.logits.gather(1, y[:, None]).sum()  # samples do not interact
        maps, chosen = at.cut or (at.maps, slice(None))
        (slope,) = torch.autograd.grad(
            score, maps[target], create_graph=torch.is_grad_enabled(), retain_graph=True
        )
        alpha = slope[chosen].mean((2, 3))
    if detach_weights:
        alpha = alpha.detach()
    raw = torch.einsum("bk,bkuv->buv", alpha, activation)
    return raw if signed else raw.relu()


def closed_form(net: Net, target: str) -> bool:
    """Is the tap what a pooled linear head pools, so that Grad-CAM needs no derivative?"""
    return net.pooled_linear and net.path(target) == net.path("last_block")


def evidence(
    net: Net, at: Tensor | Out, *, classes: int | None = None, bias: bool = True
) -> Tensor:
    """Signed evidence maps of all classes: ``E_c(i,j) = b_c + sum_k w_ck A_k(i,j)``, (B,C,u,v).

    Their mean over the cells is the logit. Needs a pooled linear head.
    """
    if not net.pooled_linear:
        raise UserError(NOT_POOLED.format(net.name))
    if isinstance(at, Tensor):
        with net.frozen_statistics():
            at = net(at, taps=("last_block",))
    weight = net.head.weight[:classes]  # (C,K)
    maps = torch.einsum("ck,bkuv->bcuv", weight, at.maps["last_block"])
    if bias and net.head.bias is not None:
        maps = maps + net.head.bias[:classes, None, None]
    return maps


EXPLAINERS = {"gradcam": gradcam}
