"""What every data source offers, and a source by its name or around what a user has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rightreasons.config import make, plain
from rightreasons.data.arrays import Arrays
from rightreasons.data.folder import Folder
from rightreasons.errors import UserError
from rightreasons.registry import SOURCES, find, usable
from rightreasons.types import Splits


class Source(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """The classes, in the source's own order."""

    @property
    def flip(self) -> bool:
        """May an image be mirrored without changing its class?"""

    def load(self, classes: Sequence[int]) -> Splits:
        """Train and test images of these classes; labels are places in ``classes``."""


def source(data: Any, **options: Any) -> Source:
    """A source by name, a folder of class folders, or around ``(x, y[, masks])`` arrays."""
    if isinstance(data, Path) or (isinstance(data, str) and Path(data).is_dir()):
        return make(Folder, {"path": str(data), **options}, "data")
    if isinstance(data, str):
        made: Source = make(find("data source", SOURCES, data), options, "data")
        return made
    if isinstance(data, (tuple, list)):
        return Arrays(data, **options)
    if hasattr(data, "load") and hasattr(data, "names"):
        return data  # type: ignore[no-any-return]
    raise UserError(
        f"data is a {type(data).__name__}, expected a source's name or (x, y[, masks]) arrays"
    )


def describe(origin: Source) -> dict[str, Any] | None:
    """A named source as a config section; None for arrays."""
    for name, kind in usable(SOURCES):
        if type(origin) is kind:
            return {"source": name, **plain(origin)}
    return None
