"""A training step fed from the cache of a JPEG folder against one fed from tensors in RAM.

    python benchmarks/cached.py [--pairs 200] [--images 6000]

Protocol: one thread, process CPU time, pairs of steps alternated in one process, ratio of medians
with a bootstrap interval, and a row that compares RAM with itself. A step is the library's own, of
a net so small that reading shows. The first epoch after the cache has left the machine's memory is
told apart, with the time on the clock: there the disk is waited for.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

import rightreasons as rr
from rightreasons.bench.pairs import compare
from rightreasons.data import cache
from rightreasons.loop import Loop

NET, SIZE, BATCH = "resnet8", 64, 32
CLASSES = 4
ROUNDS = 5  # first epochs of each kind


class Epoch(NamedTuple):
    """Of one step on average."""

    wall: float
    cpu: float
    waits: int  # for the disk, in the whole epoch: major page faults


def photographs(base: Path, count: int) -> Path:
    """So many JPEG files of odd sizes in class folders."""
    rng = np.random.default_rng(0)
    for i in range(count):
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        size = tuple(int(n) for n in rng.integers(96, 160, 2))
        folder = base / f"class{i % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(folder / f"{i:06d}.jpg")
    return base


def cached(base: Path) -> rr.Stream:
    """Two tasks; the images of the second are not looked at before it is trained."""
    return rr.stream(base, tasks=2, size=SIZE)


def in_ram(stream: rr.Stream) -> rr.Stream:
    """The same images as plain tensors."""
    x = stream[0].train.x.clone()
    tasks = [
        replace(task, train=replace(task.train, x=x), test=replace(task.test, x=x))
        for task in stream
    ]
    return replace(stream, tasks=tuple(tasks))


def run(stream: rr.Stream, epochs: int) -> Iterator[int]:
    """Steps on the second task."""
    train = rr.Train(batch=BATCH, augment=rr.Augment(4, True), epochs=epochs)
    loop = Loop(rr.Finetune(), rr.net(NET), stream, train, seed=0)
    loop.net.grow(stream[1].seen)
    loop.net.train()
    (stage,) = loop.learner.stages(stream[1])
    return loop.take_steps(stream[1], stage)


def steps(stream: rr.Stream) -> Callable[[], None]:
    endless = run(stream, 10**6)

    def step() -> None:
        next(endless)

    return step


def epoch(stream: rr.Stream) -> Epoch:
    """All steps of one epoch."""
    wall, cpu = time.perf_counter(), time.process_time()
    waits = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    count = sum(1 for _ in run(stream, 1))
    waits = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - waits
    return Epoch((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count, waits)


def forget(folder: Path) -> None:
    """Let the machine's memory go of the cache's files; nothing may be mapped."""
    gc.collect()
    for file in folder.rglob("*.npy"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_epochs(base: Path, folder: Path) -> tuple[list[Epoch], list[Epoch]]:
    """From a cold cache and from RAM, in turns."""
    cold, warm = [], []
    for _ in range(ROUNDS):
        forget(folder)
        cold.append(epoch(cached(base)))
        warm.append(epoch(in_ram(cached(base))))
    return cold, warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--images", type=int, default=6000)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        base, folder = photographs(Path(place) / "photographs", chosen.images), Path(place, "cache")
        os.environ["RRR_CACHE"] = str(folder)
        cache.SMALL = 0  # however few they are
        cached(base)  # decodes
        print(
            f"torch {torch.__version__}, 1 thread, {chosen.images} JPEG files at {SIZE} px, {NET}, "
            f"batch {BATCH}, {chosen.pairs} alternated pairs"
        )
        cold, warm = first_epochs(base, folder)
        mapped = cached(base)
        ram = in_ram(mapped)
        print("| steps fed from | time / RAM | 95 % interval |\n|---|--:|--:|")
        for name, stream in (("RAM again (A/A)", ram), ("the cache", mapped)):
            r, low, high = compare(steps(ram), steps(stream), chosen.pairs)
            print(f"| {name} | {r:.3f} | {low:.3f} to {high:.3f} |")
            sys.stdout.flush()
        print("\n| first epoch from | ms a step, clock | ms a step, CPU | waits for the disk |")
        print("|---|--:|--:|--:|")
        for name, epochs in (("RAM", warm), ("the cache, cold", cold)):
            wall, cpu = (1e3 * median(e[k] for e in epochs) for k in (0, 1))
            print(f"| {name} | {wall:.1f} | {cpu:.1f} | {median(e.waits for e in epochs)} |")


if __name__ == "__main__":
    main()
