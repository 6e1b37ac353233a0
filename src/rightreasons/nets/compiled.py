"""torch.compile for a net whose head grows and whose layers are tapped.

Compiled are the largest parts of the net that hold neither the head nor a tapped layer: the head
may grow and a hook may come and go, and nothing is compiled anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from rightreasons.errors import UserError
from rightreasons.nets.base import INPUT, Net


def compile_parts(net: Net, taps: Collection[str], derived: Collection[str] = ()) -> list[str]:
    """Compile the net for training, in place; the names of the parts. Copies are not compiled.

    What comes after a layer of ``derived``, where scores are differentiated in the graph, is left
    as it is: compiled code has no second derivatives.
    """
    if INPUT in taps:
        raise UserError(
            "train.compile=true has no second derivatives, and an explainer that goes down to the "
            "image needs them; type rrr.explain=gradcam or train.compile=false"
        )
    shut = {net.head_name, *(net.path(tap) for tap in taps)}
    ends = {net.path(tap) for tap in derived}
    before = takewhile(lambda part: part[0] not in ends, _parts(net.module, shut))
    found = {path: part for path, part in before if path not in shut}
    if not found:
        raise UserError(
            f"{net.name} has no part without a tapped layer in it, so nothing to compile; type "
            "train.compile=false"
        )
    for part in found.values():
        _compile(part)
    return list(found)


def _compile(part: nn.Module) -> None:
    """As ``part.compile()``, which leaves containers of torch's own layers uncompiled."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return part._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    part._compiled_call_impl = torch.compile(call)  # torch drops it from copies and state


def _parts(
    module: nn.Module, shut: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """Those that are shut, and the largest that hold none, in the order in which they end."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if path in shut or any(other.startswith(f"{path}.") for other in shut):
            yield from _parts(child, shut, f"{path}.")
            if path in shut:
                yield path, child
        elif any(True for _ in child.children()):  # a single layer gains nothing
            yield path, child


@contextmanager
def eager() -> Iterator[None]:
    """No compiled code inside: evaluation and the like would each compile a variant."""
    with torch.compiler.set_stance("force_eager"):
        yield
