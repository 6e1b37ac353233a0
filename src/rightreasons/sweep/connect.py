"""A Ray cluster to work on: one that is there, or one of this machine's own while it is needed."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rightreasons.errors import UserError, printable

ANSWER = 5.0  # seconds that an address has to answer in
JOIN = 120.0  # seconds that a cluster has to let us in
QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}
# Ray tries again for minutes, in native code that hears no signal: a process can be ended
TRY = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"


def need_ray() -> None:
    """Refuse without Ray, in no time."""
    if find_spec("ray") is None:
        raise UserError(
            "--on ray needs Ray, which is not installed; type pip install 'rightreasons[ray]'"
        )


def check_address(address: str) -> None:
    """Refuse an address that is none, or where nothing listens."""
    if address == "auto":
        return
    found = re.fullmatch(r"(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):(?P<port>\d+)", address)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise UserError(
            f"--address is {address!r}, expected HOST:PORT as ray start printed it, or auto"
        )
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), ANSWER).close()
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise UserError(_nobody(address, why)) from None


def _nobody(address: str, why: str) -> str:
    return (
        f"no Ray cluster is at {address} ({printable(why)}); start one with ray start --head, or "
        "leave out --address for one of this machine alone"
    )


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The module ``ray``, with a cluster behind it."""
    need_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    if address is not None:
        _try(address)
    ray = importlib.import_module("ray")
    before = signal.getsignal(signal.SIGTERM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, of its future versions
        if address is None:
            _start(ray)
        else:
            ray.init(address=address, **QUIET)
    signal.signal(signal.SIGTERM, before)  # Ray has put its own there, which only exits
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any) -> None:
    try:
        ray.init(address="local", include_dashboard=False, **QUIET)
    except Exception as error:
        if type(error) not in (Exception, RuntimeError, ConnectionError):  # what Ray raises here
            raise
        raise UserError(
            f"Ray did not start on this machine ({_last(str(error))}); type the command once more, "
            "or leave out --on ray"
        ) from None


def _try(address: str) -> None:
    """Refuse, in bounded time, what listens and is no cluster, or one of another version."""
    try:
        subprocess.run(
            [sys.executable, "-c", TRY, address],
            check=True,
            capture_output=True,
            text=True,
            timeout=JOIN,
        )
    except subprocess.TimeoutExpired:
        raise UserError(_nobody(address, f"no answer in {JOIN:.0f} s")) from None
    except subprocess.CalledProcessError as error:
        if re.search("InvalidAuthToken|AuthenticationError", error.stderr):
            raise UserError(
                f"the Ray cluster at {address} asks for its token; set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN to what ray get-auth-token prints on its first machine"
            ) from None
        raise UserError(_nobody(address, _last(error.stderr))) from None


def _last(text: str) -> str:
    """Of a traceback the end, in half a sentence."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].partition(". ")[0].rstrip(".")[:160] if lines else "it gave no reason"
