"""CIFAR-100's official files: what is read, and pickles and archives that are refused."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import rightreasons as rr
from rightreasons.data import cifar100
from rightreasons.data.cifar100 import Cifar100
from rightreasons.errors import DataWarning, UserError

NAMES = [f"class {i:02d}" for i in range(100)]


def split(n, seed):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    return {b"data": data, b"fine_labels": (np.arange(n) % 100).tolist()}


def content():
    names = {b"fine_label_names": [name.encode() for name in NAMES]}
    return {"train": split(300, 0), "test": split(100, 1), "meta": names}


def put(folder, files, protocol=2):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def official(monkeypatch):
    """Files are compared with their own sums, so that nothing is warned of."""

    def accept(folder):
        for name in cifar100.MD5:
            if (folder / name).exists():
                with (folder / name).open("rb") as file:
                    monkeypatch.setitem(cifar100.MD5, name, cifar100._md5(file))
        return folder

    return accept


def all_pixels(images):
    return images.pixels(torch.arange(len(images))).numpy()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_images_go_with_their_labels(tmp_path, official, protocol):
    files = content()
    source = Cifar100(str(official(put(tmp_path / "x", files, protocol))))
    assert source.names == tuple(NAMES) and source.flip
    train, test = source.load([7, 2])
    assert train.y.tolist() == [0, 0, 0, 1, 1, 1] and test.y.tolist() == [0, 1]
    rows = [7, 107, 207, 2, 102, 202]
    expected = files["train"][b"data"][rows].reshape(6, 3, 32, 32)
    assert np.array_equal(all_pixels(train), expected)


def test_what_python_2_wrote(tmp_path, official):
    """The official files hold byte strings and NumPy's old module names."""
    data = np.arange(3072, dtype=np.uint8)
    raw = b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\n"
    raw += b"ndarray\nq\x04K\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K"
    raw += b"\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c"
    raw += b"\x00\x00" + data.tobytes() + b"tbU\x0bfine_labels]K\x05au."
    pickletools.dis(raw, io.StringIO())  # it is well formed
    folder = official(put(tmp_path / "x", content() | {"train": raw}))
    train = Cifar100(str(folder)).load([5]).train
    assert np.array_equal(all_pixels(train).ravel(), data)


def test_column_major_arrays(tmp_path, official):
    files = content()
    expected = files["train"][b"data"][[4, 104, 204]]
    files["train"][b"data"] = np.asfortranarray(files["train"][b"data"])
    train = Cifar100(str(official(put(tmp_path / "x", files)))).load([4]).train
    assert np.array_equal(all_pixels(train).reshape(3, -1), expected)


def test_another_checksum_warns_by_name_and_loads(tmp_path):
    source = Cifar100(str(put(tmp_path / "x", content())))
    with pytest.warns(DataWarning, match="meta is not the official file"):
        assert len(source.names) == 100
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(source.load(range(100)).train) == 300
    assert [str(w.message).split(": ")[1].split()[0] for w in caught] == ["train", "test"]
    assert all("\n" not in str(w.message) for w in caught)


def test_it_is_found_below_rrr_data(tmp_path, official, monkeypatch):
    official(put(tmp_path / "cifar-100-python", content()))
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    stream = rr.stream("cifar100", tasks=[3, 2])
    assert stream.class_names == tuple(NAMES[:5])
    assert stream.data == {"source": "cifar100", "path": ""}
    assert [len(task.train) for task in stream] == [9, 6]
    assert Cifar100(str(tmp_path)).names == tuple(NAMES)


def archive(file, members):
    with tarfile.open(file, "w:gz") as opened:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                info.size = len(data)
            opened.addfile(info, io.BytesIO(data or b""))
    return file


def members():
    files = {name: pickle.dumps(value, protocol=2) for name, value in content().items()}
    return {f"cifar-100-python/{name}": data for name, data in files.items()}


def test_the_archive_gives_what_the_folder_gives(tmp_path, official, monkeypatch):
    folder = official(put(tmp_path / "x", content()))
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    archive(tmp_path / "cifar-100-python.tar.gz", members())
    source = Cifar100()
    assert source.place.is_file() and source.names == tuple(NAMES)
    a, b = source.load([3, 1]), Cifar100(str(folder)).load([3, 1])
    assert np.array_equal(all_pixels(a.train), all_pixels(b.train))
    assert sorted(f.name for f in tmp_path.iterdir()) == ["cifar-100-python.tar.gz", "x"]


# --- refusals ------------------------------------------------------------------------------------


