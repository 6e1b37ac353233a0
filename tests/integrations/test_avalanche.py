"""The plugins on strategies of Avalanche: the term is ours, and it moves the strategy's model."""

from __future__ import annotations

import copy
import random
from importlib import metadata

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import rightreasons as rr
from rightreasons.nets.borrow import borrow
from rightreasons.pointing import point
from rightreasons.types import Batch

pytestmark = pytest.mark.filterwarnings("ignore")  # Avalanche's own, aimed at its next version
try:
    metadata.version("avalanche-lib")
except metadata.PackageNotFoundError:
    pytest.skip("avalanche-lib is not installed", allow_module_level=True)

from rightreasons.integrations import avalanche as plugins  # noqa: E402

KINDS = ("Naive", "Replay", "EWC", "LwF", "ICaRL")
BUFFERED = ("Replay", "ICaRL")
TERMS = {
    "rrr": lambda **given: rr.RRR(rows=6, dtype="float32", **given),
    "evidence": lambda **given: rr.Evidence(rows=6, dtype="float32", **given),
}
ORDER = [3, 1, 0, 2, 5, 4]


@pytest.fixture(scope="module")
def benchmark():
    """Six classes in three experiences, out of order; the test images have masks."""
    from avalanche.benchmarks import nc_benchmark

    y = torch.arange(48) % 6
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(48, 3, 12, 12, generator=draw) + 0.3 * y[:, None, None, None]
    masks = torch.zeros(48, 12, 12, dtype=torch.bool)
    masks[:40, 3:9, 2:8] = True  # eight images lack theirs
    train, test = TensorDataset(x, y), TensorDataset(x, y, masks)
    train.targets = test.targets = y
    return nc_benchmark(train, test, n_experiences=3, task_labels=False, fixed_class_order=ORDER)


def features():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.Conv2d(8, 10, 3, 2, 1), nn.BatchNorm2d(10), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def strategy(name, *added, metrics=()):
    from avalanche import training
    from avalanche.training.plugins import EvaluationPlugin

    torch.manual_seed(1)
    body, head = features(), nn.Linear(10, 6)
    words = {"train_mb_size": 8, "train_epochs": 2, "eval_mb_size": 16, "plugins": list(added)}
    words["evaluator"] = EvaluationPlugin(*metrics)
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
    if name == "ICaRL":
        words |= {"memory_size": 12, "buffer_transform": None, "fixed_memory": True}
        made = training.ICaRL(feature_extractor=body, classifier=head, optimizer=optimiser, **words)
    else:
        words |= {"Replay": {"mem_size": 12}, "EWC": {"ewc_lambda": 1.0}}.get(name, {})
        words |= {"alpha": 1.0, "temperature": 2.0} if name == "LwF" else {}
        model, loss = nn.Sequential(body, head), nn.CrossEntropyLoss()
        made = getattr(training, name)(model=model, optimizer=optimiser, criterion=loss, **words)
    torch.manual_seed(5)  # batches and buffers are drawn by these
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    return made


def trained(name, benchmark, *added, experiences=3):
    made = strategy(name, *added)
    for experience in benchmark.train_stream[:experiences]:
        made.train(experience)
    return made


def weights(made):
    return {name: value.clone() for name, value in made.model.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def ours(model, order):
    """The strategy's model as a net of this library: its own copy, classes by appearance."""
    parts = list(model.children())  # body and head, as a pair or as iCaRL's model
    net = rr.net(nn.Sequential(copy.deepcopy(parts[0]), nn.Linear(10, 6)), size=12)
    net.grow(len(order))
    with torch.no_grad():
        net.head.weight.copy_(parts[1].weight[order])
        net.head.bias.copy_(parts[1].bias[order])
    return net


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("word", TERMS)
def test_the_gradient_is_there_and_equals_that_of_the_library(benchmark, name, word):
    plugin = plugins.TermPlugin(TERMS[word](), memory=12)
    made = trained(name, benchmark, plugin, experiences=2)
    body, head = list(made.model.children())[:2]
    with torch.no_grad():  # away from where the maps were stored
        for p in made.model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(p))))
    made.model.train()
    value = plugin.explain(torch.device("cpu"), step=7)
    theirs = torch.autograd.grad(value, [body[0].weight, body[3].weight, head.weight])

    net = ours(made.model, plugin.order)
    rows = plugin._feed(torch.device("cpu")).explained(6, (len(plugin.counts), "main", 0, 7), None)
    memory, term = plugin.memory, plugin.term
    batch = Batch(memory["x"][rows.row], memory["y"][rows.row], rows.task, rows.row)
    with net.train().frozen_statistics():
        out = net(batch.x, taps=term.taps)
    expected = term(net, out, batch, memory.take(rows.row))
    own = net.module[0]
    mine = torch.autograd.grad(expected, [own[0].weight, own[3].weight, net.head.weight])

    assert plugin.order == [1, 3, 0, 2]  # of an experience, by label
    assert value.item() == pytest.approx(expected.item(), rel=1e-6) and value > 0
    for a, b in zip((*theirs[:2], theirs[2][plugin.order]), mine, strict=True):
        assert b.abs().max() > 0
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7)
    assert theirs[2][[4, 5]].abs().max() == 0  # classes that are yet to come


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("word", TERMS)
def test_weight_zero_equals_no_plugin_and_another_weight_does_not(benchmark, name, word):
    plain = weights(trained(name, benchmark))
    nothing = plugins.TermPlugin(TERMS[word](weight=0.0), memory=12)
    assert same(plain, weights(trained(name, benchmark, nothing)))
    assert nothing.value > 0 and nothing.value.requires_grad and len(nothing.memory) == 12
    something = plugins.TermPlugin(TERMS[word](weight=1.0), memory=12)
    assert not same(plain, weights(trained(name, benchmark, something)))


