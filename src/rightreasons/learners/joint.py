"""Joint training: every task sees all images so far, the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rightreasons.errors import UserError
from rightreasons.learners.base import Learner
from rightreasons.types import Pool, Stage, Task


@dataclass
class Joint(Learner):
    """Cross entropy over all classes seen, on the images of all tasks so far.

    It goes on from the weights of the task before.
    """

    name: ClassVar[str] = "joint"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.terms:
            name = self.terms[0].name
            raise UserError(f"joint takes no term, and was given {name!r}; use er+{name}")

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool(past=True))]
