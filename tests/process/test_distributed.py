"""One run in two processes: the same as in one, and what happens when they do not fit together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import ranks
import torch
from refusals import TINY
from test_stop import wait_for

from rightreasons.checkpoints import found_in

WORDS = list(ranks.learners())
MOVING = "er+rrr, moving"  # BatchNorm by the batch


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """All learners, trained by two processes, as each of them has it."""
    folder = tmp_path_factory.mktemp("pair")
    for code, said in ranks.ended(ranks.start(2, "train", str(folder / "of"), *WORDS, MOVING)):
        assert code == 0, said
    return [torch.load(folder / f"of-{rank}.pt", weights_only=False) for rank in range(2)]


def assert_close(weights, others):
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=0, atol=1e-10)


@pytest.mark.parametrize("word", WORDS)
def test_two_processes_learn_what_one_learns(pair, word):
    alone, first = ranks.found(ranks.fit(word)), pair[0][word]
    assert_close(alone["weights"], first["weights"])
    assert torch.equal(first["index"], alone["index"])
    for one, two in zip(alone["records"], first["records"], strict=True):
        assert one["accuracy"] == two["accuracy"]
        assert two["losses"] == pytest.approx(one["losses"], rel=1e-8)
        assert all(value > 0 for value in two["losses"].values())
        np.testing.assert_allclose(two["drift"]["cosine"], one["drift"]["cosine"], atol=1e-8)


@pytest.mark.parametrize("word", [*WORDS, MOVING])
def test_both_hold_the_same_weights_statistics_and_memory(pair, word):
    first, second = (process[word] for process in pair)
    for name, weight in first["weights"].items():
        assert torch.equal(second["weights"][name], weight), name
    assert first["records"] == second["records"]
    shas = [record["memory_sha256"] for record in first["records"]]
    assert len(set(shas)) == 2 and all(len(sha) == 64 for sha in shas)


def test_a_run_whose_process_was_killed_goes_on_in_one(tmp_path):
    """The second process has no disk in common with the first."""
    folder = tmp_path / "run"
    (code, said), (other, _) = ranks.ended(ranks.start(2, "killed", str(folder), "er+rrr"))
    assert other == -signal.SIGKILL
    assert code == 1 and "the processes of the run have lost each other" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert list(found_in(folder))[-1] == (1, 14)  # of 45 steps, a checkpoint every 7
    result = ranks.fit("er+rrr", str(folder))
    assert_close(dict(ranks.fit("er+rrr").net.state_dict()), dict(result.net.state_dict()))
    assert [record["processes"] for record in result.records] == [2, 1]


def test_processes_that_do_not_fit_together_say_so(tmp_path):
    (_, first), (_, second) = ranks.ended(ranks.start(2, "refused"))
    assert first == second
    config, batch, version = first.splitlines()
    assert config == (
        "process 2 was started otherwise than process 1 (train.lr: 0.02 there, 1.02 asked); start "
        "all with the same version and the same words"
    )
    assert batch.startswith("2 processes share batches of 1 images in task 1, expected an image")
    assert "(rightreasons: 0.0.0 there, 0.0.1 asked)" in version


def rrr(words, size, cwd):
    """The command in so many processes, without torchrun's own."""
    command = [sys.executable, "-m", "rightreasons", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(command, env=environment, cwd=cwd, **pipes)
        for environment in ranks.environment(size)
    ]


def test_a_signal_to_one_stops_all_and_torchrun_goes_on(tmp_path):
    words = ["run", "glyphs-small", "er+rrr", *TINY, "train.epochs=200", "--out", "run"]
    children = rrr([*words, "--checkpoint", "5"], 2, tmp_path)
    wait_for(lambda: found_in(tmp_path / "run"), children[0])
    children[1].send_signal(signal.SIGTERM)
    said = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [143, 143], said
    assert "stopped after step" in said[0] and "torchrun --nproc-per-node 2" in said[0]
    (_, steps) = list(found_in(tmp_path / "run"))[-1]
    assert f"after step {steps} of" in said[0]


def test_torchrun_makes_one_run_and_one_table(tmp_path):
    words = ["-m", "rightreasons", "run", "glyphs-small", "er+evidence", *TINY, "--out", "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    environment = ranks.environment(1)[0]
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        del environment[name]
    done = subprocess.run(
        [*torchrun, "--standalone", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("seconds a step") == 1, done.stdout
    assert done.stderr.count("task 2/2  accuracy on all classes seen") == 1, done.stderr
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["processes"] for line in lines] == [2, 2]
    assert (tmp_path / "run" / "result.json").is_file()


def test_what_is_not_one_run_is_refused(tmp_path):
    children = rrr(["compare", "glyphs-small", "er,er+rrr"], 2, tmp_path)
    said = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [2, 2]
    assert said[0] == (
        "rrr: torchrun has started 2 processes, and they share one run: type torchrun "
        "--nproc-per-node 2 -m rightreasons run BENCHMARK METHOD, and rrr compare without "
        "torchrun\n"
    )
    assert said[1] == said[0].replace("rrr: ", "rrr: process 2: ", 1)
