"""What a task's losses are, on average, and a stop at the first one that is no number.

On the CPU every loss is looked at when it is made, before it moves a weight. A number on another
device costs a wait, so there the loop looks now and then, at every loss since the last look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rightreasons.errors import Diverged
from rightreasons.learners.base import Learner
from rightreasons.nets.base import Net
from rightreasons.state import pack
from rightreasons.types import Batch, Out

TASK = "task"


class At(NamedTuple):
    """A place in the training."""

    task: int  # counted from 1
    step: int  # of the task, counted from 1
    epoch: int  # of the stage, counted from 1
    lr: float


class Noted(NamedTuple):
    """One loss of one step, not looked at yet."""

    name: str
    value: Tensor  # times its weight: what the gradient is of
    at: At
    seen: tuple[Tensor, Tensor] | None  # logits and labels that a learner's loss was made of


class Losses:
    """Sums over the steps of a task, on the device, by name: ``task`` and the terms."""

    def __init__(self, learner: Learner, net: Net) -> None:
        self.learner, self.net = learner, net
        self.begin()

    def begin(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self.noted: list[Noted] = []

    def note(
        self,
        name: str,
        value: Tensor,
        at: At,
        out: Out | None = None,
        batch: Batch | None = None,
        weight: float = 1.0,
    ) -> None:
        value = value.detach()
        self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.counts[name] = self.counts.get(name, 0) + 1
        seen = (out.logits.detach(), batch.y) if out is not None and batch is not None else None
        self.noted.append(Noted(name, weight * value, at, seen))
        if value.device.type == "cpu":
            self.look()

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.counts[name] for name, value in self.sums.items()}

    def look(self) -> None:
        """Refuse the first loss since the last look that is NaN or infinite."""
        noted, self.noted = self.noted, []
        if not noted:
            return
        bad = (~torch.stack([one.value.isfinite() for one in noted])).nonzero().flatten()
        if len(bad):
            first = noted[int(bad[0])]
            if first.value.device.type == "cpu":  # elsewhere it has moved the weights already
                check_weights(self.net, first.at, "before")
            raise self._refusal(first)

    def _refusal(self, one: Noted) -> Diverged:
        which, remedies = self._cause(one)
        return Diverged(
            f"the {which} is {float(one.value)} in task {one.at.task} at step {one.at.step} "
            f"{_rest(one.at, *remedies)}"
        )

    def _cause(self, one: Noted) -> tuple[str, list[str]]:
        """Which loss it is: the task's, the learner's own beside it, or a term's."""
        for term in self.learner.terms:
            if term.name == one.name:
                remedy = f"{term.name}.weight={term.weight / 10:.3g}"
                return f"{term.name} loss, times its weight of {term.weight:.3g},", [remedy]
        own = type(self.learner).loss is not Learner.loss
        if own and one.seen is not None:
            logits, y = one.seen
            if bool(F.cross_entropy(logits.float(), y).isfinite()):
                name = self.learner.name
                return f"{name} loss (cross entropy is finite, what {name} adds is not)", []
        return "task loss", []

    def state(self) -> dict[str, Any]:
        return {"sums": pack(self.sums), "counts": dict(self.counts)}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        self.begin()
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}
        self.counts = dict(state["counts"])


@torch.no_grad()
def check_weights(net: Net, at: At, when: str = "after") -> None:
    """Refuse weights that are NaN or infinite: the loss can be finite and its gradient not."""
    if not all(torch.stack([p.isfinite().all() for p in net.parameters()]).tolist()):
        raise Diverged(
            f"the weights are not finite {when} step {at.step} of task {at.task}, though the "
            f"losses until then are {_rest(at)}"
        )


def _rest(at: At, *remedies: str) -> str:
    """Where it was, and what to try."""
    words = ", or ".join([*remedies, f"train.lr={at.lr / 10:.3g}", "train.clip=1"])
    return f"(epoch {at.epoch}, lr {at.lr:.3g}); nothing of that step was saved; type {words}"
