"""CIFAR-100 (Krizhevsky 2009) from its official folder or archive ``cifar-100-python``.

Its files are pickles, which can carry code. They are read by an unpickler that knows NumPy arrays
and plain containers only, and that calls nothing of NumPy either: arrays are rebuilt from bytes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tarfile
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rightreasons.data.files import locate
from rightreasons.errors import DataWarning, UserError
from rightreasons.types import Images, Splits

NAME = "cifar-100-python"
MD5 = {  # of the official files
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
CLASSES = 100
WHERE = (
    f"get {NAME}.tar.gz from its author's page (Alex Krizhevsky, University of Toronto, the "
    "CIFAR-10 and CIFAR-100 datasets), put it or its unpacked folder below one folder for all data "
    "sets, and set RRR_DATA to that folder"
)
LARGEST = 2**30  # bytes of a file in the archive: the official ones have a fifth of it


@dataclass(frozen=True)
class Cifar100:
    """100 classes of 32 px, 500 train and 100 test images each; classes in official label order."""

    path: str = ""
    """the folder or the archive; empty: `cifar-100-python` below RRR_DATA"""

    flip: ClassVar[bool] = True

    @cached_property
    def place(self) -> Path:
        """The folder, or the archive."""
        archive = f"{NAME}.tar.gz"
        tries = [locate(p) for p in ([self.path] if self.path else [NAME, archive])]
        tries += [t / inner for t in tries[:1] for inner in (NAME, archive) if self.path]
        for found in tries:
            if (found / "train").is_file() or found.is_file():
                return found
        seen = self.path or f"{os.environ.get('RRR_DATA', '$RRR_DATA')}/{NAME}"
        raise UserError(f"CIFAR-100 is not in {seen}; {WHERE}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        meta = read_files(self.place, ["meta"])["meta"]
        names = meta.get("fine_label_names")
        words = [_word(name) for name in names] if isinstance(names, list) else []
        if len(set(words)) != CLASSES or not all(words):
            raise UserError(
                f"{self.place}: meta has {len(set(words))} different fine_label_names, expected "
                f"{CLASSES}; {WHERE}"
            )
        return tuple(words)

    def load(self, classes: Sequence[int]) -> Splits:
        files = read_files(self.place, ["train", "test"])
        parts = [
            _pick(*pixels(files.pop(which), f"{self.place}: {which}"), classes)
            for which in ("train", "test")
        ]
        return Splits(*parts)


def pixels(content: Mapping[str, Any], which: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N,3,32,32) and their labels (N,) of a split's file."""
    data, labels = content.get("data"), content.get("fine_labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3072,):
        seen = f"{data.dtype} {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise UserError(f"{which} has {seen} as data, expected uint8 of (N, 3072); {WHERE}")
    whole = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1
    if not whole and not (isinstance(labels, list) and all(type(v) is int for v in labels)):
        raise UserError(f"{which} has no fine_labels that are whole numbers; {WHERE}")
    strange = [v for v in labels if not 0 <= v < CLASSES]  # type: ignore[union-attr]
    if strange:
        raise UserError(f"{which} has the label {strange[0]}, expected 0 to {CLASSES - 1}; {WHERE}")
    if len(labels) != len(data):  # type: ignore[arg-type]
        raise UserError(
            f"{which} has {len(data)} images and {len(labels)} labels, "  # type: ignore[arg-type]
            f"expected as many; {WHERE}"
        )
    return data.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _pick(x: NDArray[np.uint8], y: NDArray[np.int64], classes: Sequence[int]) -> Images:
    """The images of these classes, class by class; what is not asked for takes no memory."""
    place = np.full(CLASSES, len(classes))
    place[list(classes)] = np.arange(len(classes))
    label = place[y]
    rows = np.argsort(label, kind="stable")[: int((label < len(classes)).sum())]
    return Images(torch.from_numpy(x[rows]), torch.from_numpy(label[rows]))


def _word(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


# --- files ---------------------------------------------------------------------------------------


def read_files(place: Path, wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The contents of these files, with a warning for one that differs from the official one."""
    members = _from_archive(place, wanted) if place.is_file() else {}
    contents = {}
    for name in wanted:
        try:
            with BytesIO(members.pop(name)) if members else (place / name).open("rb") as file:
                official = _md5(file) == MD5[name]
                file.seek(0)
                contents[name] = unpickle(file, f"{place}: {name}")
        except OSError as error:
            raise UserError(f"{place / name} cannot be read ({error.strerror}); {WHERE}") from error
        if not official:
            warnings.warn(
                f"{place}: {name} is not the official file byte by byte (its md5 sum differs)",
                DataWarning,
                stacklevel=3,
            )
    return contents


def _md5(file: BinaryIO) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    while block := file.read(2**20):
        digest.update(block)
    return digest.hexdigest()


def _from_archive(place: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    """Members of the archive, read in one pass; nothing is unpacked to the disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(place, "r|*") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise UserError(
                        f"{place} has the member {member.name!r}, which leads out of its folder, "
                        f"so it is not the official archive; {WHERE}"
                    )
                if path.parts[:-1] != (NAME,) or path.name not in wanted:
                    continue
                opened = archive.extractfile(member) if member.isreg() else None
                if opened is None or member.size > LARGEST:
                    raise UserError(f"{place}: {path.name} is no file of usual size; {WHERE}")
                found[path.name] = opened.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"{place} cannot be read as an archive ({error}); {WHERE}") from error
    for name in wanted:
        if name not in found:
            raise UserError(f"{place} has no member {NAME}/{name}; {WHERE}")
    return found


# --- pickles -------------------------------------------------------------------------------------


class _Call:
    """What a pickle may call by name. It refuses BUILD, which would set attributes of it."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it changes what it may only call")


class _Dtype:
    def __init__(self, name: Any, *_: Any) -> None:
        self.name, self.order = _word(name), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _word(state[1])
        if state[2] is not None or state[3] is not None:
            raise pickle.UnpicklingError("it has an array with fields")

    def make(self) -> np.dtype[Any]:
        dtype = np.dtype(self.order.replace("|", "") + self.name)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it has an array of {dtype}")
        return dtype


class _Array:
    """An array to be: NumPy's own state of a pickled array, not yet looked at."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def make(self) -> NDArray[Any]:
        _, shape, dtype, fortran, raw = self.state
        flat = np.frombuffer(raw, dtype.make())
        return flat.reshape(shape, order="F" if fortran else "C")


def _from_buffer(raw: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.state = (1, shape, dtype, order == "F", raw)
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("it encodes something else than bytes")
    return text.encode("latin1")


# NumPy's modules have moved; Python 3 writes bytes as encoded text below protocol 3.
_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Call(_KNOWN[module, name])


def unpickle(file: BinaryIO, which: str) -> dict[str, Any]:
    """A pickled dictionary of arrays, lists, numbers and text; keys as text. Nothing else runs."""
    try:
        content = _Unpickler(file, encoding="bytes").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it is a {type(content).__name__} and no dictionary")
        return {_word(k): v.make() if isinstance(v, _Array) else v for k, v in content.items()}
    except pickle.UnpicklingError as error:
        reason = str(error)
    except (EOFError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    except (ImportError, OverflowError, MemoryError) as error:
        reason = type(error).__name__
    raise UserError(
        f"{which} is no pickle of NumPy arrays and plain containers ({reason}); it was refused, "
        f"and nothing in it was run; {WHERE}"
    )
