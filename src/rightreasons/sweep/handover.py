"""A run folder on another machine, kept up with here: files that are new, as they are written.

Every file of a run is whole or absent and none depends on a later one, so what has been handed
over in the order of writing is, at any time, a folder that the run can go on from.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from rightreasons.runfiles import PARTIAL, whole

EVERY = 1.0  # seconds between two looks
PREFIX = "prefix"  # the name of the shared first task, which lies beside the run's folder
BEFORE = 2  # task ends whose checkpoints are sent along: the last, and one in case it is damaged

Files = Mapping[str, bytes]
Send = Callable[[str, bytes | None], None]  # a file's name and content; None: it is gone


def needed(folder: Path, prefix: Path | None) -> dict[str, bytes]:
    """What a run needs to go on elsewhere: all but maps, and checkpoints of tasks long ended."""
    from rightreasons.checkpoints import found_in

    places = found_in(folder)
    ends = sorted(tasks for tasks, steps in places if not steps)[-BEFORE:]
    paths = [path for path in sorted(folder.glob("*")) if path.is_file()]
    paths += [path for (tasks, _), path in places.items() if not ends or tasks >= ends[0]]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    if prefix is not None and prefix.is_file():
        found[PREFIX] = prefix.read_bytes()
    return found


def put(folder: Path, prefix: Path | None, name: str, content: bytes | None) -> None:
    """One file that was handed over, in its place."""
    path = prefix if name == PREFIX else folder / name
    if path is None:
        return
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as sink:
        sink.write(content)


class Courier:
    """Sends what is new in a folder: when it is told to, and in between by itself."""

    def __init__(self, folder: Path, prefix: Path | None, send: Send) -> None:
        self.folder, self.prefix, self.send = folder, prefix, send
        self.known = self._look()

    def _look(self) -> dict[str, tuple[int, int, Path]]:
        """Name -> time and size of a file, and its path."""
        found = {}
        paths = [*self.folder.rglob("*"), *([self.prefix] if self.prefix else [])]
        for path in paths:
            with suppress(FileNotFoundError):  # removed while we look
                if path.is_file() and path.suffix != PARTIAL:
                    there = path.stat()
                    name = PREFIX if path == self.prefix else str(path.relative_to(self.folder))
                    found[name] = (there.st_mtime_ns, there.st_size, path)
        return found

    def deliver(self) -> None:
        """All that has changed since the last time, the oldest first; then what is gone."""
        found = self._look()
        new = {name: seen for name, seen in found.items() if self.known.get(name) != seen}
        for name, seen in sorted(new.items(), key=lambda item: item[1]):
            try:
                content = seen[2].read_bytes()
            except FileNotFoundError:  # the next look sees that it is gone
                del found[name]
                continue
            self.send(name, content)
        for name in self.known.keys() - found.keys():
            self.send(name, None)
        self.known = found

    @contextmanager
    def walking(self) -> Iterator[None]:
        """Deliver every second, and once more at the end, however it ends."""
        ended = threading.Event()

        def walk() -> None:
            while not ended.wait(EVERY):
                self.deliver()

        thread = threading.Thread(target=walk, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.deliver()
