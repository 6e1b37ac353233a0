"""The run folder: config, environment, records, checkpoints, result; and going on with it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from rightreasons.config import complete
from rightreasons.errors import UserError
from rightreasons.runfiles import differences, read_yaml, whole, write


class Run:
    """A folder that holds one run.

    ``config.yaml`` is complete; ``records.jsonl`` has a line a task; ``checkpoints/task-K.pt`` has
    tensors and plain containers only; ``maps/task-K.npz`` has the maps of the watched images after
    task K; ``progress.jsonl`` says how far training is; ``result.json`` is there once it has ended.
    """

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config = folder, config

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").exists()

    def open(self) -> dict[str, Any] | None:
        """Start the folder, or return the last checkpoint of the run that it holds."""
        path = self.folder / "config.yaml"
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file, expected a folder; pass another --out")
        if path.exists():
            different = differences(_today(read_yaml(path)), self.config)
            if different:
                raise UserError(
                    f"{self.folder} holds a run of another config ({'; '.join(different[:4])}); "
                    "pass another --out or remove the folder"
                )
        elif self.folder.exists() and any(f.suffix != ".partial" for f in self.folder.iterdir()):
            raise UserError(
                f"{self.folder} is not empty and holds no run; pass another --out for a new folder"
            )
        else:
            text = yaml.safe_dump(self.config, sort_keys=False, allow_unicode=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            write(path, text)
            write(self.folder / "environment.json", json.dumps(environment(), indent=1) + "\n")
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        return self._last()

    def _last(self) -> dict[str, Any] | None:
        done = checkpoints(self.folder)
        return load_checkpoint(done[-1]) if done else None

    def save(self, task: int, state: dict[str, Any]) -> None:
        """The checkpoint of a finished task, then the records."""
        path = self.folder / "checkpoints" / f"task-{task}.pt"
        save_checkpoint(path, state)
        lines = [json.dumps(record) for record in state["records"]]
        write(self.folder / "records.jsonl", "\n".join(lines) + "\n")

    def save_maps(self, task: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """The watched images after a task; written again, the file is the same."""
        (self.folder / "maps").mkdir(exist_ok=True)
        with whole(self.folder / "maps" / f"task-{task}.npz") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    def finish(self, summary: dict[str, Any]) -> None:
        write(self.folder / "result.json", json.dumps(summary, indent=1) + "\n")


def _today(config: dict[str, Any]) -> dict[str, Any]:
    """A config that an older version wrote, with the defaults of keys that it did not know."""
    if "benchmark" not in config:
        return config
    extra = {key: config[key] for key in ("extensions",) if key in config}
    return complete(config) | extra


def checkpoints(folder: Path) -> list[Path]:
    """Task checkpoints in order."""
    found = (folder / "checkpoints").glob("task-*.pt")
    return sorted(found, key=lambda path: int(path.stem.removeprefix("task-")))


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    with whole(path) as file:
        torch.save(state, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def environment() -> dict[str, str]:
    from rightreasons import __version__

    return {
        "rightreasons": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
    }
