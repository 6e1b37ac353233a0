"""The diagonal Fisher information: the squared gradients of single images, in three ways.

Layer by layer on a CPU, where the net is made of layers that allow it. Otherwise by `vmap`, or
image by image where the net is large and the processor is a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from rightreasons.distributed import group, total
from rightreasons.learners.by_layer import ByLayer, is_layered
from rightreasons.nets.base import Net
from rightreasons.types import Batch

Weights = dict[str, Tensor]
Add = Callable[[Weights, Tensor, Tensor], None]
BYTES = 2**28  # of the gradients of single images at a time
LARGE = 2**24  # bytes of weights, beyond which a CPU gains nothing from several images by vmap


def fisher(net: Net, batches: Iterable[Batch], sample: torch.Generator | None = None) -> Weights:
    """The diagonal Fisher information, mean over images; the net's mode is the caller's.

    The square is taken of each image's gradient: that of a batch's mean gradient is another, and
    far smaller, number.
    """
    weights = {name: p.detach() for name, p in net.module.named_parameters()}
    squares = {name: torch.zeros_like(w) for name, w in weights.items()}
    add, count = None, 0
    for number, batch in enumerate(batches):
        y = batch.y
        if sample is not None:
            with torch.no_grad():
                p = net(batch.x).logits.softmax(1).cpu()
            y = torch.multinomial(p, 1, generator=sample)[:, 0].to(batch.y.device)
        count += len(y)
        if number % group().size == group().rank:  # else another process has this one
            add = add or way(net, weights, batch.x[:1], y[:1])
            add(squares, batch.x, y)
    return {name: value / count for name, value in total(squares).items()}


def way(net: Net, weights: Weights, x: Tensor, y: Tensor) -> Add:
    """The quickest that is right; layers are compared with the literal gradients of one image."""
    on_cpu = all(w.device.type == "cpu" for w in weights.values())
    large = on_cpu and sum(w.nbytes for w in weights.values()) > LARGE
    if on_cpu and is_layered(net):
        layers = ByLayer(net, x)
        if layers.once and equal(layers.add, partial(add_one_by_one, net, weights), weights, x, y):
            return layers.add
    return partial(add_one_by_one if large else add_together, net, weights)


def equal(one: Add, other: Add, weights: Weights, x: Tensor, y: Tensor) -> bool:
    a, b = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    one(a, x, y)
    other(b, x, y)
    return all((a[name] - b[name]).abs().max() <= 1e-3 * b[name].max() for name in weights)


def add_together(net: Net, weights: Weights, squares: Weights, x: Tensor, y: Tensor) -> None:
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
def add_one_by_one(net: Net, weights: Weights, squares: Weights, x: Tensor, y: Tensor) -> None:
    """One image at a time, which is quicker where a single one fills the processor."""
    leaves = {name: w.requires_grad_() for name, w in weights.items()}
    for x_, y_ in zip(torch.split(x, 1), torch.split(y, 1), strict=True):
        laid = x_.contiguous(memory_format=torch.channels_last) if net.channels_last else x_
        loss = F.cross_entropy(functional_call(net.module, leaves, (laid,)), y_)
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for square, slope in zip(squares.values(), slopes, strict=True):
            square.addcmul_(slope, slope)
