"""Image files as squares of uint8 RGB, and large sets of them decoded once, into a file.

This module imports no torch: the processes that decode run it as a script, so they start quickly
and a user's own script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from rightreasons.errors import UserError

SMALL = 64 * 2**20  # bytes: fewer, as files and decoded, are read anew by every run
FEW = 500  # images that are not worth starting processes for
CHUNK = 256  # images between two marks of progress
VERSION = 1  # of the pixels: another way to read a file makes another cache
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError),
    *(MemoryError, NotImplementedError, struct.error, zlib.error, Image.DecompressionBombError),
)  # what Pillow raises on files that are damaged or made to harm
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> Image.Transpose


class DataWarning(UserWarning):
    """Data that can be used, and that its user should know something about."""


class Unreadable(UserError):
    """One file cannot be used; the text is half a sentence that names it."""


class Item(NamedTuple):
    """An image with what says where its object is: a mask's file, a box, or nothing."""

    file: str
    mask: str = ""
    box: tuple[float, float, float, float] | None = None  # x, y, width, height in upright pixels


class Decoded(NamedTuple):
    x: NDArray[np.uint8]  # (N,3,S,S)
    masks: NDArray[np.bool_] | None  # (N,S,S)
    digests: list[str]  # of each file's bytes
    bad: dict[int, str]  # place -> what is wrong with this file; its pixels are 0


# --- one file ------------------------------------------------------------------------------------


def read(file: Path, size: int) -> NDArray[np.uint8]:
    """One image (3,size,size): upright, transparency on white, short side fitted, middle cut."""
    if not file.exists():
        raise UserError(f"there is no image {file}; check the path")
    try:
        with quiet():
            return read_item(Item(str(file)), size, False)[0]
    except Unreadable as error:
        raise UserError(f"{error}; remove or replace it") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow warns of odd metadata in images that it reads all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\..*")
        yield


def read_item(
    item: Item, size: int, masks: bool
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None, str]:
    """Pixels (3,size,size), mask (size,size) and a digest of the file's bytes."""
    data = _bytes(item.file)
    try:
        image, whole = _upright(data, size)
        fitted = ImageOps.fit(_rgb(image), (size, size), Image.Resampling.BILINEAR)
    except DAMAGE as error:
        raise Unreadable(f"{item.file} cannot be read as an image ({_why(error)})") from error
    pixels = np.asarray(fitted).transpose(2, 0, 1)
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    return pixels, _mask(item, size, whole) if masks else None, digest


def _bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise Unreadable(f"{file} is not there") from None
    except OSError as error:
        raise Unreadable(f"{file} cannot be read ({_why(error)})") from error


def _why(error: BaseException) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "no known format"  # Pillow names a buffer's address
    return (str(error) or type(error).__name__).splitlines()[0]


