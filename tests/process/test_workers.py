"""Worker processes end, whoever is stopped or killed, and runs save first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_stop import ENVIRONMENT, PATIENCE, wait_for

SCRIPT = Path(__file__).parent / "toil.py"


@pytest.fixture
def toil(tmp_path):
    """Starts jobs in a group of their own; what is left of them is ended afterwards."""
    started = []

    def start(*names):
        child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path), *names],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def end_of(child):
    """What was printed; workers have the same pipes, so these close when the last one has ended."""
    out, err = child.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, err
    return out


def test_ctrl_c_while_one_worker_is_idle_lets_the_other_save(toil, tmp_path):
    child = toil("train", "quick")
    wait_for((tmp_path / "idle").exists, child)
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    assert end_of(child).startswith("ended by KeyboardInterrupt")
    assert (tmp_path / "saved").exists()


def test_a_failure_of_the_first_run_lets_the_other_save(toil, tmp_path):
    assert end_of(toil("train", "fail")) == "ended by UserError: no such layer\n"
    assert (tmp_path / "saved").exists()


def test_a_signal_to_the_whole_group_reaches_workers_twice_and_they_save(toil, tmp_path):
    child = toil("train")
    wait_for((tmp_path / "trains").exists, child)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    wait_for((tmp_path / "told").exists, child)  # at the same time the kernel may make one of two
    os.kill(child.pid, signal.SIGTERM)
    assert end_of(child).startswith("ended by Stopped")
    assert (tmp_path / "saved").exists()


def test_workers_end_with_a_parent_that_is_killed_and_a_run_saves(toil, tmp_path):
    child = toil("train", "quick")
    wait_for((tmp_path / "idle").exists, child)
    child.kill()
    end_of(child)
    assert (tmp_path / "saved").exists()


def test_a_second_ctrl_c_does_not_wait(toil, tmp_path):
    child = toil("evaluate")
    wait_for((tmp_path / "trains").exists, child)
    os.killpg(child.pid, signal.SIGINT)
    wait_for((tmp_path / "told").exists, child)
    os.killpg(child.pid, signal.SIGINT)
    assert end_of(child).startswith("ended by KeyboardInterrupt")
