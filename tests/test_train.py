"""The loop: schedules, pools, records, what it refuses, and equal seeds."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import rightreasons as rr
from rightreasons import optimise
from rightreasons.checkpoints import load_checkpoint
from rightreasons.feed import Feed
from rightreasons.optimise import Updater
from rightreasons.types import Pool, Stage


def feed_of(stream, memory, seed=0):
    return Feed(stream, memory, seed, torch.device("cpu"))


def filled(stream, size=6):
    """A memory that holds images of the first task."""
    memory = rr.Memory(size)
    images, index = stream[0].train, torch.tensor([0, 5, 10, 13, 17, 20])
    y = images.y[index]
    memory.add({"x": images.pixels(index), "y": y, "task": torch.zeros_like(y), "index": index})
    return memory


def test_an_epoch_sees_every_new_image_once(tiny_stream, tiny_train):
    feed = feed_of(tiny_stream, filled(tiny_stream))
    for mix, rows in (("none", 0), ("paired", 6), ("concat", None)):
        stage = Stage(pool=Pool(mix=mix))
        batches = list(feed.batches(tiny_stream[1], stage, tiny_train, 0))
        new = sum((batch.row < 0).sum().item() for batch in batches)
        assert new == len(tiny_stream[1].train)
        old = [batch.row[batch.row >= 0].tolist() for batch in batches]
        if mix == "concat":  # the memory is one more part of the pool
            assert sorted(row for part in old for row in part) == list(range(6))
        else:
            assert all(len(part) == rows == len(set(part)) for part in old)
        for batch in batches:
            assert torch.equal(batch.task, feed.task_of[batch.y])
            back = batch.row >= 0
            assert torch.equal(batch.y[back], feed.memory["y"][batch.row[back]])


def test_joint_sees_all_tasks_so_far(tiny_stream, tiny_train):
    feed = feed_of(tiny_stream, rr.Memory())
    stage = rr.Joint().stages(tiny_stream[2])[0]
    batches = list(feed.batches(tiny_stream[2], stage, tiny_train, 0))
    counts = torch.bincount(torch.cat([batch.y for batch in batches]))
    assert counts.tolist() == [12] * 6


def test_a_single_image_left_over_joins_the_last_batch(tiny_stream, tiny_train):
    feed = feed_of(tiny_stream, rr.Memory())
    sizes = [
        len(b.y) for b in feed.batches(tiny_stream[0], Stage(), replace(tiny_train, batch=23), 0)
    ]
    assert sizes == [24]


def test_learning_rate_falls_at_milestones():
    parameter = torch.nn.Parameter(torch.zeros(1))
    train = rr.Train(optimiser="sgd", lr=1.0, momentum=0.0, milestones=(1, 3), gamma=0.1)
    update = Updater([parameter], train)
    places = []
    for epoch in range(4):
        before = parameter.item()
        update((0, "main", epoch, 0), parameter.sum())
        places.append(before - parameter.item())
    assert places == pytest.approx([1.0, 0.1, 0.1, 0.01])


@pytest.mark.parametrize("name", ["radam", "sgd", "adamw"])
def test_clipping_bounds_the_step(name):
    parameter = torch.nn.Parameter(torch.zeros(3))
    update = Updater([parameter], rr.Train(optimiser=name, lr=0.1, clip=1e-3))
    update((0, "main", 0, 0), 1e6 * parameter.sum())
    assert parameter.grad.norm() == pytest.approx(1e-3, rel=1e-3)


def test_equal_seeds_are_equal_and_others_are_not(tiny_stream, tiny_net, tiny_train):
    runs = [
        rr.fit(
            rr.ER(memory=rr.Memory(6)),
            tiny_net,
            tiny_stream,
            train=tiny_train,
            seed=s,
            progress=False,
        ).net.state_dict()
        for s in (0, 0, 1)
    ]
    assert all(torch.equal(runs[0][k], runs[1][k]) for k in runs[0])
    assert not torch.equal(runs[0]["module.conv1.weight"], runs[2]["module.conv1.weight"])


def test_er_forgets_less_than_finetune_and_joint_least():
    """The order that any working loop shows on an easy stream."""
    stream = rr.stream("glyphs", tasks=2, classes=4, train=40, test=20, size=16)
    train = rr.Train(epochs=10, batch=16, optimiser="adamw", lr=3e-3, augment=rr.Augment(1, False))
    R = {
        made.name: rr.fit(made, rr.net("resnet8"), stream, train=train, progress=False).R
        for made in (rr.Finetune(), rr.ER(memory=rr.Memory(20)), rr.Joint())
    }
    assert R["finetune"][1, 0] < 0.2 and R["finetune"][1, 1] > 0.7
    assert R["er"][1, 0] > R["finetune"][1, 0] + 0.1
    assert R["joint"][1, 0] > 0.7


def test_what_a_learner_holds_is_counted(tiny_stream, tiny_net, tiny_train):
    last = rr.fit(rr.EWC(), tiny_net, tiny_stream, train=tiny_train, progress=False).records[-1]
    assert last["bytes"]["learner"] == 2 * last["bytes"]["model"]  # Fisher information and anchor


def test_records_add_up(tiny_stream, tiny_net, tiny_train):
    learner = rr.ER(memory=rr.Memory(12)) + rr.RRR(rows=4) + rr.Evidence(rows=4)
    result = rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    last = result.records[-1]
    assert last["rows"] == 12 and last["steps"] == 2 * 3
    assert last["bytes"]["images"] == 12 * 3 * 16 * 16
    maps = sum(s for n, s in result.learner.memory.nbytes().items() if "." in n)
    assert last["bytes"]["maps"] == maps and last["bytes"]["learner"] == 0
    # 4x4 maps with a float32 scale, a class and a flag a row; the paper's in half precision
    assert result.learner.memory.nbytes()["rrr.map"] == 12 * 4 * 4 * 2
    known = result.learner.memory["evidence.map"]
    assert known.lengths.tolist() == [2] * 4 + [4] * 4 + [6] * 4
    assert known.values.nbytes == sum(known.lengths.tolist()) * 4 * 4
    assert result.seen[-1] == pytest.approx(np.mean(result.R[-1]))
    assert set(result.matrices) == {"class", "task", "top5", "pointing", "pointing_task"}
    assert (result.matrices["task"][-1] >= result.R[-1]).all()
    assert (result.matrices["top5"][:2, :1] == 1).all()  # four classes are among the best five
    assert (result.matrices["top5"][-1] >= result.R[-1]).all()
    counts = result.outcomes()
    total = counts.tp + counts.fp + counts.fn + counts.tn
    assert total[-1].tolist() == last["pointing"]["images"] == [8, 8, 8]
    assert np.allclose((counts.tp + counts.fp)[-1] / 8, result.R[-1])
    assert result.records[0]["drift"]["cosine"] == pytest.approx([1.0])
    assert last["drift"]["cosine"][-1] == pytest.approx(1.0)


def test_task_aware_accuracy_is_over_the_tasks_own_classes(tiny_stream, tiny_net, tiny_train):
    result = rr.fit(rr.Finetune(), tiny_net, tiny_stream, train=tiny_train, progress=False)
    images = tiny_stream[0].test
    x = (images.pixels(torch.arange(len(images))).float() - tiny_stream.mean.view(3, 1, 1)) / (
        tiny_stream.std.view(3, 1, 1)
    )
    with torch.no_grad():
        logits = result.net.eval()(x).logits
    expected = (logits[:, :2].argmax(1) == images.y).float().mean().item()
    assert result.matrices["task"][2, 0] == pytest.approx(expected)
    assert result.R[2, 0] == pytest.approx((logits.argmax(1) == images.y).float().mean().item())


def test_a_loss_that_is_not_finite_stops_the_run(tiny_stream, tiny_net, tiny_train):
    train = replace(tiny_train, optimiser="sgd", lr=1e20, epochs=8)
    with pytest.raises(rr.UserError, match="task loss is (nan|inf) in task 1"):
        rr.fit(rr.Finetune(), tiny_net, tiny_stream, train=train, progress=False)
    with pytest.raises(rr.UserError, match="task loss is (nan|inf)"):  # in a task of a few steps
        few = replace(train, epochs=1)
        rr.fit(rr.Finetune(), tiny_net, tiny_stream, train=few, progress=False)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda s: rr.fit("er", rr.net("resnet8"), s), "expected one such as rr.ER"),
        (lambda s: rr.fit(rr.ER(), torch.nn.Linear(1, 1), s), "rr.net"),
        (lambda s: rr.fit(rr.ER(memory=rr.Memory(3)), rr.net("resnet8"), s), "memory.size=6"),
        (lambda s: rr.Train(optimiser="radamm"), "did you mean 'radam'"),
        (lambda s: rr.Train(lr=0), "above 0"),
        (lambda s: rr.Train(epochs=0), "at least 1"),
        (lambda s: rr.Train(epochs="2"), "train.epochs is '2', expected a whole number"),
        (lambda s: rr.Train(later={"epoch": 2}), "did you mean 'train.later.epochs'"),
        (lambda s: rr.ER(8), "expected rr.Memory"),
        (lambda s: rr.Memory(8.5), "memory.size is 8.5"),
        (lambda s: rr.RRR(weight="1x"), "rrr.weight is '1x'"),
        (lambda s: rr.Joint(terms=(rr.RRR(),)), "takes no term"),
        (lambda s: rr.ER(terms=(rr.RRR(), rr.RRR())), "already"),
        (lambda s: rr.fit(rr.ER(), rr.net("resnet8"), "glyphs"), "rr.stream"),
        (
            lambda s: rr.fit(
                rr.ER() + rr.RRR(view="shared", bn="frozen") + rr.Evidence(view="shared"),
                rr.net("resnet8"),
                s,
            ),
            "different bn",
        ),
        (
            lambda s: rr.fit(rr.ER() + rr.RRR(), rr.net("resnet8", target="fc"), s),
            "expected maps",
        ),
        (lambda s: rr.fit(rr.ER() + rr.RRR(target="stages.9"), rr.net("resnet8"), s), "stages"),
        (lambda s: rr.fit(rr.ER() + rr.RRR(view="shared"), rr.net("resnet8"), s), "last_block"),
        (
            lambda s: rr.fit(rr.Finetune() + rr.Evidence(view="shared"), rr.net("resnet8"), s),
            "canonical",
        ),
        (
            lambda s: rr.fit(rr.ER(), rr.net("resnet8"), s, train=rr.Train(device="gpu9")),
            "train.device",
        ),
    ],
)
def test_bad_input_is_refused_before_training(tiny_stream, call, words, tmp_path):
    with pytest.raises(rr.UserError, match=words) as caught:
        call(tiny_stream)
    assert "\n" not in str(caught.value)


def test_a_folder_of_another_config_is_refused_with_the_keys(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    rr.fit(
        rr.Finetune(), tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a", progress=False
    )
    with pytest.raises(rr.UserError, match="train.epochs: 2 there, 3 asked"):
        rr.fit(
            rr.Finetune(),
            tiny_net,
            tiny_stream,
            train=replace(tiny_train, epochs=3),
            run=tmp_path / "a",
            progress=False,
        )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").write_text("mine")
    with pytest.raises(rr.UserError, match="not empty and holds no run"):
        rr.fit(rr.Finetune(), tiny_net, tiny_stream, run=tmp_path / "b", progress=False)
    assert [f.name for f in (tmp_path / "b").iterdir()] == ["notes.txt"]


def test_numpy_numbers_are_numbers(tiny_stream, tiny_net, tiny_train, tmp_path):
    train = replace(tiny_train, lr=np.float64(1e-3), epochs=np.int64(1))
    rr.fit(
        rr.Finetune(),
        tiny_net,
        tiny_stream,
        train=train,
        run=tmp_path / "a",
        seed=np.int64(3),
        progress=False,
    )
    assert "seed: 3" in (tmp_path / "a" / "config.yaml").read_text("utf-8")


def test_masks_that_are_all_empty_are_refused():
    x = np.zeros((8, 16, 16, 3), np.uint8)
    y, masks = [0, 1] * 4, np.zeros((8, 16, 16), bool)
    stream = rr.stream((x, y, masks), tasks=2, test=0.5)
    with pytest.raises(rr.UserError, match="every one of them is empty"):
        rr.fit(rr.Finetune(), rr.net("resnet8"), stream, progress=False)


def test_what_a_net_came_with_frozen_stays_so(tiny_stream, tiny_net, tiny_train):
    for learner in (rr.ER(memory=rr.Memory(6)), rr.EWC(), rr.ITAML(memory=rr.Memory(6), group=4)):
        net = copy.deepcopy(tiny_net)
        net.initialise = None
        net.module.conv1.requires_grad_(False)
        before = net.module.conv1.weight.clone()
        after = rr.fit(learner, net, tiny_stream, train=tiny_train, progress=False).net
        # iTAML averages copies of the weights, which rounds
        torch.testing.assert_close(after.module.conv1.weight, before, rtol=1e-5, atol=1e-7)
        assert not torch.equal(
            after.module.stages[1][0].conv1.weight, net.module.stages[1][0].conv1.weight
        )


def test_a_net_that_is_all_frozen_is_refused(tiny_stream, tiny_net, tiny_train):
    class Bare(rr.ER):
        def trained(self, net, stage):
            net.requires_grad_(False)
            return super().trained(net, stage)

    with pytest.raises(rr.UserError, match=r"all weights of tiny .* frozen; call requires_grad_"):
        rr.fit(Bare(), tiny_net, tiny_stream, train=tiny_train, progress=False)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_term_moves_no_statistics_that_the_run_keeps(
    tiny_stream, tiny_net, tiny_train, tmp_path, freeze
):
    """With bn=train its own forward would."""
    learner = rr.ER(memory=rr.Memory(6)) + rr.Evidence(view="canonical", bn="train")
    train = replace(tiny_train, freeze_bn=freeze)
    rr.fit(learner, tiny_net, tiny_stream, train=train, run=tmp_path, progress=False)
    first, last = (
        load_checkpoint(tmp_path / "checkpoints" / f"task-{task}.pt")["net"]["tensors"]
        for task in (1, 3)
    )
    means = [name for name in first if name.endswith("running_mean")]
    assert means
    assert all(torch.equal(first[name], last[name]) == freeze for name in means)


def test_later_tasks_have_their_own_batch_and_rate(tiny_stream, tiny_train):
    train = replace(tiny_train, later={"batch": 3, "lr": 0.5})
    first, second = (train.at(task, Stage(train={"epochs": 7})) for task in tiny_stream[:2])
    assert (first.batch, first.lr, first.epochs) == (8, tiny_train.lr, 7)
    assert (second.batch, second.lr, second.epochs) == (3, 0.5, 7)


def test_the_state_that_a_run_starts_from_stays_as_it_is(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    whole = tmp_path / "whole"
    learner = rr.ER(memory=rr.Memory(6))
    rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, run=whole, progress=False)
    state = load_checkpoint(whole / "checkpoints" / "task-1.pt")
    made = [
        rr.fit(learner, tiny_net, tiny_stream, train=train, start=state, progress=False)
        for train in (tiny_train, replace(tiny_train, lr=0.1))
    ]
    assert [len(one.records) for one in made] == [3, 3] and len(state["records"]) == 1
    assert not torch.equal(made[0].net.head.weight, made[1].net.head.weight)


@pytest.mark.parametrize("last", [3, 5])
def test_a_run_is_not_gone_on_with_other_images(tiny_net, tiny_train, tmp_path, monkeypatch, last):
    """Broken off inside the first task, or in the second."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3], 8)
    streams = [
        rr.stream((rng.integers(0, top, (32, 16, 16, 3), dtype=np.uint8), y), tasks=2)
        for top in (256, 128)
    ]
    learner = rr.ER(memory=rr.Memory(6))
    how = {"train": tiny_train, "run": tmp_path / "run", "progress": False, "checkpoint": 1}
    steps = list(range(last))
    with monkeypatch.context() as patch:
        step = rr.ER.step
        patch.setattr(rr.ER, "step", lambda *given: (steps.pop(), step(*given)))
        with pytest.raises(IndexError):
            rr.fit(learner, tiny_net, streams[0], **how)
    with pytest.raises(rr.UserError, match="trained on other images"):
        rr.fit(learner, tiny_net, streams[1], **how)
    assert len(rr.fit(learner, tiny_net, streams[0], **how).records) == 2


