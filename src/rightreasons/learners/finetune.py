"""Finetune: each task is trained on its own images only, the lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rightreasons.learners.base import Learner


@dataclass
class Finetune(Learner):
    """Cross entropy over all classes seen, on new images only."""

    name: ClassVar[str] = "finetune"
