"""Terms: their gradient is right, reaches body and head, and is zero right after storing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import rightreasons as rr
from rightreasons.explainers import EXPLAINERS
from rightreasons.memory import Ragged
from rightreasons.terms.base import decode, encode
from rightreasons.terms.rrr import normalise
from rightreasons.types import Batch, Geometry
from test_explainers import images, trained

TERMS = {
    "rrr": rr.RRR(dtype="float32"),
    "rrr last_block": rr.RRR(target="last_block", dtype="float32"),
    "rrr signed l2 normalised": rr.RRR(
        signed=True, distance="l2", normalize="l2", reduction="pixel_mean", dtype="float32"
    ),
    "rrr max": rr.RRR(normalize="max", target="last_block", dtype="float32"),
    "rrr recommended": rr.RRR(profile="recommended", dtype="float32"),
    "rrr two layers": rr.RRR(target="stages.0+last_block", dtype="float32"),
    "evidence": rr.Evidence(dtype="float32"),
    "evidence without bias": rr.Evidence(bias=False, dtype="float32"),
    "logits": rr.Logits(),
    "activations": rr.Activations(dtype="float32"),
}


def batch_of(x, y):
    return Batch(x, y, torch.zeros_like(y), torch.arange(len(y)))


def stored(term, net, batch):
    """Columns as the loop stores them."""
    with net.frozen_statistics():
        return term.remember(net, batch, net(batch.x, taps=term.taps))


def loss_of(term, net, batch, columns):
    with net.frozen_statistics():
        return term(net, net(batch.x, taps=term.taps), batch, columns)


def moved(net, by=0.3):
    """The net after some other training: every parameter a little elsewhere."""
    draw = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in net.parameters():
            p += by * p.std().nan_to_num(0.1) * torch.randn(p.shape, generator=draw).to(p)
    return net


@pytest.mark.parametrize("name", TERMS)
def test_gradient_equals_finite_differences_on_body_and_head(tiny_net, name):
    term, net = TERMS[name], trained(tiny_net)
    batch = batch_of(images(), torch.arange(6) % 5)
    columns = stored(term, net, batch)
    columns = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in columns.items()
    }
    moved(net)
    loss_of(term, net, batch, columns).backward()
    step = 1e-6
    body = ("module.conv1.weight", "module.stages.1.0.conv2.weight")
    for path in body if term.name == "activations" else ("module.fc.weight", *body):
        parameter = net.get_parameter(path)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert grad.abs().max() > 0, f"{path} gets no gradient"
        largest = grad.abs().flatten().topk(3).indices
        for place in largest.tolist():
            flat = parameter.data.view(-1)
            value = flat[place].item()
            sides = []
            for sign in (1, -1):
                flat[place] = value + sign * step
                with torch.enable_grad():
                    sides.append(loss_of(term, net, batch, columns).item())
            flat[place] = value
            slope = (sides[0] - sides[1]) / (2 * step)
            assert slope == pytest.approx(grad.view(-1)[place].item(), rel=2e-4), path


@pytest.mark.parametrize("name", TERMS)
def test_loss_is_zero_right_after_storing_and_not_later(tiny_net, name):
    term, net = TERMS[name], trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    columns = stored(term, net, batch)
    size = "logits.value" if term.name == "logits" else f"{term.name}.map"
    values = columns[size].values if isinstance(columns[size], Ragged) else columns[size]
    scale = values.abs().mean() if term.name == "rrr" else values.square().mean()
    assert scale > 0
    assert loss_of(term, net, batch, columns) < 1e-5 * scale
    assert loss_of(term, moved(net), batch, columns) > 1e-3 * scale


@pytest.mark.parametrize("name", [n for n in TERMS if n != "logits"])
def test_steps_on_the_term_alone_change_weights_and_lower_it(tiny_net, name):
    """The defect of the authors' code: every step was skipped."""
    term, net = TERMS[name], trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    columns = stored(term, net, batch)
    moved(net)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    first = loss_of(term, net, batch, columns).item()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05 / max(first, 1))
    for step in range(20):
        optimiser.zero_grad()
        loss_of(term, net, batch, columns).backward()
        optimiser.step()
        if step == 0:
            changed = {n for n, p in net.named_parameters() if not torch.equal(p, before[n])}
            assert "module.conv1.weight" in changed
            assert ("module.fc.weight" in changed) == (term.name != "activations")
    assert loss_of(term, net, batch, columns).item() < 0.9 * first


