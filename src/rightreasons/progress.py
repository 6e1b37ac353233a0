"""Progress of a run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rightreasons.runfiles import load_json

SILENCE = 10.0  # seconds without a plain line, at most
NOTED = {"at", "step", "of", "left", "losses", "time"}  # keys of a line of the diary


class Reporter:
    """Says where a run is: task, epoch, loss and terms, time left.

    ``label`` stands before every line, so that the lines of several runs can be told apart.
    ``diary`` is a file that gets a line now and then, shown or not.
    """

    def __init__(
        self,
        label: str,
        steps: int,
        done: int = 0,
        show: bool = True,
        diary: Path | None = None,
        unit: str = "steps",
    ) -> None:
        self.label, self.steps, self.done, self.show, self.unit = label, steps, done, show, unit
        self.begun, self.at_start, self.said = time.monotonic(), done, time.monotonic()
        self.diary, self.noted = diary, time.monotonic()
        self.console = Console(file=sys.stderr)
        self.bar: Progress | None = None
        self.id: TaskID | None = None
        if show and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[means]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self.console,
            )
            self.id = self.bar.add_task(label, total=steps, completed=done, means="")

    def __enter__(self) -> Reporter:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar:
            self.bar.stop()

    def at(self, where: str, steps: int, means: Mapping[str, float]) -> None:
        """``steps`` more are done; ``means`` are the latest losses."""
        self.done += steps
        self._note(where, means)
        text = "  ".join(f"{name} {value:.3g}" for name, value in means.items())
        if self.bar is not None and self.id is not None:
            self.bar.update(
                self.id, completed=self.done, description=f"{self.label}  {where}", means=text
            )
        elif time.monotonic() - self.said > SILENCE:
            self.say("  ".join(filter(None, (where, text, self._left()))))

    def _note(self, where: str, means: Mapping[str, float]) -> None:
        """A line in the run's own file, for whoever follows it from elsewhere."""
        if self.diary is None or time.monotonic() - self.noted < SILENCE:
            return
        self.noted = time.monotonic()
        left = self._seconds_left()
        line = {"at": where, "step": self.done, "of": self.steps, "left": left, "losses": means}
        with self.diary.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"time": time.time()}) + "\n")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.show:
            return
        self.said = time.monotonic()
        if self.bar is not None:
            self.bar.console.print(f"{self.label}  {text}", highlight=False, markup=False)
        else:
            print(f"{self.label}  {text}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        text = f"{self.done}/{self.steps} {self.unit}"
        if self.done == self.at_start:  # nothing is known of their pace
            return text
        return f"{text}, about {duration(self._seconds_left())} left"

    def _seconds_left(self) -> float:
        new = self.done - self.at_start
        return (time.monotonic() - self.begun) / max(new, 1) * (self.steps - self.done)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def notes(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's diary; one that is being written is not read."""
    path = folder / "progress.jsonl"
    lines = path.read_text("utf-8", errors="replace").splitlines() if path.is_file() else []
    found = []
    for line in lines:
        try:
            note = load_json(line)
        except ValueError:
            continue
        if isinstance(note, dict) and set(note) >= NOTED and isinstance(note["losses"], dict):
            found.append(note)
    return found


def last_note(folder: Path) -> dict[str, Any] | None:
    found = notes(folder)
    return found[-1] if found else None
