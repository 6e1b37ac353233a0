"""Nets: the head grows and keeps its rows, taps are in the graph, any module can be wrapped."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rightreasons as rr
from rightreasons import nets
from rightreasons.nets import NETS


@pytest.mark.parametrize("name, cells", [*((n, 8) for n in NETS[:3]), ("resnet18-cifar", 4)])
def test_named_nets_give_logits_embedding_and_maps(name, cells):
    net = rr.net(name)
    net.grow(7)
    out = net(torch.randn(2, 3, 32, 32), taps=("last_block", "paper"))
    assert out.logits.shape == (2, 7)
    assert out.maps["last_block"].shape[2:] == (cells, cells)
    assert out.maps["paper"].shape[2:] == (cells, cells)
    assert torch.allclose(out.z, out.maps["last_block"].mean((2, 3)), atol=1e-5)
    assert (out.maps["last_block"] >= 0).all()  # after the ReLU
    assert (out.maps["paper"] < 0).any()  # before it
    assert out.maps["last_block"].requires_grad


def test_resnet18_has_the_size_of_the_cifar_variant():
    """11.17 million weights without the head, as published for the 3x3 stem."""
    body = sum(p.numel() for n, p in rr.net("resnet18-cifar").named_parameters() if "fc" not in n)
    assert body == 11_168_832


def test_the_head_keeps_its_rows_when_it_grows():
    net = rr.net("resnet8")
    net.grow(3, torch.Generator().manual_seed(0))
    weight, bias = net.head.weight.clone(), net.head.bias.clone()
    net.grow(5, torch.Generator().manual_seed(1))
    assert net.classes == 5 and net.head.weight.shape == (5, 64)
    assert torch.equal(net.head.weight[:3], weight) and torch.equal(net.head.bias[:3], bias)
    assert net.head.weight[3:].abs().max() <= 64**-0.5 and net.head.weight[3:].std() > 0
    with pytest.raises(rr.UserError, match="cannot shrink"):
        net.grow(4)


class Own(nn.Module):
    """A user's classifier, with an in-place ReLU right after the last convolution."""

    def __init__(self, pooled=True, flatten=False):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.ReLU(inplace=True),
        )
        self.flatten = flatten
        self.classifier = nn.Linear(12 * (64 if flatten else 1), 10)

    def forward(self, x):
        h = self.features(x)
        return self.classifier(h.flatten(1) if self.flatten else h.mean((2, 3)))


def test_an_own_module_is_wrapped_by_watching_it():
    module = Own()
    before = copy.deepcopy(module.features.state_dict())
    net = rr.net(module)
    assert net.head_name == "classifier" and net.pooled_linear
    assert net.path("last_block") == "features"
    assert net.classes == 0
    assert all(torch.equal(v, before[k]) for k, v in net.module.features.state_dict().items())
    flat = rr.net(Own(flatten=True))
    assert not flat.pooled_linear
    assert rr.net(Own(), target="features.2").path("paper") == "features.2"


def test_gradcam_on_an_own_module_before_an_in_place_relu():
    """The ReLU is made out-of-place: the tap keeps its negative values."""
    net = rr.net(Own(), target="features.2")
    net.grow(4)
    x = torch.randn(3, 3, 32, 32)
    out = net(x, taps=("paper",))
    assert (out.maps["paper"] < 0).any()
    assert rr.gradcam(net, x, torch.tensor([0, 1, 2]), target="paper").shape == (3, 8, 8)


def test_evidence_refuses_a_net_without_pooling(tiny_stream):
    flat = Own(flatten=True)
    flat.classifier = nn.Linear(12 * 16, 10)  # of images of 16 px
    with pytest.raises(rr.UserError, match="global average pooling"):
        rr.fit(rr.ER() + rr.Evidence(), rr.net(flat, size=16), tiny_stream, progress=False)


def test_images_of_a_size_that_the_net_does_not_take_are_refused(tiny_stream):
    words = r"Own refuses images of 16x16 \(mat1 and mat2 .*\); choose another size or another net"
    with pytest.raises(rr.UserError, match=words):
        rr.fit(rr.ER(), rr.net(Own(flatten=True)), tiny_stream, progress=False)


