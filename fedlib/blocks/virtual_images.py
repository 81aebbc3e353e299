r"""Virtual images: what an untrained style-based generator makes of noise (VHL).

The generator is that of StyleGAN2 (Karras et al., Analyzing and Improving the Image
Quality of StyleGAN, CVPR 2020) with random weights and few maps. Nothing is learnt from
anybody's data: who knows the seed knows the images. Each class has a distribution of
noise of its own, so that its images look alike and unlike those of other classes.

Symbols
    z       | [B, s]       | latent: mean of the class + sample_spread * N(0, 1)
    style   | [B, s]       | z at unit mean square, through one layer
    maps    | [B, m, h, w] | from 4 x 4 on, doubled until they cover the image
    noise   | [B, 1, h, w] | added to every map of a layer, with a mean per class

Box
    1. A constant map of 4 x 4 goes through one styled layer, then each doubled map
       through two. A layer: modulated convolution, noise, leaky ReLU.
    2. Modulated: every input map is scaled by a linear function of the style; every
       output map is divided by the size that its scaled kernel has.
    3. After each resolution a 1 x 1 modulated convolution, not divided, adds to the
       image, which is doubled along with the maps.
    4. Sides that are no power of two: made at the next one and shrunk.
    5. The set is standardised per channel, as normalised real images are.

Readings
    Noise means of a class are a unit vector over the layers; the vectors of all classes
    form a tight frame, so that layers are uncorrelated over classes (released: 500
    steps towards the same). Their spread is 0.1 / layers. The released layers multiply
    noise by a factor that begins at 0 and is never trained: ``noise_weight=0``.
    Released: 512 maps; images clipped to [0, 1] and stored as JPEG.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.rng import generator

START = 4  # side of the first map
BATCH = 250  # images made at once
NOISE_SPREAD = 0.1  # divided by the number of layers


class Recipe(NamedTuple):
    """How virtual images are made."""

    style_size: int = 64  # s
    class_spread: float = 0.3  # of the classes' mean latents
    sample_spread: float = 0.1  # of latents around their class
    noise_weight: float = 1.0
    width: int = 32  # m, maps of every layer


class _Layer(NamedTuple):
    kernel: Tensor  # [out, in, k, k]
    style: Tensor  # [in, s], from a style to the scale of each input map


def _layer(outputs: int, kernel: int, recipe: Recipe, pick: torch.Generator) -> _Layer:
    inputs, size = recipe.width, recipe.style_size
    weight = torch.randn(outputs, inputs, kernel, kernel, generator=pick)
    style = torch.randn(inputs, size, generator=pick) / math.sqrt(size)
    return _Layer(weight / math.sqrt(weight[0].numel()), style)


def modulated(
    x: Tensor, kernel: Tensor, scale: Tensor, *, demodulate: bool = True
) -> Tensor:
    """Convolve x ``[B, in, h, w]`` with a kernel scaled per image: box 2.

    Parameters
    ----------
    kernel : Tensor
        ``[out, in, k, k]``.
    scale : Tensor
        ``[B, in]``, of each input map.
    demodulate : bool
        Whether every output is divided by the length of its scaled kernel.
    """
    out = F.conv2d(x * scale[..., None, None], kernel, padding=kernel.shape[-1] // 2)
    if not demodulate:
        return out
    square = torch.einsum("oihw,bi->bo", kernel.square(), scale.square())
    return out * (square + 1e-8).rsqrt()[..., None, None]


def frame(rows: int, size: int, pick: torch.Generator) -> Tensor:
    """Return unit vectors ``[rows, size]`` as unlike each other as can be.

    Orthogonal where there are no more of them than dimensions; else a tight frame,
    whose columns are orthogonal.
    """
    x = torch.randn(rows, size, generator=pick)
    for _ in range(50):
        left, _, right = torch.linalg.svd(x, full_matrices=False)
        x = F.normalize(left @ right, dim=1)
    return x


def _bend(x: Tensor) -> Tensor:
    return math.sqrt(2) * F.leaky_relu(x, 0.2)


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


@lru_cache(maxsize=1)
def make(
    seed: int,
    classes: int,
    per_class: int,
    shape: tuple[int, int, int],
    recipe: Recipe,
) -> Tensor:
    """Return virtual images ``[C n_v, c, h, w]``, class after class.

    The same arguments give the same images. The last set is kept: do not write to it.
    """
    channels, *sides = shape
    doublings = max(1, math.ceil(math.log2(max(sides) / START)))
    pick = generator(seed, "virtual images")
    first = torch.randn(1, recipe.width, START, START, generator=pick)
    layers = [_layer(recipe.width, 3, recipe, pick) for _ in range(1 + 2 * doublings)]
    to_image = [_layer(channels, 1, recipe, pick) for _ in range(1 + doublings)]
    size = recipe.style_size
    mapping = torch.randn(size, size, generator=pick) / math.sqrt(size)
    centres = recipe.class_spread * torch.randn(classes, size, generator=pick)
    noise_means = frame(classes, len(layers), pick)

    def styled(x: Tensor, style: Tensor, number: int, c: int) -> Tensor:
        noise = torch.randn(len(style), 1, *x.shape[2:], generator=pick)
        noise = noise_means[c, number] + NOISE_SPREAD / len(layers) * noise
        layer = layers[number]
        x = modulated(x, layer.kernel, 1 + style @ layer.style.T)
        return _bend(x + recipe.noise_weight * noise)

    def images(count: int, c: int) -> Tensor:
        z = torch.randn(count, size, generator=pick)
        z = centres[c] + recipe.sample_spread * z
        style = _bend(z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt() @ mapping)
        x = styled(first.expand(count, -1, -1, -1), style, 0, c)
        total = torch.zeros(count, channels, START // 2, START // 2)
        for number, layer in enumerate(to_image):
            if number:
                x = styled(_double(x), style, 2 * number - 1, c)
                x = styled(x, style, 2 * number, c)
            scale = 1 + style @ layer.style.T
            added = modulated(x, layer.kernel, scale, demodulate=False)
            total = _double(total) + added
        return F.interpolate(total, sides, mode="bilinear", antialias=True)

    made = torch.cat(
        [
            images(min(BATCH, per_class - start), c)
            for c in range(classes)
            for start in range(0, per_class, BATCH)
        ]
    )
    std, mean = torch.std_mean(made, (0, 2, 3), keepdim=True)
    return (made - mean) / std
