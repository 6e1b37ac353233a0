"""Runs in several processes: what each of them does, and how a test starts them.

The processes are started as torchrun would, by the environment, without its own process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

SOURCE = Path(__file__).parents[2] / "src"


def environment(size: int, **more: str) -> list[dict[str, str]]:
    """One a process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [
        common | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | more
        for rank in range(size)
    ]


def start(size: int, *words: str) -> list[subprocess.Popen]:
    """This file with these words, in so many processes."""
    return [
        subprocess.Popen([sys.executable, __file__, *words], env=env, stderr=subprocess.PIPE)
        for env in environment(size)
    ]


class Still(nn.BatchNorm2d):
    """BatchNorm by its running statistics from the first step on."""

    def train(self, mode: bool = True):
        return super().train(False)


def net(frozen: bool = True):
    """A residual net of two narrow stages in float64."""
    from rightreasons.nets import small
    from rightreasons.nets.net import Net

    module = small.SmallResNet((4, 8), (2, 2), 1)
    for part in list(module.modules()) if frozen else ():
        for name, child in part.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(part, name, Still(child.num_features))
    return Net(
        module.double(),
        head="fc",
        taps={"last_block": "stages.1", "paper": "stages.1.0.conv2"},
        pooled_linear=True,
        initialise=small.initialise,
        name="tiny",
    )


def learners():
    """A word for each, and what is to be equal in one process and in two."""
    import rightreasons as rr

    memory, herded = rr.Memory(10), rr.Memory(10, pick="herding")
    paper = {"weight": 0.3, "rows": 6}
    return {
        "er+rrr": rr.ER(memory) + rr.RRR(**paper),
        "er+rrr shared": rr.ER(memory)
        + rr.RRR(**paper, view="shared", bn="frozen", only_correct=True),
        "er+rrr closed": rr.ER(memory, replay="concat") + rr.RRR(profile="recommended"),
        "er+rrr released": rr.ER(memory) + rr.RRR(profile="released", weight=1.0, rows=3),
        "er+evidence": rr.ER(memory) + rr.Evidence(rows=5),
        "ewc+rrr": rr.EWC(memory, weight=10.0) + rr.RRR(**paper),
        "eeil+rrr": rr.EEIL(herded) + rr.RRR(**paper),
        "bic": rr.BiC(herded),
        "itaml+rrr": rr.ITAML(memory, group=4) + rr.RRR(**paper),
    }


def fit(word: str, frozen: bool = True, folder: str | None = None, checkpoint: int = 200):
    """30 steps on each of two tasks; the result."""
    import rightreasons as rr

    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4, size=16)
    train = rr.Train(
        epochs=10, batch=9, optimiser="sgd", lr=0.02, augment=rr.Augment(2, False), threads=1
    )
    how = {"run": folder, "checkpoint": checkpoint, "progress": False}
    return rr.fit(learners()[word], net(frozen), stream, train=train, **how)


def found(result) -> dict:
    return {
        "weights": dict(result.net.state_dict()),
        "records": [
            {name: record[name] for name in ("accuracy", "drift", "losses", "memory_sha256")}
            for record in result.records
        ],
        "index": result.learner.memory.tensor("index"),
    }


def main(out: str, frozen: str, *words: str) -> None:
    torch.set_num_threads(1)
    rank = os.environ.get("RANK", "0")
    torch.save({word: found(fit(word, frozen == "frozen")) for word in words}, f"{out}-{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
