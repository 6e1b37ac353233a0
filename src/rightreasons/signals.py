"""SIGINT and SIGTERM while a run trains: noted, and answered between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Request:
    """Has a signal asked the run to stop? Its number, or 0."""

    def __init__(self) -> None:
        self.signal = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first is answered after the step in hand; a second one stops at once."""
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


@contextmanager
def requests() -> Iterator[Request]:
    """Signals are noted, inside; only the main thread of a process can do so."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
