"""Class folders as a data source: ``train/CLASS/*`` and ``val/CLASS/*``, or just ``CLASS/*``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.randomness import generator
from rightreasons.types import Images, Splits

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
TESTS = ("val", "test")


@dataclass(frozen=True)
class Folder:
    """Images in one folder a class, read upright, in RGB, cut to a square.

    With ``train`` and ``val`` (or ``test``) folders these are the splits; otherwise a share
    ``test`` of each class's images, at least one, is held out by ``seed``.
    """

    path: str
    size: int = 32
    """side of the images after reading"""
    test: float = 0.2
    """share of each class that is held out, where the folder has no split of its own"""
    seed: int = 0

    flip: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not Path(self.path).is_dir():
            raise UserError(f"{self.path} is not a folder; pass a folder with one folder a class")
        if self.size < 8:
            raise UserError(f"data.size is {self.size}, expected at least 8 pixels")
        if not 0 < self.test < 1:
            raise UserError(f"data.test is {self.test}, expected a share between 0 and 1")

    @cached_property
    def _roots(self) -> tuple[Path, Path | None]:
        """Where the class folders are, for train and, if it is apart, for test."""
        base = Path(self.path)
        tests = [base / name for name in TESTS if (base / name).is_dir()]
        if (base / "train").is_dir() and tests:
            return base / "train", tests[0]
        return base, None

    @cached_property
    def names(self) -> tuple[str, ...]:
        train, _ = self._roots
        found = sorted(f.name for f in train.iterdir() if f.is_dir() and not f.name.startswith("."))
        if not found:
            raise UserError(f"{train} holds no class folder; put the images of each class in one")
        return tuple(found)

    def load(self, classes: Sequence[int]) -> Splits:
        files: tuple[list[Path], list[Path]] = ([], [])
        labels: tuple[list[int], list[int]] = ([], [])
        for label, c in enumerate(classes):
            for k, part in enumerate(self._files(self.names[c])):
                files[k].extend(part)
                labels[k].extend([label] * len(part))
        made = [
            Images(read_all(f, self.size), torch.tensor(y, dtype=torch.int64))
            for f, y in zip(files, labels, strict=True)
        ]
        return Splits(*made)

    def _files(self, name: str) -> tuple[list[Path], list[Path]]:
        """Train and test files of a class, in the order of their names."""
        train, test = self._roots
        files = _images(train / name)
        if test is not None:
            return files, _images(test / name) if (test / name).is_dir() else []
        if len(files) < 2:
            raise UserError(
                f"class folder {train / name} has {len(files)} images, expected two or more, one "
                "to train and one to test"
            )
        order = torch.randperm(len(files), generator=generator(self.seed, "data", "split", name))
        count = min(max(1, round(self.test * len(files))), len(files) - 1)
        held = set(order[:count].tolist())
        return (
            [f for i, f in enumerate(files) if i not in held],
            [f for i, f in enumerate(files) if i in held],
        )


def _images(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in ENDINGS)


def read_all(files: Sequence[Path], size: int) -> Tensor:
    """(N,3,size,size) uint8."""
    x = np.empty((len(files), 3, size, size), dtype=np.uint8)
    for i, file in enumerate(files):
        x[i] = read(file, size)
    return torch.from_numpy(x)


def read(file: Path, size: int) -> NDArray[np.uint8]:
    """One image (3,size,size): upright, transparency on white, short side fitted, middle cut."""
    try:
        with Image.open(file) as opened:
            image = ImageOps.exif_transpose(opened)
            if "A" in image.getbands() or "transparency" in image.info:
                image = image.convert("RGBA")
                white = Image.new("RGBA", image.size, "white")
                image = Image.alpha_composite(white, image)
            image = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise UserError(f"there is no image {file}; check the path") from None
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{file} cannot be read as an image ({error}); remove or replace it"
        ) from error
    return np.asarray(image).transpose(2, 0, 1)
