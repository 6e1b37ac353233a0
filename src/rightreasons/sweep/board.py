"""What runs and how far it is, what is done and what failed: a live table, or plain lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from rightreasons.errors import printable
from rightreasons.metrics import over_images, percent
from rightreasons.progress import duration, last_note
from rightreasons.reports.check import damage
from rightreasons.reports.table import Table
from rightreasons.runfiles import load_json
from rightreasons.sweep.jobs import Job

WAITS, RUNS, DONE, FAILED = "waits", "runs", "done", "failed"


class Board:
    """Read from the folders of the runs that are under way.

    Tasks that end and runs that fail are lines that stay; a terminal has the table below them.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        counts = Counter(job.label for job in jobs)
        self.labels = {  # two of one name are told apart by their folders
            job: job.label if counts[job.label] == 1 else f"{job.label} ({job.folder})"
            for job in jobs
        }
        self.states = dict.fromkeys(jobs, WAITS)
        self.tasks = dict.fromkeys(jobs, 0)
        self.sizes = dict.fromkeys(jobs, 0)
        self.total = sum(job.tasks for job in jobs)
        self.console = Console(stderr=True, highlight=False)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.id = self.bar.add_task("", total=self.total)
        self.live = Live(console=self.console, get_renderable=self.table, refresh_per_second=1)

    def __enter__(self) -> Board:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    @property
    def finished(self) -> int:
        """Tasks that have ended, of all runs."""
        return sum(self.tasks.values())

    def begin(self, job: Job) -> None:
        self.states[job] = RUNS

    def end(self, job: Job, error: BaseException | None) -> None:
        self.states[job] = DONE if error is None else FAILED
        self.look([job])
        if error is not None and len(self.labels) > 1:
            self.say(job, f"failed: {error}")

    def say(self, job: Job, what: str) -> None:
        """A line that stays."""
        line = f"[{self.finished}/{self.total}] {self.labels[job]}  {printable(what)}"
        self.console.print(line, markup=False, soft_wrap=True)

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
                self.say(job, f"task {len(done)}/{job.tasks}  {_accuracy(done[-1])}")
                self.bar.update(self.id, completed=self.finished)

    def table(self) -> Group:
        """What runs and what failed, a row each; the rest as numbers."""
        rows = []
        for job, state in self.states.items():
            if state in (RUNS, FAILED):
                note = last_note(job.folder) if state == RUNS else None
                at = f"{note['at']}, about {duration(note['left'])} left" if note else ""
                rows.append([self.labels[job], state, f"{self.tasks[job]}/{job.tasks}", at])
        many = Counter(self.states.values())
        words = ", ".join(f"{many[state]} {_PLURAL[state]}" for state in _PLURAL if many[state])
        table = Table("", ["run", "", "tasks", "at"], rows).rich()
        table.title = None
        return Group(*([table] if rows else []), Text(words), self.bar)


_PLURAL = {RUNS: "run", WAITS: "wait", DONE: "done", FAILED: "failed"}


def _accuracy(record: dict[str, Any]) -> str:
    seen = over_images(record["accuracy"]["class"], record["test_images"])
    return f"accuracy on all classes seen {percent(seen)}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # not there yet
        return 0


def _records(folder: Path) -> list[dict[str, Any]]:
    """Whole records of a run; a damaged one is left out, and the run will write it anew."""
    try:
        lines = (folder / "records.jsonl").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
    whole_ones = [line for k, line in enumerate(lines) if not damage(line, k)]
    return [load_json(line) for line in whole_ones]
