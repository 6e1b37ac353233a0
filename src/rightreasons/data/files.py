"""Where files are: paths below the data folder, class folders, trees of masks, lists and boxes."""

from __future__ import annotations

import os
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


def lines(file: Path) -> list[str]:
    """The lines of a text file that are not empty."""
    try:
        text = file.read_text(encoding="utf-8")
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


def tree(folder: Path) -> dict[str, str]:
    """Image files below a folder, by their relative path without ending."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; pass the folder that holds the masks")
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            if Path(name).suffix.lower() in ENDINGS:
                file = Path(place) / name
                found[stem(file.relative_to(folder).as_posix())] = str(file)
    return found
