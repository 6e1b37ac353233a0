"""An exported run is loaded by the page's own lines, where this library cannot be imported."""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_cli import TINY, python, rrr
from torch import nn

import rightreasons as rr

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
ALONE = "import sys; sys.modules['rightreasons'] = None\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of iCaRL, whose answers are not the net's logits."""
    place = tmp_path_factory.mktemp("finished")
    done = rrr("run", "glyphs-small", "icarl", *TINY, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


def test_the_lines_of_the_page_load_the_program(finished):
    done = rrr("export", "run", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "model.pt2: scores differ from the run's own by" in done.stdout
    lines = [line for line in BLOCKS[0].splitlines() if line]
    assert len(lines) <= 10
    shown = ALONE + BLOCKS[0].replace('"export/', '"run/export/')
    shown += "import numpy; numpy.savez('said.npz', x=images.numpy(), s=scores.detach().numpy())\n"
    loaded = python("-W", "error", "-c", shown, cwd=finished)
    assert loaded.returncode == 0, loaded.stderr
    said = np.load(finished / "said.npz")
    expected = rr.load(finished / "run").predict(said["x"])
    assert np.abs(said["s"] - expected.scores).max() < 1e-4
    assert str(expected.names) in loaded.stdout
    card = json.loads((finished / "run" / "export" / "card.json").read_text())
    assert card["classes"] == list(rr.load(finished / "run").class_names)
    assert "the scores of icarl, not the logits" in card["answer"]
    result = json.loads((finished / "run" / "result.json").read_text())
    assert card["results"]["accuracy"] == result["accuracy"]
    assert card["differences"]["model.pt2"] < 1e-4


def test_an_export_holds_nothing_of_another_run(finished, tmp_path):
    for name in ("model.pt2", "model.onnx"):
        (tmp_path / name).write_text("of another run")
    done = rr.export(finished / "run", tmp_path)
    assert "model.onnx" not in done.files
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(done.files)


def test_a_learner_that_is_no_one_program_says_so_in_a_sentence(tmp_path):
    done = rrr("run", "glyphs-small", "itaml", *TINY, "itaml.group=8", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "export").mkdir()
    (tmp_path / "run" / "export" / "model.pt2").write_text("of another run")
    done = rrr("export", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "model.pt2 could not be written: itaml takes another way for each task" in done.stdout
    assert len(done.stdout.splitlines()) == 2
    assert not (tmp_path / "run" / "export" / "model.pt2").exists()


class Own(nn.Module):
    """A 1x1 convolution as its head, as SqueezeNet has."""

    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(inplace=True))
        self.last = nn.Conv2d(6, classes, 1)

    def forward(self, x):
        return self.last(self.body(x)).mean((2, 3))


def test_the_weights_of_ones_own_module_load_into_it(tiny_stream, tiny_train, tmp_path):
    net = rr.net(Own(2), head="last", size=16)
    rr.fit(rr.ER(), net, tiny_stream, train=tiny_train, run=tmp_path / "run", progress=False)
    done = rr.export(tmp_path / "run", tmp_path / "out", net=net)
    card = json.loads((done.folder / "card.json").read_text())
    again = Own(len(card["classes"]))
    again.load_state_dict(load_file(done.folder / "model.safetensors"))
    mean, std = (torch.tensor(card["input"][key]).view(3, 1, 1) for key in ("mean", "std"))
    x = tiny_stream[0].test.x[:4]
    expected = rr.load(tmp_path / "run", net=net).predict(x).scores
    assert card["answer"] == "the logits"
    assert np.allclose(again((x.float() - mean) / std).detach().numpy(), expected, atol=1e-5)


@pytest.mark.skipif(
    any(find_spec(n) is None for n in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra onnx is not installed",
)
def test_onnx_says_the_same(finished, tmp_path):
    done = rr.export(finished / "run", tmp_path / "out", onnx=True)
    assert done.missing == {} and done.differences["model.onnx"] < 1e-4


def test_bad_input(finished, tmp_path, monkeypatch):
    done = rrr("export", tmp_path / "none", cwd=tmp_path)
    assert done.returncode == 2 and "holds no run" in done.stderr
    (tmp_path / "file").write_text("")
    done = rrr("export", "run", "--out", tmp_path / "file", cwd=finished)
    assert done.returncode == 2 and "is a file, expected a folder" in done.stderr
    broken = tmp_path / "broken"
    shutil.copytree(finished / "run", broken)
    (broken / "result.json").write_text("{")
    done = rrr("export", broken, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.returncode == 2 and "result.json cannot be read" in done.stderr
    assert not (tmp_path / "out").exists()
    from rightreasons import exports

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(rr.UserError, match=r"type pip install 'rightreasons\[onnx\]'"):
        exports._needs_onnx()