def refusal(place):
    with pytest.raises(UserError) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        source = Cifar100(str(place))
        assert source.names
        source.load([0])
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_nothing_there(tmp_path, monkeypatch):
    assert "is not in" in refusal(tmp_path) and "Krizhevsky" in refusal(tmp_path)
    monkeypatch.setenv("RRR_DATA", str(tmp_path))
    assert str(tmp_path) in refusal("")
    folder = put(tmp_path / "x", content())
    (folder / "test").unlink()
    assert "test cannot be read (No such file" in refusal(folder)


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def codes(tmp_path):
    flag = str(tmp_path / "flag")
    function = b"\x80\x02c_codecs\nencode\n}X\x0c\x00\x00\x00__defaults__K\x01sb."
    return {
        "system": Evil(os.system, f"touch {flag}"),
        "eval": {b"data": Evil(eval, f"open({flag!r}, 'w')")},
        "open": [Evil(open, flag, "w")],
        "object": {b"data": Path(flag)},
        "encode": {b"data": Evil(__import__("codecs").encode, "abc", "rot13")},
        "numpy": {b"data": Evil(np.load, flag, None, True)},
        "build": function,
    }


@pytest.mark.parametrize("what", ["system", "eval", "open", "object", "encode", "numpy", "build"])
@pytest.mark.parametrize("which", ["meta", "train"])
def test_a_pickle_that_carries_code_is_refused_and_not_run(tmp_path, what, which):
    folder = put(tmp_path / "x", content() | {which: codes(tmp_path)[what]})
    text = refusal(folder)
    assert f"{which} is no pickle of NumPy arrays" in text and "nothing in it was run" in text
    assert not (tmp_path / "flag").exists()


@pytest.mark.parametrize("cut", [0, 1, 10, 1000, -1])
def test_a_truncated_pickle(tmp_path, cut):
    files = content()
    data = pickle.dumps(files["train"], protocol=2)
    assert "train is no pickle" in refusal(put(tmp_path / "x", files | {"train": data[:cut]}))


def test_noise_is_no_pickle(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(50):
        noise = rng.bytes(300)
        assert "train is no pickle" in refusal(put(tmp_path / "x", content() | {"train": noise})), i


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({b"data": np.zeros((300, 3071), np.uint8)}, "uint8 (300, 3071)"),
        ({b"data": np.zeros((300, 3072), np.float32)}, "float32 (300, 3072)"),
        ({b"data": [1, 2]}, "list"),
        ({b"data": np.zeros((299, 3072), np.uint8)}, "299 images and 300 labels"),
        ({b"fine_labels": [100] * 300}, "label 100"),
        ({b"fine_labels": [-1] * 300}, "label -1"),
        ({b"fine_labels": ["a"] * 300}, "whole numbers"),
        ({b"fine_labels": None}, "whole numbers"),
        ({b"data": np.array([None] * 300, dtype=object)}, "an array of object"),
    ],
)
def test_contents_of_another_kind(tmp_path, change, seen):
    files = content()
    files["train"] = files["train"] | change
    assert seen in refusal(put(tmp_path / "x", files))


@pytest.mark.parametrize("names", [NAMES[:99], NAMES[:99] + NAMES[:1], None, 5])
def test_other_class_names(tmp_path, names):
    text = refusal(put(tmp_path / "x", content() | {"meta": {b"fine_label_names": names}}))
    assert "fine_label_names, expected 100" in text


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "cifar-100-python/../../evil"])
def test_an_archive_that_leads_out_of_its_folder(tmp_path, name):
    file = archive(tmp_path / "a.tar.gz", {name: b"x"} | members())
    assert "leads out of its folder" in refusal(file)
    assert [f.name for f in tmp_path.iterdir()] == ["a.tar.gz"]


def test_archives_that_are_none(tmp_path):
    file = archive(tmp_path / "a.tar.gz", members())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as an archive" in refusal(file)
    file.write_bytes(b"hello")
    assert "cannot be read as an archive" in refusal(file)
    archive(file, {"cifar-100-python/train": b"x"})
    assert "has no member cifar-100-python/meta" in refusal(file)
    archive(file, members() | {"cifar-100-python/meta": None})
    assert "meta is no file of usual size" in refusal(file)


# --- the real data -------------------------------------------------------------------------------


@pytest.fixture
def real():
    data = os.environ.get("RRR_DATA")
    if not data or not (Path(data) / "cifar-100-python").exists():
        pytest.skip("RRR_DATA is not set: real CIFAR-100 not tested")
    return Cifar100(str(Path(data) / "cifar-100-python"))


@pytest.mark.filterwarnings("ignore::rightreasons.errors.DataWarning")
def test_real_cifar100_loads_whole(real):
    splits = real.load(range(100))
    assert real.names[:2] == ("apple", "aquarium_fish") and real.names[99] == "worm"
    for part, count in ((splits.train, 500), (splits.test, 100)):
        assert part.x.dtype == torch.uint8 and part.x.shape == (100 * count, 3, 32, 32)
        assert part.y.bincount().tolist() == [count] * 100
