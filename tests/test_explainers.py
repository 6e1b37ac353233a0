"""Explainers: the vectors, closed form against autograd, no side effects; Captum is elsewhere."""

from __future__ import annotations

import weakref

import pytest
import torch
from captum.attr import LayerGradCam
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import rightreasons as rr
from likes import like
from rightreasons import slopes
from rightreasons.explainers import EXPLAINERS, attribution, content_keys, gradcam, magnitude
from rightreasons.nets.base import INPUT
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


def explain(name, net, at, y, **options):
    if name in ("smoothgrad", "integrated_gradients"):
        options["samples"] = 3
    if "gradcam" in name:
        options["target"] = "paper"
    return EXPLAINERS[name](net, at, y, **options)


def hooks(net):
    return [
        m for m in net.modules() if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
    ]


@pytest.mark.parametrize("name", EXPLAINERS)
def test_explaining_has_no_side_effect(tiny_net, name):
    """Buffers, modes, hooks and gradients are as before (the authors' hooks pile up)."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes, pixels = [part.training for part in net.modules()], x.clone()
    first, again = (explain(name, net, x, y) for _ in range(2))
    assert torch.equal(first, again)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [part.training for part in net.modules()] == modes
    assert not hooks(net)
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(x, pixels) and not x.requires_grad and x.grad is None


@pytest.mark.parametrize("name", EXPLAINERS)
def test_a_map_does_not_depend_on_its_batch_mates(tiny_net, name):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    net.train()
    whole = explain(name, net, x, y)
    alone = torch.cat([explain(name, net, x[i : i + 1], y[i : i + 1]) for i in range(6)])
    assert whole.abs().max() > 0
    assert torch.allclose(whole, alone, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_without_gradients_the_map_is_the_same_and_has_no_graph(tiny_net, name):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    inside = explain(name, net, x, y)
    with torch.no_grad():
        outside = explain(name, net, x, y)
    assert inside.requires_grad and not outside.requires_grad
    assert torch.allclose(inside, outside, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_a_given_pass_is_explained_as_its_images_are_and_so_is_a_part_of_it(tiny_net, name):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    expected = explain(name, net, x, y)
    out = net(x, taps=(INPUT, "paper"))
    chosen = torch.tensor([4, 1, 2])
    assert torch.allclose(explain(name, net, out, y), expected, rtol=1e-10, atol=1e-14)
    part = explain(name, net, out.where(chosen), y[chosen])
    assert torch.allclose(part, expected[chosen], rtol=1e-10, atol=1e-14)
    part.sum().backward()
    assert net.head.weight.grad.abs().max() > 0 and net.module.conv1.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["guided", "deconvnet", "guided_gradcam"])
def test_ordinary_gradients_are_untouched_by_another_rule_for_relu(name):
    """In the very graph that was explained, and in passes before and after."""
    net, x, y = like("resnet"), images(), torch.arange(6) % 5

    def gradients(explained):
        out = net(x, taps=(INPUT, "paper"))
        if explained:
            explain(name, net, out, y)
        return torch.autograd.grad(out.logits.square().sum(), list(net.parameters()))

    plain, after, later = gradients(False), gradients(True), gradients(False)
    for a, b, c in zip(plain, after, later, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert not torch.allclose(explain("guided", net, x, y), explain("backprop", net, x, y))


def test_a_relu_is_found_as_a_function_as_a_module_and_clipped_at_six():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 8, 8, generator=draw)
    y = torch.tensor([0, 1])

    class Called(nn.Module):
        def __init__(self, call):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.call = call
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            return self.fc(self.call(self.conv(x)).mean((2, 3)))

    maps = []
    for call in (torch.relu, nn.ReLU(inplace=True), nn.ReLU6(), nn.functional.relu):
        torch.manual_seed(3)
        net = rr.net(Called(call), size=8)
        net.grow(2, torch.Generator().manual_seed(0))
        maps.append(rr.guided(net, x, y))
    assert all(torch.equal(maps[0], other) for other in maps[1:])
    for call in (nn.Hardtanh(), nn.GELU(), nn.LeakyReLU()):
        net = rr.net(Called(call), size=8)
        net.grow(2)
        with pytest.raises(rr.UserError, match="has no ReLU"):
            rr.deconvnet(net, x, y)


def test_the_guided_rule_on_one_relu():
    """y = w relu(x): guided passes w where x > 0 and w > 0, deconvnet wherever w > 0."""

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.ReLU()
            self.fc = nn.Linear(4, 1, bias=False)

        def forward(self, x):
            return self.fc(self.body(x).flatten(1))

    net = rr.Net(One(), head="fc", taps={"last_block": "body"})
    net.resize(1)
    net.head.weight.data = torch.tensor([[2.0, -3.0, 5.0, -7.0]])
    x, y = torch.tensor([4.0, 1.0, -1.0, -1.0]).view(1, 1, 2, 2), torch.tensor([0])
    for explainer, expected in (
        (rr.backprop, [2.0, 3.0, 0.0, 0.0]),
        (rr.guided, [2.0, 0.0, 0.0, 0.0]),
        (rr.deconvnet, [2.0, 0.0, 5.0, 0.0]),
        (rr.gradient_x_input, [8.0, 0.0, 0.0, 0.0]),
        (rr.integrated_gradients, [8.0, 0.0, 0.0, 0.0]),
    ):
        assert explainer(net, x, y).flatten().tolist() == pytest.approx(expected), explainer


class Grouped(nn.Module):
    """Every kind of convolution whose derivative has a short form, at a size the strides miss."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8, affine=False),
            nn.Softplus(),
            nn.Conv2d(8, 12, (3, 2), stride=(2, 1), padding=(2, 0), dilation=(2, 1), groups=4),
            nn.ReLU(),
            nn.Conv2d(12, 12, 2, padding="valid", groups=3),
            nn.Softplus(),
        )
        self.fc = nn.Linear(12, 5)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


