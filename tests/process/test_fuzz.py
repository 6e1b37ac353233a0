"""Random words, config files, run folders and images: a sentence or a result, never a traceback.

``make soak`` tries 2,000 cases; a smaller set, always the same, is part of ``make test``.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from inside import assert_calm, rrr
from refusals import TINY

from rightreasons.checkpoints import load_checkpoint, save_checkpoint
from rightreasons.config import resolve
from rightreasons.sweep import one

SOAK = "RRR_SOAK" in os.environ
RUN = ["run", "glyphs-small", "er+rrr", *TINY]
IMAGE = "new/class-0/0.png"


def cases(few: int, many: int):
    return settings(
        max_examples=many if SOAK else few,
        derandomize=not SOAK,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a case names its seed: a smaller one is not worth the time
    )


# --- words ---------------------------------------------------------------------------------------

KEYS = [
    f"{section}.{key}"
    for section, values in resolve("glyphs-small", "er+rrr").items()
    if isinstance(values, dict)
    for key in (*values, "x")
] + ["seed", "method", "data.source", "stream", "train.augment.crop", "train.later.lr", "er..x"]
SNIPPETS = [
    "null", "true", "~", "[]", "{}", "[1,2]", "{a: 1}", "1e400", "-.inf", ".nan", "nan", "0x10",
    "1" * 400, "-" + "9" * 30, "1_000", "2001-01-01", "2001-99-01", "12:30:45", "folder",
    "!!python/object:os.system x", "&a [*a]", "*a", "<<: 1", "{[1]: 2}", "? x", "- x", "'",
    '"\\x00"', "%", "@", "`", "../..", "/etc/passwd", "$(touch pwned)", "\x1b[31m", "a\nb",
    "[" * 3000, "{a: " * 900, "cifar100", "[[a],[b]]", "!!binary aGk=", "!!set {a}", "=", "==",
    "0", "-1", "1.5", "\u202e",
]  # fmt: skip
values = st.one_of(
    st.sampled_from(SNIPPETS),
    st.integers(-(10**40), 10**40).map(str),
    st.floats().map(repr),
    st.text(max_size=12),
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    ).map(lambda value: yaml.safe_dump(value, default_flow_style=True).strip()),
)
words = st.one_of(
    st.tuples(st.sampled_from(KEYS), values).map("=".join),
    st.tuples(st.text(max_size=8), values).map("=".join),
    st.text(max_size=10),
)
names = st.one_of(
    st.sampled_from(["glyphs-small", "er", "er+rrr", "../..", "/", "", "er+", "+", "a/b", "joint"]),
    st.text(max_size=8),
)


@pytest.fixture
def untrained(monkeypatch):
    """Commands up to the place where images would be loaded."""
    monkeypatch.setattr(one, "_run_one", lambda *_: None)


@cases(150, 1000)
@given(
    benchmark=st.one_of(st.just("glyphs-small"), names),
    method=st.one_of(st.sampled_from(["er", "er+rrr", "joint", "finetune+evidence"]), names),
    given_=st.lists(words, max_size=4),
)
def test_words(untrained, tmp_path_factory, benchmark, method, given_):
    typed = ["run", "--", benchmark, method, *given_]
    folder = tmp_path_factory.getbasetemp() / "words"
    folder.mkdir(exist_ok=True)
    answer = rrr(*typed, cwd=folder)
    assert_calm(answer, typed)
    assert not answer.code or answer.err.count("\n") == 1, answer.err
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Finished runs and class folders, to be copied."""
    from refusals import world as make
    from test_cli import rrr as process

    folder = tmp_path_factory.mktemp("world")
    make(folder, process)
    return folder


class Copied:
    """A copy of the world that is gone afterwards."""

    def __init__(self, world: Path) -> None:
        self.world = world

    def __enter__(self) -> Path:
        self.folder = Path(tempfile.mkdtemp(dir=self.world.parent))
        for name in ("done", "unfinished", "new"):
            shutil.copytree(self.world / name, self.folder / name)
        return self.folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder)


# --- config files --------------------------------------------------------------------------------


def mutated(config: dict, draw: random.Random, value: object) -> dict:
    """A config with one value, key or section that is another."""
    config = copy.deepcopy(config)
    place, key = config, draw.choice(list(config))
    while isinstance(place[key], dict) and place[key] and draw.random() < 0.8:
        place = place[key]
        key = draw.choice(list(place))
    how = draw.choice(["set", "set", "delete", "rename"])
    if how == "set":
        place[key] = value
    else:
        old = place.pop(key)
        if how == "rename":
            place[str(value)[:9]] = old
    return config


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@cases(40, 400)
@given(
    seed=st.integers(0, 2**32),
    value=plain,
    raw=st.none() | st.binary(max_size=60) | values.map(str.encode),
)
def test_config_files(world, seed, value, raw):
    draw = random.Random(seed)
    with Copied(world) as folder:
        name = draw.choice(["done", "unfinished"])
        file = folder / name / "config.yaml"
        config = yaml.safe_load(file.read_text("utf-8"))
        if raw is None:
            file.write_text(yaml.safe_dump(mutated(config, draw, value), sort_keys=False), "utf-8")
        else:
            file.write_bytes(raw)
        for typed in ([*RUN, "--out", name], ["predict", name, IMAGE], ["extend", name, "nowhere"]):
            assert_calm(rrr(*typed, cwd=folder), (typed, file.read_bytes()))


