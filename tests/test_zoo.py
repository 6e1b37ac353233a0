"""torchvision's nets: the paper's layers and map sizes, weights from files, any other by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

import rightreasons as rr
from rightreasons.nets.base import Pointwise
from rightreasons.nets.zoo import torchvision_model
from rightreasons.terms.base import DTYPES

PAPER = {  # the paper's table of target layers
    "resnet18": ("layer4.1.conv2", 7, 25_088),
    "alexnet": ("features.10", 13, 9_216),
    "squeezenet1_1": ("features.12.expand3x3", 13, 86_528),
}
WEIGHTS = Path(__file__).parents[2] / "shared" / "weights"


@pytest.mark.parametrize("name", PAPER)
def test_target_layers_and_map_sizes_are_those_of_the_paper(name):
    layer, side, flat = PAPER[name]
    net = rr.net(name)
    kept = rr.storage(net, 224)
    assert kept.layer == layer and kept.size == (side, side)
    cells = side * side
    assert kept.bytes == {"float16": 2 * cells + 4, "float32": 4 * cells + 4, "uint8": cells + 4}
    pixels = rr.storage(net, 224, explain="backprop")
    assert pixels.layer is None and pixels.size == (224, 224)
    assert pixels.share("uint8") == pytest.approx(1 / 3, abs=1e-4)  # M/3
    assert pixels.share("float32") == pytest.approx(4 / 3, abs=1e-4)
    assert rr.net(name, flatten=224).head.in_features == flat
    assert net.classes == 0, "the net is as before"


def test_storage_is_what_the_memory_counts(tiny_net, tiny_train):
    stream = rr.stream("glyphs", tasks=1, classes=2, train=4, test=2, size=16)
    for explain in ("gradcam", "backprop"):
        for dtype in DTYPES:
            joined = rr.ER(memory=rr.Memory(6)) + rr.RRR(explain=explain, dtype=dtype, rows=2)
            result = rr.fit(joined, tiny_net, stream, train=tiny_train, progress=False)
            bytes_ = result.learner.memory.nbytes()
            one = rr.storage(tiny_net, 16, explain=explain).bytes[dtype]
            assert bytes_["rrr.map"] + bytes_["rrr.scale"] == 6 * one


def test_storage_of_a_layer_s_map_is_that_of_the_layer():
    pytest.importorskip("captum")
    net = rr.net("resnet18-cifar")
    ours, theirs = (rr.storage(net, 32, explain=e) for e in ("gradcam", "captum:LayerGradCam"))
    assert theirs == ours and theirs.bytes["float32"] == 68
    assert rr.storage(net, 32, explain="captum:Saliency").size == (32, 32)


def test_weights_of_the_trunk_alone_leave_the_rest_to_the_seed(tmp_path):
    """Of a net that is torchvision's and has no plan of ours."""
    trunk = {n: v for n, v in torchvision_model("vgg11").state_dict().items() if "features" in n}
    torch.save(trunk, tmp_path / "vgg.pth")
    built = [rr.net("vgg11", weights=str(tmp_path / "vgg.pth")) for _ in "ab"]
    for seed, net in enumerate(built):
        net.initialise(net, torch.Generator().manual_seed(seed))
    one, other = (net.module for net in built)
    assert torch.equal(one.features[0].weight, trunk["features.0.weight"])
    assert torch.equal(other.features[0].weight, trunk["features.0.weight"])
    assert not torch.equal(one.classifier[0].weight, other.classifier[0].weight)


def test_squeezenet_ends_as_torchvision_has_it():
    """Convolution, ReLU, pooling: the growing head is the same 1x1 convolution."""
    torch.manual_seed(0)
    theirs = torchvision_model("squeezenet1_1").eval()
    net = rr.net("squeezenet1_1").eval()
    trunk = {n: v for n, v in theirs.state_dict().items() if not n.startswith("classifier")}
    net.module.load_state_dict(trunk, strict=False)
    net.grow(1000)
    head = theirs.classifier[1]
    assert isinstance(net.head, Pointwise)
    net.head.weight.data, net.head.bias.data = head.weight[:, :, 0, 0].clone(), head.bias.clone()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        out = net(x, taps=("last_block",))
        assert torch.allclose(out.logits, theirs(x), atol=1e-5)
    assert out.z.shape == (2, 512)
    assert torch.allclose(out.z, out.maps["last_block"].mean((2, 3)), atol=1e-5)
    assert not net.pooled_linear
    with pytest.raises(rr.UserError, match="global average pooling"):
        rr.evidence(net, x)


@pytest.mark.parametrize(
    "name, layer, pooled",
    [
        ("shufflenet_v2_x0_5", "conv5", True),
        ("mobilenet_v3_small", "features", False),
        ("densenet121", "features.denseblock4", False),  # what follows is overwritten in place
        ("mnasnet0_5", "layers", True),
        ("resnet34", "layer4", True),
        ("squeezenet1_0", "features", False),
        ("mobilenet_v2", "features", True),
    ],
)
def test_any_torchvision_classifier_by_its_name(name, layer, pooled):
    net = rr.net(name)
    net.grow(3, torch.Generator().manual_seed(0))
    net.eval()
    x, y = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(0)), torch.tensor([1])
    assert net.path("last_block") == layer and net.pooled_linear == pooled
    closed, free = (rr.gradcam(net, x, y, signed=True, closed=c) for c in (None, False))
    assert torch.allclose(closed, free, atol=1e-5) and free.abs().max() > 0


def test_a_torchvision_net_is_drawn_by_the_seed_in_any_process():
    a, b = (rr.net("mobilenet_v3_small") for _ in range(2))
    state = b.state_dict()
    assert all(torch.equal(v, state[k]) for k, v in a.state_dict().items())


