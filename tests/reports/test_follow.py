"""Following runs: the diary, lines as tasks end, a page written anew, and TensorBoard's events."""

from __future__ import annotations

import importlib.util
import json
import threading
from pathlib import Path

import pytest

import rightreasons as rr
from rightreasons import progress
from rightreasons.config import resolve
from rightreasons.reports import write
from rightreasons.reports.read import read, read_run


def words():
    return ["stream.tasks=3", "stream.classes=6"]


@pytest.fixture
def unfinished(made_up, tmp_path):
    config = resolve("glyphs-small", "er", words())
    return made_up.make_run(tmp_path / "runs" / "er" / "0", config, 3, upto=2, maps=False)


def note(step, losses):
    line = {"at": "task 3/3 epoch 1/4", "step": step, "of": 90, "left": 125.0, "losses": losses}
    return json.dumps(line | {"time": 1e9 + step}) + "\n"


def test_a_run_writes_its_diary(tiny_stream, tiny_net, tiny_train, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    monkeypatch.setattr("rightreasons.loop.LOOK", 2)
    rr.fit(rr.ER(), tiny_net, tiny_stream, train=tiny_train, run=tmp_path / "r", progress=False)
    found = progress.notes(tmp_path / "r")
    assert [n["step"] for n in found] == sorted(n["step"] for n in found) and len(found) >= 3
    assert found[-1]["of"] >= found[-1]["step"] and set(found[0]["losses"]) == {"task"}


def test_half_a_line_of_the_diary_is_not_read(unfinished):
    (unfinished / "progress.jsonl").write_text(note(5, {"task": 0.5}) + '{"at": "ta')
    assert [n["step"] for n in progress.notes(unfinished)] == [5]
    said = write.standing(read_run(unfinished))
    assert said.startswith("2 of 3 tasks, accuracy on all classes seen")
    assert "task 3/3 epoch 1/4  task 0.5  step 5/90, about 2 min left" in said


def test_following_ends_with_the_last_run(unfinished, made_up, monkeypatch, capsys):
    folder = unfinished.parents[1]
    monkeypatch.setattr(write, "PAUSE", 0.05)
    seen = []

    def finish():
        text = made_up.make_record(made_up.np.random.default_rng(0), 2, True)
        with (unfinished / "records.jsonl").open("a") as file:
            file.write(json.dumps(text) + "\n")
        (unfinished / "result.json").write_text("{}")

    def look(book, target, paper, follow):
        seen.append([run.state for run in book.runs])
        real(book, target, paper, follow)
        if len(seen) == 1:
            assert 'http-equiv="refresh"' in target.read_text("utf-8")
            threading.Timer(0.2, finish).start()

    real = write.write_all
    monkeypatch.setattr(write, "write_all", look)
    write.follow([folder])
    out = capsys.readouterr().out
    assert seen[0] == ["2 of 3 tasks"] and seen[-1] == ["finished"]
    assert "er/0  2 of 3 tasks" in out and "er/0  finished, accuracy" in out
    assert out.endswith(f"all runs have ended; page: {folder / 'report' / 'report.html'}\n")
    page = (folder / "report" / "report.html").read_text("utf-8")
    assert 'http-equiv="refresh"' not in page


def test_events_are_written_once_and_can_be_read(unfinished):
    if importlib.util.find_spec("tensorboard") is None:
        pytest.skip("tensorboard is not installed: pip install 'rightreasons[tensorboard]'")
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rightreasons.reports.events import Events

    folder = unfinished.parents[1]
    (unfinished / "progress.jsonl").write_text(note(5, {"task": 0.5}))
    for _ in range(2):  # written again, nothing is there twice
        with Events(folder / "tensorboard") as events:
            events.add(read([folder]))
            events.add(read([folder]))
            with (unfinished / "progress.jsonl").open("a") as file:
                file.write(note(9, {"task": 0.25}))
            events.add(read([folder]))
    found = accumulators.EventAccumulator(str(folder / "tensorboard" / "er" / "0")).Reload()
    steps = [(e.step, e.value) for e in found.Scalars("steps/loss task")]
    assert steps == [(5, 0.5), (9, 0.25), (9, 0.25)]  # the diary itself has the second line twice
    run = read_run(unfinished)
    seen = [e.value for e in found.Scalars("tasks/seen")]
    assert seen == pytest.approx([100 * v for v in run.result.seen], rel=1e-6)


@pytest.mark.parametrize("place", ["runs/er/0", "/elsewhere/runs/er/0", "../runs/er/0"])
def test_events_never_lie_in_the_folders_of_runs(tmp_path, monkeypatch, place):
    pytest.importorskip("tensorboard")
    from torch.utils import tensorboard

    from rightreasons.reports.events import Events

    made = []
    monkeypatch.setattr(tensorboard, "SummaryWriter", made.append)
    Events(tmp_path / "tensorboard")._writer(place)
    inside = Path(made[0]).relative_to(tmp_path / "tensorboard")
    assert inside.parts[-3:] == ("runs", "er", "0") and ".." not in inside.parts


def test_without_tensorboard_one_sentence_says_what_to_type(unfinished, monkeypatch):
    from rightreasons.reports import events

    monkeypatch.setattr(events.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(rr.UserError, match=r"pip install 'rightreasons\[tensorboard\]'"):
        events.Events(unfinished)
