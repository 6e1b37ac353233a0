"""EWC (Kirkpatrick et al. 2017): the Fisher information, both merges, free rows of the head."""

from __future__ import annotations

import pytest
import torch
from literal import (
    MAIN,
    batch_of,
    cross_entropy,
    linear_net,
    logits_of,
    part,
    softmax,
    three_tasks,
)
from torch import Tensor, nn
from torch.nn import functional as F

import rightreasons as rr
from rightreasons.learners import ewc, fisher
from test_explainers import images, trained


class Seen:
    """What the learner may look at when a task ends: these batches."""

    def __init__(self, batches):
        self.batches = batches

    def images(self):
        return iter(self.batches)

    def generator(self, purpose):
        return torch.Generator().manual_seed(len(purpose))


def literal_fisher(net, batches, labels=None):
    """F_i = mean over images of (d log p(y|x) / d theta_i)^2, for a linear net written out:
    d log p_y / d W_cj = ([y = c] - p_c) x_j, and [y = c] - p_c for the bias."""
    classes = net.classes
    weight = [[0.0] * 12 for _ in range(classes)]
    bias = [0.0] * classes
    count = 0
    for b, batch in enumerate(batches):
        truth = batch.y.tolist() if labels is None else labels[b]
        for z, x, y in zip(
            logits_of(net, batch.x), batch.x.flatten(1).tolist(), truth, strict=True
        ):
            p = softmax(z)
            for c in range(classes):
                gap = (y == c) - p[c]
                bias[c] += gap**2
                for j in range(12):
                    weight[c][j] += (gap * x[j]) ** 2
            count += 1
    return [[f / count for f in row] for row in weight], [f / count for f in bias]


def test_the_worked_example():
    """theta=(1,2), theta*=(0,2.5), F=(2,4), lambda=10: 15. One class has no cross entropy."""
    net = rr.Net(nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False)), head="1", taps={})
    net.resize(1)
    net.head.weight.data = torch.tensor([[1.0, 2.0]])
    learner = rr.EWC(weight=10.0)
    learner.old_ = 0
    learner.springs_ = [
        {"fisher": {"1.weight": torch.tensor([[2.0, 4.0]])},
         "weights": {"1.weight": torch.tensor([[0.0, 2.5]])}}
    ]  # fmt: skip
    batch = batch_of([0], seed=0)._replace(x=torch.ones(1, 2))
    assert learner.loss(net, net(batch.x), batch, MAIN).item() == pytest.approx(15.0)


# --- the Fisher information ----------------------------------------------------------------------


def test_fisher_of_a_linear_net_is_the_written_out_one():
    net = linear_net(4, seed=0)
    batches = [batch_of([0, 3, 3, 1, 2], seed=1), batch_of([2, 2], seed=2)]
    ours = ewc.fisher(net, batches)
    weight, bias = literal_fisher(net, batches)
    assert ours["1.weight"].tolist() == [pytest.approx(row, rel=1e-10) for row in weight]
    assert ours["1.bias"].tolist() == pytest.approx(bias, rel=1e-10)


def test_sampled_labels_are_drawn_from_the_net_s_own_answer():
    net = linear_net(4, seed=0)
    batches = [batch_of([0] * 40, seed=1), batch_of([0] * 9, seed=2)]
    ours = ewc.fisher(net, batches, torch.Generator().manual_seed(5))
    replay, labels = torch.Generator().manual_seed(5), []
    for batch in batches:
        p = torch.tensor([softmax(z) for z in logits_of(net, batch.x)], dtype=torch.float64)
        labels.append(torch.multinomial(p, 1, generator=replay)[:, 0].tolist())
    assert len({y for part_ in labels for y in part_}) > 1
    weight, bias = literal_fisher(net, batches, labels)
    assert ours["1.weight"].tolist() == [pytest.approx(row, rel=1e-10) for row in weight]
    true, _ = literal_fisher(net, batches)
    assert ours["1.weight"].tolist() != [pytest.approx(row, rel=1e-2) for row in true]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", ["layers", 1, 3, "together", "alone"])
def test_fisher_equals_one_image_at_a_time(tiny_net, dtype, way, monkeypatch):
    """By autograd's own backward, for every weight of a convolutional net with BatchNorm."""
    net = trained(tiny_net, dtype=dtype)
    if way != "layers":
        monkeypatch.setattr(fisher, "is_layered", lambda net: False)
    if way == "alone":
        monkeypatch.setattr(fisher, "LARGE", 0)
    elif isinstance(way, int):  # images at a time
        size = sum(p.nbytes for p in net.parameters())
        monkeypatch.setattr(fisher, "BYTES", way * size)
    if way not in ("layers", "alone"):  # layers are checked by single images
        monkeypatch.setattr(fisher, "add_one_by_one", None)
    if way in ("layers", "alone"):
        monkeypatch.setattr(fisher, "add_together", None)
    x, y = images(7, dtype=dtype), torch.tensor([0, 4, 2, 2, 1, 3, 0])
    batch = batch_of(y.tolist(), seed=0)
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    ours = ewc.fisher(net, [batch._replace(x=x[:5], y=y[:5]), batch._replace(x=x[5:], y=y[5:])])
    expected = {name: torch.zeros_like(p) for name, p in net.module.named_parameters()}
    for i in range(7):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]).logits, y[i : i + 1]).backward()
        for name, p in net.module.named_parameters():
            expected[name] += p.grad**2 / 7
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert (ours[name] - value).norm() <= 1e-5 * value.norm(), name
        assert value.norm() > 0
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())


