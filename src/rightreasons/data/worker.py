"""Decode images into the arrays of a cache, chunk by chunk; several processes run it.

It is a script and nothing here imports torch, so they start quickly and a user's own script needs
no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rightreasons.data.image import Item, Unreadable, quiet, read_item

CHUNK = 256  # images between two marks of progress
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Decoded(NamedTuple):
    x: NDArray[np.uint8]  # (N,3,S,S)
    masks: NDArray[np.bool_] | None  # (N,S,S)
    digests: list[str]  # of each file's bytes
    bad: dict[int, str]  # place -> what is wrong with this file; its pixels are 0
    dark: dict[int, int]  # place -> the largest value of a mask file that shows no object


def fill(items: Sequence[Item], size: int, masks: bool) -> Decoded:
    """Every image, in memory; what cannot be read is noted and stays black."""
    x = np.zeros((len(items), 3, size, size), dtype=np.uint8)
    where = np.zeros((len(items), size, size), dtype=np.bool_) if masks else None
    digests, bad, dark = [""] * len(items), {}, {}
    with quiet():
        for i, item in enumerate(items):
            try:
                x[i], mask, digests[i], darkest = read_item(item, size, masks)
            except Unreadable as error:
                bad[i] = str(error)
                continue
            if where is not None and mask is not None:
                where[i] = mask
            if darkest is not None:
                dark[i] = darkest
    return Decoded(x, where, digests, bad, dark)


def plan(partial: Path, items: Sequence[Item], size: int, masks: bool) -> None:
    """What the workers need: arrays to write to, and the list of files."""
    there = partial / "plan.json"
    if there.exists():  # written last; the files may be named from another folder now
        known = json.loads(there.read_text(encoding="utf-8"))
        write(there, known | {"items": items})
        return
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {"x": (np.uint8, (3, size, size))}
    if masks:
        shapes["masks"] = (np.bool_, (size, size))
    offsets = {}
    for name, (kind, shape) in shapes.items():
        array = np.lib.format.open_memmap(
            partial / f"{name}.npy", mode="w+", dtype=kind, shape=(len(items), *shape)
        )
        offsets[name] = array.offset
    known = {"size": size, "masks": masks, "offsets": offsets, "items": items}
    write(there, known)


def work(partial: Path, worker: int = 0, workers: int = 1) -> Iterator[int]:
    """Decode every ``workers``-th chunk that is not done; yields how many images were."""
    known = json.loads((partial / "plan.json").read_text(encoding="utf-8"))
    items = [Item(file, mask, box and tuple(box)) for file, mask, box in known["items"]]
    for chunk in range(worker, -(-len(items) // CHUNK), workers):
        mark, start = partial / f"{chunk:06d}.done", chunk * CHUNK
        if mark.exists():
            continue
        made = fill(items[start : start + CHUNK], known["size"], known["masks"])
        for name, array in (("x", made.x), ("masks", made.masks)):
            if array is not None:
                # Written, not mapped: a full disk is then an error and not the end of the process.
                with (partial / f"{name}.npy").open("r+b") as file:
                    file.seek(known["offsets"][name] + start * array[0].nbytes)
                    file.write(array.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
        bad, dark = (
            {str(start + i): what for i, what in found.items()} for found in (made.bad, made.dark)
        )
        write(mark, {"digests": made.digests, "bad": bad, "dark": dark})
        yield len(made.x)


def write(file: Path, content: Any) -> None:
    """All of a file or nothing: temporary name, sync, rename."""
    # Its own name: a process whose parent was killed may still be at the same chunk.
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as opened:
        json.dump(content, opened)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)


def main(partial: str, worker: str, workers: str) -> int:
    """One decoding process; it ends with its parent."""
    parent = os.getppid()
    try:
        for _ in work(Path(partial), int(worker), int(workers)):
            if os.getppid() != parent:
                return 1
    except OSError as error:
        print(error)
        return error.errno if error.errno in FULL else 1
    except KeyboardInterrupt:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
