"""Residual nets for small images (He et al. 2016, section 4.2), among them iTAML's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rightreasons.nets.base import Net


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A 3x3 stem, stages of blocks, global pooling and one linear layer.

    ``power`` above 1 pools by ``(mean h^power)^(1/power)`` instead of the mean.
    """

    def __init__(
        self,
        widths: Sequence[int],
        strides: Sequence[int],
        blocks: int | Sequence[int],
        power: float = 1.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        counts = [blocks] * len(widths) if isinstance(blocks, int) else blocks
        self.power = power
        self.conv1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages: list[nn.Module] = []
        inputs = widths[0]
        for width, stride, count in zip(widths, strides, counts, strict=True):
            more = [Block(width, width, 1) for _ in range(count - 1)]
            stages.append(nn.Sequential(Block(inputs, width, stride), *more))
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, 1, bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(F.relu(self.bn1(self.conv1(x))))
        if self.power == 1:
            z = h.mean((2, 3))
        else:  # generalised mean (Radenovic et al. 2018); h is not negative, its root needs a slope
            z = h.clamp_min(1e-6).pow(self.power).mean((2, 3)).pow(1 / self.power)
        logits: Tensor = self.fc(z)
        return logits


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Kaiming normal by fan-out for convolutions, nn.Linear's own bound, identity for norms."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(
                part.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
        elif isinstance(part, nn.Linear):
            bound = part.in_features**-0.5
            nn.init.uniform_(part.weight, -bound, bound, generator=generator)
        elif isinstance(part, nn.BatchNorm2d):
            part.reset_running_stats()
            nn.init.ones_(part.weight)
        if isinstance(part, (nn.Conv2d, nn.Linear, nn.BatchNorm2d)) and part.bias is not None:
            nn.init.zeros_(part.bias)


SMALL: dict[str, Callable[[], SmallResNet]] = {  # widths and strides of the stages, blocks a stage
    # halves early: half the work, the same 8x8 map
    "resnet8": partial(SmallResNet, (16, 32, 64), (2, 2, 1), 1),
    "resnet20": partial(SmallResNet, (16, 32, 64), (1, 2, 2), 3),
    "resnet32": partial(SmallResNet, (16, 32, 64), (1, 2, 2), 5),
    "resnet18-cifar": partial(SmallResNet, (64, 128, 256, 512), (1, 2, 2, 2), 2),
    # iTAML's widths, depth, pooling and head; where its code pools, these blocks stride
    "rps-small": partial(
        SmallResNet, (21, 42, 85, 170), (1, 2, 2, 1), (3, 2, 2, 2), power=3, bias=False
    ),
}


def build_small(name: str) -> Net:
    """Build one of ``SMALL``. At 32 px the last map is 8x8, for resnet18-cifar 4x4."""
    module = SMALL[name]()
    last = len(module.stages) - 1
    block = len(module.stages[last]) - 1  # type: ignore[arg-type]
    return Net(
        module,
        head="fc",
        taps={"last_block": f"stages.{last}", "paper": f"stages.{last}.{block}.conv2"},
        pooled_linear=module.power == 1,
        initialise=initialise,
        channels_last=True,
        name=name,
    )
