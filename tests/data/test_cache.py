"""Many images decoded once: the same pixels, resumed, shared, and never half-used."""

from __future__ import annotations

import errno
import json
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from rightreasons.data import cache, worker
from rightreasons.data.cache import decode
from rightreasons.data.image import Item, Unreadable
from rightreasons.errors import UserError

SIZE = 8


@pytest.fixture
def base(tmp_path, monkeypatch):
    """The cache's folder; everything is large, and chunks are small."""
    monkeypatch.setenv("RRR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SMALL", 1)
    monkeypatch.setattr(worker, "CHUNK", 4)
    return tmp_path / "cache"


def pictures(folder, n=10):
    folder.mkdir()
    rng = np.random.default_rng(0)
    items = []
    for i in range(n):
        pixels = rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:04d}.png")
        Image.fromarray((pixels[..., 0] >= 100).astype(np.uint8) * 255).save(folder / f"{i}.bmp")
        items.append(Item(str(folder / f"{i:04d}.png"), str(folder / f"{i}.bmp")))
    return items


def made(items, tmp_path, masks=True):
    return decode(items, SIZE, masks, str(tmp_path / "a"), "a")


def count_reads(monkeypatch):
    reads = []
    plain = worker.read_item

    def counted(item, *args):
        reads.append(item.file)
        return plain(item, *args)

    monkeypatch.setattr(worker, "read_item", counted)
    return reads


def folders(base):
    return sorted(f.name for f in base.iterdir() if not f.name.startswith("."))


def test_cached_images_are_those_in_memory(tmp_path, base, monkeypatch, capsys):
    items = pictures(tmp_path / "a")
    cached = made(items, tmp_path)
    assert isinstance(cached.x, np.memmap) and isinstance(cached.masks, np.memmap)
    assert "10 are decoded once" in capsys.readouterr().err
    torch.from_numpy(cached.x)[0, 0, 0, 0] = 1  # no warning; the file keeps its bytes
    monkeypatch.setattr(cache, "SMALL", 2**20)
    plain = made(items, tmp_path)
    assert not isinstance(plain.x, np.memmap)
    assert np.array_equal(cached.x[1:], plain.x[1:])
    assert np.array_equal(cached.masks, plain.masks) and plain.masks.any()
    assert np.array_equal(plain.masks, plain.x[:, 0] >= 100)
    assert cached.digests == plain.digests and cached.bad == plain.bad == {}
    assert len(folders(base)) == 1


def test_it_is_made_once_and_anew_when_a_file_changes(tmp_path, base, monkeypatch):
    items = pictures(tmp_path / "a")
    first = made(items, tmp_path)
    reads = count_reads(monkeypatch)
    assert np.array_equal(made(items, tmp_path).x, first.x) and not reads
    shutil.copytree(tmp_path / "a", tmp_path / "b")  # times of change are copied
    moved = [Item(*(s.replace("/a/", "/b/") for s in item[:2])) for item in items]
    decode(moved, SIZE, True, str(tmp_path / "b"), "a")
    assert not reads
    Image.new("RGB", (SIZE, SIZE), "red").save(items[3].file)
    again = made(items, tmp_path)
    assert len(reads) == 10 and (again.x[3, 0] == 255).all()
    made(items, tmp_path, masks=False)
    assert len(folders(base)) == 3


def test_an_interrupted_cache_is_resumed_and_not_used_before(tmp_path, base, monkeypatch):
    items = pictures(tmp_path / "a")
    plain = worker.fill(items, SIZE, True)
    reads = count_reads(monkeypatch)
    fill = worker.fill

    def stop(part, *args):
        if part[0].file == items[8].file:
            raise KeyboardInterrupt
        return fill(part, *args)

    monkeypatch.setattr(worker, "fill", stop)
    with pytest.raises(KeyboardInterrupt):
        made(items, tmp_path)
    assert folders(base)[0].endswith(".partial") and len(folders(base)) == 1
    monkeypatch.setattr(worker, "fill", fill)
    reads.clear()
    whole = made(items, tmp_path)
    assert reads == [items[8].file, items[9].file]
    assert np.array_equal(whole.x, plain.x) and np.array_equal(whole.masks, plain.masks)
    assert not folders(base)[0].endswith(".partial")


def test_an_interrupted_cache_is_resumed_from_another_folder(tmp_path, base, monkeypatch):
    """Files are named as they were typed, and the cache by where they lie in their folder."""
    items = pictures(tmp_path / "a")
    fill = worker.fill

    def stop(part, *args):
        if part[0].file.endswith("0008.png"):
            raise KeyboardInterrupt
        return fill(part, *args)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(worker, "fill", stop)
    with pytest.raises(KeyboardInterrupt):
        near = [Item(f"a/{i:04d}.png", f"a/{i}.bmp") for i in range(10)]
        decode(near, SIZE, True, "a", "a")
    monkeypatch.setattr(worker, "fill", fill)
    monkeypatch.chdir("/")
    assert folders(base)[0].endswith(".partial")
    found = made(items, tmp_path)
    assert not found.bad and np.array_equal(found.x, fill(items, SIZE, True).x)
    assert len(folders(base)) == 1


