"""Image generators: noise and a label in, an image with values in [-1, 1] out (FedPG).

A generator is the same record as ``generators.Generator``; its output has the shape of
the net's images.
"""

from itertools import pairwise
from typing import Literal

from torch import nn

from fedlib.blocks.generators import Generator

Architecture = Literal["fc", "conv"]

HIDDEN = (128, 256, 512, 1024)  # widths of the fully connected generator
CHANNELS = (256, 128, 64, 64)  # of the convolutional one, from its first map on


def _fc(inputs: int, shape: tuple[int, int, int]) -> nn.Module:
    """FedPG's released generator: four hidden linear layers with BatchNorm."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for size in HIDDEN:
        layers += [nn.Linear(inputs, size), nn.BatchNorm1d(size), nn.LeakyReLU(0.2)]
        inputs = size
    layers += [nn.Linear(inputs, channels * height * width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Unflatten(1, shape))


def _conv(inputs: int, shape: tuple[int, int, int]) -> nn.Module:
    """Ours: FedPG's Table 3 names a convolutional generator and does not describe it.

    A linear layer makes a map of an eighth of the image's sides (rounded up); three
    times it is enlarged by nearest neighbours and convolved.
    """
    channels, *sides = shape
    first, *later = CHANNELS
    start = [-(-side // 8) for side in sides]
    size = first * start[0] * start[1]
    layers: list[nn.Module] = [
        nn.Linear(inputs, size),
        nn.BatchNorm1d(size),
        nn.Unflatten(1, (first, *start)),
    ]
    for size, part in zip(later, (4, 2, 1), strict=True):
        enlarged = (-(-sides[0] // part), -(-sides[1] // part))
        layers += [
            nn.Upsample(size=enlarged, mode="nearest"),
            nn.Conv2d(first, size, 3, padding=1),
            nn.BatchNorm2d(size),
            nn.LeakyReLU(0.2),
        ]
        first = size
    return nn.Sequential(*layers, nn.Conv2d(first, channels, 3, padding=1), nn.Tanh())


ARCHITECTURES = {"fc": _fc, "conv": _conv}


def build(
    architecture: Architecture,
    classes: int,
    shape: tuple[int, int, int],
    *,
    noise: int = 512,
) -> Generator:
    """Return a generator of images of ``shape`` (channels, height, width).

    Parameters
    ----------
    architecture : "fc" or "conv"
        Fully connected (FedPG's released code), or convolutional (ours).
    classes : int
        C, the length of the one-hot label.
    noise : int
        Numbers of noise per image.
    """
    module = ARCHITECTURES[architecture](noise + classes, shape)
    return Generator(module, noise, classes)


def idle(generator: Generator) -> frozenset[str]:
    """Return the names of the biases that a BatchNorm right behind them takes away.

    Their gradient is 0, and what rounding leaves of it would set Adam off at its full
    rate, in a direction that depends on the order of sums. They stay as drawn.
    """
    return frozenset(
        f"{name}.bias"
        for (name, layer), (_, after) in pairwise(generator.module.named_children())
        if isinstance(layer, nn.Linear | nn.Conv2d)
        and isinstance(after, nn.BatchNorm1d | nn.BatchNorm2d)
    )