class Overwrites(Own):
    def forward(self, x):
        h = self.features[2](self.features[1](self.features[0](x)))
        return self.classifier(F.relu_(h).mean((2, 3)))


def test_writing_into_a_tap_is_an_error():
    net = rr.net(Overwrites())
    net.grow(2)
    with pytest.raises(rr.UserError, match="in place"):
        net(torch.randn(2, 3, 32, 32), taps=("features.2",))


def test_bad_names_are_answered_with_the_nearest():
    with pytest.raises(rr.UserError, match="did you mean 'resnet8'"):
        rr.net("resnet9")
    with pytest.raises(rr.UserError, match="did you mean 'features.2'"):
        rr.net(Own(), target="feature.2")
    with pytest.raises(rr.UserError, match="did you mean 'classifier'"):
        rr.net(Own(), head="clasifier")
    with pytest.raises(rr.UserError, match="expected maps"):
        net = rr.net(Own())
        net.grow(1)
        net(torch.randn(1, 3, 32, 32), taps=("classifier",))
    with pytest.raises(rr.UserError, match="pass size=") as caught:
        rr.net(Own(flatten=True), size=20)
    assert "\n" not in str(caught.value)
    with pytest.raises(rr.UserError, match=r"layer 'classifier' gives \(1, 1\), expected maps"):
        rr.net(Own(), target="classifier")


class Returns(Own):
    """Something else than logits."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def forward(self, x):
        return self.what(super().forward(x))


@pytest.mark.parametrize(
    "what, seen",
    [
        (lambda logits: (logits, logits), "a tuple"),
        (lambda logits: {"logits": logits}, "a dict"),
        (lambda logits: None, "a NoneType"),
        (lambda logits: logits[:, :, None, None], r"\(2, 10, 1, 1\)"),
    ],
)
def test_a_net_that_returns_no_logits_is_refused(what, seen):
    words = rf"Returns returns {seen}, expected logits of shape \(B,C\); wrap it"
    with pytest.raises(rr.UserError, match=words):
        rr.net(Returns(what), head="classifier")


def test_a_net_that_asserts_the_size_of_its_images_is_asked_for_it():
    class Asserts(Own):
        def forward(self, x):
            assert x.shape[-1] == 48, "48 px"
            return super().forward(x)

    with pytest.raises(rr.UserError, match=r"refuses a .* \(48 px\); pass size="):
        rr.net(Asserts())
    assert rr.net(Asserts(), size=48).pooled_linear


def test_batch_statistics_are_the_batch_s_and_move_nothing():
    """By hand: the first BatchNorm's output has mean 0 and deviation 1 a channel, whatever the
    running statistics are, and these stay."""
    net = rr.net("resnet8").train()
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with net.batch_statistics():
        seen = net(x, taps=("bn1",)).maps["bn1"]
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.var((0, 2, 3), correction=0), torch.ones(16), atol=1e-3, rtol=0)
    assert all(torch.equal(buffer, before[name]) for name, buffer in net.named_buffers())
    net(x)
    assert not torch.equal(net.module.bn1.running_mean, before["module.bn1.running_mean"])


def test_frozen_statistics_come_back_even_after_an_error():
    net = rr.net("resnet8")
    net.train()
    with pytest.raises(ZeroDivisionError), net.frozen_statistics():
        assert not net.module.bn1.training
        raise ZeroDivisionError
    assert net.module.bn1.training


class Random(nn.Module):
    """As stochastic depth: drops rows at random while it trains."""

    def forward(self, x):
        return x * (torch.rand(len(x), 1, 1, 1) < 0.5) if self.training else x


class Block(nn.Module):
    """A block that holds a layer and calls dropout itself."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.dropout(self.norm(x), 0.5, self.training)


