"""Jobs in processes of this machine, so many at a time, each with its fixed share of threads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread
from types import TracebackType

from rightreasons.errors import UserError
from rightreasons.heap import keep_heap
from rightreasons.signals import be_patient
from rightreasons.sweep.board import Board
from rightreasons.sweep.drive import LOOK, Ended, drive
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
    try:
        with _environment(ONE_THREAD), Processes(workers, work) as pool:
            drive(pool, jobs, done)
    except BrokenProcessPool:
        raise UserError(
            "a worker process died (out of memory?); the same command goes on from the last "
            "checkpoints"
        ) from None


class Processes:
    """The pool of `drive` on this machine.

    Every worker is an executor of its own. Those of one executor take turns at a lock while they
    wait for jobs, and who is ended with the lock in hand leaves the others waiting for ever.
    """

    def __init__(self, slots: int, work: Work) -> None:
        self.slots, self.work = slots, work
        self.workers: list[ProcessPoolExecutor] = []
        self.idle: list[ProcessPoolExecutor] = []
        self.running: dict[Future[object], tuple[Job, ProcessPoolExecutor]] = {}
        self.others = active_children()  # the caller's own, which are not ours to end

    def start(self, job: Job) -> None:
        worker = self.idle.pop() if self.idle else self._hire()
        with _deaf():
            self.running[worker.submit(self.work, job)] = job, worker

    def _hire(self) -> ProcessPoolExecutor:
        worker = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_settle)
        self.workers.append(worker)
        return worker

    def ended(self, seconds: float, board: Board) -> list[Ended]:
        found = wait(self.running, seconds, FIRST_COMPLETED).done
        if any(isinstance(future.exception(), BrokenProcessPool) for future in found):
            raise BrokenProcessPool
        over: list[Ended] = []
        for future in found:
            job, worker = self.running.pop(future)
            self.idle.append(worker)
            over.append((job, future.exception()))
        return over

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """Wait for the workers; after a failure, runs that have not failed save and end first."""
        try:
            if kind is not None:
                for child in self._children():
                    child.terminate()
            self._wait()
        except KeyboardInterrupt:  # asked twice: what was saved is whole, whoever is killed
            for child in self._children():
                child.kill()
            self._wait()
            raise

    def _children(self) -> list[BaseProcess]:
        return [child for child in active_children() if child not in self.others]

    def _wait(self) -> None:
        for worker in self.workers:
            worker.shutdown(wait=True, cancel_futures=True)


def _settle() -> None:
    """What a worker does first."""
    keep_heap()
    be_patient()
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    """End a worker whose parent was killed, which could not do so."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    while True:  # the first one has a run save and end, the next finds the worker idle
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LOOK)


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
