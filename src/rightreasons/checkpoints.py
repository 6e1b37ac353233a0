"""Checkpoint files: tensors and plain containers, with a checksum, and only what has changed.

A checkpoint is a file of ``torch.save``, read with ``weights_only=True``. It is a zip archive, and
the archive's comment is the SHA-256 of all that stands before it: ``torch.load`` reads it as it is.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from rightreasons.errors import Damaged, why
from rightreasons.runfiles import contents, whole

DIGITS = 64  # of the checksum, hexadecimal
LENGTH = DIGITS.to_bytes(2, "little")  # of an archive's comment, in the archive's last field
UNREADABLE: tuple[type[Exception], ...] = (
    *(pickle.UnpicklingError, struct.error, RuntimeError, EOFError, ValueError, LookupError),
    *(TypeError, AttributeError, OverflowError, MemoryError, OSError),
)  # what torch raises on a file that somebody made to harm
SMALL = 1024  # bytes of a tensor that is not worth a reference

Place = tuple[int, int]  # finished tasks, and steps of the next one


# --- one file --------------------------------------------------------------------------------


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """All of a checkpoint or nothing."""
    with whole(path) as sink:
        torch.save(state, cast(IO[bytes], sink))
        if sink.error is None:
            digest = sink.hash.hexdigest()
            os.lseek(sink.descriptor, -len(LENGTH), os.SEEK_END)
            sink.write(LENGTH + digest.encode())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What was saved, or `Damaged`; nothing in a file can execute."""
    try:
        data = contents(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from error
    body, length, digest = data[: -DIGITS - 2], data[-DIGITS - 2 : -DIGITS], data[-DIGITS:]
    if length != LENGTH or _digest(body, b"\0\0").encode() != digest:
        raise Damaged(f"{path} is damaged: its checksum differs")
    try:
        state = load_plain(io.BytesIO(data))
    except UNREADABLE as error:
        raise Damaged(f"{path} is no file of tensors and plain values ({refusal(error)})") from None
    if not isinstance(state, dict):
        raise Damaged(f"{path} holds a {type(state).__name__}, expected a dictionary")
    return state


def load_plain(file: Path | IO[bytes]) -> Any:
    """What torch has saved, on the CPU: tensors and plain values, or one of `UNREADABLE`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of files that it does not know
        return torch.load(file, map_location="cpu", weights_only=True)


def refusal(error: Exception) -> str:
    """What is wrong with a file that torch refuses, in half a sentence."""
    if isinstance(error, pickle.UnpicklingError):
        asked = re.search(r"GLOBAL (\S+)", str(error))
        return f"it asks for {asked[1]}" if asked else "it is damaged, or holds something else"
    return why(error)


def _digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


# --- what has changed ------------------------------------------------------------------------


def marks(packed: Any, path: str = "") -> dict[str, str]:
    """A digest of every large tensor of a packed state, by its path in it."""
    if isinstance(packed, Tensor):
        return {path: mark(packed)} if packed.nbytes >= SMALL else {}
    found: dict[str, str] = {}
    for name, value in _items(packed):
        found |= marks(value, f"{path}/{name}")
    return found


def lean(packed: Any, known: Mapping[str, str], path: str = "") -> Any:
    """The state with a reference in place of every large tensor that has the known digest.

    It is the content that counts: who changed a tensor, and how, need not be told.
    """
    if isinstance(packed, Tensor):
        same = path in known and packed.nbytes >= SMALL and mark(packed) == known[path]
        return {"same!": known[path]} if same else packed
    if isinstance(packed, dict):
        return {k: lean(v, known, f"{path}/{k}") for k, v in packed.items()}
    if isinstance(packed, list):
        return [lean(v, known, f"{path}/{i}") for i, v in enumerate(packed)]
    return packed


def fill(thin: Any, base: Any) -> Any:
    """The whole state again: references are looked up at the same path of ``base``."""
    if isinstance(thin, dict) and "same!" in thin:
        if not isinstance(base, Tensor) or mark(base) != thin["same!"]:
            raise Damaged("the checkpoint of the task before does not fit")
        return base
    inside = dict(_items(base))
    if isinstance(thin, dict):
        return {k: fill(v, inside.get(k)) for k, v in thin.items()}
    if isinstance(thin, list):
        return [fill(v, inside.get(i)) for i, v in enumerate(thin)]
    return thin


def _items(packed: Any) -> list[tuple[Any, Any]]:
    if isinstance(packed, dict):
        return list(packed.items())
    return list(enumerate(packed)) if isinstance(packed, list) else []


def mark(tensor: Tensor) -> str:
    """SHA-256 of type, shape and values."""
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return _digest(f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), data)


# --- a folder of them ------------------------------------------------------------------------


def name_of(place: Place) -> str:
    """``task-2.pt`` after the second task, ``step-3-400.pt`` 400 steps into the third."""
    tasks, steps = place
    return f"step-{tasks + 1}-{steps}.pt" if steps else f"task-{tasks}.pt"


def found_in(folder: Path) -> dict[Place, Path]:
    """All checkpoints of a run, the oldest first."""
    found = {}
    for path in (folder / "checkpoints").glob("*.pt"):
        if match := re.fullmatch(r"task-([1-9]\d{0,8})\.pt", path.name):
            found[int(match[1]), 0] = path
        elif match := re.fullmatch(r"step-([1-9]\d{0,8})-([1-9]\d{0,17})\.pt", path.name):
            found[int(match[1]) - 1, int(match[2])] = path
    return dict(sorted(found.items()))


def by_task(folder: Path) -> dict[int, Path]:
    """Those of finished tasks, in order, by the task's number."""
    return {task: path for (task, steps), path in found_in(folder).items() if not steps}
