"""The derivative of a class score with respect to images or a layer: what most explainers rest on.

All of it is `torch.autograd.grad`, inside the graph while gradients are enabled, so that a loss on
the result trains. Nothing is written to ``.grad``, no mode changes, and hooks live for one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from rightreasons.errors import UserError, why
from rightreasons.nets.base import INPUT, Net, chunk
from rightreasons.types import Out

PIXELS = 64 * 96**2  # that `mean_slope` holds in one graph: 576 images of 32 px, 11 of 224
Gradients = tuple[Tensor | None, ...]
Rule = Callable[[Any, Any], Gradients]
Point = Callable[[Tensor, Tensor], Tensor]
"""(P,) numbers of points and (P,) rows of the batch -> (P,3,H,W) images"""


def explained(net: Net, at: Tensor | Out, *taps: str) -> Out:
    """The pass to explain: a given one, or one of these images by running statistics."""
    if net.classes == 0:
        raise UserError(
            f"{net.name} has no classes yet; call net.grow(classes), or keep those of a trained "
            "classifier: rr.net(module, keep_head=True)"
        )
    if isinstance(at, Out):
        return _tapped(at, *taps)
    if not all(p.requires_grad for p in net.parameters()):
        taps = (INPUT, *taps)  # before a frozen layer no weight would start the graph
    with net.frozen_statistics(), torch.enable_grad():
        return net(at, taps=taps)


def images_of(at: Tensor | Out) -> Tensor:
    """The images alone, for passes of the explainer's own."""
    return (at if isinstance(at, Tensor) else _tapped(at, INPUT).maps[INPUT]).detach()


def _tapped(out: Out, *taps: str) -> Out:
    for tap in taps:
        if tap not in out.maps:
            raise UserError(f"the pass lacks the tap {tap!r}; call net(x, taps=({tap!r},))")
    return out


def slope(net: Net, out: Out, y: Tensor, tap: str = INPUT, rule: Rule | None = None) -> Tensor:
    """``d y_c / d tap`` of each image's class ``y``, (B,K,u,v).

    The scores are added up before they are differentiated: images do not interact. ``rule`` takes
    the place of ReLU's own derivative.
    """
    whole, chosen = out.cut or (out.maps, None)
    if not out.logits.requires_grad or not whole[tap].requires_grad:
        raise RuntimeError(
            "a forward pass without a graph cannot be explained; enable gradients for it"
        )
    own = torch.zeros_like(out.logits).scatter(1, y[:, None], 1.0)
    root = out.logits.grad_fn
    # the same forms with gradients and without: a map equals the stored one to the last bit
    with relus_by(rule, root, net.name) if rule else nullcontext(), short_forms(root):
        try:
            (found,) = torch.autograd.grad(
                out.logits,
                whole[tap],
                own,
                create_graph=torch.is_grad_enabled(),
                retain_graph=True,
                allow_unused=True,
            )
        except NotImplementedError as error:
            raise _no_derivative(net, tap, why(error)) from error
    if found is None:
        raise _no_derivative(net, tap, "a part of the net cuts the graph")
    return (found if chosen is None else found[chosen]).to(out.maps[tap].dtype)


def _no_derivative(net: Net, tap: str, why: str) -> UserError:
    place = "the images" if tap == INPUT else f"layer {net.path(tap)!r}"
    return UserError(
        f"the scores of {net.name} cannot be differentiated with respect to {place} ({why}); "
        "choose a layer behind the part that has no derivative, or replace that part"
    )


# --- ReLU by another rule ------------------------------------------------------------------------


def guided_rule(into: Any, out_of: Any) -> Gradients:
    """Springenberg et al. 2015: pass what is positive where the ReLU was open."""
    return (into[0].relu(),)


def deconvnet_rule(into: Any, out_of: Any) -> Gradients:
    """Zeiler & Fergus 2014: pass what is positive, open or not."""
    return (out_of[0].relu(),)


@contextmanager
def relus_by(rule: Rule, root: Node | None, name: str) -> Iterator[None]:
    """Inside, every ReLU of this graph has another derivative; ReLU6 counts as one.

    The rule sits on the nodes of the graph, not on modules: a ReLU that is a function, or a module
    that is called twice, is found; other graphs of the same net keep their derivatives.
    """
    nodes = [node for node in _nodes(root) if _is_relu(node)]
    if not nodes:
        raise UserError(
            f"guided and deconvnet change the derivative of ReLU, and {name} has no ReLU; "
            "use backprop"
        )
    with _hooked((node, rule) for node in nodes):
        yield


