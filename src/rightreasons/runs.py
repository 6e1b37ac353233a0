"""The run folder: config, environment, records, checkpoints, result; and going on with it."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rightreasons.checkpoints import (
    Place,
    by_task,
    fill,
    found_in,
    load_checkpoint,
    name_of,
    save_checkpoint,
)
from rightreasons.config import complete
from rightreasons.distributed import from_first
from rightreasons.errors import Damaged, RunWarning, UserError
from rightreasons.runfiles import (
    PARTIAL,
    Lock,
    contents,
    differences,
    dump_yaml,
    load_json,
    read_config,
    whole,
    write,
)
from rightreasons.wellformed import check_step, check_task

EVERY = 200  # steps between two checkpoints
KEPT = 2  # checkpoints inside a task: the last ones
INSIDE = ("checkpoints", "maps", "progress.jsonl")  # what is written to, and not replaced
BEYOND = ("extensions", "branch")  # keys of a config that no preset has


class Saved(NamedTuple):
    """What a run goes on from: the last finished task, and a step of the one after it."""

    task: dict[str, Any] | None = None
    step: dict[str, Any] | None = None


class Run:
    """A folder that holds one run.

    ``config.yaml`` is complete; ``records.jsonl`` has a line a task; ``checkpoints/task-K.pt`` and
    ``step-K-N.pt`` have tensors and plain containers only; ``maps/task-K.npz`` has the maps of the
    watched images after task K; ``progress.jsonl`` says how far training is; ``result.json`` is
    there once the run has ended.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config
        self.lock: Lock | None = None

    @property
    def finished(self) -> bool:
        """Is the result there, with records and the checkpoint that it belongs to?"""
        result, records = (self.folder / name for name in ("result.json", "records.jsonl"))
        done = list(by_task(self.folder).values())
        try:
            tasks = len(load_json(contents(result))["R"])
            last = check_task(load_checkpoint(done[-1]), done[-1])
            same = contents(records) == _lines(last).encode()
            return same and len(last["records"]) == tasks
        except (OSError, ValueError, LookupError, TypeError):  # missing, damaged, or not yet there
            return False

    def check(self) -> bool:
        """Refuse a folder that holds something else; is there a run already?"""
        path = self.folder / "config.yaml"
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file, expected a folder; pass another --out")
        for name in INSIDE:
            if (self.folder / name).is_symlink():
                raise UserError(
                    f"{self.folder / name} is a link, and a run writes in its own folder alone; "
                    "put there what it leads to, or pass another --out"
                )
        if path.exists():
            different = differences(_today(read_config(self.folder)), self.config)
            if different:
                raise UserError(
                    f"{self.folder} holds a run of another config ({'; '.join(different[:4])}); "
                    "pass another --out (from Python: run=) or remove the folder"
                )
            return True
        if self.folder.exists() and any(f.suffix != PARTIAL for f in self.folder.iterdir()):
            raise UserError(
                f"{self.folder} is not empty and holds no run; pass another --out for a new folder"
            )
        return False

    def open(self, start: dict[str, Any] | None = None) -> Saved:
        """Start the folder, or return what the run that it holds goes on from.

        ``start`` is the state of another run's checkpoint that this one begins with. Of several
        processes the first one alone has the folder.
        """
        return Saved(**from_first(lambda: self._open(start)._asdict()))

    def _open(self, start: dict[str, Any] | None) -> Saved:
        self.check()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = Lock(self.folder)
        if not self.check():
            write(self.folder / "config.yaml", dump_yaml(self.config))
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        for place in (self.folder, self.folder / "checkpoints", self.folder / "maps"):
            for left in place.glob(f"*{PARTIAL}"):
                left.unlink()  # of a process that was killed while it wrote
        saved = self._newest(start)
        anew = saved.task is start and saved.step is None  # all of it will be trained here and now
        if anew or not (self.folder / "environment.json").exists():
            write(self.folder / "environment.json", json.dumps(environment(), indent=1) + "\n")
        if anew:
            for name in ("records.jsonl", "result.json"):  # of a run whose checkpoints are gone
                (self.folder / name).unlink(missing_ok=True)
        if saved.task is not None:
            self._write_records(saved.task)
        return saved

    def close(self) -> None:
        if self.lock is not None:
            self.lock.free()
            self.lock = None

    def _newest(self, start: dict[str, Any] | None) -> Saved:
        """The newest checkpoint that can be read, with a warning for every one that cannot."""
        begins = (len(start["records"]), 0) if start else (0, 0)
        bad = False
        for place in self._places(begins):
            try:
                saved = self._load(place, start, begins)
            except Damaged as error:
                warnings.warn(f"{error}; the one before it is used", RunWarning, stacklevel=3)
                bad = True
                continue
            return saved
        if bad:
            warnings.warn(
                f"no checkpoint in {self.folder} can be read; the run begins anew",
                RunWarning,
                stacklevel=3,
            )
        if start is not None:
            save_checkpoint(self._path(begins), start)
        return Saved(start)

    def _places(self, begins: Place) -> Iterator[Place]:
        return (place for place in reversed(found_in(self.folder)) if place >= begins)

    def _load(self, place: Place, start: dict[str, Any] | None, begins: Place) -> Saved:
        tasks, steps = place
        task = None
        if (tasks, 0) == begins:
            task = start
        elif tasks:
            path = self._path((tasks, 0))
            task = check_task(load_checkpoint(path), path)
            if len(task["records"]) != tasks:
                raise Damaged(f"{path} is not of task {tasks}")
        if not steps:
            return Saved(task)
        path = self._path(place)
        step = check_step(load_checkpoint(path), path)
        if step["steps"] != steps:
            raise Damaged(f"{path} is not of step {steps}")
        try:
            learner = fill(step["learner"], task["learner"] if task else {})
        except Damaged as error:
            raise Damaged(f"{path} cannot be used: {error}") from error
        return Saved(task, step | {"learner": learner})

    def _path(self, place: Place) -> Path:
        return self.folder / "checkpoints" / name_of(place)

    def save(self, tasks: int, state: dict[str, Any]) -> None:
        """The checkpoint of a finished task, then the records."""
        save_checkpoint(self._path((tasks, 0)), state)
        self._write_records(state)

    def save_step(self, tasks: int, steps: int, state: dict[str, Any]) -> None:
        """A checkpoint inside the task after so many; only the last ones are kept."""
        here = (tasks, steps)
        save_checkpoint(self._path(here), state)
        inside = [place for place in found_in(self.folder) if place[1]]
        before = [place for place in inside if place <= here]
        for place in (*before[:-KEPT], *(p for p in inside if p > here)):
            self._path(place).unlink()  # a later one could not be read, or this would not be here

    def _write_records(self, state: dict[str, Any]) -> None:
        path = self.folder / "records.jsonl"
        if not path.is_file() or path.read_bytes() != _lines(state).encode():
            write(path, _lines(state))

    def save_maps(self, task: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The watched images after a task; written again, the file is the same."""
        (self.folder / "maps").mkdir(exist_ok=True)
        content = io.BytesIO()
        np.savez_compressed(content, allow_pickle=False, **arrays)
        with whole(self.folder / "maps" / f"task-{task}.npz") as sink:
            sink.write(content.getvalue())

    def finish(self, summary: dict[str, Any]) -> None:
        """The result, last: nobody goes on with a run that has one."""
        for place, path in found_in(self.folder).items():
            if place[1]:
                path.unlink()
        write(self.folder / "result.json", json.dumps(summary, indent=1) + "\n")


def _lines(state: dict[str, Any]) -> str:
    """One a task."""
    return "\n".join(json.dumps(record) for record in state["records"]) + "\n"


def _today(config: dict[str, Any]) -> dict[str, Any]:
    """A config that an older version wrote, with the defaults of keys that it did not know."""
    if "benchmark" not in config:
        return config
    extra = {key: config[key] for key in BEYOND if key in config}
    return complete(config) | extra


def environment() -> dict[str, str]:
    from rightreasons import __version__

    return {
        "rightreasons": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),  # others round otherwise
        "source": _source(),
    }


def _source() -> str:
    """A digest of the package's own modules: which code it was, between two versions."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + file.read_bytes())
    return digest.hexdigest()[:12]
