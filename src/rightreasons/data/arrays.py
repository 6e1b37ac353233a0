"""Arrays in memory as a data source: ``(x, y)`` or ``(x, y, masks)``, NumPy or torch."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rightreasons.errors import UserError
from rightreasons.randomness import generator
from rightreasons.types import Images, Splits

Part = tuple[Tensor, list[str], Tensor | None]


class Arrays:
    """Images with any integer or string labels; classes in order of first appearance in ``train``.

    ``test`` is a tuple like ``train``, or the share of each class's images that is held out.
    """

    flip = True

    def __init__(
        self, train: Sequence[Any], test: Sequence[Any] | float = 0.2, seed: int = 0
    ) -> None:
        self.train = _part(train, "train")
        self.names = tuple(dict.fromkeys(self.train[1]))
        if isinstance(test, (int, float)):
            self.train, self.test = _hold_out(self.train, float(test), seed)
        else:
            self.test = _part(test, "test")
            strange = [name for name in dict.fromkeys(self.test[1]) if name not in self.names]
            if strange:
                raise UserError(
                    f"class {strange[0]!r} has test images and no train image; add some"
                )
            if self.test[0].shape[1:] != self.train[0].shape[1:]:
                raise UserError(
                    f"test images are {tuple(self.test[0].shape[1:])} and train images "
                    f"{tuple(self.train[0].shape[1:])}; resize them to one shape"
                )
            if (self.test[2] is None) != (self.train[2] is None):
                raise UserError("masks are given for one of train and test; give both or none")
        for name in self.names:
            if name not in set(self.test[1]):
                raise UserError(f"class {name!r} has no test image; add one or pass test=0.2")

    def load(self, classes: Sequence[int]) -> Splits:
        return Splits(self._pick(self.train, classes), self._pick(self.test, classes))

    def _pick(self, part: Part, classes: Sequence[int]) -> Images:
        x, labels, masks = part
        place = {self.names[c]: i for i, c in enumerate(classes)}
        y = torch.tensor([place.get(label, -1) for label in labels])
        rows = y.argsort(stable=True)
        rows = rows[y[rows] >= 0]
        return Images(x, y[rows], masks, rows)


def _part(arrays: Sequence[Any], which: str) -> Part:
    if not isinstance(arrays, (tuple, list)) or len(arrays) not in (2, 3):
        raise UserError(
            f"{which} is not (x, y) or (x, y, masks); pass a tuple of two or three arrays"
        )
    x = as_images(arrays[0], which)
    labels = _labels(_numpy(arrays[1]), len(x), which)
    masks = _numpy(arrays[2]) if len(arrays) == 3 and arrays[2] is not None else None
    if masks is None:
        return x, labels, None
    expected = (len(x), *x.shape[2:])
    if masks.shape != expected:
        raise UserError(
            f"{which} masks have shape {masks.shape}, expected {expected}, one of each image's size"
        )
    if masks.dtype != np.bool_:
        raise UserError(f"{which} masks are {masks.dtype}, expected bool; type masks > 0")
    return x, labels, torch.from_numpy(np.ascontiguousarray(masks))


def _numpy(value: Any) -> NDArray[Any]:
    try:
        return value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    except ValueError as error:  # a list whose parts differ in shape
        raise UserError(
            f"images, labels and masks are arrays, each of one shape, and one is not ({error}); "
            "pass rr.stream((x, y), test=(x, y))"
        ) from error


def as_images(images: Any, which: str) -> Tensor:
    """(N,3,H,W) uint8 of any array that holds RGB or grey images."""
    x = _numpy(images)
    if x.dtype != np.uint8:
        hint = "(x * 255).astype('uint8')" if x.dtype.kind == "f" else "x.astype('uint8')"
        raise UserError(f"{which} images are {x.dtype}, expected uint8 in 0..255; type {hint}")
    if x.ndim == 3:  # grey
        x = np.repeat(x[:, None], 3, axis=1)
    elif x.ndim == 4 and x.shape[-1] == 3:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim != 4 or x.shape[1] != 3:
        raise UserError(
            f"{which} images have shape {x.shape}, expected (N,H,W,3), (N,3,H,W) or grey (N,H,W)"
        )
    if not len(x):
        raise UserError(f"there is no {which} image; expected at least one a class")
    return torch.from_numpy(np.ascontiguousarray(x))


def _labels(y: NDArray[Any], count: int, which: str) -> list[str]:
    if y.shape != (count,):
        raise UserError(f"{which} labels have shape {y.shape}, expected ({count},), one an image")
    if y.dtype.kind == "f":
        what = "contain NaN" if np.isnan(y).any() else f"are {y.dtype}"
        raise UserError(f"{which} labels {what}, expected integers or strings; type y.astype(int)")
    if y.dtype.kind not in "iuUSO":
        raise UserError(f"{which} labels are {y.dtype}, expected integers or strings")
    labels = y.tolist()
    strange = [v for v in labels if not isinstance(v, (Integral, str))]
    if strange:
        raise UserError(
            f"{which} labels hold {strange[0]!r}, expected integers or strings throughout"
        )
    if len({str(v) for v in labels}) < len(set(labels)):
        raise UserError(
            f"{which} labels hold a number and a string that read the same; use one kind"
        )
    return [str(v) for v in labels]


def _hold_out(part: Part, share: float, seed: int) -> tuple[Part, Part]:
    """Cut a share of each class, at least one image, by the seed."""
    if not 0 < share < 1:
        raise UserError(f"test is {share}, expected a share between 0 and 1, or (x, y[, masks])")
    x, labels, masks = part
    names = np.array(labels)
    held = torch.zeros(len(x), dtype=torch.bool)
    for name in dict.fromkeys(labels):
        places = torch.from_numpy(np.flatnonzero(names == name))
        if len(places) < 2:
            raise UserError(
                f"class {name!r} has one image, expected two or more, one to train and one to test"
            )
        order = torch.randperm(len(places), generator=generator(seed, "data", "split", name))
        count = min(max(1, round(share * len(places))), len(places) - 1)
        held[places[order[:count]]] = True

    def cut(keep: Tensor) -> Part:
        kept = [label for label, k in zip(labels, keep.tolist(), strict=True) if k]
        return x[keep], kept, None if masks is None else masks[keep]

    return cut(~held), cut(held)
