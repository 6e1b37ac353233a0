"""Many runs: one after the other, or matched runs side by side, two at a time.

Matched runs of one learner share their beginning: the first task, which no term touches yet, is
trained once and every run goes on from there. The results equal those of separate runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rightreasons import __version__
from rightreasons.config import build, resolve
from rightreasons.errors import UserError, printable
from rightreasons.launch import process
from rightreasons.metrics import over_images
from rightreasons.registry import TERMS, split_method
from rightreasons.reports.check import damage
from rightreasons.runfiles import load_json, read_config, whole, write
from rightreasons.tables import compared, markdown, single
from rightreasons.timing import LOADING, span

WORKERS = 2
LOOK = 1.0  # seconds between two looks at how far runs are


def folder_of(config: dict[str, Any], out: Path | None = None) -> Path:
    """``runs/BENCHMARK/METHOD/SEED``, or below another folder; a user's own data name theirs."""
    own = config["benchmark"] == "folder"
    name = Path(config["data"]["path"]).resolve().name if own else str(config["benchmark"])
    base = out or Path("runs") / name
    return base / str(config["method"]) / str(config["seed"])


def run_seeds(
    benchmark: str,
    method: str,
    overrides: Sequence[str],
    out: Path | None,
    seeds: int,
    checkpoint: int,
) -> None:
    """One run, or several seeds one after the other."""
    first = resolve(benchmark, method, overrides)
    if seeds < 1:
        raise UserError(f"--seeds is {seeds}, expected at least 1")
    _check_out(out)
    for seed in range(first["seed"], first["seed"] + seeds):
        config = resolve(benchmark, method, [*overrides, f"seed={seed}"])
        folder = out if out and seeds == 1 else folder_of(config, out)
        _run_one(config, folder, checkpoint)


def _check_out(out: Path | None) -> None:
    """Refuse a folder for runs that is, or is below, a file."""
    there = next((path for path in (out, *out.parents) if path.exists()), None) if out else None
    if there is not None and not there.is_dir():
        raise UserError(f"{there} is a file, expected a folder; pass another --out")


def _check_interval(checkpoint: int | None) -> None:
    if checkpoint is not None and checkpoint < 1:
        raise UserError(f"--checkpoint is {checkpoint}, expected at least 1 step")


def run_branch(words: str, overrides: Sequence[str], out: Path | None, checkpoint: int) -> None:
    """``RUN@task3``, with other keys from there on."""
    from rightreasons.branch import branch

    _check_out(out)
    made = branch(words, overrides, out)
    _run_one(made.config, made.folder, checkpoint, made.start)
    for path in () if process() else made.maps:
        if path.is_file() and not (made.folder / "maps" / path.name).exists():
            with whole(made.folder / "maps" / path.name) as sink:
                sink.write(path.read_bytes())


def _run_one(
    config: dict[str, Any], folder: Path, checkpoint: int, start: dict[str, Any] | None = None
) -> None:
    trained = execute(config, folder, show=True, checkpoint=checkpoint, start=start)
    if process():
        return  # the folder is the first process's
    if not trained:
        print(f"{printable(str(folder))} is finished already")
    Console(highlight=False).print(single(folder))


def execute(
    config: dict[str, Any],
    folder: Path,
    show: bool = False,
    prefix: Path | None = None,
    checkpoint: int | None = None,
    start: dict[str, Any] | None = None,
) -> bool:
    """Train what a config describes into a folder, if that is not done yet: was it not?

    ``prefix`` holds or gets the first task. Of several processes the first one has the folder.
    """
    with span(LOADING):
        import torch

        from rightreasons.distributed import agree, from_first, joined
        from rightreasons.runs import EVERY, Run
        from rightreasons.train import fit

    _check_interval(checkpoint)
    with joined(config["train"]["device"]) as processes:
        if processes.size > 1:
            agree(config)
        if config["train"]["threads"] is None:  # equal bits need an equal number: written down
            threads = from_first(lambda: _recorded_threads(folder) or torch.get_num_threads())
            config = config | {"train": config["train"] | {"threads": threads}}
        run = Run(folder, config)
        if from_first(lambda: run.check() and run.finished):
            return False
        with span(LOADING):
            parts = build(config)
            net, stream = parts.load()
        fit(
            parts.learner,
            net,
            stream,
            train=parts.train,
            run=run,
            seed=parts.seed,
            progress=show,
            prefix=prefix,
            start=start,
            checkpoint=EVERY if checkpoint is None else checkpoint,
        )
    return True