@pytest.mark.parametrize("part", [Random, Block])
@pytest.mark.parametrize("norm", ["frozen", "batch"])
def test_nothing_is_at_random_in_a_forward_for_explanations(norm, part):
    net = rr.net(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), part(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(4, 2),
        ),
        size=8,
    )  # fmt: skip
    net.grow(2)
    net.train()
    x = torch.randn(16, 3, 8, 8)
    with net.statistics(norm):
        assert torch.equal(net(x).logits, net(x).logits)
    assert not torch.equal(net(x).logits, net(x).logits)
    assert all(part.training for part in net.modules())


def test_an_in_place_relu_does_not_hide_the_last_layer():
    """The convolution's output, overwritten by the ReLU, must not pass for the pooled map."""
    module = nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 4),
    )  # fmt: skip
    net = rr.net(module)
    assert net.pooled_linear and net.path("last_block") == "1"
    assert module[4].out_features == 4, "the caller's module stays whole"
    net.grow(3)
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(rr.evidence(net, x).mean((2, 3)), net(x).logits, atol=1e-5)
    y = torch.tensor([0, 2])
    assert torch.allclose(rr.gradcam(net, x, y), rr.gradcam(net, x, y, closed=False), atol=1e-6)


@pytest.mark.parametrize("between", [nn.BatchNorm1d(12), nn.Linear(12, 12)])
def test_a_layer_between_pooling_and_head_is_seen_while_it_is_the_identity(between):
    """A fresh BatchNorm changes nothing yet: the closed form would leave it out for good."""
    if isinstance(between, nn.Linear):
        nn.init.eye_(between.weight)
        nn.init.zeros_(between.bias)

    class Between(Own):
        def __init__(self):
            super().__init__()
            self.between = between

        def forward(self, x):
            return self.classifier(self.between(self.features(x).mean((2, 3))))

    net = rr.net(Between(), head="classifier")
    assert not net.pooled_linear and net.path("last_block") == "features"
    net.grow(3)
    with torch.no_grad():
        for p in between.parameters():
            p.add_(torch.rand_like(p))
    x, y = torch.randn(2, 3, 32, 32), torch.tensor([0, 2])
    net.eval()
    assert torch.allclose(rr.gradcam(net, x, y), rr.gradcam(net, x, y, closed=False), atol=1e-6)


def test_evidence_needs_a_pooled_linear_head():
    net = rr.net(Own(flatten=True))
    net.grow(2)
    with pytest.raises(rr.UserError, match="global average pooling"):
        rr.evidence(net, torch.randn(1, 3, 32, 32))


def test_itamls_net_has_its_size_map_pooling_and_head():
    net = rr.net("rps-small")
    net.grow(100)
    assert sum(p.numel() for p in net.parameters()) == pytest.approx(1.25e6, rel=0.01)
    assert net.head.bias is None and not net.pooled_linear
    with torch.no_grad():
        out = net.eval()(torch.randn(2, 3, 32, 32), taps=("last_block",))
    h = out.maps["last_block"]
    assert h.shape == (2, 170, 8, 8)
    for i in range(2):
        for k in range(0, 170, 17):  # the generalised mean, literally
            cells = [max(float(v), 1e-6) ** 3 for v in h[i, k].flatten()]
            expected = (sum(cells) / len(cells)) ** (1 / 3)
            assert float(out.z[i, k]) == pytest.approx(expected, rel=1e-4)


def test_what_a_net_of_another_package_draws_itself_is_the_same_in_every_process(monkeypatch):
    """A worker builds one net after the other: what it has drawn before must not show."""

    class Scaled(Own):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(12, 1, 1))

        def forward(self, x):
            return self.classifier((self.features(x) * self.scale).mean((2, 3)))

    monkeypatch.setattr(nets, "OTHER_NETS", {"scaled": Scaled})
    monkeypatch.setattr(nets, "find", lambda *_: Scaled)
    before = torch.random.get_rng_state()
    one, other = rr.net("scaled"), rr.net("scaled")
    assert torch.equal(one.module.scale, other.module.scale)
    assert torch.equal(torch.random.get_rng_state(), before)
