"""What topic.cache saves: CPU seconds of the steps of later tasks, with it and without it.

python benchmarks/topic.py
"""

from __future__ import annotations

import argparse
import time

import torch

import rightreasons as rr
from rightreasons.learners.base import Learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="of each later task")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stream = rr.stream(
        "glyphs", tasks=[60, 5, 5], classes=70, train=20, test=20, shots=5, order="seed"
    )
    later = {"epochs": options.epochs, "batch": 25, "optimiser": "sgd", "lr": 1e-3}
    train = rr.Train(epochs=2, later=later, threads=1, augment=rr.Augment(2, False))
    spent: list[float] = []
    step = Learner.step

    def timed(self, net, batch, objective, update):  # type: ignore[no-untyped-def]
        begun = time.process_time()
        step(self, net, batch, objective, update)
        spent.append(time.process_time() - begun)

    rr.TOPIC.step = timed  # type: ignore[method-assign]
    print("| anchors | ms a step, median | accuracy on all classes seen |\n|---|--:|--:|")
    for name, cache in (("forwarded", False), ("cached", True)):
        spent.clear()
        learner = rr.TOPIC(memory=rr.Memory(per_class=(4, 1)), cache=cache)
        result = rr.fit(learner, rr.net("resnet8"), stream, train=train, progress=False)
        own = sorted(spent[-2 * options.epochs :])
        print(f"| {name} | {1000 * own[len(own) // 2]:.1f} | {100 * result.accuracy:.2f} % |")


if __name__ == "__main__":
    main()
