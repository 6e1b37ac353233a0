"""The steps of a stage: batches, the learner's loss with its terms, the update, and the place.

Every draw is keyed by task, stage, epoch and step, so a stage can be entered at any step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rightreasons.distributed import group, means, own, settle, share, whole
from rightreasons.errors import UserError
from rightreasons.feed import Feed
from rightreasons.keep import balance
from rightreasons.learners.base import Learner
from rightreasons.losses import TASK, At, Losses
from rightreasons.memory import Column
from rightreasons.nets.base import Net
from rightreasons.optimise import Train, Updater, check_precision, pick_device, training
from rightreasons.randomness import key, seed_noise
from rightreasons.streams import Stream
from rightreasons.terms.base import Term, all_taps
from rightreasons.timing import FORWARD, LOSS, OWN_FORWARD, span
from rightreasons.types import Batch, Out, Stage, Task, Where


@dataclass
class Underway:
    """A stage in the making: what a checkpoint inside a task must know of it."""

    number: int  # of the stage in its task
    balanced: Tensor | None  # the images that a balanced stage has chosen
    updates: list[Updater]
    epoch: int = 0
    step: int = 0  # the next one of the epoch

    def state(self) -> dict[str, Any]:
        return {
            **{"stage": self.number, "epoch": self.epoch, "step": self.step},
            "balanced": self.balanced,
            "optimisers": [update.optimiser.state_dict() for update in self.updates],
        }


class Steps:
    """A learner and its net in training."""

    def __init__(self, learner: Learner, net: Net, stream: Stream, train: Train, seed: int) -> None:
        self.learner, self.net, self.train, self.seed = learner, net, train, seed
        self.memory = learner.memory
        self.device = pick_device(train.device)
        check_precision(train.precision, self.device)
        cut = train.augment.cut if train.augment else None
        dtype = next(net.parameters()).dtype
        self.feed = Feed(stream, self.memory, seed, self.device, cut, learner.holds_out, dtype)
        self.losses = Losses(learner, net)
        self.steps = 0  # of the task
        self.at = At(1, 0, 1, train.lr)
        self.underway: Underway | None = None
        self.now = train  # what holds in the stage that is underway

    def take_steps(
        self, task: Task, stage: Stage, number: int = 0, saved: dict[str, Any] | None = None
    ) -> Iterator[int]:
        """Epochs of steps with one optimiser; gives the epoch after each step.

        ``saved`` is a checkpoint inside this stage: the learner's state is that of its step.
        """
        self.now = train = self.train.at(task, stage)
        if saved is None:
            self.learner.begin_stage(self.net, task, stage, self.memory)
        parameters = self.learner.trained(self.net, stage)
        rows = task.classes[0] if "new_rows" in stage.params.split("+") else 0
        held = [(p, rows) for p in self.net.head.parameters()]
        update = Updater(parameters, train, seed=self.seed, held=held)
        terms = self.learner.terms if stage.terms and len(self.memory) else ()
        apart = [
            (term, Updater(parameters, Train(lr=term.apart, clip=train.clip), held=held))
            for term in terms
            if term.apart
        ]
        joint = [term for term in terms if not term.apart]
        here = self._underway(task, stage, number, [update, *(by for _, by in apart)], saved)
        for epoch in range(here.epoch, train.epochs):
            here.epoch = epoch
            if not here.step:
                for term, by in apart:
                    self.rehearse(term, by, stage, (task.index, stage.name, epoch))
            lr = train.rate(epoch)
            batches = self.feed.batches(task, stage, train, epoch, here.balanced, here.step)
            for step, batch in enumerate(batches, here.step):
                where = (task.index, stage.name, epoch, step)
                self.at = At(task.index + 1, self.steps + 1, epoch + 1, lr)
                self._seed_dropout(*where)
                objective = partial(self.objective, stage, joint, where)
                with training(self.net, parameters):
                    self.learner.step(self.net, batch, objective, partial(update, where))
                self.steps += 1
                here.step = step + 1
                yield epoch
            here.step = 0

    def _underway(
        self,
        task: Task,
        stage: Stage,
        number: int,
        updates: list[Updater],
        saved: dict[str, Any] | None,
    ) -> Underway:
        """The stage at its beginning, or where a checkpoint has left it."""
        if saved is None:
            chosen = None
            if stage.pool.balance:
                chosen = balance(self.learner, self.net, self.feed, task)
            self.underway = Underway(number, chosen, updates)
        else:
            try:
                for update, state in zip(updates, saved["optimisers"], strict=True):
                    update.optimiser.load_state_dict(state)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise UserError(
                    f"the optimiser of a checkpoint does not fit this run ({error}); remove the "
                    "checkpoint, or pass another --out"
                ) from error
            self.underway = Underway(
                number, saved["balanced"], updates, saved["epoch"], saved["step"]
            )
        return self.underway

    def objective(
        self,
        stage: Stage,
        terms: Sequence[Term],
        where: Where,
        batch: Batch,
        task: int | None = None,
    ) -> Tensor:
        """The learner's loss and its terms on one batch; with ``task``, terms draw its rows."""
        shared = [term for term in terms if term.view == "shared"]
        still = self._still(stage, where)
        frozen = still or any(t.norm == "frozen" for t in shared)
        mine = own(batch)
        with span(FORWARD):
            seen = self._see(mine.x, shared, "frozen" if frozen else "train")
        out = whole(seen, len(batch.y))
        with span(LOSS):
            loss = fit = self._number(self.learner.loss(self.net, out, batch, stage))
        self.losses.note(TASK, loss, self.at, out, batch)
        for term, value in self._noted(self._terms(terms, seen, mine, batch, where, still, task)):
            loss = loss + term.factor(self.net, value, fit) * value
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise UserError(
                f"the loss of {self.learner.name} does not depend on the weights; make it of "
                "out.logits or another part of out, without detach() or no_grad"
            )
        return loss

    def _number(self, loss: Any) -> Tensor:
        """What a learner's ``loss`` returned, if it can be minimised."""
        name, seen = self.learner.name, type(loss).__name__
        if not isinstance(loss, Tensor):
            raise UserError(f"the loss of {name} is a {seen}, expected a tensor of one number")
        if loss.ndim:
            raise UserError(
                f"the loss of {name} has shape {tuple(loss.shape)}, expected one number, such as "
                "the mean over the batch"
            )
        return loss

    def _terms(
        self,
        terms: Sequence[Term],
        out: Out,
        mine: Batch,
        batch: Batch,
        where: Where,
        still: bool = False,
        task: int | None = None,
    ) -> Iterator[tuple[Term, Tensor]]:
        """Each term's value. Terms that look at the same rows share a forward.

        ``out`` is what came of ``mine``, the images of ``batch`` that this process forwards.
        """
        groups: dict[tuple[Any, ...], list[Term]] = {}
        for term in terms:
            apart = (term.rows, term.norm) if term.view != "shared" else ()
            groups.setdefault((term.view, *apart), []).append(term)
        # those that move running statistics first: a backward reads them as they are by then
        for alike in sorted(groups.values(), key=lambda some: _norm(some, still) != "train"):
            if alike[0].view == "shared":
                drawn = batch.row[batch.row >= 0]
                if not len(drawn):
                    continue
                old = (mine.row >= 0).nonzero().flatten()
                seen, rows, split = out.where(old), mine.where(old), mine is not batch
            else:
                how = self.now.augment if alike[0].view == "ignore" else None
                every = self.feed.explained(alike[0].rows, where, how, task)
                drawn, rows = every.row, own(every)
                if not len(drawn):
                    continue
                seen, split = self._forward(alike, rows, still), rows is not every
            columns = self.feed.columns(rows.row)
            for term in alike:
                with span(term.name):
                    yield term, self._value(term, seen, rows, columns, drawn if split else None)

    def _value(
        self,
        term: Term,
        seen: Out,
        rows: Batch,
        columns: Mapping[str, Column],
        drawn: Tensor | None,
    ) -> Tensor:
        """A term's loss of these rows; ``drawn`` are those of all processes, if they share them."""
        if drawn is None:
            return term(self.net, seen, rows, columns)
        if not len(rows.y):
            return seen.logits.new_zeros(())
        value = term(self.net, seen, rows, columns)
        return share(value, term.counted(columns), term.counted(self.feed.columns(drawn)))

    def _noted(self, values: Iterable[tuple[Term, Tensor]]) -> list[tuple[Term, Tensor]]:
        """The same, once the losses know of them."""
        found = list(values)
        for (term, _), value in zip(found, means([value for _, value in found]), strict=True):
            self.losses.note(term.name, value, self.at, weight=term.weight)
        return found

    def _forward(self, terms: Sequence[Term], batch: Batch, still: bool) -> Out:
        """A forward for terms alone."""
        name = OWN_FORWARD.format("+".join(term.name for term in terms))
        with span(name):
            return self._see(batch.x, terms, _norm(terms, still))

    def _still(self, stage: Stage, where: Where) -> bool:
        """Do running statistics stay as they are?"""
        freeze = self.now.freeze_bn and where[0] != 0  # from the second task on
        return freeze or stage.params != "all"

    def _see(self, x: Tensor, terms: Sequence[Term], norm: str) -> Out:
        """What the net says of images, in the run's precision, given on in float32."""
        half = self.train.precision == "bf16"
        with self.net.statistics(norm):
            with torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext():
                out = self.net(x, taps=all_taps(terms))
            settle(self.net)
        if not half:
            return out
        maps = {tap: value.float() for tap, value in out.maps.items()}
        return Out(out.logits.float(), out.z.float(), maps, (out.maps, None))

    def rehearse(self, term: Term, update: Updater, stage: Stage, where: Where) -> None:
        """A pass over the whole memory for one term, before the epoch, with its own optimiser."""
        order = self.feed.explainable(len(self.memory), where)
        how = self.now.augment if term.view == "ignore" else None
        assert term.apart is not None
        self.at = At(int(where[0]) + 1, self.steps + 1, int(where[2]) + 1, term.apart)
        for step, rows in enumerate(torch.split(order, term.rows)):
            self._seed_dropout("rehearsal", term.name, *where, step)
            batch = self.feed.remembered(rows, (*where, step), how)
            mine = own(batch)
            seen = self._forward([term], mine, self._still(stage, where))
            columns = self.feed.columns(mine.row)
            value = self._value(term, seen, mine, columns, rows if mine is not batch else None)
            self._noted([(term, value)])
            update(where, term.weight * value)

    def _seed_dropout(self, *where: int | str) -> None:
        """A draw of its own for each step, and for each process."""
        process = ("process", group().rank) if group().rank else ()
        seed_noise(self.device, key(self.seed, "noise", *where, *process))


def _norm(terms: Sequence[Term], still: bool) -> str:
    """What BatchNorm does in a forward of these terms."""
    return "frozen" if still and terms[0].norm == "train" else terms[0].norm
