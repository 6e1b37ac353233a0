"""Jobs in processes of this machine, so many at a time, each with its fixed share of threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context

from rightreasons.errors import UserError
from rightreasons.sweep.board import Board
from rightreasons.sweep.drive import Ended, drive
from rightreasons.sweep.jobs import Job, Work, make, nothing

WORKERS = 2
# read when a worker imports torch; a run then takes the threads of its config
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def run_all(
    jobs: Sequence[Job], workers: int = WORKERS, work: Work = make, done: Work = nothing
) -> None:
    """All jobs, ``workers`` at a time; those of one prefix wait for it.

    ``work`` is called in a worker process, ``done`` here when it has returned.
    """
    if not jobs:
        return
    with _environment(ONE_THREAD):
        pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn"))
        try:
            drive(Processes(pool, workers, work), jobs, done)
        except BrokenProcessPool:
            raise UserError(
                "a worker process died (out of memory?); the same command goes on from the last "
                "checkpoints"
            ) from None
        except BaseException:  # the other run has not failed: let it make a checkpoint and end
            for child in active_children():
                child.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class Processes:
    """The pool of `drive` on this machine."""

    def __init__(self, pool: ProcessPoolExecutor, slots: int, work: Work) -> None:
        self.pool, self.slots, self.work = pool, slots, work
        self.running: dict[Future[object], Job] = {}

    def start(self, job: Job) -> None:
        with _deaf():
            self.running[self.pool.submit(self.work, job)] = job

    def ended(self, seconds: float, board: Board) -> list[Ended]:
        found = wait(self.running, seconds, FIRST_COMPLETED).done
        if any(isinstance(future.exception(), BrokenProcessPool) for future in found):
            raise BrokenProcessPool
        return [(self.running.pop(future), future.exception()) for future in found]


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables of a process and of those that it starts, inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started inside never sees Ctrl-C: this one hears it, and tells it.

    A terminal sends it to all processes, and one that just starts would answer with a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
