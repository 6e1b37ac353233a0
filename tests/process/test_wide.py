"""A run on images that are not square, put to use."""

from __future__ import annotations

import numpy as np
import pytest
from inside import assert_calm, rrr
from PIL import Image

import rightreasons as rr
from rightreasons.data.arrays import Arrays


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a finished run on images of 16x24, and an image file of that size."""
    base = tmp_path_factory.mktemp("wide")
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (32, 16, 24, 3), dtype=np.uint8)
    y = np.arange(32) % 4
    stream = rr.stream(Arrays((x, y), (x[:8], y[:8])), tasks=2)
    train = rr.Train(epochs=1, batch=16, augment=None)
    rr.fit(rr.Finetune(), rr.net("resnet8"), stream, train=train, run=base / "run", progress=False)
    Image.fromarray(x[0]).save(base / "0.png")
    return base


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_files_are_refused_with_what_is_true(place, command):
    answer = rrr(command, "run", "0.png", cwd=place)
    assert_calm(answer, command)
    assert answer.code == 2 and answer.err == (
        "rrr: the run was trained on images of 16x24, and image files are read as squares; use it "
        "from Python, with arrays of that size: rr.load(RUN).predict(arrays)\n"
    )


def test_arrays_of_its_size_are_taken_and_others_refused(place):
    model = rr.load(place / "run")
    found = model.predict(np.zeros((3, 16, 24, 3), np.uint8))
    assert found.maps.shape == (3, 16, 24)
    with pytest.raises(rr.UserError, match="are 16x16, and .* trained on 16x24; resize them$"):
        model.predict(np.zeros((3, 16, 16, 3), np.uint8))
