"""How training images are moved at random: what the catalogue of data sets says of it.

It needs no torch, so that a list of data sets needs none; ``core/augment.py`` does it.
"""

from typing import NamedTuple


class Augment(NamedTuple):
    """Random crop from the zero-padded image, and random horizontal flip."""

    padding: int  # pixels on every side
    flip: bool  # with probability 1/2
    per_batch: bool = False  # one draw for all images of a batch
