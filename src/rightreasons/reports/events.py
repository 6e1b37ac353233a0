"""TensorBoard events of runs, written from their folders: finished ones too, and while they run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import TracebackType
from typing import Any

from rightreasons.errors import UserError
from rightreasons.progress import notes
from rightreasons.reports.curves import CURVES, curve
from rightreasons.reports.read import Book, RunData


class Events:
    """One folder of events a run. Curves are by task; losses are by step while it trains."""

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError(
                "TensorBoard events need the package tensorboard; type "
                "pip install 'rightreasons[tensorboard]'"
            )
        self.folder = folder
        self.writers: dict[str, Any] = {}
        self.done: dict[str, tuple[int, int]] = {}  # records and notes that are written

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self.writers.values():
            writer.close()

    def add(self, book: Book) -> None:
        """What is new since the last time."""
        for group in book.groups:
            for run in group.runs:
                self._add(run)

    def _add(self, run: RunData) -> None:
        records, lines = self.done.get(run.name, (0, 0))
        known = notes(run.folder) if run.folder else []
        if (len(run.records), len(known)) == (records, lines):
            return
        writer = self._writer(run.name)
        for measure in CURVES:
            for k, value in list(enumerate(curve(run, measure) or ()))[records:]:
                writer.add_scalar(f"tasks/{measure}", value, k + 1)
        for k, record in list(enumerate(run.records))[records:]:
            for name, value in record.get("losses", {}).items():
                writer.add_scalar(f"tasks/loss {name}", value, k + 1)
        for note in known[lines:]:
            for name, value in note["losses"].items():
                writer.add_scalar(f"steps/loss {name}", value, note["step"], note["time"])
        writer.flush()
        self.done[run.name] = (len(run.records), len(known))

    def _writer(self, name: str) -> Any:
        if name not in self.writers:
            from torch.utils.tensorboard import SummaryWriter

            inside = [part for part in Path(name).parts if part not in ("..", Path(name).anchor)]
            folder = self.folder.joinpath(*inside)  # wherever the run lies
            for old in folder.glob("events.out.tfevents.*"):  # what is written again would be twice
                old.unlink()
            self.writers[name] = SummaryWriter(str(folder))
        return self.writers[name]
