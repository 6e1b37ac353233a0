"""Networks: by name, or a user's own module."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rightreasons.errors import UserError, unknown, why
from rightreasons.nets.base import Net, check_logits, is_pointwise, out_of_place
from rightreasons.nets.small import SMALL, build_small, initialise
from rightreasons.nets.zoo import (
    ZOO,
    anew,
    build_zoo,
    draw_parts,
    load_weights,
    torchvision_model,
    torchvision_names,
)
from rightreasons.registry import OTHER_NETS, find

__all__ = ["NETS", "Net", "net"]

NETS = (*SMALL, *ZOO)
SIDES = {"inception_v3": 299}  # of the images that are shown to torchvision's nets; others: 224


def net(
    module: str | nn.Module,
    *,
    target: str | None = None,
    head: str | None = None,
    size: int = 32,
    weights: str | Path | None = None,
    flatten: int | None = None,
    keep_head: bool = False,
) -> Net:
    """A `Net` by name, or around your own classifier.

    A name is one of `rrr list`, or that of any torchvision classifier. ``weights`` is a file of
    torchvision's for it; ``flatten`` the side of the images, for the paper's authors' head on the
    flattened last map. Your own module keeps its weights, apart from its head, which starts empty
    and grows with the classes. ``head`` is the name of its last linear layer (found if it is the
    only one that gives the logits), ``target`` the layer that Grad-CAM explains (default: the
    paper's, or the last spatial layer), ``size`` the side of the images that it takes.
    ``keep_head`` keeps the head as it is: a trained classifier to explain, not to train further.

    >>> net("resnet8").pooled_linear
    True
    """
    if isinstance(module, str):
        if head is not None or keep_head:
            word = "keep_head=" if head is None else "head="
            raise UserError(f"{module} has its own head; {word} goes with a module of your own")
        built = _named(module, None if weights is None else str(weights), flatten)
    elif isinstance(module, nn.Module):
        if weights is not None or flatten is not None:
            raise UserError(
                "weights= and flatten= go with a net by name; load a module of your own yourself"
            )
        built = _wrap(copy.deepcopy(module), head, size)  # the caller's own keeps its head
        if keep_head:
            _keep_head(built, module.get_submodule(built.head_name))
    else:
        raise UserError(
            f"net is a {type(module).__name__}, expected a name or an nn.Module; "
            f"names: {', '.join(NETS)}"
        )
    if target is not None:
        _check_maps(built.retarget(target), _side(built.name, size, flatten))
    return built


def _side(name: str, size: int, flatten: int | None) -> int:
    """Of images that a net surely takes."""
    known = {**dict.fromkeys(SMALL, 32), **dict.fromkeys(ZOO, 224), **SIDES}
    return flatten or known.get(name, size)


@torch.no_grad()
def _check_maps(built: Net, side: int) -> None:
    """Refuse a target that gives no maps now, not when a run is under way."""
    trial = copy.deepcopy(built).eval()
    trial.grow(max(trial.classes, 1))
    device = next((p.device for p in trial.parameters()), None)
    trial(torch.zeros(1, 3, side, side, device=device), taps=("paper",))


def check_name(name: str) -> None:
    """Refuse a name that is neither ours, nor another package's, nor torchvision's."""
    if name in NETS or name in OTHER_NETS:
        return
    if name.replace("-", "_") not in torchvision_names():
        raise unknown("net", name, [*NETS, *OTHER_NETS, *torchvision_names()])


def _named(name: str, weights: str | None, flatten: int | None) -> Net:
    check_name(name)
    plain = {plan.model: known for known, plan in ZOO.items()}
    name = plain.get(name.replace("-", "_"), name)
    if name in SMALL and weights is not None:
        raise UserError(
            f"there are no weights for {name}; weights= goes with torchvision's nets: "
            f"{', '.join(ZOO)}, ..."
        )
    if name not in NETS and name in OTHER_NETS:
        return _foreign(name, weights, flatten)
    if name not in ZOO and flatten is not None:
        raise UserError(f"flatten= goes with {', '.join(ZOO)}, and {name} is none of them")
    if name in SMALL:
        return build_small(name)
    if name in ZOO:
        return build_zoo(name, weights, flatten)
    model = name.replace("-", "_")
    module = torchvision_model(model)
    built = _wrap(module, None, SIDES.get(model, 224), channels_last=True)
    if weights is None:
        built.initialise = initialise
    elif lacking := load_weights(built.module, Path(weights), built.head_name):
        built.initialise = partial(draw_parts, lacking)
    built.name, built.weights = name, weights
    return built


def _foreign(name: str, weights: str | None, flatten: int | None) -> Net:
    """A net of another package: its function gives a `Net`, or a module for 32 px images."""
    if weights is not None or flatten is not None:
        raise UserError(
            f"weights= and flatten= go with torchvision's nets, and {name} is another's"
        )
    made = anew(find("net", OTHER_NETS, name))
    if isinstance(made, nn.Module) and not isinstance(made, Net):
        made = _wrap(made, None, 32)
        made.initialise = initialise  # by the run's seed, not by whoever built it
    if not isinstance(made, Net):
        raise UserError(f"net {name!r} is a {type(made).__name__}, expected rr.net(module, ...)")
    made.name = name
    return made


@torch.no_grad()
def _keep_head(built: Net, own: nn.Module) -> None:
    """The rows of the module's own head, an nn.Linear or a 1x1 convolution, in the growing one."""
    rows = dict(own.named_parameters())
    built.resize(len(rows["weight"]))
    for name, value in rows.items():
        built.head.get_parameter(name).copy_(value.flatten(1) if value.ndim == 4 else value)


class Watched(NamedTuple):
    """What one forward pass called, in order."""

    maps: list[tuple[str, Tensor]]  # layers that gave (B,K,u,v), and what they gave
    linears: dict[str, tuple[Tensor, Tensor, int]]  # input, output, how many maps came before
    logits: Tensor


class Found(NamedTuple):
    """What a `Net` must know of a module."""

    head: str
    taps: dict[str, str]
    pooled_linear: bool


def _wrap(module: nn.Module, head: str | None, size: int, channels_last: bool = False) -> Net:
    device = next((p.device for p in module.parameters()), None)
    probe = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    training = module.training
    module.eval()
    try:
        return Net(module, *find_parts(module, head, probe), channels_last=channels_last)
    finally:
        module.train(training)


def find_parts(module: nn.Module, head: str | None, probe: Tensor, changed: bool = False) -> Found:
    """Find head, last spatial layer and pooling by watching one forward pass.

    ``changed``: what the head gives may be changed behind it, by a mask or a sigmoid.
    """
    seen = _watch(out_of_place(module), probe)
    if head is None:
        last = [
            name
            for name, (_, output, _) in seen.linears.items()
            if output is seen.logits or (changed and output.shape == seen.logits.shape)
        ]
        if not last:
            raise UserError("no linear layer gives the logits; pass head= the name of that layer")
        head = last[-1]
    elif head not in seen.linears:
        raise unknown("head", head, list(seen.linears))
    z, output, before = seen.linears[head]
    maps = seen.maps[:before]
    if not maps:
        raise UserError(
            "no layer gives maps of shape (B,K,u,v); Grad-CAM needs a convolutional net"
        )
    area = max(v.shape[2] * v.shape[3] for _, v in maps[-3:])
    pooled = [
        name
        for name, v in maps
        if (output is seen.logits or changed)
        and v.shape[2] * v.shape[3] > 1
        and v.shape[:2] == z.shape
        and torch.allclose(v.mean((2, 3)), z, rtol=0.0, atol=1e-5 * float(z.abs().max()))
    ]
    spatial = [name for name, v in maps if v.shape[2] * v.shape[3] >= max(area, 2)]
    last_block = (pooled or spatial or [maps[-1][0]])[-1]  # a container is called after its parts
    return Found(head, {"last_block": last_block, "paper": last_block}, bool(pooled))


def _shaken(module: nn.Module) -> dict[str, Tensor]:
    """Other weights and statistics: a fresh BatchNorm is no identity once it has trained."""
    by = torch.Generator().manual_seed(0)
    made = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        if value.is_floating_point():
            by_a_tenth = 0.1 * torch.rand(value.shape, generator=by).to(value)
            made[name] = value * (1 + by_a_tenth)
            if value.ndim < 2:  # biases and means that are zero; matrices would grow by layers
                made[name] += by_a_tenth
    return made


def _watch(module: nn.Module, probe: Tensor) -> Watched:
    maps: list[tuple[str, Tensor, int]] = []
    linears: dict[str, tuple[Tensor, Tensor, int]] = {}
    handles = []
    for name, part in module.named_modules():

        def watch(m: nn.Module, args: tuple[Tensor, ...], output: object, name: str = name) -> None:
            if isinstance(output, Tensor):
                if isinstance(m, nn.Linear) or is_pointwise(m):
                    linears[name] = (args[0], output, len(maps))
                if not isinstance(m, nn.Linear) and output.ndim == 4 and name:
                    maps.append((name, output, output._version))

        handles.append(part.register_forward_hook(watch))
    try:
        with torch.no_grad():
            logits = functional_call(module, _shaken(module), (probe,))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        shape = ",".join(map(str, probe.shape))
        raise UserError(
            f"the module refuses a ({shape}) image batch ({why(error)}); pass size= the "
            "side of the images that it takes"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    check_logits(logits, type(module).__name__)
    # what was written into afterwards cannot be tapped
    counts = [
        sum(v._version == version for _, v, version in maps[:n]) for n in range(len(maps) + 1)
    ]
    kept = [(name, v) for name, v, version in maps if v._version == version]
    return Watched(kept, {n: (z, o, counts[at]) for n, (z, o, at) in linears.items()}, logits)
