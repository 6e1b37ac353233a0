"""A net that somebody else trains, seen as a `Net`: its head is not ours to grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rightreasons.errors import UserError
from rightreasons.nets import find_parts
from rightreasons.nets.base import Net
from rightreasons.types import Out


class Rows(NamedTuple):
    """Some rows of a head, in the graph of its weights."""

    weight: Tensor  # (C,K)
    bias: Tensor | None  # (C,)
    owner: nn.Module

    def parameters(self) -> Iterator[nn.Parameter]:
        """Of the whole head."""
        return self.owner.parameters()


class Borrowed(Net):
    """A module in training elsewhere, through the classes that it has seen.

    ``order`` are the rows of its head by order of appearance: logits and head show these alone, so
    that labels are 0..C-1 here as everywhere. Logits are what the head gives: what follows it, such
    as a sigmoid, is not explained.
    """

    order: Tensor

    def __init__(self, module: nn.Module, probe: Tensor, head: str | None, target: str | None):
        with still(module):
            found = find_parts(module, head, probe, changed=True)
        super().__init__(module, *found, owned=False)
        self.retarget(target)
        self.see_all()

    @property
    def _last(self) -> Any:
        return self.module.get_submodule(self.head_name)

    @property
    def _parts(self) -> list[nn.Module]:
        """All but the module itself, which may answer with another head in eval mode."""
        return [part for part in self.modules() if part is not self.module]

    def see(self, classes: Sequence[int]) -> None:
        """Show these rows of the head, in this order."""
        self.order = torch.tensor(list(classes), dtype=torch.long)

    def see_all(self) -> None:
        """Show the head as it is now: its owner may have let it grow."""
        self.see(range(self._last.weight.shape[0]))

    @property
    def classes(self) -> int:
        return len(self.order)

    @property
    def head(self) -> Any:
        last = self._last
        rows = self.order.to(last.weight.device)
        weight = last.weight.flatten(1)[rows]  # a 1x1 convolution has (C,K,1,1)
        return Rows(weight, None if last.bias is None else last.bias[rows], last)

    def forward(self, x: Tensor, taps: Sequence[str] = ()) -> Out:
        given: list[Tensor] = []
        handle = self._last.register_forward_hook(lambda m, args, output: given.append(output))
        try:
            out = super().forward(x, taps)
        finally:
            handle.remove()
        logits = given[-1] if given[-1].ndim == 2 else out.logits
        return out._replace(logits=logits[:, self.order.to(logits.device)])


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """Every part in eval mode but the module itself, which may answer with another head there."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    module.training = True
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def borrow(module: nn.Module, probe: Tensor, head: str | None, target: str | None) -> Borrowed:
    """The module as a `Net`; ``probe`` is a batch of its images."""
    if not isinstance(module, nn.Module):
        raise UserError(f"the model is a {type(module).__name__}, expected an nn.Module")
    return Borrowed(module, probe, head, target)
