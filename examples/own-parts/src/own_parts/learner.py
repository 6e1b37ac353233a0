"""Experience replay held to a slow copy of the net: a learner in one small file."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.types import Pool, Stage


@dataclass
class Slow(rr.Learner):
    """Replay, and on replayed images the logits of a slowly moving average of the net."""

    pull: float = 0.5
    """weight of the distance between the logits of the two nets"""
    decay: float = 0.95
    """how much of the average is kept at each step"""

    name: ClassVar[str] = "slow"
    replays: ClassVar[bool] = True

    def stages(self, task):
        return [Stage(pool=Pool(mix="paired"))]

    def begin(self, net, task, memory, look):
        slow = copy.deepcopy(net).requires_grad_(False).eval()
        if hasattr(self, "slow_"):  # the old average; new classes have only the net's own rows
            for now, old in zip(slow.parameters(), self.slow_.parameters(), strict=True):
                now[: len(old)] = old
        self.slow_ = slow

    def loss(self, net, out, batch, stage):
        loss = F.cross_entropy(out.logits, batch.y)
        replayed = batch.row >= 0
        if not replayed.any():
            return loss
        taught = self.slow_(batch.x[replayed]).logits
        return loss + self.pull * F.mse_loss(out.logits[replayed], taught)

    def step(self, net, batch, objective, update):
        update(objective(batch))
        with torch.no_grad():
            for slow, fast in zip(self.slow_.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 1 - self.decay)
            for slow, fast in zip(self.slow_.buffers(), net.buffers(), strict=True):
                slow.copy_(fast)
