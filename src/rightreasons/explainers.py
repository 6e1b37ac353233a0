"""Explainers: differentiable saliency maps.

An explainer is a function ``(net, x or out, y) -> maps (B,u,v)``. It leaves no hook behind, changes
no mode and touches no ``.grad``. Given images it does its own forward pass, by running statistics;
given an `Out` it explains that pass and shares its graph. While gradients are enabled the map is in
the graph of the net's weights; under ``torch.no_grad()`` it is not, and costs less.

Grad-CAM has the size of its layer, all others that of the image. Their three channels become one
map: gradients by magnitude (``channels``), attributions by their sum; ``signed`` is the plain sum.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rightreasons.errors import UserError, unknown
from rightreasons.nets.base import INPUT, Net
from rightreasons.pointing import enlarge
from rightreasons.randomness import generator
from rightreasons.registry import OTHER_EXPLAINERS, find
from rightreasons.slopes import (
    deconvnet_rule,
    explained,
    guided_rule,
    images_of,
    mean_slope,
    slope,
)
from rightreasons.types import Out

NOT_POOLED = (
    "evidence needs global average pooling and one linear head, and {} has another end; use rrr, "
    "or a net such as resnet8"
)
CHANNELS = ("max", "sum", "mean", "l2")
OWN_PASSES = ("smoothgrad", "integrated_gradients")  # of a pass they take the images only
CAPTUM = "captum:"
Explainer = Callable[..., Tensor]


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
    out = explained(net, at, target)
    activation = out.maps[target]  # (B,K,u,v)
    if closed_form(net, target) if closed is None else closed:
        # global average pooling and one linear layer: d y_c / d A_k(i,j) = w_ck / (u v)
        alpha = net.head.weight[y] / (activation.shape[2] * activation.shape[3])  # (B,K)
    else:
        alpha = slope(net, out, y, target).mean((2, 3))
    if detach_weights:
        alpha = alpha.detach()
    raw = torch.einsum("bk,bkuv->buv", alpha, activation)
    return raw if signed else raw.relu()


def closed_form(net: Net, target: str) -> bool:
    """Is the tap what a pooled linear head pools, so that Grad-CAM needs no derivative?"""
    return net.pooled_linear and net.path(target) == net.path("last_block")


def backprop(
    net: Net, at: Tensor | Out, y: Tensor, *, channels: str = "max", signed: bool = False
) -> Tensor:
    """The gradient at the image (Simonyan et al. 2014): ``max over channels of |d y_c / d x|``."""
    return magnitude(slope(net, explained(net, at, INPUT), y), channels, signed)


def guided(
    net: Net, at: Tensor | Out, y: Tensor, *, channels: str = "max", signed: bool = False
) -> Tensor:
    """Guided backprop (Springenberg et al. 2015): ReLUs pass positive gradients where open."""
    return magnitude(slope(net, explained(net, at, INPUT), y, rule=guided_rule), channels, signed)


def deconvnet(
    net: Net, at: Tensor | Out, y: Tensor, *, channels: str = "max", signed: bool = False
) -> Tensor:
    """Deconvolution (Zeiler & Fergus 2014): ReLUs pass positive gradients, open or not."""
    return magnitude(
        slope(net, explained(net, at, INPUT), y, rule=deconvnet_rule), channels, signed
    )


def guided_gradcam(
    net: Net,
    at: Tensor | Out,
    y: Tensor,
    *,
    target: str = "last_block",
    channels: str = "max",
    signed: bool = False,
) -> Tensor:
    """Guided backprop times the enlarged Grad-CAM (Selvaraju et al. 2017)."""
    out = explained(net, at, INPUT, target)
    fine = slope(net, out, y, rule=guided_rule)  # (B,3,H,W)
    coarse = enlarge(gradcam(net, out, y, target=target), fine.shape[2:])
    return magnitude(fine * coarse[:, None], channels, signed)


def gradient_x_input(net: Net, at: Tensor | Out, y: Tensor, *, signed: bool = False) -> Tensor:
    """``ReLU(sum over channels of x d y_c / d x)`` (Shrikumar et al. 2016); x is normalised."""
    out = explained(net, at, INPUT)
    return attribution(slope(net, out, y) * out.maps[INPUT], signed)


def smoothgrad(
    net: Net,
    at: Tensor | Out,
    y: Tensor,
    *,
    samples: int = 40,
    noise: float = 0.2,
    keys: Tensor | None = None,
    channels: str = "max",
    signed: bool = False,
) -> Tensor:
    """The gradient averaged over noisy copies of the image (Smilkov et al. 2017).

    The noise has ``noise`` times the image's own range as its deviation. It is drawn by ``keys``,
    one number an image, by default the image's content: the same image gets the same noise in any
    batch. Signed gradients are averaged first and their magnitude is taken then. The passes are the
    explainer's own, by running statistics.
    """
    x = images_of(at)
    numbers = (content_keys(x) if keys is None else keys).tolist()
    spread = noise * (x.flatten(1).amax(1) - x.flatten(1).amin(1))  # (B,)

    def point(number: Tensor, row: Tensor) -> Tensor:
        pairs = zip(number.tolist(), row.tolist(), strict=True)
        draws = (generator(numbers[place], "noise", copy) for copy, place in pairs)
        drawn = torch.stack([torch.randn(x.shape[1:], generator=draw) for draw in draws])
        return x[row] + spread[row, None, None, None] * drawn.to(x)

    total = mean_slope(net, y, x, [1 / samples] * samples, point)
    return magnitude(total, channels, signed)


def integrated_gradients(
    net: Net, at: Tensor | Out, y: Tensor, *, samples: int = 50, signed: bool = False
) -> Tensor:
    """``x`` times the gradient averaged on the way from the mean image (Sundararajan et al. 2017).

    The mean image is zero once normalised. The integral is taken at ``samples`` points by the rule
    of Gauss and Legendre; the sum of the signed map is then the score minus that of the mean image.
    The passes are the explainer's own, by running statistics.
    """
    x = images_of(at)
    places, weights = np.polynomial.legendre.leggauss(samples)  # on -1..1
    share = torch.tensor((places + 1) / 2, dtype=x.dtype, device=x.device)

    def point(number: Tensor, row: Tensor) -> Tensor:
        return share[number, None, None, None] * x[row]

    return attribution(mean_slope(net, y, x, (weights / 2).tolist(), point) * x, signed)


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


EXPLAINERS: dict[str, Explainer] = {
    "gradcam": gradcam,
    "backprop": backprop,
    "smoothgrad": smoothgrad,
    "guided": guided,
    "deconvnet": deconvnet,
    "gradient_x_input": gradient_x_input,
    "integrated_gradients": integrated_gradients,
    "guided_gradcam": guided_gradcam,
}


def explainer_names() -> list[str]:
    """Ours, and those that other packages have registered."""
    return [*EXPLAINERS, *OTHER_EXPLAINERS]


def find_explainer(name: str) -> Explainer:
    """By its name; ``captum:CLASS`` is an attribution of Captum."""
    if name in EXPLAINERS:
        return EXPLAINERS[name]
    if name.startswith(CAPTUM):
        from rightreasons.integrations.captum import named

        return named(name.removeprefix(CAPTUM))
    if name not in OTHER_EXPLAINERS:
        raise unknown("explainer", name, explainer_names())
    found: Explainer = find("explainer", OTHER_EXPLAINERS, name)
    return found


def has_own_passes(name: str) -> bool:
    """Does it take the images of a pass only, and run the net itself?"""
    return name in OWN_PASSES or bool(getattr(find_explainer(name), "own_passes", False))


def options_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given options that an explainer takes."""
    taken = inspect.signature(find_explainer(name)).parameters
    return {option: value for option, value in given.items() if option in taken}


