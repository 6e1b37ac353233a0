"""An epoch of ours against an epoch of Avalanche's replay: same net, batch, memory and crop.

Avalanche gets what its own split of CIFAR-100 has: PIL images, torchvision's crop and flip, a
loader in the training process, as many old images a batch as new ones, and no metrics.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from rightreasons.bench.pairs import Call, compare, ratio, timed, told
from rightreasons.bench.rig import begun, epochs, pictures
from rightreasons.bench.table import Fact, Row
from rightreasons.learners.er import ER
from rightreasons.memory import Memory
from rightreasons.nets import net as make_net
from rightreasons.nets.vision import torchvision
from rightreasons.streams import Stream
from rightreasons.timing import BACKWARD, DATA, FORWARD, LOSS, OPTIMISER, profiled

ROWS = 200
COMPUTE = (FORWARD, LOSS, BACKWARD, OPTIMISER)
WARM = 3


def rows(pairs: int) -> Iterator[Row | Fact]:
    if find_spec("avalanche") is None:
        yield Fact("Avalanche is not installed", "pip install 'rightreasons[avalanche]'")
        return
    for name, batch, each in (("resnet8", 16, 32), ("resnet18-cifar", 4, 2)):
        data = pictures([90, 10], 100, train=each)
        count = 10 * each // batch
        loop = begun(ER(memory=Memory(ROWS)), name, data, 1, batch, learn=False)
        epoch = epochs(loop, 1)
        watch = race(name, data, batch, epoch, pairs)
        yield Row(f"{name}: our epoch again (A/A)", compare(epoch, epoch, pairs))
        what = f"{name}: our er epoch of {count} steps / Avalanche 0.6's Replay"
        yield Row(what, ratio(watch.times[WARM:]), 1.0)
        with profiled() as clock:
            epoch()
        own = clock.seconds
        ours = {"data": own[DATA], "compute": sum(own[name] for name in COMPUTE)}
        ours["callbacks"] = sum(own.values()) - sum(ours.values())
        yield Fact(f"{name}: our epoch", parts_in_words(ours))
        yield Fact(f"{name}: Avalanche's epoch", parts_in_words(watch.parts()))


def parts_in_words(seconds: dict[str, float]) -> str:
    total = sum(seconds.values())
    return ", ".join(f"{name} {100 * share / total:.0f} %" for name, share in seconds.items())


class Watch:
    """Stands in Avalanche's loop: its epochs and ours take turns, each with its CPU time.

    A plugin is any object with the callbacks' names; those that it lacks must be there as well.
    """

    def __init__(self, epoch: Call) -> None:
        self.epoch, self.armed, self.epochs = epoch, False, 0
        self.times: list[tuple[float, float]] = []
        self.seconds = {"data": 0.0, "callbacks": 0.0, "compute": 0.0}
        self.since = self.begun = 0.0

    def _since(self, part: str) -> None:
        now = time.process_time()
        self.seconds[part] += now - self.since
        self.since = now

    def before_training_epoch(self, strategy: Any, **_: Any) -> None:
        self.begun = self.since = time.process_time()

    def before_training_iteration(self, strategy: Any, **_: Any) -> None:
        self._since("data")

    def before_forward(self, strategy: Any, **_: Any) -> None:
        self._since("callbacks")

    def after_forward(self, strategy: Any, **_: Any) -> None:
        self._since("compute")

    def before_backward(self, strategy: Any, **_: Any) -> None:
        self._since("compute")  # the loss lies between

    def after_backward(self, strategy: Any, **_: Any) -> None:
        self._since("compute")

    def before_update(self, strategy: Any, **_: Any) -> None:
        self._since("callbacks")

    def after_update(self, strategy: Any, **_: Any) -> None:
        self._since("compute")

    def after_training_iteration(self, strategy: Any, **_: Any) -> None:
        self._since("callbacks")

    def after_training_epoch(self, strategy: Any, **_: Any) -> None:
        self._since("callbacks")
        if self.armed:
            theirs = time.process_time() - self.begun
            self.times.append((theirs, timed(self.epoch)))
            told.get()(len(self.times), self.epochs)

    def parts(self) -> dict[str, float]:
        return self.seconds


def race(name: str, data: Stream, batch: int, epoch: Call, pairs: int) -> Watch:
    """Let Avalanche learn both tasks; in the second its epochs and ours take turns."""
    torchvision()
    with warnings.catch_warnings():
        warnings.showwarning = lambda *_, **__: None  # it turns filters back on for its own
        from avalanche.benchmarks import nc_benchmark
        from avalanche.core import SupervisedPlugin
        from avalanche.training import Naive
        from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin

        watch = type("Watch", (Watch, SupervisedPlugin), {})(epoch)
        SupervisedPlugin.__init__(watch)
        net = make_net(name)
        net.grow(data[1].seen)
        model = net.module
        split = nc_benchmark(
            pil_images(data, test=False),
            pil_images(data, test=True),
            n_experiences=2,
            task_labels=False,
            fixed_class_order=list(range(100)),
            per_exp_classes={0: 90, 1: 10},
        )
        strategy = Naive(
            model=model,
            optimizer=torch.optim.RAdam(model.parameters(), 2e-3, foreach=True),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=batch,
            train_epochs=1,
            plugins=[ReplayPlugin(ROWS, batch_size=batch, batch_size_mem=batch), watch],
            evaluator=EvaluationPlugin(),
        )
        first, second = split.train_stream
        strategy.train(first)
        watch.armed, watch.epochs = True, pairs + WARM
        watch.seconds = dict.fromkeys(watch.seconds, 0.0)
        strategy.train_epochs = watch.epochs
        strategy.train(second)
    made: Watch = watch
    return made


def pil_images(data: Stream, test: bool) -> Any:
    """A data set as Avalanche's benchmarks hold them."""
    from PIL import Image
    from torch.utils.data import Dataset

    transforms = torchvision().transforms
    change = [transforms.ToTensor(), transforms.Normalize(data.mean / 255, data.std / 255)]
    crop = [] if test else [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip()]
    images = [task.test if test else task.train for task in data]
    x = torch.cat([part.pixels(torch.arange(len(part))) for part in images])
    y = torch.cat([part.y for part in images])

    class Pictures(Dataset[tuple[Tensor, int]]):
        targets = y.tolist()
        pictures = [Image.fromarray(one) for one in x.permute(0, 2, 3, 1).numpy()]
        transform = transforms.Compose([*crop, *change])

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return self.transform(self.pictures[index]), self.targets[index]

    return Pictures()
