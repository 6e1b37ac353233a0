"""Jobs on the machines of a Ray cluster: a run is a task, and one whose worker dies goes on.

Workers that see the run folders work in them. One that does not (a machine without the shared
folder) works in a folder of its own and hands every file over, and the run folders here are kept
up with it. Either way a run folder here is all that its run needs to go on, on whichever machine.
"""

from __future__ import annotations

import importlib
import io
import os
import platform
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rightreasons import __version__
from rightreasons.errors import UserError
from rightreasons.heap import keep_heap
from rightreasons.runfiles import write
from rightreasons.sweep.board import Board
from rightreasons.sweep.connect import connected
from rightreasons.sweep.drive import Ended, drive
from rightreasons.sweep.handover import Courier, Files, needed, put
from rightreasons.sweep.jobs import Job, Work, make, nothing

DEATHS = 3  # of a run's workers in a row, without anything new in its folder; then it has failed
GRACE = 120.0  # seconds for the checkpoints of runs that are stopped
VARIABLES = ("RRR_DATA", "RRR_WEIGHTS")


def run_on_ray(
    jobs: Sequence[Job],
    address: str | None = None,
    most: int | None = None,
    work: Work = make,
    done: Work = nothing,
) -> None:
    """All jobs, as many at a time as the cluster has room for, or ``most``."""
    if not jobs:
        return
    # Ray prints a paragraph about each dead worker; the board has a line for it
    with connected(address) as ray, _home(jobs) as home, redirect_stdout(io.StringIO()):
        pool = RayPool(ray, jobs, home, work, most)
        try:
            drive(pool, jobs, done)
        except BaseException:
            pool.stop()
            raise


# --- here ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Home:
    """What a worker is told of the machine that asks."""

    mark: Path  # whoever sees it, sees the run folders
    cwd: Path
    variables: dict[str, str]
    versions: dict[str, str]


@contextmanager
def _home(jobs: Sequence[Job]) -> Iterator[Home]:
    base = Path(os.path.commonpath([job.folder.absolute().parent for job in jobs]))
    base.mkdir(parents=True, exist_ok=True)
    mark = base / f".shared-{uuid.uuid4().hex}"
    write(mark, "")
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    try:
        yield Home(mark, Path.cwd(), variables, versions())
    finally:
        mark.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """What must be the same for the same bits."""
    return {"rightreasons": __version__, "torch": version("torch").partition("+")[0]}


class RayPool:
    """The pool of `drive` on a cluster."""

    def __init__(
        self, ray: Any, jobs: Sequence[Job], home: Home, work: Work, most: int | None
    ) -> None:
        self.ray, self.home, self.work, self.most = ray, home, work, most
        self.threads = max(job.threads for job in jobs)
        self.gpus = int(_wants_gpu(jobs, ray.cluster_resources().get("GPU", 0)))
        self.running: dict[Any, Job] = {}
        self.keys = {job: str(number) for number, job in enumerate(jobs)}
        self.jobs = {key: job for job, key in self.keys.items()}
        self.deaths = dict.fromkeys(jobs, 0)
        self.last: dict[Job, object] = {}  # where a run was when its worker began
        self._check()
        self.desk = self._desk()

    def _check(self) -> None:
        """Refuse what the cluster would let wait for ever."""
        machines = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        for what, asked, word in (
            ("CPU", self.threads, "train.threads=1"),
            ("GPU", self.gpus, "train.device=cpu"),
        ):
            most = max((machine.get(what, 0) for machine in machines), default=0)
            if asked > most:
                raise UserError(
                    f"a run takes {asked} {what}s of one machine ({word.split('=')[0]}), and the "
                    f"largest of the cluster has {most:g}; type {word}"
                )

    def _desk(self) -> Any:
        """On this machine: if that is lost, so is all."""
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        me = self.ray.get_runtime_context().get_node_id()
        here = strategies.NodeAffinitySchedulingStrategy(me, soft=False)
        return self.ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()

    @property
    def slots(self) -> int:
        """Machines may come and go."""
        there = self.ray.cluster_resources()
        room = there.get("CPU", 0) // self.threads
        if self.gpus:
            room = min(room, there.get("GPU", 0))
        return max(1, int(min(room, self.most or room)))

    def start(self, job: Job) -> None:
        self.last[job] = _newest(job)
        how = {"num_cpus": job.threads, "num_gpus": self.gpus, "max_retries": 0}
        files = needed(job.folder, job.prefix)
        task = self.ray.remote(attend).options(name=job.label, **how)
        args = (self.work, _absolute(job), self.keys[job], self.home, self.desk, files)
        self.running[task.remote(*args)] = job

    def ended(self, seconds: float, board: Board) -> list[Ended]:
        errors = self.ray.exceptions
        died = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
        found: list[Ended] = []
        ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=seconds)
        self._keep_up()
        for reference in ready:
            job = self.running.pop(reference)
            try:
                self.ray.get(reference)
            except died as error:
                found += self._died(job, error, board)
            except errors.RayTaskError as error:
                cause = error.cause if isinstance(error.cause, BaseException) else error
                found.append((job, cause))
            else:
                found.append((job, None))
        return found

    def _died(self, job: Job, error: Exception, board: Board) -> list[Ended]:
        """Have the run gone on with, or call it failed."""
        if _newest(job) != self.last[job]:
            self.deaths[job] = 0
        self.deaths[job] += 1
        why = type(error).__name__
        if self.deaths[job] >= DEATHS:
            words = f"its worker died {DEATHS} times at one place ({why}); see Ray's logs there"
            return [(job, UserError(words))]
        board.say(job, f"its worker died ({why}); the run goes on")
        self.start(job)
        return []

    def _keep_up(self) -> None:
        """Take what workers without the shared folder have handed over."""
        try:
            taken = self.ray.get(self.desk.collect.remote())
        except self.ray.exceptions.RayActorError:
            raise UserError(
                "the process that takes files over died (out of memory?); the same command goes on "
                "from the last checkpoints"
            ) from None
        for key, name, content in taken:
            job = self.jobs[key]
            put(job.folder, job.prefix, name, content)

    def stop(self) -> None:
        """Let the runs make their checkpoints, as Ctrl-C does; what they hand over is kept."""
        for reference in self.running:
            self.ray.cancel(reference, force=False, recursive=False)
        references = list(self.running)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=GRACE)
        self._keep_up()


