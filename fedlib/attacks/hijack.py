r"""Prototype hijacking: bend an attacker's own codes until they look like uploads.

The feature-space hijacking attack (Pasquini et al., Unleashing the Tiger, CCS 2021) has
a server train the client's encoder :math:`f`, through gradients that it sends, towards
codes that a decoder of its own can read. Where a server sends no gradients that is
impossible. The variant here moves the other side: the attacker's encoder, the pilot
:math:`\tilde f`, is trained until a critic cannot tell its codes from uploaded
prototypes, while a decoder learns to invert the pilot.

Symbols
    x          | images     | [B, c, h, w] | the attacker's own, in [-1, 1]
    \tilde f   | pilot      |              | images -> codes [B, d]
    p          | prototypes | [M, d]       | uploaded, unit vectors per level
    D          | critic     |              | codes -> scores [B, 1], high for uploads

Box
    1. critic: minimise mean D(pilot(x)) - mean D(p) + penalty_weight * penalty.
    2. pilot, decoder: minimise MSE(x, decoder(pilot(x))) - weight * mean D(pilot(x)).

Readings
    Steps 1 and 2 alternate on the same batch, as in the released code. Penalty: (norm
    of D's gradient - 1)^2 at random points between pairs, as in WGAN-GP (Gulrajani et
    al., NeurIPS 2017), with its weight 10; the released code has 500, for codes of
    4 x 4 x 256.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.attacks.inversion import (
    Hidden,
    activations,
    check_pairs,
    curve,
    draw_weights,
    halvings,
)
from fedlib.core.rng import generator


class Hijacking(NamedTuple):
    """A trained pilot and its decoder, and how training went."""

    pilot: nn.Module  # images [N, c, h, w] -> codes [N, d]
    decoder: nn.Module  # codes [N, d] -> images [N, c, h, w]
    losses: pd.DataFrame  # step, reconstruction, gap (mean D(p) - mean D(codes))


def unit(codes: Tensor, levels: Sequence[int]) -> Tensor:
    """Return codes ``[N, d]`` with the part of each level scaled to length 1.

    Parameters
    ----------
    levels : list of int
        Sizes of the parts, which add up to d.
    """
    parts = codes.split(list(levels), -1)
    return torch.cat([F.normalize(part, dim=-1, eps=1e-12) for part in parts], -1)


class Unit(nn.Module):
    """``unit`` as a layer."""

    def __init__(self, levels: Sequence[int]):
        super().__init__()
        self.levels = tuple(levels)

    def forward(self, codes: Tensor) -> Tensor:
        """Map ``[N, d]`` to ``[N, d]``."""
        return unit(codes, self.levels)


def pilot(
    levels: Sequence[int],
    channels: int,
    side: int,
    *,
    width: int = 256,
    hidden: Hidden = "relu",
) -> nn.Sequential:
    """Return the attacker's encoder: images to unit codes.

    The released pilot of FSHA (3 x 3 convolutions of stride 2 up to ``width`` channels
    at 4 x 4, one of stride 1), and a linear layer to the codes.

    Parameters
    ----------
    levels : list of int
        Sizes of the levels of a code, each of which has length 1.
    side : int
        Of the square image: 4 to 7 times a power of two, at least 8.
    width : int
        Channels of the last maps; 256 in the released code.
    hidden : "relu" or "linear"
        What follows hidden layers; nothing in the released code.
    """
    times, end = halvings(side)
    widths = [max(1, width // 2**step) for step in reversed(range(times))]
    layers: list[nn.Module] = []
    for a, b in pairwise([channels, *widths]):
        layers += [nn.Conv2d(a, b, 3, 2, padding=1), *activations(hidden)]
    layers += [nn.Conv2d(width, width, 3, padding=1), *activations(hidden)]
    last = nn.Linear(width * end * end, sum(levels))
    return nn.Sequential(*layers, nn.Flatten(), last, Unit(levels))


def critic(codes: int, *, width: int = 512) -> nn.Sequential:
    """Return a critic of codes ``[B, d]``: two hidden layers, one score."""
    return nn.Sequential(
        nn.Linear(codes, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, width),
        nn.LeakyReLU(0.2),
        nn.Linear(width, 1),
    )


def penalty(judge: nn.Module, real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """Return the mean of (norm of the critic's gradient - 1)^2 between pairs.

    Parameters
    ----------
    real, fake : [B, d]
    mix : [B, 1]
        Share of the real one in each point, in [0, 1].
    """
    between = (mix * real + (1 - mix) * fake).detach().requires_grad_()
    scores = judge(between).sum()
    (slope,) = torch.autograd.grad(scores, between, create_graph=True)
    return (torch.linalg.vector_norm(slope, dim=1) - 1).square().mean()


def gap(judge: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """Return how much higher a critic scores uploads than the pilot's codes."""
    return judge(real).mean() - judge(fake).mean()


def hijack(
    scout: nn.Module,
    decoder: nn.Module,
    judge: nn.Module,
    images: Tensor,
    prototypes: Tensor,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    critic_rate: float,
    weight: float,
    penalty_weight: float = 10.0,
    seed: int,
) -> Hijacking:
    """Train pilot, decoder and critic against each other, by Adam.

    Parameters
    ----------
    scout, decoder, judge : Module
        Pilot, decoder and critic; structures only: weights are drawn from the seed.
    images : [N, c, h, w]
        The attacker's own, values in [-1, 1].
    prototypes : [M, d]
        What was uploaded, as unit vectors; drawn with replacement.
    steps : int
        Of pilot and decoder.
    learning_rate, critic_rate : float > 0
        Of pilot and decoder, and of the critic.
    weight : float >= 0
        Of the critic's score in the pilot's loss; 0 leaves the codes alone.

    Raises
    ------
    ValueError
        Images outside [-1, 1], or an illegal setting.
    """
    check_pairs(images, steps, batch, prototypes=prototypes)
    if not weight >= 0:
        raise ValueError(f"weight: got {weight}, expected at least 0")
    modules = [copy.deepcopy(m).train() for m in (scout, decoder, judge)]
    for name, module in zip(("pilot", "decoder", "critic"), modules, strict=True):
        draw_weights(module, generator(seed, "hijack", name))
    scout, decoder, judge = modules
    pick = generator(seed, "hijack batches")
    own = [*scout.parameters(), *decoder.parameters()]
    optimiser = torch.optim.Adam(own, learning_rate, fused=True)
    critic_optimiser = torch.optim.Adam(judge.parameters(), critic_rate, fused=True)

    def drawn(rows: Tensor) -> Tensor:
        return rows[torch.randint(len(rows), (batch,), generator=pick)]

    losses = []
    for _ in range(steps):
        x, real = drawn(images), drawn(prototypes)
        mix = torch.rand(batch, 1, generator=pick)
        codes = scout(x)
        fake = codes.detach()
        apart = gap(judge, real, fake)
        total = penalty_weight * penalty(judge, real, fake, mix) - apart
        critic_optimiser.zero_grad()
        total.backward()
        critic_optimiser.step()
        error = F.mse_loss(decoder(codes), x)
        optimiser.zero_grad()
        (error - weight * judge(codes).mean()).backward()
        optimiser.step()
        losses.append({"reconstruction": error.item(), "gap": apart.item()})
    for module in (scout, decoder):
        module.eval().requires_grad_(False)
    return Hijacking(scout, decoder, curve(losses))
