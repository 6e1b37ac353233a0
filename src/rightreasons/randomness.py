"""Keyed randomness: every draw has a name, and no draw depends on how many came before it.

A generator is a function of ``(seed, purpose, *where)``, with ``where`` such as task, stage, epoch
and step. A loss term that draws its own rows therefore cannot shift the batches, the augmentation
or the memory of the learner it joins: pairs of runs stay matched for their whole length, and a
resumed run needs no generator state.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager

import torch

PURPOSES = (
    "order",  # classes of the stream
    "init",  # weights of a fresh net
    "head",  # new rows of the head
    "batches",  # which images of the task make a batch
    "replay",  # which rows of memory join it
    "augment",  # crop and flip of the batch
    "memory",  # which images are stored
    "held",  # which images are held out of training
    "explain",  # which rows of memory are explained
    "noise",  # noise inside explainers and nets
    "gradient",  # noise on the gradient
    "learner",  # a learner's own draws
    "data",  # images that a source draws
)


def key(seed: int, purpose: str, *where: int | str) -> int:
    """A 63-bit number that identifies one draw."""
    if purpose not in PURPOSES:
        raise ValueError(f"unknown purpose {purpose!r}; one of {', '.join(PURPOSES)}")
    text = "\x1f".join([str(seed), purpose, *map(str, where)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, purpose: str, *where: int | str) -> torch.Generator:
    """A CPU generator for one draw. Draws are made on the CPU and moved, so devices agree."""
    return torch.Generator().manual_seed(key(seed, purpose, *where))


def seed_noise(device: torch.device, number: int) -> None:
    """Seed what layers such as dropout draw from: the generator of their device."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def own_noise(device: torch.device) -> AbstractContextManager[None]:
    """Inside, such draws are our own: outside they go on as if there had been none."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
