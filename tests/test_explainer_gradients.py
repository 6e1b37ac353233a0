"""The gradient of L_RRR equals finite differences, for every explainer on every kind of net."""

from __future__ import annotations

import pytest
import torch

import rightreasons as rr
from likes import LIKES, like
from rightreasons.explainers import EXPLAINERS
from test_explainers import images
from test_terms import batch_of, loss_of, moved, stored

RELU_ONLY = ("guided", "deconvnet", "guided_gradcam")
CASES = [(n, e) for n in LIKES for e in EXPLAINERS if n != "gelu" or e not in RELU_ONLY]


def doubled(columns):
    return {k: v.double() if v.is_floating_point() else v for k, v in columns.items()}


def slopes(parameter, places, value, step=1e-6):
    """Finite differences of a loss at some places of a parameter."""
    flat = parameter.data.view(-1)
    for place in places:
        before, sides = flat[place].item(), []
        for sign in (1, -1):
            flat[place] = before + sign * step
            sides.append(value().item())
        flat[place] = before
        yield place, (sides[0] - sides[1]) / (2 * step)


@pytest.mark.parametrize("name, explain", CASES)
def test_gradient_equals_finite_differences_on_body_and_head(name, explain):
    net = like(name)
    term = rr.RRR(explain=explain, samples=3, dtype="float32")
    batch = batch_of(images(4), torch.arange(4))
    columns = doubled(stored(term, net, batch))
    moved(net)
    loss_of(term, net, batch, columns).backward()
    first, target = next(iter(net.parameters())), net.module.get_submodule(net.path("paper"))
    for parameter in (first, target.weight, net.head.weight):
        grad = parameter.grad.reshape(-1)
        assert grad.abs().max() > 0
        places = grad.abs().topk(3).indices.tolist()
        for place, expected in slopes(
            parameter, places, lambda: loss_of(term, net, batch, columns)
        ):
            assert grad[place].item() == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize("name", ["resnet", "alexnet", "squeezenet"])
@pytest.mark.parametrize("explain", ["backprop", "guided", "deconvnet", "smoothgrad"])
def test_pixel_maps_of_relu_nets_reach_all_weights_and_no_bias(name, explain):
    """Piecewise linear: the gradient at the image does not depend on biases."""
    net = like(name)
    maps = EXPLAINERS[explain](net, images(4), torch.arange(4))
    maps.sum().backward()
    for path, p in net.named_parameters():
        if path.endswith("weight"):
            assert p.grad is not None and p.grad.abs().max() > 0, path
        else:
            assert p.grad is None or p.grad.abs().max() == 0, path


@pytest.mark.parametrize("name", LIKES)
@pytest.mark.parametrize("explain", EXPLAINERS)
def test_the_loss_is_zero_right_after_storing_and_not_later(name, explain):
    if name == "gelu" and explain in RELU_ONLY:
        with pytest.raises(rr.UserError, match="has no ReLU; use backprop"):
            EXPLAINERS[explain](like(name), images(4), torch.arange(4))
        return
    net, term = like(name).float(), rr.RRR(explain=explain, dtype="float32")
    batch = batch_of(images(4, dtype=torch.float32), torch.arange(4))
    columns = stored(term, net, batch)
    scale = columns["rrr.map"].abs().sum((1, 2)).mean()
    assert scale > 0
    assert loss_of(term, net, batch, columns) < 1e-5 * scale
    assert loss_of(term, moved(net), batch, columns) > 1e-2 * scale
