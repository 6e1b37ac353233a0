"""Checkpoints inside a task: from every step the run ends with the same bits; damage is seen."""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch

import rightreasons as rr
from rightreasons.checkpoints import fill, found_in, lean, load_checkpoint, marks, save_checkpoint
from rightreasons.errors import Damaged, RunWarning, Stopped
from rightreasons.losses import At, Losses
from rightreasons.runfiles import Lock, read_config, write
from rightreasons.runs import Run
from rightreasons.types import Pool, Stage


@dataclass
class Whimsical(rr.ER):
    """State of every kind that changes inside a task: a teacher made between two stages, a
    parameter of its own, a tensor written behind autograd's back, a number, a list."""

    shift_: torch.Tensor = field(default_factory=lambda: torch.zeros(6), init=False)
    trace_: torch.Tensor = field(default_factory=lambda: torch.zeros(500), init=False)
    calls_: list[int] = field(default_factory=list, init=False)

    name: ClassVar[str] = "whimsical"

    @property
    def holds_out(self) -> float:
        return 0.34

    def stages(self, task):
        main = Stage(pool=Pool(mix="paired"))
        if not task.index:
            return [main]
        few = {"epochs": 1, "lr": 1e-3}
        return [
            main,
            Stage("balanced", Pool(mix="concat", balance=True), few),
            Stage("shift", Pool(mix="concat", held=True), few, params="shift_", terms=False),
        ]

    def begin(self, net, task, memory, look):
        self.calls_ = []

    def begin_stage(self, net, task, stage, memory):
        if stage.name == "balanced":
            self.between_ = copy.deepcopy(net).requires_grad_(False).eval()

    def loss(self, net, out, batch, stage):
        self.trace_.data[: len(batch.y)] += batch.x.mean((1, 2, 3)).detach()  # no version counts it
        self.calls_.append(len(batch.y))
        logits = out.logits + self.shift_[: out.logits.shape[1]]
        loss = torch.nn.functional.cross_entropy(logits, batch.y) + 1e-4 * self.trace_.mean()
        if stage.name == "balanced":
            loss = loss + (self.between_(batch.x).logits - out.logits).square().mean()
        return loss


def whimsical(*terms):
    made: Any = Whimsical(memory=rr.Memory(36, pick="herding"))
    for term in terms:
        made = made + term
    return made


def dropout_net():
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, 2, 1), torch.nn.BatchNorm2d(6), torch.nn.ReLU(),
        torch.nn.Dropout(0.5), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(6, 2),
    )  # fmt: skip
    return rr.net(module, size=16)


def left(folder):
    """What a run leaves, without its times."""
    state = load_checkpoint(list(found_in(folder).values())[-1])
    for record in state["records"]:
        del record["seconds"], record["seconds_a_step"], record["cpu_a_step"]
    return state


def assert_same(a, b, where=""):
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, pair in enumerate(zip(a, b, strict=True)):
            assert_same(*pair, f"{where}/{i}")
    else:
        assert a == b, where