@pytest.mark.parametrize("name", PAPER)
def test_no_relu_works_in_place(name):
    assert not any(getattr(part, "inplace", False) for part in rr.net(name).modules())


def test_the_flattened_head_trains_and_is_refused_elsewhere(tiny_train, tmp_path):
    stream = rr.stream("glyphs", tasks=2, classes=4, train=4, test=2, size=64)
    net = rr.net("squeezenet1_1", flatten=64)
    assert net.head_name == "head" and not net.pooled_linear
    learner = rr.ER(memory=rr.Memory(4)) + rr.RRR(rows=2)
    rr.fit(learner, net, stream, train=tiny_train, run=tmp_path / "run", progress=False)
    model = rr.load(tmp_path / "run")
    assert model.net.head.in_features == net.head.in_features
    assert len(model.predict(stream[0].test.x[:2]).names) == 2
    for call, words in (
        (lambda: rr.net("resnet50", flatten=64), "resnet50 is none of them"),
        (lambda: rr.net("resnet8", flatten=32), "resnet8 is none of them"),
        (lambda: rr.net("alexnet", flatten=8), "refuses images of 8 px"),
        (lambda: rr.net("resnet18", head="fc"), "its own head"),
        (lambda: rr.net(nn.Linear(3, 2), weights="x.pth"), "go with a net by name"),
    ):
        with pytest.raises(rr.UserError, match=words):
            call()


# --- weights from files --------------------------------------------------------------------------


def saved(tmp_path, state, name="weights.pth"):
    torch.save(state, tmp_path / name)
    return tmp_path / name


def test_a_whole_file_and_a_trunk_alone_are_loaded(tmp_path):
    theirs = torchvision_model("squeezenet1_1")
    state = {n: torch.randn_like(v) for n, v in theirs.state_dict().items()}
    trunk = {n.removeprefix("features."): v for n, v in state.items() if "features" in n}
    for given in (state, trunk):
        net = rr.net("squeezenet1_1", weights=saved(tmp_path, given))
        mine = net.module.state_dict()
        assert all(torch.equal(mine[n], v) for n, v in state.items() if "features" in n)
        assert net.initialise is None, "fit must not draw over them"
    other = torchvision_model("shufflenet_v2_x0_5").state_dict()
    other["conv1.0.weight"] += 1
    net = rr.net("shufflenet_v2_x0_5", weights=saved(tmp_path, other))
    assert torch.equal(net.module.state_dict()["conv1.0.weight"], other["conv1.0.weight"])


class Harmful:
    def __reduce__(self):
        return os.mkdir, (str(Harmful.place),)


def test_bad_weight_files_are_refused_in_a_sentence_and_run_nothing(tmp_path):
    state = torchvision_model("squeezenet1_1").state_dict()
    wrong = state | {
        "features.0.weight": torch.zeros(2, 2),
        "features.3.squeeze.bias": torch.zeros(3),
    }
    file = saved(tmp_path, state, "cut.pth")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    Harmful.place = tmp_path / "was-here"
    harmful = saved(tmp_path, {"features.0.weight": Harmful()}, "harmful.pth")
    plain = tmp_path / "plain.pth"
    plain.write_bytes(pickle.dumps(Harmful()))
    (tmp_path / "text.pth").write_text("hello")
    few = {n: v for n, v in state.items() if "features.0" in n}
    cases = [
        (tmp_path / "none.pth", "there is no weights file"),
        (file, "not a file of plain tensors"),
        (harmful, "not a file of plain tensors"),
        (plain, "not a file of plain tensors"),
        (tmp_path / "text.pth", "not a file of plain tensors"),
        (saved(tmp_path, [1, 2], "list.pth"), "holds no state dict"),
        (saved(tmp_path, few, "few.pth"), "lacks 48 tensors"),
        (
            saved(tmp_path, {"layer1.0.weight": torch.zeros(1)}, "other.pth"),
            "which the net has not",
        ),
        (
            saved(tmp_path, wrong, "wrong.pth"),
            r"features.0.weight \(2, 2\) for \(64, 3, 3, 3\), features.3.squeeze.bias \(3,\)",
        ),
    ]
    for path, words in cases:
        with pytest.raises(rr.UserError, match=words) as caught:
            rr.net("squeezenet1_1", weights=path)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "was-here").exists()


def test_layers_that_a_file_leaves_out_are_drawn_by_the_seed_of_a_run(tmp_path):
    """AlexNet's file is of its convolutions: two linear layers stand between them and the head."""
    state = torchvision_model("alexnet").features.state_dict()
    net = rr.net("alexnet", weights=saved(tmp_path, state))
    drawn = []
    for seed in (1, 1, 2):
        assert net.initialise is not None
        net.initialise(net, torch.Generator().manual_seed(seed))
        mine = net.module.state_dict()
        assert all(torch.equal(mine[f"features.{name}"], value) for name, value in state.items())
        drawn.append([mine[f"classifier.{layer}.weight"].clone() for layer in (1, 4)])
    for layer in (0, 1):
        assert torch.equal(drawn[0][layer], drawn[1][layer])
        assert not torch.equal(drawn[0][layer], drawn[2][layer])
    assert rr.net("alexnet", weights=saved(tmp_path, state), flatten=64).initialise is None


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="no weights beside the checkout")
@pytest.mark.parametrize(
    "name, file",
    [("mobilenet-v2", "mobilenet_v2-b0353104.pth"), ("alexnet", "alexnet_features.pth")],
)
def test_the_published_weights_load(name, file):
    net = rr.net(name, weights=WEIGHTS / file)
    first = next(net.parameters())
    assert first.std() > 0 and not torch.equal(first, next(rr.net(name).parameters()))
