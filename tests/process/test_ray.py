"""``rrr compare --on ray`` as a user types it: stopped, workers killed, without a shared folder.

All runs end with the bits that they have on this machine alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from refusals import TINY
from test_kill import assert_same, content
from test_stop import ENVIRONMENT, PATIENCE

from rightreasons.checkpoints import found_in
from rightreasons.config import resolve
from rightreasons.sweep import execute

pytest.importorskip("ray", reason="Ray is not installed: pip install 'rightreasons[ray]'")
if not Path("/proc/self/fd").exists():
    pytest.skip("workers are found through /proc", allow_module_level=True)

METHODS = ["finetune", "er", "er+rrr"]
WORDS = [*TINY, "train.epochs=20"]  # 40 steps a task: Ray answers a signal within a second


@pytest.fixture
def compare(tmp_path):
    """Starts the command; whatever happens, none is left running."""
    children = []

    def begin(*more, words=WORDS, python=("-m", "rightreasons")):
        words = ["compare", "glyphs-small", *more, *words, "--checkpoint", 1, "--out", "runs"]
        child = subprocess.Popen(
            [sys.executable, *python, *map(str, words), "--on", "ray"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        if child.poll() is None:
            child.terminate()
            child.communicate()


def holders(is_it) -> set[int]:
    """The processes that have such a folder open, as a run's lock does."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if is_it(link.readlink()):
                found.add(int(link.parts[2]))
        except OSError:  # it has ended meanwhile
            continue
    return found


def underway(folder: Path) -> bool:
    inside = any(steps > 1 for _, steps in found_in(folder))
    return inside and not (folder / "result.json").exists()


def wait_for(look, child):
    """What ``look`` has found, at last."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        assert child.poll() is None, child.communicate()
        time.sleep(0.01)
    raise AssertionError("it has not come")


def kill_one(folders) -> Path | None:
    """SIGKILL for a worker whose run is between two checkpoints: the run's folder."""
    for folder in filter(underway, folders):
        for pid in holders(lambda path, folder=folder: path == folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # to look once more: it may have the next run by now
                held = pid in holders(lambda path, folder=folder: path == folder)
                doomed = held and underway(folder)
                os.kill(pid, signal.SIGKILL if doomed else signal.SIGCONT)
                if doomed:
                    return folder
    return None


def alone(folder: Path, method: str, seed: int, words=WORDS) -> dict[str, object]:
    """What a run leaves when it is made here, by itself."""
    execute(resolve("glyphs-small", method, [*words, "train.threads=1"], seed), folder)
    return content(folder)


def test_runs_on_a_cluster_survive_ctrl_c_and_dead_workers(compare, tmp_path):
    words = [",".join(METHODS), "--seeds", 2]
    folders = [tmp_path / "runs" / method / str(seed) for seed in range(2) for method in METHODS]
    child = compare(*words)
    wait_for(lambda: any(map(underway, folders)), child)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130 and "go on with: rrr compare" in err.splitlines()[-1], err
    assert "Traceback" not in err and any(map(underway, folders))

    child = compare(*words)
    first = wait_for(lambda: kill_one(folders), child)
    second = wait_for(lambda: kill_one([f for f in folders if f != first]), child)
    out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0 and "Traceback" not in err, err
    assert err.count("its worker died (WorkerCrashedError); the run goes on") == 2
    assert "er+rrr against er: accuracy" in out and "6 runs in" in out
    for folder in folders:
        method, seed = folder.parts[-2:]
        own = alone(tmp_path / "alone" / method / seed, method, int(seed))
        killed = " (killed)" if folder in (first, second) else ""
        assert_same(content(folder), own, f"{method} {seed}{killed}")
    assert not list((tmp_path / "runs").glob(".shared-*"))


# a worker that does not find the mark of the run folders does not have them, as far as it knows
ELSEWHERE = """
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from rightreasons import cli
from rightreasons.sweep import cluster

real = cluster._home

@contextmanager
def home(jobs):
    with real(jobs) as found:
        yield replace(found, mark=Path("/nowhere"))

cluster._home = home
sys.argv = ["rrr", *sys.argv[1:]]
cli.main()
"""


def test_a_worker_without_the_shared_folder_hands_its_run_over(compare, tmp_path):
    words = [*TINY, "train.epochs=100"]  # files are handed over in turns: steps for many of them
    child = compare("er,er+rrr", "--seeds", 1, words=words, python=["-c", ELSEWHERE])
    folders = [tmp_path / "runs" / method / "0" for method in ("er", "er+rrr")]
    wait_for(lambda: any(map(underway, folders)), child)
    assert not any(holders(lambda path, folder=folder: path == folder) for folder in folders)
    for worker in holders(lambda path: path.match("rrr-*/run")):
        os.kill(worker, signal.SIGKILL)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0 and "Traceback" not in err, err
    assert err.count("its worker died (WorkerCrashedError); the run goes on") == 1
    for folder in folders:
        method = folder.parent.name
        own = alone(tmp_path / "alone" / method, method, 0, words)
        assert_same(content(folder), own, method)
    assert len(list((tmp_path / "runs" / "prefix").glob("*.pt"))) == 1
