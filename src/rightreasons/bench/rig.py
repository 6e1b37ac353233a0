"""What is timed: steps of the library's own loop, in the middle of a run."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace

import torch

from rightreasons.augment import Augment
from rightreasons.bench.pairs import Call
from rightreasons.feed import Look
from rightreasons.keep import keep
from rightreasons.learners.base import Learner
from rightreasons.loop import Loop
from rightreasons.nets import net as make_net
from rightreasons.optimise import Train
from rightreasons.progress import Reporter
from rightreasons.randomness import generator
from rightreasons.streams import Stream, stream

ENDLESS = 10**6  # epochs: a step is always there


def pictures(
    tasks: int | list[int], classes: int, train: int, test: int = 1, size: int = 32
) -> Stream:
    """A stream of noise: what an image shows does not change what it costs."""
    draw = torch.Generator().manual_seed(0)

    def part(each: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(classes).repeat_interleave(each)
        x = torch.randint(0, 256, (len(y), 3, size, size), dtype=torch.uint8, generator=draw)
        return x, y

    return stream(part(train), tasks=tasks, test=part(test))


def begun(learner: Learner, net: str, data: Stream, task: int, batch: int, learn: bool) -> Loop:
    """A loop at the first step of a task.

    With ``learn`` the tasks before it are trained, an epoch each; otherwise their rows are
    remembered by the net as it is drawn, which is as good for the clock and far quicker.
    """
    train = Train(epochs=1, batch=batch, augment=Augment(4, True))
    loop = Loop(copy.deepcopy(learner), make_net(net), data, train, seed=0)
    loop.check()
    loop.net.to(loop.device)
    silent = Reporter("", 1, show=False)
    for before in data[:task]:
        if learn:
            loop.learn(before, silent)
        else:
            _remember(loop, before.index)
    here = data[task]
    loop.train = replace(train, epochs=ENDLESS)
    loop.net.grow(here.seen, generator(0, "head", task))
    loop.net.to(loop.device).train()
    loop.learner.begin(loop.net, here, loop.memory, Look(loop.feed, loop.net, here))
    return loop


def _remember(loop: Loop, task: int) -> None:
    here = loop.stream[task]
    loop.net.grow(here.seen, generator(0, "head", task))
    loop.net.eval()
    fresh = keep(loop.learner, loop.net, loop.feed, here) if loop.learner.remembers else None
    loop.learner.end(loop.net, here, loop.memory, Look(loop.feed, loop.net, here, fresh))


def steps(loop: Loop, task: int) -> Call:
    """A call makes the next training step of the task's first stage."""
    here = loop.stream[task]
    run = loop.take_steps(here, loop.learner.stages(here)[0])
    return lambda: next(run)


def epochs(loop: Loop, task: int) -> Call:
    """A call makes a whole epoch of the task's first stage."""
    here = loop.stream[task]
    stage = loop.learner.stages(here)[0]
    count = -(-len(loop.feed.pool(here, stage)) // loop.train.at(here, stage).batch)
    run = loop.take_steps(here, stage)
    return lambda: list(itertools.islice(run, count))