def test_what_is_different_later_holds_in_the_step(tiny_stream, tiny_net, tiny_train):
    learner = rr.ER(memory=rr.Memory(6))
    made = [
        rr.fit(learner, tiny_net, tiny_stream, train=train, progress=False).net.state_dict()
        for train in (
            replace(tiny_train, freeze_bn=True),
            replace(tiny_train, later={"freeze_bn": True}),
        )
    ]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])


def test_images_have_one_size_in_a_run(tiny_stream):
    for where, given in (
        ("train.later", lambda part: rr.Train(later=part)),
        ("eeil.balanced", lambda part: rr.EEIL(balanced=part)),
        ("bic.bias", lambda part: rr.BiC(bias=part)),
        ("itaml.adapt", lambda part: rr.ITAML(adapt=part)),
    ):
        with pytest.raises(
            rr.UserError, match=f"{where}.augment.cut is 12, .*train.augment.cut=12"
        ):
            given({"augment": {"cut": 12}})
        with pytest.raises(rr.UserError, match=f"unknown key '{where}.precision'"):
            given({"precision": "bf16"})
    train = rr.Train(augment=rr.Augment(cut=12), later={"augment": {"flip": False}})
    assert train.at(tiny_stream[1], Stage()).augment == rr.Augment(cut=12, flip=False)


