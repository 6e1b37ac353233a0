"""The diagonal Fisher information: the squared gradients of single images, in three ways.

Layer by layer on a CPU, where the net is made of layers that allow it: scores and the gradients of
activations are those of the whole batch, and only the weights' own gradients are of single images.
Otherwise by `vmap`, or image by image where the net is large and the processor is a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from rightreasons.distributed import group, total
from rightreasons.nets.base import Net
from rightreasons.types import Batch

Weights = dict[str, Tensor]
Layers = dict[str, nn.Module]
BYTES = 2**28  # of the gradients of single images at a time
PIXELS = 2**15  # of the images that go through layer by layer: what they leave stays in the cache
LARGE = 2**24  # bytes of weights, beyond which a CPU gains nothing from several images by vmap


def fisher(net: Net, batches: Iterable[Batch], sample: torch.Generator | None = None) -> Weights:
    """The diagonal Fisher information, mean over images; the net's mode is the caller's.

    The square is taken of each image's gradient: that of a batch's mean gradient is another, and
    far smaller, number.
    """
    weights = {name: p.detach() for name, p in net.module.named_parameters()}
    on_cpu = all(w.device.type == "cpu" for w in weights.values())
    large = on_cpu and sum(w.nbytes for w in weights.values()) > LARGE
    layers = simple_layers(net) if on_cpu else None
    squares = {name: torch.zeros_like(w) for name, w in weights.items()}
    count, tried = 0, False
    for number, batch in enumerate(batches):
        y = batch.y
        if sample is not None:
            with torch.no_grad():
                p = net(batch.x).logits.softmax(1).cpu()
            y = torch.multinomial(p, 1, generator=sample)[:, 0].to(batch.y.device)
        count += len(y)
        if number % group().size != group().rank:
            continue  # another process has this one
        if layers is not None and not tried:
            layers, tried = layers if fit(net, layers, weights, batch.x[:1], y[:1]) else None, True
        if layers is not None:
            chunk = max(1, PIXELS // batch.x[0, 0].numel())
            for x_, y_ in zip(torch.split(batch.x, chunk), torch.split(y, chunk), strict=True):
                add_by_layer(squares, net, layers, x_, y_)
        else:
            add = add_one_by_one if large else add_together
            add(squares, net, weights, batch.x, y)
    return {name: value / count for name, value in total(squares).items()}


# --- layer by layer ------------------------------------------------------------------------------


def simple_layers(net: Net) -> Layers | None:
    """The layers that hold all weights, if the gradients of single images can be told for each."""
    found = {
        name: part
        for name, part in net.module.named_modules()
        if part._parameters and _is_simple(part)
    }
    held = [f"{name}.{own}" for name, part in found.items() for own, _ in part.named_parameters()]
    wanted = [name for name, _ in net.module.named_parameters()]
    return found if held and sorted(held) == sorted(wanted) else None


def _is_simple(part: nn.Module) -> bool:
    if not all(p.requires_grad for p in part.parameters()):
        return False
    if type(part) is nn.Conv2d:
        return part.padding_mode == "zeros" and not isinstance(part.padding, str)
    if type(part) is nn.BatchNorm2d:  # by a batch's statistics, every image is part of the others
        return part.affine and part.track_running_stats and not part.training
    return type(part) is nn.Linear


def fit(net: Net, layers: Layers, weights: Weights, x: Tensor, y: Tensor) -> bool:
    """Is each layer used once, and are its weights used nowhere else? Tried on one image."""
    literal, found = ({n: torch.zeros_like(w) for n, w in weights.items()} for _ in "ab")
    if not add_by_layer(found, net, layers, x, y):
        return False
    add_one_by_one(literal, net, weights, x, y)
    return all(
        (found[n] - square).abs().max() <= 1e-3 * square.max() for n, square in literal.items()
    )


@torch.no_grad()
def add_by_layer(squares: Weights, net: Net, layers: Layers, x: Tensor, y: Tensor) -> bool:
    """Whether it could be done."""
    passed: list[tuple[str, Tensor, Tensor]] = []  # name, what came in, what went out
    hooks = [
        part.register_forward_hook(
            lambda _, given, out, name=name: passed.append((name, given[0].detach(), out))
        )
        for name, part in layers.items()
    ]
    laid = x.contiguous(memory_format=torch.channels_last) if net.channels_last else x
    try:
        with torch.enable_grad():
            loss = F.cross_entropy(net.module(laid), y, reduction="sum")
    finally:
        for hook in hooks:
            hook.remove()
    if sorted(name for name, _, _ in passed) != sorted(layers):
        return False
    slopes = torch.autograd.grad(loss, [out for _, _, out in passed])
    for (name, given, _), slope in zip(passed, slopes, strict=True):
        part = layers[name]
        if isinstance(part, nn.Conv2d):
            _add_convolution(squares[f"{name}.weight"], part, given, slope)
            bias = None if part.bias is None else _over_cells(slope)
        elif isinstance(part, nn.BatchNorm2d):
            mean, var = part.running_mean, part.running_var
            assert mean is not None and var is not None
            bias = _over_cells(slope)
            own = (_over_cells(slope * given) - mean * bias) * (var + part.eps).rsqrt()
            squares[f"{name}.weight"] += own.square().sum(0)
        elif given.ndim == 2:  # an outer product, whose square is that of the squares
            squares[f"{name}.weight"] += slope.square().T @ given.square()
            bias = slope
        else:
            return False
        if bias is not None and part.bias is not None:
            squares[f"{name}.bias"] += bias.square().sum(0)
    return True


def _over_cells(maps: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,C); channels last are summed as they lie."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).sum(1)


def _add_convolution(square: Tensor, part: nn.Conv2d, given: Tensor, slope: Tensor) -> None:
    """Image by image: one grouped convolution for all of them is slower on a CPU."""
    for x, g in zip(torch.split(given, 1), torch.split(slope, 1), strict=True):
        _, own, _ = torch.ops.aten.convolution_backward(
            g, x, part.weight, None, part.stride, part.padding, part.dilation, False, (0, 0),
            part.groups, (False, True, False),
        )  # fmt: skip
        square.addcmul_(own, own)


# --- any net -------------------------------------------------------------------------------------


def add_together(squares: Weights, net: Net, weights: Weights, x: Tensor, y: Tensor) -> None:
    """The gradients of many images in one go."""
    buffers = dict(net.module.named_buffers())

    def surprise(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        logits = functional_call(net.module, (weights, buffers), (x[None],))
        return F.cross_entropy(logits, y[None])

    # one grouped convolution of all images, which channels_last weights make slow
    weights = {name: w.contiguous() for name, w in weights.items()}
    chunk = max(1, BYTES // sum(w.nbytes for w in weights.values()))
    each = vmap(grad(surprise), in_dims=(None, 0, 0))
    for x_, y_ in zip(torch.split(x, chunk), torch.split(y, chunk), strict=True):
        for name, slope in each(weights, x_, y_).items():
            squares[name] += slope.square().sum(0)


@torch.enable_grad()
def add_one_by_one(squares: Weights, net: Net, weights: Weights, x: Tensor, y: Tensor) -> None:
    """One image at a time, which is quicker where a single one fills the processor."""
    leaves = {name: w.requires_grad_() for name, w in weights.items()}
    for x_, y_ in zip(torch.split(x, 1), torch.split(y, 1), strict=True):
        laid = x_.contiguous(memory_format=torch.channels_last) if net.channels_last else x_
        loss = F.cross_entropy(functional_call(net.module, leaves, (laid,)), y_)
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for square, slope in zip(squares.values(), slopes, strict=True):
            square.addcmul_(slope, slope)
