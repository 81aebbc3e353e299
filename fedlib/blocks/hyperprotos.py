r"""Hyper-prototypes: several learnable vectors per class (FedHPro).

A class is described by I vectors :math:`s_i^c` in place of one mean. They are dense,
``[C, I, d]``, with a mask of the classes that take part in a loss.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.core.protos import Protos


class HyperProtos(NamedTuple):
    """Vectors of each class, and which classes they may stand for."""

    points: Tensor  # [C, I, d] float
    known: Tensor  # [C] bool

    @property
    def centre(self) -> Tensor:
        """Mean of a class's vectors, ``[C, d]``."""
        return self.points.mean(1)

    @property
    def direction(self) -> Tensor:
        """Mean of a class's unit vectors, ``[C, d]``, not a unit vector itself."""
        return unit(self.points).mean(1)


def unit(v: Tensor) -> Tensor:
    """Scale vectors ``[..., d]`` to length 1; a zero vector stays, with gradient 0."""
    length = v.norm(dim=-1, keepdim=True)
    return torch.where(length > 1e-12, v / length.clamp(min=1e-12), 0.0)


def draw(
    classes: int, count: int, size: int, generator: torch.Generator
) -> HyperProtos:
    """Draw ``count`` vectors per class from N(0, 1); no class is known yet."""
    points = torch.randn(classes, count, size, generator=generator)
    return HyperProtos(points, torch.zeros(classes, dtype=torch.bool))


def of_prototypes(protos: Protos) -> HyperProtos:
    """Return class means ``[C, d]`` as hyper-prototypes with one vector per class."""
    return HyperProtos(protos.mean.unsqueeze(1), protos.known)
