"""Grad-CAM and evidence: the vectors, Captum, closed form against autograd, no side effects."""

from __future__ import annotations

import pytest
import torch
from captum.attr import LayerGradCam
from torch import nn

import rightreasons as rr
from rightreasons.explainers import gradcam
from rightreasons.types import Out


def trained(net, classes=5, size=16, dtype=torch.float64):
    """A net whose BatchNorm has seen data, so that running statistics are not trivial."""
    net.grow(classes, torch.Generator().manual_seed(1))
    net.train()
    for i in range(3):
        net(torch.randn(8, 3, size, size, generator=torch.Generator().manual_seed(i)))
    return net.to(dtype).eval()


def images(count=6, size=16, dtype=torch.float64):
    return torch.randn(
        count, 3, size, size, generator=torch.Generator().manual_seed(7), dtype=dtype
    )


class Given(nn.Module):
    """Two given activation maps, pooled, and a linear head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Identity()
        self.fc = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


def given_net():
    net = rr.Net(Given(), head="fc", taps={"last_block": "body"}, pooled_linear=True)
    net.resize(1)
    net.head.weight.data = torch.tensor([[2.0, -4.0]])
    activation = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 1.0], [1.0, 0.0]]])
    return net, activation[None].requires_grad_()


@pytest.mark.parametrize("closed", [True, False])
def test_gradcam_on_the_worked_example(closed):
    net, activation = given_net()
    out = net(activation, taps=("last_block",))
    maps = gradcam(net, out, torch.tensor([0]), closed=closed)
    assert torch.allclose(maps, torch.tensor([[[0.5, 0.0], [0.5, 2.0]]]))
    gap = (maps - torch.tensor([[0.0, 0.0], [1.0, 1.0]])).abs()
    assert gap.sum().item() == pytest.approx(2.0)
    assert gap.mean().item() == pytest.approx(0.5)


@pytest.mark.parametrize("target", ["last_block", "paper"])
def test_gradcam_equals_captum(tiny_net, target):
    net, x = trained(tiny_net), images()
    y = torch.arange(6) % 5
    layer = net.module.get_submodule(net.path(target))
    theirs = LayerGradCam(lambda x: net(x).logits, layer).attribute(x, y, relu_attributions=True)
    ours = gradcam(net, x, y, target=target)
    assert ours.abs().max() > 0
    assert torch.allclose(ours, theirs[:, 0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("signed", [True, False])
def test_closed_form_equals_autograd_in_map_and_gradient(tiny_net, signed):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    weights = torch.rand(6, 4, 4, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
    found = []
    for closed in (True, False):
        net.zero_grad()
        maps = gradcam(net, net(x, taps=("last_block",)), y, signed=signed, closed=closed)
        (maps * weights).sum().backward()
        grads = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        found.append((maps.detach(), grads))
    (a, ga), (b, gb) = found
    assert torch.allclose(a, b, rtol=1e-10, atol=1e-14)
    assert a.abs().max() > 0
    for name in ga:
        assert torch.allclose(ga[name], gb[name], rtol=1e-8, atol=1e-12), name
    assert ga["module.fc.weight"].abs().max() > 0


@pytest.mark.parametrize("target", ["last_block", "paper"])
def test_gradcam_reaches_body_and_head_only_unless_weights_are_detached(tiny_net, target):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    gradcam(net, x, y, target=target).sum().backward()
    assert net.head.weight.grad.abs().max() > 0
    assert net.module.conv1.weight.grad.abs().max() > 0
    net.zero_grad()
    gradcam(net, x, y, target=target, detach_weights=True).sum().backward()
    assert net.head.weight.grad is None or net.head.weight.grad.abs().max() == 0
    assert net.module.conv1.weight.grad.abs().max() > 0


def test_mean_of_evidence_is_the_logit(tiny_net):
    net, x = trained(tiny_net), images()
    maps = rr.evidence(net, x)
    assert torch.allclose(maps.mean((2, 3)), net(x).logits)
    without = rr.evidence(net, x, bias=False)
    assert torch.allclose(maps - without, net.head.bias[:, None, None].expand_as(maps))


@pytest.mark.parametrize("target", ["last_block", "paper"])
def test_explaining_has_no_side_effect(tiny_net, target):
    """Buffers, modes, hooks and gradients are as before (the authors' hooks pile up)."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [part.training for part in net.modules()]
    for _ in range(3):
        gradcam(net, x, y, target=target)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [part.training for part in net.modules()] == modes
    assert not any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in net.modules()
    )
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("target", ["last_block", "paper"])
def test_a_map_does_not_depend_on_its_batch_mates(tiny_net, target):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    net.train()
    whole = gradcam(net, x, y, target=target)
    alone = torch.cat([gradcam(net, x[i : i + 1], y[i : i + 1], target=target) for i in range(6)])
    assert whole.abs().max() > 0
    assert torch.allclose(whole, alone, rtol=1e-9, atol=1e-12)


def test_a_pass_without_a_graph_is_refused(tiny_net):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    with torch.no_grad():
        out = net(x, taps=("paper",))
    with pytest.raises(RuntimeError, match="without a graph"):
        gradcam(net, out, y, target="paper")


def test_hooks_go_even_when_the_forward_fails(tiny_net):
    net = trained(tiny_net)
    with pytest.raises(RuntimeError):
        net(torch.randn(2, 5, 16, 16, dtype=torch.float64), taps=("paper",))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_out_is_cut_by_row(tiny_net):
    net, x = trained(tiny_net), images()
    out = net(x, taps=("last_block",))
    part = out.where(torch.tensor([4, 1]))
    assert isinstance(part, Out)
    assert torch.equal(part.logits, out.logits[[4, 1]])
    assert torch.equal(part.maps["last_block"], out.maps["last_block"][[4, 1]])


@pytest.mark.parametrize("closed", [True, False])
def test_the_maps_of_a_part_are_part_of_the_maps(tiny_net, closed):
    """The shared view explains some rows of a batch whose logits hang on all of it."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    out = net(x, taps=("last_block",))
    chosen = torch.tensor([4, 1, 2])
    whole = gradcam(net, out, y, closed=closed)
    part = gradcam(net, out.where(chosen), y[chosen], closed=closed)
    assert torch.equal(part, whole[chosen])
    part.sum().backward()
    assert net.head.weight.grad.abs().max() > 0 and net.module.conv1.weight.grad.abs().max() > 0
