"""Images in [-1, 1], as attacks make them, and the normalised inputs of a net."""

from collections.abc import Sequence

import torch
from torch import Tensor


def _by_channel(*values: Sequence[float]) -> list[Tensor]:
    return [torch.tensor(v).view(-1, 1, 1) for v in values]


def to_pixels(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return what a net's inputs ``[..., c, h, w]`` show, in [-1, 1]."""
    m, s = _by_channel(mean, std)
    return ((inputs * s + m) * 2 - 1).clamp(-1, 1)


def to_inputs(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return a net's inputs for images ``[..., c, h, w]`` in [-1, 1]."""
    m, s = _by_channel(mean, std)
    return ((pixels + 1) / 2 - m) / s
