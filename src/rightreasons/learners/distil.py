"""Knowledge distillation: what the learners with a teacher share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.distributed import forward
from rightreasons.errors import UserError
from rightreasons.nets.base import Net
from rightreasons.timing import TEACHER, span
from rightreasons.types import Batch


def frozen(net: Net) -> Net:
    """The net as it is now, to learn from: one copy a task."""
    return copy.deepcopy(net).requires_grad_(False).eval()


@torch.no_grad()
def taught(teacher: Net, batch: Batch) -> Tensor:
    """The logits (B,n) that a teacher gives for the classes that it knows."""
    with span(TEACHER):
        return forward(teacher, batch).logits


def distil(logits: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Cross entropy of softened answers (Hinton et al. 2015), mean over images.

    ``- sum_i p_i(old / T) log p_i(logits / T)``, without the factor ``T^2``.
    """
    return F.cross_entropy(logits / temperature, (old / temperature).softmax(1))


def binary_targets(y: Tensor, logits: Tensor, old: Tensor | None) -> Tensor:
    """(B,C): what the teacher says of its classes, for every image; zero or one for new ones."""
    targets = F.one_hot(y, logits.shape[1]).to(logits)
    if old is None:
        return targets
    return torch.cat([old.sigmoid(), targets[:, old.shape[1] :]], 1)


def check_temperature(name: str, temperature: float) -> None:
    if not 0 < temperature < float("inf"):
        raise UserError(
            f"{name}.temperature is {temperature}, expected a number above 0, such as 2"
        )
