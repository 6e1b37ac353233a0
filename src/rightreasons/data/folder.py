"""Class folders as a data source: ``train/CLASS/*`` and ``val/CLASS/*``, or just ``CLASS/*``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch

from rightreasons.data.files import (
    SHIPPED,
    below,
    class_list,
    folders,
    harmless,
    lines,
    listing,
    locate,
    nested,
    pair,
    read_boxes,
)
from rightreasons.data.image import Item
from rightreasons.data.splits import splits
from rightreasons.errors import DataWarning, UserError, unknown
from rightreasons.randomness import generator
from rightreasons.types import Splits

TESTS = ("val", "test", "valid", "validation")  # the first that is there
ANNOTATIONS = "val_annotations.txt"  # Tiny-ImageNet: val/images/* and a line with each one's class
FORMATS = ("xywh", "xyxy")
WHERE = {  # how to get the folders that benchmarks look for
    "imagenet": (
        "get ImageNet (ILSVRC2012) from image-net.org, where you must register, lay it out as "
        "imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG (torchvision.datasets.ImageNet "
        "does it with the official archives) below one folder for all data sets, and set RRR_DATA "
        "to that folder"
    ),
    "tiny-imagenet-100": (
        "get tiny-imagenet-200.zip from the pages of Stanford's course CS231n, unpack it below one "
        "folder for all data sets, set RRR_DATA to that folder, and type data.path="
        "tiny-imagenet-200 \"data.boxes=''\""
    ),
}


@dataclass(frozen=True)
class Folder:
    """Images in one folder a class, read upright, in RGB, cut to a square.

    With ``train`` and ``val`` (or ``test``, ``valid``, ``validation``) folders these are the
    splits; otherwise a share ``test`` of each class's images, at least one, is held out by
    ``seed``. Paths that do not exist as given are looked for below the folder and below
    ``RRR_DATA``.
    """

    path: str
    size: int = 32
    """side of the images after reading"""
    test: float = 0.2
    """share of each class that is held out, where the folder has no split of its own"""
    seed: int = 0
    masks: str = ""
    """a folder like this one with a mask at each image's path (any image ending; bright: object)"""
    boxes: str = ""
    """a file with lines `path x y width height`, path below this folder, instead of masks"""
    box_format: str = "xywh"
    """numbers of a box: xywh, or xyxy for its first and last column and row, counted from 0"""
    classes: str = ""
    """a file with one class name a line: these classes, in this order; imagenet100.txt ships"""
    skip_bad: bool = False
    """leave out files that cannot be read"""

    flip: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.size < 8:
            raise UserError(f"data.size is {self.size}, expected at least 8 pixels")
        if not 0 < self.test < 1:
            raise UserError(f"data.test is {self.test}, expected a share between 0 and 1")
        if self.box_format not in FORMATS:
            raise unknown("data.box_format", self.box_format, FORMATS)
        if self.masks and self.boxes:
            raise UserError("data.masks and data.boxes are both given; give one of them")

    @cached_property
    def base(self) -> Path:
        found = locate(self.path)
        if not found.is_dir():
            data = os.environ.get("RRR_DATA")
            place = f" (looked for in {data} too)" if data else ""
            hint = self._where or "pass a folder with one folder a class"
            raise UserError(f"{self.path} is not a folder{place}; {hint}")
        return found

    @property
    def _where(self) -> str:
        """How to get this folder, if it is one that a benchmark looks for."""
        return WHERE.get(Path(self.path).name, "")

    @cached_property
    def roots(self) -> tuple[Path, Path | None]:
        """Where the class folders are, for train and, if it is apart, for test."""
        train = self.base / "train"
        tests = [self.base / name for name in TESTS if (self.base / name).is_dir()]
        if not train.is_dir() or (not tests and self._is_class(train)):
            return self.base, None
        return train, tests[0] if tests else None

    def _is_class(self, folder: Path) -> bool:
        """Is it one of several class folders? There are pictures of trains."""
        beside = [f for f in folders(folder.parent) if f != folder]
        return (
            not folders(folder) and bool(listing(folder)[0]) and any(listing(f)[0] for f in beside)
        )

    @property
    def unused(self) -> list[Path]:
        """Folders beside ``train`` that have images and are no split."""
        if self.roots[0] == self.base:
            return []
        beside = [f for f in folders(self.base) if f not in self.roots]
        masks = self._masks
        if masks is not None:
            beside = [f for f in beside if not masks.is_relative_to(f.resolve())]
        return [f for f in beside if any(_usable(f))]

    @property
    def _masks(self) -> Path | None:
        return locate(self.masks, self.base).resolve() if self.masks else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        train, test = self.roots
        found = self._class_folders(train)
        if not found:
            hint = self._where or "put the images of each class in one"
            raise UserError(f"{train} holds no class folder; {hint}")
        if self.classes:
            return self._listed(found)
        if test is not None and not (test / ANNOTATIONS).exists():
            for name in self._class_folders(test):
                if name not in found:
                    raise UserError(
                        f"class folder {test / name} has test images and there is no {train / name}"
                        "; add train images, or remove it"
                    )
        return tuple(found)

    def _listed(self, found: Sequence[str]) -> tuple[str, ...]:
        """The classes of the list; every one must have a folder."""
        file, names = class_list(self.classes, self.base)
        known = set(found)
        missing = [name for name in names if name not in known]
        ships = file.parent == SHIPPED
        if len(missing) == 1 and not ships:
            raise unknown(f"class in {file}", missing[0], found)
        if missing:
            hint = WHERE["imagenet"] if ships else "add their folders, or take them off the list"
            raise UserError(
                f"{self.roots[0]} lacks {len(missing)} of the {len(names)} classes of {file}, such "
                f"as {missing[0]}; {hint}"
            )
        return names

    def _class_folders(self, root: Path) -> list[str]:
        masks = self._masks
        return [f.name for f in folders(root) if masks is None or f.resolve() != masks]

    def load(self, classes: Sequence[int]) -> Splits:
        names = [self.names[c] for c in classes]
        files = [self.files(name) for name in names]
        for what in self.left_out(names):
            warnings.warn(what, DataWarning, stacklevel=2)
        every = [f for parts in files for part in parts for f in part]
        items = self._items(every)
        train, test = (
            [(items[f], label) for label, parts in enumerate(files) for f in parts[k]]
            for k in (0, 1)
        )
        masks = bool(self.masks or self.boxes)
        return splits(train, test, names, self.size, masks, self.skip_bad, self.base)

    def files(self, name: str) -> tuple[list[Path], list[Path]]:
        """Train and test files of a class, in the order of their names."""
        train, test = self.roots
        files = listing(train / name)[0]
        if not files:
            raise self._without(train / name)
        if test is not None:
            held = self._annotated.get(name, []) if self._annotated else listing(test / name)[0]
            if not held and listing(test)[0]:
                hint = self._where or f"put those of each class in a folder, such as {test / name}"
                raise UserError(f"the images in {test} lie in no class folder; {hint}")
            if not held:
                raise UserError(
                    f"class {name!r} has no test image; put some in {test / name}, or remove "
                    f"{train / name}"
                )
            return files, held
        if len(files) < 2:
            raise UserError(
                f"class folder {train / name} has one image, expected two or more, one to train "
                "and one to test"
            )
        order = torch.randperm(len(files), generator=generator(self.seed, "data", "split", name))
        count = min(max(1, round(self.test * len(files))), len(files) - 1)
        chosen = set(order[:count].tolist())
        return (
            [f for i, f in enumerate(files) if i not in chosen],
            [f for i, f in enumerate(files) if i in chosen],
        )

    def _without(self, folder: Path) -> UserError:
        """For a class folder without images; masks may have been put beside the classes."""
        deep = nested(folder)
        inner = {f.name for f in folders(folder)}
        if folder.parent == self.base and inner & set(self._class_folders(self.base)):
            return UserError(
                f"class folder {folder} has no image of its own, but folders of other classes; if "
                f"they hold masks, type data.masks={folder.name} with rrr run, otherwise remove it"
            )
        if deep:
            return UserError(
                f"class folder {folder} has no image of its own, but {len(deep)} in folders below, "
                f"such as {deep[0]}; move them into the class folder, or remove it"
            )
        return UserError(f"class folder {folder} has no image; add some, or remove it")

    @cached_property
    def _annotated(self) -> dict[str, list[Path]]:
        """Test files by class, where one file says which is which."""
        test = self.roots[1]
        if test is None or not (test / ANNOTATIONS).is_file():
            return {}
        found: dict[str, list[Path]] = {}
        for line in lines(test / ANNOTATIONS):
            words = line.split("\t") if "\t" in line else line.split()
            if len(words) < 2 or not harmless(words[0]):
                raise UserError(
                    f"{test / ANNOTATIONS} has the line {line!r}, expected `file class`"
                )
            found.setdefault(words[1], []).append(test / "images" / words[0])
        return {name: sorted(files) for name, files in found.items()}

    def left_out(self, names: Sequence[str]) -> list[str]:
        """What lies in the folder and is not used, a sentence a kind."""
        places = [root / name for root in self.roots if root is not None for name in names]
        others = [f for place in places for f in listing(place)[1]]
        deep = [f for place in places for f in nested(place)]
        said = []
        if others:
            said.append(
                f"{len(others)} files in class folders have no image ending and are left out, such "
                f"as {others[0]}"
            )
        if deep:
            said.append(
                f"{len(deep)} images in folders below class folders are left out, such as "
                f"{deep[0]}; move them into the class folder"
            )
        unused = self.unused
        if unused:
            train, test = self.roots
            more = f" (and {len(unused) - 1} more)" if len(unused) > 1 else ""
            said.append(
                f"images in {unused[0]}{more} are not used: {train} trains and "
                f"{test or 'a share of it'} tests; to test on them call the folder {TESTS[0]}, and "
                f"if they are masks type data.masks={unused[0].name} with rrr run"
            )
        return said

    def _items(self, files: Sequence[Path]) -> dict[Path, Item]:
        """Each file with its mask or box."""
        relative = {f: f.relative_to(self.base) for f in files}
        if self.boxes:
            file = locate(self.boxes, self.base)
            boxes = read_boxes(file, self.box_format)
            items = {f: Item(str(f), "", boxes.get(r.as_posix())) for f, r in relative.items()}
            if not any(item.box for item in items.values()):
                raise UserError(
                    f"{file} has no box for any image, expected lines such as "
                    f"`{next(iter(relative.values())).as_posix()} 4 2 40 50`"
                )
            return items
        if not self.masks:
            return {f: Item(str(f)) for f in files}
        paths = [r.as_posix() for r in relative.values()]
        masks = pair(paths, locate(self.masks, self.base))
        items = {f: Item(str(f), masks.get(r.as_posix(), "")) for f, r in relative.items()}
        if not any(item.mask for item in items.values()):
            wanted = Path(self.masks) / next(iter(relative.values())).with_suffix(".png")
            raise UserError(
                f"{self.masks} has no mask of any image, expected files such as {wanted}"
            )
        return items


def _usable(folder: Path) -> Iterator[Path]:
    """Images in a folder beside ``train``; those of a test split only if their class is known."""
    if folder.name not in TESTS:
        return below(folder)
    return (image for f in folders(folder) if f.name != "images" for image in below(f))
