"""Real processes that are killed, stopped, started twice, or left without room on the disk."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import TINY
from test_kill import assert_same, content

from rightreasons.checkpoints import found_in

SOURCE = Path(__file__).parents[2] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
LONG = [*TINY, "data.train=24", "train.epochs=6"]  # 72 steps in two tasks
PATIENCE = 300  # seconds for what takes a few


def start(*words, cwd, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "rightreasons", *map(str, words)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def rrr(*words, cwd, **how):
    child = start(*words, cwd=cwd, **how)
    out, err = child.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, err
    return child.returncode, out, err


def wait_for(look, child):
    """Until a file is there; a child that does not make it is not left behind."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if look():
            return
        assert child.poll() is None, child.communicate()
        time.sleep(0.02)
    child.terminate()
    raise AssertionError(f"it has not come: {child.communicate(timeout=PATIENCE)}")


@pytest.fixture(scope="module")
def peace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peace")
    code, _, err = rrr("run", "glyphs-small", "er+rrr", *LONG, "--out", "run", cwd=folder)
    assert code == 0, err
    return content(folder / "run")


WORDS = ["run", "glyphs-small", "er+rrr", *LONG, "--out", "run", "--checkpoint", 1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_goes_on_with_the_command_that_it_names(number, peace, tmp_path):
    child = start(*WORDS, cwd=tmp_path)
    wait_for(lambda: any(steps for _, steps in found_in(tmp_path / "run")), child)
    child.send_signal(number)
    _, err = child.communicate(timeout=PATIENCE)
    command = WORDS
    if number == signal.SIGKILL:
        assert child.returncode == -9
    else:
        assert child.returncode == 128 + number
        last = err.splitlines()[-1]
        assert last.startswith("rrr: stopped after step ") and "Traceback" not in err
        command = shlex.split(last.partition("go on with: ")[2])[1:]
        assert command == [str(word) for word in WORDS]
    code, _, err = rrr(*command, cwd=tmp_path)
    assert code == 0 and "goes on at step" in err, err
    assert_same(content(tmp_path / "run"), peace, str(number))
    code, out, _ = rrr(*command, cwd=tmp_path)
    assert code == 0 and "run is finished already" in out


def test_the_second_process_in_a_folder_is_refused(tmp_path):
    child = start(*WORDS, cwd=tmp_path)
    try:
        wait_for(lambda: found_in(tmp_path / "run"), child)
        child.send_signal(signal.SIGSTOP)
        code, _, err = rrr(*WORDS, cwd=tmp_path)
        assert code == 2 and "another process works in run" in err
    finally:
        child.kill()
        child.communicate()
    assert rrr(*WORDS, cwd=tmp_path)[0] == 0  # a dead process holds nothing


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_compare_stops_its_workers_and_goes_on(number, tmp_path):
    words = ["compare", "glyphs-small", "finetune,er", *LONG, "train.epochs=40"]
    words += ["--seeds", 1, "--checkpoint", 1, "--out", "runs"]
    child = start(*words, cwd=tmp_path, start_new_session=True)
    folders = [tmp_path / "runs" / method / "0" for method in ("finetune", "er")]
    wait_for(lambda: all(found_in(folder) for folder in folders), child)
    if number == signal.SIGINT:
        os.killpg(child.pid, number)  # as a terminal does
    else:
        child.send_signal(number)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 128 + number and "Traceback" not in err, err
    assert err.splitlines()[-1].endswith(shlex.join(["rrr", *map(str, words)]))
    places = [list(found_in(folder))[-1] for folder in folders]
    code, _, err = rrr(*words, cwd=tmp_path)
    assert code == 0, err
    for folder, place in zip(folders, places, strict=True):
        assert place < (2, 0)  # they were stopped on their way
        assert len(json.loads((folder / "result.json").read_text("utf-8"))["R"]) == 2


def small_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))


def test_a_file_system_that_takes_no_more_is_one_sentence(peace, tmp_path):
    """The kernel itself ends the write half-way: files may have 150 kB."""
    code, _, err = rrr(*WORDS, cwd=tmp_path, preexec_fn=small_files)
    assert code == 1
    assert err.splitlines()[-1].startswith("rrr: run/checkpoints/step-1-1.pt: File too large")
    assert not list((tmp_path / "run").rglob("*.partial"))
    assert rrr(*WORDS, cwd=tmp_path)[0] == 0
    assert_same(content(tmp_path / "run"), peace, "file size")


@pytest.fixture
def tmpfs(tmp_path):
    """A disk of 8 MB, where the system lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user cannot mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_loses_nothing_that_was_saved(tmpfs, peace):
    words = [word if word != "run" or i == 0 else "disk/run" for i, word in enumerate(WORDS)]
    ballast = tmpfs / "ballast"
    child = start(*words, cwd=tmpfs.parent)
    wait_for(lambda: any(steps for _, steps in found_in(tmpfs / "run")), child)
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space left"):
        while True:
            os.write(descriptor, b"0" * 4096)
    os.close(descriptor)
    _, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1 and "No space left on device" in err, err
    assert "go on with: rrr run" in err and "Traceback" not in err
    saved = found_in(tmpfs / "run")
    assert saved and not list((tmpfs / "run").rglob("*.partial"))
    ballast.unlink()
    code, _, err = rrr(*words, cwd=tmpfs.parent)
    assert code == 0 and "damaged" not in err, err
    assert_same(content(tmpfs / "run"), peace, "full disk")
