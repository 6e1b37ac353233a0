"""Labelled files as train and test images that share their pixels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rightreasons.data.cache import decode
from rightreasons.data.image import Item, read
from rightreasons.data.worker import Decoded
from rightreasons.errors import DataWarning, UserError
from rightreasons.types import Images, Splits

Labelled = list[tuple[Item, int]]


def splits(
    train: Labelled,
    test: Labelled,
    names: Sequence[str],
    size: int,
    masks: bool,
    skip_bad: bool,
    root: Path,
) -> Splits:
    """Read files; both splits share the pixels. Labels are places in ``names``."""
    items = sorted({item for item, _ in (*train, *test)})  # in an order that no stream changes
    made = decode(items, size, masks, str(root), root.resolve().name)
    if made.bad and not skip_bad:
        others = len(made.bad) - 1
        more = f" (and {others} more file{'s' * (others > 1)})" if others else ""
        raise UserError(
            f"{made.bad[min(made.bad)]}{more}; remove or replace it, or leave out what cannot be "
            "read with --skip-bad (skip_bad=True in Python)"
        )
    if made.bad:
        warnings.warn(
            f"{len(made.bad)} of {len(items)} images are left out: {made.bad[min(made.bad)]}"
            + (", ..." if len(made.bad) > 1 else ""),
            DataWarning,
            stacklevel=3,
        )
    _look_at_masks(items, made)
    place = {item.file: i for i, item in enumerate(items)}
    _warn_of_doubles(train, test, place, made.digests)
    x = torch.from_numpy(made.x)
    where = None if made.masks is None else torch.from_numpy(made.masks)
    parts = []
    for labelled, which in ((train, "train"), (test, "test")):
        good = [(place[item.file], y) for item, y in labelled if place[item.file] not in made.bad]
        for label in sorted(set(range(len(names))) - {y for _, y in good}):
            raise UserError(
                f"class {names[label]!r} has no {which} image that can be read; "
                "add some, or leave it out"
            )
        rows, y = (torch.tensor(column, dtype=torch.int64) for column in zip(*good, strict=True))
        parts.append(Images(x, y, where, rows))
    return Splits(*parts)


def _look_at_masks(items: Sequence[Item], made: Decoded) -> None:
    """Mask files that show no object: refused if all do so, else counted."""
    if not made.dark:
        return
    known = {i for i, item in enumerate(items) if item.mask or item.box} - made.bad.keys()
    if made.dark.keys() >= known:
        raise UserError(
            f"no mask shows an object, such as {darkest(items, made.dark)}; save them so, or leave "
            "the masks out"
        )
    dim = {i: value for i, value in made.dark.items() if value > 0}  # black: there is no object
    if dim:
        warnings.warn(
            f"{len(dim)} of {len(known)} masks show no object, and the pointing game leaves their "
            f"images out, such as {darkest(items, dim)}",
            DataWarning,
            stacklevel=4,
        )


def darkest(items: Sequence[Item], dark: dict[int, int]) -> str:
    """One of the masks that show no object, and why."""
    first = min(dark)
    return (
        f"{items[first].mask}: its largest value is {dark[first]}, expected 128 or more where the "
        "object is, or less with 0 around it (in a PNG, not a JPEG)"
    )


def _warn_of_doubles(
    train: Labelled, test: Labelled, place: dict[str, int], digests: Sequence[str]
) -> None:
    """The same bytes on both sides of the split make the test too easy."""
    seen = {digests[place[item.file]]: item.file for item, _ in train}
    seen.pop("", None)  # files that could not be read
    doubles = [item.file for item, _ in test if digests[place[item.file]] in seen]
    if doubles:
        first = seen[digests[place[doubles[0]]]]
        warnings.warn(
            f"{len(doubles)} test images are train images too, such as {doubles[0]} and {first}; "
            "remove them from one side",
            DataWarning,
            stacklevel=4,
        )


def read_all(files: Sequence[Path], size: int) -> Tensor:
    """(N,3,size,size) uint8."""
    x = np.empty((len(files), 3, size, size), dtype=np.uint8)
    for i, file in enumerate(files):
        x[i] = read(file, size)
    return torch.from_numpy(x)
