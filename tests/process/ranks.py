"""Runs in several processes: what each of them does, and how a test starts them.

The processes are started as torchrun would, by the environment, without its own process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

SOURCE = Path(__file__).parents[2] / "src"
PORTS: list[socket.socket] = []
SINGLE = {"dtype": torch.float32, "maps": "float32", "optimiser": "radam"}


def environment(size: int, **more: str) -> list[dict[str, str]]:
    """One a process."""
    held = socket.socket()  # and kept: nobody else is given the port before the first process binds
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    PORTS.append(held)
    port = held.getsockname()[1]
    common = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [
        common | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | more
        for rank in range(size)
    ]


def start(size: int, *words: str, file: str = __file__) -> list[subprocess.Popen]:
    """A file, this one by default, with these words, in so many processes."""
    command = [sys.executable, file, *words]
    return [
        subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        for env in environment(size)
    ]


def ended(processes: list[subprocess.Popen]) -> list[tuple[int, str]]:
    """Exit codes, and what was said."""
    said = [process.communicate(timeout=600)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


class Still(nn.BatchNorm2d):
    """BatchNorm by its running statistics from the first step on."""

    def train(self, mode: bool = True):
        return super().train(False)


def net(frozen: bool = True, dtype: torch.dtype = torch.float64):
    """A residual net of two narrow stages."""
    from rightreasons.nets import small
    from rightreasons.nets.base import Net

    module = small.SmallResNet((4, 8), (2, 2), 1)
    for part in list(module.modules()) if frozen else ():
        for name, child in part.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(part, name, Still(child.num_features))
    return Net(
        module.to(dtype),
        head="fc",
        taps={"last_block": "stages.1", "paper": "stages.1.0.conv2"},
        pooled_linear=True,
        initialise=small.initialise,
        name="tiny",
    )


def learners(maps: str = "float16"):
    """A word for each, and what is to be equal in one process and in two; maps are kept as told."""
    import rightreasons as rr

    memory, herded = rr.Memory(10), rr.Memory(10, pick="herding")
    paper = {"weight": 0.3, "rows": 6, "dtype": maps}
    return {
        "er+rrr": rr.ER(memory) + rr.RRR(**paper),
        "er+rrr shared": rr.ER(memory)
        + rr.RRR(**paper, view="shared", bn="frozen", only_correct=True),
        "er+rrr closed": rr.ER(memory, replay="concat") + rr.RRR(profile="recommended", dtype=maps),
        "er+rrr released": rr.ER(memory)
        + rr.RRR(profile="released", weight=1.0, rows=3, dtype=maps),
        "er+evidence": rr.ER(memory) + rr.Evidence(rows=5, view="canonical", dtype=maps),
        "er+evidence balanced": rr.ER(memory)
        + rr.Evidence(balance=True, rows=5, view="canonical", dtype=maps),
        "ewc+rrr": rr.EWC(memory, weight=10.0) + rr.RRR(**paper),
        "eeil+rrr": rr.EEIL(herded) + rr.RRR(**paper),
        "bic": rr.BiC(herded),
        "itaml+rrr": rr.ITAML(memory, group=4) + rr.RRR(**paper),
    }


def fit(word: str, folder: str | None = None, *, dtype=torch.float64, maps="float16", **train):
    """30 steps on each of two tasks; the result."""
    import rightreasons as rr

    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4, size=16)
    how = {"epochs": 10, "batch": 9, "optimiser": "sgd", "lr": 0.02, "threads": 1} | train
    how = rr.Train(**how, augment=rr.Augment(2, False))
    word, _, moving = word.partition(", ")
    made = learners(maps)[word], net(not moving, dtype), stream
    return rr.fit(*made, train=how, run=folder, checkpoint=7, progress=False)


def found(result) -> dict:
    return {
        "weights": dict(result.net.state_dict()),
        "records": [
            {name: record[name] for name in ("accuracy", "drift", "losses", "memory_sha256")}
            for record in result.records
        ],
        "index": result.learner.memory.tensor("index"),
    }


def train(out: str, *words: str, **how) -> None:
    """Results, one file a process."""
    torch.save({word: found(fit(word, **how)) for word in words}, f"{out}-{RANK}.pt")


def killed(folder: str, word: str) -> None:
    """The second process kills itself in the second task; the first one says what it sees."""
    from rightreasons import optimise
    from rightreasons.errors import UserError

    steps, average = 0, optimise.average

    def count(parameters) -> None:
        nonlocal steps
        steps += 1
        if RANK and steps == 45:
            os.kill(os.getpid(), signal.SIGKILL)
        average(parameters)

    optimise.average = count
    try:
        fit(word, folder if not RANK else f"{folder}-nowhere")
    except UserError as error:
        sys.exit(str(error))


def refused() -> None:
    """What does not fit together, each sentence in a line."""
    from rightreasons import distributed
    from rightreasons.errors import UserError

    cases = [{"lr": 0.02 + RANK}, {"batch": 1}, {"device": "cpu"}]
    for case in cases:
        version = distributed.__version__
        if "device" in case:
            distributed.__version__ = f"0.0.{RANK}"
        try:
            fit("er+rrr", **case)
        except UserError as error:
            print(error, file=sys.stderr)
        distributed.__version__ = version


if __name__ == "__main__":
    RANK = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    jobs = {"train": train, "single": partial(train, **SINGLE), "killed": killed}
    (jobs | {"refused": refused})[sys.argv[1]](*sys.argv[2:])
