"""Where a run's time goes: named spans that add up to the whole, and the sentence about them.

Nothing is measured outside `profiled`: a span is then an object that does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

REST = "the rest"
DATA, FORWARD, LOSS = "drawing and augmenting images", "forward", "the learner's loss"
BACKWARD, OPTIMISER = "backward", "optimiser"
MEMORY, AFTER, TESTING = "choosing what to remember", "the learner after a task", "testing"
PICTURES, CHECKPOINTS, LOADING = "maps for the report", "checkpoints", "loading data and torch"
OWN_FORWARD = "{}: forward of its own rows"
TEACHER = "the teacher's forward"
EXCHANGE = "exchange between processes"
SMALL = 0.005  # a share that is not worth a line
LARGE = 0.15  # a share that is worth a hint

HINTS = {
    DATA: "images take long to draw: fewer pixels (augment.cut, data.size) or more threads help",
    TESTING: "testing takes long: fewer test images of each class (data.test, where the data "
    "has it) help",
    CHECKPOINTS: "checkpoints take long: write fewer, such as --checkpoint 1000",
    LOADING: "loading takes long beside so little training: train several seeds in one command",
}


class Clock:
    """Seconds by name; a span inside another one stops the outer one's clock."""

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.timer = timer
        self.seconds: dict[str, float] = {}
        self.running = [REST]
        self.since = timer()

    def _switch(self) -> None:
        _wait()
        now = self.timer()
        name = self.running[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.since
        self.since = now

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self._switch()
        self.running.append(name)
        try:
            yield
        finally:
            self._switch()
            self.running.pop()

    def words(self) -> str:
        """The shares, largest first, and what to try where one of them is out of place."""
        total = sum(self.seconds.values())
        if not total:
            return "nothing was trained, so no time was spent"
        ranked = sorted(self.seconds.items(), key=lambda item: -item[1])
        lines = [f"where the time went, of {total:.1f} s:"]
        lines += [
            f"  {100 * seconds / total:5.1f} %  {seconds:8.2f} s  {name}"
            for name, seconds in ranked
            if seconds >= SMALL * total
        ]
        hints = [
            HINTS[name] for name, seconds in ranked if name in HINTS and seconds > LARGE * total
        ]
        return "\n".join([*lines, *hints])


_clock: Clock | None = None
_NOTHING = nullcontext()


def span(name: str) -> AbstractContextManager[None]:
    """What is done inside counts as ``name``, if anybody asked."""
    return _NOTHING if _clock is None else _clock.span(name)


@contextmanager
def profiled(timer: Callable[[], float] = time.perf_counter) -> Iterator[Clock]:
    """Measure all spans inside."""
    global _clock
    _clock = clock = Clock(timer)
    try:
        yield clock
    finally:
        clock._switch()
        _clock = None


def _wait() -> None:
    """A GPU works on while Python goes ahead; a span ends when its work does."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
