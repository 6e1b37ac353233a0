"""The table of `rrr bench`: rows as they come, in Markdown."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from rightreasons.bench.pairs import Ratio, told
from rightreasons.progress import SILENCE

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


def lines(sections: dict[str, Section], pairs: int) -> Iterator[str]:
    """The whole table, line by line; sections are measured one after the other."""
    import torch

    yield (
        f"Python {platform.python_version()}, torch {torch.__version__}, "
        f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, 1 thread, "
        f"{pairs} alternated pairs"
    )
    yield ""
    yield _line(HEAD)
    yield "|---|--:|--:|--:|--:|"
    for section in sections.values():
        yield _line([f"**{section.title}**", "", "", "", ""])
        for row in section.rows(pairs):
            yield _line(row.cells())


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("  ", " ")


def show(sections: dict[str, Section], pairs: int) -> list[str]:
    """Print lines as they come, with a word on stderr while one is awaited; all of them."""
    said: list[str] = []
    with _waiting(said):
        for line in lines(sections, pairs):
            print(line, flush=True)
            said.append(line)
    return said


@contextmanager
def _waiting(said: list[str]) -> Iterator[None]:
    """Say how far the row after those that are ``said`` is."""
    console = Console(file=sys.stderr)
    spoken = time.monotonic()

    def tell(done: int, of: int) -> None:
        nonlocal spoken
        text = f"line {len(said) + 1}: {done} of {of} pairs"
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
