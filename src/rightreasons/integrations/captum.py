"""Captum's attributions as explainers, if a loss on them can train.

    explain = explainer(LayerGradCam)
    maps = explain(net, x, y, target="layer4")      # as rr.gradcam(net, x, y, target="layer4")
    rr.RRR(explain="captum:LayerGradCam")           # the same by name, in a command too

By default Captum takes gradients without a graph of their own: maps still require a gradient, the
backward pass runs, and the second-order term is gone. Here every gradient is asked for with
``create_graph``; a method that loses it all the same is refused by its name.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rightreasons.errors import UserError, unknown, why
from rightreasons.explainers import attribution, magnitude
from rightreasons.nets.base import Net
from rightreasons.slopes import images_of
from rightreasons.types import Out

GRADIENTS = ("Saliency", "GuidedBackprop", "Deconvolution", "GuidedGradCam")
"""gradients, whose magnitude counts; all others are shares of the score and are added up"""


@dataclass
class CaptumExplainer:
    """An attribution of Captum, called as every explainer is: ``(net, x or out, y) -> (B,u,v)``."""

    kind: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    """words for its ``attribute``, such as n_steps"""

    own_passes = True

    @property
    def name(self) -> str:
        return str(self.kind.__name__)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"Captum's {self.name}."

    def __call__(
        self,
        net: Net,
        at: Tensor | Out,
        y: Tensor,
        *,
        target: str = "last_block",
        channels: str = "max",
        signed: bool = False,
    ) -> Tensor:
        trains = torch.is_grad_enabled()
        x = images_of(at).clone()
        with net.frozen_statistics(), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it sets hooks, and removes them
            found = self._attribute(Scores(net), net, x.requires_grad_(), y, target, trains)
        if trains and not found.requires_grad:
            raise UserError(
                f"captum:{self.name} gives maps without a graph, and no loss on them would train; "
                "use another, such as captum:LayerGradCam"
            )
        found = found if trains else found.detach()
        if self.name in GRADIENTS:
            return magnitude(found, channels, signed)
        return attribution(found, signed)

    def _attribute(
        self, scores: nn.Module, net: Net, x: Tensor, y: Tensor, target: str, trains: bool
    ) -> Tensor:
        """(B,K,u,v), in the graph if it ``trains``."""
        needs = inspect.signature(self.kind.__init__).parameters
        layer = [net.module.get_submodule(net.path(target))] if "layer" in needs else []
        takes = inspect.signature(self.kind.attribute).parameters
        words: dict[str, Any] = {"target": y, **self.options}
        if trains and "grad_kwargs" in takes:
            words["grad_kwargs"] = {"create_graph": True}
        if "abs" in takes:  # Saliency's; signs are needed where channels are added up
            words["abs"] = False
        try:
            method = self.kind(scores, *layer)
            if trains:
                keep_graph(method)
            found = method.attribute(x, **words)
        except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
            raise UserError(
                f"captum:{self.name} cannot explain {net.name} ({why(error)}); use another "
                "explainer"
            ) from error
        maps: Tensor = found[0] if isinstance(found, tuple) else found
        if maps.ndim != 4 or len(maps) != len(x):
            raise UserError(
                f"captum:{self.name} gives {tuple(maps.shape)}, expected maps of shape (B,K,u,v); "
                "choose another attribution or a convolutional layer"
            )
        return maps


class Scores(nn.Module):
    """A net as Captum takes it: images to logits."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits


def keep_graph(method: Any) -> None:
    """Let an attribution, and those that it is made of, take gradients inside the graph."""
    if hasattr(method, "gradient_func"):
        method.gradient_func = gradients_in_graph
    for part in vars(method).values():
        if hasattr(part, "gradient_func"):
            part.gradient_func = gradients_in_graph


def gradients_in_graph(
    forward_fn: Any, inputs: Any, target_ind: Any = None, additional_forward_args: Any = None
) -> tuple[Tensor, ...]:
    """Captum's ``compute_gradients``, with the graph of the gradient."""
    from captum._utils.common import _run_forward

    with torch.enable_grad():
        scores = _run_forward(forward_fn, inputs, target_ind, additional_forward_args)
        grads: tuple[Tensor, ...] = torch.autograd.grad(
            torch.unbind(scores), inputs, create_graph=True
        )
    return grads


def explainer(kind: Any, options: Mapping[str, Any] | None = None) -> CaptumExplainer:
    """Any `Attribution` or `LayerAttribution` class of Captum as an explainer.

    ``options`` are words for its ``attribute``, such as ``{"n_steps": 20}``.
    """
    if not isinstance(kind, type) or not hasattr(kind, "attribute"):
        raise UserError(
            f"{kind!r} is no attribution of Captum; pass a class such as captum.attr.LayerGradCam"
        )
    return CaptumExplainer(kind, options or {})


def named(name: str) -> CaptumExplainer:
    """The attribution of this name."""
    try:
        import captum.attr
    except ModuleNotFoundError as error:
        if error.name != "captum":
            raise
        raise UserError(
            f"captum:{name} needs Captum, which is not installed; "
            "type pip install 'rightreasons[captum]'"
        ) from None
    known = [n for n in captum.attr.__all__ if hasattr(getattr(captum.attr, n), "attribute")]
    if name not in known:
        raise unknown("attribution of Captum", name, known)
    return explainer(getattr(captum.attr, name))