@contextmanager
def _hooked(rules: Iterable[tuple[Node, Rule]]) -> Iterator[None]:
    handles = [node.register_hook(rule) for node, rule in rules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _nodes(root: Node | None) -> Iterator[Node]:
    seen, ahead = set(), [root]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in seen:
            seen.add(node)
            ahead += [before for before, _ in node.next_functions]
            yield node


def _is_relu(node: Node) -> bool:
    name = node.name()
    clipped = name == "HardtanhBackward0" and getattr(node, "_saved_min_val", None) == 0
    return name == "ReluBackward0" or clipped


# --- short forms of derivatives that will be differentiated ---------------------------------------


def short_forms(root: Node | None) -> AbstractContextManager[None]:
    """Inside, two kinds of layer have the same derivative in a form that is cheap to differentiate.

    torch differentiates the derivative of a grouped convolution group by group, hundreds of small
    convolutions for a depthwise layer, and that of BatchNorm by the formula of batch statistics.
    """
    rules = {"ConvolutionBackward0": _by_groups, "NativeBatchNormBackward0": _by_statistics}
    found = ((node, rules[node.name()]) for node in _nodes(root) if node.name() in rules)
    return _hooked((node, partial(rule, node)) for node, rule in found if _is_long(node))


def _is_long(node: Any) -> bool:
    if node.name() == "NativeBatchNormBackward0":
        return node._saved_training is False
    return node._saved_groups > 1 and not node._saved_transposed


def _by_groups(node: Any, into: Gradients, out_of: Any) -> Gradients:
    """A convolution's derivative at its input is the transposed convolution, of all groups."""
    if into[0] is None:
        return into
    weight = node._saved_weight
    step, pad, apart = (
        tuple(given) * (weight.dim() - 2 if len(given) == 1 else 1)  # one number for all sides
        for given in (node._saved_stride, node._saved_padding, node._saved_dilation)
    )
    sizes = zip(into[0].shape[2:], out_of[0].shape[2:], weight.shape[2:], strict=True)
    rest = [  # of the input, where the stride does not fill it
        whole - ((cells - 1) * step[d] - 2 * pad[d] + apart[d] * (kernel - 1) + 1)
        for d, (whole, cells, kernel) in enumerate(sizes)
    ]
    short = torch.convolution(
        out_of[0], weight, None, step, pad, apart, True, rest, node._saved_groups
    )
    return (short, *into[1:])


def _by_statistics(node: Any, into: Gradients, out_of: Any) -> Gradients:
    """BatchNorm by running statistics multiplies each channel by a number."""
    if into[0] is None:
        return into
    factor = (node._saved_running_var + node._saved_eps).rsqrt()
    if node._saved_weight is not None:
        factor = factor * node._saved_weight
    short = out_of[0] * factor.view(1, -1, *[1] * (out_of[0].dim() - 2))
    return (short.to(into[0].dtype), *into[1:])


# --- the mean over points ------------------------------------------------------------------------


def mean_slope(net: Net, y: Tensor, like: Tensor, weights: Sequence[float], point: Point) -> Tensor:
    """``sum_i w_i d y_c / d x`` at points i around or before each image, (B,3,H,W) as ``like``.

    The points join the batch and are explained some at a time. The graphs of ``PIXELS`` are kept;
    of more points each part is computed again when its gradient is needed, so that memory does not
    grow with their number.
    """
    rows, points, pixels = len(y), len(weights), like.shape[2] * like.shape[3]
    size = min(chunk(like.shape[3], like.device), max(1, PIXELS // pixels))
    pairs = torch.split(torch.arange(points * rows, device=y.device), size)
    weight = torch.tensor(weights, dtype=like.dtype, device=like.device)

    def part(pair: Tensor) -> Tensor:
        number, row = pair // rows, pair % rows
        with torch.no_grad():
            x = point(number, row)
        found = slope(net, explained(net, x, INPUT), y[row])
        weighted = weight[number, None, None, None] * found
        return torch.zeros_like(like).index_add(0, row, weighted)

    if points * rows * pixels <= PIXELS:
        return torch.stack([part(pair) for pair in pairs]).sum(0)
    parameters = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros_like(like)
    for pair in pairs:
        again: Tensor = _Again.apply(part, pair, *parameters)  # type: ignore[no-untyped-call]
        total = total + again
    return total


class _Again(torch.autograd.Function):
    """A function of the parameters that keeps no graph and runs again for its gradient."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[Tensor], Tensor], pair: Tensor, *held: Tensor) -> Tensor:
        ctx.call, ctx.pair, ctx.held = call, pair, held
        return call(pair)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            value = (ctx.call(ctx.pair) * weight).sum()
            found = torch.autograd.grad(value, ctx.held, allow_unused=True)
        return (None, None, *found)
