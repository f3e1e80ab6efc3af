"""Digits that are drawn here: the same each time, every class as often, and readable."""

import pytest
import torch

from stepladder.data.images.drawn_digits import GLYPHS, drawn_digits
from stepladder.errors import DataError


def test_a_seed_draws_the_same_pictures_and_another_seed_others():
    first, again, other = (drawn_digits(40, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.pixels, again.pixels) and not torch.equal(first.pixels, other.pixels)
    assert first.pixels.shape == (40, 1, 28, 28) and first.pixels.dtype == torch.uint8
    assert first.labels.bincount().tolist() == 10 * [4]


def test_pictures_look_like_their_glyph_and_not_like_each_other():
    """The mean picture of a digit has its ink where no other digit's mean has as much."""
    drawn = drawn_digits(2000)
    means = torch.stack([drawn.pixels[drawn.labels == d].float().mean(0)[0] for d in range(10)])
    assert 0.05 < means.mean() / 255 < 0.4
    ink = torch.tensor([glyph.count("1") for glyph in GLYPHS]).float()
    assert torch.corrcoef(torch.stack([ink, means.mean((1, 2))]))[0, 1] > 0.95
    flat = (means - means.mean(0)).flatten(1)
    alike = torch.corrcoef(flat) - torch.eye(10)
    assert alike.max() < 0.8


def test_no_pictures_are_refused():
    with pytest.raises(DataError) as refused:
        drawn_digits(0)
    assert str(refused.value) == "digits: 0 is not a number of pictures. Draw at least 1."
