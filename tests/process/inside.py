"""Commands inside this process, watched: what they print, how they end, what they write and run."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib.figure  # noqa: F401  it makes a folder for its cache when it is imported
import torch._dynamo  # noqa: F401  so does this one, which optimisers import

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"}
FOLLOWS = {"open", "os.truncate"}
RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect"}
SECONDS = 300  # nothing here takes more than a few, on a machine that has time


class Answer(NamedTuple):
    code: int
    out: str
    err: str
    faults: list[str]  # what was written outside, and what was run


class _Watch:
    """An audit hook cannot be taken back, so there is one, and it is on or off."""

    def __init__(self) -> None:
        self.root: str | None = None
        self.faults: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, details: tuple) -> None:
        if self.root is None:
            return
        if event in RUNS:
            self.faults.append(f"{event} {details[:1]!r}")
        elif event == "open" and isinstance(details[2], int) and details[2] & WRITES:
            self.look(event, details[0])
        elif event in PATHS:
            for path in details[:2]:
                self.look(event, path)

    def look(self, event: str, path: object) -> None:
        if not isinstance(path, (str, bytes)):
            return
        named = Path(os.fsdecode(path))
        follows = event in FOLLOWS  # else it is the link that is renamed or removed
        full = str(named.resolve() if follows else named.parent.resolve() / named.name)
        inside = full == self.root or full.startswith(self.root + os.sep)
        if not inside and full != os.devnull and "__pycache__" not in full:
            self.faults.append(f"{event} {full}")


WATCH = _Watch()


@contextlib.contextmanager
def watched(root: Path) -> Iterator[list[str]]:
    """What is written outside of ``root`` or run, inside."""
    WATCH.root, WATCH.faults = os.path.realpath(root), []
    try:
        yield WATCH.faults
    finally:
        WATCH.root = None


def rrr(*words: object, cwd: Path) -> Answer:
    """One command in a folder."""
    from rightreasons.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    before, argv, environment = Path.cwd(), sys.argv, dict(os.environ)
    term = signal.getsignal(signal.SIGTERM)
    alarm = signal.signal(signal.SIGALRM, _late)
    os.chdir(cwd)
    sys.argv = ["rrr", *map(str, words)]
    signal.alarm(SECONDS)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            watched(cwd) as faults,
        ):
            warnings.simplefilter("default")
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
            except Exception:
                traceback.print_exc()
                code = 70
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGTERM, term)
        os.chdir(before)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
    return Answer(code, out.getvalue(), err.getvalue(), list(faults))


def _late(*_: object) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def assert_calm(answer: Answer, words: object) -> None:
    """It did what was asked, or said in one sentence why not; and nothing else happened."""
    told = f"{words!r}\n{answer.err}"
    assert answer.code in (0, 1, 2), told
    assert "Traceback" not in answer.err, told
    assert not answer.faults, f"{answer.faults} {told}"
    if answer.code and not answer.out:
        last = answer.err.splitlines()[-1]
        assert last.startswith("rrr: "), told
    assert all(c.isprintable() or c == "\n" for c in answer.err), told
