"""The benchmark of a step: what is counted is exact, so it is a test; what is timed is not."""

from __future__ import annotations

import pytest
import step
import torch
from pairs import ratio

import rightreasons as rr


@pytest.fixture(scope="module")
def counted():
    step.BATCH["resnet18-cifar"] = 2
    stream = rr.stream("glyphs", tasks=[9, 1], classes=10, train=2, test=1)

    def flops(*terms):
        return step.flops(step.steps("resnet18-cifar", list(terms), stream))

    return flops


def test_explanation_replay_in_the_shared_view_costs_no_flops(counted):
    plain = counted()
    shared = counted(rr.RRR(target="last_block", view="shared"))
    assert round(shared / plain, 2) == 1.00
    assert counted(rr.RRR()) / plain > 1.4  # a forward of its own for as many rows


def test_the_ratio_is_that_of_medians_with_an_interval_around_it():
    draw = torch.Generator().manual_seed(0)
    noise = 1 + 0.05 * torch.rand(200, 2, generator=draw)
    times = [(a, 1.5 * b) for a, b in noise.tolist()]
    r, low, high = ratio(times)
    assert low < r < high and r == pytest.approx(1.5, rel=0.01) and high - low < 0.03
