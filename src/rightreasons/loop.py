"""The training loop. There is one, for all learners.

For each task: the head grows, the learner's stages run, the memory takes rows with the columns of
the learner's terms, all classes seen are tested in one pass, and the run folder gets a checkpoint.
It gets one every so many steps as well, and a run that was killed goes on from there: draws are
keyed by their place, so the place, the weights and what ends in ``_`` are all there is to know.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rightreasons.checkpoints import lean, load_checkpoint, marks, save_checkpoint
from rightreasons.distributed import checksum, from_first, group, most
from rightreasons.errors import Damaged, RunWarning, Stopped, UserError, why
from rightreasons.evaluate import TARGET, evaluate
from rightreasons.feed import Look
from rightreasons.fits import check_fit
from rightreasons.keep import keep
from rightreasons.learners.base import Learner
from rightreasons.losses import check_weights
from rightreasons.metrics import groups, over_images, percent
from rightreasons.nets.base import Net
from rightreasons.nets.compiled import compile_parts, eager
from rightreasons.optimise import Train
from rightreasons.progress import Reporter
from rightreasons.randomness import generator
from rightreasons.result import Result
from rightreasons.runs import EVERY, Run, Saved
from rightreasons.signals import Request, requests
from rightreasons.state import get_state, nbytes, pack, restore, set_state
from rightreasons.steps import Steps
from rightreasons.streams import Stream
from rightreasons.terms.base import all_taps
from rightreasons.timing import AFTER, CHECKPOINTS, MEMORY, PICTURES, TESTING, span
from rightreasons.types import Stage, Task
from rightreasons.watch import watch

LOOK = 20  # steps between two looks at the losses
MISFIT = (RuntimeError, LookupError, TypeError, ValueError, AttributeError)  # another run's state


class Loop(Steps):
    """One run in the making."""

    def __init__(
        self,
        learner: Learner,
        net: Net,
        stream: Stream,
        train: Train,
        seed: int,
        prefix: Path | None = None,
    ) -> None:
        super().__init__(learner, net, stream, train, seed)
        self.stream, self.prefix = stream, prefix
        self.records: list[dict[str, Any]] = []
        self.probes: dict[str, Tensor] = {}
        self.folder: Run | None = None
        self.every = EVERY
        self.request = Request()
        self.known: dict[str, str] = {}  # digests of the learner's state when the task began
        self.resumed: dict[str, Any] | None = None  # a checkpoint inside the task, not yet used
        self.begun = 0.0  # when the task began

    def check(self) -> None:
        """Refuse before training what would fail later."""
        check_fit(self.learner, self.net, self.train, self.feed)
        if self.train.compile:
            terms = self.learner.terms
            derived = all_taps([term for term in terms if term.needs_graph(self.net)])
            compile_parts(self.net, {TARGET, *all_taps(terms)}, derived)

    def run(self, progress: bool, start: dict[str, Any] | None) -> Result:
        if self.net.initialise is not None:
            self.net.initialise(self.net, generator(self.seed, "init"))
        self.net.to(self.device)
        with ExitStack() as stack:
            saved = Saved(start)
            if self.folder is not None:
                stack.callback(self.folder.close)
                saved = self.folder.open(start)
                self.request = stack.enter_context(requests(patient=group().size > 1))
            self._resume(saved)
            self._learn_all(progress)
            result = Result(self.records, self.net, self.learner)
            if self.writes is not None:
                self.writes.finish(result.summary())
        return result

    @property
    def writes(self) -> Run | None:
        """The folder, in the process that writes to it."""
        return self.folder if group().rank == 0 else None

    def _resume(self, saved: Saved) -> None:
        """Go on from the end of a task, or from a step of the one after it."""
        last = saved.step or saved.task
        if last is None:
            return
        if "stream" in last:
            self._check_images(last["stream"])
        try:
            if saved.task is not None:
                self.records = list(saved.task["records"])  # what was given stays as it is
                self.probes = dict(saved.task["probes"])
                if self.folder is not None:
                    self.known = marks(saved.task["learner"])
            restore(self.net, last["net"])
            set_state(self.learner, last["learner"], self.net)
            if saved.step is not None:
                self.resumed, self.steps = saved.step, saved.step["steps"]
                self.losses.load(saved.step["losses"], self.device)
        except MISFIT as error:
            raise UserError(
                f"a checkpoint does not fit this run ({why(error)}); pass another --out"
            ) from error

    def _check_images(self, known: dict[str, Any]) -> None:
        """Refuse to go on with other images than those that the run began with."""
        if self._is_other(known):
            raise UserError(
                "a checkpoint of this run was trained on other images: their mean or their classes "
                "are not those of the stream; pass the data it began with, or another --out"
            )

    def _is_other(self, known: dict[str, Any]) -> bool:
        """Are these numbers of other images than the stream's?"""
        own = self.stream
        told = (own.mean - known["mean"]).abs().max() + (own.std - known["std"]).abs().max()
        begun = list(own.class_names[: len(known["class_names"])])
        return bool(told > 0.1) or begun != known["class_names"]

    def _learn_all(self, progress: bool) -> None:
        label = f"{self.learner.method} seed {self.seed}"
        total = [self._steps_of(task) for task in self.stream]
        done = len(self.records)
        already = sum(total[:done]) + self.steps
        diary = self.writes.folder / "progress.jsonl" if self.writes is not None else None
        show = progress and group().rank == 0
        with Reporter(label, sum(total), already, show, diary) as reporter:
            if self.resumed is not None:
                reporter.say(f"goes on at step {self.steps + 1} of task {done + 1}")
            for task in self.stream[done:]:
                self.learn(task, reporter)
                reporter.say(_line(self.records[-1], len(self.stream)))
                asked = most(self.request.signal)
                if asked and task is not self.stream[-1]:
                    raise Stopped(asked, f"after task {task.index + 1}")

    def learn(self, task: Task, reporter: Reporter) -> None:
        """One task, from the growth of the head to its record."""
        self.begun = time.perf_counter() - (self.resumed["seconds"] if self.resumed else 0.0)
        trained, cpu = self._trained_elsewhere(task), None
        if trained is None:
            worked, before = time.process_time(), self.steps
            self._train(task, reporter)
            trained = time.perf_counter() - self.begun
            cpu = (time.process_time() - worked) / max(1, self.steps - before)
            if self.prefix is not None and task.index == 0 and group().rank == 0:
                self._save_prefix(self.prefix, trained)
        with eager() if self.train.compile else nullcontext():
            self._close(task, trained, cpu)
            if self.writes is not None:
                self._save(self.writes, task)
        self.steps = 0

    def _close(self, task: Task, trained: float, cpu: float | None) -> None:
        """After the training of a task: memory, the learner's own, and the task's record."""
        losses = self.losses.means()
        self.net.eval()
        fresh = None
        if self.learner.remembers:
            with span(MEMORY):
                fresh = keep(self.learner, self.net, self.feed, task)
        with span(AFTER):
            self.learner.end(self.net, task, self.memory, Look(self.feed, self.net, task, fresh))
        with span(TESTING), torch.no_grad():
            record = evaluate(self.learner, self.net, self.feed, task, self.probes)
        if group().size > 1:
            checksum(self.net.state_dict())
        record |= {
            "task": task.index + 1,
            "classes": len(task.classes),
            "rows": len(self.memory),
            "memory_sha256": checksum(self.memory.columns_),
            "processes": group().size,
            "bytes": self._bytes(),
            "losses": losses,
            "steps": self.steps,
            "seconds": time.perf_counter() - self.begun,
            "seconds_a_step": trained / self.steps,
            "cpu_a_step": cpu,  # whatever else the machine did; unknown of a task trained elsewhere
        }
        self.records.append(record)

    def _save(self, folder: Run, task: Task) -> None:
        """What the run's folder gets when a task has ended."""
        with span(PICTURES):
            with torch.no_grad():
                watched = watch(self.learner, self.net, self.feed, task)
            folder.save_maps(task.index + 1, watched)
        with span(CHECKPOINTS):
            state = get_state(self.learner)
            folder.save(
                task.index + 1,
                {
                    "net": pack(self.net),
                    "learner": state,
                    "records": self.records,
                    "probes": self.probes,
                    "stream": self._stream(len(self.records)),
                },
            )
            self.known = marks(state)

    def _train(self, task: Task, reporter: Reporter) -> None:
        saved, self.resumed = self.resumed, None
        if saved is None:
            self.losses.begin()
            self.steps = 0
            self.net.grow(task.seen, generator(self.seed, "head", task.index))
        self.net.to(self.device).train()
        if saved is None:
            self.learner.begin(self.net, task, self.memory, Look(self.feed, self.net, task))
        for number, stage in enumerate(self.learner.stages(task)):
            if saved is None or number > saved["stage"]:
                self.stage(task, stage, reporter, number)
            elif number == saved["stage"]:
                self.stage(task, stage, reporter, number, saved)
        check_weights(self.net, self.at)

    def checkpoint(self) -> None:
        """All that is needed to go on from this step; what has not changed since the task before
        is in that one's checkpoint."""
        assert self.writes is not None and self.underway is not None
        self.losses.look()
        check_weights(self.net, self.at)
        state = {
            "net": pack(self.net),
            "learner": lean(get_state(self.learner), self.known),
            "stream": self._stream(len(self.records)),
            "losses": self.losses.state(),
            "steps": self.steps,
            "seconds": time.perf_counter() - self.begun,
        }
        self.writes.save_step(len(self.records), self.steps, state | self.underway.state())

    def _trained_elsewhere(self, task: Task) -> float | None:
        """Take the first task's training from the file that shares it; how long it took."""
        if self.prefix is None or task.index:
            return None
        saved = from_first(partial(_read_prefix, self.prefix))
        if saved is not None and "stream" in saved and self._is_other(saved["stream"]):
            text = f"{self.prefix} was trained on other images; the first task is trained anew"
            warnings.warn(text, RunWarning, stacklevel=2)
            return None
        return None if saved is None else self._load_prefix(saved)

    def _save_prefix(self, path: Path, seconds: float) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"net": pack(self.net), "learner": get_state(self.learner), "seconds": seconds}
        state |= {"losses": self.losses.state(), "steps": self.steps, "stream": self._stream(1)}
        save_checkpoint(path, state)

    def _load_prefix(self, saved: dict[str, Any]) -> float:
        try:
            restore(self.net, saved["net"]).to(self.device).train()
            set_state(self.learner, saved["learner"], self.net)
            self.losses.load(saved["losses"], self.device)
            self.steps, self.resumed = int(saved["steps"]), None
            seconds = float(saved["seconds"])
        except MISFIT as error:
            raise UserError(
                f"{self.prefix} does not fit this run ({why(error)}); remove it"
            ) from error
        self.begun = time.perf_counter() - seconds
        return seconds

    def stage(
        self,
        task: Task,
        stage: Stage,
        reporter: Reporter,
        number: int,
        saved: dict[str, Any] | None = None,
    ) -> None:
        """All steps of a stage, with a look at the losses and a checkpoint now and then."""
        epochs, told = self.train.at(task, stage).epochs, self.steps
        for epoch in self.take_steps(task, stage, number, saved):
            if self.steps % LOOK == 0:
                self.losses.look()
                place = f"task {task.index + 1}/{len(self.stream)} epoch {epoch + 1}/{epochs}"
                reporter.at(place, self.steps - told, self.losses.means())
                told = self.steps
            asked = most(self.request.signal)
            if self.writes is not None and (self.steps % self.every == 0 or asked):
                with span(CHECKPOINTS):
                    self.checkpoint()
            if asked:
                raise Stopped(asked, f"after step {self.steps} of task {task.index + 1}")
        self.losses.look()
        reporter.done += self.steps - told

    def _stream(self, ended: int) -> dict[str, Any]:
        """What is needed of the stream to use a net of so many tasks: it may be gone by then."""
        counts = [len(task.classes) for task in self.stream[:ended]]
        return {
            "class_names": list(self.stream.class_names[: sum(counts)]),
            "counts": counts,
            "mean": self.stream.mean,
            "std": self.stream.std,
            "size": list(self.stream[0].train.x.shape[2:]),
        }

    def _steps_of(self, task: Task) -> int:
        """Steps of a task, for the time that is left."""
        total = 0
        for stage in self.learner.stages(task):
            train = self.train.at(task, stage)
            total += train.epochs * max(1, math.ceil(self.feed.count(task, stage) / train.batch))
        return total

    def _bytes(self) -> dict[str, int]:
        columns = self.memory.nbytes()
        images = columns.pop("x", 0)
        maps = sum(size for name, size in columns.items() if "." in name)
        model = sum(p.nbytes for p in self.net.parameters())
        held = nbytes(self.learner, *self.learner.terms)
        return {"images": images, "maps": maps, "model": model, "learner": held}


def _read_prefix(path: Path) -> dict[str, Any] | None:
    """The first task's training, if it is there and whole."""
    if not path.exists():
        return None
    try:
        return load_checkpoint(path)
    except Damaged as error:
        warnings.warn(f"{error}; the first task is trained anew", RunWarning, stacklevel=2)
        return None


def _line(record: dict[str, Any], tasks: int) -> str:
    seen = over_images(record["accuracy"]["class"], record["test_images"])
    grouped = "".join(
        f" (p={how[1:]}: {percent(over_images(record['accuracy'][how], record['test_images']))})"
        for how in groups(record["accuracy"])
    )
    losses = "  ".join(f"{name} {value:.3g}" for name, value in record["losses"].items())
    kb = {name: f"{size / 1024:.0f} kB" for name, size in record["bytes"].items()}
    return (
        f"task {record['task']}/{tasks}  accuracy on all classes seen {percent(seen)}{grouped}"
        f"  {losses}  memory {record['rows']} rows, images {kb['images']}, maps {kb['maps']}"
        f"  {record['seconds']:.1f} s"
    )
