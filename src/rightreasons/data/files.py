"""Where files are: paths below the data folder, class folders, trees of masks, lists and boxes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from rightreasons.errors import UserError

ENDINGS = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
ENDINGS |= {".ppm", ".pgm", ".avif", ".jp2"}
SHIPPED = Path(__file__).resolve().parents[1] / "presets" / "classes"
BESIDE = {".txt", ".csv", ".tsv", ".json", ".xml", ".yaml", ".md", ".db", ".ini", ".mat", ".npy"}


def locate(path: str, base: Path | None = None) -> Path:
    """A path as it is given, or below ``base`` or ``RRR_DATA`` where that exists instead."""
    given = Path(path).expanduser()
    data = os.environ.get("RRR_DATA")
    for root in (base, Path(data).expanduser() if data else None):
        if not given.exists() and root is not None and path and (root / path).exists():
            return root / path
    return given


def listing(folder: Path) -> tuple[list[Path], list[Path]]:
    """Images of a class folder (or of ``images`` in it) by name, and files of unknown kinds."""
    images, others = [], []
    for place in (folder, folder / "images"):
        for f in place.iterdir() if place.is_dir() else ():
            if f.suffix.lower() in ENDINGS:
                if f.is_file() or f.is_symlink():  # a broken link is said to be unreadable
                    images.append(f)
            elif f.is_file() and f.suffix.lower() not in BESIDE and not f.name.startswith("."):
                others.append(f)
    return sorted(images), sorted(others)


def nested(folder: Path) -> list[Path]:
    """Images in folders below a class folder, where nobody looks for them."""
    places = [folder, folder / "images"]
    inside = [f for place in places for f in folders(place) if f not in places]
    return sorted(image for f in inside for image in below(f))


def folders(place: Path) -> list[Path]:
    """The folders in a folder, by name, without hidden ones."""
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:  # no look at each of many files
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    return [place / name for name in sorted(names)]


def below(folder: Path) -> Iterator[Path]:
    """Images anywhere in a folder."""
    for place, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        yield from (Path(place) / name for name in names if Path(name).suffix.lower() in ENDINGS)


def lines(file: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # editors of Windows mark the beginning
    except FileNotFoundError:
        raise UserError(f"there is no file {file}; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as text ({error}); replace it") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def harmless(path: str) -> bool:
    """Does it stay below the folder that it is joined to?"""
    parts = PurePosixPath(path.replace("\\", "/"))
    return not parts.is_absolute() and ".." not in parts.parts


def class_list(given: str, base: Path) -> tuple[Path, tuple[str, ...]]:
    """A file of class names, the user's or one that ships, and the names in their order."""
    file = locate(given, base)
    if not file.exists() and harmless(given) and (SHIPPED / given).is_file():
        file = SHIPPED / given
    names = lines(file)
    if not names or len(set(names)) < len(names):
        twice = next((name for name in names if names.count(name) > 1), None)
        what = f"names class {twice!r} twice" if twice else "is empty"
        raise UserError(f"{file} {what}, expected each class name once, one a line")
    return file, tuple(names)


def read_boxes(file: Path, form: str) -> dict[str, tuple[float, float, float, float]]:
    """Boxes as x, y, width, height by the image's path."""
    found = {}
    for line in lines(file):
        path, *numbers = line.rsplit(maxsplit=4)
        try:
            x, y, w, h = (float(n) for n in numbers)
        except ValueError:
            raise UserError(
                f"{file} has the line {line!r}, expected `path x y width height`"
            ) from None
        if not all(map(math.isfinite, (x, y, w, h))):
            raise UserError(
                f"{file} has a box that is not finite in the line {line!r}, expected `path x y "
                "width height` in pixels; correct the line, or remove it"
            )
        if form == "xyxy":
            w, h = w - x + 1, h - y + 1
        if not (w > 0 and h > 0):
            raise UserError(
                f"{file} has an empty box in the line {line!r}, expected `path x y width height`; "
                "for corners type data.box_format=xyxy"
            )
        found[path] = (x, y, w, h)
    return found


def stem(path: str) -> str:
    return path.rpartition(".")[0]


def pair(images: Sequence[str], folder: Path) -> dict[str, str]:
    """Files of masks by their images' paths: at the very path, or with another ending."""
    found, known, pairs = tree(folder), set(images), {}
    for image in images:
        same = found.get(stem(image), [])
        # A mask at the very path of another image belongs to that one.
        left = [image] if image in same else [mask for mask in same if mask not in known]
        if len(left) > 1:
            raise UserError(
                f"{folder} has {' and '.join(left)} for the image {image}, expected one mask; "
                "remove the others"
            )
        if left:
            pairs[image] = str(folder / left[0])
    return pairs


def tree(folder: Path) -> dict[str, list[str]]:
    """Relative paths of the image files below a folder, by the path without ending."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; pass the folder that holds the masks")
    found: dict[str, list[str]] = {}
    for file in sorted(below(folder)):
        path = file.relative_to(folder).as_posix()
        found.setdefault(stem(path), []).append(path)
    return found
