"""One thread a process: results are compared bit by bit, and two processes share the machine."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

# before torch computes: its AMX kernels end the process (optimise.amx_is_used)
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

import rightreasons as rr
from rightreasons.nets import small
from rightreasons.nets.base import Net

torch.set_num_threads(1)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background by a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or children would not hear it either


@pytest.fixture(scope="session")
def tiny_stream() -> rr.Stream:
    """Six glyph classes in three tasks, enough for every rule and quick to train on."""
    return rr.stream("glyphs", tasks=3, classes=6, train=12, test=4, size=16)


@pytest.fixture
def tiny_net() -> Net:
    """A residual net of two narrow stages: 4x4 maps at 16 px."""
    return Net(
        small.SmallResNet((4, 8), (2, 2), 1),
        head="fc",
        taps={"last_block": "stages.1", "paper": "stages.1.0.conv2"},
        pooled_linear=True,
        initialise=small.initialise,
        name="tiny",
    )


@pytest.fixture
def tiny_train() -> rr.Train:
    return rr.Train(epochs=2, batch=8, optimiser="adamw", augment=rr.Augment(2, False))


@pytest.fixture(scope="session")
def made_up():
    """The benchmark of the report makes run folders with made-up numbers; tests use the same."""
    path = Path(__file__).parents[1] / "benchmarks" / "report.py"
    spec = importlib.util.spec_from_file_location("report_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
