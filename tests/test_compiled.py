"""torch.compile: the same training, and nothing compiled anew when the head grows."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import rightreasons as rr
from rightreasons.errors import UserError
from rightreasons.nets.compiled import compile_parts, eager
from rightreasons.optimise import check_precision


class Tiny(nn.Module):
    """A part that can be compiled, then the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.last = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.last(self.body(x)).mean((2, 3)))
        return logits


def tiny() -> rr.Net:
    torch.manual_seed(0)
    return rr.net(Tiny(), target="last", head="fc")


def fitted(train: rr.Train) -> rr.Result:
    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4)
    learner = rr.ER(memory=rr.Memory(8)) + rr.Evidence(view="shared")
    return rr.fit(learner, tiny(), stream, train=train, progress=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_run_trains_as_an_eager_one_and_compiles_one_graph_for_all_tasks():
    from torch._dynamo.utils import counters

    how = {"epochs": 2, "batch": 12, "replay": 6, "optimiser": "sgd", "lr": 0.01}
    plain = fitted(rr.Train(**how))
    torch._dynamo.reset()
    counters.clear()
    compiled = fitted(rr.Train(**how, compile=True))
    for name, value in plain.net.state_dict().items():
        torch.testing.assert_close(compiled.net.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    # one for the first task's batches, one for those with replay: the head, which grew, has none
    assert 1 <= counters["stats"]["unique_graphs"] <= 2


def test_what_holds_the_head_or_a_tap_is_left_as_it_is():
    net = tiny()
    assert compile_parts(net, ["last_block"]) == ["body"]
    assert net.module.body._compiled_call_impl is not None
    assert net.module.last._compiled_call_impl is None
    assert copy.deepcopy(net).module.body._compiled_call_impl is None  # a teacher is eager


def test_what_comes_after_a_layer_that_is_differentiated_twice_is_left_as_it_is():
    net = rr.net("resnet8")
    assert compile_parts(net, ["last_block"]) == ["stages.0", "stages.1", "stages.2.0"]
    assert compile_parts(net, ["last_block", "stages.0"], ["stages.0"]) == ["stages.0.0"]


def test_inside_eager_nothing_is_compiled():
    from torch._dynamo.utils import counters

    net = tiny()
    net.grow(2)
    compile_parts(net, ["last_block"])
    torch._dynamo.reset()
    counters.clear()
    with eager():
        net(torch.zeros(2, 3, 8, 8))
    assert counters["stats"]["unique_graphs"] == 0


def test_explainers_that_need_second_derivatives_are_refused():
    stream = rr.stream("glyphs", tasks=2, classes=4, train=4, test=2)
    learner = rr.ER(memory=rr.Memory(8)) + rr.RRR(explain="backprop")
    with pytest.raises(UserError, match=r"train.compile=true .*rrr.explain=gradcam"):
        rr.fit(learner, tiny(), stream, train=rr.Train(epochs=1, compile=True), progress=False)


def test_a_net_with_nothing_to_compile_is_refused():
    with pytest.raises(UserError, match="nothing to compile"):
        compile_parts(tiny(), ["last", "body"])


def test_bf16_is_refused_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rightreasons.optimise.has_bf16", lambda device: False)
    with pytest.raises(UserError, match="train.precision is bf16.*train.precision=float32"):
        fitted(rr.Train(epochs=1, precision="bf16"))


@pytest.mark.parametrize(
    ("limit", "refused"),
    [(None, True), ("DEFAULT", True), ("avx512_core_amx", True), ("AVX512_CORE_BF16", False)],
)
def test_bf16_is_refused_where_amx_would_end_the_process(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, refused: bool
):
    monkeypatch.setattr(
        "torch.cpu.get_capabilities", lambda: {"amx_tile": True, "avx512_bf16": True}
    )
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    device = torch.device("cpu")
    if refused:
        with pytest.raises(
            UserError, match="ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before the command"
        ):
            check_precision("bf16", device)
    else:
        check_precision("bf16", device)
    check_precision("float32", device)


def test_bf16_trains_and_gives_float32_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rightreasons.optimise.has_bf16", lambda device: True)
    how = {"epochs": 2, "batch": 12, "optimiser": "sgd", "lr": 0.05}
    exact, rounded = fitted(rr.Train(**how)), fitted(rr.Train(**how, precision="bf16"))
    weight, other = exact.net.head.weight, rounded.net.head.weight
    assert other.dtype == torch.float32
    assert not torch.equal(weight, other)  # the forward was another one
    torch.testing.assert_close(weight, other, rtol=0.1, atol=0.02)  # and almost the same


@pytest.mark.parametrize("view", ["canonical", "shared"])
def test_bf16_explains_at_a_layer_without_closed_form(monkeypatch: pytest.MonkeyPatch, view: str):
    """What is differentiated are the maps that the logits hang on, not their copies in float32."""
    monkeypatch.setattr("rightreasons.optimise.has_bf16", lambda device: True)
    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4)
    learner = rr.ER(memory=rr.Memory(8)) + rr.RRR(view=view, rows=4, bn="frozen")
    how = {"epochs": 1, "batch": 12, "optimiser": "sgd", "lr": 0.01}
    losses = {}
    for precision in ("float32", "bf16"):
        net = tiny()
        net.taps["paper"] = "last.0"
        train = rr.Train(**how, precision=precision)
        made = rr.fit(learner, net, stream, train=train, progress=False)
        losses[precision] = made.records[-1]["losses"]["rrr"]
    assert losses["bf16"] != losses["float32"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.3)
