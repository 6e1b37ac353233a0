"""Jobs: runs that are to be made, and what they share.

Matched runs of one learner share their beginning: the first task, which no term touches yet, is
trained once and every run goes on from there. The results equal those of separate runs.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rightreasons import __version__
from rightreasons.registry import split_method
from rightreasons.runfiles import planned_tasks
from rightreasons.sweep.one import execute


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

    @property
    def tasks(self) -> int:
        return planned_tasks(self.config)

    @property
    def threads(self) -> int:
        """What it takes of a machine."""
        return int(self.config["train"]["threads"] or 1)


Work = Callable[[Job], object]


def make(job: Job) -> bool:
    """What a worker does with a job."""
    return execute(job.config, job.folder, False, job.prefix, job.checkpoint)


def nothing(job: Job) -> None:
    """Nothing is to be done after a job."""


def prefix_of(config: dict[str, Any], base: Path) -> Path:
    """Where, below a folder, the shared first task of this learner and seed is kept."""
    _, terms = split_method(config["method"])
    shared = {k: v for k, v in config.items() if k not in (*terms, "method")}
    shared["version"] = __version__
    text = json.dumps(shared, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return base / "prefix" / f"{digest}.pt"


def prefixes(configs: Sequence[dict[str, Any]], base: Path) -> list[Path | None]:
    """For each config the file of its first task, where another one needs it or it is there."""
    paths = [prefix_of(config, base) for config in configs]
    many = Counter(paths)
    return [path if many[path] > 1 or path.exists() else None for path in paths]
