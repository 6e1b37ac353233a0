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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from rightreasons.errors import UserError, why

DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError),
    *(MemoryError, NotImplementedError, struct.error, zlib.error, Image.DecompressionBombError),
)  # what Pillow raises on files that are damaged or made to harm
JPEG = b"\xff\xd8"  # how these files begin
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> Image.Transpose


class Unreadable(UserError):
    """One file cannot be used; the text is half a sentence that names it."""


class Read(NamedTuple):
    """One image, read."""

    pixels: NDArray[np.uint8]  # (3,size,size)
    mask: NDArray[np.bool_] | None  # (size,size)
    digest: str  # of the file's bytes
    dark: int | None  # the largest value of a mask file that shows no object


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
            return read_item(Item(str(file)), size, False).pixels
    except Unreadable as error:
        raise UserError(f"{error}; remove or replace it") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Pillow warns of odd metadata in images that it reads all the same."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\..*")
        yield


def read_item(item: Item, size: int, masks: bool) -> Read:
    """An image and, if it is asked for, its mask."""
    data = _bytes(item.file)
    try:
        image, whole = _upright(data, size)
        fitted = ImageOps.fit(_rgb(image), (size, size), Image.Resampling.BILINEAR)
    except DAMAGE as error:
        raise Unreadable(f"{item.file} cannot be read as an image ({fault(error)})") from error
    pixels = np.asarray(fitted).transpose(2, 0, 1)
    digest = hashlib.blake2b(data, digest_size=8).hexdigest()
    mask, dark = _mask(item, size, whole) if masks else (None, None)
    return Read(pixels, mask, digest, dark)


def _bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except FileNotFoundError:
        raise Unreadable(f"{file} is not there") from None
    except OSError as error:
        raise Unreadable(f"{file} cannot be read ({why(error)})") from error


def fault(error: BaseException) -> str:
    """What is wrong with an image, in a few words."""
    if isinstance(error, UnidentifiedImageError):
        return "no known format"  # Pillow names a buffer's address
    return why(error)


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


def _mask(item: Item, size: int, whole: tuple[int, int]) -> tuple[NDArray[np.bool_], int | None]:
    """(size,size), cut and resized as the image is, and the largest value of a file without object.

    Nothing is the object where none is known.
    """
    dark = None
    if item.box is not None:
        inside = _inside(item, whole)
    elif item.mask:
        inside, dark = _shown(item.mask, whole)
    else:
        return np.zeros((size, size), dtype=np.bool_), None
    fitted = Image.fromarray(inside.astype(np.uint8))
    fitted = ImageOps.fit(fitted, (size, size), Image.Resampling.NEAREST)
    return np.asarray(fitted) > 0, dark


def _shown(file: str, whole: tuple[int, int]) -> tuple[NDArray[np.bool_], int | None]:
    """(height, width): where a mask file shows the object; its largest value if it shows none.

    The object is bright. In a mask that is bright nowhere, as one of 0 and 1 or of class numbers,
    it is what is not 0, if there is a 0 around it: a trimap of 1, 2 and 3 is left to its user.
    """
    data = _bytes(file)
    try:
        image = _upright(data)[0]
        values, bright = _values(image)
    except DAMAGE as error:
        raise Unreadable(f"{file} cannot be read as a mask ({fault(error)})") from error
    if image.size != whole:
        seen, expected = ("{}x{}".format(*pair) for pair in (image.size, whole))
        raise Unreadable(f"the mask {file} is {seen} pixels and its image {expected}")
    largest = int(values.max())
    exact = not data.startswith(JPEG)  # small values of a JPEG may be noise
    numbered = largest == 1 or (largest < bright and values.min() <= 0 and exact)
    inside = np.asarray(values >= (1 if numbered else bright), dtype=np.bool_)
    return inside, None if inside.any() else largest


def _values(mask: Image.Image) -> tuple[NDArray[Any], int]:
    """(height, width) numbers of a mask, and from which number on they are bright."""
    if mask.mode == "P":
        colours = np.asarray(mask.convert("RGB"))
        most = colours.max(2)
        if (most > colours.min(2)).any() and not most.all():
            # Colours on black stand for classes, whether they are bright or not (Pascal VOC).
            return np.where(most > 0, 255, 0), 128
    if mask.mode.startswith("I"):  # 16 bits or more, of which masks may use the lowest alone
        values = np.asarray(mask)
        return values, 128 if values.max() <= 255 else 128 * 257
    return np.asarray(_rgb(mask).convert("L")), 128


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
