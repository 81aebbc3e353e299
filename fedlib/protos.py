r"""Prototypes: one dense type for local and global class means.

Prototypes are a mean :math:`[C, d]` with a count :math:`[C]`; count 0 means that nobody
has the class, and its row is 0. A leading client axis stacks the prototypes of K
clients.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Weighting = Literal["uniform", "samples"]


class Protos(NamedTuple):
    """Class means and how many samples stand behind each."""

    mean: Tensor  # [..., C, d] float; rows of absent classes are 0
    count: Tensor  # [..., C] int64 >= 0

    @property
    def known(self) -> Tensor:
        """Mask ``[..., C]`` of the classes that have a prototype."""
        return self.count > 0

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of a message: present classes only."""
        present = int(self.known.sum())
        return present * self.mean.shape[-1], present


def empty(classes: int, size: int) -> Protos:
    """Return prototypes that know no class."""
    return Protos(torch.zeros(classes, size), torch.zeros(classes, dtype=torch.int64))


def from_sums(sums: Tensor, count: Tensor) -> Protos:
    """Return class means from sums ``[..., C, d]`` and counts ``[..., C]``."""
    return Protos(sums / count.clamp(min=1).unsqueeze(-1), count)


def class_sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return per-class sums ``[K, C, d]`` and counts ``[K, C]`` of z ``[K, B, d]``.

    Labels y ``[K, B]`` below 0 mark padding and are left out.
    """
    member = (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).to(z.dtype)
    return member.transpose(1, 2) @ z, member.sum(1).to(torch.int64)


def merge(local: Protos, weighting: Weighting = "uniform") -> Protos:
    r"""Average the prototypes of K clients per class, over the clients that own it.

    Parameters
    ----------
    local : Protos
        Stacked over clients: mean ``[K, C, d]``, count ``[K, C]``.
    weighting : "uniform" or "samples"
        Every owner the same weight (released code of FedProto and FedMPS), or by its
        number of samples (FedProto, Eq. 6).
    """
    weight = local.known if weighting == "uniform" else local.count
    weight = weight.to(local.mean.dtype)
    total = torch.einsum("kc,kcd->cd", weight, local.mean)
    mean = total / weight.sum(0).clamp(min=1).unsqueeze(-1)
    return Protos(mean, local.count.sum(0))


def fill(first: Protos, second: Protos) -> Protos:
    """Return ``first`` with its absent classes taken from ``second``."""
    known = first.known
    mean = torch.where(known.unsqueeze(-1), first.mean, second.mean)
    return Protos(mean, torch.where(known, first.count, second.count))


def nearest(z: Tensor, protos: Protos) -> Tensor:
    """Return scores ``[B, C]``: minus the mean squared distance to each prototype.

    Absent classes score minus infinity.
    """
    square = (z.unsqueeze(1) - protos.mean).square().mean(-1)
    return torch.where(protos.known, -square, float("-inf"))


def pull(z: Tensor, y: Tensor, protos: Protos) -> Tensor:
    """Return the mean squared distance of z ``[B, d]`` to its class's prototype.

    The mean runs over batch and dimensions; a sample whose class has no prototype
    adds 0 (FedProto's released code).
    """
    target = torch.where(protos.known[y].unsqueeze(-1), protos.mean[y], z.detach())
    return F.mse_loss(z, target)
