"""Every learner with every term on a GPU: nothing is left on another device, and the losses are
those of a CPU. Skipped where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rightreasons as rr
from rightreasons.registry import LEARNERS, TERMS, find

DEVICE = "cuda"
OPTIONS = {"itaml": {"group": 4}}  # a task has 8 test images
PAIRS = [(name, term) for name in sorted(LEARNERS) if name != "joint" for term in sorted(TERMS)]

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def recipe(name, *terms):
    made = find("method", LEARNERS, name)(memory=rr.Memory(12), **OPTIONS.get(name, {}))
    for term in terms:
        made = made + term
    return made


@pytest.mark.parametrize("name, term", [*PAIRS, ("joint", None)])
def test_the_losses_of_the_second_task_are_those_of_a_cpu(
    name, term, tiny_stream, tiny_net, tiny_train, tmp_path
):
    learner = recipe(name, *([find("term", TERMS, term)(rows=4)] if term else []))
    losses = []
    for device in ("cpu", DEVICE):
        train = replace(tiny_train, device=device)
        folder = tmp_path / device
        result = rr.fit(learner, tiny_net, tiny_stream, train=train, run=folder, progress=False)
        losses.append(result.records[1]["losses"])
    assert next(result.net.parameters()).device.type == DEVICE
    memory = result.learner.memory  # on the CPU, however large
    assert all(memory.tensor(column).device.type == "cpu" for column in ("x", "y") if len(memory))
    assert losses[1] == pytest.approx(losses[0], rel=0.05)  # they round otherwise, step after step


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_a_run_goes_on_there(name, tiny_stream, tiny_net, tiny_train, tmp_path):
    train = replace(tiny_train, device=DEVICE)
    fit = rr.fit(recipe(name), tiny_net, tiny_stream, train=train, run=tmp_path, progress=False)
    (tmp_path / "checkpoints" / "task-3.pt").unlink()
    (tmp_path / "result.json").unlink()
    again = rr.fit(recipe(name), tiny_net, tiny_stream, train=train, run=tmp_path, progress=False)
    assert again.R.shape == fit.R.shape
    assert rr.load(tmp_path, net=tiny_net).predict(tiny_stream[0].test.x[:2]).names
