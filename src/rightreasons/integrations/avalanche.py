"""Explanation replay for strategies of Avalanche, by adding one plugin.

    strategy = Naive(model, optimizer, plugins=[RRRPlugin(memory=200)])

The plugin keeps rows of each experience with the columns of its term, and adds the term to the loss
before the backward pass. What is stored and what the loss is, is what ``fit`` stores and computes:
`keep`, `Feed` and the term itself are called, on the strategy's own model.
"""

from __future__ import annotations

import copy
import math
import warnings
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.explainers import content_keys, gradcam
from rightreasons.feed import Feed
from rightreasons.integrations.rows import AsTheyAre, Pixels, buffered
from rightreasons.keep import keep, look
from rightreasons.learners.finetune import Finetune
from rightreasons.memory import Column, Memory, join, take
from rightreasons.nets.borrow import Borrowed, borrow, still
from rightreasons.nets.vision import torchvision
from rightreasons.pointing import point
from rightreasons.streams import Stream
from rightreasons.terms import RRR, Evidence, Term
from rightreasons.types import Images, Task

SERIES = "0.6"


def _avalanche() -> None:
    """Import Avalanche behind the guarded torchvision, or say what is missing."""
    try:
        version = metadata.version("avalanche-lib")
    except metadata.PackageNotFoundError:
        raise UserError(
            "the plugins need Avalanche, which is not installed; "
            "type pip install 'rightreasons[avalanche]'"
        ) from None
    if not version.startswith(f"{SERIES}."):
        raise UserError(
            f"avalanche-lib is {version}, and the plugins are written for {SERIES}; "
            f"type pip install 'avalanche-lib=={SERIES}.*'"
        )
    torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        import avalanche.training  # noqa: F401


_avalanche()
from avalanche.core import SupervisedPlugin  # noqa: E402
from avalanche.evaluation import GenericPluginMetric  # noqa: E402
from avalanche.evaluation.metrics import Mean  # noqa: E402
from avalanche.models import MultiTaskModule  # noqa: E402


class TermPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Any term of this library, as a plugin.

    Parameters
    ----------
    term
        Its weight, rows a step and the rest; the view must be canonical, or left open.
    memory
        How many images are remembered beside their explanations, or a `Memory`. With ``strategy``
        the rows are those of the strategy's own buffer (replay, iCaRL), and only explanations are
        kept here.
    head, target
        Names of the model's last linear layer and of the layer that Grad-CAM explains, where they
        are not found.
    seed
        Of the rows that are kept and explained; no other generator is touched.
    """

    def __init__(
        self,
        term: Term,
        memory: int | Memory | str = 200,
        *,
        head: str | None = None,
        target: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if term.view not in ("auto", "canonical"):
            raise UserError(
                f"{term.name}.view is {term.view}, and Avalanche does not say which crop an image "
                "had; pass a term with view='canonical' and a joint schedule"
            )
        if term.apart:
            raise UserError(
                f"{term.name} makes steps of its own, and in Avalanche the strategy makes them; "
                "pass a term with a joint schedule"
            )
        if isinstance(memory, str) and memory != "strategy":
            raise UserError(f"memory is {memory!r}, expected a number of rows or 'strategy'")
        self.shares = memory == "strategy"
        own = Memory(memory) if isinstance(memory, int) else memory
        self.learner = Finetune(memory=own if isinstance(own, Memory) else Memory()) + term
        self.names, self.seed = (head, target), seed
        self.net: Borrowed | None = None
        self.side = 1  # of an image
        self.counts: list[int] = []  # of the classes that each experience brought
        self.order: list[int] = []  # classes by order of appearance
        self.steps = 0
        self.value: Tensor | None = None
        """what the term was in the last step, before its weight"""

    @property
    def term(self) -> Term:
        return self.learner.terms[0]

    @property
    def memory(self) -> Memory:
        """The rows and what is kept beside them; ``nbytes()`` counts."""
        return self.learner.memory

    # --- Avalanche's calls ---------------------------------------------------------------------

    def before_train_dataset_adaptation(self, strategy: Any, **_: Any) -> None:
        """The buffer as the last experience has left it, before the model grows."""
        if self.shares:
            self._follow(strategy)

    def before_forward(self, strategy: Any, **_: Any) -> None:
        if self.net is None or self.net.module is not strategy.model:
            self._open(strategy)

    def before_backward(self, strategy: Any, **_: Any) -> None:
        if not len(self.memory):
            return
        self.value = self.explain(strategy.device, self.steps)
        self.steps += 1
        factor = self.term.factor(self._seeing(), self.value, strategy.loss)
        strategy.loss = strategy.loss + factor * self.value

    def after_training_exp(self, strategy: Any, **_: Any) -> None:
        if self.net is None:
            return
        dataset = strategy.experience.dataset
        labels = torch.as_tensor(list(dataset.targets))
        fresh = self._meet(labels)
        if self.shares or not fresh:
            return
        pixels: Any = Pixels(dataset)
        index = torch.isin(labels, torch.tensor(fresh)).nonzero().flatten()
        images = Images(pixels, self._places(labels[index]), rows=index)
        task = self._tasks()[-1]
        task = Task(task.index, task.classes, images, task.test)
        with still(strategy.model):
            keep(self.learner, self._seeing(), self._feed(strategy.device), task)

    def after_training(self, strategy: Any, **_: Any) -> None:
        if self.shares:
            self._follow(strategy)

    # --- what they do --------------------------------------------------------------------------

    def explain(self, device: torch.device, step: int) -> Tensor:
        """The term on some rows, before its weight."""
        net, feed, term = self._seeing(), self._feed(device), self.term
        batch = feed.explained(term.rows, (len(self.counts), "main", 0, step), None)
        with net.statistics(term.norm):
            out = net(batch.x, taps=term.taps)
        return term(net, out, batch, feed.columns(batch.row))

    def _open(self, strategy: Any) -> None:
        """Look at the model, and refuse what the term cannot explain."""
        if isinstance(strategy.model, MultiTaskModule):
            raise UserError(
                f"{type(strategy.model).__name__} has a head a task, and explanations are of one "
                "head; use a model with a single head"
            )
        probe = strategy.mb_x[:4].detach()
        self.side = probe.shape[-1]
        self.net = borrow(strategy.model, probe, *self.names)
        self.term.check(copy.deepcopy(self.net), probe)

    def _seeing(self) -> Borrowed:
        assert self.net is not None
        self.net.see(self.order)
        return self.net

    def _meet(self, labels: Tensor) -> list[int]:
        """The classes among these that are new; they come next in the order of appearance."""
        fresh = sorted(set(labels.tolist()) - set(self.order))
        if fresh:
            self.order += fresh
            self.counts.append(len(fresh))
        return fresh

    def _places(self, labels: Tensor) -> Tensor:
        """Labels by order of appearance."""
        place = {label: i for i, label in enumerate(self.order)}
        return torch.tensor([place[label] for label in labels.tolist()], dtype=torch.long)

    def _tasks(self) -> tuple[Task, ...]:
        """What the experiences brought, as tasks without images."""
        none = Images(
            torch.zeros(0, 3, self.side, self.side), torch.zeros(0, dtype=torch.long)
        )  # their size says how many a forward takes
        ends = torch.tensor([0, *self.counts]).cumsum(0).tolist()
        spans = zip(ends, ends[1:], strict=False)
        return tuple(Task(i, tuple(range(*span)), none, none) for i, span in enumerate(spans))

    def _feed(self, device: torch.device) -> Feed:
        names = tuple(map(str, self.order))
        stream = Stream(self._tasks(), names, torch.zeros(3), torch.ones(3), False)
        return AsTheyAre(stream, self.memory, self.seed, torch.device(device))

    def _follow(self, strategy: Any) -> None:
        """Explanations of what is in the strategy's buffer now; of old samples they are kept.

        A sample is known by its content.
        """
        x, labels = buffered(strategy)  # a strategy without one is refused before it trains
        if not len(labels) or self.net is None:
            return
        self._meet(labels)
        keys, y = content_keys(x), self._places(labels)
        memory, old = self.memory, {}
        if len(memory) and not self.term.refreshes:
            old = {key: row for row, key in enumerate(memory.tensor("key").tolist())}
        place = torch.tensor([old.get(key, -1) for key in keys.tolist()])
        kept, new = (place >= 0).nonzero().flatten(), (place < 0).nonzero().flatten()
        feed = self._feed(strategy.device)
        rows: dict[str, Column] = {"x": x, "y": y, "task": feed.task_of[y], "key": keys}
        parts: list[dict[str, Column]] = []
        if len(kept):
            stored = memory.take(place[kept])
            parts.append({name: c for name, c in stored.items() if name not in rows})
        if len(new):
            with still(strategy.model):
                seen = look(self._seeing(), feed, [self.term], Images(x, y), new)
            parts.append({name: c for name, c in seen.items() if name != "z"})
        back = torch.cat([kept, new]).argsort()
        explained = {n: take(join([part[n] for part in parts]), back) for n in parts[0]}
        memory.columns_ = rows | explained


class RRRPlugin(TermPlugin):
    """Remember for the right reasons: ``Naive(..., plugins=[RRRPlugin()])``."""

    def __init__(
        self,
        term: RRR | None = None,
        memory: int | Memory | str = 200,
        *,
        head: str | None = None,
        target: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(term or RRR(), memory, head=head, target=target, seed=seed)


class EvidencePlugin(TermPlugin):
    """Remember the evidence for every class seen: ``Naive(..., plugins=[EvidencePlugin()])``."""

    def __init__(
        self,
        term: Evidence | None = None,
        memory: int | Memory | str = 200,
        *,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(term or Evidence(), memory, head=head, seed=seed)


class PointingGame(GenericPluginMetric[float, Mean]):  # type: ignore[misc]
    """How often the peak of Grad-CAM of the predicted class lies on the object.

    The data set gives ``(x, y, mask)``, with masks (H,W) that are true on the object; images whose
    mask is empty are left out. Add ``*pointing_metrics()`` to an EvaluationPlugin.
    """

    def __init__(self, at: str, head: str | None = None, target: str | None = None) -> None:
        super().__init__(Mean(), reset_at=at, emit_at=at, mode="eval")
        self.at, self.names = at, (head, target)
        self.net: Borrowed | None = None

    def update(self, strategy: Any) -> None:
        if len(strategy.mbatch) < 4 or strategy.mbatch[2].ndim != 3:
            raise UserError(
                "the pointing game needs masks, and the minibatches have none; give a data set of "
                "(x, y, mask) with masks (H,W)"
            )
        masks, x = strategy.mbatch[2].to(strategy.device).bool(), strategy.mb_x
        if self.net is None or self.net.module is not strategy.model:
            self.net = borrow(strategy.model, x[:4], *self.names)
        self.net.see_all()
        with still(strategy.model):
            maps = gradcam(self.net, x, strategy.mb_output.argmax(1), target="paper").detach()
        masked = masks.flatten(1).any(1)
        if masked.any():
            hits = point(maps[masked], masks[masked]).hit
            self._metric.update(float(hits.float().mean()), len(hits))

    def result(self) -> float:
        return float(self._metric.result()) if self._metric.weight else math.nan

    def __str__(self) -> str:
        return f"PointingGame_{self.at.capitalize()}"


def pointing_metrics(
    *,
    experience: bool = True,
    stream: bool = True,
    head: str | None = None,
    target: str | None = None,
) -> list[PointingGame]:
    """The pointing game for an EvaluationPlugin, for each experience and for the whole stream."""
    wanted = {"experience": experience, "stream": stream}
    return [PointingGame(at, head, target) for at, asked in wanted.items() if asked]
