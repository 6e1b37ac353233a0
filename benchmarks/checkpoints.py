"""What checkpoints cost: CPU time beside that of the steps between them, and the time to go on.

    python benchmarks/checkpoints.py [--rounds 12] [--net resnet18-cifar]

Protocol: one thread, process CPU time, system time included. Rounds of five training steps and one
checkpoint alternate in one run of er+evidence, 100 classes seen, a memory of 2,000 images with
their maps, radam; the share is the median checkpoint over 200 median steps. 4 + 4 images a step:
more images make longer steps and the share smaller. Going on is measured from the folder: reading
the checkpoint of the task and that of the step, verifying both, restoring net, optimiser, learner
and memory, and one step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

import rightreasons as rr
from rightreasons.loop import Loop
from rightreasons.progress import Reporter
from rightreasons.runs import EVERY, Run
from rightreasons.train import describe

STEPS = 5  # a round
BATCH = 4  # new images a step, and as many replayed


def made(net: str, stream: rr.Stream, folder: Path) -> Loop:
    learner = rr.ER(memory=rr.Memory(2000)) + rr.Evidence(view="shared")
    train = rr.Train(batch=BATCH, augment=rr.Augment(4, False), epochs=10**6)
    loop = Loop(learner, rr.net(net), stream, train, seed=0)
    loop.folder = Run(folder, describe(learner, loop.net, stream, train, 0))
    return loop


def learned(loop: Loop) -> None:
    """The first task, without its training: what counts is that the memory is full."""
    assert loop.folder is not None
    loop.folder.open()
    loop.net.grow(loop.stream[0].seen)
    loop._train = lambda *_: None
    loop.steps = 1
    loop.learn(loop.stream[0], Reporter("", 1, show=False))
    loop.net.grow(loop.stream[1].seen)
    loop.net.train()


def rounds(loop: Loop, count: int) -> tuple[list[float], list[float]]:
    """CPU seconds of steps and of checkpoints."""
    task = loop.stream[1]
    (stage,) = loop.learner.stages(task)
    run = loop.take_steps(task, stage)
    steps, checkpoints = [], []
    for _ in range(count + 1):  # the first is not counted: it makes the optimiser's state
        for _ in range(STEPS):
            begun = time.process_time()
            next(run)
            steps.append(time.process_time() - begun)
        begun = time.process_time()
        loop.checkpoint()
        checkpoints.append(time.process_time() - begun)
    return steps[STEPS:], checkpoints[1:]


def resumed(net: str, stream: rr.Stream, folder: Path) -> tuple[float, float]:
    """Seconds of CPU and of the clock, from the folder to the end of the first step."""
    loop = made(net, stream, folder)
    assert loop.folder is not None
    cpu, clock = time.process_time(), time.perf_counter()
    saved = loop.folder.open()
    loop._resume(saved)
    assert saved.step is not None
    (stage,) = loop.learner.stages(stream[1])
    run = loop.take_steps(stream[1], stage, saved=saved.step)
    next(run)  # it restores the optimiser, too
    loop.folder.close()
    return time.process_time() - cpu, time.perf_counter() - clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--net", default="resnet18-cifar")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stream = rr.stream("glyphs", tasks=[90, 10], train=24, test=1)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "run"
        loop = made(chosen.net, stream, folder)
        learned(loop)
        steps, checkpoints = rounds(loop, chosen.rounds)
        assert loop.folder is not None
        loop.folder.close()
        sizes = {p.name: p.stat().st_size for p in (folder / "checkpoints").iterdir()}
        step, checkpoint = median(steps), median(checkpoints)
        cpu, clock = resumed(chosen.net, stream, folder)
    print(f"torch {torch.__version__}, 1 thread, {chosen.net}, {chosen.rounds} rounds")
    print(f"a step of {BATCH} + {BATCH} images: {step:.3f} s of CPU")
    print(f"a checkpoint: {checkpoint:.3f} s of CPU, {max(sizes.values()) / 2**20:.0f} MB at most")
    print(f"one every {EVERY} steps adds {100 * checkpoint / (EVERY * step):.2f} %")
    print(f"going on, one step included: {cpu:.2f} s of CPU, {clock:.2f} s by the clock")


if __name__ == "__main__":
    main()
