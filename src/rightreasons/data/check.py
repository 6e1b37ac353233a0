"""Is a data set complete and readable? Counts, what is missing, where to get it, how to lay it out.

Everything is read and nothing is written or downloaded.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rightreasons.data import cifar100, cub200, folder
from rightreasons.data.cache import cores
from rightreasons.data.cifar100 import Cifar100
from rightreasons.data.cub200 import Cub200, sessions
from rightreasons.data.files import listing, locate
from rightreasons.data.folder import Folder
from rightreasons.data.image import Item, Unreadable, quiet, read_item
from rightreasons.data.splits import darkest
from rightreasons.errors import DataWarning, UserError
from rightreasons.progress import Reporter

CIFAR = {"train": 50_000, "test": 10_000}  # images
CUB = {"classes": 200, "train": 5_994, "test": 5_794}
SIDE = 32  # images are decoded to this size: enough to see that they can be
NAMED = 3  # bad files that are named; the others are counted
LAYOUT = "lay them out as FOLDER/CLASS/*, or as FOLDER/train/CLASS/* and FOLDER/val/CLASS/*"
WHERE = {
    "CIFAR-100": cifar100.WHERE,
    "CUB-200-2011": cub200.WHERE,
    "ImageNet": folder.WHERE["imagenet"],
    "Tiny-ImageNet": folder.WHERE["tiny-imagenet-100"],
}


class Report(NamedTuple):
    lines: tuple[str, ...]
    passed: bool


@dataclass
class Findings:
    """What is said of one data set."""

    path: Path
    kind: str
    classes: str = ""  # a file: only these of the class folders
    facts: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def report(self) -> Report:
        count = len(self.problems)
        verdict = f"{count} problem{'s' * (count > 1)}" if count else "passed"
        lines = [
            f"{self.path}: {self.kind}: {verdict}",
            *(f"  {fact}" for fact in self.facts),
            *(f"  note: {note}" for note in self.notes),
            *(f"  problem: {problem}" for problem in self.problems),
        ]
        return Report(tuple(lines), not count)


def check(path: str | Path, classes: str = "") -> Report:
    """Read a data set, or every data set in a folder of them, and say what is found.

    With ``classes``, a file with one class name a line, only these class folders are read.
    """
    place = locate(str(path))
    if not place.exists():
        return _unknown(place, "is not there")
    found = _kind(place)
    if classes and (found is None or found[0] != "class folders"):
        raise UserError(f"--classes is for class folders, and {place} is something else")
    if found is not None:
        return _one(place, *found, classes)
    children = sorted(place.iterdir()) if place.is_dir() else []
    kinds = {f: _kind(f) for f in children if f.name != "segmentations"}  # these are CUB's
    inside = {f: kind for f, kind in kinds.items() if kind is not None}
    if not inside:
        return _unknown(place, "is no data set that is known here")
    reports = [_one(f, *kind) for f, kind in inside.items()]
    lines = [line for report in reports for line in report.lines]
    there = [kind for kind, _ in inside.values()] + [_title(f) for f in inside]
    lines += [
        f"{place}: {name} is not here; if you need it, {where}"
        for name, where in WHERE.items()
        if name not in there
    ]
    return Report(tuple(lines), all(report.passed for report in reports))


def _title(place: Path) -> str:
    """The data set that a folder is named after."""
    name = place.name.lower()
    if name.startswith("tiny-imagenet"):
        return "Tiny-ImageNet"
    return "ImageNet" if name.startswith("imagenet") else ""


def _kind(place: Path) -> tuple[str, Callable[[Findings], None]] | None:
    """Which data set this looks like, by its files and its name."""
    if place.name == f"{cifar100.NAME}.tar.gz" and place.is_file():
        return "CIFAR-100", _cifar100
    if not place.is_dir():
        return None
    if place.name == cifar100.NAME or all((place / name).is_file() for name in cifar100.MD5):
        return "CIFAR-100", _cifar100
    if place.name == cub200.NAME or (place / "images.txt").is_file():
        return "CUB-200-2011", _cub200
    if (place / "session_1.txt").is_file():
        return "few-shot lists", _lists
    if (place / "train").is_dir() or any(listing(f)[0] for f in place.iterdir() if f.is_dir()):
        return "class folders", _folder
    return None


def _unknown(place: Path, what: str) -> Report:
    lines = (
        f"{place} {what}; expected one of these, or a folder that holds them",
        *(f"  {name}: {where}" for name, where in WHERE.items()),
        f"  your own images: {LAYOUT}",
    )
    return Report(lines, False)


def _one(place: Path, kind: str, look: Callable[[Findings], None], classes: str = "") -> Report:
    found = Findings(place, kind, classes)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        try:
            look(found)
        except UserError as error:
            found.problems.append(str(error))
    found.notes += [str(w.message) for w in caught if issubclass(w.category, DataWarning)]
    return found.report()


# --- each kind -----------------------------------------------------------------------------------


def _cifar100(found: Findings) -> None:
    source = Cifar100(str(found.path))
    names = source.names
    for which, expected in CIFAR.items():
        content = cifar100.read_files(source.place, [which])[which]
        _, y = cifar100.pixels(content, f"{source.place}: {which}")
        found.facts.append(_counts(which, np.bincount(y, minlength=len(names)).tolist()))
        if len(y) != expected:
            found.problems.append(
                f"{which} has {len(y)} images, expected {expected}; {cifar100.WHERE}"
            )


def _cub200(found: Findings) -> None:
    source = Cub200(str(found.path))
    entries, names = source.entries, source.names
    _expect(found, "classes", len(names))
    for which, train in (("train", True), ("test", False)):
        labels = Counter(entry.label for entry in entries if entry.train == train)
        found.facts.append(_counts(which, [labels[i] for i in range(len(names))]))
        _expect(found, which, labels.total())
    masks = source.segmentations
    found.facts.append(f"masks  of {len(entries) - source.unmasked} of {len(entries)} images")
    if not masks:
        found.notes.append(f"there are no segmentations, so no masks; {cub200.WHERE}")
    if not (source.base / "bounding_boxes.txt").is_file():
        found.problems.append(f"{source.base} has no bounding_boxes.txt; {cub200.WHERE}")
    images = source.base / "images"
    items = [Item(str(images / e.path), masks.get(e.path, "")) for e in entries]
    _read(found, items, [entry.train for entry in entries], bool(masks))


def _expect(found: Findings, what: str, count: int) -> None:
    if count != CUB[what]:
        noun = what if what == "classes" else f"{what} images"
        found.problems.append(f"there are {count} {noun}, expected {CUB[what]}; {cub200.WHERE}")


def _lists(found: Findings) -> None:
    made = sessions(found.path)
    for which, sizes in (
        ("train", [len(session.train) for session in made]),
        ("test", [len(session.test) for session in made]),
    ):
        found.facts.append(f"{which}  {sum(sizes)} files in {len(made)} sessions: {sizes}")
    beside = found.path.parent / cub200.NAME
    if beside.is_dir():
        Cub200(str(beside), lists=str(found.path)).chosen()
        found.facts.append(f"every file is in {beside}")
    else:
        found.notes.append(f"there is no {beside}, so it is not known whether the files exist")


def _folder(found: Findings) -> None:
    source = Folder(str(found.path), classes=found.classes)
    test = source.roots[1]
    found.facts.append(f"{len(source.names)} classes")
    parts: tuple[list[int], list[int]] = ([], [])
    items, trains, whole = [], [], []
    for name in source.names:
        try:
            files = source.files(name)
        except UserError as error:
            found.problems.append(str(error))
            continue
        whole.append(name)
        for k in (0, 1):
            parts[k].append(len(files[k]))
            items += [Item(str(f)) for f in files[k]]
            trains += [not k] * len(files[k])
    held = f"test, {source.test:.0%} of each class" if test is None else test.name
    found.facts += [_counts("train", parts[0]), _counts(held, parts[1])]
    found.notes += source.left_out(whole)
    _read(found, items, trains, False)


def _counts(which: str, counts: Sequence[int]) -> str:
    if not counts:
        return f"{which}  no image"
    low, high = min(counts), max(counts)
    each = f"{low}" if low == high else f"{low} to {high}"
    return f"{which}  {sum(counts)} images, {each} a class"


def _read(found: Findings, items: Sequence[Item], trains: Sequence[bool], masks: bool) -> None:
    """Decode every image; name the bad ones and count those that are in both splits."""

    def digest(item: Item) -> tuple[str, str, int | None]:
        try:
            read = read_item(item, SIDE, masks)
        except Unreadable as error:
            return "", str(error), None
        return read.digest, "", read.dark

    results = []
    # Threads are enough: Pillow lets go of the interpreter while it decodes.
    with (
        quiet(),
        Reporter("check", len(items), unit="images") as reporter,
        ThreadPoolExecutor(cores()) as pool,
    ):
        for result in pool.map(digest, items):
            results.append(result)
            reporter.at(f"reading {found.path.name}", 1, {})
    bad = [text for _, text, _ in results if text]
    found.problems += [f"{text}; remove or replace it" for text in bad[:NAMED]]
    if len(bad) > NAMED:
        found.problems.append(f"{len(bad) - NAMED} more files cannot be read")
    found.facts.append(f"read  {len(items) - len(bad)} of {len(items)} images can be read")
    known = {d for (d, *_), train in zip(results, trains, strict=True) if train and d}
    twice = [
        item.file
        for item, (d, *_), train in zip(items, results, trains, strict=True)
        if not train and d in known
    ]
    if twice:
        found.notes.append(f"{len(twice)} test images are train images too, such as {twice[0]}")
    dark = {i: value for i, (*_, value) in enumerate(results) if value is not None}
    if dark:
        found.notes.append(f"{len(dark)} masks show no object, such as {darkest(items, dark)}")
