"""Files of strangers: nothing in them runs, nothing is written outside, and one sentence says so.

CIFAR's pickles and archives with ``..`` in them have their tests in tests/data/test_cifar100.py.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import struct
import zipfile
import zlib

import pytest
import torch
from inside import assert_calm, rrr
from PIL import Image
from refusals import TINY

from rightreasons.checkpoints import LENGTH, found_in, load_checkpoint
from rightreasons.errors import Damaged

MARK = "pwned"


class Harm:
    """Would make a file when it is unpickled."""

    def __reduce__(self):
        return os.system, (f"touch {MARK}",)


def harmful() -> bytes:
    """A file like torch's own, whose pickle runs a command."""
    good = io.BytesIO()
    torch.save({"records": [1]}, good)
    made = io.BytesIO()
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            harm = name.endswith("data.pkl")
            new.writestr(name, pickle.dumps(Harm(), protocol=2) if harm else old.read(name))
    return made.getvalue()


def sealed(data: bytes) -> bytes:
    """With a checksum that is right: anybody can make one."""
    return data[:-2] + LENGTH + hashlib.sha256(data).hexdigest().encode()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("untrusted")
    answer = rrr("run", "glyphs-small", "er", *TINY, "--out", "run", cwd=folder)
    assert answer.code == 0, answer.err
    Image.new("RGB", (32, 32)).save(folder / "image.png")
    return folder


def calm(*words, cwd):
    answer = rrr(*words, cwd=cwd)
    assert_calm(answer, words)
    assert not list(cwd.rglob(MARK))
    return answer


def test_a_checkpoint_that_would_run_code_is_refused_and_the_one_before_is_used(place):
    shutil.copytree(place / "run", place / "bad")
    (place / "bad" / "checkpoints" / "task-2.pt").write_bytes(sealed(harmful()))
    with pytest.raises(Damaged, match="it asks for posix.system"):
        load_checkpoint(place / "bad" / "checkpoints" / "task-2.pt")
    answer = calm("predict", "bad", "image.png", cwd=place)
    assert answer.code == 2 and "posix.system" in answer.err
    answer = calm("run", "glyphs-small", "er", *TINY, "--out", "bad", cwd=place)
    assert answer.code == 0 and "the one before it is used" in answer.err
    assert load_checkpoint(found_in(place / "bad")[2, 0])["records"]


def test_weights_that_would_run_code_are_refused(place):
    (place / "weights.pt").write_bytes(harmful())
    words = ["net.name=resnet18", "net.weights=weights.pt", "--out", "weights"]
    answer = calm("run", "glyphs-small", "er", *TINY, *words, cwd=place)
    assert answer.code == 2 and "nothing in it was run" in answer.err
    assert not (place / "weights").exists()


LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{f'*{chr(97 + i)}, ' * 9}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method: !!python/object/apply:os.system [touch pwned]\n", "is not valid YAML"),
        ("method: !!python/name:os.system\n", "is not valid YAML"),
        (LAUGHS, "aliases are not values"),
        ("a: &a {b: *a}\n", "aliases are not values"),
        ("a: " + "[" * 5000, "nested too deeply"),
        ("\x00\x01", "is not valid YAML"),
    ],
    ids=["apply", "name", "laughs", "cycle", "deep", "bytes"],
)
def test_a_config_file_is_plain_yaml(text, said, place):
    (place / "yaml" / "checkpoints").mkdir(parents=True, exist_ok=True)
    (place / "yaml" / "config.yaml").write_text(text)
    (place / "yaml" / "result.json").write_text("{}")
    for words in (["predict", "yaml", "image.png"], ["run", "glyphs-small", "er", "--out", "yaml"]):
        answer = calm(*words, cwd=place)
        assert answer.code == 2 and said in answer.err, answer.err


@pytest.mark.parametrize("name", ["checkpoints", "maps", "progress.jsonl"])
def test_a_run_does_not_write_through_a_link(name, place):
    run, outside = place / f"link-{name}", place.parent / f"outside-{name}"
    shutil.copytree(place / "run", run)
    (run / "result.json").unlink()
    if name == "progress.jsonl":
        (run / name).unlink(missing_ok=True)
        outside.write_text("mine\n")
    else:
        (run / name).rename(outside)
    (run / name).symlink_to(outside)
    before = content(outside)
    answer = calm("run", "glyphs-small", "er", *TINY, "--out", run.name, cwd=place)
    assert answer.code == 2 and f"{name} is a link" in answer.err
    assert content(outside) == before