@pytest.mark.parametrize(
    ("optimiser", "term"),
    [
        ("radam", rr.RRR(profile="released", rows=7)),  # its own optimiser; statistics and dropout
        ("sgd", rr.Evidence(view="shared")),
    ],
)
def test_from_every_step_the_bits_are_the_same(optimiser, term, tiny_train, tmp_path, monkeypatch):
    stream = rr.stream("glyphs", tasks=2, classes=4, train=12, test=4, size=16)
    learner, net = whimsical(term), dropout_net()
    train = replace(tiny_train, optimiser=optimiser, milestones=(1,), noise=0.01, clip=5.0)
    save, stages = Run.save_step, set()

    def saved(self, tasks, steps, state):
        save(self, tasks, steps, state)
        stages.add(state["stage"])
        shutil.copytree(self.folder, tmp_path / f"{tasks}-{steps}")

    def run(folder, **how):
        return rr.fit(learner, net, stream, train=train, run=folder, progress=False, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_step", saved)
        run(tmp_path / "whole", checkpoint=1)
    copies = sorted(tmp_path.glob("?-*"))
    assert len(copies) > 12 and stages == {0, 1, 2}
    for copied in copies:
        run(copied)
        assert_same(left(copied), left(tmp_path / "whole"), copied.name)


def test_what_does_not_change_is_written_once_a_task(tiny_stream, tiny_net, tiny_train, tmp_path):
    """Memory and an old teacher are in the task's checkpoint; a step refers to them."""
    learner = whimsical(rr.Evidence(rows=4))
    with pytest.raises(Stopped):
        stop_at(learner, tiny_net, tiny_stream, tiny_train, tmp_path / "run", task=2, step=3)
    step = load_checkpoint(found_in(tmp_path / "run")[2, 3])
    columns = step["learner"]["memory"]["columns_"]
    maps = columns["evidence.map"]["ragged!"][0]
    assert set(columns["x"]) == {"same!"} and set(maps) == {"same!"}
    assert isinstance(step["learner"]["trace_"], torch.Tensor)  # it does change
    task = load_checkpoint(found_in(tmp_path / "run")[2, 0])
    whole = fill(step["learner"], task["learner"])
    assert torch.equal(whole["memory"]["columns_"]["x"], task["learner"]["memory"]["columns_"]["x"])
    with pytest.raises(Damaged, match="does not fit"):
        fill(step["learner"], load_checkpoint(found_in(tmp_path / "run")[1, 0])["learner"])


def stop_at(learner, net, stream, train, folder, task, step, checkpoint=200):
    """A run that a signal reaches before a step."""
    from rightreasons.loop import Loop

    take = Loop.take_steps

    def taking(self, which, stage, number=0, saved=None):
        for epoch in take(self, which, stage, number, saved):
            if which.index == task and self.steps == step:
                os.kill(os.getpid(), 15)
            yield epoch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "take_steps", taking)
        rr.fit(learner, net, stream, train=train, run=folder, progress=False, checkpoint=checkpoint)


def test_references_are_by_content():
    base = {"a": torch.arange(300.0), "b": [torch.ones(300), torch.ones(2)], "n": 3}
    known = marks(base)
    now = {"a": torch.arange(300.0), "b": [torch.ones(300).double(), torch.ones(2)], "n": 4}
    thin = lean(now, known)
    assert set(thin["a"]) == {"same!"}  # equal, though another tensor
    assert isinstance(thin["b"][0], torch.Tensor)  # of another type
    assert isinstance(thin["b"][1], torch.Tensor)  # too small to refer to
    assert_same(fill(thin, base), now)


