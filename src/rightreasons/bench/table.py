"""The table of `rrr bench`: rows as they come, in Markdown."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rightreasons import __version__
from rightreasons.bench.pairs import Ratio, told
from rightreasons.errors import UserError
from rightreasons.progress import SILENCE
from rightreasons.runfiles import write

APART = 1.10  # time over FLOPs, beyond which a row is marked


@dataclass(frozen=True)
class Row:
    """One ratio; ``bar`` is what it must not exceed, ``flops`` the ratio of operations."""

    what: str
    ratio: Ratio
    bar: float | None = None
    flops: float | None = None

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None else self.ratio.value <= self.bar

    def cells(self) -> list[str]:
        bar = "" if self.bar is None else f"{number(self.bar)} {'yes' if self.passed else 'NO'}"
        flops = "" if self.flops is None else f"{self.flops:.4f}"
        apart = self.flops is not None and self.ratio.value > APART * self.flops
        return [self.what, flops, f"{number(self.ratio.value)}{' *' if apart else ''}",
                f"{number(self.ratio.low)} to {number(self.ratio.high)}", bar]  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One figure that is no ratio."""

    what: str
    figure: str

    def cells(self) -> list[str]:
        return [self.what, "", self.figure, "", ""]


HEAD = ["what", "FLOPs", "time", "95 % interval", "bar"]


@dataclass(frozen=True)
class Section:
    """A part of the table; ``rows`` gets the number of pairs."""

    title: str
    rows: Callable[[int], Iterator[Row | Fact]]


def number(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"1/{1 / value:.0f}"


def share(value: float) -> float:
    return round(value, 4)


def head(pairs: int) -> list[str]:
    """What was measured with, and the table's head."""
    import torch

    return [
        f"rightreasons {__version__}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {platform.machine()} "
        f"{torch.backends.cpu.get_cpu_capability()}, 1 thread, {pairs} alternated pairs",
        "",
        _line(HEAD),
        "|---|--:|--:|--:|--:|",
    ]


def lines(section: Section, pairs: int) -> Iterator[str]:
    """A section, line by line as it is measured."""
    yield _title(section)
    for row in section.rows(pairs):
        yield _line(row.cells())


def _title(section: Section) -> str:
    return _line([f"**{section.title}**", "", "", "", ""])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def show(sections: dict[str, Section], only: Sequence[str], pairs: int, out: Path | None) -> None:
    """Print lines as they come, with a word on stderr while one is awaited.

    ``out`` gets each section when it is complete, and those that it has are not measured again:
    the whole table takes hours.
    """
    top = head(pairs)
    found = _read(out, top, sections) if out is not None else {}
    print("\n".join(top), flush=True)
    for name in only or sections:
        if name in found:
            print("\n".join(found[name]), flush=True)
            continue
        said: list[str] = []
        with _waiting(name, said):
            for line in lines(sections[name], pairs):
                print(line, flush=True)
                said.append(line)
        found[name] = said
        if out is not None:
            body = [line for each in sections if each in found for line in found[each]]
            write(out, "\n".join([*top, *body]) + "\n")


def _read(path: Path, top: list[str], sections: dict[str, Section]) -> dict[str, list[str]]:
    """The sections that a file has, if it was made with the same versions and pairs."""
    if not path.exists():
        return {}
    said = path.read_text("utf-8", errors="replace").splitlines()
    if said[: len(top)] != top:
        raise UserError(
            f"{path} exists and is no table of these versions and {top[0].split(', ')[-1]}; "
            "remove it, or pass another --out"
        )
    names = {_title(section): name for name, section in sections.items()}
    found: dict[str, list[str]] = {}
    name = ""
    for line in said[len(top) :]:
        name = names.get(line, name)
        found.setdefault(name, []).append(line)
    return {name: found[name] for name in sections if name in found}


@contextmanager
def _waiting(section: str, said: list[str]) -> Iterator[None]:
    """Say how far the row of a section after those that are ``said`` is."""
    console = Console(file=sys.stderr)
    spoken = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal spoken
        text = f"{section}, row {max(len(said), 1)}: {done} of {of} pairs"
        if console.is_terminal:
            status.update(text)
        elif time.monotonic() - spoken > SILENCE:
            spoken = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    with console.status("measuring") as status:
        before = told.set(tell)
        try:
            yield
        finally:
            told.reset(before)
