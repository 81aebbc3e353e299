"""Pixels in [-1, 1] and normalised inputs, by hand and there and back."""

import pytest
import torch

from fedlib.attacks.pixels import to_inputs, to_pixels

MEAN, STD = (0.5, 0.2), (0.25, 0.1)


def test_by_hand():
    """A raw value of 0.75 is 0.5 of [-1, 1], and (0.75 - 0.5) / 0.25 as an input."""
    raw = torch.tensor([0.75, 0.25]).view(2, 1, 1)
    inputs = torch.tensor([1.0, 0.5]).view(2, 1, 1)
    torch.testing.assert_close(to_pixels(inputs, MEAN, STD), 2 * raw - 1)
    torch.testing.assert_close(to_inputs(2 * raw - 1, MEAN, STD), inputs)


def test_there_and_back_for_any_number_of_images():
    images = torch.linspace(-1, 1, 3 * 4 * 2 * 5).view(3, 4, 2, 1, 5)
    back = to_pixels(to_inputs(images, MEAN, STD), MEAN, STD)
    torch.testing.assert_close(back, images)


@pytest.mark.parametrize(("inputs", "edge"), [(9.0, 1.0), (-9.0, -1.0)])
def test_what_no_image_has_is_the_edge(inputs, edge):
    shown = to_pixels(torch.full((1, 1, 1), inputs), MEAN[:1], STD[:1])
    assert shown.item() == edge
