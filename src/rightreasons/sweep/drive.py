"""The order of work: jobs that share a first task wait for the one that trains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from rightreasons.errors import Diverged, UserError
from rightreasons.sweep.board import Board
from rightreasons.sweep.jobs import Job, Work

LOOK = 1.0  # seconds between two looks at how far runs are

Ended = tuple[Job, BaseException | None]


class Pool(Protocol):
    """Workers, wherever they are."""

    @property
    def slots(self) -> int:
        """How many jobs at a time."""

    def start(self, job: Job) -> None:
        """Have a job worked on."""

    def ended(self, seconds: float, board: Board) -> list[Ended]:
        """Jobs that have ended by then, with what went wrong."""


class Failures(UserError):
    """Some of many runs have failed, each for its own reason."""

    def __init__(self, errors: Mapping[Job, UserError], jobs: int) -> None:
        first, error = next(iter(errors.items()))
        words = str(error)
        if jobs > 1:
            words = f"{len(errors)} of {jobs} runs failed; {first.label}: {words}"
        super().__init__(words)
        self.errors = errors


def drive(pool: Pool, jobs: Sequence[Job], done: Work) -> None:
    """All jobs; ``done`` is called here when one has ended well.

    A run that fails does not stop the others. If nothing has got anywhere yet, it does: what is
    wrong is wrong for all of them, then.
    """
    waiting, running = list(jobs), list[Job]()
    errors: dict[Job, UserError] = {}
    with Board(jobs) as board:
        while waiting or running:
            for job in ready(waiting, running, pool.slots):
                pool.start(job)
                waiting.remove(job)
                running.append(job)
                board.begin(job)
            ended = pool.ended(LOOK, board)
            board.look(running)
            for job, error in ended:
                running.remove(job)
                everybodys = not board.finished and not isinstance(error, Diverged)
                if error is not None and (everybodys or not isinstance(error, UserError)):
                    raise error
                board.end(job, error)
                if isinstance(error, UserError):
                    errors[job] = error
                else:
                    done(job)
    if errors:
        raise Failures(errors, len(jobs))


def ready(waiting: Sequence[Job], running: Sequence[Job], slots: int) -> Iterator[Job]:
    """Jobs that can begin now; not those whose first task is being trained by another run."""
    room = slots - len(running)
    busy = {job.prefix for job in running if job.prefix}
    for job in list(waiting):
        if room <= 0:
            return
        if job.prefix and job.prefix in busy and not job.prefix.exists():
            continue
        busy |= {job.prefix} if job.prefix else set()
        room -= 1
        yield job
