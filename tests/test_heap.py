"""A process keeps the memory that its steps free, unless it was told otherwise."""

import ctypes
import os
import subprocess
import sys

import pytest

from rightreasons.heap import OWN

FAULTS = """
import resource, sys
from rightreasons.heap import keep_heap
if sys.argv[1] == "keep":
    assert keep_heap()
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step = [bytearray(2**20) for _ in range(64)]
    del step
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""
glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="glibc's malloc alone gives memory back at once",
)


def said(program: str, *words: str, env: dict[str, str]) -> str:
    words = (sys.executable, "-c", program, *words)
    return subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout.strip()


@pytest.fixture
def plain(monkeypatch):
    """The environment without a word about malloc."""
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    return dict(os.environ)


@glibc
def test_what_a_step_frees_serves_the_next(plain):
    assert int(said(FAULTS, "leave", env=plain)) > 64 * 256 / 2  # pages of 4 KB
    assert int(said(FAULTS, "keep", env=plain)) < 64


@pytest.mark.parametrize("name", OWN)
def test_the_environment_has_the_first_word(plain, name):
    value = "glibc.malloc.check=0" if name == "GLIBC_TUNABLES" else "131072"
    asked = "from rightreasons.heap import keep_heap; print(keep_heap())"
    assert said(asked, env=plain | {name: value}) == "False"


def test_the_command_asks_for_it(plain):
    program = """
import sys
from rightreasons import heap
heap.keep_heap = lambda: print("asked")
sys.argv = ["rrr", "--version"]
from rightreasons.cli import main
main()
"""
    assert said(program, env=plain).startswith("asked\n")


def test_workers_of_a_comparison_ask_for_it(monkeypatch):
    from rightreasons.sweep import local

    asked = []
    monkeypatch.setattr(local, "keep_heap", lambda: asked.append(1))
    monkeypatch.setattr(local, "be_patient", lambda: None)
    monkeypatch.setattr(local, "Thread", lambda **_: type("T", (), {"start": lambda self: None})())
    local._settle()
    assert asked
