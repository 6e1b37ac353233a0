"""Watched images: a few test images whose maps are kept after every task, for the report.

The images are chosen by their place in the stream alone, so matched runs watch the same ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from rightreasons.augment import middle
from rightreasons.evaluate import TARGET
from rightreasons.explainers import closed_form, gradcam
from rightreasons.feed import Feed
from rightreasons.learners.base import Learner
from rightreasons.nets.base import Net
from rightreasons.pointing import enlarge, peaks, point
from rightreasons.types import Images, Task

IMAGES = 2  # a task
TASKS = 8  # of the first so many: their maps have the longest to drift
SIDE = 96  # pixels of a kept picture, at most

Arrays = dict[str, NDArray[Any]]


def watch(learner: Learner, net: Net, feed: Feed, task: Task) -> Arrays:
    """What the model says of the watched images of all tasks so far, and where it looks.

    N images are looked at, and the pictures of the M new ones are kept::

        image (N,2)       task and place among the watched images of the task
        label, answer (N,)
        maps, label_maps (N,u,v)  of the class predicted and of the true one, divided by their
        tops, label_tops (N,)     largest values
        peak (N,2)        row and column of the peak of ``maps``, as shares of the image
        hit (N,)          does it lie on the object
        pixels (M,h,w,3), masks (M,h,w), names (the task's classes)
    """
    parts = [watched(t.test) for t in feed.stream[: task.index + 1][:TASKS]]
    x = torch.cat([p.pixels(torch.arange(len(p))) for p in parts])
    y = torch.cat([p.y for p in parts])
    places = [(i, j) for i, part in enumerate(parts) for j in range(len(part))]
    found: Arrays = {
        "image": np.array(places, np.int16).reshape(-1, 2),
        "label": y.numpy().astype(np.int32),
        "names": np.array([feed.stream.class_names[c] for c in task.classes], dtype=str),
    }
    if len(y):
        masks = torch.cat([_masks(part, feed) for part in parts])
        found |= _look(learner, net, feed, x, y, masks)
    if task.index < TASKS:
        new = parts[task.index]
        small = _small(middle(new.pixels(torch.arange(len(new))), feed.cut))
        found["pixels"] = small.permute(0, 2, 3, 1).numpy()
        if new.masks is not None:
            found["masks"] = _small_masks(_masks(new, feed), small.shape[2:])
    return found


def watched(images: Images) -> Images:
    """Images evenly spaced over a task's test set, those that have a mask first."""
    index = torch.arange(len(images))
    if images.masks is not None:
        known = images.masks[images.positions(index)].flatten(1).any(1)
        index = index[known] if known.sum() >= IMAGES else index
    count = min(IMAGES, len(index))
    return images.subset(index[(2 * torch.arange(count) + 1) * len(index) // (2 * max(count, 1))])


def _masks(images: Images, feed: Feed) -> Tensor:
    """(N,H,W), all False where unknown."""
    index = torch.arange(len(images))
    if images.masks is None:
        return torch.zeros_like(middle(images.pixels(index), feed.cut)[:, 0], dtype=torch.bool)
    return middle(images.masks[images.positions(index)], feed.cut)


@torch.no_grad()
def _look(learner: Learner, net: Net, feed: Feed, x: Tensor, y: Tensor, masks: Tensor) -> Arrays:
    was_training = net.training
    net.eval()
    normal, label = feed.normalise(x), y.to(feed.device)
    with torch.set_grad_enabled(not closed_form(net, TARGET)):
        out = net(normal, taps=(TARGET,))
    answer = learner.predict(net, normal, out, learner.memory).argmax(1)
    maps = gradcam(net, out, answer, target=TARGET).cpu()
    label_maps = gradcam(net, out, label, target=TARGET).cpu()
    net.train(was_training)
    row, column = peaks(enlarge(maps, masks.shape[1:]))
    height, width = masks.shape[1:]
    peak = torch.stack([(row + 0.5) / height, (column + 0.5) / width], 1)
    found = {"answer": answer.cpu().numpy().astype(np.int32)}
    found["peak"] = peak.numpy().astype(np.float32)
    found["hit"] = point(maps, masks).hit.numpy()
    for name, values in (("", maps), ("label_", label_maps)):
        tops = values.flatten(1).amax(1)
        found[f"{name}tops"] = tops.numpy().astype(np.float32)
        relative = values / torch.where(tops > 0, tops, 1.0)[:, None, None]
        found[f"{name}maps"] = relative.numpy().astype(np.float16)
    return found


def _small(x: Tensor) -> Tensor:
    """Pictures (M,3,H,W) of at most `SIDE` pixels."""
    height, width = x.shape[2:]
    if max(height, width) <= SIDE or not len(x):
        return x
    scale = SIDE / max(height, width)
    size = (round(scale * height), round(scale * width))
    return F.interpolate(x.float(), size, mode="area").round().to(torch.uint8)


def _small_masks(masks: Tensor, size: torch.Size) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (
        F.interpolate(masks[:, None].float(), tuple(size), mode="nearest-exact")[:, 0]
        .bool()
        .numpy()
        if len(masks)
        else np.zeros((0, *size), bool)
    )
    return found
