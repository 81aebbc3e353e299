"""Augmentation and normalisation of images as tensors, per sample."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Augment(NamedTuple):
    """Random crop from the zero-padded image, and random horizontal flip."""

    padding: int  # pixels on every side
    flip: bool  # with probability 1/2


def draw_augment(augment: Augment, count: int, generator: torch.Generator) -> Tensor:
    """Return int64 ``[count, 3]``: row and column of the crop, and 0/1 for the flip."""
    high = 2 * augment.padding + 1
    crop = torch.randint(high, (count, 2), generator=generator)
    flip = torch.randint(2, (count, 1), generator=generator)
    return torch.cat([crop, flip if augment.flip else torch.zeros_like(flip)], 1)


def apply_augment(x: Tensor, draws: Tensor, padding: int) -> Tensor:
    """Crop and flip every image by its own draw.

    Parameters
    ----------
    x : Tensor
        uint8 ``[n, c, h, w]``; padding is 0, that is black, before normalisation.
    draws : Tensor
        ``[n, 3]`` from ``draw_augment``.
    padding : int
        The padding that the draws refer to.
    """
    count, _, height, width = x.shape
    padded = F.pad(x, (padding,) * 4)
    rows = draws[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(count, -1)
    columns = torch.where(draws[:, 2:] == 1, columns.flip(1), columns) + draws[:, 1:2]
    sample = torch.arange(count).view(-1, 1, 1)
    channels_last = padded.permute(0, 2, 3, 1)
    picked = channels_last[sample, rows.unsqueeze(2), columns.unsqueeze(1)]
    return picked.permute(0, 3, 1, 2)


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return float32 ``(x / 255 - mean) / std`` of uint8 images ``[n, c, h, w]``."""
    scale = 1 / (255 * torch.tensor(std)).view(-1, 1, 1)
    shift = (torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1)
    return x * scale - shift
