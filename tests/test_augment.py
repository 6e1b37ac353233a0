"""Crop and flip against a loop over pixels, and maps that follow their images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rightreasons.augment import Augment, augment, follow, middle
from rightreasons.errors import UserError
from rightreasons.types import Geometry


def images(batch, height, width, seed=0):
    shape = (batch, 3, height, width)
    made = torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(seed))
    return made.to(torch.uint8)


def moves(geometry, height, width):
    """Pixels down and right, and whether mirrored, of each image."""
    theta = geometry.theta
    down, right = theta[:, 1, 2] * height / 2, theta[:, 0, 2] * width / 2
    assert torch.allclose(down, down.round(), atol=1e-4)
    assert torch.allclose(right, right.round(), atol=1e-4)
    assert (theta[:, 1, 1] == 1).all() and (theta[:, 0, 0].abs() == 1).all()
    assert (theta[:, 0, 1] == 0).all() and (theta[:, 1, 0] == 0).all()
    flips = (theta[:, 0, 0] < 0).float()
    return list(zip(*(v.round().int().tolist() for v in (down, right, flips)), strict=True))


def moved(grid, down, right, flip):
    """Literally: cell (r, c) shows what lies down and right of its place, mirrored before."""
    height, width = grid.shape
    out = np.full_like(grid, 0)
    inside = np.zeros(grid.shape, bool)
    for r in range(height):
        for c in range(width):
            row, column = r + down, (width - 1 - c if flip else c) + right
            if 0 <= row < height and 0 <= column < width:
                out[r, c], inside[r, c] = grid[row, column], True
    return out, inside


@given(
    st.integers(1, 5),
    st.integers(3, 8),
    st.integers(3, 8),
    st.integers(0, 4),
    st.booleans(),
    st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_images_are_moved_as_the_geometry_says(batch, height, width, crop, flip, seed):
    x = images(batch, height, width, seed)
    before = x.clone()
    out, geometry = augment(x, Augment(crop, flip), torch.Generator().manual_seed(seed))
    assert torch.equal(x, before) and out.dtype == torch.uint8
    for i, (down, right, mirrored) in enumerate(moves(geometry, height, width)):
        assert abs(down) <= crop and abs(right) <= crop and (flip or not mirrored)
        for channel in range(3):
            expected, _ = moved(x[i, channel].numpy(), down, right, mirrored)
            assert np.array_equal(out[i, channel].numpy(), expected)


def test_every_shift_and_both_sides_occur_alike():
    x = images(1, 8, 6).expand(2000, -1, -1, -1)
    _, geometry = augment(x, Augment(2, True), torch.Generator().manual_seed(0))
    down, right, flips = (np.array(v) for v in zip(*moves(geometry, 8, 6), strict=True))
    for shifts in (down, right):
        values, counts = np.unique(shifts, return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2]
        assert counts.min() > 320 and counts.max() < 480  # mean 400, deviation 18
    assert 900 < flips.sum() < 1100  # mean 1000, deviation 22
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.1


def test_no_crop_and_no_flip_is_the_identity():
    x = images(6, 5, 7)
    out, geometry = augment(x, Augment(0, False), torch.Generator().manual_seed(3))
    assert torch.equal(out, x)
    identity = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
    assert torch.equal(geometry.theta, identity.expand(6, 2, 3))


def test_the_generator_decides():
    x = images(32, 8, 8)
    one, same, other = (
        augment(x, Augment(), torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2)
    )
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_without_flip_the_shifts_are_the_same():
    x = images(32, 8, 8)
    both, shifts = (
        augment(x, Augment(3, flip), torch.Generator().manual_seed(1))[1].theta
        for flip in (True, False)
    )
    assert torch.equal(both[:, :, 2], shifts[:, :, 2])
    assert (both[:, 0, 0] < 0).any() and (shifts[:, 0, 0] == 1).all()


def test_a_negative_crop_is_refused():
    with pytest.raises(UserError, match="augment.crop is -1, expected 0 or more"):
        Augment(-1)


# --- maps ----------------------------------------------------------------------------------------


def by_cells(u, v, cases):
    """The geometry of shifts by whole cells of u x v maps."""
    rows = [[[-1.0 if f else 1.0, 0, 2 * r / v], [0, 1, 2 * d / u]] for d, r, f in cases]
    return Geometry(torch.tensor(rows))


@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=1),
)
@settings(max_examples=60, deadline=None)
def test_maps_follow_flips_and_whole_cells_exactly(u, v, cases):
    maps = torch.randn(len(cases), u, v, generator=torch.Generator().manual_seed(u * v))
    out, covered = follow(maps, by_cells(u, v, cases))
    assert out.shape == maps.shape and covered.shape == maps.shape
    for i, (down, right, flip) in enumerate(cases):
        expected, inside = moved(maps[i].numpy(), down, right, flip)
        assert np.array_equal(covered[i].numpy(), inside)
        assert np.abs((out[i].numpy() - expected) * inside).max() < 1e-5


def test_rough_maps_keep_their_values_and_cover_what_smooth_ones_do():
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(40, 3, 8, 8, generator=generator)
    x = torch.zeros(40, 3, 32, 32, dtype=torch.uint8)
    _, geometry = augment(x, Augment(crop=4, flip=True), generator)
    smooth, covered = follow(maps, geometry)
    rough, as_covered = follow(maps, geometry, rough=True)
    assert torch.equal(covered, as_covered)
    for row in range(40):
        inside = rough[row][:, covered[row]]
        assert torch.isin(inside, maps[row]).all()  # nothing is a mean of others
    inside = covered[:, None].expand_as(maps)
    assert rough[inside].var() > 0.95  # of 1
    assert smooth[inside].var() < 0.75


def test_maps_follow_their_own_images():
    """The map of a moved image of flat cells is the moved map of the image."""
    cells = images(64, 4, 4, seed=2)
    x = cells.repeat_interleave(2, 2).repeat_interleave(2, 3)
    out, geometry = augment(x, Augment(2, True), torch.Generator().manual_seed(5))
    whole = [i for i, (d, r, _) in enumerate(moves(geometry, 8, 8)) if d % 2 == 0 and r % 2 == 0]
    assert len(whole) > 10
    followed, covered = follow(cells.float(), geometry)
    again = torch.nn.functional.avg_pool2d(out.float(), 2)
    gap = (followed - again).abs() * covered[:, None]
    assert gap[whole].max() < 1e-3  # of 255
    assert 0 < covered[whole].float().mean() < 1


def test_half_a_cell_is_the_mean_of_two_and_the_edge_is_not_covered():
    maps = torch.tensor([[[1.0, 3.0, 7.0, 8.0]]])
    out, covered = follow(maps, by_cells(1, 4, [(0, 0.5, False)]))
    assert torch.allclose(out[0, 0, :3], torch.tensor([2.0, 5.0, 7.5]), atol=1e-5)
    assert covered[0, 0].tolist() == [True, True, True, False]
    out, covered = follow(maps, by_cells(1, 4, [(0, -0.5, True)]))
    # cell c shows place 3 - c - 0.5
    assert torch.allclose(out[0, 0, :3], torch.tensor([7.5, 5.0, 2.0]), atol=1e-5)
    assert covered[0, 0].tolist() == [True, True, True, False]


def test_a_cell_that_lies_partly_outside_is_not_covered():
    maps = torch.ones(3, 1, 4)
    _, covered = follow(maps, by_cells(1, 4, [(0, 0.25, False), (0, -0.1, False), (0.1, 0, True)]))
    assert covered[0, 0].tolist() == [True, True, True, False]
    assert covered[1, 0].tolist() == [False, True, True, True]
    assert not covered[2].any()


def test_stacked_maps_move_as_single_ones():
    maps = torch.randn(3, 5, 4, 6, generator=torch.Generator().manual_seed(0))
    geometry = by_cells(4, 6, [(1, -2, True), (0, 1, False), (-3, 0.25, True)])
    stacked, covered = follow(maps, geometry)
    for k in range(5):
        single, same = follow(maps[:, k], geometry)
        assert torch.allclose(stacked[:, k], single, atol=1e-6)
        assert torch.equal(covered, same)


def test_the_identity_leaves_maps_as_they_are():
    maps = torch.randn(2, 7, 7, generator=torch.Generator().manual_seed(0))
    out, covered = follow(maps, by_cells(7, 7, [(0, 0, False)] * 2))
    assert torch.allclose(out, maps, atol=1e-5) and bool(covered.all())


def test_a_window_is_cut_from_a_larger_image_and_follows_the_middle():
    """Each output is the window that the geometry names, relative to the middle of the image."""
    x = torch.randint(0, 256, (40, 3, 12, 14), dtype=torch.uint8)
    how = Augment(crop=0, flip=True, cut=8)
    out, geometry = augment(x, how, torch.Generator().manual_seed(0))
    assert out.shape == (40, 3, 8, 8)
    places = set()
    for i in range(40):
        theta = geometry.theta[i]
        down, right = round(theta[1, 2].item() * 4) + 2, round(theta[0, 2].item() * 4) + 3
        window = x[i, :, down : down + 8, right : right + 8]
        expected = window.flip(2) if theta[0, 0] < 0 else window
        assert torch.equal(out[i], expected)
        places.add((down, right))
    assert {d for d, _ in places} == set(range(5)) and {r for _, r in places} == set(range(7))
    assert torch.equal(middle(x, 8), x[:, :, 2:10, 3:11])
    with pytest.raises(UserError, match="augment.cut is 13"):
        middle(x, 13)


def test_brightness_and_contrast_against_a_loop_over_images():
    x = images(6, 5, 4)
    how = Augment(crop=0, flip=False, brightness=0.3, contrast=0.5)
    changed, geometry = augment(x, how, torch.Generator().manual_seed(3))
    by = torch.Generator().manual_seed(3)
    torch.randint(0, 1, (6,), generator=by), torch.randint(0, 1, (6,), generator=by)
    torch.rand(6, generator=by)  # windows and coins come first
    draws = 2 * torch.rand(2, 6, generator=by) - 1
    for i in range(6):
        pixels = x[i].numpy().astype(np.float64)
        mean = pixels.mean()
        factor, shift = 1 + 0.5 * float(draws[1, i]), 0.3 * 255 * float(draws[0, i])
        expected = np.clip((pixels - mean) * factor + mean + shift, 0, 255)
        assert np.abs(expected - changed[i].numpy()).max() <= 0.5 + 1e-3
    assert changed.dtype == torch.uint8 and not torch.equal(changed, x)
    assert torch.equal(geometry.theta, augment(x, Augment(0, False), by)[1].theta)


def test_without_new_colours_no_draw_is_made():
    plain, coloured = (torch.Generator().manual_seed(1) for _ in range(2))
    augment(images(4, 6, 6), Augment(2, True), plain)
    augment(images(4, 6, 6), Augment(2, True, contrast=0.1), coloured)
    assert not torch.equal(plain.get_state(), coloured.get_state())
    once = torch.Generator().manual_seed(1)
    for _ in range(2):
        torch.randint(0, 5, (4,), generator=once)
    torch.rand(4, generator=once)
    assert torch.equal(plain.get_state(), once.get_state())


@pytest.mark.parametrize("name", ["brightness", "contrast"])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_colours_out_of_range_are_refused(name, value):
    with pytest.raises(UserError, match=f"augment.{name} is .*expected 0 to 1"):
        Augment(**{name: value})


def test_wide_cells_all_count_and_go_on_outside():
    maps = torch.arange(4.0).view(1, 2, 2)
    where = by_cells(2, 2, [(0, 0.25, False)])
    _, covered = follow(maps, where)
    assert covered.sum() == 2  # without it a column is left out
    out, covered = follow(maps, where, wide=True)
    assert covered.all()
    assert torch.allclose(out, torch.tensor([[[0.25, 1.0], [2.25, 3.0]]]))
    single, covered = follow(maps[:, :1, :1], by_cells(1, 1, [(0.1, 0.2, True)]), wide=True)
    assert covered.all() and torch.equal(single, maps[:, :1, :1])