def by_layer(name: str) -> bool:
    """Does its map depend on the layer that is looked at?"""
    return "target" in inspect.signature(find_explainer(name)).parameters


def taps_of(name: str, target: str) -> tuple[str, ...]:
    """What a pass must have tapped for an explainer to explain it."""
    layer = (target,) if by_layer(name) else ()
    return layer if name == "gradcam" else (INPUT, *layer)


# --- three channels to one map -------------------------------------------------------------------


def magnitude(values: Tensor, channels: str, signed: bool) -> Tensor:
    """(B,3,H,W) gradients -> (B,H,W): how strong, whatever the sign; or their plain sum."""
    if channels not in CHANNELS:
        raise unknown("channels", channels, CHANNELS)
    if signed:
        return values.sum(1)
    if channels == "l2":
        square = values.square().sum(1)
        dead = square == 0  # the root's slope is infinite there
        return torch.where(dead, 0.0, torch.where(dead, 1.0, square).sqrt())
    size = values.abs()
    if channels == "max":
        return size.amax(1)
    return size.sum(1) if channels == "sum" else size.mean(1)


def attribution(values: Tensor, signed: bool) -> Tensor:
    """(B,3,H,W) shares of the score -> (B,H,W): what speaks for the class, or for and against."""
    total = values.sum(1)
    return total if signed else total.relu()


def content_keys(x: Tensor) -> Tensor:
    """(B,) a number of each image's content, for draws that belong to it."""
    rows = x.detach().cpu().contiguous().view(torch.uint8).numpy()  # numpy has no bfloat16
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    return torch.tensor([int.from_bytes(d, "little") >> 1 for d in digests])