def grouped_net(dtype=torch.float64):
    torch.manual_seed(4)
    return trained(rr.net(Grouped(), size=16), dtype=dtype)


@pytest.mark.parametrize("name", ["backprop", "guided", "smoothgrad"])
def test_short_forms_are_the_derivatives_of_torch_in_map_and_gradient(name, monkeypatch):
    net, x, y = grouped_net(), images()[:, :, :15, :14].contiguous(), torch.arange(6) % 5

    def both():
        maps = explain(name, net, x, y)
        return maps, *torch.autograd.grad(
            maps.square().sum(), list(net.parameters()), allow_unused=True
        )

    short = both()
    with torch.no_grad():  # as it is stored: equal to the last bit, or the loss would not be zero
        assert torch.equal(explain(name, net, x, y), short[0])
    monkeypatch.setattr(slopes, "_is_long", lambda node: False)
    for a, b in zip(short, both(), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_depthwise_layer_is_not_differentiated_group_by_group(monkeypatch):
    class Convolutions(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.calls += "convolution" in func.name()
            return func(*args, **(kwargs or {}))

    net, x, y = grouped_net(), images(), torch.arange(6) % 5

    def calls():
        with Convolutions() as seen:
            rr.backprop(net, x, y).sum().backward()
        return seen.calls

    short = calls()
    monkeypatch.setattr(slopes, "_is_long", lambda node: False)
    assert short + 8 <= calls()  # one more for each group of the depthwise layer, and others


def test_short_forms_keep_the_precision_of_a_pass():
    net, x, y = grouped_net(torch.float32), images(dtype=torch.float32), torch.arange(6) % 5
    with torch.autocast("cpu", torch.bfloat16):
        maps = rr.backprop(net, x, y)
    maps.sum().backward()
    exact = rr.backprop(net, x, y)
    assert (maps - exact).abs().max() < 0.05 * exact.abs().max()


def test_three_channels_to_one_map():
    """methods: of the gradient (-3,1,2) max-abs 3, sum-abs 6, mean-abs 2, l2 3.741657."""
    values = torch.tensor([-3.0, 1.0, 2.0]).view(1, 3, 1, 1)
    for how, expected in (("max", 3.0), ("sum", 6.0), ("mean", 2.0), ("l2", 3.741657)):
        assert magnitude(values, how, False).item() == pytest.approx(expected)
    assert magnitude(values, "max", True).item() == 0.0
    assert attribution(values + 1, False).item() == 3.0
    assert attribution(values - 1, False).item() == 0.0
    assert attribution(values - 1, True).item() == -3.0
    zero = torch.zeros(1, 3, 2, 2, requires_grad=True)
    magnitude(zero, "l2", False).sum().backward()
    assert torch.isfinite(zero.grad).all()
    with pytest.raises(rr.UserError, match="did you mean 'mean'"):
        magnitude(values, "meen", False)


def test_the_noise_of_smoothgrad_has_the_deviation_of_the_image_range():
    """methods: range [-2,3] and 0.2 make 1.0; the draws belong to the image."""
    x = torch.zeros(2, 3, 32, 32)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = -2.0, 3.0
    x[1, 2, 5, 5] = 1.0
    seen = []

    class Sees(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(3, 2, 1)
            self.fc = nn.Linear(2, 1)

        def forward(self, x):
            seen.append(x.detach().clone())
            return self.fc(self.body(x).mean((2, 3)))

    net = rr.net(Sees())
    net.grow(1)
    seen.clear()
    rr.smoothgrad(net, x, torch.tensor([0, 0]), samples=8)
    noise = seen[0].view(8, 2, 3, 32, 32) - x
    assert noise.std().item() == pytest.approx(1.0, rel=0.02)
    assert noise.mean().abs() < 0.02
    assert not torch.equal(noise[0, 0], noise[0, 1]) and not torch.equal(noise[0, 0], noise[1, 0])
    seen.clear()
    rr.smoothgrad(net, x.flip(0), torch.tensor([0, 0]), samples=8)
    other = seen[0].view(8, 2, 3, 32, 32) - x.flip(0)
    assert torch.allclose(other.flip(1), noise, atol=1e-6)
    keys = torch.tensor([5, 5])
    seen.clear()
    rr.smoothgrad(net, x, torch.tensor([0, 0]), samples=2, keys=keys)
    same = seen[0].view(2, 2, 3, 32, 32) - x
    assert torch.allclose(same[:, 0], same[:, 1], atol=1e-6)


def test_the_noise_of_an_image_is_the_same_in_every_precision_s_own_way():
    """A key is of the bytes, whatever number they are of."""
    x = images(2, dtype=torch.float32)
    keys = content_keys(x)
    assert torch.equal(keys, content_keys(x.clone())) and keys[0] != keys[1]
    half = content_keys(x.bfloat16())
    assert half.shape == (2,) and not torch.equal(half, keys)


@pytest.mark.parametrize("name", ["smoothgrad", "integrated_gradients"])
def test_points_in_chunks_give_the_same_map_and_gradient_in_bounded_memory(
    tiny_net, name, monkeypatch
):
    """Several chunks keep no graph: what is saved for the backward does not grow with samples."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    weights = torch.rand(6, 16, 16, dtype=x.dtype, generator=torch.Generator().manual_seed(3))

    class Saved:
        """A tensor that some graph keeps; the set knows which are alive."""

        def __init__(self, value):
            self.value = value.detach()  # an output that keeps itself would never be freed
            alive.add(self)

    alive = weakref.WeakSet()

    def look(samples):
        net.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.value):
            maps = EXPLAINERS[name](net, x, y, samples=samples)
            held = sum(saved.value.nbytes for saved in alive)
            (maps * weights).sum().backward()
        return maps.detach(), [p.grad.clone() for p in net.parameters() if p.ndim > 1], held

    at_once, gradients, whole = look(8)
    monkeypatch.setattr(slopes, "PIXELS", 5 * 16 * 16)  # five images at a time
    in_chunks, again, few = look(8)
    assert torch.allclose(at_once, in_chunks, rtol=1e-10, atol=1e-14)
    for a, b in zip(gradients, again, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-14)
    assert few < whole / 20
    assert look(16)[2] == few


def test_integrated_gradients_add_up_to_the_score():
    """Completeness: the signed map sums to the score minus that of the mean image."""
    net, x, y = like("gelu"), images(4), torch.arange(4)
    with torch.no_grad():
        maps = rr.integrated_gradients(net, x, y, signed=True)
        score = net(x).logits - net(torch.zeros_like(x)).logits
    assert torch.allclose(maps.sum((1, 2)), score.gather(1, y[:, None])[:, 0], rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in EXPLAINERS if name != "gradcam"])
def test_a_pass_without_the_tap_is_answered_with_what_to_type(tiny_net, name):
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    with pytest.raises(rr.UserError, match=r"call net\(x, taps=\('\(input\)',\)\)"):
        EXPLAINERS[name](net, net(x), y)


@pytest.mark.parametrize("name", EXPLAINERS)
def test_a_net_without_classes_is_answered_with_what_to_type(tiny_net, name):
    with pytest.raises(rr.UserError, match=r"no classes yet; call net.grow\(classes\)"):
        EXPLAINERS[name](tiny_net, images(dtype=torch.float32), torch.arange(6) % 5)


@pytest.mark.parametrize("frozen", ["all", "conv1"])
@pytest.mark.parametrize("name", EXPLAINERS)
def test_weights_that_do_not_train_can_be_explained(tiny_net, name, frozen):
    """A net that is only looked at: the graph starts at the images."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    expected = explain(name, net, x, y).detach()
    for path, p in net.named_parameters():
        p.requires_grad_(frozen != "all" and "fc" in path)
    assert torch.allclose(explain(name, net, x, y), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("trains", ["fc", "nothing"])
def test_a_pass_behind_weights_that_do_not_train_can_be_explained(tiny_net, trains):
    """As in a stage that trains the head alone."""
    net, x, y = trained(tiny_net), images(), torch.arange(6) % 5
    expected = rr.gradcam(net, x, y, target="stages.0").detach()
    for path, p in net.named_parameters():
        p.requires_grad_(trains in path)
    out = net(x, taps=("stages.0",))
    assert torch.allclose(rr.gradcam(net, out, y, target="stages.0"), expected, rtol=1e-9)
    assert not x.requires_grad


def test_a_trained_classifier_is_explained_with_its_own_head():
    torch.manual_seed(0)
    linear = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    )
    pointwise = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip
    x, y = images(2, dtype=torch.float32), torch.tensor([3, 1])
    for module, head in ((linear, None), (pointwise, "2")):
        net = rr.net(module, head=head, size=16, keep_head=True)
        assert net.classes == 4 and torch.equal(net(x).logits, module(x))
        layer = LayerGradCam(module, module[1]).attribute(x, y, relu_attributions=True)
        assert torch.allclose(rr.gradcam(net, x, y, target="1"), layer[:, 0], atol=1e-6)
        assert rr.net(module, head=head, size=16).classes == 0
    with pytest.raises(rr.UserError, match="starts without classes, so leave out keep_head"):
        net.grow(2)
    with pytest.raises(rr.UserError, match="keep_head= goes with a module of your own"):
        rr.net("resnet8", keep_head=True)


class Cuts(nn.Module):
    """A net with a part that has no derivative."""

    def __init__(self, how):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.late = nn.Conv2d(4, 4, 3)
        self.fc = nn.Linear(4, 2)
        self.how = how

    def forward(self, x):
        return self.fc(self.late(self.how(self.conv(x))).mean((2, 3)))


def test_a_part_without_a_derivative_is_named():
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    net = rr.net(Cuts(lambda h: h.detach()), size=8, target="conv")
    net.grow(2)
    with pytest.raises(rr.UserError, match="with respect to layer 'conv'"):
        rr.gradcam(net, x, y, target="paper")
    with pytest.raises(rr.UserError, match="with respect to the images"):
        rr.backprop(net, x, y)
    assert rr.gradcam(net, x, y, target="late", signed=True).abs().max() > 0


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
