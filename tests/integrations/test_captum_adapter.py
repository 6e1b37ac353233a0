"""Captum's attributions through the adapter: the same maps and gradients as ours, or a refusal."""

from __future__ import annotations

import builtins
import sys

import captum.attr
import pytest
import torch

import rightreasons as rr
from likes import like, resnet_like
from rightreasons.explainers import EXPLAINERS, find_explainer
from rightreasons.finite import check_gradient
from rightreasons.integrations.captum import explainer, named

SAME = {  # ours, and theirs with words that make it the same
    "gradcam": ("LayerGradCam", {}),
    "backprop": ("Saliency", {}),
    "guided": ("GuidedBackprop", {}),
    "gradient_x_input": ("InputXGradient", {}),
    "integrated_gradients": ("IntegratedGradients", {"n_steps": 5}),
}
LOST = {
    "Deconvolution": "cannot be differentiated",
    "GuidedGradCam": "loses a part of its gradient",
    "FeatureAblation": "gives maps without a graph",
    "LayerActivation": "cannot explain",
}


def batch():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(3, 3, 16, 16, generator=draw, dtype=torch.float64)
    return x, torch.tensor([0, 2, 4])


def both(name, net, x, y, signed=False):
    theirs, words = SAME[name]
    given = {"target": "paper"} if name == "gradcam" else {}
    mine = {"samples": words["n_steps"]} if words else given
    adapted = explainer(getattr(captum.attr, theirs), words)
    return (
        EXPLAINERS[name](net, x, y, signed=signed, **mine),
        adapted(net, x, y, signed=signed, target="paper"),
    )


@pytest.mark.parametrize("kind", ["resnet", "alexnet", "squeezenet"])
@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("signed", [False, True])
def test_same_maps_and_same_gradients(kind, name, signed):
    net, (x, y) = like(kind), batch()
    ours, theirs = both(name, net, x, y, signed)
    assert ours.abs().max() > 0
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5 * ours.abs().max().item())
    mix = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1), dtype=ours.dtype)
    weights = [p for p in net.parameters() if p.ndim > 1]
    a, b = (
        torch.autograd.grad((mix * maps).sum(), weights, allow_unused=True)
        for maps in (ours, theirs)
    )
    assert a[-1].abs().max() > 0  # the head: the part that Captum loses by itself
    for mine, other in zip(a, b, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            assert torch.allclose(mine, other, rtol=1e-5, atol=1e-5 * mine.abs().max().item())


@pytest.mark.parametrize("theirs", [theirs for theirs, _ in SAME.values()])
def test_an_adapted_attribution_leaves_nothing_behind(theirs):
    net, (x, y) = like("resnet").train(), batch()
    modes = [part.training for part in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    with torch.no_grad():
        maps = named(theirs)(net, x, y)
    assert not maps.requires_grad and not x.requires_grad
    assert modes == [part.training for part in net.modules()]
    assert all(torch.equal(state[name], value) for name, value in net.state_dict().items())
    assert not any(part._forward_hooks or part._backward_hooks for part in net.modules())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("theirs", LOST)
def test_what_loses_its_graph_is_refused_by_name_before_training(theirs, tiny_stream):
    net = rr.net(resnet_like(), size=16, target="5.conv2")  # its ReLUs are modules
    with pytest.raises(rr.UserError) as caught:
        rr.fit(learner(theirs), net, tiny_stream, progress=False)
    assert f"captum:{theirs}" in str(caught.value) and LOST[theirs] in str(caught.value)


def learner(theirs):
    return rr.ER(memory=rr.Memory(12)) + rr.RRR(explain=f"captum:{theirs}", rows=4, weight=5.0)


def test_captums_own_gradient_is_found_out():
    """Without a graph of its gradient Captum's Grad-CAM trains, and trains something else."""
    net, (x, y) = like("resnet"), batch()

    def by_default(net, x, y):
        layer = net.module.get_submodule(net.path("paper"))
        return captum.attr.LayerGradCam(net.module, layer).attribute(x, y)[:, 0]

    with pytest.raises(rr.UserError, match="theirs loses a part of its gradient"):
        check_gradient("theirs", by_default, net, x, y)


def test_a_name_trains_in_a_run_and_is_loaded_again(tiny_net, tiny_stream, tiny_train, tmp_path):
    plain = rr.fit(
        rr.ER(memory=rr.Memory(12)), tiny_net, tiny_stream, train=tiny_train, progress=False
    )
    result = rr.fit(
        learner("LayerGradCam"), tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a",
        progress=False,
    )  # fmt: skip
    assert result.records[-1]["losses"]["rrr"] > 0
    assert not torch.equal(plain.net.head.weight, result.net.head.weight)
    model = rr.load(tmp_path / "a", net=tiny_net)
    assert model.learner.terms[0].explain == "captum:LayerGradCam"
    found = model.explain(tiny_stream[0].test.x[:2], ["captum:Saliency", "backprop"])
    assert found.maps["captum:Saliency"] == pytest.approx(found.maps["backprop"], abs=1e-5)


def test_bad_names(monkeypatch):
    with pytest.raises(rr.UserError, match="did you mean 'LayerGradCam'"):
        rr.RRR(explain="captum:LayerGradCAM")
    with pytest.raises(rr.UserError, match="pass a class such as captum.attr.LayerGradCam"):
        explainer("LayerGradCam")
    with pytest.raises(rr.UserError, match="captum:Occlusion cannot explain"):
        named("Occlusion")(like("resnet"), *batch())
    real = builtins.__import__

    def without(name, *args, **words):
        if name.startswith("captum"):
            raise ModuleNotFoundError("No module named 'captum'", name="captum")
        return real(name, *args, **words)

    for name in [n for n in sys.modules if n.partition(".")[0] == "captum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(rr.UserError, match=r"pip install 'rightreasons\[captum\]'"):
        find_explainer("captum:LayerGradCam")
