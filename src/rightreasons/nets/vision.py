"""torchvision, imported where it is used and in spite of one known defect of its wheels.

The PyPI wheel of torchvision is built for CUDA. Beside a CPU-only torch its operators do not load,
and the import fails because two of them, `nms` and `qnms`, have no schema to register against. Only
then, and only these two are declared here. Models and transforms work; the two operators do not.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch

_library: torch.library.Library | None = None  # an operator lives as long as its library


def torchvision() -> ModuleType:
    """The package, imported."""
    try:
        import torchvision
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        from rightreasons.errors import UserError

        raise UserError("this net needs torchvision; type pip install torchvision") from None
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        _declare()
        import torchvision
    package: ModuleType = torchvision
    return package


def _declare() -> None:
    global _library
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what a failed import left behind
    _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        _library.define(schema)  # type: ignore[no-untyped-call]
