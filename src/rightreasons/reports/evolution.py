"""The watched images of a run: what the model said of them after every task, where it looked."""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rightreasons.pointing import enlarge, peaks
from rightreasons.reports.read import Group, Line, RunData
from rightreasons.runfiles import contents

Place = tuple[int, int]  # task of the image, and which of the task's watched images
DAMAGE: tuple[type[Exception], ...] = (
    *(ValueError, LookupError, TypeError, EOFError, OSError, RuntimeError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)  # what NumPy raises on an archive of arrays with a byte that is another


@dataclass(frozen=True)
class Picture:
    """One watched image; of which task and class it is."""

    place: Place
    name: str
    pixels: NDArray[np.uint8]  # (h,w,3)
    mask: NDArray[np.bool_] | None  # (h,w), None where unknown

    @property
    def title(self) -> str:
        return f"{self.name}, test image {self.place[1] + 1} of task {self.place[0] + 1}"


@dataclass(frozen=True)
class Look:
    """A picture after a task. Maps run from 0 to 1; ``peak`` is row and column as shares."""

    answer: str
    correct: bool
    hit: bool
    map: NDArray[np.float32]  # (u,v) of the class predicted
    peak: tuple[float, float] | None  # None: no place speaks for it
    label_map: NDArray[np.float32]  # of the true class
    label_peak: tuple[float, float] | None


@dataclass
class Evolution:
    """All looks of a run: ``looks[place][k]`` is the one after task k (from 1)."""

    pictures: dict[Place, Picture] = field(default_factory=dict)
    looks: dict[Place, dict[int, Look]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_maps(run: RunData) -> Evolution:
    """What the run folder keeps of its watched images, up to a file that is damaged or missing:
    later ones refer to its images and names."""
    found = Evolution()
    if run.folder is None:
        return found
    names: list[str] = []
    older = [Path(step["run"]) for step in reversed(run.config.get("extensions", []))]
    for k in range(1, len(run.records) + 1):
        # runs that older versions extended left the maps where they were
        paths = [folder / "maps" / f"task-{k}.npz" for folder in (run.folder, *older)]
        path = next((path for path in paths if path.exists()), None)
        if path is None:
            later = run.folder.glob("maps/task-*.npz")
            if any(True for _ in later):  # which say nothing without the images of this task
                found.problems.append(f"{run.name}/maps has no task-{k}.npz: its maps are left out")
            break
        try:
            with np.load(io.BytesIO(contents(path)), allow_pickle=False) as arrays:
                _add(found, dict(arrays), k, names)
        except DAMAGE:
            found.problems.append(
                f"{run.name}/maps/{path.name} is damaged: maps from task {k} on are left out"
            )
            break
    return found


def _add(found: Evolution, arrays: dict[str, NDArray[Any]], k: int, names: list[str]) -> None:
    names += [str(name) for name in arrays["names"]]
    new = [j for j, (task, _) in enumerate(arrays["image"].tolist()) if task == k - 1]
    for i, j in enumerate(new):
        place = tuple(arrays["image"][j].tolist())
        mask = arrays["masks"][i] if "masks" in arrays and arrays["masks"][i].any() else None
        name = names[int(arrays["label"][j])]
        found.pictures[place] = Picture(place, name, arrays["pixels"][i], mask)
    for j, place in enumerate(map(tuple, arrays["image"].tolist())):
        picture = found.pictures[place]
        label_map = arrays["label_maps"][j].astype(np.float32)
        found.looks.setdefault(place, {})[k] = Look(
            names[int(arrays["answer"][j])],
            bool(arrays["answer"][j] == arrays["label"][j]),
            bool(arrays["hit"][j]),
            arrays["maps"][j].astype(np.float32),
            tuple(arrays["peak"][j].tolist()) if arrays["tops"][j] > 0 else None,
            label_map,
            _peak(label_map, picture.pixels.shape[:2]) if arrays["label_tops"][j] > 0 else None,
        )


def _peak(values: NDArray[np.float32], size: tuple[int, ...]) -> tuple[float, float]:
    row, column = peaks(enlarge(torch.from_numpy(values)[None], (size[0], size[1])))
    return (float(row) + 0.5) / size[0], (float(column) + 0.5) / size[1]


@dataclass
class Gallery:
    """Matched runs of one seed that watched the same pictures."""

    seed: int
    pictures: list[Picture]
    looks: dict[str, dict[Place, dict[int, Look]]]  # by the line's label
    missing: list[str]  # runs of this seed without maps
    problems: list[str]

    @property
    def example(self) -> Picture:
        """The picture that stands for all: the first of task 2, as in the paper's figure.

        Of two tasks the first one: a picture of the last task has no later map to compare.
        """
        task = 1 if self.tasks > 2 else 0
        return next((p for p in self.pictures if p.place[0] == task), self.pictures[0])

    @property
    def tasks(self) -> int:
        return max(k for looks in self.looks.values() for after in looks.values() for k in after)


def gallery(found: Group, seed: int | None = None) -> Gallery | None:
    """The pictures of one seed; by default the first among those that most methods have."""
    if seed is None:
        kept = [run.seed for run in found.runs if run.folder and (run.folder / "maps").is_dir()]
        if not kept:
            return None
        seed = min(kept, key=lambda s: (-kept.count(s), s))
    return _gallery(seed, found.lines)


def _gallery(seed: int, lines: Iterable[Line]) -> Gallery | None:
    own = [(line.label, run) for line in lines for run in line.runs if run.seed == seed]
    made = Gallery(seed, [], {}, [], [])
    known: dict[Place, Picture] = {}  # of the first run that has it: another may be further
    for label, run in own:
        found = read_maps(run)
        made.problems += found.problems
        pictures = [found.pictures[place] for place in sorted(found.pictures)]
        if not pictures:
            made.missing.append(run.name)
            continue
        alike = [p for p in pictures if _same(p, known.setdefault(p.place, p))]
        if alike:
            made.looks[label] = {p.place: found.looks[p.place] for p in alike}
        else:
            made.missing.append(run.name)
    made.pictures = [known[place] for place in sorted(known)]
    return made if made.looks else None


def _same(one: Picture, other: Picture) -> bool:
    return np.array_equal(one.pixels, other.pixels)
