"""The squared gradients of single images, layer by layer.

Scores, and the gradients of what the layers put out, are those of a whole batch; only the weights'
own gradients are of single images. BatchNorm by its running statistics is a line, ``a z + b`` with
``a = gamma / sigma`` and ``b = beta - a mean``, which the convolution ``z = W x + c`` before it
takes in. With the gradients ``g`` of that line and ``G`` of ``a W``, a row of channels each,

    dL/dW = a G,    dL/dbeta = sum g,    dL/dgamma = (<W, G> + (c - mean) sum g) / sigma
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from rightreasons.nets.base import Net

Weights = dict[str, Tensor]
PIXELS = 2**15  # of the images that go through at a time: what they leave stays near


class Passed(NamedTuple):
    """What a layer was given and put out."""

    name: str
    given: Tensor
    out: Tensor


class ByLayer:
    """A net made of convolutions, BatchNorm and linear layers, tried on an image.

    ``once``: each was used once. Whether their weights are used elsewhere, it cannot tell.
    """

    def __init__(self, net: Net, x: Tensor) -> None:
        self.own = dict(net.module.named_modules())
        self.channels_last = net.channels_last
        self.module = deepcopy(net.module)
        self.layers = {n: part for n, part in self.module.named_modules() if part._parameters}
        with torch.no_grad():
            passed, _ = self._forward(x)
        ranks = [2 if isinstance(self.own[p.name], nn.Linear) else 4 for p in passed]
        each = sorted(p.name for p in passed) == sorted(self.layers)
        self.once = each and ranks == [p.given.ndim for p in passed]
        self.norms = self._take_in_norms(passed) if self.once else {}

    def _take_in_norms(self, passed: list[Passed]) -> dict[str, str]:
        """Convolution -> the BatchNorm that it has taken in."""
        made = {id(p.out): p.name for p in passed if isinstance(self.own[p.name], nn.Conv2d)}
        norms = [p for p in passed if isinstance(self.own[p.name], nn.BatchNorm2d)]
        pairs = {made[id(p.given)]: p.name for p in norms if id(p.given) in made}
        for conv, norm in pairs.items():
            self.layers[conv] = fuse_conv_bn_eval(self.layers[conv], self.layers.pop(norm))
            _put(self.module, conv, self.layers[conv])
            _put(self.module, norm, nn.Identity())
        return pairs

    def _forward(self, x: Tensor) -> tuple[list[Passed], Tensor]:
        passed: list[Passed] = []
        hooks = [
            part.register_forward_hook(
                lambda _, given, out, name=name: passed.append(Passed(name, given[0], out))
            )
            for name, part in self.layers.items()
        ]
        laid = x.contiguous(memory_format=torch.channels_last) if self.channels_last else x
        try:
            return passed, self.module(laid)
        finally:
            for hook in hooks:
                hook.remove()

    def add(self, squares: Weights, x: Tensor, y: Tensor) -> None:
        """Add the squared gradients of each image's cross entropy."""
        chunk = max(1, PIXELS // x[0, 0].numel())
        for x_, y_ in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
            with torch.enable_grad():
                passed, logits = self._forward(x_)
                loss = F.cross_entropy(logits, y_, reduction="sum")
            slopes = torch.autograd.grad(loss, [p.out for p in passed], materialize_grads=True)
            for (name, given, _), slope in zip(passed, slopes, strict=True):
                self._add_layer(squares, name, given.detach(), slope)

    @torch.no_grad()
    def _add_layer(self, squares: Weights, name: str, given: Tensor, slope: Tensor) -> None:
        own = self.own[name]
        if isinstance(own, nn.Linear):  # an outer product, whose square is that of the squares
            squares[f"{name}.weight"] += slope.square().T @ given.square()
            bias = slope
        elif isinstance(own, nn.BatchNorm2d):
            bias = _over_cells(slope)
            self._add_norm(squares, name, _over_cells(slope * given), bias)
        else:
            bias = self._add_convolution(squares, name, given, slope)
        if own.bias is not None:
            squares[f"{name}.bias"] += bias.square().sum(0)

    def _add_convolution(self, squares: Weights, name: str, given: Tensor, slope: Tensor) -> Tensor:
        """Image by image: one grouped convolution for all of them is slower on a CPU. The slope of
        its bias, (N,C)."""
        conv, norm = self.own[name], self.norms.get(name)
        assert isinstance(conv, nn.Conv2d)
        square, products = torch.zeros_like(conv.weight), []
        for x, g in zip(torch.split(given, 1), torch.split(slope, 1), strict=True):
            _, one, _ = torch.ops.aten.convolution_backward(
                g, x, conv.weight, None, conv.stride, conv.padding, conv.dilation, False, (0, 0),
                conv.groups, (False, True, False),
            )  # fmt: skip
            square.addcmul_(one, one)
            if norm is not None:
                products.append((conv.weight * one).sum((1, 2, 3)))
        bias = _over_cells(slope)
        if norm is not None:
            shift = 0 if conv.bias is None else conv.bias * bias
            self._add_norm(squares, norm, torch.stack(products) + shift, bias)
            squares[f"{norm}.bias"] += bias.square().sum(0)
            taken = self.own[norm]
            assert isinstance(taken, nn.BatchNorm2d)
            scale = taken.weight * _one_over_sigma(taken)
            square, bias = square * scale.square()[:, None, None, None], bias * scale
        squares[f"{name}.weight"] += square
        return bias

    def _add_norm(self, squares: Weights, name: str, products: Tensor, bias: Tensor) -> None:
        """From each image's ``sum g z`` and ``sum g``, (N,C)."""
        norm = self.own[name]
        assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None
        weight = (products - norm.running_mean * bias) * _one_over_sigma(norm)
        squares[f"{name}.weight"] += weight.square().sum(0)


def _put(module: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, part)


def is_layered(net: Net) -> bool:
    """Do layers hold all weights for which the gradients of single images can be told?"""
    parts = {name: part for name, part in net.module.named_modules() if part._parameters}
    held = [f"{name}.{own}" for name, part in parts.items() for own, _ in part.named_parameters()]
    wanted = [name for name, _ in net.module.named_parameters()]
    simple = all(_is_simple(part) for part in parts.values())
    return bool(parts) and simple and sorted(held) == sorted(wanted)


def _is_simple(part: nn.Module) -> bool:
    if not all(p.requires_grad for p in part.parameters()):
        return False
    if type(part) is nn.Conv2d:
        return part.padding_mode == "zeros" and not isinstance(part.padding, str)
    if type(part) is nn.BatchNorm2d:  # by a batch's statistics, every image is part of the others
        return part.affine and part.track_running_stats and not part.training
    return type(part) is nn.Linear


def _one_over_sigma(norm: nn.BatchNorm2d) -> Tensor:
    assert norm.running_var is not None
    return (norm.running_var + norm.eps).rsqrt()


def _over_cells(maps: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,C); channels last are summed as they lie."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).sum(1)
