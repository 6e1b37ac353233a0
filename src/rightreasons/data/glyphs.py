"""Glyphs: letters and signs over clutter, drawn on the spot, with an exact mask for every image.

Nothing is downloaded: the faces ship with matplotlib. Because the glyph's pixels are known, it can
be said whether a model looked at them; and ``spurious`` plants a cue at the border that is right in
training and worthless in the test, so that a model can be right for the wrong reason.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate

from rightreasons.errors import UserError
from rightreasons.randomness import generator
from rightreasons.types import Images, Splits

# No two of these differ by size alone or look alike in some face (c/C, O/0, l/I, A/Α/А, g/9, J/j).
# Capitals carry the bare name and small letters say so: file systems may not tell A from a.
_OTHERS = {
    "greek": "Γ gamma Δ delta Λ lambda Ξ xi Π pi Σ sigma Φ phi Ψ psi Ω omega "
    "β small-beta δ small-delta ε small-epsilon λ small-lambda μ small-mu ξ small-xi "
    "σ small-sigma ω small-omega",
    "cyrillic": "Б be Д de Ж zhe И i Ц tse Ч che Ш sha Ы yery Э e Ю yu Я ya Ђ dje Љ lje",
    "sign": "& ampersand @ at # hash $ dollar % percent ? question € euro £ pound ¥ yen § section "
    "¶ pilcrow © copyright ÷ division ∞ infinity √ root → arrow ♠ spade ♥ heart ♣ club ∇ nabla "
    "* asterisk { brace ∃ exists ∀ forall ♦ diamond",
}
_CHARACTERS: dict[str, str] = {
    **{f"latin-{c}": c for c in "ABCDEFGHJKLMNOPQRSTUVWXYZ"},
    **{f"latin-small-{c}": c for c in "abdehimnqrt"},
    **{f"digit-{c}": c for c in "123456789"},
    **{
        f"{script}-{name}": c
        for script, pairs in _OTHERS.items()
        for c, name in zip(pairs.split()[::2], pairs.split()[1::2], strict=True)
    },
}
_FACES = (  # the first is the main face: it has every class
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
# Fragments come from characters that are no class, so that clutter cannot tell the class.
_CLUTTER = "fgkszηθψÅßæЙЛЪфю≠∂∫ð"
_CUTS = 4  # ways in which each of them is cut
_FRAGMENTS = 6  # an image, some of them invisible
_HUES = torch.tensor([[1, 0.1, 0.1], [0.1, 0.9, 0.1], [0.15, 0.25, 1], [1, 0.9, 0], [1, 0, 1]])
_BORDER = tuple((r, c) for r in range(4) for c in range(4) if {r, c} & {0, 3})  # of 4 x 4 cells

Draw = Callable[..., Tensor]  # draw(what, *shape) is uniform on [0, 1), (N, *shape)


@dataclass(frozen=True)
class Glyphs:
    """100 classes of glyphs in many faces, places, sizes, slants and colours, with masks.

    An image depends on the seed, its class, split, place in the class, ``size`` and ``spurious``,
    and on nothing else that is asked for. With ``spurious=p`` above 0 each image has a striped
    patch at its border, under the glyph; its place, colour and direction are those of the image's
    class with probability p in training (else of another) and of a random class in the test.
    """

    size: int = 32
    train: int = 200  # images a class
    test: int = 50
    spurious: float = 0.0
    seed: int = 0

    names: ClassVar[tuple[str, ...]] = tuple(_CHARACTERS)
    flip: ClassVar[bool] = False  # a mirrored glyph may be another glyph

    def __post_init__(self) -> None:
        if self.size < 16:
            raise UserError(f"glyphs need a size of at least 16 pixels, not {self.size}.")
        for split, count in (("train", self.train), ("test", self.test)):
            if count < 1:
                raise UserError(f"glyphs need at least 1 {split} image a class, not {count}.")
        if not 0 <= self.spurious <= 1:
            raise UserError(f"data.spurious is {self.spurious}, expected a probability from 0 to 1")

    def load(self, classes: Sequence[int]) -> Splits:
        for c in classes:
            if not 0 <= c < len(self.names):
                raise UserError(f"glyphs have classes 0 to {len(self.names) - 1}, not {c}.")
        if not classes or len(set(classes)) < len(classes):
            raise UserError(f"glyphs need one or more classes, each once, not {list(classes)}.")
        return Splits(self._split("train", classes), self._split("test", classes))

    def _split(self, split: str, classes: Sequence[int]) -> Images:
        n = int(getattr(self, split))
        x = torch.empty(len(classes), n, 3, self.size, self.size, dtype=torch.uint8)
        masks = torch.empty(len(classes), n, self.size, self.size, dtype=torch.bool)
        for place, c in enumerate(classes):
            layers = self._layers(split, c)
            x[place], masks[place] = layers.image(), layers.mask()
        y = torch.arange(len(classes)).repeat_interleave(n)
        return Images(x.flatten(0, 1), y, masks.flatten(0, 1))

    def _layers(self, split: str, c: int) -> Layers:
        """The images of one class, before the glyph is laid over its background."""
        n = int(getattr(self, split))

        def draw(what: str, *shape: int) -> Tensor:
            # A key for each quantity, filled image by image: asking for more keeps the first.
            where = generator(self.seed, "data", "glyphs", self.names[c], split, what)
            return torch.rand(n, *shape, generator=where)

        background = _clutter(_texture(draw, self.size), draw)
        coverage = _glyph(draw, _CHARACTERS[self.names[c]], self.size)
        colour = _ink(draw, background, coverage)
        if self.spurious > 0:  # after the ink is chosen: the rest of the image is as without a cue
            which = (draw("cue") * len(self.names)).long()
            if split == "train":
                other = (c + 1 + (draw("cue") * (len(self.names) - 1)).long()) % len(self.names)
                which = torch.where(draw("own") < self.spurious, c, other)
            background = _cue(background, which)
        return Layers(background, coverage, colour)


class Layers(NamedTuple):
    """Images taken apart."""

    background: Tensor  # (N,3,S,S) in [0,1]: texture, clutter and cue
    coverage: Tensor  # (N,1,S,S) in [0,1]: how much of the pixel the glyph covers
    colour: Tensor  # (N,3,1,1) in [0,1]: of the glyph

    def image(self) -> Tensor:
        mixed = torch.lerp(self.background, self.colour, self.coverage)
        return mixed.mul_(255).round_().to(torch.uint8)

    def mask(self) -> Tensor:
        return self.coverage[:, 0] >= 0.5


@functools.lru_cache(maxsize=64)
def _face(name: str, pixels: int) -> tuple[ImageFont.FreeTypeFont, Image.Image]:
    """A face, and what it shows for a character that it lacks."""
    from matplotlib import get_data_path

    path = Path(get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    font = ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)
    return font, _drawn("\U0010ffff", font)


def _drawn(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    canvas = Image.new("L", (int(2 * font.size), int(2 * font.size)))
    ImageDraw.Draw(canvas).text((font.size / 2, font.size / 3), character, fill=255, font=font)
    return canvas.crop(canvas.getbbox())


def _tile(character: str, face: str, side: int) -> Tensor | None:
    """The glyph (side, side), centred, its longer side as large as the tile; None if lacking."""
    font, lacking = _face(face, 2 * side)
    whole = _drawn(character, font)
    if whole == lacking:
        return None
    scale = (side - 2) / max(whole.size)  # a clear edge: the sampler must not smear it
    left, top = (min(round((side - scale * length) / 2), side // 2 - 1) for length in whole.size)
    tile = Image.new("L", (side, side))
    tile.paste(whole.resize((side - 2 * left, side - 2 * top)), (left, top))
    return torch.frombuffer(bytearray(tile.tobytes()), dtype=torch.uint8).view(side, side) / 255


def _tiles(character: str, side: int) -> Tensor:
    """The glyph in every face that has it, (F, side, side)."""
    tiles = (_tile(character, face, side) for face in _FACES)
    return torch.stack([tile for tile in tiles if tile is not None])


@functools.lru_cache(maxsize=4)
def _fragments(side: int) -> Tensor:
    """Cut glyphs (P, side, side): about a quarter of each, so that none passes for a whole one."""
    at = _axis(side)
    pieces = []
    for i, character in enumerate(_CLUTTER):
        whole = _tile(character, _FACES[6 * (i % 2)], side)
        assert whole is not None
        for j in range(_CUTS):
            angle = 2 * math.pi * (j / _CUTS + 0.618 * i)
            cos, sin = math.cos(angle), math.sin(angle)
            kept = torch.minimum(cos * at + sin * at[:, None], cos * at[:, None] - sin * at) > -0.15
            pieces.append(whole * kept)
    return torch.stack(pieces)


def _axis(side: int) -> Tensor:
    """Centres of the pixels on [-1, 1]."""
    return (torch.arange(side) * 2 + 1) / side - 1


def _place(tiles: Tensor, side: int, x: Tensor, y: Tensor, scale: Tensor, shear: Tensor) -> Tensor:
    """Tiles (N,R,R) laid with their centres at (x, y) of images (N,1,side,side), on [-1, 1]."""
    at = _axis(side)
    down = at - y[:, None]  # (N, side)
    grid = torch.empty(len(tiles), side, side, 2)
    across = (at - x[:, None]) / scale[:, None]
    grid[..., 0] = across[:, None, :] - (shear / scale)[:, None, None] * down[:, :, None]
    grid[..., 1] = (down / scale[:, None])[:, :, None]
    return grid_sample(tiles[:, None], grid, align_corners=False)


def _glyph(draw: Draw, character: str, size: int) -> Tensor:
    """Coverage (N,1,S,S) of glyphs that lie wholly inside the image."""
    tiles = _tiles(character, size * 3 // 2)
    far = _axis(tiles.shape[-1]).abs() + 1 / tiles.shape[-1]  # outer edge of each row or column
    face = (draw("face") * len(tiles)).long()
    width, height = ((far * (tiles.amax(way) > 0)).amax(1)[face] for way in (1, 2))  # half of each
    shear = draw("slant") * 0.5 - 0.25
    width = width + shear.abs() * height
    reach = 1 - 3 / size  # a pixel at the edge stays clear, and the sampler smears half of one
    least = max(0.6, 12 / (size - 3))  # fewer than 12 pixels cannot show a glyph
    scale = reach * (least + (1 - least) * draw("size")) / torch.maximum(width, height)
    room = reach - scale[:, None] * torch.stack((width, height), 1)
    x, y = ((draw("place", 2) * 2 - 1) * room).unbind(1)
    # Twice as fine, then averaged: the glyph's own pixels are finer still.
    return avg_pool2d(_place(tiles[face], 2 * size, x, y, scale, shear), 2)


def _texture(draw: Draw, size: int) -> Tensor:
    """Backgrounds (N,3,S,S): a gradient, noise at several scales, and stripes or checks."""
    at = _axis(size)

    def wave(angle: Tensor, period: Tensor, phase: Tensor) -> Tensor:
        along = angle.cos()[:, None, None] * at + angle.sin()[:, None, None] * at[:, None]
        turn = along / period[:, None, None] + phase[:, None, None]
        return 4 * (turn - turn.floor() - 0.5).abs() - 1  # a triangle, (N,S,S)

    base = 0.15 + 0.7 * (0.6 * draw("light", 1, 1, 1) + 0.4 * draw("base", 3, 1, 1))
    slope = wave(draw("way") * 2 * math.pi, torch.full_like(draw("way"), 4.0), draw("shift"))
    texture = base + (draw("gradient", 3, 1, 1) - 0.5) * 0.3 * slope[:, None]
    for cells, strength in ((3, 0.35), (8, 0.3)):
        noise = (draw(f"noise {cells}", 3, cells, cells) - 0.5) * draw(f"level {cells}", 1, 1, 1)
        texture += interpolate(noise * strength, size, mode="bilinear")
    texture += (draw("grain", 1, size, size) - 0.5) * 0.2 * draw("graininess", 1, 1, 1)
    angle, period = draw("turn") * math.pi, 0.25 + 0.5 * draw("period")
    first = wave(angle, period, draw("phase"))
    second = wave(angle + math.pi / 2, period, draw("offset"))
    kind = draw("kind")[:, None, None]  # stripes, checks or neither, a third each
    pattern = torch.where(kind < 1 / 3, first, (first * second * 8).clamp(-1, 1)) * (kind < 2 / 3)
    texture += pattern[:, None] * (draw("pattern", 3, 1, 1) - 0.3) * 0.2
    return texture.clamp_(0, 1)


def _clutter(background: Tensor, draw: Draw) -> Tensor:
    """The background with fragments of glyphs on it."""
    n, size = len(background), background.shape[-1]
    pool = _fragments(size * 2 // 3)
    which = (draw("fragment", _FRAGMENTS) * len(pool)).long().flatten()
    x, y = (draw("scatter", _FRAGMENTS, 2) * 2 - 1).flatten(0, 1).unbind(1)
    scale = 0.35 + 0.3 * draw("fragment size", _FRAGMENTS).flatten()
    shear = draw("fragment slant", _FRAGMENTS).flatten() - 0.5
    cover = _place(pool[which], size, x, y, scale, shear).view(n, _FRAGMENTS, 1, size, size)
    cover *= 0.4 + 0.6 * draw("strength", _FRAGMENTS, 1, 1, 1)
    cover *= draw("shown", _FRAGMENTS, 1, 1, 1) < 0.7
    colour = draw("fragment colour", _FRAGMENTS, 3, 1, 1)
    for i in range(_FRAGMENTS):
        background = torch.lerp(background, colour[:, i], cover[:, i])
    return background


def _ink(draw: Draw, background: Tensor, coverage: Tensor) -> Tensor:
    """Colours (N,3,1,1) that stand out, more or less, from what lies under the glyph."""
    under = (background * coverage).sum((1, 2, 3)) / (3 * coverage.sum((1, 2, 3)))
    lighter = under + (draw("lighter") - 0.5) * 0.2 < 0.5
    room = torch.where(lighter, 1 - under, under)  # at least 0.4
    contrast = 0.3 + (room - 0.3) * draw("contrast")
    tint = (draw("tint", 3) - 0.5) * 0.5
    level = under + torch.where(lighter, contrast, -contrast)
    return (level[:, None] + tint - tint.mean(1, keepdim=True)).clamp(0, 1)[..., None, None]


def _cue(background: Tensor, which: Tensor) -> Tensor:
    """The background with the patch of a class (N,) in one cell of its border."""
    size = background.shape[-1]
    pixel = torch.arange(size)
    row, column = torch.tensor(_BORDER)[which % len(_BORDER)][..., None, None].unbind(1)
    code = which // len(_BORDER)
    cell = pixel * 4 // size
    inside = (cell[:, None] == row) & (cell == column)  # (N,S,S)
    stripe = pixel * 16 // size % 2 == 0
    upright = (code // len(_HUES) == 0)[:, None, None]
    bright = torch.where(upright, stripe, stripe[:, None])[:, None]
    hue = _HUES[code % len(_HUES)][..., None, None]
    return torch.where(inside[:, None], torch.where(bright, hue, 0.2 * hue), background)
