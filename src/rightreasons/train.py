"""`rr.fit`: a learner, a net and a stream become a run."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rightreasons.distributed import agree, joined
from rightreasons.errors import UserError
from rightreasons.learners.base import Learner
from rightreasons.loop import Loop
from rightreasons.nets.base import Net
from rightreasons.optimise import Train
from rightreasons.randomness import own_noise
from rightreasons.result import Result
from rightreasons.runs import EVERY, Run
from rightreasons.streams import Stream


def fit(
    learner: Learner,
    net: Net,
    stream: Stream,
    *,
    train: Train | None = None,
    run: str | Path | Run | None = None,
    seed: int = 0,
    progress: bool = True,
    prefix: Path | None = None,
    start: dict[str, Any] | None = None,
    checkpoint: int = EVERY,
) -> Result:
    """Learn a stream, task by task; learner and net are recipes and stay as they are.

    With ``run`` the folder gets config, records, checkpoints and result; a folder that holds the
    beginning of this very run is gone on with, from the last checkpoint: there is one at each
    task's end and every ``checkpoint`` steps. SIGINT and SIGTERM make one more and raise `Stopped`.
    ``prefix`` is a file that holds the training of the first task, or gets it: runs that differ in
    terms alone can share it. ``start`` is the state of a checkpoint whose tasks begin the stream.
    In processes that torchrun has started all of them make this one run, and return the same
    result; the first one has the folder.
    """
    if not isinstance(learner, Learner):
        raise UserError(f"learner is a {type(learner).__name__}, expected one such as rr.ER()")
    if not isinstance(net, Net):
        raise UserError(
            f'net is a {type(net).__name__}, expected rr.net("resnet8") or rr.net(module)'
        )
    if not isinstance(stream, Stream):
        raise UserError(
            f'stream is a {type(stream).__name__}, expected rr.stream("glyphs", tasks=5)'
        )
    if start is None:
        _check_new(learner, net)
    if checkpoint < 1:
        raise UserError(f"checkpoint is {checkpoint}, expected at least 1 step")
    seed, train = int(seed), (train or Train()).on(stream.flip)
    with joined(train.device) as processes:
        if processes.size > 1:
            given = run.config if isinstance(run, Run) else None
            agree(given or describe(learner, net, stream, train, seed))
        loop = Loop(copy.deepcopy(learner), copy.deepcopy(net), stream, train, seed, prefix)
        loop.check()
        if run is not None and not isinstance(run, Run):
            run = Run(Path(run), describe(learner, net, stream, train, seed))
        loop.folder, loop.every = run, checkpoint
        with limited(train.threads), own_noise(loop.device):
            return loop.run(progress, start)


def _check_new(learner: Learner, net: Net) -> None:
    """Refuse what has learned already: its memory and its classes would mix with new ones."""
    state = set(vars(learner)) - set(vars(replace(learner)))  # what a new one does not have
    if len(learner.memory) or any(name.endswith("_") for name in state):
        raise UserError(
            f"this {learner.name} has learned already, expected a new one such as "
            f"rr.{type(learner).__name__}(); to learn more classes call rr.extend(RUN, FOLDER, OUT)"
        )
    if net.classes:
        raise UserError(
            f"this net has learned {net.classes} classes already, expected one without; pass "
            "rr.net(NAME), or rr.net(net.module) for its weights below a new head"
        )


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """So many threads of torch, inside; None leaves them."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe(learner: Learner, net: Net, stream: Stream, train: Train, seed: int) -> dict[str, Any]:
    """The config of a run that was started from Python, for its folder."""
    from rightreasons.config import plain, sections

    sizes = [[len(task.train), len(task.test)] for task in stream]
    return {
        "method": learner.method,
        "seed": seed,
        **({"data": dict(stream.data)} if stream.data else {}),
        "stream": {
            "tasks": [[stream.class_names[c] for c in task.classes] for task in stream],
            "images": sizes,
        },
        "net": {
            "name": net.name,
            "target": net.target,
            "weights": net.weights,
            **({"flatten": net.flatten} if net.flatten else {}),
        },
        "train": plain(train),
        **sections(learner),
    }