def _recorded_threads(folder: Path) -> int | None:
    return read_config(folder)["train"].get("threads") if _is_run(folder) else None


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def compare(
    benchmark: str,
    methods: Sequence[str],
    overrides: Sequence[str] = (),
    seeds: int = 3,
    out: Path | None = None,
    share: bool = True,
    table: Path | None = None,
    checkpoint: int | None = None,
) -> None:
    """Matched runs of several methods, then the table of their differences."""
    if seeds < 1:
        raise UserError(f"--seeds is {seeds}, expected at least 1")
    if len(set(methods)) < len(methods):
        raise UserError(f"methods {','.join(methods)} name one twice; name each once")
    if table is not None and table.is_dir():
        raise UserError(f"--table {table} is a folder, expected a file such as {table}/table.md")
    if table is not None and not table.absolute().parent.is_dir():
        raise UserError(f"--table {table} is in a folder that does not exist; make it first")
    _check_out(out)
    _check_interval(checkpoint)
    carried = {term for method in methods for term in split_method(method)[1]}
    for word in overrides:
        section = word.split(".")[0]
        if section in TERMS and section not in carried:
            raise UserError(f"{word!r} is for {section}, which none of {','.join(methods)} carries")
    jobs = []
    first = min(resolve(benchmark, method, _for(method, overrides))["seed"] for method in methods)
    others = [word for word in overrides if not word.startswith("seed=")]
    for seed in range(first, first + seeds):
        for method in methods:
            config = resolve(benchmark, method, _for(method, others), seed)
            config["train"]["threads"] = 1
            folder = folder_of(config, out)
            shared = prefix_of(config, folder.parent.parent) if share else None
            jobs.append(Job(config, folder, shared, checkpoint))
    begun = time.monotonic()
    run_all(jobs)
    console = Console(highlight=False)
    console.print(compared([job.folder for job in jobs]))
    if table is not None:
        write(table, markdown([job.folder for job in jobs]))
    console.print(
        f"{len(jobs)} runs in {time.monotonic() - begun:.0f} s; configs, records and checkpoints: "
        f"{jobs[0].folder.parent.parent}"
    )


def _for(method: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that speak of this method: those of a term that it lacks are for others."""
    learner, terms = split_method(method)
    absent = set(TERMS) - set(terms)
    return [word for word in overrides if word.split(".")[0] not in absent]


def prefix_of(config: dict[str, Any], base: Path) -> Path:
    """Where, below a folder, the shared first task of this learner and seed is kept."""
    _, terms = split_method(config["method"])
    shared = {k: v for k, v in config.items() if k not in (*terms, "method")}
    shared["version"] = __version__
    text = json.dumps(shared, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return base / "prefix" / f"{digest}.pt"


@dataclass(eq=False)
class Job:
    """A run to be made; ``name`` tells it from others of the same method and seed."""

    config: dict[str, Any]
    folder: Path
    prefix: Path | None
    checkpoint: int | None = None
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or f"{self.config['method']} seed {self.config['seed']}"


Work = Callable[[Job], object]


def make(job: Job) -> bool:
    """What a worker does with a job."""
    return execute(job.config, job.folder, False, job.prefix, job.checkpoint)


def _nothing(job: Job) -> None:
    """Nothing is to be done after a job."""


def run_all(
    jobs: Sequence[Job], workers: int = WORKERS, work: Work = make, done: Work = _nothing
) -> None:
    """All jobs, two at a time with one thread each; those of one prefix wait for it.

    ``work`` is called in a worker process, ``done`` here when it has returned.
    """
    if not jobs:
        return
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)  # read when a worker imports torch
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn"))
    try:
        _drive(pool, list(jobs), workers, work, done)
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


def _drive(
    pool: ProcessPoolExecutor, waiting: list[Job], workers: int, work: Work, done: Work
) -> None:
    running: dict[Future[object], Job] = {}
    with Board(waiting) as board:
        while waiting or running:
            busy = {job.prefix for job in running.values() if job.prefix}
            for job in list(waiting) if len(running) < workers else ():
                if len(running) >= workers:
                    break
                if job.prefix in busy and job.prefix and not job.prefix.exists():
                    continue  # its first task is being trained by another run
                with _deaf():
                    running[pool.submit(work, job)] = job
                busy |= {job.prefix} if job.prefix else set()
                waiting.remove(job)
            ended = wait(running, LOOK, FIRST_COMPLETED).done
            board.look(running.values())
            for future in ended:
                job = running.pop(future)
                future.result()
                done(job)


class Board:
    """What runs and how far it is, read from the folders of the runs that are under way."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        counts = Counter(job.label for job in jobs)
        self.labels = {  # two of one name are told apart by their folders
            job: job.label if counts[job.label] == 1 else f"{job.label} ({job.folder})"
            for job in jobs
        }
        self.tasks = dict.fromkeys(jobs, 0)
        self.sizes = dict.fromkeys(jobs, 0)
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.total = sum(_tasks(job.config) for job in jobs)
        self.id = self.bar.add_task("", total=self.total)

    def __enter__(self) -> Board:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def look(self, running: Iterable[Job]) -> None:
        """Say what is new; a file of the size that it had is not read."""
        for job in running:
            size = _size(job.folder / "records.jsonl")
            if size == self.sizes[job]:
                continue
            self.sizes[job] = size
            done = _records(job.folder)
            if len(done) > self.tasks[job]:
                self.tasks[job] = len(done)
                finished, last = sum(self.tasks.values()), done[-1]
                self.console.print(
                    f"[{finished}/{self.total}] {self.labels[job]}  task {len(done)}/"
                    f"{_tasks(job.config)}  accuracy on all classes seen "
                    f"{100 * over_images(last['accuracy']['class'], last['test_images']):.1f} %",
                    markup=False,
                    soft_wrap=True,
                )
                self.bar.update(self.id, completed=finished, description=self.labels[job])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not there yet
        return 0


def _tasks(config: dict[str, Any]) -> int:
    tasks = config["stream"]["tasks"]
    return tasks if isinstance(tasks, int) else len(tasks)


def _records(folder: Path) -> list[dict[str, Any]]:
    """Whole records of a run; a damaged one is left out, and the run will write it anew."""
    try:
        lines = (folder / "records.jsonl").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    whole_ones = [line for k, line in enumerate(lines) if not damage(line, k)]
    return [load_json(line) for line in whole_ones]
