"""What torchrun tells a process by its environment; nothing here imports torch."""

from __future__ import annotations

import os

from rightreasons.errors import UserError


def processes() -> int:
    """How many were started for one run."""
    return _number("WORLD_SIZE", 1)


def process() -> int:
    """The number of this one among them, from 0: the first has the folder, and speaks."""
    return _number("RANK", 0) if processes() > 1 else 0


def _number(name: str, least: int) -> int:
    word = os.environ.get(name, str(least))
    if not word.isdecimal() or int(word) < least:
        raise UserError(f"{name} is {word!r} in the environment; start the run with torchrun")
    return int(word)
