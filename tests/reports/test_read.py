"""Run folders as plain data: what is grouped, what is told apart, what is left out and said."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from rightreasons.config import resolve
from rightreasons.errors import UserError
from rightreasons.reports.command import command
from rightreasons.reports.read import read
from rightreasons.tables import every, sentences


def lay(made_up, folder, method, seed=0, words=(), benchmark="glyphs-small", **how):
    config = resolve(benchmark, method, ["stream.tasks=3", "stream.classes=6", *words], seed)
    return made_up.make_run(folder / method / str(seed), config, 3, maps=False, **how)


def labels(book):
    return {g.title: [line.label for line in g.lines] for g in book.groups}


def test_methods_and_seeds_of_one_benchmark_are_one_group(made_up, tmp_path):
    for method in ("er+evidence", "er", "er+rrr"):
        for seed in (1, 0):
            lay(made_up, tmp_path, method, seed)
    book = read([tmp_path])
    assert labels(book) == {"glyphs-small": ["er", "er+rrr", "er+evidence"]}
    assert [run.seed for run in book.groups[0].lines[0].runs] == [0, 1]
    assert len(book.groups[0].pairs()) == 2 and not book.problems
    assert book.runs[0].name == "er/0" and all(run.finished for run in book.runs)


def test_different_benchmarks_and_streams_are_never_in_one_group(made_up, tmp_path):
    lay(made_up, tmp_path / "a", "er")
    lay(made_up, tmp_path / "b", "er", benchmark="glyphs-spurious")
    lay(made_up, tmp_path / "c", "er", words=["stream.tasks=2"])
    book = read([tmp_path])
    assert labels(book) == {
        "glyphs-small [stream.tasks=2]": ["er"],
        "glyphs-small [stream.tasks=3]": ["er"],
        "glyphs-spurious": ["er"],
    }


def test_other_settings_of_one_method_are_lines_of_their_own(made_up, tmp_path):
    for i, words in enumerate([["train.epochs=2"], ["train.epochs=2", "rrr.weight=3"]]):
        lay(made_up, tmp_path / str(i), "er+rrr", words=words)
    lay(made_up, tmp_path / "base", "er", words=["train.epochs=2"])
    lay(made_up, tmp_path / "longer", "er", words=["train.epochs=9"])
    book = read([tmp_path])
    (found,) = book.groups
    assert [line.label for line in found.lines] == [
        "er [train.epochs=2]", "er [train.epochs=9]", "er+rrr", "er+rrr [rrr.weight=3]"
    ]  # fmt: skip
    partners = [(line.label, base.label) for line, base in found.pairs()]
    assert partners == [
        ("er+rrr", "er [train.epochs=2]"),
        ("er+rrr [rrr.weight=3]", "er [train.epochs=2]"),
    ]


def branched(made_up, folder, run, task, words=(), seed=0):
    lay(made_up, folder, "er+rrr", seed, words)
    path = folder / "er+rrr" / str(seed) / "config.yaml"
    path.write_text(f"{path.read_text('utf-8')}branch: {{run: {run}, task: {task}}}\n", "utf-8")


def test_a_branch_is_told_apart_by_where_it_began_and_by_its_own_words(made_up, tmp_path):
    """Seeds of one experiment are one line; a run and branches of two of its tasks are three."""
    for seed in (0, 1):
        lay(made_up, tmp_path / "run", "er+rrr", seed)
        for task in (1, 2):
            branched(made_up, tmp_path / f"b{task}", f"runs/er+rrr/{seed}", task, (), seed)
    branched(made_up, tmp_path / "more", "runs/other", 1, ["rrr.weight=3"])
    (found,) = read([tmp_path]).groups
    assert [(line.label, len(line.runs)) for line in found.lines] == [
        ("er+rrr", 2),
        ("er+rrr [from runs/er+rrr@task1]", 2),
        ("er+rrr [from runs/er+rrr@task2]", 2),
        ("er+rrr [from runs/other@task1 rrr.weight=3]", 1),
    ]


def test_a_folder_s_name_may_be_no_text(made_up, tmp_path):
    """Of another encoding: it is printed, and not the end of the report."""
    lay(made_up, tmp_path / os.fsdecode(b"caf\xe9"), "er")
    (run,) = read([tmp_path]).runs
    assert run.name == "caf\\udce9/er/0"


def test_a_branch_of_nothing_is_left_out_with_a_sentence(made_up, tmp_path):
    lay(made_up, tmp_path / "run", "er+rrr")
    lay(made_up, tmp_path / "other", "er+rrr", 1)
    path = tmp_path / "other" / "er+rrr" / "1" / "config.yaml"
    path.write_text(path.read_text("utf-8") + "branch: 3\n", "utf-8")
    book = read([tmp_path])
    assert len(book.runs) == 1
    assert book.problems == ["other/er+rrr/1/config.yaml does not say which run it is a branch of"]


def test_a_run_that_no_words_lead_to_is_told_apart_by_settings(made_up, tmp_path):
    for name in ("typed", "other"):
        lay(made_up, tmp_path / name, "er", words=["train.epochs=2"])
    path = tmp_path / "other" / "er" / "0" / "config.yaml"
    changed = path.read_text("utf-8").replace("epochs: 2", "epochs: 3\n  unheard: 1")
    path.write_text(changed, "utf-8")
    (found,) = read([tmp_path]).groups
    assert [line.label for line in found.lines] == [
        "er [train.epochs=2]", "er [train.epochs=3 train.unheard=1]"
    ]  # fmt: skip


def test_threads_make_no_difference(made_up, tmp_path):
    lay(made_up, tmp_path, "er", 0, ["train.threads=1"])
    lay(made_up, tmp_path, "er", 1, ["train.threads=2"])
    assert len(read([tmp_path]).groups[0].lines) == 1


def test_the_same_run_twice_counts_once(made_up, tmp_path):
    lay(made_up, tmp_path / "a", "er", upto=1)
    lay(made_up, tmp_path / "b", "er")
    book = read([tmp_path])
    assert [run.name for run in book.runs] == ["b/er/0"]
    assert book.problems == ["a/er/0 repeats b/er/0 and is left out"]


def test_an_unfinished_run_is_shown_and_in_no_mean(made_up, tmp_path):
    for seed in (0, 1):
        lay(made_up, tmp_path, "er", seed)
    lay(made_up, tmp_path, "er", 2, upto=2)
    lay(made_up, tmp_path, "er+rrr", 0, upto=0)
    (found,) = read([tmp_path]).groups
    tables = every(found)
    assert [row[1] for row in tables["runs"].rows] == [
        "finished", "finished", "2 of 3 tasks", "0 of 3 tasks",
    ]  # fmt: skip
    assert [row[0] for row in tables["final"].rows] == ["er"] and "2 seeds" in tables["final"].title
    assert "pairs" not in tables and sentences(found) == []


def test_nothing_finished_still_gives_the_tables_of_runs_and_settings(made_up, tmp_path):
    lay(made_up, tmp_path, "er", upto=1)
    assert set(every(read([tmp_path]).groups[0])) == {"runs", "settings"}


def damage(text):
    first, second, third = text.splitlines()
    record = json.loads(second)

    def with_(**changes):
        return "\n".join([first, json.dumps({**record, **changes}), third])

    return {
        "cut": ("\n".join([first, second[: len(second) // 2], third]), "not valid JSON"),
        "list": ("\n".join([first, "[]", third]), "it is a list"),
        "other": ("\n".join([first, third]), "it says task 3"),
        "short": (
            with_(accuracy={"class": [0.5], "task": [1, 1]}),
            "accuracy.class is no row of 2",
        ),
        "words": (with_(accuracy={"class": ["a", "b"]}), "accuracy.class is no row"),
        "above": (with_(accuracy={"class": [0.5, 7], "task": [1, 1]}), "accuracy.class"),
        "nan": (with_(drift={**record["drift"], "iou": [1, float("nan")]}), "drift.iou"),
        "images": (with_(test_images=[5, None]), "test_images"),
        "game": (with_(pointing={"class": {}}), "pointing.class"),
        "bytes": (with_(bytes=3), "bytes.images"),
        "seconds": (with_(seconds="long"), "seconds is no number"),
        "cpu": (with_(cpu_a_step="long"), "cpu_a_step is no number"),
    }


@pytest.mark.parametrize("name", [
    "cut", "list", "other", "short", "words", "above", "nan", "images", "game", "bytes", "seconds",
    "cpu",
])  # fmt: skip
def test_a_damaged_record_is_named_and_left_out(name, made_up, tmp_path):
    lay(made_up, tmp_path, "er", 0)
    folder = lay(made_up, tmp_path, "er", 1)
    path = folder / "records.jsonl"
    text, said = damage(path.read_text("utf-8"))[name]
    path.write_text(text, "utf-8")
    book = read([tmp_path])
    (problem,) = book.problems
    assert problem.startswith("er/1/records.jsonl: the record of task 2") and said in problem
    assert "left out" in problem
    bad = next(run for run in book.runs if run.seed == 1)
    assert not bad.finished and len(bad.records) == 1


def test_bytes_that_are_no_text_are_a_damaged_record(made_up, tmp_path):
    folder = lay(made_up, tmp_path, "er")
    (folder / "records.jsonl").write_bytes(b"\xff\xfe\x00{}")
    assert "record of task 1" in read([tmp_path]).problems[0]


def test_configs_that_are_none_are_said_and_left_out(made_up, tmp_path):
    lay(made_up, tmp_path, "er")
    for name, text in (
        ("a", "- 1\n"),
        ("b", "x: [1"),
        ("c", "method: er\nseed: 1\n"),
        ("d", "a: 1"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(text)
    book = read([tmp_path])
    assert len(book.runs) == 1 and len(book.problems) == 4


def test_no_runs_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no runs; pass a folder that rrr run"):
        read([tmp_path])
    with pytest.raises(UserError, match="is not a folder"):
        read([tmp_path / "nowhere"])
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="holds no runs .*holds no keys"):
        read([tmp_path])


def test_runs_from_python_are_grouped_over_seeds_whatever_classes_they_drew(made_up, tmp_path):
    for seed, names in enumerate((["a", "b", "c"], ["c", "a", "b"])):
        config = {
            "method": "mine", "seed": seed, "net": {"name": "own"}, "train": {"epochs": 1},
            "stream": {"tasks": [[n] for n in names], "images": [[5, 5]] * 3},
        }  # fmt: skip
        made_up.make_run(tmp_path / str(seed), config, 3, maps=False)
    (found,) = read([tmp_path]).groups
    assert found.title == "a stream of 3 tasks, 3 classes" and len(found.lines[0].runs) == 2


def test_extended_runs_have_a_group_of_their_own(made_up, tmp_path):
    config = resolve("glyphs-small", "er")
    made_up.make_run(tmp_path / "0", config, 5, maps=False)
    for seed in (0, 1):
        step = {"run": f"runs/{seed}", "folder": "new", "classes": ["x"]}
        longer = {**config, "seed": seed, "extensions": [step]}
        made_up.make_run(tmp_path / f"{seed}+6", longer, 6, maps=False)
    book = read([tmp_path])
    assert sorted(len(g.runs) for g in book.groups) == [1, 2]
    assert all(run.finished for run in book.runs)
    assert any("1 tasks added" in g.title for g in book.groups)


def test_folders_given_together_keep_their_names_apart(made_up, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay(made_up, tmp_path / "a", "er", 0)
    lay(made_up, tmp_path / "b", "er", 0, ["train.epochs=1"])
    assert [run.name for run in read(["a", "b"]).runs] == ["a/er/0", "b/er/0"]
    assert yaml.safe_load((tmp_path / "a/er/0/config.yaml").read_text())["method"] == "er"


def test_runs_of_an_older_version_stand_beside_those_of_this_one(made_up, tmp_path):
    lay(made_up, tmp_path, "er", 0)
    folder = lay(made_up, tmp_path, "er", 1)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    del config["train"]["freeze_bn"], config["stream"]["shots"]  # keys that it did not know
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (found,) = read([tmp_path]).groups
    assert [run.seed for run in found.lines[0].runs] == [0, 1]
    assert command(config) == "rrr run glyphs-small er stream.tasks=3 stream.classes=6 seed=1"