def test_a_signal_saves_says_where_and_leaves_the_handlers(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    import signal

    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    learner = rr.ER(memory=rr.Memory(6))
    with pytest.raises(Stopped, match="stopped after step 4 of task 2") as caught:
        stop_at(learner, tiny_net, tiny_stream, tiny_train, tmp_path / "a", task=1, step=4)
    assert caught.value.signal == signal.SIGTERM
    assert list(found_in(tmp_path / "a")) == [(1, 0), (1, 4)]
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    Lock(tmp_path / "a").free()  # nobody holds it


def test_two_inside_a_task_are_kept_and_one_a_task(tiny_stream, tiny_net, tiny_train, tmp_path):
    learner = rr.ER(memory=rr.Memory(6))
    words = (learner, tiny_net, tiny_stream, tiny_train, tmp_path / "a")
    with pytest.raises(Stopped):
        stop_at(*words, task=1, step=5, checkpoint=2)
    assert list(found_in(tmp_path / "a")) == [(1, 0), (1, 4), (1, 5)]
    rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a", progress=False)
    assert list(found_in(tmp_path / "a")) == [(1, 0), (2, 0), (3, 0)]


# --- damage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    path = tmp_path_factory.mktemp("sample") / "task-1.pt"
    generator = torch.Generator().manual_seed(0)
    state = {"net": torch.randn(400, generator=generator), "records": [{"a": 0.5}], "n": [1, None]}
    save_checkpoint(path, state)
    return path.read_bytes()


@pytest.mark.parametrize("how", ["flip", "cut", "zero"])
def test_damage_at_fifty_places_is_detected_every_time(how, sample, tmp_path):
    draw = random.Random(f"damage {how}")
    path = tmp_path / "task-1.pt"
    path.write_bytes(sample)
    assert load_checkpoint(path)["records"] == [{"a": 0.5}]
    places = [0, len(sample) - 1, len(sample) - 65, len(sample) - 66]  # checksum, its length
    for place in places + [draw.randrange(len(sample)) for _ in range(50)]:
        data = bytearray(sample)
        if how == "cut":
            del data[place:]
        elif how == "flip":
            data[place] ^= 1 << draw.randrange(8)
        else:
            data[place : place + 8] = b"\xff" * 8
        assert bytes(data) != sample
        path.write_bytes(data)
        with pytest.raises(Damaged):
            load_checkpoint(path)


def test_a_checkpoint_is_an_ordinary_file_of_torch(sample, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(sample)
    assert torch.load(path, weights_only=True)["n"] == [1, None]


def test_a_run_falls_back_to_the_checkpoint_before_with_a_warning(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    learner = rr.ER(memory=rr.Memory(6)) + rr.Evidence(rows=4)

    def run(name):
        return rr.fit(
            learner, tiny_net, tiny_stream, train=tiny_train, run=tmp_path / name, progress=False,
            checkpoint=2,
        )  # fmt: skip

    run("whole")
    words = (learner, tiny_net, tiny_stream, tiny_train, tmp_path / "a")
    with pytest.raises(Stopped):
        stop_at(*words, task=1, step=5, checkpoint=2)
    damage(found_in(tmp_path / "a")[1, 5])
    with pytest.warns(RunWarning, match="step-2-5.pt is damaged.*the one before it is used"):
        run("a")
    assert_same(left(tmp_path / "a"), left(tmp_path / "whole"))
    for path in found_in(tmp_path / "a").values():
        damage(path)
    with pytest.warns(RunWarning) as said:
        run("a")
    assert "begins anew" in str(said[-1].message)
    assert_same(left(tmp_path / "a"), left(tmp_path / "whole"))


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def test_a_write_that_fails_half_way_leaves_the_one_before(sample, tmp_path, monkeypatch):
    path = tmp_path / "task-1.pt"
    path.write_bytes(sample)
    real, written = os.write, 0

    def full(descriptor, data):
        nonlocal written
        if written + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += len(data)
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left") as caught:
            save_checkpoint(path, {"x": torch.zeros(5000)})
    assert caught.value.filename == str(path)
    assert path.read_bytes() == sample and list(tmp_path.iterdir()) == [path]
    (tmp_path / "records.jsonl").write_text("old\n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: full(0, b"x" * 2000))
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "records.jsonl", "new\n" * 1000)
    assert (tmp_path / "records.jsonl").read_text() == "old\n"


def test_a_write_in_small_parts_is_whole(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    save_checkpoint(tmp_path / "a.pt", {"x": torch.arange(50)})
    assert torch.equal(load_checkpoint(tmp_path / "a.pt")["x"], torch.arange(50))


def test_a_disk_that_fills_up_loses_nothing_that_was_saved(
    tiny_stream, tiny_net, tiny_train, tmp_path, monkeypatch
):
    learner = rr.ER(memory=rr.Memory(6))

    def run():
        return rr.fit(
            learner, tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "a", progress=False,
            checkpoint=2,
        )  # fmt: skip

    real, calls = os.write, 0

    def full(descriptor, data):
        nonlocal calls
        calls += 1
        if calls > 900:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            run()
    assert found_in(tmp_path / "a")
    assert not list((tmp_path / "a").rglob("*.partial"))
    assert run().R.shape == (3, 3)


# --- one process a folder ----------------------------------------------------------------------


def test_the_second_process_is_refused_and_a_dead_one_holds_nothing(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    def run():
        return rr.fit(
            rr.Finetune(), tiny_net, tiny_stream, train=tiny_train, run=tmp_path, progress=False
        )

    lock = Lock(tmp_path)
    with pytest.raises(rr.UserError, match="another process works in"):
        run()
    lock.free()
    run()
    child = os.fork()
    if not child:
        Lock(tmp_path)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    run()


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(RunWarning, match="cannot be locked .*see that no other process works in it"):
        Lock(tmp_path)


def test_a_run_that_has_a_result_has_no_checkpoint_inside_a_task(
    tiny_stream, tiny_net, tiny_train, tmp_path, monkeypatch
):
    """Nobody goes on with such a run, so nobody would remove it later."""

    def run():
        return rr.fit(
            rr.ER(memory=rr.Memory(6)), tiny_net, tiny_stream, train=tiny_train, run=tmp_path,
            progress=False, checkpoint=2,
        )  # fmt: skip

    def fails(path, text):
        if path.name == "result.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr("rightreasons.runs.write", fails)
        with pytest.raises(OSError, match="No space left"):
            run()
    assert list(found_in(tmp_path)) == [(1, 0), (2, 0), (3, 0)]
    assert run().R.shape == (3, 3)


def test_a_step_that_no_run_saves_is_refused(tiny_stream, tiny_net, tiny_train, tmp_path):
    learner = rr.ER(memory=rr.Memory(6))
    words = (learner, tiny_net, tiny_stream, tiny_train, tmp_path / "a")
    with pytest.raises(Stopped):
        stop_at(*words, task=1, step=4)
    path = found_in(tmp_path / "a")[1, 4]
    state = load_checkpoint(path)
    for key, value, said in (
        ("losses", 3, r"losses: int, expected dict\)"),
        ("stage", None, r"stage: NoneType, expected int\)"),
        ("optimisers", [{}], "the optimiser of a checkpoint does not fit this run"),
    ):
        save_checkpoint(path, state | {key: value})
        with pytest.raises(rr.UserError, match=said):
            stop_at(*words, task=1, step=5)


# --- numbers that go wrong ---------------------------------------------------------------------


@dataclass
class Breaks(rr.Finetune):
    """Its own loss is not finite at a step."""

    bad: int = 25
    count_: int = field(default=0, init=False)
    name: ClassVar[str] = "breaks"

    def loss(self, net, out, batch, stage):
        self.count_ += 1
        extra = float("nan") if self.count_ == self.bad else 0.0
        return super().loss(net, out, batch, stage) + extra


def test_a_learners_own_loss_is_named_with_task_step_and_rate(
    tiny_stream, tiny_net, tiny_train, tmp_path
):
    train = replace(tiny_train, epochs=20, milestones=(4,), gamma=0.5, lr=0.01)
    with pytest.raises(rr.UserError) as caught:
        rr.fit(
            Breaks(), tiny_net, tiny_stream, train=train, run=tmp_path, progress=False, checkpoint=3
        )
    said = str(caught.value)
    assert "breaks loss (cross entropy is finite, what breaks adds is not) is nan" in said
    assert "in task 1 at step 25 (epoch 9, lr 0.005)" in said and "train.lr=0.0005" in said
    saved = found_in(tmp_path)
    assert list(saved) == [(0, 21), (0, 24)]  # none after the step
    assert all(load_checkpoint(path)["net"]["tensors"] for path in saved.values())


def test_a_term_is_named_with_its_weight(tiny_stream, tiny_net, tiny_train, monkeypatch):
    real = rr.Evidence.__call__
    monkeypatch.setattr(rr.Evidence, "__call__", lambda *a: real(*a) / 0)
    learner = rr.ER(memory=rr.Memory(6)) + rr.Evidence(rows=4, weight=0.5)
    said = r"the evidence loss, times its weight of 0.5, is (inf|nan) in task 2 at step 1 "
    with pytest.raises(rr.UserError, match=said):
        rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)
    losses = Losses(learner, tiny_net)
    with pytest.raises(rr.UserError, match="type evidence.weight=0.05, or train.lr=0.01"):
        losses.note("evidence", torch.tensor(float("inf")), At(2, 1, 1, 0.1))


def test_a_weight_that_makes_a_finite_loss_infinite_is_named(tiny_stream, tiny_net, tiny_train):
    learner = rr.ER(memory=rr.Memory(6)) + rr.Evidence(rows=4, weight=1e39)
    with pytest.raises(rr.UserError, match=r"evidence loss, times its weight of 1e\+39, is inf in"):
        rr.fit(learner, tiny_net, tiny_stream, train=tiny_train, progress=False)


@dataclass
class Steep(rr.Finetune):
    """Its loss is finite at every step, and the gradient of one is not."""

    count_: int = field(default=0, init=False)
    name: ClassVar[str] = "steep"

    def loss(self, net, out, batch, stage):
        self.count_ += 1
        extra = (0 * out.logits).square().sum().sqrt() if self.count_ == 3 else 0.0
        return super().loss(net, out, batch, stage) + extra


def test_a_loss_is_not_blamed_for_the_gradient_of_the_step_before(
    tiny_stream, tiny_net, tiny_train
):
    said = "weights are not finite before step 4 of task 1, though the losses until then are"
    with pytest.raises(rr.UserError, match=said):
        rr.fit(Steep(), tiny_net, tiny_stream, train=tiny_train, progress=False)


def test_on_the_cpu_a_loss_that_is_no_number_moves_no_weight(tiny_stream, tiny_net, tiny_train):
    seen = []

    @dataclass
    class Watched(Breaks):
        def step(self, net, batch, objective, update):
            seen.append(net)
            super().step(net, batch, objective, update)

    with pytest.raises(rr.UserError, match="breaks loss .* in task 1 at step 3 "):
        rr.fit(Watched(bad=3), tiny_net, tiny_stream, train=tiny_train, progress=False)
    assert len(seen) == 3
    assert all(p.isfinite().all() for p in seen[0].parameters())


def test_a_gradient_that_is_not_finite_is_seen_before_anything_is_saved(
    tiny_stream, tiny_net, tiny_train, tmp_path, monkeypatch
):
    """The last step of a task: no loss comes after it that could show it."""
    step = torch.optim.AdamW.step
    count = 0

    def breaking(self, *a):
        nonlocal count
        count += 1
        step(self, *a)
        if count == 6:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(float("inf"))

    monkeypatch.setattr(torch.optim.AdamW, "step", breaking)
    with pytest.raises(rr.UserError, match="weights are not finite after step 6 of task 1"):
        rr.fit(rr.Finetune(), tiny_net, tiny_stream, train=tiny_train, run=tmp_path, progress=False)
    assert not found_in(tmp_path)


def test_a_run_whose_checkpoints_are_gone_begins_anew_and_says_where(
    tiny_stream, tiny_net, tiny_train, tmp_path, monkeypatch
):
    """What an older run has left behind, its result above all, is not taken for this one's."""
    given = {"train": tiny_train, "run": tmp_path, "progress": False}
    learner = rr.ER(memory=rr.Memory(6))
    rr.fit(learner, tiny_net, tiny_stream, **given)
    run = Run(tmp_path, read_config(tmp_path))
    assert run.finished
    shutil.rmtree(tmp_path / "checkpoints")
    environment = tmp_path / "environment.json"
    environment.write_text(environment.read_text("utf-8").replace('"cpu": "', '"cpu": "older '))
    ends = iter([rr.ER.end])
    with monkeypatch.context() as patch:  # killed at the end of the second task
        patch.setattr(rr.ER, "end", lambda *given: next(ends)(*given))
        with pytest.raises(StopIteration):
            rr.fit(learner, tiny_net, tiny_stream, **given)
    assert list(found_in(tmp_path)) == [(1, 0)]
    assert not run.finished
    assert "older" not in environment.read_text("utf-8")
    rr.fit(learner, tiny_net, tiny_stream, **given)
    assert run.finished