@pytest.mark.parametrize("name", BUFFERED)
@pytest.mark.parametrize("word", TERMS)
def test_the_buffer_of_the_strategy_serves_and_old_maps_are_kept(benchmark, name, word):
    plugin = plugins.TermPlugin(TERMS[word](weight=0.0), memory="strategy")
    made = strategy(name, plugin)
    kept = {}
    for experience in benchmark.train_stream:
        made.train(experience)
        memory = plugin.memory
        assert 0 < len(memory) <= 12
        for row, key in enumerate(memory["key"].tolist()):
            now = memory.take(torch.tensor([row]))[f"{word}.map"]
            now = now if isinstance(now, torch.Tensor) else now.values
            assert torch.equal(kept.setdefault(key, now), now)
        with torch.no_grad():
            fresh = plugin.explain(torch.device("cpu"), 0)
        assert fresh >= 0
    assert len(kept) > len(plugin.memory)  # rows have come and gone
    assert same(weights(trained(name, benchmark)), weights(made))


@pytest.mark.parametrize("name", KINDS)
def test_the_loss_is_zero_right_after_storing(benchmark, name):
    plugin = plugins.RRRPlugin(TERMS["rrr"](), memory=12)
    made = trained(name, benchmark, plugin, experiences=1)
    made.model.train()
    level = plugin.memory["rrr.map"].abs().sum((1, 2)).mean()
    assert level > 0 and plugin.explain(torch.device("cpu"), 0) < 1e-5 * level


def test_a_balanced_term_joins_a_strategy(benchmark):
    """Its weight is a ratio of gradients there too; weight 0 trains as the strategy alone."""
    plain = weights(trained("Naive", benchmark))
    for weight, equal in ((0.0, True), (0.5, False)):
        plugin = plugins.RRRPlugin(TERMS["rrr"](weight=weight, balance=True), memory=12)
        assert same(plain, weights(trained("Naive", benchmark, plugin))) == equal


def test_refresh_and_repeated_classes(benchmark):
    """Old rows are explained anew if asked; an experience without new classes adds no rows."""
    plugin = plugins.RRRPlugin(TERMS["rrr"](refresh="each_task"), memory=12)
    made = trained("Naive", benchmark, plugin, experiences=2)
    before = len(plugin.memory)
    made.train(benchmark.train_stream[0])
    assert len(plugin.memory) == before and plugin.order == [1, 3, 0, 2]


def test_the_pointing_game_counts_hits_over_images_with_a_mask(benchmark):
    metrics = plugins.pointing_metrics()
    made = strategy("Naive", metrics=metrics)
    made.train(benchmark.train_stream[0])
    found = made.eval(benchmark.test_stream)
    assert sum("PointingGame_Experience" in name for name in found) == 3
    (stream,) = (v for name, v in found.items() if "PointingGame_Stream" in name)
    x, y, masks, _ = next(iter(torch.utils.data.DataLoader(benchmark.test_stream[0].dataset, 64)))
    (own,) = (v for k, v in found.items() if "Experience" in k and "Exp000" in k)
    model = made.model.eval()
    net = borrow(model, x[:2], None, None).eval()
    maps = rr.gradcam(net, x, model(x).argmax(1), target="paper")
    masked = masks.flatten(1).any(1)
    assert 0 < masked.sum() < len(masks)
    assert own == pytest.approx(point(maps, masks).hit[masked].float().mean().item())
    assert 0 <= stream <= 1 and not made.model.training


