"""Experience replay: remembered images join the batches of new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rightreasons.config import check_choice
from rightreasons.learners.base import REPLAYS, Learner
from rightreasons.types import Pool, Stage, Task


@dataclass
class ER(Learner):
    """Cross entropy over all classes seen, on new and on remembered images."""

    replay: str = "paired"
    """paired: memory rows beside each batch of new images; concat: one shuffled pool (the paper)"""

    name: ClassVar[str] = "er"
    replays: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "replay", REPLAYS)

    def stages(self, task: Task) -> list[Stage]:
        return [Stage(pool=Pool(mix=self.replay))]