class Twice(nn.Module):
    """A layer that is used twice, or whose weights another line uses too."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        if self.how == "twice":
            h = self.first(h)
        elif self.how == "elsewhere":
            h = F.conv2d(h, self.first.weight, padding=1)
        logits: Tensor = self.fc(h.mean((2, 3)))
        return logits


@pytest.mark.parametrize("how", ["once", "twice", "elsewhere"])
def test_layers_that_share_weights_are_not_told_apart(how):
    torch.manual_seed(0)
    net = rr.net(Twice(how), target="first", head="fc", keep_head=True)
    net.eval()
    x, y = images(6, dtype=torch.float32), torch.tensor([0, 4, 2, 2, 1, 3])
    batch = batch_of(y.tolist(), seed=0)._replace(x=x)
    weights = {name: p.detach() for name, p in net.module.named_parameters()}
    add = fisher.way(net, weights, x[:1], y[:1])
    assert isinstance(getattr(add, "__self__", None), fisher.ByLayer) == (how == "once")
    expected = {name: torch.zeros_like(w) for name, w in weights.items()}
    fisher.add_one_by_one(net, weights, expected, x, y)
    ours = fisher.fisher(net, [batch])
    for name, value in expected.items():
        assert (ours[name] - value / 6).norm() <= 1e-5 * value.norm(), name


class Norms(nn.Module):
    """BatchNorm after a convolution with a bias, before one, and on what others see too."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=how == "bias")
        self.norm = nn.BatchNorm2d(4)
        self.next = nn.Conv2d(4, 6, 3, groups=2, dilation=2)
        self.fc, self.spare = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "before":
            h = self.norm(self.conv(x).relu())
        else:
            z = self.conv(x)
            h = self.norm(z).relu() + (z if self.how == "seen" else 0)
        h = self.next(h).relu().mean((2, 3))
        self.spare(h)  # which the scores do not see
        logits: Tensor = self.fc(h)
        return logits


@pytest.mark.parametrize("how", ["after", "bias", "before", "seen"])
def test_norms_are_taken_in_by_the_convolution_before_them(how):
    torch.manual_seed(0)
    module = Norms(how)
    for p in (module.norm.weight, module.norm.bias, module.norm.running_mean):
        nn.init.normal_(p)
    nn.init.uniform_(module.norm.running_var, 0.5, 2.0)
    net = rr.net(module, target="next", head="fc", keep_head=True).double()
    net.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, y = images(6, dtype=torch.float64), torch.tensor([0, 4, 2, 2, 1, 3])
    weights = {name: p.detach() for name, p in net.module.named_parameters()}
    taken = fisher.ByLayer(net, x[:1]).norms
    assert taken == ({} if how == "before" else {"conv": "norm"})
    add = fisher.way(net, weights, x[:1], y[:1])
    assert isinstance(getattr(add, "__self__", None), fisher.ByLayer) == (how != "seen")
    ours, literal = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    add(ours, x, y)
    fisher.add_one_by_one(net, weights, literal, x, y)
    for name, value in literal.items():
        assert torch.allclose(ours[name], value, rtol=1e-9, atol=1e-15), name
        assert (value > 0).any() == (not name.startswith("spare"))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_layers_of_another_kind_or_in_another_mode_are_not_simple(tiny_net):
    tiny_net.grow(5)
    assert fisher.is_layered(tiny_net.eval())
    assert not fisher.is_layered(tiny_net.train())  # statistics of the batch
    tiny_net.eval()
    tiny_net.module.conv1.padding_mode = "reflect"
    assert not fisher.is_layered(tiny_net)


