"""Large sets of images decoded once, into a file that is then mapped into memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rightreasons.data import worker
from rightreasons.data.image import Item
from rightreasons.data.worker import FULL, Decoded
from rightreasons.errors import UserError, why
from rightreasons.progress import Reporter

SMALL = 64 * 2**20  # bytes: fewer, as files and decoded, are read anew by every run
FEW = 500  # images that are not worth starting processes for
VERSION = 1  # of the pixels: another way to read a file makes another cache
MASKS = 2  # of masks that are files


def decode(items: Sequence[Item], size: int, masks: bool, root: str, name: str) -> Decoded:
    """All images: in memory if they are few, else in files that are made once and then mapped.

    The same files give the same cache: their paths below ``root``, sizes and times of change count.
    """
    stats = [_stat(path) for item in items for path in (item.file, item.mask if masks else "")]
    made = len(items) * size * size * (4 if masks else 3)
    if max(made, sum(bytes_ for bytes_, _ in stats)) < SMALL:
        return worker.fill(items, size, masks)
    how = MASKS if masks and any(item.mask for item in items) else masks
    text = hashlib.blake2b(f"{VERSION} {size} {how}\n".encode(), digest_size=12)
    for i, item in enumerate(items):
        paths = [os.path.relpath(p, root) if p else "" for p in (item.file, item.mask * masks)]
        line = repr((paths, item.box if masks else None, stats[2 * i : 2 * i + 2]))
        text.update(os.fsencode(line) + b"\n")
    base = cache_folder()
    final = base / f"{name}-{size}px-{text.hexdigest()}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        found = _current(final, items, size, masks)
        if found is None:
            with _locked(base / f".{final.name}.lock"):
                found = _current(final, items, size, masks)  # another run may have made it
                if found is None:
                    _build(final, items, size, masks, made)
                    found = _open(final, len(items), size, masks)
    except OSError as error:
        raise UserError(
            f"the image cache {base} cannot be used ({why(error)}); set RRR_CACHE to a folder "
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


def _current(folder: Path, items: Sequence[Item], size: int, masks: bool) -> Decoded | None:
    """The finished cache, or nothing if a file that was not readable then is by now: rights and
    disks come and go, and a file's time of change stays."""
    found = _open(folder, len(items), size, masks)
    if found is None or not found.bad:
        return found
    again = worker.fill([items[i] for i in found.bad], size, masks)
    return found if len(again.bad) == len(found.bad) else None


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
    bad, dark = (
        {int(i): what for i, what in known.get(key, {}).items()} for key in ("bad", "dark")
    )
    return Decoded(x, where, known["digests"], bad, dark)


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


def _build(final: Path, items: Sequence[Item], size: int, masks: bool, made: int) -> None:
    """Decode into ``final.partial``, going on with what is there; rename it when it is whole."""
    partial = final.with_name(final.name + ".partial")
    if final.exists():  # damaged, or of files that can be read by now
        shutil.rmtree(final)
    there = sum(f.stat().st_blocks * 512 for f in partial.glob("*.npy")) if partial.exists() else 0
    free = shutil.disk_usage(final.parent).free
    if made - there > free:
        raise UserError(
            f"{final.parent} has {free / 1e9:.1f} GB free and the decoded images need "
            f"{(made - there) / 1e9:.1f} GB; free some, or set RRR_CACHE to a folder with room"
        )
    try:
        worker.plan(partial, items, size, masks)
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


def _run(partial: Path, count: int, base: Path) -> None:
    def done() -> int:
        return min(count, worker.CHUNK * len(list(partial.glob("*.done"))))

    workers = min(cores(), -(-count // worker.CHUNK)) if count >= FEW else 1
    with Reporter("images", count, done(), unit="images") as reporter:
        how = f" by {workers} processes" if workers > 1 else ""
        reporter.say(f"{count} are decoded once{how} into {base}")
        if workers == 1:
            for some in worker.work(partial):
                reporter.at("decoding", some, {})
            return
        processes = [_start(partial, place, workers) for place in range(workers)]
        try:
            while None in (codes := [process.poll() for process in processes]) and not any(codes):
                time.sleep(0.1)
                reporter.at("decoding", done() - reporter.done, {})
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    for place, code in enumerate(codes):  # as they ended, not as they were ended
        if code in FULL:
            raise OSError(code, os.strerror(code))
        if code:
            log = (partial / f"{place}.log").read_text(errors="replace").strip()
            reason = log.splitlines()[-1] if log else f"exit code {code}"
            raise UserError(f"a process that decodes images ended ({reason}); run it again")


def cores() -> int:
    mine = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(mine(0)) if mine else os.cpu_count() or 1


def _start(partial: Path, place: int, workers: int) -> subprocess.Popen[bytes]:
    script = Path(worker.__file__).resolve()  # with -m, modules in the user's folder would go first
    path = os.pathsep.join([str(script.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(script), str(partial), str(place), str(workers)]
    with (partial / f"{place}.log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": path}
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )


def _finish(partial: Path, final: Path) -> None:
    """Join the marks of the chunks and give the folder its name."""
    digests: list[str] = []
    bad: dict[str, str] = {}
    dark: dict[str, int] = {}
    for mark in sorted(partial.glob("*.done")):
        part = json.loads(mark.read_text(encoding="utf-8"))
        digests += part["digests"]
        bad |= part["bad"]
        dark |= part.get("dark", {})  # a chunk of an older version has no mask files
    worker.write(partial / "images.json", {"digests": digests, "bad": bad, "dark": dark})
    partial.replace(final)
    for left in ("*.done", "*.log", "*.tmp", "plan.json"):
        for file in final.glob(left):
            file.unlink()
