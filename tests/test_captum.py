"""Every explainer against Captum's, on the paper's networks: maps, and gradients of a loss on them.

Captum's gradients drop the second-order term unless ``torch.autograd.grad`` is told to create a
graph. Its NoiseTunnel works under ``torch.no_grad`` even then: there the mean over noisy copies is
taken of its Saliency. Its Deconvolution leaves hooks in the graph, over which a second backward
stumbles wherever a ReLU has nothing to say there: AlexNet is what it can be asked about.
"""

from __future__ import annotations

import warnings
from unittest import mock

import pytest
import torch
from captum.attr import (
    Deconvolution,
    GuidedBackprop,
    GuidedGradCam,
    InputXGradient,
    IntegratedGradients,
    LayerGradCam,
    NoiseTunnel,
    Saliency,
)
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.explainers import EXPLAINERS, content_keys
from rightreasons.randomness import generator

NETS = ("resnet18", "alexnet", "squeezenet1_1")
SIZE, CLASSES, SAMPLES = 72, 4, 3


@pytest.fixture(scope="module", params=NETS)
def net(request):
    """Random weights; BatchNorm has seen data."""
    made = rr.net(request.param)
    made.grow(CLASSES, torch.Generator().manual_seed(1))
    with torch.no_grad():
        made.train()(torch.randn(6, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(2)))
    return made.double().eval()


@pytest.fixture(scope="module")
def batch():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, SIZE, SIZE, generator=draw, dtype=torch.float64)
    return x, torch.tensor([1, 3])


def by_captum(name, net, x, y):
    """Captum's values (B,3,H,W), or (B,1,u,v) for a layer."""
    module, layer = net.module, net.module.get_submodule(net.path("paper"))
    if name == "gradcam":
        return LayerGradCam(module, layer).attribute(x, y, relu_attributions=True)
    if name == "backprop":
        return Saliency(module).attribute(x, y, abs=False)
    if name == "smoothgrad":
        noise = our_noise(x.detach())
        with mock.patch.object(torch, "normal", lambda *_: noise):
            tunnel = NoiseTunnel(Saliency(module))
            return tunnel.attribute(x, nt_samples=SAMPLES, target=y, abs=False)
    if name == "guided":
        return GuidedBackprop(module).attribute(x, y)
    if name == "deconvnet":
        return Deconvolution(module).attribute(x, y)
    if name == "gradient_x_input":
        return InputXGradient(module).attribute(x, y)
    if name == "integrated_gradients":
        return IntegratedGradients(module).attribute(x, target=y, n_steps=SAMPLES)
    return GuidedGradCam(module, layer).attribute(x, y, interpolate_mode="bilinear")


def our_noise(x):
    """(B * SAMPLES,3,H,W): NoiseTunnel repeats each image in turn."""
    drawn = [
        [torch.randn(x.shape[1:], generator=generator(k, "noise", i)) for i in range(SAMPLES)]
        for k in content_keys(x).tolist()
    ]
    spread = 0.2 * (x.flatten(1).amax(1) - x.flatten(1).amin(1))
    return torch.cat([s * torch.stack(own).to(x) for s, own in zip(spread, drawn, strict=True)])


def to_map(name, values):
    """Three channels to one map, written out once more."""
    if name == "gradcam":
        return values[:, 0]
    if name in ("gradient_x_input", "integrated_gradients"):
        return F.relu(values.sum(1))
    return values.abs().max(1).values


def options(name):
    given = {}
    if "gradcam" in name:
        given["target"] = "paper"
    if name in ("smoothgrad", "integrated_gradients"):
        given["samples"] = SAMPLES
    return given


@pytest.mark.parametrize("name", EXPLAINERS)
def test_maps_equal_captum(net, batch, name):
    x, y = batch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Captum says that it sets hooks
        theirs = to_map(name, by_captum(name, net, x.clone().requires_grad_(), y)).detach()
    ours = EXPLAINERS[name](net, x, y, **options(name))
    assert theirs.max() > 0
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def in_graph_by_captum(name, net, x, y):
    if name != "smoothgrad":
        return by_captum(name, net, x.clone().requires_grad_(), y)
    copies = x.repeat_interleave(SAMPLES, 0) + our_noise(x)
    values = by_captum("backprop", net, copies.requires_grad_(), y.repeat_interleave(SAMPLES))
    return values.unflatten(0, (len(x), SAMPLES)).mean(1)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_gradients_of_a_loss_on_the_maps_equal_captum_with_its_graph(net, batch, name):
    x, y = batch
    real = torch.autograd.grad

    def in_graph(outputs, inputs, *args, **words):
        return real(outputs, inputs, *args, **{**words, "create_graph": True})

    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1}
    chosen = [list(weights)[i] for i in (0, len(weights) // 2, -2, -1)]
    parts = [weights[n] for n in chosen]
    ours = EXPLAINERS[name](net, x, y, **options(name))
    reference = ours.detach() * torch.rand(ours.shape, generator=torch.Generator().manual_seed(5))
    mine = real((ours - reference).abs().sum(), parts, allow_unused=True)
    with mock.patch.object(torch.autograd, "grad", in_graph), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = to_map(name, in_graph_by_captum(name, net, x, y))
    gap = (theirs - reference).abs().sum()
    if name == "deconvnet" and net.name != "alexnet":
        with pytest.raises(AttributeError, match="has no attribute 'device'"):
            real(gap, parts, allow_unused=True)
        return
    other = real(gap, parts, allow_unused=True)
    moved = 0
    for path, a, b in zip(chosen, mine, other, strict=True):
        assert (a is None) == (b is None), path
        if a is not None:
            assert (a - b).abs().max() <= 1e-5 * b.abs().max(), path
            moved += bool(b.abs().max() > 0)
    assert moved > 1


def test_captum_drops_the_second_order_term_without_a_word_and_we_do_not(net, batch):
    """By default its Grad-CAM never reaches the head, and its pixel maps reach nothing."""
    x, y = batch
    theirs = by_captum("gradcam", net, x, y).sum()
    (head,) = torch.autograd.grad(theirs, net.head.weight, allow_unused=True)
    assert head is None or head.abs().max() == 0
    assert not by_captum("backprop", net, x.clone().requires_grad_(), y).requires_grad
    for name in ("gradcam", "backprop"):
        ours = EXPLAINERS[name](net, x, y, **options(name)).sum()
        (head,) = torch.autograd.grad(ours, net.head.weight)
        assert head.abs().max() > 0