def test_what_bears_a_temporary_name_is_not_written_to(place):
    run, outside = place / "partial", place.parent / "mine.txt"
    shutil.copytree(place / "run", run)
    outside.write_text("mine\n")
    for name in ("environment.json", "result.json", "records.jsonl"):
        (run / name).unlink()
        (run / f"{name}.{os.getpid()}.partial").symlink_to(outside)
        os.link(outside, run / f"{name}.partial")
    answer = calm("run", "glyphs-small", "er", *TINY, "--out", "partial", cwd=place)
    assert answer.code == 0, answer.err
    assert outside.read_text() == "mine\n"
    assert content(run) == content(place / "run")


def content(path):
    """The bytes of a file or of every file below a folder, but what tells the time."""
    files = [f for f in path.rglob("*") if f.name != "progress.jsonl"] if path.is_dir() else [path]
    return {f.relative_to(path): f.read_bytes() for f in files if f.is_file()}


@pytest.mark.parametrize("how", ["pipe", "endless", "deep"])
@pytest.mark.parametrize(
    "name", ["config.yaml", "records.jsonl", "result.json", "checkpoints/task-2.pt"]
)
def test_files_that_never_end_are_not_read(name, how, place):
    run = place / f"{how}-{name.replace('/', '-')}"
    shutil.copytree(place / "run", run)
    (run / name).unlink()
    if how == "pipe":
        os.mkfifo(run / name)
    elif how == "endless":
        (run / name).symlink_to("/dev/zero")
    else:
        (run / name).write_text("[" * 100_000)
    words = ["run", "glyphs-small", "er", *TINY, "--out", run.name]
    for typed in (["report", run.name], ["predict", run.name, "image.png"], words):
        calm(*typed, cwd=place)


def bomb(side: int) -> bytes:
    """A PNG that says it has so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body + chunk(b"IEND", b"")


def test_an_image_bomb_is_one_sentence(place):
    (place / "bomb.png").write_bytes(bomb(60_000))
    for name in ("a", "b"):
        (place / "bombs" / name).mkdir(parents=True)
        for i in range(2):
            shutil.copy(place / "bomb.png", place / "bombs" / name / f"{i}.png")
    for words in (
        ["predict", "run", "bomb.png"],
        ["explain", "run", "bomb.png"],
        ["run", "bombs", "er", "--out", "bombed"],
        ["extend", "run", "bombs", "--out", "bombed"],
        ["data", "check", "bombs"],
    ):
        answer = calm(*words, cwd=place)
        assert answer.code == 2 and "decompression bomb" in answer.err + answer.out, words
        assert not (place / "bombed").exists()


@pytest.mark.parametrize(
    "name",
    ["[/red]", "\x1b[31mred\x1b[0m", "a\nb", "<script>alert(1)</script>", "$x$", "{x}", "%s"],
)
def test_names_of_classes_and_files_are_only_printed(name, place):
    base = place / f"names-{abs(hash(name))}"
    own, slash = base / "own [/x]", name.replace("/", "-")
    for folder in (slash, "plain"):
        (base / "data" / folder).mkdir(parents=True)
        for i in range(4):
            shade = Image.new("RGB", (16, 16), (60 * i, 10 * i, len(folder)))
            shade.save(base / "data" / folder / f"{i}{slash}.png")
    words = ["train.epochs=1", "data.size=16", "memory.size=4", "net.name=resnet8"]
    answer = calm("run", "data", "er", *words, "--out", own, cwd=base)
    assert answer.code == 0, answer.err
    image = base / "data" / slash / f"0{slash}.png"
    answer = calm("predict", own, image, "--pictures", "looks", cwd=base)
    assert answer.code == 0, answer.err
    assert all(c.isprintable() or c == "\n" for c in answer.out)
    assert answer.out.count("\n") == 2  # one for the image, one for the pictures
    assert len(list((base / "looks").iterdir())) == 1
    image.write_bytes(b"")
    answer = calm("data", "check", "data", cwd=base)
    assert answer.code == 2 and all(c.isprintable() or c == "\n" for c in answer.out)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "../../glyphs-small", "er"],
        ["run", "../presets/benchmarks/glyphs-small", "er"],
        ["run", "glyphs-small", "er/../../../x"],
        ["run", "glyphs-small", "../er"],
        ["run", "glyphs-small", "er", "net.name=../../x"],
        ["run", "glyphs-small", "er", "seed=../../x"],
        ["run", "glyphs-small", "er", "data.source=../x"],
        ["show", "../../../etc/passwd"],
        ["show", "/etc/passwd"],
        ["run", "--from", "run/../../x@task1"],
        ["run", "--from", "run@task1/../../x"],
    ],
    ids=" ".join,
)
def test_a_name_with_a_path_in_it_names_nothing(words, place):
    answer = calm(*words, cwd=place)
    assert answer.code == 2 and answer.err.count("\n") == 1, answer.err
    assert not (place / "runs").exists()