def test_several_processes_that_import_no_torch(tmp_path, base, monkeypatch):
    monkeypatch.setattr(cache, "FEW", 1)
    monkeypatch.setattr(worker, "CHUNK", 256)  # what the processes have
    monkeypatch.setattr(cache, "cores", lambda: 2)
    items = pictures(tmp_path / "a", 300)
    bad = tmp_path / "a" / "bad.png"
    bad.write_text("no image")
    items.insert(299, Item(str(bad)))
    found = made(items, tmp_path)
    plain = worker.fill(items, SIZE, True)
    assert np.array_equal(found.x, plain.x) and np.array_equal(found.masks, plain.masks)
    assert found.digests == plain.digests
    assert found.bad == {299: f"{bad} cannot be read as an image (no known format)"}
    (folder,) = base.glob("a-*")
    assert sorted(f.name for f in folder.iterdir()) == ["images.json", "masks.npy", "x.npy"]
    code = f"import sys, {worker.__name__}; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_a_full_disk_in_a_process(tmp_path, base, monkeypatch):
    monkeypatch.setattr(cache, "FEW", 1)
    monkeypatch.setattr(worker, "CHUNK", 256)
    monkeypatch.setattr(cache, "cores", lambda: 2)
    items = pictures(tmp_path / "a", 300)
    start = cache._start

    def limited(*args):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            return start(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(cache, "_start", limited)
    with pytest.raises(UserError, match="is full; the part of the image cache"):
        made(items, tmp_path)
    assert folders(base) == []


def test_a_process_that_dies_is_told_of(tmp_path, base, monkeypatch):
    monkeypatch.setattr(cache, "FEW", 1)
    monkeypatch.setattr(cache, "cores", lambda: 2)
    monkeypatch.setattr(worker, "CHUNK", 256)
    items = pictures(tmp_path / "a", 300)
    start = cache._start

    def die(partial, *args):
        (partial / "plan.json").unlink(missing_ok=True)
        return start(partial, *args)

    monkeypatch.setattr(cache, "_start", die)
    with pytest.raises(UserError, match="process that decodes images ended"):
        made(items, tmp_path)
    assert all(name.endswith(".partial") for name in folders(base))


def test_the_second_process_that_dies_is_told_of_while_the_first_works(tmp_path, base, monkeypatch):
    monkeypatch.setattr(cache, "FEW", 1)
    monkeypatch.setattr(cache, "cores", lambda: 2)

    def start(partial, place, workers):
        (partial / f"{place}.log").write_text("out of memory" if place else "")
        return subprocess.Popen(["sh", "-c", "exit 3" if place else "exec sleep 900"])

    monkeypatch.setattr(cache, "_start", start)
    with pytest.raises(UserError, match=r"decodes images ended \(out of memory\); run it again"):
        made(pictures(tmp_path / "a"), tmp_path)


def test_a_file_that_can_be_read_again_is(tmp_path, base, monkeypatch):
    """Rights, or a disk on the network: the file itself is as it was."""
    items = pictures(tmp_path / "a")
    plain, away = worker.read_item, {items[3].file, items[7].file}

    def read(item, *args):
        if item.file in away:
            raise Unreadable(f"{item.file} cannot be read (Permission denied)")
        return plain(item, *args)

    monkeypatch.setattr(worker, "read_item", read)
    assert sorted(made(items, tmp_path).bad) == [3, 7]
    assert sorted(made(items, tmp_path).bad) == [3, 7]
    away.clear()
    found = made(items, tmp_path)
    assert not found.bad and np.array_equal(found.x, worker.fill(items, SIZE, True).x)


def test_a_disk_without_room_is_told_of_before_the_work(tmp_path, base, monkeypatch):
    items = pictures(tmp_path / "a")
    reads = count_reads(monkeypatch)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(UserError, match="0.0 GB free and the decoded images need"):
        made(items, tmp_path)
    assert not reads and folders(base) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, base, monkeypatch):
    items = pictures(tmp_path / "a")
    write = worker.write

    def full(file, content):
        if file.name == "000001.done":
            raise OSError(errno.ENOSPC, "No space left on device")
        write(file, content)

    monkeypatch.setattr(worker, "write", full)
    with pytest.raises(UserError, match="is full; the part of the image cache"):
        made(items, tmp_path)
    assert folders(base) == []
    monkeypatch.setattr(worker, "write", write)
    assert np.array_equal(made(items, tmp_path).x, worker.fill(items, SIZE, True).x)


def test_a_damaged_cache_is_made_anew(tmp_path, base):
    items = pictures(tmp_path / "a")
    first = made(items, tmp_path).x.copy()
    (folder,) = base.glob("a-*")
    for damage in (
        lambda: (folder / "x.npy").write_bytes(b"nothing"),
        lambda: (folder / "masks.npy").unlink(),
        lambda: (folder / "images.json").write_text("{"),
        lambda: np.save(folder / "x.npy", first[:3]),
        lambda: (folder / "images.json").write_text(json.dumps({"digests": [], "bad": {}})),
    ):
        damage()
        assert np.array_equal(made(items, tmp_path).x, first)


def test_a_cache_that_cannot_be_written(tmp_path, base):
    items = pictures(tmp_path / "a")
    base.write_text("a file")
    with pytest.raises(UserError, match="cannot be used .*set RRR_CACHE"):
        made(items, tmp_path)


def test_the_default_place(monkeypatch, tmp_path):
    monkeypatch.delenv("RRR_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder() == tmp_path / ".cache" / "rightreasons"