# --- springs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", ["true", "sampled"])
@pytest.mark.parametrize("scope", ["all", "new"])
@pytest.mark.parametrize(
    "merge, decay", [("online", 1.0), ("online", 0.4), ("online", 0.0), ("separate", 1.0)]
)
def test_the_loss_over_three_tasks(merge, decay, scope, labels):
    """CE + lambda/2 sum F (theta - theta*)^2. online: F = F_new + gamma F_old around the last
    weights; separate: one spring a task around its own. Rows of later classes have none."""
    learner = rr.EWC(weight=7.0, merge=merge, decay=decay, scope=scope, labels=labels)
    look, springs = Seen([]), []  # each: Fisher of weight and bias, and the weights, as lists
    for net, before, batch, task in three_tasks(learner, look):
        if before is not None:
            made = literal_fisher(before, look.batches, drawn(before, look, labels))
            kept = before.head.weight.tolist(), before.head.bias.tolist()
            if merge == "online" and springs:
                (old, _), springs = springs[0], []
                for c in range(len(old[1])):
                    made[1][c] += decay * old[1][c]
                    for j in range(12):
                        made[0][c][j] += decay * old[0][c][j]
            springs.append((made, kept))
        first = task.classes[0] if scope == "new" else 0
        z = part(logits_of(net, batch.x), first)
        fit = cross_entropy(z, [y - first for y in batch.y.tolist()])
        held = 0.0
        weight, bias = net.head.weight.tolist(), net.head.bias.tolist()
        for (f_weight, f_bias), (weight_, bias_) in springs:
            for c in range(len(f_bias)):
                held += 7.0 / 2 * f_bias[c] * (bias[c] - bias_[c]) ** 2
                for j in range(12):
                    held += 7.0 / 2 * f_weight[c][j] * (weight[c][j] - weight_[c][j]) ** 2
        ours = learner.loss(net, net(batch.x), batch, MAIN)
        assert ours.item() == pytest.approx(fit + held, rel=1e-9)
        assert (held > 0) == (task.index > 0)
        assert len(learner.springs_ if springs else []) == len(springs)
        # rows that this task has added are free: their gradient is that of cross entropy alone
        plain = F.cross_entropy(net(batch.x).logits[:, first:], batch.y - first)
        whole, alone = (torch.autograd.grad(v, net.head.weight)[0] for v in (ours, plain))
        new = list(task.classes)
        assert torch.allclose(whole[new], alone[new], rtol=1e-12, atol=0)
        if springs:
            assert not torch.allclose(whole[: new[0]], alone[: new[0]], rtol=1e-3)
        look.batches = [batch, batch_of(batch.y.tolist()[:3], seed=50 + task.index)]
    assert len(learner.springs_) == (1 if merge == "online" else 3)


def test_springs_that_were_kept_separate_are_merged_into_one():
    """As in a branch that changes ``merge``."""
    learner, look = rr.EWC(merge="separate", decay=0.5), Seen([])
    for step in three_tasks(learner, look):
        net, _, batch, task = step
        look.batches = [batch]
    old = [spring["fisher"] for spring in learner.springs_]
    learner.merge = "online"
    learner.end(net, task, learner.memory, look)
    (merged,) = learner.springs_
    for name, new in ewc.fisher(net, look.images(), None).items():
        for c in range(net.classes):
            kept = sum(f[name][c] for f in old if c < len(f[name]))
            assert torch.allclose(merged["fisher"][name][c], new[c] + 0.5 * kept)


def drawn(net, look, labels):
    """The labels that were drawn, once more."""
    if labels == "true":
        return None
    by = look.generator("fisher")
    answers = [torch.tensor([softmax(z) for z in logits_of(net, b.x)]).double()
               for b in look.batches]  # fmt: skip
    return [torch.multinomial(p, 1, generator=by)[:, 0].tolist() for p in answers]


class Scaled(nn.Module):
    """A net with a parameter that is one number, without rows."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        h = self.conv(x).relu().mean((2, 3))
        return self.fc(self.scale * h)


def test_a_parameter_may_be_a_single_number(tiny_stream, tiny_train):
    net = rr.net(Scaled(), size=16)
    result = rr.fit(rr.EWC(), net, tiny_stream, train=tiny_train, progress=False)
    (spring,) = result.learner.springs_
    assert spring["fisher"]["scale"].shape == () and spring["fisher"]["scale"] > 0


def test_the_loop_gives_every_new_image_to_the_fisher_as_it_is(tiny_stream, tiny_net, tiny_train):
    """The state after a run is the sum of Fishers of all tasks, by the net of each task's end."""
    nets = []

    class Kept(rr.EWC):
        def end(self, net, task, memory, look):
            super().end(net, task, memory, look)
            nets.append({name: value.clone() for name, value in net.module.state_dict().items()})
            assert not net.training
            self.one_ = self.springs_[-1]["fisher"]["conv1.weight"]

    result = rr.fit(Kept(merge="separate"), tiny_net, tiny_stream, train=tiny_train, progress=False)
    last = tiny_stream[2].train
    x = last.pixels(torch.arange(len(last))).float()
    x = (x - tiny_stream.mean.view(3, 1, 1)) / tiny_stream.std.view(3, 1, 1)
    net, total = result.net.eval(), 0
    for i in range(len(last)):
        loss = F.cross_entropy(net(x[i : i + 1]).logits, last.y[i : i + 1])
        total += torch.autograd.grad(loss, net.module.conv1.weight)[0] ** 2 / len(last)
    assert len(result.learner.springs_) == 3
    assert torch.allclose(result.learner.one_, total, rtol=1e-4, atol=1e-9)