def test_rrr_on_the_worked_example():
    """methods: map [[.5,0],[.5,2]] against [[0,0],[1,1]] is 2 as a sum and .5 as a mean."""
    from test_explainers import given_net

    net, activation = given_net()
    batch = batch_of(activation, torch.tensor([0]))
    columns = {
        "rrr.map": torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]),
        "rrr.scale": torch.ones(1),
        "rrr.class": torch.tensor([0]),
        "rrr.correct": torch.tensor([True]),
    }
    for reduction, expected in (("pixel_sum", 2.0), ("pixel_mean", 0.5)):
        term = rr.RRR(target="last_block", reduction=reduction)
        value = term(net, net(activation, taps=term.taps), batch, columns)
        assert value.item() == pytest.approx(expected)
    assert torch.allclose(
        normalise(torch.tensor([[[0.5, 0.0], [0.5, 2.0]]]), "max"),
        torch.tensor([[[0.25, 0.0], [0.25, 1.0]]]),
    )


@pytest.mark.parametrize("how", ["l2", "max"])
def test_an_all_zero_map_stays_zero_and_has_a_finite_gradient(how):
    maps = torch.zeros(2, 3, 3, requires_grad=True)
    normalise(maps, how).sum().backward()
    assert torch.equal(normalise(maps, how), torch.zeros(2, 3, 3))
    assert torch.isfinite(maps.grad).all()


def test_evidence_of_rows_that_knew_fewer_classes(tiny_net):
    """A row is held to the classes it knew; each row has the same say."""
    term, net = rr.Evidence(dtype="float32"), trained(tiny_net)
    x = images(2)
    maps = rr.evidence(net, x).detach()
    few, many = maps[:1, :2] + 1.0, maps[1:] + 2.0
    columns = {
        "evidence.map": Ragged(torch.cat([few[0], many[0]]), torch.tensor([2, 5])),
        "evidence.scale": torch.ones(2, dtype=x.dtype),
    }
    value = loss_of(term, net, batch_of(x, torch.tensor([0, 4])), columns)
    assert value.item() == pytest.approx((1.0 + 4.0) / 2)


@pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-6), ("float16", 1e-3), ("uint8", 5e-3)]
)
def test_stored_maps_come_back(dtype, tolerance):
    maps = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1e-6, 1.0, 1e6, 3.0, 0.0]
    ).view(5, 1, 1)
    values, scale = encode(maps, dtype)
    back = decode(values, scale, maps)
    assert str(values.dtype) == f"torch.{dtype}"
    for i in range(5):
        assert (back[i] - maps[i]).abs().max() <= tolerance * maps[i].abs().max()


def test_profiles_differ_and_fields_override_them():
    assert rr.RRR().weight == 1.0 and rr.RRR().reduction == "pixel_sum"
    released = rr.RRR(profile="released")
    assert (released.weight, released.rows, released.schedule) == (100.0, 10, "alternate")
    assert released.detach_weights and released.norm == "train"
    assert rr.RRR(profile="released", weight=3.0).weight == 3.0


