"""What explanation replay adds to a training step: FLOPs, counted, and time, as ratios.

    python benchmarks/step.py [--pairs 200] [--only resnet8]

Protocol: one thread, process CPU time, pairs of steps alternated in one process (A B, B A, ...),
ratio of medians with a bootstrap interval, and a row that compares plain replay with itself. A step
is the library's own: drawing and augmenting the batch, forward, loss, terms, backward, optimiser.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from pairs import measure, ratio
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import rightreasons as rr
from rightreasons.keep import keep
from rightreasons.train import Loop

SHARED = {"view": "shared"}
ROWS: dict[str, list[tuple[str, list[rr.Term]]]] = {  # net: what joins er
    "resnet18-cifar": [
        ("er again (A/A)", []),
        ("rrr, gradcam, last_block, shared", [rr.RRR(target="last_block", **SHARED)]),
        ("evidence, shared, 100 classes", [rr.Evidence(**SHARED)]),
        ("rrr, gradcam, paper's target, shared, bn frozen", [rr.RRR(bn="frozen", **SHARED)]),
        ("rrr, gradcam, paper's target, canonical", [rr.RRR()]),
    ],
    "resnet8": [
        ("er again (A/A)", []),
        ("rrr, gradcam, last_block, shared", [rr.RRR(target="last_block", **SHARED)]),
        ("evidence, shared, 100 classes", [rr.Evidence(**SHARED)]),
        ("rrr, gradcam, paper's target, shared, bn frozen", [rr.RRR(bn="frozen", **SHARED)]),
        ("rrr, gradcam, paper's target, canonical", [rr.RRR()]),
        ("evidence, canonical, 100 classes", [rr.Evidence()]),
        ("logits, shared", [rr.Logits(**SHARED)]),
    ],
}
BATCH = {"resnet18-cifar": 4, "resnet8": 16}  # new images a step, and as many replayed


def steps(net: str, terms: list[rr.Term], stream: rr.Stream) -> Callable[[], None]:
    """A function that makes one training step of the second task, 100 classes seen."""
    learner: rr.Learner = rr.ER(memory=rr.Memory(200))
    for term in terms:
        term.rows = BATCH[net]
        learner = learner + term
    train = rr.Train(batch=BATCH[net], augment=rr.Augment(4, False), epochs=10**6)
    loop = Loop(learner, rr.net(net), stream, train, seed=0)
    loop.check()
    for task in stream:
        loop.net.grow(task.seen)
        keep(learner, loop.net.eval(), loop.feed, task)
    loop.net.train()
    (stage,) = loop.learner.stages(stream[1])
    run = loop.take_steps(stream[1], stage)

    def step() -> None:
        next(run)

    return step


def flops(step: Callable[[], None]) -> int:
    with Flops() as counter:
        step()
    return counter.total


class Flops(TorchDispatchMode):
    """Counts as torch's FlopCounterMode does, whose hooks on modules do not take autograd.grad."""

    total = 0

    def __torch_dispatch__(
        self, call: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = call(*args, **(kwargs or {}))
        count = flop_registry.get(call._overloadpacket)
        if count is not None:
            self.total += int(count(*args, **(kwargs or {}), out_val=out))
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--only", choices=list(ROWS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    stream = rr.stream("glyphs", tasks=[90, 10], train=4, test=1)
    print(f"torch {torch.__version__}, 1 thread, {chosen.pairs} alternated pairs")
    print("| net | er + | FLOPs / er | time / er | 95 % interval |\n|---|---|--:|--:|--:|")
    for net, rows in ROWS.items():
        if chosen.only not in (None, net):
            continue
        base = steps(net, [], stream)
        plain = flops(base)
        for name, terms in rows:
            joined = steps(net, terms, stream)
            share = flops(joined) / plain
            r, low, high = ratio(measure(base, joined, chosen.pairs))
            print(f"| {net} | {name} | {share:.4f} | {r:.3f} | {low:.3f} to {high:.3f} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
