"""RAdam in one pass over the weights.

torch has one kernel for all of Adam's arithmetic on a CPU, and none for RAdam's, whose dozen
operations each pass over all weights: 15 % of a step of a ResNet18 on eight images, and most of
one of AlexNet. But RAdam's step is Adam's with another rate and another epsilon:

    RAdam   m / (1 - beta1^t) * lr r_t * sqrt(1 - beta2^t) / (sqrt(v) + eps)
    Adam    m / (1 - beta1^t) * lr'    * sqrt(1 - beta2^t) / (sqrt(v) + eps' sqrt(1 - beta2^t))

are the same for lr' = lr r_t and eps' = eps / sqrt(1 - beta2^t). While the variance of v is too
large to divide by it (rho_t <= 5), RAdam steps by lr m / (1 - beta1^t), which is Adam's step at an
epsilon beside which v vanishes, with a rate as much larger.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

VAST = 1e24  # any v vanishes beside it, and a rate so many times larger is still a number


class RAdam(torch.optim.RAdam):
    """torch's, with the same state, for parameters on a CPU.

    As all fused kernels it takes gradients that lie in memory as their parameters do.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            at: dict[int, list[Tensor]] = defaultdict(list)  # a parameter may have missed steps
            for p in group["params"]:
                if p.grad is not None:
                    at[int(self._state_of(p)["step"]) + 1].append(p)
            for t, parameters in at.items():
                self._step(group, t, parameters)

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        return state

    def _step(self, group: dict[str, Any], t: int, parameters: list[Tensor]) -> None:
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        lr, eps = as_adam(group["lr"], group["eps"], beta2, t)
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            eps=eps,
            weight_decay=group["weight_decay"],
            maximize=False,
        )


def as_adam(lr: float, eps: float, beta2: float, t: int) -> tuple[float, float]:
    """The rate and the epsilon at which Adam's step t is RAdam's."""
    correction = 1 - beta2**t
    longest = 2 / (1 - beta2) - 1
    rho = longest - 2 * t * beta2**t / correction
    if rho <= 5:
        return lr * VAST, VAST
    top, bottom = (rho - 4) * (rho - 2) * longest, (longest - 4) * (longest - 2) * rho
    return lr * math.sqrt(top / bottom), eps / math.sqrt(correction)
