r"""Loss terms that two or more methods use, each for one client and one batch."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.layers import cross_entropy

__all__ = ["cross_entropy", "kl_to_teacher", "margin_contrast", "supcon"]

RELEASED_BASE_TEMPERATURE = 0.07  # of the public SupCon code


def supcon(
    v: Tensor, labels: Tensor, temperature: float, valid: Tensor | None = None
) -> Tensor:
    r"""Supervised contrastive loss over a set of vectors.

    .. math:: \frac1{|I|} \sum_{i \in I} \frac{-1}{|R_i|} \sum_{r \in R_i} \log
        \frac{\exp(v_i \cdot v_r / \tau)}{\sum_{a \ne i} \exp(v_i \cdot v_a / \tau)}

    Parameters
    ----------
    v : Tensor
        ``[M, d]`` vectors (unit length in all our uses).
    labels : Tensor
        ``[M]`` class of each vector; R_i are the other vectors of i's class.
    temperature : float > 0
        :math:`\tau`.
    valid : Tensor, optional
        ``[M]`` mask; vectors outside it are neither anchors nor compared with.

    Notes
    -----
    Anchors without a positive are left out of the mean; without any anchor the loss
    is 0. Khosla et al. 2020, Eq. 2; FedMPS Eq. 3.
    """
    if valid is None:
        valid = torch.ones_like(labels, dtype=torch.bool)
    others = ~torch.eye(len(v), dtype=torch.bool, device=v.device)
    others = others & valid & valid.unsqueeze(1)
    positive = (labels == labels.unsqueeze(1)) & others
    similarity = (v @ v.T) / temperature
    log_sum = torch.logsumexp(similarity.masked_fill(~others, -1e9), 1, keepdim=True)
    log_share = torch.where(positive, similarity - log_sum, 0.0)
    count = positive.sum(1)
    per_anchor = -log_share.sum(1) / count.clamp(min=1)
    return per_anchor.sum() / (count > 0).sum().clamp(min=1)


def kl_to_teacher(teacher: Tensor, logits: Tensor, temperature: float) -> Tensor:
    r"""Return :math:`\sum_c \bar q_c \log(\bar q_c / q_c)` per sample, ``[B]``.

    Parameters
    ----------
    teacher : Tensor
        ``[B, C]`` probabilities :math:`\bar q`; 0 log 0 is 0.
    logits : Tensor
        ``[B, C]``; :math:`q` is their softmax at ``temperature``.
    temperature : float > 0
        No factor :math:`\tau^2` is applied (FedMPS Eq. 5 and 6).
    """
    log_q = F.log_softmax(logits / temperature, dim=-1)
    return (torch.xlogy(teacher, teacher) - teacher * log_q).sum(-1)


def margin_contrast(
    z: Tensor, y: Tensor, centres: Tensor, margin: Tensor | float
) -> Tensor:
    r"""Cross-entropy of minus the distances to class centres, with a margin.

    .. math:: \frac1B \sum_b -\log \frac{\exp(-D_{b,y_b} - \delta)}
        {\exp(-D_{b,y_b} - \delta) + \sum_{c \ne y_b} \exp(-D_{b,c})}

    Parameters
    ----------
    z, y : Tensor
        ``[B, d]`` vectors and their classes ``[B]``.
    centres : Tensor
        ``[C, d]``; :math:`D_{b,c}` is the Euclidean distance of z to centre c.
    margin : float or Tensor
        :math:`\delta \ge 0`: by how much the own centre must be nearer.

    Notes
    -----
    Zhang et al. 2024 (FedTGP), whose 1e-12 under the root keeps gradients finite.
    """
    square = (z.unsqueeze(1) - centres).square().sum(-1)
    own = y.unsqueeze(1) == torch.arange(len(centres), device=y.device)
    return cross_entropy(-((square + 1e-12).sqrt() + margin * own), y)
