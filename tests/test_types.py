"""Images: subsets share pixels, joins keep them together with labels and masks."""

from __future__ import annotations

import torch

from rightreasons.types import Images


def some(count, masks, first=0):
    x = torch.arange(first, first + count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    given = torch.ones(count, 2, 2, dtype=torch.bool) if masks else None
    return Images(x.contiguous(), torch.arange(first, first + count), given)


def test_a_subset_shares_the_pixels_and_a_subset_of_it_too():
    images = some(6, masks=True)
    part = images.subset(torch.tensor([4, 2, 0])).subset(torch.tensor([2, 0]))
    assert part.x is images.x and part.y.tolist() == [0, 4]
    assert part.pixels(torch.tensor([0, 1]))[:, 0, 0, 0].tolist() == [0, 4]


def test_joining_parts_of_one_source_copies_no_pixel():
    images = some(6, masks=False)
    a, b = images.subset(torch.tensor([5, 1])), images.subset(torch.tensor([3]))
    whole = a.join(b)
    assert whole.x is images.x and whole.y.tolist() == [5, 1, 3]
    assert whole.pixels(torch.arange(3))[:, 0, 0, 0].tolist() == [5, 1, 3]


def test_images_without_masks_get_empty_ones_beside_images_with():
    a, b = some(2, masks=True), some(3, masks=False, first=2)
    whole = a.join(b)
    assert whole.pixels(torch.arange(5))[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert whole.masks.flatten(1).any(1).tolist() == [True, True, False, False, False]
    assert some(2, masks=False).join(some(2, masks=False)).masks is None
