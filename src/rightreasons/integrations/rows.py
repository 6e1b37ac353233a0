"""Images that another library holds, as rows of a memory: they are as the model takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.feed import Feed


class AsTheyAre(Feed):
    """A feed of images that were normalised by somebody else."""

    def normalise(self, x: Tensor) -> Tensor:
        return x.to(self.device)


class Pixels:
    """The images of a data set by their places, read when they are asked for."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.eval()  # without its training transforms

    def __getitem__(self, index: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # a transform may draw, and the strategy not notice
            return torch.stack([torch.as_tensor(self.dataset[i][0]) for i in index.tolist()])


def buffered(strategy: Any) -> tuple[Tensor, Tensor]:
    """Images (N,...) and labels (N,) of the buffer that a strategy of Avalanche replays from."""
    nothing = torch.zeros(0, dtype=torch.long)
    for plugin in strategy.plugins:
        buffer = getattr(getattr(plugin, "storage_policy", None), "buffer", None)
        if buffer is not None:
            if not len(buffer):  # it has no targets then
                return nothing, nothing
            labels = torch.tensor([int(y) for y in buffer.targets])
            return Pixels(buffer)[torch.arange(len(labels))], labels
        if hasattr(plugin, "x_memory"):  # iCaRL's exemplars, a list a class
            if not plugin.x_memory:
                return nothing, nothing
            labels = torch.tensor([int(y) for part in plugin.y_memory for y in part])
            return torch.cat(plugin.x_memory).cpu(), labels
    raise UserError(
        f"memory is 'strategy', and {type(strategy).__name__} has no buffer of images; pass "
        "memory=200 for one of the plugin's own, or add a ReplayPlugin"
    )