def growing(channels, *columns, **how):
    """Avalanche's own growing classifier on four classes in two experiences."""
    from avalanche.benchmarks import nc_benchmark
    from avalanche.models import IncrementalClassifier
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin

    y = torch.arange(24) % 4
    x = torch.randn(24, channels, 10, 10, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(x, y, *columns)
    data.targets = y
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(channels, 6, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        IncrementalClassifier(6, initial_out_features=1),
    )  # fmt: skip
    made = Naive(
        model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1),
        criterion=nn.CrossEntropyLoss(), train_mb_size=6,
        **{"evaluator": EvaluationPlugin()} | how,
    )  # fmt: skip
    return made, nc_benchmark(data, data, 2, False, fixed_class_order=[0, 1, 2, 3])


def test_a_growing_head_and_a_one_channel_image():
    """The plugin follows its rows."""
    plugin = plugins.EvidencePlugin(memory=8)
    made, split = growing(1, plugins=[plugin])
    for experience in split.train_stream:
        made.train(experience)
    assert plugin.value > 0
    assert plugin.memory["x"].shape == (8, 1, 10, 10)
    assert plugin.memory["evidence.map"].lengths.tolist() == [2] * 4 + [4] * 4


def test_the_pointing_game_follows_a_head_that_grows():
    from avalanche.training.plugins import EvaluationPlugin

    metrics = EvaluationPlugin(*plugins.pointing_metrics(experience=False))
    made, split = growing(3, torch.ones(24, 10, 10, dtype=torch.bool), evaluator=metrics)
    for k, experience in enumerate(split.train_stream):
        made.train(experience)
        (hits,) = made.eval(split.test_stream[: k + 1]).values()
        assert hits == 1.0  # the object is everywhere
    assert made.model[-1].classifier.out_features == 4


# --- bad input -----------------------------------------------------------------------------------


def refused(call, *words):
    with pytest.raises(rr.UserError) as caught:
        call()
    sentence = str(caught.value)
    assert all(word in sentence for word in words) and "\n" not in sentence, sentence


def test_a_strategy_without_a_buffer(benchmark):
    plugin = plugins.RRRPlugin(memory="strategy")
    refused(
        lambda: trained("Naive", benchmark, plugin),
        "Naive has no buffer of images; pass memory=200",
    )


def test_a_layer_that_is_not_there(benchmark):
    for given, said in (
        ({"target": "0.7.conv"}, "unknown layer '0.7.conv'"),
        ({"head": "fc"}, "unknown head 'fc'"),
    ):
        plugin = plugins.RRRPlugin(**given)
        refused(lambda plugin=plugin: trained("Naive", benchmark, plugin), said)


def test_a_model_that_cannot_be_explained(benchmark):
    from avalanche.models import MultiTaskModule

    made = strategy("Naive", plugins.EvidencePlugin())
    made.model = nn.Sequential(nn.Flatten(), nn.Linear(432, 6))
    refused(lambda: made.train(benchmark.train_stream[0]), "Grad-CAM needs a convolutional net")
    made.model = type("Heads", (MultiTaskModule,), {"forward": None})()
    plugin = next(p for p in made.plugins if isinstance(p, plugins.TermPlugin))
    made.mbatch = [torch.zeros(2, 3, 12, 12)]
    refused(lambda: plugin._open(made), "Heads has a head a task", "single head")


def test_views_and_words_that_do_not_go_together():
    shared = rr.RRR(profile="recommended", view="shared")
    refused(lambda: plugins.RRRPlugin(shared), "rrr.view is shared")
    for term in (rr.RRR(profile="recommended"), rr.Evidence()):  # left open
        assert plugins.TermPlugin(term).term.view == "canonical"
    refused(lambda: plugins.RRRPlugin(rr.RRR(profile="released")), "rrr.view is ignore")
    refused(lambda: plugins.RRRPlugin(rr.RRR(schedule="alternate")), "makes steps of its own")
    refused(lambda: plugins.RRRPlugin(memory="own"), "expected a number of rows or 'strategy'")


def test_test_data_without_masks(benchmark):
    made = strategy("Naive", metrics=plugins.pointing_metrics())
    made.train(benchmark.train_stream[0])
    refused(lambda: made.eval(benchmark.train_stream), "needs masks", "(x, y, mask)")


def test_avalanche_missing_or_of_another_version(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    refused(plugins._avalanche, "not installed", "pip install 'rightreasons[avalanche]'")
    monkeypatch.setattr(metadata, "version", lambda name: "1.0.0")
    refused(plugins._avalanche, "avalanche-lib is 1.0.0", "written for 0.6")
