"""torchvision's classifiers as `Net`s, with the paper's target layers and weights from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from rightreasons.checkpoints import UNREADABLE, load_plain, why
from rightreasons.errors import UserError
from rightreasons.nets.net import Net
from rightreasons.nets.small import initialise
from rightreasons.nets.vision import torchvision


@dataclass(frozen=True)
class Plan:
    """Where the parts of a torchvision model are."""

    model: str
    head: str
    last_block: str
    paper: str
    pooled_linear: bool = True


ZOO = {
    "resnet18": Plan("resnet18", "fc", "layer4", "layer4.1.conv2"),
    "mobilenet-v2": Plan("mobilenet_v2", "classifier.1", "features", "features.18.0"),
    "alexnet": Plan("alexnet", "classifier.6", "features.11", "features.10", False),
}


def build_zoo(name: str, weights: str | None = None) -> Net:
    """Build one of ``ZOO``; ``weights`` is a torchvision file, whole or of the trunk alone."""
    plan = ZOO[name]
    options = {"dropout": 0.0} if plan.model == "mobilenet_v2" else {}  # its head must stay linear
    module: nn.Module = torchvision().models.get_model(plan.model, weights=None, **options)
    if weights is not None:
        load_weights(module, Path(weights), plan.head)
    return Net(
        module,
        plan.head,
        {"last_block": plan.last_block, "paper": plan.paper},
        plan.pooled_linear,
        initialise=None if weights else initialise,
        name=name,
        weights=weights,
    )


def load_weights(module: nn.Module, path: Path, head: str) -> None:
    """Put a state dict's tensors in place; a trunk-only file may leave out the classifier."""
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
    top = head.partition(".")[0]
    missing = [n for n in wanted if n not in given and n.partition(".")[0] != top]
    missing = [n for n in missing if not n.endswith("num_batches_tracked")]
    if missing:
        raise UserError(f"{path} lacks {len(missing)} tensors of the trunk, {missing[0]!r} first")
    module.load_state_dict(given, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors by name; a file that would run code is refused and runs none."""
    if not path.is_file():
        raise UserError(f"there is no weights file {path}; check the path")
    try:
        content = load_plain(path)
    except UNREADABLE as error:
        raise UserError(
            f"{path} is not a file of plain tensors ({why(error)}); nothing in it was run; pass a "
            "state dict that torch.save wrote"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise UserError(f"{path} holds no state dict, expected tensors by name")
    return content
