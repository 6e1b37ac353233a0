"""One image file as a square of uint8 RGB: upright, whatever its size and its way to store pixels.

This module imports no torch: the processes that decode start quickly.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from rightreasons.errors import UserError

DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError),
    *(MemoryError, NotImplementedError, struct.error, zlib.error, Image.DecompressionBombError),
)  # what Pillow raises on files that are damaged or made to harm
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> Image.Transpose


class Unreadable(UserError):
    """One file cannot be used; the text is half a sentence that names it."""


class Item(NamedTuple):
    """An image with what says where its object is: a mask's file, a box, or nothing."""

    file: str
    mask: str = ""
    box: tuple[float, float, float, float] | None = None  # x, y, width, height in upright pixels


def read(file: Path, size: int) -> NDArray[np.uint8]:
    """One image (3,size,size): upright, transparency on white, short side fitted, middle cut."""
    if not file.exists():
        raise UserError(f"there is no image {file}; check the path")
    if not file.is_file():
        raise UserError(f"{file} is not a file, expected an image; name the files in it")
    try:
        with quiet():
            return read_item(Item(str(file)), size, False)[0]
    except Unreadable as error:
        raise UserError(f"{error}; remove or replace it") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow warns of odd metadata in images that it reads all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\..*")
        yield


def read_item(
    item: Item, size: int, masks: bool
) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None, str]:
    """Pixels (3,size,size), mask (size,size) and a digest of the file's bytes."""
    data = _bytes(item.file)
    try:
        image, whole = _upright(data, size)
        fitted = ImageOps.fit(_rgb(image), (size, size), Image.Resampling.BILINEAR)
    except DAMAGE as error:
        raise Unreadable(f"{item.file} cannot be read as an image ({why(error)})") from error
    pixels = np.asarray(fitted).transpose(2, 0, 1)
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    return pixels, _mask(item, size, whole) if masks else None, digest


def _bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise Unreadable(f"{file} is not there") from None
    except OSError as error:
        raise Unreadable(f"{file} cannot be read ({why(error)})") from error


def why(error: BaseException) -> str:
    """What went wrong, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "no known format"  # Pillow names a buffer's address
    return (str(error) or type(error).__name__).splitlines()[0]


def _upright(data: bytes, size: int | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """The image as it is to be seen, and its full width and height.

    A JPEG much larger than ``size`` is decoded at a fraction of its own size.
    """
    image = Image.open(io.BytesIO(data))
    whole = image.size
    if size is not None:
        image.draft(None, (2 * size, 2 * size))
    image.load()
    try:  # after loading: Pillow itself turns TIFF, and then forgets the orientation
        turn = TURNS.get(image.getexif().get(0x0112, 1))
    except DAMAGE:  # the metadata, not the pixels: as it lies, which is how viewers show it
        turn = None
    if turn is None:
        return image, image.size if image.format == "TIFF" else whole
    turned = image.transpose(Image.Transpose(turn))
    return turned, whole[::-1] if turn in (2, 4, 5, 6) else whole


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":  # convert() would clip these at 255
        grey = np.nan_to_num(np.asarray(image, dtype=np.float64))
        if image.mode == "F":
            scale = 255.0 if grey.max() <= 1 else 1.0
        else:
            scale = 1 / 257 if image.mode != "I" or grey.max() > 255 else 1.0
        return Image.fromarray(np.clip(grey * scale, 0, 255).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _mask(item: Item, size: int, whole: tuple[int, int]) -> NDArray[np.bool_]:
    """(size,size), cut and resized as the image is; nothing is the object where none is known."""
    if item.box is not None:
        grey = Image.fromarray(_inside(item, whole).astype(np.uint8) * 255)
    elif item.mask:
        data = _bytes(item.mask)
        try:
            grey = _rgb(_upright(data)[0]).convert("L")
        except DAMAGE as error:
            raise Unreadable(f"{item.mask} cannot be read as a mask ({why(error)})") from error
        if grey.size != whole:
            seen, expected = ("{}x{}".format(*pair) for pair in (grey.size, whole))
            raise Unreadable(f"the mask {item.mask} is {seen} pixels and its image {expected}")
    else:
        return np.zeros((size, size), dtype=np.bool_)
    least = 1 if grey.getextrema()[1] == 1 else 128  # masks of 0 and 1 are common
    fitted = ImageOps.fit(grey, (size, size), Image.Resampling.NEAREST)
    return np.asarray(fitted) >= least


def _inside(item: Item, whole: tuple[int, int]) -> NDArray[np.bool_]:
    """(height, width): pixels whose centre the box holds."""
    assert item.box is not None
    x, y, w, h = item.box
    if min(x, y) < -1 or x + w > whole[0] + 1 or y + h > whole[1] + 1:
        raise Unreadable(
            f"the box {x:g} {y:g} {w:g} {h:g} (x, y, width, height) of {item.file} leaves its "
            f"image of {whole[0]}x{whole[1]} pixels (for corners type data.box_format=xyxy)"
        )
    columns, rows = np.arange(whole[0]) + 0.5, np.arange(whole[1]) + 0.5
    inside = ((rows >= y) & (rows < y + h))[:, None] & (columns >= x) & (columns < x + w)
    return np.asarray(inside, dtype=np.bool_)
