"""Joint training: every task sees all images so far, the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rightreasons.errors import UserError
from rightreasons.learners.base import Learner
from rightreasons.terms import Term
from rightreasons.types import Pool, Stage, Task


@dataclass
class Joint(Learner):
    """Cross entropy over all classes seen, on the images of all tasks so far.

    It goes on from the weights of the task before.
    """

    name: ClassVar[str] = "joint"

    def __add__(self, term: Term) -> Joint:
        raise UserError(f"joint takes no term, and was given {term.name!r}; use er+{term.name}")

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool(past=True))]
