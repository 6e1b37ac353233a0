"""torchvision's classifiers as `Net`s, with the paper's target layers and weights from a file."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rightreasons.checkpoints import UNREADABLE, load_plain, refusal
from rightreasons.data.files import locate
from rightreasons.errors import UserError
from rightreasons.nets.base import Initialise, Net
from rightreasons.nets.small import initialise
from rightreasons.nets.vision import torchvision

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Where the parts of a torchvision model are."""

    model: str
    head: str
    last_block: str
    paper: str
    pooled_linear: bool = True


LAST_3X3 = "features.12.expand3x3"  # half of the last Fire module, as the paper has it
ZOO = {
    "resnet18": Plan("resnet18", "fc", "layer4", "layer4.1.conv2"),
    "alexnet": Plan("alexnet", "classifier.6", "features.11", "features.10", False),
    "squeezenet1_1": Plan("squeezenet1_1", "classifier.1", "features", LAST_3X3, False),
    "squeezenet1_0": Plan("squeezenet1_0", "classifier.1", "features", LAST_3X3, False),
    "mobilenet-v2": Plan("mobilenet_v2", "classifier.1", "features", "features.18.0"),
}
OPTIONS: dict[str, dict[str, Any]] = {  # a head without dropout; no second head in training
    "mobilenet_v2": {"dropout": 0.0},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
}


def build_zoo(name: str, weights: str | None = None, flatten: int | None = None) -> Net:
    """Build one of ``ZOO``; ``weights`` is a torchvision file, whole or of the trunk alone.

    With ``flatten``, the side of the images, the head is the authors': one linear layer on the
    flattened last map, without pooling. It then takes images of that size only.
    """
    plan = ZOO[name]
    module = torchvision_model(plan.model)
    draw: Initialise | None = initialise
    if weights is not None:
        lacking = load_weights(module, Path(weights), plan.head)
        draw = partial(draw_parts, lacking) if lacking and flatten is None else None
    if flatten is not None:
        module = flattened(module, plan, flatten)
    return Net(
        module,
        plan.head if flatten is None else "head",
        {"last_block": plan.last_block, "paper": plan.paper},
        plan.pooled_linear and flatten is None,
        initialise=draw,
        channels_last=True,
        name=name,
        weights=weights,
        flatten=flatten,
    )


def torchvision_names() -> list[str]:
    """The classifiers that torchvision has by name."""
    models = torchvision().models
    names: list[str] = models.list_models(module=models)
    return names


def torchvision_model(name: str) -> nn.Module:
    options = OPTIONS.get(name, {})
    model: nn.Module = anew(lambda: torchvision().models.get_model(name, weights=None, **options))
    return model


def anew(build: Callable[[], T]) -> T:
    """Built as in a new process: what `initialise` does not draw is the same in every one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return build()


def flattened(module: nn.Module, plan: Plan, size: int) -> nn.Module:
    """The trunk under its own names, and a linear head on its flattened map."""
    trunk: dict[str, nn.Module] = {}
    for name, part in module.named_children():
        trunk[name] = part
        if name == plan.last_block.partition(".")[0]:
            break
    body = nn.Sequential(OrderedDict(trunk)).eval()
    try:
        with torch.no_grad():
            width = body(torch.zeros(1, 3, size, size)).numel()
    except RuntimeError as error:
        raise UserError(
            f"{plan.model} refuses images of {size} px ({error}); pass flatten= a larger side"
        ) from error
    parts = {**trunk, "flatten": nn.Flatten(), "head": nn.Linear(width, 1)}
    return nn.Sequential(OrderedDict(parts)).train()


def draw_parts(names: list[str], net: nn.Module, generator: torch.Generator) -> None:
    """Initialise the layers of those names, which no file had weights for."""
    for name in names:
        initialise(net.get_submodule(f"module.{name}"), generator)


def load_weights(module: nn.Module, path: Path, head: str) -> list[str]:
    """Put a state dict's tensors in place; a trunk-only file may leave out the classifier.

    Returns the layers that were left out, the head aside.
    """
    given = _read(path)
    wanted = module.state_dict()
    if not set(given) & set(wanted):  # trunk-only files may lack the prefix
        given = {f"features.{name}": value for name, value in given.items()}
    given = {name: v for name, v in given.items() if not name.startswith(f"{head}.")}
    strange = [name for name in given if name not in wanted]
    if strange:
        raise UserError(
            f"{path} has {strange[0]!r}, which the net has not; pass weights of the same model"
        )
    wrong = [n for n, value in given.items() if value.shape != wanted[n].shape]
    if wrong:
        said = ", ".join(f"{n} {tuple(given[n].shape)} for {tuple(wanted[n].shape)}" for n in wrong)
        raise UserError(f"{path} has tensors of other shapes: {said}")
    missing = [n for n in wanted if n not in given and not n.endswith("num_batches_tracked")]
    top = head.partition(".")[0]
    trunk = [n for n in missing if n.partition(".")[0] != top]
    if trunk:
        raise UserError(f"{path} lacks {len(trunk)} tensors of the trunk, {trunk[0]!r} first")
    module.load_state_dict(given, strict=False)
    layers = dict.fromkeys(name.rpartition(".")[0] for name in missing)
    return [name for name in layers if name != head]


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors by name; a file that would run code is refused and runs none.

    A name alone is looked for below ``RRR_WEIGHTS`` and ``RRR_DATA``.
    """
    place = os.environ.get("RRR_WEIGHTS")
    path = locate(str(path), Path(place) if place else None)
    if not path.is_file():
        raise UserError(f"there is no weights file {path}; check the path")
    try:
        content = load_plain(path)
    except UNREADABLE as error:
        raise UserError(
            f"{path} is not a file of plain tensors ({refusal(error)}); nothing in it was run; "
            "pass a state dict that torch.save wrote"
        ) from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(v, Tensor) for name, v in content.items()
    ):
        raise UserError(f"{path} holds no state dict, expected tensors by name")
    return content
