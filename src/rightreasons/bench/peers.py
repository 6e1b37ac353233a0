"""An epoch of ours against an epoch of Avalanche's replay."""

from __future__ import annotations

from collections.abc import Iterator

from rightreasons.bench.table import Fact, Row


def rows(pairs: int) -> Iterator[Row | Fact]:
    yield Fact("Avalanche", "not installed; pip install 'rightreasons[avalanche]'")
