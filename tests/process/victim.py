"""Runs that are killed: a server that imports torch once and forks a process for each run.

A run is killed by itself, with SIGKILL, when it has made so many calls, of Python functions and of
built-in ones such as ``os.write`` and ``os.rename``. So a kill can hit every place between two
calls, and the same numbers hit the same place again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


class Server:
    """Starts runs in processes of their own, one after the other."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(self, **job) -> dict:
        """``killed``: was it; ``calls``: how many it made, if it ended by itself."""
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=300)


def recipe(method: str):
    """A method's word as a learner for the tiny stream, or `UserError` if there is none such."""
    from rightreasons.registry import LEARNERS, TERMS, find, split_method

    name, terms = split_method(method)
    options = {"itaml": {"group": 4}}  # a task has 8 test images
    made = find("method", LEARNERS, name)(**options.get(name, {}))
    made = replace(made, memory=replace(made.memory, size=40, per_class=None))
    for term in terms:
        made = made + find("term", TERMS, term)(rows=4)
    return made


def tiny():
    """Four glyph classes in two tasks, and a net that sees them in no time."""
    import rightreasons as rr
    from rightreasons.nets import small
    from rightreasons.nets.base import Net

    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4, size=16)
    net = Net(
        small.SmallResNet((4, 8), (2, 2), 1),
        head="fc",
        taps={"last_block": "stages.1", "paper": "stages.1.0.conv2"},
        pooled_linear=True,
        initialise=small.initialise,
        name="tiny",
    )
    return stream, net


def learn(job: dict, stream, net) -> int:
    """One run; how many calls it made."""
    import rightreasons as rr

    calls, kill = 0, job.get("kill")

    def count(frame, event, argument) -> None:
        nonlocal calls
        if event in ("call", "c_call"):
            calls += 1
            if calls == kill:
                os.kill(os.getpid(), signal.SIGKILL)

    train = rr.Train(
        epochs=2, batch=8, optimiser=job["optimiser"], augment=rr.Augment(2, False), threads=1
    )
    learner = recipe(job["method"])
    sys.setprofile(count)
    how = {"run": job["folder"], "checkpoint": job["every"]}
    rr.fit(learner, net, stream, train=train, progress=False, **how)
    sys.setprofile(None)
    return calls


def serve() -> None:
    import torch
    import torch._dynamo  # optimisers import it when they are first made, and it takes seconds

    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # what is written outlives a process without it
    stream, net = tiny()
    for line in sys.stdin:
        job, (read, write) = json.loads(line), os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                os.write(write, str(learn(job, stream, net)).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        said = os.read(read, 64)
        os.close(read)
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(json.dumps({"killed": killed, "calls": int(said or 0)}), flush=True)


if __name__ == "__main__":
    serve()
