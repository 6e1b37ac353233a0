"""Networks: by name, or a user's own module."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from rightreasons.errors import UserError, unknown
from rightreasons.nets.net import Net, out_of_place
from rightreasons.nets.small import SMALL, build_small
from rightreasons.nets.zoo import ZOO, build_zoo

__all__ = ["NETS", "Net", "net"]

NETS = (*SMALL, *ZOO)


def net(
    module: str | nn.Module,
    *,
    target: str | None = None,
    head: str | None = None,
    size: int = 32,
    weights: str | None = None,
) -> Net:
    """A `Net` by name, or around your own classifier.

    Your own module keeps its weights, apart from its head, which starts empty and grows with the
    classes. ``head`` is the name of its last linear layer (found if it is the only one that gives
    the logits), ``target`` the layer that Grad-CAM explains (default: the last spatial layer),
    ``size`` the side of the images that it takes. ``weights`` is a torchvision file for a net by
    name.

    >>> net("resnet8").pooled_linear
    True
    """
    if isinstance(module, str):
        if module not in NETS:
            raise unknown("net", module, NETS)
        if module in SMALL and weights is not None:
            raise UserError(
                f"there are no weights for {module}; weights= goes with {', '.join(ZOO)}"
            )
        built = build_small(module) if module in SMALL else build_zoo(module, weights)
    elif isinstance(module, nn.Module):
        built = _wrap(module, head, size)
    else:
        raise UserError(
            f"net is a {type(module).__name__}, expected a name or an nn.Module; "
            f"names: {', '.join(NETS)}"
        )
    return built.retarget(target)


def _wrap(module: nn.Module, head: str | None, size: int) -> Net:
    """Find head, last spatial layer and pooling by watching one forward pass."""
    module = out_of_place(copy.deepcopy(module))  # the caller's own keeps its head
    calls: list[tuple[str, Tensor]] = []
    linears: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for name, part in module.named_modules():

        def watch(m: nn.Module, args: tuple[Tensor, ...], output: object, name: str = name) -> None:
            if isinstance(output, Tensor):
                if isinstance(m, nn.Linear):
                    linears[name] = (args[0], output)
                elif output.ndim == 4 and name:
                    calls.append((name, output))

        handles.append(part.register_forward_hook(watch))
    training = module.training
    module.eval()
    try:
        device = next(module.parameters()).device
        probe = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
        with torch.no_grad():
            logits = module(probe)
    except RuntimeError as error:
        raise UserError(
            f"the module refuses a (2,3,{size},{size}) image batch ({error}); pass size= the side "
            "of the images that it takes"
        ) from error
    finally:
        module.train(training)
        for handle in handles:
            handle.remove()
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise UserError("the module does not return logits of shape (B,C); wrap it so that it does")
    if head is None:
        last = [name for name, (_, output) in linears.items() if output is logits]
        if not last:
            raise UserError("no linear layer gives the logits; pass head= the name of that layer")
        head = last[-1]
    elif head not in linears:
        raise unknown("head", head, list(linears))
    if not calls:
        raise UserError(
            "no layer gives maps of shape (B,K,u,v); Grad-CAM needs a convolutional net"
        )
    area = max(v.shape[2] * v.shape[3] for _, v in calls[-3:])
    z = linears[head][0]
    pooled = [
        name
        for name, v in calls
        if v.shape[2] * v.shape[3] > 1
        and v.shape[:2] == z.shape[:2]
        and torch.allclose(v.mean((2, 3)), z, atol=1e-5)
    ]
    spatial = [name for name, v in calls if v.shape[2] * v.shape[3] >= max(area, 2)]
    last_block = (pooled or spatial or [calls[-1][0]])[-1]  # a container is called after its parts
    return Net(module, head, {"last_block": last_block, "paper": last_block}, bool(pooled))
