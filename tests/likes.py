"""Small nets shaped like those of the paper, and one without ReLU or BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

import rightreasons as rr


class Residual(nn.Module):
    """A basic block whose one in-place ReLU is called twice, as torchvision's."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        h = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


def resnet_like():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, 1, 1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        Residual(6, 8, 1), Residual(8, 10, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(10, 5),
    )  # fmt: skip


def alexnet_like():
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 1, 1),
        nn.Conv2d(8, 10, 3, 1, 1), nn.ReLU(inplace=True), nn.Conv2d(10, 8, 3, 1, 1),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(128, 12),
        nn.ReLU(inplace=True), nn.Linear(12, 5),
    )  # fmt: skip


class Fire(nn.Module):
    def __init__(self, inputs, squeezed, each):
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.relu = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, each, 1)
        self.expand3x3 = nn.Conv2d(squeezed, each, 3, padding=1)

    def forward(self, x):
        h = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.expand1x1(h)), self.relu(self.expand3x3(h))], 1)


def squeezenet_like():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8, 6, 6), nn.Dropout(), nn.Conv2d(12, 5, 1), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def gelu_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv2d(8, 10, 3, 2, 1),
        nn.GroupNorm(2, 10), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 5),
    )  # fmt: skip


LIKES = {  # how it is built, the layer as the paper would choose it, and the head
    "resnet": (resnet_like, "5.conv2", None),
    "alexnet": (alexnet_like, "5", None),
    "squeezenet": (squeezenet_like, "3.expand3x3", "5"),
    "gelu": (gelu_net, "3", None),
}


def like(name):
    """A net in float64 that has seen data, with five classes."""
    build, target, head = LIKES[name]
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net = rr.net(build(), target=target, head=head, size=16)
    net.grow(5, torch.Generator().manual_seed(1))
    with torch.no_grad():
        for i in range(3):
            net.train()(torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(i)))
    return net.double().eval()
