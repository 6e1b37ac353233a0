"""The words of a grid, and that the choice is made on validation images alone."""

from __future__ import annotations

import json

import pytest
import torch

from rightreasons.config import build, resolve
from rightreasons.errors import Diverged, UserError
from rightreasons.sweep.drive import Failures
from rightreasons.sweep.grid import choose_in_grid, read_grid, split
from rightreasons.sweep.place import Where

TINY = ["stream.tasks=2", "stream.classes=4", "data.train=10", "data.test=4"]


def test_commas_in_lists_do_not_make_a_grid():
    assert split("[1,2],{a: [3,4]},5") == ["[1,2]", "{a: [3,4]}", "5"]
    found = read_grid(["train.milestones=[1,2]", "rrr.weight=1,10", "train.augment={pad: 1},null"])
    assert found.fixed == ["train.milestones=[1,2]"]
    assert found.tries == [
        ("rrr.weight=1", "train.augment={pad: 1}"),
        ("rrr.weight=1", "train.augment=null"),
        ("rrr.weight=10", "train.augment={pad: 1}"),
        ("rrr.weight=10", "train.augment=null"),
    ]


def test_the_edge_is_that_of_numbers():
    found = read_grid(["a=10,1,5", "b=x,y"])
    assert found.at_edge(("a=10", "b=x")) == ["a"] == found.at_edge(("a=1", "b=y"))
    assert found.at_edge(("a=5", "b=x")) == []
    assert read_grid(["a=1e-3,1e-2,2"]).at_edge(("a=1e-3",)) == ["a"]  # YAML takes it for a word


@pytest.fixture
def results(monkeypatch):
    """Runs write a number in place of training: one for each weight, None if they diverge."""
    made = []

    def by_weight(numbers):
        def run(where, jobs):
            made.extend(jobs)
            errors = {}
            for job in jobs:
                number = numbers[job.config["rrr"]["weight"]]
                job.folder.mkdir(parents=True)
                if number is None:
                    errors[job] = Diverged("NaN")
                else:
                    result = {"average": number + job.config["seed"] / 100}
                    (job.folder / "result.json").write_text(json.dumps(result), "utf-8")
            if errors:
                raise Failures(errors, len(jobs))

        monkeypatch.setattr(Where, "run", run)
        return made

    return by_weight


def sweep(folder, *words):
    return choose_in_grid("glyphs-small", "er+rrr", [*TINY, *words], 2, folder)


def test_the_highest_mean_wins_and_what_it_was_chosen_by_is_kept(results, tmp_path, capsys):
    made = results({1: 0.3, 10: 0.5, 100: None, 30: 0.5})
    assert sweep(tmp_path, "rrr.weight=1,10,30,100", "seed=4") == ("rrr.weight=10",)
    assert [(job.config["seed"], job.threads) for job in made[:2]] == [(4, 1), (5, 1)]
    assert made[0].folder == tmp_path / "er+rrr" / "rrr.weight=1" / "4"
    assert made[0].prefix == made[2].prefix and made[0].prefix != made[1].prefix
    out = capsys.readouterr().out
    assert "│ 10         │ 54.5 │ 54.0, 55.0 │ chosen │" in out
    assert "│ 100        │  0.0 │   0.0, 0.0 │        │" in out and "at the edge" not in out
    command = ["rrr", "run", "glyphs-small", "er+rrr", *TINY, "rrr.weight=10"]
    assert f"test it with: {' '.join(command)}" in out
    kept = json.loads((tmp_path / "er+rrr" / "chosen.json").read_text("utf-8"))
    assert kept["chosen"] == ["rrr.weight=10"]
    assert kept["tries"][1] == {"words": ["rrr.weight=10"], "average": [0.54, 0.55]}


def test_a_folder_in_brackets_is_printed_as_it_is(results, tmp_path, capsys):
    """Rich would take [v2] for markup and leave it out."""
    results({1: 0.3, 10: 0.5})
    sweep(tmp_path / "ph [v2]", "rrr.weight=1,10")
    assert f"{tmp_path / 'ph [v2]' / 'er+rrr'}; chosen on" in capsys.readouterr().out


def test_a_sweep_never_sees_a_test_image(results, tmp_path):
    made = results({1: 0.3, 10: 0.5})
    sweep(tmp_path, "rrr.weight=1,10")
    real = build(resolve("glyphs-small", "er+rrr", TINY)).load()[1]
    for job in made[::2]:
        stream = build(job.config).load()[1]
        for task, whole in zip(stream, real, strict=True):
            train, held = images(task.train), images(task.test)
            assert train | held == images(whole.train) and not train & held
            assert len(held) == 4 and not held & images(whole.test)


def images(some):
    return {image.numpy().tobytes() for image in some.pixels(torch.arange(len(some)))}


def test_if_all_tries_diverge_nothing_is_chosen(results, tmp_path):
    results({1: None, 10: None})
    with pytest.raises(UserError, match="4 of 4 runs failed; rrr.weight=1 seed 0: NaN"):
        sweep(tmp_path, "rrr.weight=1,10")
