"""TOPIC (Tao et al. 2020): the neural gas step by step, its losses, and what stays frozen."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from literal import cross_entropy, distance, mean
from torch import nn

import rightreasons as rr
from rightreasons.checkpoints import load_checkpoint
from rightreasons.feed import Look
from rightreasons.learners import gas as g
from rightreasons.loop import Loop
from rightreasons.nets import small
from rightreasons.nets.base import Net
from rightreasons.randomness import generator
from rightreasons.types import Stage

FEW = {"rate": (0.2, 0.05), "alpha": (2.0, 0.5), "age": 3, "passes": 3}


def gas_of(centroids, labels=None, edges=()):
    """A gas of these nodes; ``edges`` are (i, j, age)."""
    m = torch.tensor(centroids, dtype=torch.float64)
    gas = g.planted(g.empty(m), m, torch.tensor(labels or [0] * len(centroids)))
    for i, j, age in edges:
        gas["ages"][i, j] = gas["ages"][j, i] = age
    return gas


# --- literal transcriptions ----------------------------------------------------------------------


class Literal:
    """The neural gas in Python numbers: a list of nodes, and a dictionary of edges."""

    def __init__(self, nodes):
        self.nodes, self.ages = [list(node) for node in nodes], {}

    def see(self, f, eta, alpha, age, free=None):
        near = sorted(range(len(self.nodes)), key=lambda j: distance(f, self.nodes[j]))
        movers = [j for j in near if free is None or j in free]
        moved = {}
        for k, j in enumerate(movers):
            step = eta * math.exp(-k / alpha)
            moved[j] = [m + step * (x - m) for m, x in zip(self.nodes[j], f, strict=True)]
        for j, node in moved.items():
            self.nodes[j] = node
        first, second = near[:2]
        for edge in list(self.ages):
            if first in edge:
                self.ages[edge] += 1
        self.ages[frozenset((first, second))] = 0
        self.ages = {edge: a for edge, a in self.ages.items() if a <= age}


def min_max(f, y, nodes, labels, edges, margin):
    match = min(
        (j for j in range(len(nodes)) if labels[j] == y), key=lambda j: distance(f, nodes[j])
    )
    total = distance(f, nodes[match])
    for i in range(len(nodes)):
        if frozenset((i, match)) in edges and labels[i] != y:
            total += max(0.0, margin - distance(f, nodes[i]))
    return total


def edges_of(gas):
    return {
        frozenset((i, j)): int(gas["ages"][i, j])
        for i in range(len(gas["label"]))
        for j in range(i)
        if gas["ages"][i, j] >= 0
    }


# --- the vectors of the papers' formulas ---------------------------------------------------------


def test_one_image_moves_the_nodes_by_rank():
    """Nodes 0, 2, 5; f = 1.5; eta = .1, alpha = 1."""
    gas = gas_of([[0.0], [2.0], [5.0]], edges=[(0, 1, 7)])
    g.attract(gas, torch.tensor([1.5], dtype=torch.float64), 0.1, 1.0, age=200)
    expected = [0.055182, 1.95, 4.952633]
    assert gas["centroid"].flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert edges_of(gas) == {frozenset((0, 1)): 0}


def test_edges_of_the_nearest_node_age_and_go():
    edges = [(1, 2, 199), (1, 3, 200), (0, 3, 5), (2, 3, 200)]
    gas = gas_of([[0.0], [2.0], [5.0], [9.0]], edges=edges)
    g.attract(gas, torch.tensor([1.5], dtype=torch.float64), 0.1, 1.0, age=200)
    assert edges_of(gas) == {
        frozenset((1, 2)): 200,  # one older
        frozenset((0, 3)): 5,  # not of the nearest node
        frozenset((2, 3)): 200,
        frozenset((0, 1)): 0,  # new
    }  # the edge of 1 and 3 would be 201 and is gone
    assert torch.equal(gas["ages"], gas["ages"].T)


def test_the_anchor_loss_of_a_node():
    """f = (1,2), m = (0,0), var = (.5,2): 1/.5 + 4/2 = 4."""
    f, m, var = (torch.tensor([v]) for v in ([1.0, 2.0], [0.0, 0.0], [0.5, 2.0]))
    assert g.anchor_loss(f, m, var).tolist() == [4.0]


def test_the_min_max_loss_of_an_image():
    """Distances .4 to the node of its class, .3 and 1.2 to its neighbours; xi = 1: 1.1."""
    places = [[0.4], [-0.3], [1.2], [0.1]]  # the last one is no neighbour
    gas = gas_of(places, labels=[7, 1, 2, 3], edges=[(0, 1, 0), (0, 2, 5)])
    loss = g.minmax_loss(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([7]), gas, 1.0)
    assert loss.tolist() == pytest.approx([1.1])
    same = gas_of(places, labels=[7, 7, 2, 3], edges=[(0, 1, 0), (0, 2, 5)])
    loss = g.minmax_loss(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([7]), same, 1.0)
    assert loss.tolist() == pytest.approx([0.3])  # nearest of its class; no edge from there to 2


def test_the_min_max_loss_has_a_slope_at_a_node():
    f = torch.zeros(1, 2, requires_grad=True)
    gas = gas_of([[0.0, 0.0], [0.3, 0.0]], labels=[0, 1], edges=[(0, 1, 0)])
    g.minmax_loss(f, torch.tensor([0]), gas, 1.0).sum().backward()
    assert f.grad.tolist() == [[pytest.approx(1.0), 0.0]]  # away from the neighbour


# --- against the transcription -------------------------------------------------------------------


@pytest.mark.parametrize("fixed", [None, 3])
def test_many_images_as_the_literal_gas_sees_them(fixed):
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(40, 4, generator=draw, dtype=torch.float64)
    y = torch.randint(3, (40,), generator=draw)
    starts, labels = z[:9].tolist(), [0, 1, 2] * 3
    gas, rule = gas_of(starts, labels), g.Rule(**FEW)
    g.fit(gas, z, y, rule, torch.Generator().manual_seed(5), fixed)
    literal, order = Literal(starts), torch.Generator().manual_seed(5)
    done, total = 0, 3 * 40
    for _ in range(3):
        for image in torch.randperm(40, generator=order).tolist():
            eta = 0.2 * (0.05 / 0.2) ** (done / total)
            alpha = 2.0 * (0.5 / 2.0) ** (done / total)
            free = None
            if fixed is not None:
                free = [j for j in range(fixed, 9) if labels[j] == y[image]]
            literal.see(z[image].tolist(), eta, alpha, 3, free)
            done += 1
    flat = [value for node in literal.nodes for value in node]
    assert gas["centroid"].flatten().tolist() == pytest.approx(flat, rel=1e-9)
    assert edges_of(gas) == literal.ages
    assert len(literal.ages) > 3 and torch.equal(gas["ages"], gas["ages"].T)


def test_min_max_over_a_batch_as_the_literal_loss():
    draw = torch.Generator().manual_seed(8)
    z = torch.randn(30, 3, generator=draw, dtype=torch.float64)
    labels = torch.randint(4, (12,), generator=draw).tolist()
    gas = gas_of(torch.randn(12, 3, generator=draw).tolist(), labels)
    g.fit(gas, z, torch.zeros(30).long(), g.Rule(**FEW), draw)
    y = torch.tensor([labels[i % 12] for i in range(30)])
    expected = [
        min_max(f, label, gas["centroid"].tolist(), labels, edges_of(gas), 1.5)
        for f, label in zip(z.tolist(), y.tolist(), strict=True)
    ]
    assert g.minmax_loss(z, y, gas, 1.5).tolist() == pytest.approx(expected)
    assert g.widest(gas) == pytest.approx(
        max(distance(a, b) for a in gas["centroid"].tolist() for b in gas["centroid"].tolist())
    )


# --- nodes, anchors, memory ----------------------------------------------------------------------


def clusters(classes=5, each=20):
    """Well separated classes in the plane."""
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(classes).repeat_interleave(each)
    angle = 2 * math.pi * y / classes
    z = torch.stack([angle.cos(), angle.sin()], 1) * 10
    return (z + torch.randn(len(z), 2, generator=draw)).double(), y


def test_the_first_gas_has_its_share_of_nodes_in_each_class():
    z, y = clusters()
    draw = torch.Generator().manual_seed(2)
    start = torch.cat([torch.arange(3) + 20 * c for c in range(5)])
    gas = g.base(z, y, start, g.Rule((0.1, 0.01), (10.0, 0.1), 200, 4), draw)
    gas = g.settle(gas, z, y, task=0, first=0, floor=0.1)
    assert torch.bincount(gas["label"]).tolist() == [3] * 5
    assert gas["label"].tolist() == sorted(gas["label"].tolist())
    for j, (task, image) in enumerate(gas["image"].tolist()):
        assert task == 0 and y[image] == gas["label"][j]  # an anchor is of its node's class
        centre = z[y == gas["label"][j]].mean(0)
        assert distance(gas["centroid"][j].tolist(), centre.tolist()) < 4
    assert len({image for _, image in gas["image"].tolist()}) == 15  # each image once
    assert len(edges_of(gas)) > 5


def test_variance_and_anchor_of_a_node():
    z = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 1.0], [10.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0, 0, 1])
    gas = g.settle(gas_of([[1.0, 0.0], [10.0, 0.0]], [0, 1]), z, y, 3, 0, floor=0.01)
    spread = (1 + 1 + 9, 0 + 0 + 1)  # of class 0 about its node; class 1 sits on its own
    average = sum(spread) / 4 / 2
    assert gas["variance"][0].tolist() == pytest.approx([spread[0] / 3, spread[1] / 3])
    assert gas["variance"][1].tolist() == pytest.approx([0.01 * average] * 2)
    assert gas["image"].tolist() == [[3, 0], [3, 3]]  # images 0 and 1 are as near: the first


def test_growth_leaves_old_nodes_alone_unless_they_may_move():
    z, y = clusters()
    old = gas_of(z[:5].tolist(), [0] * 5, edges=[(0, 1, 2)])
    new = y >= 3
    start = torch.tensor([60, 61, 80])
    rule = g.Rule(**FEW)
    for free in (False, True):
        made = g.grown(old, z[new], y[new], start - 60, rule, generator(0, "learner"), free)
        assert made["label"].tolist() == [0] * 5 + [3, 3, 4]
        assert torch.equal(made["centroid"][:5], old["centroid"]) != free
        assert edges_of(old) == {frozenset((0, 1)): 2}  # the old gas is another object
    far = torch.cdist(made["centroid"][5:], z[80:].mean(0, keepdim=True)).flatten()
    assert far.argmin() == 2


@pytest.fixture
def wide_net():
    """Two blocks in the last stage, of which the second is the last block."""
    taps = {"last_block": "stages.1", "paper": "stages.1.1.conv2"}
    module = small.SmallResNet((4, 8), (2, 2), 2)
    return Net(module, "fc", taps, True, small.initialise, name="wide")


def few_shot(**options):
    return rr.TOPIC(memory=rr.Memory(per_class=(3, 1)), **options)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_what_is_frozen_stays_bit_by_bit(wide_net, tiny_stream, tiny_train, optimiser, tmp_path):
    train = replace(tiny_train, optimiser=optimiser, weight_decay=0.1, nesterov=True, noise=0.01)
    rr.fit(few_shot(), wide_net, tiny_stream, train=train, run=tmp_path, progress=False)
    before, after = (rr.load(tmp_path, wide_net, task=k).net.state_dict() for k in (1, 2))
    for name, value in before.items():
        trains = name.startswith("module.stages.1.1.") and "running" not in name
        trains &= "num_batches" not in name
        if name.startswith("module.fc."):
            assert torch.equal(value, after[name][:2]), name  # old rows of the head
        else:
            assert torch.equal(value, after[name]) != trains, name


def test_the_ablation_trains_everything(wide_net, tiny_stream, tiny_train, tmp_path):
    learner = few_shot(params="all")
    rr.fit(learner, wide_net, tiny_stream, train=tiny_train, run=tmp_path, progress=False)
    before, after = (rr.load(tmp_path, wide_net, task=k).net.state_dict() for k in (1, 2))
    for name in ("module.conv1.weight", "module.bn1.running_mean"):
        assert not torch.equal(before[name], after[name])
    assert not torch.equal(before["module.fc.weight"], after["module.fc.weight"][:2])


def test_rows_of_memory_are_the_nodes_anchors(tiny_net, tiny_stream, tiny_train):
    """Also when a memory of a given size shrinks, and takes nodes away."""
    for memory in (rr.Memory(per_class=(3, 1)), rr.Memory(12)):
        learner = rr.TOPIC(memory=memory)
        result = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
        memory, gas = result.learner.memory, result.learner.gas_
        kept = torch.stack([memory["task"], memory["index"]], 1)
        assert torch.equal(gas["image"], kept) and torch.equal(gas["label"], memory["y"])
        assert gas["ages"].shape == (len(memory),) * 2
        for i in range(len(memory)):
            images = tiny_stream[int(memory["task"][i])].train
            place = torch.tensor([int(memory["index"][i])])
            assert torch.equal(memory["x"][i], images.pixels(place)[0])


# --- the loss of a step --------------------------------------------------------------------------


def second_task(learner, net, stream, train):
    """A run at the first step of its second task: the loop, the stage and a batch."""
    from rightreasons.progress import Reporter

    loop = Loop(learner, net, stream, train, seed=0)
    loop.net.initialise(loop.net, torch.Generator().manual_seed(0))
    loop.learn(stream[0], Reporter("", 1, show=False))
    task = stream[1]
    loop.net.grow(task.seen, torch.Generator().manual_seed(1))
    loop.net.train()
    learner.begin(loop.net, task, learner.memory, Look(loop.feed, loop.net, task))
    (stage,) = learner.stages(task)
    batch = next(loop.feed.batches(task, stage, train.at(task, stage), 0))
    with torch.no_grad():
        for p in learner.trained(loop.net, stage):
            p += 0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(3))
    return loop, stage, batch


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("margin", [0.5, None])
def test_the_loss_is_the_sum_of_its_parts(tiny_net, tiny_stream, tiny_train, reduction, margin):
    learner = few_shot(anchor=0.3, minmax=0.2, reduction=reduction, margin=margin)
    loop, stage, batch = second_task(learner, tiny_net, tiny_stream, tiny_train)
    with loop.net.frozen_statistics():
        out = loop.net(batch.x)
    f = torch.nn.functional.normalize(out.z).tolist()
    rows, y = batch.row.tolist(), batch.y.tolist()
    new = [i for i, row in enumerate(rows) if row < 0]
    old = [i for i, row in enumerate(rows) if row >= 0]
    assert sorted(rows[i] for i in old) == list(range(6))  # all anchors, each once
    total = cross_entropy(out.logits[new].tolist(), [y[i] for i in new])
    m, var = (learner.gas_[k].tolist() for k in ("centroid", "variance"))
    held = [
        sum((f[i][d] - m[rows[i]][d]) ** 2 / var[rows[i]][d] for d in range(len(f[i]))) for i in old
    ]
    grown = learner.grown_
    xi = g.widest(grown) if margin is None else margin
    room = [
        min_max(f[i], y[i], grown["centroid"].tolist(), grown["label"].tolist(),
                edges_of(grown), xi)
        for i in new
    ]  # fmt: skip
    over = sum if reduction == "sum" else mean
    count = len(f[0]) if reduction == "mean" else 1  # of dimensions
    total += 0.3 * over(held) / count + 0.2 * over(room)
    assert loop.objective(stage, (), (1, "main", 0, 0), batch).item() == pytest.approx(
        total, rel=1e-4
    )


def test_anchors_are_seen_as_they_are(tiny_net, tiny_stream, tiny_train):
    learner = few_shot()
    loop, _, batch = second_task(learner, tiny_net, tiny_stream, tiny_train)
    old = batch.row >= 0
    assert torch.equal(batch.x[old], loop.feed.remembered(batch.row[old]).x)
    assert torch.equal(batch.geometry.theta[old], torch.eye(2, 3).repeat(int(old.sum()), 1, 1))
    assert not torch.equal(batch.geometry.theta[~old], torch.eye(2, 3).repeat(8, 1, 1))


def test_the_released_target_is_what_the_net_before_made_of_the_anchor(
    tiny_net, tiny_stream, tiny_train
):
    learner = few_shot(target="feature", anchor=2.0, minmax=0.0, normalize=False)
    loop, stage, batch = second_task(learner, tiny_net, tiny_stream, tiny_train)
    assert learner._anchor_loss(learner.before_, torch.arange(6)).tolist() == [0.0] * 6
    with loop.net.frozen_statistics():
        out = loop.net(batch.x)
    old = batch.row >= 0
    ours = loop.objective(stage, (), (1, "main", 0, 0), batch)
    plain = torch.nn.functional.cross_entropy(out.logits[~old], batch.y[~old])
    gap = (out.z[old] - learner.before_[batch.row[old]]).square().mean()
    assert ours.item() == pytest.approx((plain + 2 * gap).item(), rel=1e-5)


# --- the trunk's output, kept --------------------------------------------------------------------


def test_cached_anchors_give_the_same_loss_and_gradient(wide_net, tiny_stream, tiny_train):
    found = []
    for cache in (False, True):
        learner = few_shot(cache=cache, anchor=1.0)
        loop, stage, batch = second_task(learner, copy.deepcopy(wide_net), tiny_stream, tiny_train)
        assert bool((batch.row >= 0).any()) != cache
        loss = loop.objective(stage, (), (1, "main", 0, 0), batch)
        grads = torch.autograd.grad(loss, learner.trained(loop.net, stage))
        found.append([loss.detach(), *grads])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_run_with_cached_anchors_ends_where_the_other_does(wide_net, tiny_stream, tiny_train):
    runs = [
        rr.fit(few_shot(cache=c), wide_net, tiny_stream, train=tiny_train, progress=False)
        for c in (False, True)
    ]
    for name, value in runs[0].net.state_dict().items():
        torch.testing.assert_close(value, runs[1].net.state_dict()[name], rtol=1e-3, atol=1e-4)
    assert runs[0].records[-1]["accuracy"] == runs[1].records[-1]["accuracy"]


def test_a_branch_may_begin_to_cache(wide_net, tiny_stream, tiny_train, tmp_path):
    how = {"train": tiny_train, "progress": False}
    rr.fit(few_shot(), wide_net, tiny_stream, run=tmp_path, **how)
    start = load_checkpoint(tmp_path / "checkpoints" / "task-1.pt")
    runs = [
        rr.fit(few_shot(cache=c), wide_net, tiny_stream, start=start, **how) for c in (False, True)
    ]
    for name, value in runs[0].net.state_dict().items():
        torch.testing.assert_close(value, runs[1].net.state_dict()[name], rtol=1e-3, atol=1e-4)


# --- what is refused -----------------------------------------------------------------------------


def test_fewer_shots_than_nodes(tiny_net):
    stream = rr.stream("glyphs", tasks=[2, 2], classes=4, train=8, test=4, size=16, shots=2)
    with pytest.raises(rr.UserError) as caught:
        rr.fit(rr.TOPIC(memory=rr.Memory(per_class=(4, 3))), tiny_net, stream, progress=False)
    assert str(caught.value) == (
        "memory.per_class asks for 3 nodes a new class and a class of task 2 has 2 images, "
        "expected as many or more; type memory.per_class=[4,2] or less"
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: rr.TOPIC(reduction="avg"), "unknown topic.reduction 'avg'"),
        (lambda: rr.TOPIC(rate=(0.1, 0)), "topic.rate is .* expected two above 0"),
        (lambda: rr.TOPIC(alpha=(0.0, 1.0)), "topic.alpha is"),
        (lambda: rr.TOPIC(age=0), "topic.age is 0, expected at least 1"),
        (lambda: rr.TOPIC(floor=0), "topic.floor is 0.0"),
        (lambda: rr.TOPIC(cache=True, params="all"), "topic.cache keeps all anchors"),
        (lambda: rr.TOPIC(cache=True, anchors=5), "topic.cache keeps all anchors"),
        (
            lambda: rr.TOPIC(cache=True) + rr.Evidence(view="shared"),
            "evidence.view is shared and topic.cache forwards no image to share",
        ),
    ],
)
def test_fields_that_say_nothing(make, words):
    with pytest.raises(rr.UserError, match=words):
        make()


def plain_net():
    """What follows its last kernel, BatchNorm and ReLU, is no part of a block."""
    return rr.net(
        nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2),
        ),
        size=16,
    )  # fmt: skip


def test_the_last_block_has_a_kernel_and_what_is_behind_it_trains_too():
    net = plain_net()
    assert net.pooled_linear and net.last_block == "3"
    assert [tuple(p.shape) for p in net.last_parameters()] == [(8, 4, 3, 3), (8,), (8,), (8,)]


@pytest.mark.parametrize("make", [lambda: rr.net("alexnet"), plain_net])
def test_a_net_that_ends_in_something_else_has_no_cache(make, tiny_stream):
    net = make()
    with pytest.raises(rr.UserError, match="topic.cache needs a net whose head reads the mean"):
        few_shot(cache=True).check(net, tiny_stream)


@pytest.mark.parametrize(
    ("name", "block", "count"),
    [
        ("resnet18", "layer4.1", 6),
        ("mobilenet-v2", "features.18", 3),
        ("squeezenet1_1", "features.12", 6),
        ("alexnet", "features.10", 6),  # and the two linear layers before the head
        ("resnet8", "stages.2.0", 9),
    ],
)
def test_the_last_block_of_a_net(name, block, count):
    net = rr.net(name)
    assert net.last_block == block
    chosen = net.last_parameters()
    assert len(chosen) == count
    assert not {id(p) for p in chosen} & {id(p) for p in net.head.parameters()}
    everything = rr.Finetune().trained(net, Stage(params="last_block+head+new_rows"))
    assert len(everything) == count + len(list(net.head.parameters()))