# --- run folders ---------------------------------------------------------------------------------


def hurt(path: Path, draw: random.Random) -> str:
    data = path.read_bytes() if path.is_file() else b""
    how = draw.choice(["delete", "cut", "flip", "noise", "empty", "folder", "text"])
    if path.is_dir():
        shutil.rmtree(path)
        return "delete"
    if how == "delete":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: draw.randrange(len(data) + 1)])
    elif how == "flip" and data:
        place = draw.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    elif how == "noise":
        path.write_bytes(draw.randbytes(draw.randrange(300)))
    elif how == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(b"" if how == "empty" else b'{"R": [[1]], "records": 3}\n')
    return how


@cases(12, 300)
@given(seed=st.integers(0, 2**32))
def test_damaged_run_folders(world, seed):
    draw = random.Random(seed)
    with Copied(world) as folder:
        name = draw.choice(["done", "unfinished"])
        done = []
        for _ in range(draw.choice([1, 1, 2, 3])):
            path = draw.choice(sorted((folder / name).rglob("*")) or [folder / name])
            done.append((hurt(path, draw), str(path.relative_to(folder))))
        if draw.random() < 0.2:  # two checkpoints have changed places
            a, b = (folder / name / "checkpoints" / f"task-{k}.pt" for k in (1, 2))
            if a.is_file():
                shutil.copy(a, b) if not b.is_dir() else None
                done.append(("copy", "task-1 to task-2"))
        predict = ["predict", name, IMAGE]
        for typed in (["report", name], predict, [*RUN, "--out", name], predict):
            assert_calm(rrr(*typed, cwd=folder), (typed, done))


def twisted(state: dict, draw: random.Random) -> tuple:
    """A state with something else at one place, or without it. A learner's own is left alone."""
    at, path = state, [draw.choice(["net", "records", "probes", "stream"])]
    while draw.random() < 0.7 and isinstance(at[path[-1]], (dict, list)) and at[path[-1]]:
        at = at[path[-1]]
        path.append(draw.choice(list(at)) if isinstance(at, dict) else draw.randrange(len(at)))
    value = draw.choice(ODD)
    if value is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = copy.deepcopy(value)
    return (value, *path)


DELETE = object()
ODD = [
    *(DELETE, DELETE, None, True, 0, -1, 1e300, float("nan"), "x", [], {}, [1], [[None]]),
    *(torch.zeros(0), torch.zeros(2, 2), {"net!": 10**9}, {"net!": -1}, {"ragged!": [1]}),
]


@cases(12, 100)
@given(seed=st.integers(0, 2**32))
def test_checkpoints_that_are_whole_and_no_runs(world, seed):
    """A checksum is right in all of them: anybody can make one."""
    draw = random.Random(seed)
    with Copied(world) as folder:
        name = draw.choice(["done", "unfinished"])
        path = draw.choice(sorted((folder / name / "checkpoints").glob("*.pt")))
        state = load_checkpoint(path)
        done = twisted(state, draw)
        save_checkpoint(path, state)
        for typed in (
            ["run", "--from", f"{name}@task1", "rrr.weight=3", "--out", "branch"],
            ["explain", name, IMAGE, "--tasks", "all", "--explainers", "gradcam"],
            [*RUN, "--out", name],
        ):
            assert_calm(rrr(*typed, cwd=folder), (typed, path.name, done))


# --- images --------------------------------------------------------------------------------------


@cases(12, 300)
@given(
    seed=st.integers(0, 2**32),
    class_name=st.text(
        st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=9
    ),
    junk=st.binary(max_size=200),
)
def test_image_folders(world, seed, class_name, junk):
    draw = random.Random(seed)
    with Copied(world) as folder:
        images = sorted((folder / "new").rglob("*.png"))
        for path in images:
            how = draw.choice(["keep", "keep", "cut", "flip", "junk", "rename"])
            data = path.read_bytes()
            place = draw.randrange(len(data))
            if how == "cut":
                path.write_bytes(data[:place])
            elif how == "flip":
                path.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
            elif how == "junk":
                path.write_bytes(junk)
            elif how == "rename":
                path.rename(path.with_name(path.name + draw.choice([".jpg", ".gif", ".bmp", ".x"])))
        if class_name not in (".", "..") and len(class_name.encode()) < 200:
            (folder / "new" / "class-0").rename(folder / "new" / class_name)
        skip = ["data.skip_bad=true"] if draw.random() < 0.5 else []
        tiny = ["train.epochs=1", "data.size=8", "memory.size=4", *skip]
        for typed in (["data", "check", "new"], ["run", "new", "er", *tiny, "--out", "own"]):
            assert_calm(rrr(*typed, cwd=folder), (typed, class_name, seed))
