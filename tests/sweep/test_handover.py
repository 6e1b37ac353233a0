"""Files of a run that is made elsewhere: handed over in order, and enough to go on from."""

from __future__ import annotations

import os

import pytest

from rightreasons.sweep import handover
from rightreasons.sweep.handover import PREFIX, Courier, needed, put


@pytest.fixture
def there(tmp_path):
    """A run folder with two tasks behind it, in the middle of the third."""
    folder = tmp_path / "there"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "maps").mkdir()
    names = ["task-1.pt", "task-2.pt", "task-3.pt", "step-4-6.pt", "step-4-8.pt"]
    for name in ["config.yaml", "records.jsonl", *(f"checkpoints/{name}" for name in names)]:
        (folder / name).write_text(name)
    (folder / "maps" / "task-1.npz").write_text("maps")
    return folder


def test_what_a_run_needs_to_go_on_is_all_that_is_sent(there, tmp_path):
    prefix = tmp_path / "first.pt"
    found = needed(there, prefix)
    kept = {"task-2.pt", "task-3.pt", "step-4-6.pt", "step-4-8.pt"}
    assert set(found) == {"config.yaml", "records.jsonl", *(f"checkpoints/{k}" for k in kept)}
    prefix.write_text("first")
    assert needed(there, prefix)[PREFIX] == b"first"
    assert needed(tmp_path / "nowhere", None) == {}


def test_new_files_are_sent_in_the_order_of_writing_and_lost_ones_named(there, tmp_path):
    prefix, here = tmp_path / "first.pt", tmp_path / "here"
    sent = []
    courier = Courier(there, prefix, lambda name, content: sent.append((name, content)))
    courier.deliver()
    assert sent == []  # it was there before
    for second, name in enumerate(["step-4-10.pt", "task-4.pt"]):
        path = there / "checkpoints" / name
        path.write_text(name)
        os.utime(path, (second, second))
    (there / "checkpoints" / "step-4-6.pt").unlink()
    (there / "half.partial").write_text("not yet")
    prefix.write_text("first")
    courier.deliver()
    assert [name for name, _ in sent] == [
        "checkpoints/step-4-10.pt",
        "checkpoints/task-4.pt",
        PREFIX,
        "checkpoints/step-4-6.pt",
    ]
    (here / "checkpoints").mkdir(parents=True)
    (here / "checkpoints" / "step-4-6.pt").write_text("old")
    for name, content in sent:
        put(here, tmp_path / "prefix" / "copy.pt", name, content)
    assert sorted(path.name for path in (here / "checkpoints").iterdir()) == [
        "step-4-10.pt",
        "task-4.pt",
    ]
    assert (tmp_path / "prefix" / "copy.pt").read_text() == "first"


def test_files_are_sent_while_the_run_goes_on_and_at_its_end_whatever_it_is(there, monkeypatch):
    monkeypatch.setattr(handover, "EVERY", 0.01)
    sent = {}
    courier = Courier(there, None, sent.__setitem__)
    with pytest.raises(KeyboardInterrupt), courier.walking():
        (there / "result.json").write_text("1")
        while "result.json" not in sent:
            pass
        (there / "last.json").write_text("2")
        raise KeyboardInterrupt
    assert sent == {"result.json": b"1", "last.json": b"2"}