def _upright(data: bytes, size: int | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """The image as it is to be seen, and its full width and height.

    A JPEG much larger than ``size`` is decoded at a fraction of its own size.
    """
    image = Image.open(io.BytesIO(data))
    whole = image.size
    if size is not None:
        image.draft(None, (2 * size, 2 * size))
    image.load()
    try:  # after loading: Pillow itself turns TIFF, and then forgets the orientation
        turn = TURNS.get(image.getexif().get(0x0112, 1))
    except DAMAGE:  # the metadata are damaged, not the pixels
        turn = None
    if turn is None:
        return image, image.size if image.format == "TIFF" else whole
    turned = image.transpose(Image.Transpose(turn))
    return turned, whole[::-1] if turn in (2, 4, 5, 6) else whole


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":  # convert() would clip these at 255
        grey = np.nan_to_num(np.asarray(image, dtype=np.float64))
        if image.mode == "F":
            scale = 255.0 if grey.max() <= 1 else 1.0
        else:
            scale = 1 / 257 if image.mode != "I" or grey.max() > 255 else 1.0
        return Image.fromarray(np.clip(grey * scale, 0, 255).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _mask(item: Item, size: int, whole: tuple[int, int]) -> NDArray[np.bool_]:
    """(size,size), cut and resized as the image is; nothing is the object where none is known."""
    if item.box is not None:
        grey = Image.fromarray(_inside(item, whole).astype(np.uint8) * 255)
    elif item.mask:
        data = _bytes(item.mask)
        try:
            grey = _rgb(_upright(data)[0]).convert("L")
        except DAMAGE as error:
            raise Unreadable(f"{item.mask} cannot be read as a mask ({_why(error)})") from error
        if grey.size != whole:
            seen, expected = ("{}x{}".format(*pair) for pair in (grey.size, whole))
            raise Unreadable(f"the mask {item.mask} is {seen} pixels and its image {expected}")
    else:
        return np.zeros((size, size), dtype=np.bool_)
    least = 1 if grey.getextrema()[1] == 1 else 128  # masks of 0 and 1 are common
    fitted = ImageOps.fit(grey, (size, size), Image.Resampling.NEAREST)
    return np.asarray(fitted) >= least


def _inside(item: Item, whole: tuple[int, int]) -> NDArray[np.bool_]:
    """(height, width): pixels whose centre the box holds."""
    assert item.box is not None
    x, y, w, h = item.box
    if min(x, y) < -1 or x + w > whole[0] + 1 or y + h > whole[1] + 1:
        raise Unreadable(
            f"the box {x:g} {y:g} {w:g} {h:g} (x, y, width, height) of {item.file} leaves its "
            f"image of {whole[0]}x{whole[1]} pixels (for corners type data.box_format=xyxy)"
        )
    columns, rows = np.arange(whole[0]) + 0.5, np.arange(whole[1]) + 0.5
    inside = ((rows >= y) & (rows < y + h))[:, None] & (columns >= x) & (columns < x + w)
    return np.asarray(inside, dtype=np.bool_)


# --- many files ----------------------------------------------------------------------------------


def decode(items: Sequence[Item], size: int, masks: bool, root: str, name: str) -> Decoded:
    """All images: in memory if they are few, else in files that are made once and then mapped.

    The same files give the same cache: their paths below ``root``, sizes and times of change count.
    """
    stats = [_stat(path) for item in items for path in (item.file, item.mask if masks else "")]
    made = len(items) * size * size * (4 if masks else 3)
    if max(made, sum(bytes_ for bytes_, _ in stats)) < SMALL:
        return _fill(items, size, masks)
    text = hashlib.blake2b(f"{VERSION} {size} {masks}\n".encode(), digest_size=12)
    for i, item in enumerate(items):
        paths = [os.path.relpath(p, root) if p else "" for p in (item.file, item.mask * masks)]
        line = repr((paths, item.box if masks else None, stats[2 * i : 2 * i + 2]))
        text.update(os.fsencode(line) + b"\n")
    base = cache_folder()
    final = base / f"{name}-{size}px-{text.hexdigest()}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        found = _open(final, len(items), size, masks)
        if found is None:
            with _locked(base / f".{final.name}.lock"):
                found = _open(final, len(items), size, masks)  # another run may have made it
                if found is None:
                    _build(final, items, size, masks, made)
                    found = _open(final, len(items), size, masks)
    except OSError as error:
        raise UserError(
            f"the image cache {base} cannot be used ({_why(error)}); set RRR_CACHE to a folder "
            "that can be written"
        ) from error
    assert found is not None
    return found


def cache_folder() -> Path:
    """Where decoded images are kept; it can be deleted whenever no run uses it."""
    given = os.environ.get("RRR_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "rightreasons"


def _stat(path: str) -> tuple[int, int]:
    """Bytes and time of change; nothing for a file that is not there, which is said on reading."""
    if not path:
        return 0, 0
    try:
        found = Path(path).stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _fill(items: Sequence[Item], size: int, masks: bool) -> Decoded:
    x = np.zeros((len(items), 3, size, size), dtype=np.uint8)
    where = np.zeros((len(items), size, size), dtype=np.bool_) if masks else None
    digests, bad = [""] * len(items), {}
    with quiet():
        for i, item in enumerate(items):
            try:
                x[i], mask, digests[i] = read_item(item, size, masks)
            except Unreadable as error:
                bad[i] = str(error)
                continue
            if where is not None and mask is not None:
                where[i] = mask
    return Decoded(x, where, digests, bad)


def _open(folder: Path, count: int, size: int, masks: bool) -> Decoded | None:
    """The finished cache, or nothing if it is not there or not whole."""
    try:
        known = json.loads((folder / "images.json").read_text(encoding="utf-8"))
        # Copy on write: torch warns of arrays that cannot be written.
        x = np.load(folder / "x.npy", mmap_mode="c")
        where = np.load(folder / "masks.npy", mmap_mode="c") if masks else None
    except (FileNotFoundError, ValueError, EOFError):
        return None
    if x.shape != (count, 3, size, size) or len(known["digests"]) != count:
        return None
    return Decoded(x, where, known["digests"], {int(i): text for i, text in known["bad"].items()})


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One process at a time; the lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs may decode the same images
        yield
        return
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run that decodes the same images", file=sys.stderr)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


# --- making a cache ------------------------------------------------------------------------------


def _build(final: Path, items: Sequence[Item], size: int, masks: bool, made: int) -> None:
    """Decode into ``final.partial``, going on with what is there; rename it when it is whole."""
    partial = final.with_name(final.name + ".partial")
    if final.exists():  # _open() found it damaged
        shutil.rmtree(final)
    there = sum(f.stat().st_blocks * 512 for f in partial.glob("*.npy")) if partial.exists() else 0
    free = shutil.disk_usage(final.parent).free
    if made - there > free:
        raise UserError(
            f"{final.parent} has {free / 1e9:.1f} GB free and the decoded images need "
            f"{(made - there) / 1e9:.1f} GB; free some, or set RRR_CACHE to a folder with room"
        )
    try:
        _plan(partial, items, size, masks)
        _run(partial, len(items), final.parent)
        _finish(partial, final)
    except OSError as error:
        if error.errno not in FULL:
            raise
        shutil.rmtree(partial, ignore_errors=True)  # nobody can use it, and the disk needs room
        raise UserError(
            f"the disk of {final.parent} is full; the part of the image cache that was made is "
            "deleted; free some room, or set RRR_CACHE to a folder on another disk"
        ) from error


def _plan(partial: Path, items: Sequence[Item], size: int, masks: bool) -> None:
    """What the workers need: arrays to write to, and the list of files."""
    if (partial / "plan.json").exists():
        return  # written last
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
    plan = {"size": size, "masks": masks, "offsets": offsets, "items": items}
    _write(partial / "plan.json", plan)


def _write(file: Path, content: Any) -> None:
    """All of a file or nothing: temporary name, sync, rename."""
    # Its own name: a process whose parent was killed may still be at the same chunk.
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as opened:
        json.dump(content, opened)
        opened.flush()
        os.fsync(opened.fileno())
    temporary.replace(file)


def work(partial: Path, worker: int = 0, workers: int = 1) -> Iterator[int]:
    """Decode every ``workers``-th chunk that is not done; yields how many images were."""
    plan = json.loads((partial / "plan.json").read_text(encoding="utf-8"))
    items = [Item(file, mask, box and tuple(box)) for file, mask, box in plan["items"]]
    for chunk in range(worker, -(-len(items) // CHUNK), workers):
        mark, start = partial / f"{chunk:06d}.done", chunk * CHUNK
        if mark.exists():
            continue
        made = _fill(items[start : start + CHUNK], plan["size"], plan["masks"])
        for name, array in (("x", made.x), ("masks", made.masks)):
            if array is not None:
                # Written, not mapped: a full disk is then an error and not the end of the process.
                with (partial / f"{name}.npy").open("r+b") as file:
                    file.seek(plan["offsets"][name] + start * array[0].nbytes)
                    file.write(array.tobytes())
                    file.flush()
                    os.fsync(file.fileno())
        bad = {str(start + i): text for i, text in made.bad.items()}
        _write(mark, {"digests": made.digests, "bad": bad})
        yield len(made.x)


def _run(partial: Path, count: int, base: Path) -> None:
    from rightreasons.progress import Reporter

    def done() -> int:
        return min(count, CHUNK * len(list(partial.glob("*.done"))))

    workers = min(cores(), -(-count // CHUNK)) if count >= FEW else 1
    with Reporter("images", count, done()) as reporter:
        how = f" by {workers} processes" if workers > 1 else ""
        reporter.say(f"{count} are decoded once{how} into {base}")
        if workers == 1:
            for some in work(partial):
                reporter.at("decoding", some, {})
            return
        processes = [_start(partial, worker, workers) for worker in range(workers)]
        try:
            while any(process.poll() is None for process in processes):
                if any(process.returncode for process in processes):
                    break
                time.sleep(0.1)
                reporter.at("decoding", done() - reporter.done, {})
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    for worker, process in enumerate(processes):
        if process.returncode in FULL:
            raise OSError(process.returncode, os.strerror(process.returncode))
        if process.returncode:
            log = (partial / f"{worker}.log").read_text(errors="replace").strip()
            reason = log.splitlines()[-1] if log else f"exit code {process.returncode}"
            raise UserError(f"a process that decodes images ended ({reason}); run it again")


def cores() -> int:
    mine = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(mine(0)) if mine else os.cpu_count() or 1


def _start(partial: Path, worker: int, workers: int) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve()
    path = os.pathsep.join([str(here.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(here), str(partial), str(worker), str(workers)]
    with (partial / f"{worker}.log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )


def _finish(partial: Path, final: Path) -> None:
    """Join the marks of the chunks and give the folder its name."""
    digests: list[str] = []
    bad: dict[str, str] = {}
    for mark in sorted(partial.glob("*.done")):
        part = json.loads(mark.read_text(encoding="utf-8"))
        digests += part["digests"]
        bad |= part["bad"]
    _write(partial / "images.json", {"digests": digests, "bad": bad})
    partial.replace(final)
    for left in ("*.done", "*.log", "*.tmp", "plan.json"):
        for file in final.glob(left):
            file.unlink()


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
