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
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
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
from rightreasons.metrics import over_images
from rightreasons.registry import TERMS, split_method
from rightreasons.runfiles import read_config, whole, write
from rightreasons.tables import compared, markdown, single
from rightreasons.timing import LOADING, span

WORKERS = 2


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
    for seed in range(first["seed"], first["seed"] + seeds):
        config = resolve(benchmark, method, [*overrides, f"seed={seed}"])
        folder = out if out and seeds == 1 else folder_of(config, out)
        _run_one(config, folder, checkpoint)


def run_branch(words: str, overrides: Sequence[str], out: Path | None, checkpoint: int) -> None:
    """``RUN@task3``, with other keys from there on."""
    from rightreasons.branch import branch

    made = branch(words, overrides, out)
    _run_one(made.config, made.folder, checkpoint, made.start)
    for path in made.maps:
        if path.is_file() and not (made.folder / "maps" / path.name).exists():
            with whole(made.folder / "maps" / path.name) as sink:
                sink.write(path.read_bytes())


def _run_one(
    config: dict[str, Any], folder: Path, checkpoint: int, start: dict[str, Any] | None = None
) -> None:
    if not execute(config, folder, show=True, checkpoint=checkpoint, start=start):
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

    ``prefix`` holds or gets the first task.
    """
    with span(LOADING):
        import torch

        from rightreasons.runs import EVERY, Run
        from rightreasons.train import fit

    checkpoint = EVERY if checkpoint is None else checkpoint
    if checkpoint < 1:
        raise UserError(f"--checkpoint is {checkpoint}, expected at least 1 step")

    if config["train"]["threads"] is None:  # equal bits need an equal number: it is written down
        threads = _recorded_threads(folder) or torch.get_num_threads()
        config = config | {"train": config["train"] | {"threads": threads}}
    run = Run(folder, config)
    if run.check() and run.finished:
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
        checkpoint=checkpoint,
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
    if table is not None and not table.absolute().parent.is_dir():
        raise UserError(f"--table {table} is in a folder that does not exist; make it first")
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
            shared = _prefix(config, folder) if share else None
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


def _prefix(config: dict[str, Any], folder: Path) -> Path:
    """Where the shared first task of this learner and seed is kept."""
    _, terms = split_method(config["method"])
    shared = {k: v for k, v in config.items() if k not in (*terms, "method")}
    shared["version"] = __version__
    text = json.dumps(shared, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return folder.parent.parent / "prefix" / f"{digest}.pt"


@dataclass
class Job:
    config: dict[str, Any]
    folder: Path
    prefix: Path | None
    checkpoint: int | None = None

    @property
    def label(self) -> str:
        return f"{self.config['method']} seed {self.config['seed']}"


def run_all(jobs: Sequence[Job]) -> None:
    """All jobs, two at a time with one thread each; those of one prefix wait for it."""
    environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)  # read when a worker imports torch
    pool = ProcessPoolExecutor(min(WORKERS, len(jobs)), mp_context=get_context("spawn"))
    try:
        _drive(pool, list(jobs))
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


def _drive(pool: ProcessPoolExecutor, waiting: list[Job]) -> None:
    running: dict[Future[bool], Job] = {}
    with Board([job for job in waiting]) as board:
        while waiting or running:
            busy = {job.prefix for job in running.values() if job.prefix}
            for job in list(waiting):
                if len(running) >= WORKERS:
                    break
                if job.prefix in busy and job.prefix and not job.prefix.exists():
                    continue  # its first task is being trained by another run
                words = (job.config, job.folder, False, job.prefix, job.checkpoint)
                with _deaf():
                    future = pool.submit(execute, *words)
                running[future] = job
                busy |= {job.prefix} if job.prefix else set()
                waiting.remove(job)
            time.sleep(0.2)
            board.look()
            for future in [f for f in running if f.done()]:
                running.pop(future)
                future.result()
        board.look()


class Board:
    """What runs and how far it is, read from the run folders."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.tasks = {job.label: 0 for job in jobs}
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

    def look(self) -> None:
        for job in self.jobs:
            done = _records(job.folder)
            if len(done) > self.tasks[job.label]:
                self.tasks[job.label] = len(done)
                finished, last = sum(self.tasks.values()), done[-1]
                self.console.print(
                    f"[{finished}/{self.total}] {job.label}  task {len(done)}/"
                    f"{_tasks(job.config)}  accuracy on all classes seen "
                    f"{100 * over_images(last['accuracy']['class'], last['test_images']):.1f} %",
                    markup=False,
                )
                self.bar.update(self.id, completed=finished, description=job.label)


def _tasks(config: dict[str, Any]) -> int:
    tasks = config["stream"]["tasks"]
    return tasks if isinstance(tasks, int) else len(tasks)


def _records(folder: Path) -> list[dict[str, Any]]:
    try:
        lines = (folder / "records.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):  # not there yet, or damaged: the run will write it anew
        return []
