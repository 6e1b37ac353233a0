"""The papers' equations letter by letter: Python numbers, loops over images and classes.

Nothing here is shared with the library, and nothing is fast.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

import rightreasons as rr
from rightreasons.types import Batch, Images, Stage, Task

MAIN = Stage()
PIXELS = 3 * 2 * 2  # of the images here, (3,2,2): what a linear net reads


# --- numbers -------------------------------------------------------------------------------------


def softmax(z, temperature=1.0):
    powers = [math.exp(value / temperature) for value in z]
    return [power / sum(powers) for power in powers]


def sigmoid(value):
    return 1 / (1 + math.exp(-value))


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def cross_entropy(logits, labels):
    """Mean over images of - log p_y."""
    return mean(-math.log(softmax(z)[y]) for z, y in zip(logits, labels, strict=True))


def distillation(logits, old, temperature):
    """Hinton et al. 2015; mean over images of - sum_i p_i(old / T) log p_i(z / T)."""
    total = []
    for z, z_old in zip(logits, old, strict=True):
        p, p_old = softmax(z, temperature), softmax(z_old, temperature)
        total.append(-sum(p_old[i] * math.log(p[i]) for i in range(len(p))))
    return mean(total)


def binary_cross_entropy(logits, targets):
    """Mean over images and classes of - q log s(z) - (1 - q) log(1 - s(z))."""
    total = []
    for z, q in zip(logits, targets, strict=True):
        for value, target in zip(z, q, strict=True):
            s = sigmoid(value)
            total.append(-target * math.log(s) - (1 - target) * math.log(1 - s))
    return mean(total)


def distilled_targets(labels, classes, old=None):
    """iCaRL, algorithm 3: the old net's sigmoid for old classes, zero or one for new ones."""
    targets = []
    for i, y in enumerate(labels):
        known = 0 if old is None else len(old[i])
        row = []
        for c in range(classes):
            row.append(sigmoid(old[i][c]) if c < known else float(y == c))
        targets.append(row)
    return targets


def length(v):
    return math.sqrt(sum(value * value for value in v))


def unit(v):
    return [value / length(v) for value in v]


def distance(a, b):
    return length([x - y for x, y in zip(a, b, strict=True)])


def average(vectors):
    return [mean(column) for column in zip(*vectors, strict=True)]


# --- a linear net, in numbers and as ours --------------------------------------------------------


def linear_net(classes, seed):
    """A net of one linear layer on the pixels, in float64."""
    net = rr.Net(nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 1)), head="1", taps={})
    draw = torch.Generator().manual_seed(seed)
    net.double().grow(classes, draw)
    shake(net, seed + 1000, 1.0)
    return net


def shake(net, seed, by=0.3):
    """Every parameter a little elsewhere, as after some training."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p += by * torch.randn(p.shape, generator=draw, dtype=torch.float64).to(p)
    return net


def logits_of(net, x):
    """What a linear net says, number by number."""
    weight, bias = net.head.weight.tolist(), net.head.bias.tolist()
    said = []
    for image in x.flatten(1).tolist():
        said.append(
            [
                sum(w * pixel for w, pixel in zip(row, image, strict=True)) + b
                for row, b in zip(weight, bias, strict=True)
            ]
        )
    return said


def batch_of(labels, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), 3, 2, 2, generator=draw, dtype=torch.float64)
    y = torch.tensor(labels)
    return Batch(x, y, torch.zeros_like(y), torch.full_like(y, -1))


def task_of(index, classes):
    """A task of these labels; its images are never looked at."""
    nothing = Images(torch.zeros(0, 3, 2, 2, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64))
    return Task(index, tuple(classes), nothing, nothing)


def part(logits, first, last=None):
    return [z[first:last] for z in logits]


TASKS = ((0, 1, 2), (3, 4), (5, 6, 7))
LABELS = {  # of a batch in each task: without and with remembered images
    False: ([0, 2, 1, 1, 0], [3, 4, 3, 3, 4], [7, 5, 6, 5, 7]),
    True: ([0, 2, 1, 1, 0], [3, 0, 4, 1, 3], [7, 4, 0, 5, 3]),
}


def three_tasks(learner, look=None):
    """A learner through three tasks on a linear net whose weights are shaken instead of trained.

    Gives net, the net as the task before left it, a batch and the task, in the middle of each.
    """
    net, before = linear_net(0, seed=3), None
    for index, (classes, labels) in enumerate(zip(TASKS, LABELS[learner.replays], strict=True)):
        net.grow(classes[-1] + 1, torch.Generator().manual_seed(index))
        batch, task = batch_of(labels, seed=index), task_of(index, classes)
        learner.begin(net, task, learner.memory, None)
        shake(net, seed=index)
        yield net, before, batch, task
        shake(net, seed=10 + index)
        before = copy.deepcopy(net)
        learner.end(net, task, learner.memory, look)
