"""Errors that a user can act on: what was seen, what was expected, what to type."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The command line prints it without a traceback and exits with code 2."""


class Damaged(UserError):
    """A file of a run folder that is not what was written there."""


class Diverged(UserError):
    """Training that has left the numbers: a loss or a weight is NaN or infinite."""


class RunWarning(UserWarning):
    """A run that goes on, and whose user should know something about it."""


class Stopped(KeyboardInterrupt):
    """A run that a signal has ended, at a place from which it can be gone on with."""

    def __init__(self, signal: int = 2, where: str = "") -> None:
        super().__init__(signal, where)
        self.signal, self.where = signal, where

    def __str__(self) -> str:
        return f"stopped {self.where}" if self.where else "stopped"


class DataWarning(UserWarning):
    """Data that can be used, and that its user should know something about."""


def unknown(kind: str, name: object, choices: Iterable[str], likeness: float = 0.5) -> UserError:
    """The error for a name that is not among the choices, with the nearest one suggested."""
    known = list(choices)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=likeness)
    near = near or [word for word in known if word.rpartition(".")[2] == name]
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {', '.join(known)}."
    return UserError(f"unknown {kind} {str(name)!r}; {hint}")


def why(error: BaseException) -> str:
    """The beginning of what an error says, or its name if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]


def printable(text: str) -> str:
    """A text in one line that a terminal only prints: names of files may hold anything else."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
