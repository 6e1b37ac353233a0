"""CUB-200-2011 (Wah et al. 2011) from its official folder, with masks of the birds.

The few-shot benchmark (Tao et al., CVPR 2020) names its files in lists: ``session_K.txt`` and
``test_K.txt``, one ``CUB_200_2011/images/CLASS/FILE`` a line.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

from rightreasons.data.files import lines, locate, pair
from rightreasons.data.image import Item
from rightreasons.data.splits import Labelled, splits
from rightreasons.errors import DataWarning, UserError, unknown
from rightreasons.types import Splits

NAME = "CUB_200_2011"
WHERE = (
    f"get {NAME}.tgz and segmentations.tgz from the page of its authors (Caltech-UCSD Birds, "
    f"Perona lab), unpack the first below one folder for all data sets and the second inside "
    f"{NAME}, and set RRR_DATA to the folder above {NAME}"
)
FEW_SHOT = (
    "get session_1.txt, test_1.txt, ... from the few-shot benchmark's repository (FSCIL, folder "
    f"data/index_list/cub200) and put them into the folder fscil_cub200 beside {NAME}"
)


class Entry(NamedTuple):
    path: str  # below images/
    label: int
    train: bool


class Session(NamedTuple):
    """Files of one step of a few-shot stream, as paths below ``images/``."""

    train: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Cub200:
    """200 kinds of birds, about 30 train and 30 test images each, cut to a square.

    An image without a mask is kept; its mask is empty, and the pointing game leaves it out, unless
    ``boxes`` says that its bounding box will do.
    """

    path: str = ""
    """the folder; empty: `CUB_200_2011` below RRR_DATA"""
    size: int = 224
    """side of the images after reading"""
    masks: bool = True
    """read `segmentations`, inside the folder or beside it"""
    boxes: bool = False
    """where an image has no mask, its box of `bounding_boxes.txt` is one"""
    lists: str = ""
    """a folder with session_K.txt and test_K.txt: these files instead of the official split"""
    skip_bad: bool = False
    """leave out files that cannot be read"""

    flip: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 8:
            raise UserError(f"data.size is {self.size}, expected at least 8 pixels")

    @cached_property
    def base(self) -> Path:
        found = locate(self.path or NAME)
        for base in (found, found / NAME):
            if (base / "images.txt").is_file():
                return base
        seen = self.path or f"{os.environ.get('RRR_DATA', '$RRR_DATA')}/{NAME}"
        raise UserError(f"CUB-200-2011 is not in {seen}; {WHERE}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        rows = _table(self.base / "classes.txt")
        if list(rows) != [str(i + 1) for i in range(len(rows))] or not rows:
            raise UserError(f"{self.base / 'classes.txt'} does not count 1, 2, 3, ...; {WHERE}")
        return tuple(rows.values())

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """All images of the official lists."""
        paths, labels, parts = (
            _table(self.base / f"{name}.txt")
            for name in ("images", "image_class_labels", "train_test_split")
        )
        found = []
        for key, path in paths.items():
            label, part = labels.get(key, ""), parts.get(key, "")
            if label not in self._labels or part not in ("0", "1") or not _plain(path):
                raise UserError(
                    f"{self.base}: image {key} is {path!r} of class {label or 'unknown'} and part "
                    f"{part or 'unknown'}, expected CLASS/FILE, 1 to {len(self.names)}, and 0 or "
                    f"1; {WHERE}"
                )
            found.append(Entry(path, int(label) - 1, part == "1"))
        return tuple(found)

    @cached_property
    def _labels(self) -> set[str]:
        return {str(i + 1) for i in range(len(self.names))}

    @cached_property
    def segmentations(self) -> dict[str, str]:
        """Files of masks by the image's path; nothing where there are none."""
        for folder in (self.base / "segmentations", self.base.parent / "segmentations"):
            if folder.is_dir():
                return pair([entry.path for entry in self.entries], folder)
        return {}

    def load(self, classes: Sequence[int]) -> Splits:
        masks = self.masks and bool(self.segmentations or self.boxes)
        if self.masks and not masks:
            warnings.warn(
                f"{self.base} has no segmentations, so there are no masks; {WHERE}",
                DataWarning,
                stacklevel=2,
            )
        place = {c: i for i, c in enumerate(classes)}
        parts: tuple[Labelled, Labelled] = ([], [])
        for entry in sorted(self.chosen(), key=lambda e: place.get(e.label, -1)):
            if entry.label in place:
                mask = self.segmentations.get(entry.path, "") if masks else ""
                box = self._boxes.get(entry.path) if masks and not mask else None
                item = Item(str(self.base / "images" / entry.path), mask, box)
                parts[not entry.train].append((item, place[entry.label]))
        names = [self.names[c] for c in classes]
        if self.lists:
            self._check_lists(parts, names)
        return splits(*parts, names, self.size, masks, self.skip_bad, self.base)

    def _check_lists(self, parts: tuple[Labelled, Labelled], names: Sequence[str]) -> None:
        for part, file in zip(parts, ("session_K.txt", "test_K.txt"), strict=True):
            there = {label for _, label in part}
            missing = [name for label, name in enumerate(names) if label not in there]
            if missing:
                more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
                raise UserError(
                    f"class {missing[0]!r}{more} is in no {file} of {locate(self.lists)}, expected "
                    "every class of the stream; leave it out with stream.tasks, or add its list"
                )

    @cached_property
    def _boxes(self) -> dict[str, tuple[float, float, float, float]]:
        """x, y, width and height by the image's path, if they are asked for."""
        if not self.boxes:
            return {}
        file, found = self.base / "bounding_boxes.txt", {}
        paths = _table(self.base / "images.txt")
        for key, text in _table(file).items():
            try:
                x, y, width, height = box = tuple(map(float, text.split()))
                if not all(map(math.isfinite, box)):
                    raise ValueError
                found[paths[key]] = (x, y, width, height)
            except (ValueError, KeyError):
                raise UserError(
                    f"{file} has the line {key + ' ' + text!r}, expected the id of an image and "
                    f"four numbers; {WHERE}"
                ) from None
        return found

    def chosen(self) -> list[Entry]:
        """The images with the split that is asked for: the official one, or that of the lists."""
        if not self.lists:
            return list(self.entries)
        known = {entry.path: entry.label for entry in self.entries}
        found = []
        for k, session in enumerate(sessions(self.lists)):
            for train, paths in ((True, session.train), (False, session.test)):
                for path in paths:
                    if path not in known:
                        name = f"{'session' if train else 'test'}_{k + 1}.txt"
                        raise unknown(
                            f"image in {Path(self.lists) / name}", path, _near(path, known)
                        )
                    found.append(Entry(path, known[path], train))
        return found

    @property
    def unmasked(self) -> int:
        """How many of the images have no mask, whether a box will do or not."""
        return sum(entry.path not in self.segmentations for entry in self.chosen())