def test_what_later_tasks_do_not_say_of_an_augmentation_is_the_run_s(tiny_stream):
    """A mirrored glyph may be another glyph: nobody who asks for a smaller crop asks for that."""
    glyphs = rr.Augment(3, False, contrast=0.2)
    for given, crop, contrast in (({"crop": 2}, 2, 0.2), (rr.Augment(crop=2), 2, 0.0)):
        train = rr.Train(augment=glyphs, later={"augment": given})
        assert train.at(tiny_stream[0], Stage()).augment == glyphs
        later = train.at(tiny_stream[1], Stage()).augment
        assert later == rr.Augment(crop, False, contrast=contrast)
    assert not rr.Train(augment=rr.Augment(2)).on(tiny_stream.flip).augment.flip
    assert rr.Train(augment=rr.Augment(2, True)).on(tiny_stream.flip).augment.flip
    assert rr.Train(augment=rr.Augment(2)).on(True).augment.flip


def test_what_has_learned_already_is_refused(tiny_stream, tiny_net, tiny_train):
    """Its rows and its classes would be taken for those of the new run."""
    how = {"train": tiny_train, "progress": False}
    past = rr.fit(rr.ER(rr.Memory(6)), tiny_net, tiny_stream, **how)
    for learner in (past.learner, past.learner + rr.Evidence()):
        with pytest.raises(rr.UserError, match=r"has learned already, .* a new one such as rr\.ER"):
            rr.fit(learner, tiny_net, tiny_stream, **how)
    with pytest.raises(rr.UserError, match=r"6 classes already, .*rr\.net\(net\.module"):
        rr.fit(rr.ER(rr.Memory(6)), past.net, tiny_stream, **how)
    on = rr.net(past.net.module, size=16)
    assert torch.equal(on.module.conv1.weight, past.net.module.conv1.weight) and not on.classes


def test_rehearsals_have_no_noise_on_their_gradients(
    tiny_stream, tiny_net, tiny_train, monkeypatch
):
    """It would be the same draw in all steps of an epoch, which an optimiser takes for a slope."""
    counted = []
    monkeypatch.setattr(optimise, "add_noise", lambda *given: counted.append(given))
    learner = rr.ER(memory=rr.Memory(6)) + rr.RRR(profile="released", rows=2)
    train = replace(tiny_train, noise=0.3)
    made = rr.fit(learner, tiny_net, tiny_stream, train=train, progress=False)
    assert made.records[-1]["losses"]["rrr"] > 0
    assert len(counted) == sum(record["steps"] for record in made.records)
