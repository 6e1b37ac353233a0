"""Without Ray, and addresses where no cluster is: a sentence each, in bounded time."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from rightreasons.errors import UserError
from rightreasons.sweep import connect
from rightreasons.sweep.connect import check_address, need_ray
from rightreasons.sweep.place import Where


def test_without_ray_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(connect, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed; type pip install 'rightreasons\[ray\]'$"):
        Where("ray").check()
    Where("local").check()


def test_where_nothing_listens(monkeypatch):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(
            UserError, match=rf"no Ray cluster is at {address} \(Connection refused"
        ):
            check_address(address)
        words = ["compare", "glyphs-small", "er", "--on", "ray", "--address", address]
        typed = [sys.executable, "-m", "rightreasons", *words]
        done = subprocess.run(typed, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("rrr: no Ray cluster is at ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "address", ["", "here", "a:b", "host:0", "host:70000", "ray://a:1", "a b:1"]
)
def test_what_is_no_address(address):
    with pytest.raises(UserError, match="expected HOST:PORT as ray start printed it, or auto"):
        check_address(address)


def test_what_listens_and_is_no_cluster_is_given_up(monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'rightreasons[ray]'")
    monkeypatch.setattr(connect, "JOIN", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        check_address(address)
        need_ray()
        with pytest.raises(UserError, match=r"\(no answer in 1 s\)"), connect.connected(address):
            pytest.fail("it is no cluster")


def test_a_refusal_of_ray_is_told_in_half_a_sentence(monkeypatch):
    def refuse(said):
        def run(command, **_):
            raise subprocess.CalledProcessError(1, command, stderr=said)

        monkeypatch.setattr(subprocess, "run", run)
        with pytest.raises(UserError) as refused:
            connect._try("a:1")
        return str(refused.value)

    said = "Traceback\n  more\nRuntimeError: Version mismatch: 2.9 there. Do this.\n"
    assert "at a:1 (RuntimeError: Version mismatch: 2.9 there); start one" in refuse(said)
    assert "asks for its token; set RAY_AUTH_MODE=token" in refuse("InvalidAuthToken: missing")
