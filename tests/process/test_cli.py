"""The command line as a process: help without torch, sentences instead of tracebacks, one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from rightreasons import cli

SOURCE = Path(__file__).parents[2] / "src"
TINY = [
    *("stream.tasks=2", "stream.classes=4", "data.train=8", "data.test=4"),
    *("train.epochs=1", "memory.size=8"),
]


def python(*words, cwd):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def rrr(*words, cwd):
    return python("-m", "rightreasons", *words, cwd=cwd)


# --- without torch -------------------------------------------------------------------------------

WITHOUT = """
import sys
{code}
heavy = [name for name in ("torch", "numpy", "matplotlib", "PIL") if name in sys.modules]
print("heavy:", heavy)
"""
HELP = """
from rightreasons.cli import main
sys.argv = ["rrr", *{words!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import rightreasons; print(rightreasons.__version__)", "0."),
        (HELP.format(words=["--help"]), "run"),
        (HELP.format(words=["run", "--help"]), "key=value words"),
        (HELP.format(words=["--version"]), "0."),
    ],
    ids=["import", "help", "help of run", "version"],
)
def test_what_needs_no_torch_does_not_import_it(code, said, tmp_path):
    done = python("-c", WITHOUT.format(code=code), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and done.stdout.endswith("heavy: []\n")


def test_help_exits_with_zero_and_names_the_commands(tmp_path):
    done = rrr("--help", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    for command in ("demo", "run"):
        assert command in done.stdout
    assert list(tmp_path.iterdir()) == []


# --- bad input -----------------------------------------------------------------------------------

DRIVER = """
import contextlib, io, json, sys, traceback
from rightreasons.cli import main
for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["rrr", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def assert_sentence(code, err, said):
    assert "Traceback" not in err, err
    assert code == 2
    assert err.startswith("rrr: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["glyph-small", "er"], "unknown benchmark 'glyph-small'; did you mean 'glyphs-small'?"),
        (["glyphs-small", "er", *TINY, "memory.size=3"], "expected at least one row a class"),
    ],
)
def test_a_real_process_exits_with_two_and_one_sentence(words, said, tmp_path):
    done = rrr("run", *words, "--out", tmp_path / "run", cwd=tmp_path)
    assert_sentence(done.returncode, done.stderr, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["run", "glyphs-small"], ["rum"], ["run", "a", "b", "--oot=1"]])
def test_words_that_the_command_line_does_not_know(words, tmp_path):
    done = rrr(*words, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.strip() and not done.stdout.strip()


# --- a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    base = tmp_path_factory.mktemp("good")
    folder = base / "run"
    done = rrr("run", "glyphs-small", "er+rrr", *TINY, "--out", folder, cwd=base)
    assert done.returncode == 0, done.stderr
    return folder, done


def read(folder):
    return {
        "result": json.loads((folder / "result.json").read_text()),
        "records": [json.loads(s) for s in (folder / "records.jsonl").read_text().splitlines()],
        "config": yaml.safe_load((folder / "config.yaml").read_text()),
    }


def test_a_run_leaves_config_records_checkpoints_and_result(finished):
    folder, done = finished
    assert sorted(p.name for p in folder.iterdir()) == [
        *("checkpoints", "config.yaml", "environment.json", "maps", "records.jsonl", "result.json")
    ]
    assert sorted(p.name for p in (folder / "maps").iterdir()) == ["task-1.npz", "task-2.npz"]
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["task-1.pt", "task-2.pt"]
    found = read(folder)
    assert found["config"]["method"] == "er+rrr" and found["config"]["memory"]["size"] == 8
    assert [record["task"] for record in found["records"]] == [1, 2]
    assert [record["rows"] for record in found["records"]] == [8, 8]
    R = found["result"]["R"]
    assert R[0][1] is None and len(R) == 2
    assert [[v for v in row if v is not None] for row in R] == [
        record["accuracy"]["class"] for record in found["records"]
    ]
    assert all(0 <= v <= 1 for row in R for v in row if v is not None)
    assert set(found["records"][1]["losses"]) == {"task", "rrr"}
    assert "task 2/2" in done.stderr and "Traceback" not in done.stderr


def test_a_finished_run_resumes_refuses_another_config_and_says_that_it_is_finished(finished):
    folder, _ = finished
    before = read(folder)
    (folder / "result.json").unlink()
    (folder / "checkpoints" / "task-2.pt").unlink()
    base = ["run", "glyphs-small", "er+rrr", *TINY]
    calls = [
        [*base, "--out", str(folder)],  # goes on from task 1
        [*base, "--out", str(folder)],  # is finished
        [*base, "rrr.weight=7", "--out", str(folder)],
        [*base, "--out", str(folder / "config.yaml")],
        [*base, "--out", str(folder / "checkpoints")],
    ]
    done = python("-c", DRIVER, json.dumps(calls), cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    resumed, again, other, file, full = (json.loads(line) for line in done.stdout.splitlines())

    assert resumed[0] == 0, resumed[2]
    assert "task 2/2" in resumed[2] and "task 1/2" not in resumed[2]
    after = read(folder)
    assert after["result"]["R"] == before["result"]["R"]
    assert after["result"]["matrices"] == before["result"]["matrices"]
    assert after["records"][1]["losses"] == before["records"][1]["losses"]
    assert after["config"] == before["config"]

    assert again[0] == 0 and "is finished already" in again[1]
    assert "task 2/2" not in again[2]
    assert read(folder)["records"] == after["records"]

    weight = before["config"]["rrr"]["weight"]
    assert_sentence(other[0], other[2], f"rrr.weight: {weight} there, 7.0 asked")
    assert_sentence(file[0], file[2], "is a file, expected a folder")
    assert_sentence(full[0], full[2], "is not empty and holds no run")
    assert read(folder)["result"] == json.loads((folder / "result.json").read_text())
    assert read(folder)["records"] == after["records"]


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("a size does not match"), False),
    ],
)
def test_too_little_memory_is_one_sentence_whoever_says_so(monkeypatch, capsys, error, ends):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(cli, "app", full)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(cli.warnings, "showwarning", cli.warnings.showwarning)
    monkeypatch.setattr(cli.sys, "argv", ["rrr", "run"])
    with pytest.raises(SystemExit if ends else RuntimeError):
        cli.main()
    assert ("there is not enough memory" in capsys.readouterr().err) == ends
