"""A folder of 2,000 photographs as people have them: odd sizes and modes, turned by the camera."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import rightreasons as rr
from rightreasons.data import cache

COUNT, SIZE = 2000, 16
CLASSES = ("beach", "dog", "market", "tower")
LIGHT = (255, 170, 85, 0)  # of the quarters, as they are read: no two turns of this look the same
BACK = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # how a camera lays it, by orientation
KINDS = (
    *(("RGB", "jpg"), ("L", "jpg"), ("CMYK", "jpg"), ("RGB", "webp"), ("RGB", "tif")),
    *(("RGB", "png"), ("RGBA", "png"), ("LA", "png"), ("P", "png"), ("I;16", "png")),
    ("L", "jpeg"),
)  # 11 kinds and 8 orientations: every pair occurs


def photograph(mode, height, width):
    """Four quarters of different light; a transparent one is as white as what it lies on."""
    grey = np.empty((height, width), np.uint8)
    grey[: height // 2, : width // 2], grey[: height // 2, width // 2 :] = LIGHT[:2]
    grey[height // 2 :, : width // 2], grey[height // 2 :, width // 2 :] = LIGHT[2:]
    if mode == "I;16":
        return Image.fromarray(grey.astype(np.uint16) * 257)
    if mode in ("RGBA", "LA"):
        alpha = np.where(grey == 255, 0, 255).astype(np.uint8)
        hidden = np.where(grey == 255, 0, grey).astype(np.uint8)
        return Image.merge("LA", [Image.fromarray(hidden), Image.fromarray(alpha)]).convert(mode)
    return Image.fromarray(grey).convert("RGB").convert(mode)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    base = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (base / name).mkdir()
    for i in range(COUNT):
        mode, ending = KINDS[i % len(KINDS)]
        image = photograph(mode, *(2 * rng.integers(12, 40, 2) + 1))
        back, exif = BACK[i % 8 + 1], Image.Exif()
        exif[0x0112] = i % 8 + 1
        exif[0x010E] = f"photograph {i}"  # no file is the copy of another
        turned = image if back is None else image.transpose(Image.Transpose(back))
        quality = {"quality": 95} if ending in ("jpg", "jpeg", "webp") else {}
        turned.save(base / CLASSES[i % 4] / f"{i:04d}.{ending}", exif=exif, **quality)
    return base


def test_each_is_read_upright_and_they_train(photographs, tmp_path, monkeypatch, tiny_net):
    monkeypatch.setenv("RRR_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "SMALL", 1)
    stream = rr.stream(photographs, tasks=2, size=SIZE)
    assert stream.class_names == CLASSES and len(list(tmp_path.glob("photographs*-16px-*"))) == 1
    parts = [part for task in stream for part in (task.train, task.test)]
    rows = torch.cat([part.positions(torch.arange(len(part))) for part in parts])
    assert sorted(rows.tolist()) == list(range(COUNT))

    x = stream[0].train.x.float()  # (2000,3,16,16)
    near, far = slice(2, 6), slice(10, 14)  # inside the quarters
    for light, (down, across) in zip(
        LIGHT, [(near, near), (near, far), (far, near), (far, far)], strict=True
    ):
        away = (x[:, :, down, across] - light).abs().amax((1, 2, 3))
        assert away.max() < 25, int(away.argmax())

    train = rr.Train(epochs=1, batch=64, augment=rr.Augment(2, True))
    learner = rr.ER(memory=rr.Memory(40)) + rr.Evidence(view="shared")
    result = rr.fit(learner, tiny_net, stream, train=train, progress=False)
    assert np.isfinite(result.R[-1]).all() and len(result.records) == 2
