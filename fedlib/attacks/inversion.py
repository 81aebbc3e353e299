"""Query inversion: decoders that learn to turn an encoder's codes back into images.

He et al., Model Inversion Attacks Against Collaborative Inference, ACSAC 2019: an
attacker who may query an encoder knows the codes of images of its own, and trains a
decoder on these pairs. Any encoder is the caller's. Images have values in [-1, 1].
"""

import copy
import math
from itertools import pairwise
from typing import Literal, NamedTuple

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.squeezenet import Fire

from fedlib.attacks.image_metrics import ssim
from fedlib.core.rng import generator

POINTS = 100  # of a curve of losses: every 100 steps of the papers' 10,000
SSIM_WEIGHT = 0.1

Hidden = Literal["relu", "linear"]
Loss = Literal["mse", "l1_ssim"]


class Decoding(NamedTuple):
    """A trained decoder, and how its training went."""

    decoder: nn.Module  # codes [N, d] -> images [N, c, h, w]
    losses: pd.DataFrame  # step, loss: mean over the steps since the row before


def halvings(side: int) -> tuple[int, int]:
    """Return how often an image's side is halved, and what is left: 4 to 7 pixels.

    Raises
    ------
    ValueError
        Some halving would leave half a pixel.
    """
    times = int(math.log2(side / 4)) if side >= 8 else 0
    if not times or side % 2**times:
        raise ValueError(
            f"side: got {side}, expected 4 to 7 times a power of two, at least 8"
        )
    return times, side // 2**times


def activations(hidden: Hidden) -> list[nn.Module]:
    """Return what follows a hidden layer.

    Raises
    ------
    ValueError
        An unknown name.
    """
    if hidden not in ("relu", "linear"):
        raise ValueError(f"hidden: got {hidden!r}, expected relu or linear")
    return [nn.ReLU()] if hidden == "relu" else []