def sessions(folder: str | Path) -> tuple[Session, ...]:
    """Train and test files of each session of a few-shot benchmark's lists."""
    base = locate(str(folder))
    count = len(list(base.glob("session_*.txt")))
    if not count:
        raise UserError(f"{base} holds no session_1.txt; {FEW_SHOT}")
    made, seen = [], dict[str, str]()
    for k in range(1, count + 1):
        parts = []
        for name in (f"session_{k}.txt", f"test_{k}.txt"):
            if not (base / name).is_file():
                raise UserError(f"{base} holds {count} sessions and no {name}; {FEW_SHOT}")
            paths = tuple(_listed(line, base / name) for line in lines(base / name))
            for path in paths:
                if path in seen:
                    raise UserError(
                        f"{path} is in {seen[path]} and in {name} of {base}, expected each image "
                        "in one list, once; remove it from one"
                    )
                seen[path] = name
            parts.append(paths)
        made.append(Session(*parts))
    return tuple(made)


def _listed(line: str, file: Path) -> str:
    """``CUB_200_2011/images/CLASS/FILE`` -> ``CLASS/FILE``."""
    path = "/".join(line.replace("\\", "/").split("/")[-2:])
    if not _plain(path):
        raise UserError(
            f"{file} has the line {line!r}, expected {NAME}/images/CLASS/FILE; {FEW_SHOT}"
        )
    return path


def _plain(path: str) -> bool:
    """Is it CLASS/FILE, below the folder that it is joined to?"""
    parts = path.split("/")
    return len(parts) == 2 and all(part not in ("", ".", "..") for part in parts)


def _near(path: str, known: dict[str, int]) -> list[str]:
    """Choices that are worth comparing: files of the same class."""
    same = [other for other in known if other.split("/")[0] == path.split("/")[0]]
    return same or sorted({other.split("/")[0] for other in known})


def _table(file: Path) -> dict[str, str]:
    """Lines ``id value``."""
    found: dict[str, str] = {}
    for line in lines(file):
        key, _, value = line.partition(" ")
        if not value or key in found:
            raise UserError(f"{file} has the line {line!r}, expected a new id and a value; {WHERE}")
        found[key] = value.strip()
    return found