def _absolute(job: Job) -> Job:
    """As any process finds it."""
    prefix = None if job.prefix is None else job.prefix.absolute()
    return replace(job, folder=job.folder.absolute(), prefix=prefix)


def _wants_gpu(jobs: Sequence[Job], there: float) -> bool:
    devices = {str(job.config["train"]["device"]) for job in jobs}
    return any(d.startswith("cuda") or (d == "auto" and there > 0) for d in devices)


def _newest(job: Job) -> object:
    """Where a run's folder is: another value means that it has got on."""
    from rightreasons.checkpoints import found_in

    return list(found_in(job.folder))[-1:]


# --- there ---------------------------------------------------------------------------------------


class Desk:
    """Where files are handed over: a process that holds them until they are taken."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], bytes | None] = {}

    def take(self, key: str, name: str, content: bytes | None) -> None:
        self.files.pop((key, name), None)  # the order is that of the last writing
        self.files[key, name] = content

    def collect(self) -> list[tuple[str, str, bytes | None]]:
        taken, self.files = self.files, {}
        return [(key, name, content) for (key, name), content in taken.items()]


def attend(work: Work, job: Job, key: str, home: Home, desk: Any, files: Files) -> None:
    """What a worker does: the job, in the folder itself or in one of its own."""
    _settle(home)
    if home.mark.is_file():
        work(job)
        return
    ray = importlib.import_module("ray")

    def send(name: str, content: bytes | None) -> None:
        ray.get(desk.take.remote(key, name, content))

    with TemporaryDirectory(prefix="rrr-") as scratch:
        folder = Path(scratch) / "run"
        prefix = None if job.prefix is None else Path(scratch) / "prefix" / "task.pt"
        for name, content in files.items():
            put(folder, prefix, name, content)
        with Courier(folder, prefix, send).walking():
            try:
                work(replace(job, folder=folder, prefix=prefix))
            except UserError as error:  # it names the folder that its reader knows
                raise type(error)(str(error).replace(str(folder), str(job.folder))) from None


def _settle(home: Home) -> None:
    """Be the same as the machine that asks, in what a run depends on."""
    keep_heap()
    here = versions()
    other = [f"{k} {here[k]} (asked: {v})" for k, v in home.versions.items() if here[k] != v]
    if other:
        raise UserError(
            f"the machine {platform.node()} has {', '.join(other)}, and equal bits need the same; "
            "install there what is here"
        )
    for name, value in home.variables.items():
        if Path(value).is_dir():  # else the machine's own
            os.environ[name] = value
    if home.cwd.is_dir():
        os.chdir(home.cwd)