def test_only_correct_leaves_out_rows_that_were_wrong(tiny_net):
    net = trained(tiny_net)
    batch = batch_of(images(), torch.arange(6) % 5)
    columns = stored(rr.RRR(dtype="float32"), net, batch)
    right = columns["rrr.correct"]
    right[:] = torch.tensor([1, 0, 1, 0, 0, 0]).bool()
    moved(net)
    some = loss_of(rr.RRR(only_correct=True), net, batch, columns)
    part = {k: v[right] for k, v in columns.items()}
    expected = loss_of(rr.RRR(), net, batch.where(right), part)
    assert some.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("learner", "term", "view"),
    [
        (rr.ER(), rr.Evidence(), "shared"),
        (rr.ER(), rr.Logits(), "shared"),
        (rr.ER(), rr.Activations(bn="train"), "shared"),
        (rr.BiC(), rr.RRR(profile="recommended"), "shared"),
        (rr.TOPIC(), rr.Evidence(), "shared"),
        (rr.TOPIC(cache=True), rr.Evidence(), "canonical"),  # it forwards no image
        (rr.LwF(), rr.Evidence(), "canonical"),
        (rr.Finetune(), rr.RRR(profile="recommended"), "canonical"),
        (rr.ER(), rr.Evidence(view="canonical"), "canonical"),
        (rr.ER(), rr.Evidence(bn="batch"), "canonical"),
        (rr.ER(), rr.RRR(profile="recommended", bn="frozen"), "shared"),
        (rr.ER(), rr.RRR(profile="recommended", explain="smoothgrad"), "canonical"),
        (rr.ER(), rr.RRR(profile="recommended", target="paper"), "canonical"),
        (rr.ER(), rr.RRR(profile="recommended", schedule="alternate"), "canonical"),
        (rr.ER(), rr.RRR(), "canonical"),  # the paper's
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_view_that_is_left_open_is_settled_beside_the_learner(learner, term, view):
    (joined,) = (learner + term).terms
    assert (joined.view, replace(joined, view=term.view)) == (view, term)


class Counting(rr.Evidence):
    """A term of somebody's, with a constructor and an attribute of its own."""

    def __init__(self, times):
        super().__init__()
        self.times_ = times


def test_a_term_of_ones_own_is_settled_with_all_that_it_has():
    (joined,) = (rr.ER() + Counting(3)).terms
    assert (joined.view, joined.times_) == ("shared", 3)


@pytest.mark.parametrize("kind", [rr.RRR, rr.Evidence])
def test_the_shared_view_with_identity_geometry_is_zero_right_after_storing(tiny_net, kind):
    options = {"target": "last_block"} if kind is rr.RRR else {}
    term = kind(view="shared", bn="frozen", dtype="float32", **options)
    net = trained(tiny_net, dtype=torch.float32)
    x, y = images(dtype=torch.float32), torch.arange(6) % 5
    columns = stored(term, net, batch_of(x, y))
    identity = torch.eye(2, 3).expand(6, 2, 3)
    batch = batch_of(x, y)._replace(geometry=Geometry(identity))
    net.train()
    value = loss_of(term, net, batch, columns)
    assert value < 1e-5 * net(x).logits.abs().mean()
    mates = batch.where(torch.tensor([0, 1]))
    part = {
        k: v.take(torch.arange(2)) if isinstance(v, Ragged) else v[:2] for k, v in columns.items()
    }
    moved(net)
    whole = [
        loss_of(
            term,
            net,
            batch.where(torch.tensor([i])),
            {
                k: v.take(torch.tensor([i])) if isinstance(v, Ragged) else v[i : i + 1]
                for k, v in columns.items()
            },
        )
        for i in range(2)
    ]
    pair = loss_of(term, net, mates, part)
    assert pair.item() == pytest.approx(sum(v.item() for v in whole) / 2, rel=1e-5)


def test_cells_from_outside_the_image_are_masked(tiny_net):
    """An image moved by one cell to the left: the last column of cells has no reference."""
    term = rr.Evidence(view="shared", bn="frozen", dtype="float32")
    net = trained(tiny_net)
    x, y = images(1), torch.tensor([0])
    theta = torch.eye(2, 3)[None].clone()
    theta[0, 0, 2] = 2 * 4 / 16  # 4 pixels are one cell of a 4x4 map at 16 px
    batch = batch_of(x, y)._replace(geometry=Geometry(theta))
    now = rr.evidence(net, x).detach()
    reference = torch.zeros_like(now)
    reference[..., 1:] = now[..., :-1]  # so that it fits after the move
    reference[..., 0] = 1e6  # leaves the image
    columns = {
        "evidence.map": Ragged.of(reference),
        "evidence.scale": torch.ones(1, dtype=x.dtype),
    }
    assert loss_of(term, net, batch, columns).item() < 1e-8
    full = loss_of(rr.Evidence(dtype="float32"), net, batch, columns)
    assert full.item() > 1


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: rr.RRR(view="canonic"), "canonical"),
        (lambda: rr.RRR(profile="papers"), "paper"),
        (lambda: rr.RRR(explain="gradcm"), "gradcam"),
        (lambda: rr.Evidence(dtype="float61"), "float16"),
        (lambda: rr.RRR(rows=0), "at least 1"),
        (lambda: rr.RRR(samples=0), "at least 1"),
        (lambda: rr.RRR(channels="maxx"), "did you mean 'max'"),
        (lambda: rr.RRR(cells="mean"), "expected full"),
        (lambda: rr.RRR(explain="smoothgrad", view="shared"), "rrr.view=canonical"),
        (lambda: rr.RRR(weight=float("nan")), "0 or more"),
        (
            lambda: rr.Evidence(view="shared", bn="batch"),
            "type evidence.view=canonical, or evidence.bn=train",
        ),
        (lambda: rr.RRR(explain="backprop", target="a+b"), "2 layers.*backprop has one map"),
        (lambda: rr.RRR(profile="released", balance=True), "rrr.schedule=joint"),
        (lambda: rr.ER() + rr.RRR() + rr.RRR(), "already"),
        (lambda: rr.Joint() + rr.RRR(), "takes no term"),
    ],
)
def test_bad_fields_are_refused(make, words):
    with pytest.raises(rr.UserError, match=words):
        make()


