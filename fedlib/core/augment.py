"""Augmentation and normalisation of images as tensors, per sample."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.crop import Augment as Augment


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
    count, channels, height, width = x.shape
    padded = F.pad(x, (padding,) * 4)
    rows = draws[:, :1] + torch.arange(height)
    columns = torch.arange(width).expand(count, -1)
    columns = torch.where(draws[:, 2:] == 1, columns.flip(1), columns) + draws[:, 1:2]
    pixel = rows.unsqueeze(2) * padded.shape[-1] + columns.unsqueeze(1)
    flat = pixel.flatten(1).unsqueeze(1).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, flat).view_as(x)


def normalise(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return float32 ``(x / 255 - mean) / std`` of uint8 images ``[n, c, h, w]``."""
    scale = 1 / (255 * torch.tensor(std)).view(-1, 1, 1)
    shift = (torch.tensor(mean) / torch.tensor(std)).view(-1, 1, 1)
    return x * scale - shift
