"""SIGINT and SIGTERM while a run trains: noted, and answered between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_patient = False  # every run of this process


def be_patient() -> None:
    """Of a worker: its parent passes on what the whole group may have been sent, and kills it if
    it is asked twice itself."""
    global _patient
    _patient = True


class Request:
    """Has a signal asked the run to stop? Its number, or 0.

    ``patient``: a second signal says the same; torchrun passes on what a terminal has sent already.
    """

    def __init__(self, patient: bool = False) -> None:
        self.signal, self.patient = 0, patient

    def note(self, number: int, frame: FrameType | None) -> None:
        """The first is answered after the step in hand; a second one stops at once."""
        if self.signal and not self.patient:
            raise KeyboardInterrupt
        self.signal = self.signal or number


@contextmanager
def requests(patient: bool = False) -> Iterator[Request]:
    """Signals are noted, inside; only the main thread of a process can do so."""
    request = Request(patient or _patient)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
