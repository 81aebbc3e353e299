"""Reconstruction by optimisation: looks for an image that has a given code."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedlib.blocks import descent
from fedlib.core.local import Losses
from fedlib.core.rng import generator

NOISE = 0.1  # sd of what is added to u at the start
EDGE = 0.95  # furthest start from grey: beyond it tanh has hardly any slope
Encode = Callable[[Tensor], Tensor]  # images [B, c, h, w] in [-1, 1] -> codes [B, d]


def total_variation(images: Tensor) -> Tensor:
    """Return the mean step ``[N]`` from a pixel to the next, across and down."""
    across, down = (images.diff(dim=d).abs().mean((1, 2, 3)) for d in (3, 2))
    return across + down


def optimise(
    encode: Encode,
    codes: Tensor,
    shape: tuple[int, int, int],
    *,
    steps: int,
    learning_rate: float,
    tv: float,
    seed: int,
    start: Tensor | None = None,
) -> Tensor:
    r"""Return an image for each code, whose own code is as near to it as can be.

    .. math:: \min_x \|f(x) - z\|^2 / \|z\|^2 + \lambda\, TV(x)

    by Adam on :math:`u` with :math:`x = \tanh u`, from grey and a little noise, or from
    given images. Each image is by itself: the others do not change it.

    Parameters
    ----------
    encode : callable
        f, through which gradients reach the images.
    codes : Tensor
        ``[N, d]``, z.
    shape : (int, int, int)
        Channels, height, width of an image.
    steps : int >= 1
    learning_rate : float > 0
    tv : float >= 0
        :math:`\lambda`; the distance is relative, so that it means the same for every
        encoder.
    seed : int
        Of the noise.
    start : Tensor, optional
        ``[N, c, h, w]`` in [-1, 1], where an attacker has an idea to begin with, such
        as images of its own.

    Returns
    -------
    Tensor
        ``[N, c, h, w]`` in [-1, 1].

    Notes
    -----
    Mahendran and Vedaldi, Understanding Deep Image Representations by Inverting Them,
    CVPR 2015, with Adam.
    """
    if codes.ndim != 2:
        raise ValueError(f"codes: got shape {tuple(codes.shape)}, expected [N, d]")
    if steps < 1:
        raise ValueError(f"steps: got {steps}, expected at least 1")
    size = (len(codes), *shape)
    begin = torch.zeros(size) if start is None else start
    if begin.shape != size:
        raise ValueError(f"start: got shape {tuple(begin.shape)}, expected {size}")
    noise = torch.randn(size, generator=generator(seed, "reconstruction"))
    first = begin.clamp(-EDGE, EDGE).atanh() + NOISE * noise
    length = codes.square().sum(1).clamp(min=1e-12)

    def loss(state: dict[str, Tensor], step: int) -> Losses:
        x = state["u"].tanh()
        apart = (encode(x) - codes).square().sum(1) / length
        # A sum, so that an image's gradient does not depend on how many there are.
        return Losses((apart + tv * total_variation(x)).sum(), {}, {})

    found = descent.fit({"u": first}, loss, steps, learning_rate=learning_rate)
    return found.state["u"].tanh()
