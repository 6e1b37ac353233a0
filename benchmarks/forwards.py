"""What a forward costs an image: by how many images it takes, and by how they lie in memory.

Behind the choice of `rightreasons.nets.base.chunk` and of channels_last for the nets that ship.

    python benchmarks/forwards.py > table.md
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from statistics import median
from typing import TypeVar

import torch
from torch.nn import functional as F

from rightreasons.bench.pairs import Call, timed
from rightreasons.nets import Net, net
from rightreasons.nets.base import chunk

K = TypeVar("K", bound=Hashable)
CASES = {  # images in all: some hundred ms
    ("resnet8", 32): 512,
    ("resnet8", 64): 256,
    ("resnet18-cifar", 32): 64,
    ("mobilenet-v2", 96): 128,
    ("alexnet", 96): 128,
    ("squeezenet1_1", 96): 128,
    ("resnet18", 96): 64,
}
SIZES = (16, 32, 64, 128, 256)
FORMATS = {"as it comes": torch.contiguous_format, "channels_last": torch.channels_last}


def laid(name: str, kind: str) -> Net:
    made = net(name)
    made.grow(100)
    made.channels_last = kind == "channels_last"
    return made.to(memory_format=FORMATS[kind])  # type: ignore[call-overload]


def test(made: Net, x: torch.Tensor, size: int) -> None:
    with torch.no_grad():
        for part in x.split(size):
            made(part)


def step(made: Net, x: torch.Tensor) -> None:
    made.zero_grad()
    y = torch.arange(len(x)) % 100
    F.cross_entropy(made(x).logits, y).backward()  # type: ignore[no-untyped-call]


def in_turns(calls: Mapping[K, Call], rounds: int) -> dict[K, list[float]]:
    """The times of all, one after the other, again and again; the first round warms up."""
    times: dict[K, list[float]] = {key: [] for key in calls}
    for _ in range(rounds + 1):
        for key, call in calls.items():
            times[key].append(timed(call))
    return {key: own[1:] for key, own in times.items()}


def rows(rounds: int) -> Iterator[list[str]]:
    for (name, side), count in CASES.items():
        x = torch.randn(count, 3, side, side)
        ours = chunk(side, x.device)
        nets = {kind: laid(name, kind) for kind in FORMATS}
        calls = {
            (kind, size): partial(test, nets[kind].eval(), x, size)
            for kind in FORMATS
            for size in SIZES
            if size <= count
        }
        times = in_turns(calls, rounds)
        steps = {kind: partial(step, nets[kind].train(), x[:32]) for kind in FORMATS}
        learned = in_turns(steps, rounds)
        for kind in FORMATS:
            cells = []
            for size in SIZES:
                found = times.get((kind, size))
                text = "" if found is None else f"{1000 * median(found) / count:.2f}"
                chosen = kind == "channels_last" and size == ours
                cells.append(f"**{text}**" if chosen else text)
            yield [f"{name}, {side} px", kind, *cells, f"{1000 * median(learned[kind]) / 32:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = [*(f"{size} at a time" for size in SIZES), "a step of 32, with backward"]
    print(f"| net | in memory | {' | '.join(heads)} |")
    print(f"|---|---|{'--:|' * len(heads)}")
    for row in rows(options.rounds):
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