def draw_weights(module: nn.Module, pick: torch.Generator) -> None:
    """Draw torch's default weights of linear and convolutional layers, in place."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=pick)
            if layer.bias is not None:
                bound = 1 / math.sqrt(layer.weight[0].numel())
                nn.init.uniform_(layer.bias, -bound, bound, generator=pick)


def fsha_decoder(
    codes: int,
    channels: int,
    side: int,
    *,
    width: int = 256,
    hidden: Hidden = "relu",
) -> nn.Sequential:
    """Return the decoder of the feature-space hijacking attack, behind a linear layer.

    Pasquini et al., Unleashing the Tiger, CCS 2021, released code: from maps of 4 x 4,
    transposed 3 x 3 convolutions of stride 2 to ``width``, half of it, and the image.
    Smaller images take fewer, larger ones repeat the last width.

    Parameters
    ----------
    codes : int
        d, of a code.
    side : int
        Of the square image: 4 to 7 times a power of two, at least 8.
    width : int
        Channels of the first maps; 256 in the released code.
    hidden : "relu" or "linear"
        What follows hidden layers; the released code has nothing there, so that only
        the final tanh is not linear.
    """
    times, start = halvings(side)
    later = [width, *[max(1, width // 2)] * times][: times - 1]
    layers: list[nn.Module] = [
        nn.Linear(codes, width * start * start),
        *activations(hidden),
        nn.Unflatten(1, (width, start, start)),
    ]
    for a, b in pairwise([width, *later, channels]):
        layers.append(nn.ConvTranspose2d(a, b, 3, 2, padding=1, output_padding=1))
        layers += activations(hidden)
    layers = layers[:-1] if hidden == "relu" else layers
    return nn.Sequential(*layers, nn.Tanh())


def fire_decoder(codes: int, channels: int, side: int) -> nn.Sequential:
    """Return a decoder of Fire blocks.

    FedPG, Fig. 8, names Fire blocks without their sizes, which are ours: a linear layer
    to 256 maps of 4 x 4; doubled by nearest neighbours before each block (squeeze 32,
    16, 16; half of 256, 128, 64 by each kernel); a 1 x 1 convolution. Smaller images
    take fewer blocks, larger ones repeat the last.

    Parameters
    ----------
    codes : int
        d, of a code.
    side : int
        Of the square image: 4 to 7 times a power of two, at least 8.
    """
    times, start = halvings(side)
    blocks = [(32, 256), (16, 128), *[(16, 64)] * times][:times]
    layers: list[nn.Module] = [
        nn.Linear(codes, 256 * start * start),
        nn.Unflatten(1, (256, start, start)),
    ]
    inputs = 256
    for squeeze, outputs in blocks:
        layers.append(nn.Upsample(scale_factor=2, mode="nearest"))
        layers.append(Fire(inputs, squeeze, outputs // 2, outputs // 2))
        inputs = outputs
    return nn.Sequential(*layers, nn.Conv2d(inputs, channels, 1), nn.Tanh())


def difference(truth: Tensor, found: Tensor, loss: Loss) -> Tensor:
    """Return the loss of a batch of reconstructions.

    Parameters
    ----------
    loss : "mse" or "l1_ssim"
        Mean squared error, or mean absolute error + 0.1 (1 - SSIM).

    Raises
    ------
    ValueError
        An unknown name.
    """
    if loss == "mse":
        return F.mse_loss(found, truth)
    if loss == "l1_ssim":
        return F.l1_loss(found, truth) + SSIM_WEIGHT * (1 - ssim(truth, found)).mean()
    raise ValueError(f"loss: got {loss!r}, expected mse or l1_ssim")


def check_pairs(images: Tensor, steps: int, batch: int, **others: Tensor) -> None:
    """Refuse training data or lengths that make no sense.

    Raises
    ------
    ValueError
        Images that are not ``[N, c, h, w]`` or not within [-1, 1], another tensor with
        no rows, or steps or batch below 1.
    """
    if images.ndim != 4 or not len(images):
        raise ValueError(
            f"images: got shape {tuple(images.shape)}, expected [N, c, h, w]"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= -1 and high <= 1):
        raise ValueError(f"images: got values from {low} to {high}, expected [-1, 1]")
    for name, value in others.items():
        if value.ndim != 2 or not len(value):
            raise ValueError(
                f"{name}: got shape {tuple(value.shape)}, expected [N, d], N >= 1"
            )
    for name, number in (("steps", steps), ("batch", batch)):
        if number < 1:
            raise ValueError(f"{name}: got {number}, expected at least 1")


def curve(losses: list[dict[str, float]]) -> pd.DataFrame:
    """Return at most 100 rows ``step, ...`` of means over the steps between them."""
    every = max(1, -(-len(losses) // POINTS))
    rows = []
    for start in range(0, len(losses), every):
        part = losses[start : start + every]
        means = {k: sum(one[k] for one in part) / len(part) for k in part[0]}
        rows.append({"step": start + len(part)} | means)
    return pd.DataFrame(rows)


def invert(
    decoder: nn.Module,
    images: Tensor,
    codes: Tensor,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    loss: Loss = "mse",
) -> Decoding:
    """Train a decoder on pairs of codes and images, by Adam.

    Parameters
    ----------
    decoder : Module
        Structure only: weights are drawn from the seed, the module stays as it is.
    images : [N, c, h, w]
        The attacker's own, values in [-1, 1].
    codes : [N, d]
        What the encoder answers to them.
    steps : int
        Batches, drawn with replacement.
    loss : "mse" or "l1_ssim"
        As in ``difference``.

    Raises
    ------
    ValueError
        Images outside [-1, 1], another number of codes, or an illegal setting.
    """
    check_pairs(images, steps, batch, codes=codes)
    if len(codes) != len(images):
        raise ValueError(f"codes: got {len(codes)}, expected {len(images)} as images")
    decoder = copy.deepcopy(decoder).train()
    draw_weights(decoder, generator(seed, "decoder"))
    pick = generator(seed, "inversion batches")
    optimiser = torch.optim.Adam(decoder.parameters(), learning_rate, fused=True)
    losses = []
    for _ in range(steps):
        rows = torch.randint(len(images), (batch,), generator=pick)
        value = difference(images[rows], decoder(codes[rows]), loss)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        losses.append({"loss": value.item()})
    return Decoding(decoder.eval().requires_grad_(False), curve(losses))


@torch.no_grad()
def decode(decoder: nn.Module, codes: Tensor, *, batch: int = 256) -> Tensor:
    """Return the images ``[N, c, h, w]`` of codes ``[N, d]``, in [-1, 1]."""
    return torch.cat([decoder(part) for part in codes.split(batch)])
