from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from rightreasons.data import glyphs
from rightreasons.data.glyphs import Glyphs
from rightreasons.errors import UserError


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def boxed(shapes: Tensor, side: int = 32) -> Tensor:
    """Shapes (N,S,S) in [0,1] stretched to fill a common box; (N, side * side) of 0 and 1."""
    out = []
    for shape in shapes:
        rows = (shape.amax(1) >= 0.5).nonzero().flatten()
        columns = (shape.amax(0) >= 0.5).nonzero().flatten()
        cut = shape[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        out.append(interpolate(cut[None, None], (side, side), mode="bilinear")[0, 0] >= 0.5)
    return torch.stack(out).flatten(1).float()


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every row of one with every row of the other."""
    both = a @ b.T
    return both / (a.sum(1)[:, None] + b.sum(1) - both)


def test_names_serve_as_labels_and_file_names():
    assert len(Glyphs.names) == 100
    assert len({name.lower() for name in Glyphs.names}) == 100  # some file systems ignore case
    assert all(re.fullmatch(r"[a-z]+(-[A-Za-z0-9]+)+", name) for name in Glyphs.names)
    assert {"latin-A", "digit-4", "greek-omega", "cyrillic-zhe", "sign-ampersand"} <= set(
        Glyphs.names
    )


def test_shapes_types_and_order():
    data = Glyphs(train=3, test=2)
    train, test = data.load([7, 0, 99])
    assert train.x.shape == (9, 3, 32, 32) and train.x.dtype == torch.uint8
    assert train.masks is not None
    assert train.masks.shape == (9, 32, 32) and train.masks.dtype == torch.bool
    assert train.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] and train.y.dtype == torch.int64
    assert test.y.tolist() == [0, 0, 1, 1, 2, 2] and test.x.shape == (6, 3, 32, 32)
    assert train.rows is None and not data.flip


@pytest.mark.parametrize("spurious", [0.0, 0.5])
def test_an_image_depends_on_nothing_else_that_is_asked_for(spurious):
    many = Glyphs(train=9, test=3, spurious=spurious).load([3, 50, 7])
    one = Glyphs(train=5, test=3, spurious=spurious).load([50])
    assert torch.equal(many.train.x[9:14], one.train.x)
    assert torch.equal(many.train.masks[9:14], one.train.masks)
    assert torch.equal(many.test.x[3:6], one.test.x)
    other = Glyphs(train=5, test=3, spurious=spurious, seed=1).load([50])
    assert not (other.train.x == one.train.x).flatten(1).all(1).any()


def test_no_image_comes_twice():
    train, test = Glyphs(train=20, test=20).load([0, 1])
    assert len(torch.cat([train.x, test.x]).flatten(1).unique(dim=0)) == 80
    assert len(torch.cat([train.masks, test.masks]).flatten(1).unique(dim=0)) == 80


@pytest.mark.parametrize("size", [16, 32, 48, 64])
def test_masks_are_where_the_glyph_is(size):
    data = Glyphs(size=size, train=4, test=1, spurious=0.5)
    classes = range(0, 100, 3)
    train = data.load(classes).train
    layers = [data._layers("train", c) for c in classes]
    background = torch.cat([layer.background for layer in layers])
    colour = torch.cat([layer.colour for layer in layers])
    assert train.x.shape[-2:] == (size, size)

    shown = train.x / 255
    towards = colour - background  # the share of ink in each pixel, read off the image itself
    contrast = towards.square().sum(1)
    ink = ((shown - background) * towards).sum(1) / contrast.clamp(min=1e-3)
    sure = (contrast > 0.05) & ((ink - 0.5).abs() > 0.02)  # rounding to bytes blurs the rest
    assert sure.float().mean() > 0.7
    assert torch.equal((ink >= 0.5) & sure, train.masks & sure)

    covered = torch.cat([layer.coverage for layer in layers])[:, 0] > 0
    bare = ~covered[:, None].expand_as(train.x)
    assert torch.equal(train.x[bare], background.mul(255).round().to(torch.uint8)[bare])
    assert (train.masks <= covered).all()
    assert (train.masks.flatten(1).sum(1) >= 8).all()
    rim = covered.clone()
    rim[:, 1:-1, 1:-1] = False
    assert not rim.any(), "a glyph is cut by the edge"


def test_masks_have_the_shape_of_their_class():
    masks = Glyphs(train=3, test=1).load(range(100)).train.masks
    known, owner = [], []
    for c, name in enumerate(Glyphs.names):
        tiles = glyphs._tiles(glyphs._CHARACTERS[name], 48)
        assert len(tiles) >= 8, f"{name} needs several faces"
        for slant in (-0.16, 0.0, 0.16):
            zero, scale = torch.zeros(len(tiles)), torch.full((len(tiles),), 0.7)
            placed = glyphs._place(tiles, 48, zero, zero, scale, zero + slant)[:, 0]
            known.append(boxed(placed, 20))
            owner += [c] * len(tiles)
    nearest = overlap(boxed(masks.float(), 20), torch.cat(known)).argmax(1)
    right = torch.tensor(owner)[nearest] == torch.arange(100).repeat_interleave(3)
    assert right.float().mean() > 0.9


def test_shapes_are_distinct_at_any_size():
    main = torch.stack([glyphs._tiles(c, 64)[0] for c in glyphs._CHARACTERS.values()])
    alike = overlap(boxed(main), boxed(main)).triu(1)
    worst = int(alike.argmax())
    pair = Glyphs.names[worst // 100], Glyphs.names[worst % 100]
    assert alike.max() < 0.85, f"{pair} look alike"


def test_a_face_that_lacks_the_glyph_is_left_out():
    assert glyphs._tile("♠", "STIXGeneralItalic", 32) is None
    assert glyphs._tile("A", "STIXGeneralItalic", 32) is not None


def test_the_glyph_stands_out():
    data = Glyphs(train=10, test=1)
    for c in range(0, 100, 10):
        layers = data._layers("train", c)
        gap = (layers.colour - layers.background).mean(1).abs()
        assert ((gap * layers.mask()).sum((1, 2)) / layers.mask().sum((1, 2))).min() > 0.15


def test_the_cue_lies_under_the_glyph_in_one_cell_of_the_border():
    classes = [0, 13, 42, 99]
    plain = Glyphs(train=6, test=40).load(classes)
    cued = Glyphs(train=6, test=40, spurious=1.0).load(classes)
    for before, after in zip(plain, cued, strict=True):
        assert torch.equal(before.masks, after.masks)
        changed = (before.x != after.x).any(1)  # (N,32,32)
        cells = changed.view(-1, 4, 8, 4, 8).any(4).any(2)
        assert (cells.sum((1, 2)) == 1).all()
        assert not cells[:, 1:3, 1:3].any()
        # The glyph's pixels let the cue through only where they cover less than the whole pixel.
        assert (changed & before.masks).sum() < 0.15 * changed.sum()
    own = (plain.train.x != cued.train.x).any(1).view(4, 6, 4, 8, 4, 8).any(5).any(3)
    assert (own == own[:, :1]).all()  # all of a class are at its place
    drawn = (plain.test.x != cued.test.x).any(1).view(4, 40, 4, 8, 4, 8).any(5).any(3)
    assert (drawn.flatten(2).float().mean(1) < 0.35).all()  # and anywhere in the test


def background_of(data: Glyphs, split: str, classes: range) -> tuple[Tensor, Tensor]:
    """What lies under the glyphs of these very images, and their labels.

    Hiding the glyph in the image itself would not do: the hole has the glyph's shape.
    """
    x = torch.stack([data._layers(split, c).background for c in classes])
    return x.flatten(2).flatten(0, 1), torch.arange(len(classes)).repeat_interleave(x.shape[1])


@pytest.mark.parametrize("spurious", [0.0, 0.95])
def test_the_background_tells_the_class_only_by_the_cue_and_only_in_training(spurious):
    classes = range(30, 40)
    data = Glyphs(train=250, test=100, spurious=spurious)
    x, y = background_of(data, "train", classes)
    fit = torch.arange(len(y)) % 5 > 0
    mean = x[fit].mean(0)
    gram = (x[fit] - mean) @ (x[fit] - mean).T
    gram.diagonal().add_(30)  # ridge regression, solved in its dual
    dual = torch.linalg.solve(gram, one_hot(y[fit]).float() - 0.1)
    weights = (x[fit] - mean).T @ dual

    def accuracy(x: Tensor, y: Tensor) -> float:
        return (((x - mean) @ weights).argmax(1) == y).float().mean().item()

    held_out, test = accuracy(x[~fit], y[~fit]), accuracy(*background_of(data, "test", classes))
    assert 0.05 < test < 0.15
    if spurious:
        assert held_out > 0.8
    else:
        assert 0.04 < held_out < 0.16


@pytest.mark.parametrize(
    "fields", [{"size": 15}, {"train": 0}, {"test": 0}, {"spurious": 1.5}, {"spurious": -0.1}]
)
def test_bad_fields(fields):
    with pytest.raises(UserError, match=str(next(iter(fields.values())))):
        Glyphs(**fields)


@pytest.mark.parametrize("classes", [[], [1, 1], [100], [-1]])
def test_bad_classes(classes):
    with pytest.raises(UserError, match="glyphs"):
        Glyphs().load(classes)
