"""Files of a run folder that need no torch: whole or absent, one process at a time, plain."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from rightreasons.errors import RunWarning, UserError, why

PARTIAL = ".partial"  # ending of a file that is being written
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class Sink:
    """What a file's bytes go into: hashed, and without an error until all are there.

    torch's writer is native code that does not survive an exception in ``write``.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        self.hash.update(left)
        while len(left) and self.error is None:
            try:
                left = left[os.write(self.descriptor, left) :]
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


@contextmanager
def whole(path: Path) -> Iterator[Sink]:
    """All of a file or nothing: temporary name, sync of file and folder, rename.

    The name is the process's own, for runs may share a file; what bears it already is removed and
    not written to: it could be a link to somewhere else.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, NEW, 0o666)
        try:
            sink = Sink(descriptor)
            yield sink
            if sink.error is not None:
                raise sink.error
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):  # the disk may need the room
            partial.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
    _sync(path.parent)


def share(path: Path, folder: Path) -> None:
    """A file of another run in this one's folder too, if it is there and is not here yet."""
    if path.is_file() and folder.is_dir() and not (folder / path.name).exists():
        with whole(folder / path.name) as sink:
            sink.write(path.read_bytes())


def _sync(folder: Path) -> None:
    """Let a rename in a folder survive the loss of power; not every system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write(path: Path, text: str) -> None:
    """All of a text file or nothing."""
    with whole(path) as sink:
        sink.write(text.encode("utf-8"))


# --- one process a folder --------------------------------------------------------------------


class Lock:
    """A folder that one process works in. The system lets go of it when that process ends."""

    def __init__(self, folder: Path) -> None:
        self.descriptor: int | None = None
        if sys.platform == "win32":  # it has no such lock
            return
        import fcntl

        self.descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.free()
            raise UserError(
                f"another process works in {folder}; wait until it has ended, or pass another --out"
            ) from None
        except OSError as error:  # a file system without locks, such as some over a network
            self.free()
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}); see that no other process works in "
                "it",
                RunWarning,
                stacklevel=3,
            )

    def free(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


# --- what is read ----------------------------------------------------------------------------


def contents(path: Path) -> bytes:
    """All of a file, if it is one: a pipe or a device would never end."""
    if path.exists() and not path.is_file():
        code = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(code, os.strerror(code), str(path))
    return path.read_bytes()


def load_json(text: str | bytes) -> Any:
    """The plain value that a text holds; ``ValueError`` with the reason if it holds none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Loader(yaml.SafeLoader):
    """Plain values only: an alias could make a value contain itself, or grow without end."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not values")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def load_yaml(text: str) -> Any:
    """The plain value that a text holds; ``ValueError`` with the reason if it holds none."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(why(error)) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def dump_yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = load_yaml(contents(path).decode("utf-8"))
    except ValueError as error:  # bytes that are no text are one, too
        raise UserError(
            f"{path} is not valid YAML ({why(error)}); put the run's own file back"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no keys, expected `key: value` lines")
    return content


SECTIONS = ("stream", "net", "train", "memory")


def planned_tasks(config: Mapping[str, Any]) -> int:
    """How many tasks a config's stream has: it says their number, or their sizes or classes."""
    tasks = config["stream"]["tasks"]
    return tasks if isinstance(tasks, int) else len(tasks)


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config with the keys that every run has; their values are checked where they go."""
    path = folder / "config.yaml"
    config = read_yaml(path)
    train = config.get("train")
    fits = {
        "method": isinstance(config.get("method"), str),
        "seed": type(config.get("seed")) is int,
        **{name: isinstance(config.get(name), dict) for name in SECTIONS},
        "train.augment": isinstance(train, dict) and isinstance(train.get("augment"), dict),
        "benchmark": isinstance(config.get("benchmark", ""), str),
        "data": isinstance(config.get("data", {}), dict),
        "data.source": "benchmark" not in config or "source" in (config.get("data") or {}),
        "extensions": _are(config.get("extensions", []), ("run", "folder", "classes")),
        "branch": is_branch(config),
    }
    for key, good in fits.items():
        if not good:
            raise UserError(f"{path} has no {key} as a run has it; put the run's own file back")
    return config


def is_branch(config: Mapping[str, Any]) -> bool:
    """Does it say where it began, if it says that it is a branch?"""
    return "branch" not in config or _are([config["branch"]], ("run", "task"))


def _are(steps: Any, keys: tuple[str, ...]) -> bool:
    """Is it a list of dictionaries with these keys?"""
    return isinstance(steps, list) and all(
        isinstance(s, dict) and set(keys) <= set(s) for s in steps
    )


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Keys whose values differ, as ``key: old there, new asked``."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        found = [differences(old.get(k), new.get(k), f"{where}.{k}".lstrip(".")) for k in keys]
        return [text for part in found for text in part]
    return [] if old == new else [f"{where}: {old} there, {new} asked"]