def test_the_loss_of_two_layers_is_the_mean_of_theirs(tiny_net):
    net = trained(tiny_net)
    batch = batch_of(images(), torch.arange(6) % 5)
    names = ("stages.0", "last_block", "stages.0+last_block")
    terms = [rr.RRR(target=target, reference="cells", dtype="float32") for target in names]
    draws = [torch.Generator().manual_seed(3) for _ in terms]
    kept = [
        term.refer(stored(term, net, batch), batch.y, draw)
        for term, draw in zip(terms, draws, strict=True)
    ]
    kept[1] |= {f"rrr.{c}": kept[2][f"rrr.{c}.2"] for c in ("map", "scale")}  # its own permutation
    assert kept[2]["rrr.map"].shape[1:] != kept[2]["rrr.map.2"].shape[1:]
    one, two, both = (loss_of(t, net, batch, c) for t, c in zip(terms, kept, strict=True))
    assert both.item() == pytest.approx((one.item() + two.item()) / 2, rel=1e-12) != one.item()


@pytest.mark.parametrize("train", ["all", "head"])
def test_a_balanced_term_pulls_as_hard_as_its_weight_says(tiny_net, train):
    """Its gradient at the last block, by autograd on each loss alone, against the learner's."""
    net = trained(tiny_net)
    batch = batch_of(images(), torch.arange(6) % 5)
    if train == "head":
        net.requires_grad_(False)
        net.head.requires_grad_(True)
    term = rr.Evidence(weight=0.25, balance=True, dtype="float32")
    columns = stored(term, net, batch)
    at = [*net.module.stages[1][0].parameters()] if train == "all" else [*net.head.parameters()]

    def lengths():
        fit = torch.nn.functional.cross_entropy(net(batch.x).logits, batch.y)
        value = loss_of(term, net, batch, columns)
        joined = term.factor(net, value, fit) * value
        slopes = [torch.autograd.grad(of, at, retain_graph=True) for of in (joined, fit)]
        return [torch.cat([g.flatten() for g in each]).norm().item() for each in slopes]

    for _ in range(2):  # right after storing, when it is next to nothing, and later
        mine, learners = lengths()
        assert mine == pytest.approx(0.25 * learners, rel=1e-6) and learners > 0
        with torch.no_grad():
            for p in at:
                p *= 1.5


def test_a_term_without_a_slope_has_no_factor(tiny_net):
    net, term = trained(tiny_net), rr.Logits(balance=True)
    value = (0.0 * net(images()).logits).sum()
    assert term.factor(net, value, net(images()).logits.sum()) == 0


@pytest.mark.parametrize("classes", ["all", "mean", 2])
@pytest.mark.parametrize("cells", ["full", "mean", 2])
def test_ablations_of_evidence_are_zero_after_storing_and_train(tiny_net, classes, cells):
    term = rr.Evidence(classes=classes, cells=cells, dtype="float32")
    net = trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    columns = stored(term, net, batch)
    side = {"full": 4, "mean": 1, 2: 2}[cells]
    many = {"all": 5, "mean": 1, 2: 2}[classes]
    assert columns["evidence.map"].values.shape == (6 * many, side, side)
    assert loss_of(term, net, batch, columns) < 1e-8
    value = loss_of(term, moved(net), batch, columns)
    value.backward()
    assert value > 1e-4 and net.module.conv1.weight.grad.abs().max() > 0


