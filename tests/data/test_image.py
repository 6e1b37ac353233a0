"""One image file: upright, in RGB, square; or refused in a sentence."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from rightreasons.data.image import read
from rightreasons.errors import UserError


def half(height=40, width=60):
    """Bright above, dark below."""
    grey = np.zeros((height, width), np.uint8)
    grey[: height // 2] = 255
    return grey


def upright(file, size=10):
    x = read(file, size)
    middle = size // 2
    assert x.shape == (3, size, size) and x.dtype == np.uint8
    return x[:, : middle - 1].min() > 190 and x[:, middle + 1 :].max() < 65


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation(tmp_path, orientation):
    back = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]
    image = Image.fromarray(half()).convert("RGB")
    if back is not None:
        image = image.transpose(Image.Transpose(back))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for ending in ("jpg", "png", "webp", "tif"):
        image.save(tmp_path / f"a.{ending}", exif=exif)
        assert upright(tmp_path / f"a.{ending}"), ending


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode(tmp_path, mode):
    file = tmp_path / (
        "a.jpg" if mode in ("CMYK", "YCbCr") else "a.tif" if mode == "F" else "a.png"
    )
    if mode == "I;16":
        Image.fromarray(half().astype(np.uint16) * 257).save(file)
    elif mode == "I":
        Image.fromarray(half().astype(np.int32) * 257).save(tmp_path / "a.tif")
        file = tmp_path / "a.tif"
    elif mode == "F":
        Image.fromarray(half().astype(np.float32) / 255).save(file)
    else:
        Image.fromarray(half()).convert("RGB").convert(mode).save(file)
    assert upright(file)


def test_transparent_is_white(tmp_path):
    alpha = np.zeros((20, 30, 4), np.uint8)
    alpha[10:, :, 3] = 255  # black below, nothing above
    Image.fromarray(alpha).save(tmp_path / "a.png")
    Image.fromarray(alpha).save(tmp_path / "a.gif")
    assert upright(tmp_path / "a.png") and upright(tmp_path / "a.gif")


def test_large_jpegs_are_decoded_small_and_alike(tmp_path):
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((1600, 1200), Image.Resampling.BICUBIC)
    image.save(tmp_path / "a.jpg", quality=95)
    image.save(tmp_path / "a.png")
    a, b = (read(tmp_path / name, 64).astype(int) for name in ("a.jpg", "a.png"))
    assert np.abs(a - b).mean() < 3


@pytest.mark.parametrize(
    "exif",
    [
        b"MM\x00*\xff\xff\xff\xffgarbage",
        b"",
        b"no TIFF at all",
        b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12",  # ends inside the orientation
        b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\xff\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00",
        b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x63\x00\x00\x00\x00\x00\x00",
    ],
)
def test_an_image_whose_metadata_are_damaged_is_read_as_it_lies(tmp_path, exif):
    """As viewers of pictures show it: without a warning, and without a turn."""
    image = Image.fromarray(half()).convert("RGB")
    image.save(tmp_path / "a.jpg", exif=b"Exif\x00\x00" + exif)
    assert upright(tmp_path / "a.jpg")


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "bmp", "webp", "tif", "ppm"])
def test_truncated_files_are_refused_in_one_sentence(tmp_path, ending):
    rng = np.random.default_rng(0)
    file = tmp_path / f"a.{ending}"
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(file)
    whole = file.read_bytes()
    for share in (0, 0.01, 0.3, 0.7):
        file.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError) as caught:
            read(file, 16)
        text = str(caught.value)
        assert text.startswith(f"{file} cannot be read as an image (") and "\n" not in text
        assert text.endswith("; remove or replace it")


def test_damaged_bytes_never_raise_anything_else(tmp_path):
    rng = np.random.default_rng(1)
    for ending in ("jpg", "png", "gif", "tif", "webp"):
        file = tmp_path / f"a.{ending}"
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(file)
        whole = np.frombuffer(file.read_bytes(), np.uint8)
        for _ in range(60):
            bytes_ = whole.copy()
            bytes_[rng.integers(0, min(len(bytes_), 300), 4)] = rng.integers(0, 256, 4)
            file.write_bytes(bytes_.tobytes())
            try:
                assert read(file, 8).shape == (3, 8, 8)
            except UserError as error:
                assert "cannot be read" in str(error)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    Image.new("1", (3000, 3000)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UserError, match="decompression bomb"):
        read(tmp_path / "a.png", 8)
