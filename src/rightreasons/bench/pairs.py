"""Two things timed against each other in one process, and the multiplications that they make.

One thread, process CPU time, pairs in turns (A B, B A, ...), the ratio of medians with a bootstrap
interval over pairs: what else the machine does meanwhile falls on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

Call = Callable[[], object]
# who is told how many pairs are done, and of how many: a row may take minutes
told: ContextVar[Callable[[int, int], object]] = ContextVar("told", default=lambda done, of: None)


class Ratio(NamedTuple):
    """How many times the first's time the second took."""

    value: float
    low: float  # of the 95 % interval
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f}"

    @property
    def interval(self) -> str:
        return f"{self.low:.3f} to {self.high:.3f}"


def timed(call: Call) -> float:
    """Seconds of CPU."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def alternate(a: Call, b: Call, pairs: int, warm: int = 3) -> list[tuple[float, float]]:
    """The times of ``a`` and ``b``, called in turns."""
    for _ in range(warm):
        a()
        b()
    times = []
    for i in range(pairs):
        if i % 2:
            second, first = timed(b), timed(a)
        else:
            first, second = timed(a), timed(b)
        times.append((first, second))
        told.get()(i + 1, pairs)
    return times


def ratio(times: list[tuple[float, float]]) -> Ratio:
    """Ratio of medians b/a, and its 95 % bootstrap interval over pairs."""
    t = torch.tensor(times, dtype=torch.float64)
    draws = torch.randint(len(t), (2000, len(t)), generator=torch.Generator().manual_seed(0))
    medians = t[draws].median(1).values  # (2000,2)
    ends = (medians[:, 1] / medians[:, 0]).quantile(torch.tensor([0.025, 0.975]).double())
    a, b = t.median(0).values.tolist()
    return Ratio(b / a, *ends.tolist())


def compare(a: Call, b: Call, pairs: int, warm: int = 3) -> Ratio:
    return ratio(alternate(a, b, pairs, warm))


def flops(call: Call) -> int:
    """Floating-point operations of one call, as torch counts them."""
    counter = Flops()  # type: ignore[no-untyped-call]
    with counter:
        call()
    return counter.total


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts as torch's FlopCounterMode does, whose hooks on modules do not take autograd.grad."""

    total: int = 0

    def __torch_dispatch__(
        self, call: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = call(*args, **(kwargs or {}))
        count = flop_registry.get(call._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=out))
        return out
