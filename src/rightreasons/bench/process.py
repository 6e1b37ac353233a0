"""What whole processes take: starting up, and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rightreasons.bench.table import Fact

MB = 1024 * 1024
TRAIN = """
import torch, rightreasons as rr
from rightreasons.bench.process import peak as now
from rightreasons.bench.rig import begun, pictures, steps
from rightreasons.heap import keep_heap
keep_heap()  # as the command does
torch.set_num_threads(1)
rr.net("resnet18-cifar")
start = now()
data = pictures([90, 10], 100, train=500)
held = now()
loop = begun(rr.ER(memory=rr.Memory(2000)), "resnet18-cifar", data, 1, 128, learn=False)
step = steps(loop, 1)
step(), step()
print(data[0].train.x.nbytes + data[0].test.x.nbytes, start, held, now())
"""


def peak() -> int:
    """Bytes of memory that this process has had at most."""
    status = Path("/proc/self/status")
    if status.exists():  # what the system counts for a child begins with its parent's peak
        line = next(n for n in status.read_text("utf-8").splitlines() if n.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu(words: list[str]) -> float:
    """Seconds of CPU of a child, the least of five."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def start_rows(pairs: int) -> Iterator[Fact]:
    python = sys.executable
    for what, words in {
        "`rrr --help`": [python, "-m", "rightreasons", "--help"],
        "`import rightreasons`": [python, "-c", "import rightreasons"],
        "`import rightreasons` and torch": [python, "-c", "import rightreasons as rr; rr.fit"],
    }.items():
        yield Fact(what, f"{cpu(words):.2f} s of CPU")


def memory_rows(pairs: int) -> Iterator[Fact]:
    """50,000 images of 32 px, as many as CIFAR-100 has, of noise."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    said = subprocess.run([sys.executable, "-c", TRAIN], check=True, capture_output=True, env=env)
    data, start, held, end = map(int, said.stdout.split())
    yield Fact("peak with torch and the package imported", f"{start / MB:.0f} MB")
    more = held - start
    yield Fact(f"and with the images ({data / MB:.0f} MB of pixels)", f"+ {more / MB:.0f} MB")
    batch = "resnet18-cifar, 128 + 128 images, memory of 2,000"
    yield Fact(f"and two steps of training: {batch}", f"+ {(end - held) / MB:.0f} MB")