def test_evidence_of_the_mean_cell_is_that_of_stored_logits(tiny_net):
    """One number a class is the logit, the control at equal bytes; by Jensen it is never more."""
    net = trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    terms = (rr.Evidence(dtype="float32"), rr.Evidence(cells="mean", dtype="float32"), rr.Logits())
    columns = [stored(term, net, batch) for term in terms]
    moved(net)
    full, mean, logits = (
        loss_of(term, net, batch, c).item() for term, c in zip(terms, columns, strict=True)
    )
    assert mean == pytest.approx(logits, rel=1e-4)
    assert full > mean


def test_evidence_of_the_mean_over_rows_that_knew_different_classes(tiny_net):
    term, net = rr.Evidence(classes="mean", dtype="float32"), trained(tiny_net)
    x = images(2)
    maps = rr.evidence(net, x).detach()
    columns = {
        "evidence.map": Ragged.of(
            torch.stack([maps[0, :2].mean(0, True) + 1.0, maps[1].mean(0, True) + 2.0])
        ),
        "evidence.scale": torch.ones(2, dtype=x.dtype),
        "evidence.class": Ragged(torch.tensor([0, 1, 0, 1, 2, 3, 4]), torch.tensor([2, 5])),
    }
    value = loss_of(term, net, batch_of(x, torch.tensor([0, 4])), columns)
    assert value.item() == pytest.approx((1.0 + 4.0) / 2)


