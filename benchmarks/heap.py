"""What it costs to give freed memory back to the system after every step.

Behind `rightreasons.heap`: the same steps in processes that keep what they free and in processes
that leave it to glibc, in turns; CPU time and page faults of a step.

    python benchmarks/heap.py > table.md
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from statistics import median

import torch

from rightreasons.bench.pairs import ratio, timed
from rightreasons.bench.process import peak
from rightreasons.bench.rig import begun, pictures, steps
from rightreasons.heap import keep_heap
from rightreasons.learners.er import ER
from rightreasons.memory import Memory

CASES = {  # images in a batch, beside as many from memory
    ("resnet8", 16): 60,
    ("resnet8", 64): 20,
    ("resnet18-cifar", 4): 10,
    ("resnet18-cifar", 32): 3,
}  # steps


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def child(keep: bool) -> None:
    """Of each case: seconds and faults of a step, medians, and the peak of memory in all."""
    if keep and not keep_heap():
        sys.exit("this system's malloc cannot be told to keep what is freed")
    torch.set_num_threads(1)
    said = []
    for (net, batch), count in CASES.items():
        data = pictures([10, 10], 20, train=50)
        step = steps(begun(ER(memory=Memory(200)), net, data, 1, batch, learn=False), 1)
        step()
        before = faults()
        times = [timed(step) for _ in range(count)]
        said.append((median(times), (faults() - before) / count, peak()))
    print(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--child", choices=("keep", "leave"))
    words = parser.parse_args()
    if words.child:
        child(words.child == "keep")
        return
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    found: list[dict[str, list[list[float]]]] = []
    for number in range(words.rounds):
        order = ("leave", "keep") if number % 2 else ("keep", "leave")
        said = {}
        for how in order:
            line = [sys.executable, __file__, "--child", how]
            out = subprocess.run(line, check=True, capture_output=True, text=True, env=env)
            said[how] = json.loads(out.stdout)
        found.append(said)
        print(f"round {number + 1} of {words.rounds}", file=sys.stderr)
    print("| a step of er | time, kept / given back | 95 % interval | faults a step | kept |")
    print("|---|--:|--:|--:|--:|")
    for number, (net, batch) in enumerate(CASES):
        pairs = [(r["leave"][number][0], r["keep"][number][0]) for r in found]
        many, few = (median(r[how][number][1] for r in found) for how in ("leave", "keep"))
        told = ratio(pairs)
        print(f"| {net}, {batch} + {batch} | {told} | {told.interval} | {many:.0f} | {few:.0f} |")
    last = len(CASES) - 1
    given, kept = (median(r[how][last][2] for r in found) / 2**20 for how in ("leave", "keep"))
    print(f"\npeak of memory: {given:.0f} MB, kept {kept:.0f} MB")


if __name__ == "__main__":
    main()
