"""The command that a run's row leads to gives the run's config again."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rightreasons.config import resolve
from rightreasons.reports.command import command

WORDS = [
    "train.epochs=2",
    "train.lr=1e-05",
    "train.augment.crop=1",
    "train.milestones=[1, 3]",
    "train.later={epochs: 1}",
    "train.threads=3",
    "train.device=cpu",
    "data.size=16",
    "data.source=cifar100",
    "stream.classes=10",
    "stream.order=[latin-A, 'it''s, a name']",
    "memory.size=7",
    "memory.per_class=[4, 1]",
    "net.target=stages.1",
    "net.weights='a file.pth'",
    "rrr.profile=paper",
    "rrr.weight=30",
    "rrr.profile=released",
]


@given(st.lists(st.sampled_from(WORDS), unique=True, max_size=5), st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_what_is_typed_gives_the_config_again(words, seed):
    if sum(word.startswith("data.") for word in words) > 1:
        words = [word for word in words if word != "data.size=16"]
    config = resolve("glyphs-small", "er+rrr", words, seed)
    typed = command(config)
    rrr, run, benchmark, method, *overrides = shlex.split(typed)
    assert (rrr, run) == ("rrr", "run")
    assert resolve(benchmark, method, overrides) == config
    assert len(overrides) <= len(words) + 1


def test_the_benchmarks_own_settings_need_no_words():
    assert command(resolve("glyphs-small", "er")) == "rrr run glyphs-small er"
    assert (
        command(resolve("cub200-small", "er+rrr", seed=2)) == "rrr run cub200-small er+rrr seed=2"
    )


def test_only_what_differs_is_typed():
    config = resolve("glyphs-small", "er+rrr", ["rrr.profile=paper", "train.epochs=4"])
    assert command(config) == "rrr run glyphs-small er+rrr rrr.profile=paper"


def test_a_folder_is_a_benchmark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my birds").mkdir()
    config = resolve("my birds", "er", ["train.epochs=2"])
    assert command(config) == "rrr run 'my birds' er train.epochs=2"


@pytest.mark.parametrize(
    "change",
    [{"benchmark": "gone"}, {"method": "mine"}, {"train": {"unknown": 1}}],
    ids=["benchmark", "method", "key"],
)
def test_no_command_where_none_leads_there(change):
    assert command({**resolve("glyphs-small", "er"), **change}) is None


def test_runs_from_python_have_none_and_extended_ones_their_own():
    assert command({"method": "er", "seed": 0, "stream": {"tasks": 2}}) is None
    step = {"run": "runs/a b", "folder": "new", "classes": []}
    config = {**resolve("glyphs-small", "er"), "extensions": [step]}
    assert command(config) == "rrr extend 'runs/a b' new"
    config["extensions"] = [{**step, "words": ["train.epochs=2"], "skip_bad": True}]
    assert command(config) == "rrr extend 'runs/a b' new train.epochs=2 --skip-bad"


def test_a_branch_is_made_again_from_its_run():
    config = resolve("glyphs-small", "er+rrr", ["train.epochs=2", "rrr.weight=3"])
    config["branch"] = {"run": "runs/a b", "task": 2}
    expected = "rrr run --from 'runs/a b@task2' rrr.weight=3 train.epochs=2"
    assert sorted(command(config).split()) == sorted(expected.split())