@pytest.mark.parametrize("kind", [rr.RRR, rr.Evidence])
@pytest.mark.parametrize("how", ["shuffled", "cells", "noise"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_controls_store_references_that_are_not_the_rows_own(tiny_net, kind, how, dtype):
    net = trained(tiny_net, dtype=torch.float32)
    y = torch.tensor([0, 1, 0, 1, 0, 4])
    batch = batch_of(images(dtype=torch.float32), y)
    own = stored(kind(dtype=dtype), net, batch)
    term = kind(dtype=dtype, reference=how)
    draw = torch.Generator().manual_seed(0)
    other = term.refer(stored(term, net, batch), y, draw)
    name = f"{term.name}.map"

    def rows(columns):
        column = columns[name]
        return (column.padded()[0] if isinstance(column, Ragged) else column).float()

    before, after = rows(own), rows(other)
    assert before.shape == after.shape and own.keys() == other.keys()
    assert not torch.equal(before, after)
    if how == "shuffled":  # a permutation inside each class, no row keeps its own; 4 is alone
        for i in range(5):
            same = [j for j in range(6) if torch.equal(after[i], before[j])]
            assert same and all(y[j] == y[i] and j != i for j in same)
        assert torch.equal(after[5], before[5])
    if how == "cells":
        assert torch.equal(before.flatten(-2).sort().values, after.flatten(-2).sort().values)
    assert loss_of(term, net, batch, other) > 10 * loss_of(term, net, batch, own) + 1e-9


@pytest.mark.parametrize(
    "term",
    [
        rr.Evidence(classes=2, reference="shuffled"),
        rr.RRR(score="stored_prediction", target="stages.0+last_block", reference="shuffled"),
    ],
    ids=["evidence", "rrr"],
)
def test_the_maps_of_another_row_come_with_the_classes_that_they_are_of(tiny_net, term):
    net = trained(tiny_net, dtype=torch.float32)
    y = torch.zeros(6, dtype=torch.long)
    batch = batch_of(images(dtype=torch.float32), y)
    own = stored(term, net, batch)
    other = term.refer(dict(own), y, torch.Generator().manual_seed(0))
    names = [name for name in own if name.startswith((f"{term.name}.map", f"{term.name}.class"))]

    def rows(columns, name):
        column = columns[name]
        return column.padded()[0] if isinstance(column, Ragged) else column

    for i in range(6):
        from_ = [
            {j for j in range(6) if torch.equal(rows(other, name)[i], rows(own, name)[j])}
            for name in names
        ]
        assert set.intersection(*from_) - {i}


@pytest.mark.parametrize("dtype, bar", [("uint8", 1e-2), ("float16", 1e-3)])
@pytest.mark.parametrize(
    "term", [rr.RRR(), rr.RRR(target="last_block", signed=True), rr.Evidence()], ids=str
)
def test_small_storage_costs_little_right_after_storing(tiny_net, term, dtype, bar):
    """The scale of each map keeps what rounding takes below a share of the mean magnitude."""
    term = replace(term, dtype=dtype)
    if isinstance(term, rr.RRR):
        term = replace(term, reduction="pixel_mean")
    net = trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    columns = stored(term, net, batch)
    column = columns[f"{term.name}.map"]
    values = column.padded()[0] if isinstance(column, Ragged) else column
    assert str(values.dtype) == f"torch.{dtype}"
    size = decode(values, columns[f"{term.name}.scale"], batch.x).abs().mean()
    assert 0 < loss_of(term, net, batch, columns) < bar * size


@pytest.mark.parametrize("explain", EXPLAINERS)
def test_er_with_every_explainer_trains_on_glyphs(tiny_stream, tiny_net, tiny_train, explain):
    joined = rr.ER(memory=rr.Memory(12)) + rr.RRR(explain=explain, rows=4, samples=2)
    result = rr.fit(joined, tiny_net, tiny_stream, train=tiny_train, progress=False)
    plain = rr.fit(rr.ER(memory=rr.Memory(12)), tiny_net, tiny_stream, train=tiny_train)
    assert all(0 < record["losses"]["rrr"] < 1e6 for record in result.records[1:])
    side = 4 if explain == "gradcam" else 16
    assert result.learner.memory["rrr.map"].shape == (12, side, side)
    assert not torch.equal(result.net.head.weight, plain.net.head.weight)


@pytest.mark.parametrize("explain", ["backprop", "guided", "integrated_gradients"])
def test_pixel_maps_in_the_shared_view_follow_their_image(tiny_net, explain):
    """Through the learner's own forward; with identity geometry the loss is zero after storing."""
    term = rr.RRR(explain=explain, view="shared", bn="frozen", dtype="float32", samples=2)
    net = trained(tiny_net, dtype=torch.float32)
    x, y = images(dtype=torch.float32), torch.arange(6) % 5
    columns = stored(term, net, batch_of(x, y))
    identity = torch.eye(2, 3).expand(6, 2, 3)
    batch = batch_of(x, y)._replace(geometry=Geometry(identity))
    net.train()
    assert loss_of(term, net, batch, columns) < 1e-4 * columns["rrr.map"].abs().sum((1, 2)).mean()


def test_the_noise_of_a_row_stays_with_it_when_the_memory_shrinks(
    tiny_stream, tiny_net, tiny_train
):
    """Rows move up as quotas shrink: by its place in memory a row would get another's noise."""
    from rightreasons.keep import keep
    from rightreasons.loop import Loop

    term = rr.RRR(explain="smoothgrad", dtype="float32", rows=12)
    loop = Loop(rr.ER(memory=rr.Memory(12)) + term, tiny_net, tiny_stream, tiny_train, seed=0)
    for task in tiny_stream[:2]:
        loop.net.grow(task.seen, torch.Generator().manual_seed(0))
        for _ in range(3):
            loop.net.train()(loop.feed.normalise(tiny_stream[0].train.x[:8]))
        if task.index == 0:
            keep(loop.learner, loop.net.eval(), loop.feed, task)
            first = loop.memory["rrr.noise"].clone()
            loop.memory.shrink(4)
    assert not torch.equal(loop.memory["rrr.noise"], first[: len(loop.memory)])
    loop.net.eval()
    rows = loop.feed.remembered(torch.arange(len(loop.memory)))
    columns = loop.feed.columns(rows.row)
    with torch.no_grad():  # the weights of the moment, with the noise that each row had
        other = stored(term, loop.net, rows)
    assert torch.equal(other["rrr.noise"], columns["rrr.noise"])
    fresh = columns | {"rrr.map": other["rrr.map"], "rrr.scale": other["rrr.scale"]}
    value = loss_of(term, loop.net, rows, fresh)
    assert value < 1e-4 * other["rrr.map"].sum((1, 2)).mean()
    wrong = fresh | {"rrr.noise": fresh["rrr.noise"].flip(0)}
    assert loss_of(term, loop.net, rows, wrong) > 1e-2 * other["rrr.map"].sum((1, 2)).mean()


def test_fewer_cells_are_means_of_the_map(tiny_net):
    net = trained(tiny_net, dtype=torch.float32)
    batch = batch_of(images(dtype=torch.float32), torch.arange(6) % 5)
    whole = stored(rr.RRR(explain="backprop", dtype="float32"), net, batch)["rrr.map"]
    small = stored(rr.RRR(explain="backprop", cells=4, dtype="float32"), net, batch)["rrr.map"]
    expected = whole.view(6, 4, 4, 4, 4).mean((2, 4))
    assert torch.allclose(small, expected, rtol=1e-5)


class Rounds(torch.nn.Module):
    """A net with a part whose derivative is zero, missing, or there only once."""

    def __init__(self, how):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.fc = torch.nn.Linear(4, 2)
        self.how = how

    def forward(self, x):
        return self.fc(self.how(self.conv(x)).mean((2, 3)))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        return 2 * ctx.saved_tensors[0] * slope


class Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        raise NotImplementedError


@pytest.mark.parametrize(
    "how, explain, words",
    [
        (lambda h: h.round() + 0 * h.detach(), "backprop", "gives empty maps"),
        (lambda h: h.detach().tanh(), "gradcam", "cannot be differentiated"),
        (lambda h: h.detach(), "backprop", "cannot be differentiated"),
        (Once.apply, "backprop", "has no second derivative"),
        (Silent.apply, "backprop", "NotImplementedError"),
        (torch.tanh, "guided", "has no ReLU"),
    ],
)
def test_a_net_that_cannot_be_explained_is_refused_before_training(
    tiny_stream, tiny_train, how, explain, words
):
    net = rr.net(Rounds(how), size=16, target="conv")
    learner = rr.ER() + rr.RRR(explain=explain)
    with pytest.raises(rr.UserError, match=words) as caught:
        rr.fit(learner, net, tiny_stream, train=tiny_train, progress=False)
    assert "\n" not in str(caught.value)


def test_stored_activations_against_a_loop(tiny_net):
    """Mean over channels and the cells that the image covers, then over rows; any dtype."""
    net, x = trained(tiny_net), images(4)
    batch = batch_of(x, torch.arange(4) % 5)
    term = rr.Activations(dtype="float32")
    columns = stored(term, net, batch)
    with net.frozen_statistics():
        out = net(x.flip(-1), taps=("last_block",))
        value = term(net, out, batch, columns)
        kept = net(x, taps=("last_block",)).maps["last_block"]
    assert columns["activations.map"].shape == kept.shape
    total = 0.0
    for row in range(4):
        gaps = (out.maps["last_block"][row] - kept[row]).detach().flatten().tolist()
        total += sum(gap**2 for gap in gaps) / len(gaps)
    assert value.item() == pytest.approx(total / 4, rel=1e-5)
    for dtype, slack in (("float16", 1e-5), ("uint8", 1e-3)):
        term = rr.Activations(dtype=dtype)
        level = kept.square().mean()
        assert loss_of(term, net, batch, stored(term, net, batch)) < slack * level


@pytest.mark.parametrize(
    "term",
    [
        rr.Evidence(view="shared", cells="mean"),
        rr.Evidence(view="shared", cells=2),
        rr.RRR(profile="recommended", cells=2),
        rr.Activations(view="shared", cells=2),
    ],
    ids=["one cell", "evidence", "rrr", "activations"],
)
def test_pooled_maps_have_a_loss_in_the_shared_view(term, tiny_stream, tiny_net):
    """By the rule of full maps a window that is moved at all would leave out most wide cells."""
    train = rr.Train(epochs=1, batch=8, augment=rr.Augment(3, False))
    result = rr.fit(rr.ER(memory=rr.Memory(12)) + term, tiny_net, tiny_stream, train=train)
    own = replace(term, cells="full")
    full = rr.fit(rr.ER(memory=rr.Memory(12)) + own, tiny_net, tiny_stream, train=train)
    pooled, whole = (r.records[-1]["losses"][term.name] for r in (result, full))
    cells = 4 if term.name == "rrr" else 1  # a sum over 4 means and not over 16 cells
    assert 0.05 * whole < cells * pooled <= 1.5 * whole


@pytest.mark.parametrize("value", [0, -1, -3, "half"])
@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (rr.Evidence, "cells", "full or mean"),
        (rr.Evidence, "classes", "all or mean"),
        (rr.RRR, "cells", "full"),
        (rr.Activations, "cells", "full"),
    ],
)
def test_amounts_are_words_or_numbers_above_zero(kind, name, words, value):
    with pytest.raises(rr.UserError, match=f"{name} is {value!r}, expected {words}, or a number"):
        kind(**{name: value})
