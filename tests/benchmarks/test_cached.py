"""The benchmark of the cache: both sides see the same images, one of them through the file."""

from __future__ import annotations

import cached
import numpy as np
import pytest
import torch

from rightreasons.data import cache


@pytest.fixture
def streams(tmp_path, monkeypatch):
    monkeypatch.setenv("RRR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALL", 0)
    monkeypatch.setattr(cached, "SIZE", 16)
    base = cached.photographs(tmp_path / "photographs", 200)
    mapped = cached.cached(base)
    return base, tmp_path / "cache", mapped, cached.in_ram(mapped)


def test_both_sides_train_on_the_same_images(streams):
    _, folder, mapped, ram = streams
    (file,) = folder.glob("photographs-*/x.npy")
    assert torch.equal(torch.from_numpy(np.load(file)), ram[0].train.x)
    assert mapped[1].train.x.data_ptr() != ram[1].train.x.data_ptr()
    for stream in (mapped, ram):
        assert sum(1 for _ in cached.run(stream, 1)) == 3  # 80 train images of the second task
    for task, other in zip(mapped, ram, strict=True):
        every = torch.arange(len(task.train))
        assert torch.equal(task.train.pixels(every), other.train.pixels(every))


def test_a_first_epoch_opens_the_file_anew(streams, monkeypatch):
    base, folder, *_ = streams
    monkeypatch.setattr(cached, "ROUNDS", 1)
    opened = []
    forget = cached.forget
    monkeypatch.setattr(cached, "forget", lambda place: opened.append(place) or forget(place))
    cold, warm = cached.first_epochs(base, folder)
    assert opened == [folder] and len(cold) == len(warm) == 1
    assert all(epoch.wall > 0 and epoch.cpu > 0 and epoch.waits >= 0 for epoch in cold + warm)
