"""One run in several processes: what they send each other, what that takes, how far they agree.

    python benchmarks/scaling.py                  # bytes and seconds of a step at 2 processes
    python benchmarks/scaling.py equal            # float32, radam, maps in float32: one against two

Protocol of the first: er+rrr (recommended profile) and eeil, which has a teacher, on a stream of
noise, 10 of 20 classes seen, the second task's steps, 32 new images and as many rows; a thread for
each process; gloo over the loopback device. Bytes are those that the device has counted. Seconds
are CPU time of a process, which other work on the machine hardly moves, and seconds on the clock,
which hold the waiting for the other process too; beside each the share of it that the exchange has.

Protocol of the second: the runs of tests/process/ranks.py, 30 steps on each of two tasks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch

import rightreasons as rr
from rightreasons.bench.rig import begun, pictures, steps
from rightreasons.distributed import joined, most
from rightreasons.timing import EXCHANGE, profiled

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "process"))
import ranks  # noqa: E402

LEARNERS = {
    "er+rrr": lambda: rr.ER(rr.Memory(200)) + rr.RRR(profile="recommended"),
    "eeil": lambda: rr.EEIL(rr.Memory(200, pick="random")),
}
WARM = 3  # steps that are not counted


def sent() -> int:
    """Bytes that the loopback device has carried."""
    line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if "lo:" in x)
    return int(line.split(":")[1].split()[8])


def measure(name: str, net: str, count: int) -> str:
    """A row of the table, as the process that calls it has seen it."""
    data = pictures(tasks=2, classes=20, train=200)
    with joined("cpu") as processes:
        loop = begun(LEARNERS[name](), net, data, task=1, batch=32, learn=False)
        step = steps(loop, 1)
        for _ in range(WARM):
            step()
        before = most(sent())
        with profiled() as clock:
            wall = [_timed(step, time.perf_counter) for _ in range(count)]
        carried = (most(sent()) - before) / count / processes.size
        with profiled(time.process_time) as cpu:
            own = [_timed(step, time.process_time) for _ in range(count)]
        weights = sum(p.nbytes for p in loop.net.parameters())
    share, busy = (c.seconds.get(EXCHANGE, 0.0) / sum(c.seconds.values()) for c in (clock, cpu))
    return (
        f"| {name} | {net} | {processes.size} | {weights / 1e6:.2f} | {carried / 1e6:.2f} | "
        f"{median(own):.3f} | {100 * busy:.1f} % | {median(wall):.3f} | {100 * share:.1f} % |"
    )


def _timed(call, timer) -> float:
    begun = timer()
    call()
    return timer() - begun


def inside(names: list[str], nets: list[str], count: int) -> None:
    torch.set_num_threads(1)
    for net in nets:
        for name in names:
            row = measure(name, net, count)
            if os.environ.get("RANK", "0") == "0":
                print(row, flush=True)


def table(count: int, names: list[str], nets: list[str], sizes: list[int]) -> None:
    heads = "method | net | processes | weights, MB | sent, MB | CPU s | exchange | s | exchange"
    print(f"| {heads} |\n|---|---|{'--:|' * 7}", flush=True)
    for size in sizes:
        words = ["inside", "--steps", str(count), "--methods", *names, "--nets", *nets]
        for code, said in ranks.ended(ranks.start(size, *words, file=__file__)):
            if code:
                sys.exit(said)


def equal() -> None:
    """The largest difference of a weight, and the difference of R, between one process and two."""
    import tempfile

    torch.set_num_threads(1)
    print("| method | largest weight | largest difference | of R |\n|---|--:|--:|--:|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "of")
        words = list(ranks.learners())
        for code, said in ranks.ended(ranks.start(2, "single", out, *words)):
            if code:
                sys.exit(said)
        two = torch.load(f"{out}-0.pt", weights_only=False)
    for word in words:
        one = ranks.found(ranks.fit(word, **ranks.SINGLE))
        largest = max(float(w.abs().max()) for w in one["weights"].values())
        gap = max(
            float((two[word]["weights"][n] - w).abs().max()) for n, w in one["weights"].items()
        )
        rows = [[r["accuracy"]["class"] for r in found["records"]] for found in (one, two[word])]
        apart = max(
            abs(a - b) for x, y in zip(*rows, strict=True) for a, b in zip(x, y, strict=True)
        )
        print(f"| {word} | {largest:.3g} | {gap:.2g} | {apart:.3g} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", default="table", choices=("table", "equal", "inside"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--nets", nargs="+", default=["resnet8", "resnet18-cifar"])
    parser.add_argument("--methods", nargs="+", default=list(LEARNERS), choices=list(LEARNERS))
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    given = parser.parse_args()
    if given.what == "equal":
        equal()
    elif given.what == "inside":
        inside(given.methods, given.nets, given.steps)
    else:
        table(given.steps, given.methods, given.nets, given.processes)
