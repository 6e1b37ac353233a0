"""The sanity check: ranks, what is randomised, and that the net stays as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import rightreasons as rr
from likes import like
from rightreasons.sanitycheck import rank_correlation
from test_explainers import images


def test_rank_correlation_on_known_cases():
    a = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert rank_correlation(a, a.exp()) == pytest.approx(1.0)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    # ranks 1 2 3 4 and 1 2.5 2.5 4: covariance 4.5, variances 5 and 4.5
    tied = torch.tensor([[[0.0, 1.0], [1.0, 2.0]]])
    assert rank_correlation(a, tied) == pytest.approx(4.5 / math.sqrt(5 * 4.5))
    assert math.isnan(rank_correlation(a, torch.zeros_like(a)))
    both = torch.cat([a, a]), torch.cat([a, torch.zeros_like(a)])
    assert rank_correlation(*both) == pytest.approx(1.0)  # a constant map is left out


def test_weights_are_randomised_from_the_head_down_and_the_net_is_left_alone():
    net, x = like("resnet"), images()
    before = {n: v.clone() for n, v in net.state_dict().items()}
    names = ("gradcam", "backprop", "guided", "gradient_x_input")
    found = rr.sanity(net, x, explain=names, steps=4)
    assert found.layers[0] == net.head_name and found.layers[-1] == "0"
    assert set(found.correlation) == set(names)
    for values in found.correlation.values():
        assert values.shape == (4,) and (np.abs(values[~np.isnan(values)]) <= 1).all()
    for name in ("gradcam", "backprop"):  # the head alone is drawn anew at the first stop
        assert found.correlation[name][0] < 0.99, name
    assert abs(found.correlation["backprop"][-1]) < 0.5
    assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())
    again = rr.sanity(net, x, explain=names, steps=4)
    assert np.array_equal(again.correlation["backprop"], found.correlation["backprop"])
    assert found.table().count("\n") == 1 + len(names)


def test_what_does_not_depend_on_weights_keeps_its_ranks(monkeypatch):
    """An edge detector passes for an explanation to the eye; the check finds it out."""
    from rightreasons import explainers

    monkeypatch.setitem(explainers.EXPLAINERS, "edges", lambda net, x, y: x.abs().sum(1))
    found = rr.sanity(like("resnet"), images(), explain=["edges"], steps=3)
    assert found.correlation["edges"] == pytest.approx([1.0, 1.0, 1.0])


def test_bad_input_is_answered():
    with pytest.raises(rr.UserError, match="did you mean 'gradcam'"):
        rr.sanity(like("resnet"), images(), explain=["gradcm"])
    with pytest.raises(rr.UserError, match="expected 2 or more"):
        rr.sanity(like("resnet"), images(), steps=1)
