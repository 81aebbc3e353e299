r"""Prototypes: one dense type for local and global class means.

Prototypes are a mean :math:`[C, d]` with a count :math:`[C]`; count 0 means that nobody
has the class, and its row is 0. A leading client axis stacks the prototypes of K
clients.
"""

from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Weighting = Literal["uniform", "samples"]
Distance = Literal["mse", "l2"]


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


def pull(z: Tensor, y: Tensor, protos: Protos, distance: Distance = "mse") -> Tensor:
    """Return the mean distance of z ``[B, d]`` to its class's prototype.

    The mean runs over the batch; a sample whose class has no prototype adds 0
    (FedProto's released code).

    Parameters
    ----------
    distance : "mse" or "l2"
        The mean square over dimensions, or the Euclidean length.
    """
    target = torch.where(protos.known[y].unsqueeze(-1), protos.mean[y], z.detach())
    if distance == "l2":
        return torch.linalg.vector_norm(z - target, dim=-1).mean()
    return F.mse_loss(z, target)


def gaps(protos: Protos) -> Tensor:
    """Return each class mean's distance ``[..., C]`` to the nearest other one.

    Classes without a mean are no neighbours; where there is none, the gap is 0.
    """
    exact = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(protos.mean, protos.mean, compute_mode=exact)
    pairs = protos.known.unsqueeze(-1) & protos.known.unsqueeze(-2)
    pairs = pairs & ~torch.eye(pairs.shape[-1], dtype=torch.bool)
    closest = torch.where(pairs, apart, float("inf")).amin(-1)
    return torch.where(closest.isfinite(), closest, 0.0)


def points(local: Protos) -> tuple[Tensor, Tensor]:
    """Return the prototypes of K clients as a set: vectors ``[M, d]``, labels ``[M]``.

    Sorted by class, then by content, so that what a server draws from the set does not
    depend on the order of uploads.
    """
    owner, label = torch.nonzero(local.known, as_tuple=True)
    p = local.mean[owner, label]
    order = torch.from_numpy(np.lexsort((p.sum(1), label)))
    return p[order], label[order]
