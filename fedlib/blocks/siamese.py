"""Siamese augmentation: one random change, the same for all images of a batch.

Zhao and Bilen, Dataset Condensation with Differentiable Siamese Augmentation, ICML
2021, with the strategy and the strengths of its public code. The released code of
FedHPro applies it to the images of a class before it takes the class's gradient.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torchvision.transforms.functional as T
from torch import Tensor
from torchvision.transforms import InterpolationMode

from fedlib.core.shards import Shards

KINDS = ("color", "crop", "cutout", "flip", "scale", "rotate")
BRIGHTNESS, SATURATION, CONTRAST = 1.0, 2.0, 0.5
CROP, CUTOUT = 0.125, 0.5  # of the image's side
SCALE, DEGREES = 1.2, 15.0


def _color(x: Tensor, a: Tensor) -> Tensor:
    """Shift the brightness, then stretch saturation and contrast; a ``[3]``."""
    x = x + (a[0] - 0.5) * BRIGHTNESS
    grey = x.mean(1, keepdim=True)
    x = (x - grey) * (a[1] * SATURATION) + grey
    level = x.mean((1, 2, 3), keepdim=True)
    return (x - level) * (a[2] + CONTRAST) + level


def _whole(share: Tensor, low: int, high: int) -> int:
    """Return an integer from ``low`` to ``high - 1`` for a share in [0, 1)."""
    return low + int(share * (high - low))


def _crop(x: Tensor, a: Tensor) -> Tensor:
    """Shift by up to an eighth of the side; what moves in is 0."""
    most = [int(side * CROP + 0.5) for side in x.shape[2:]]
    top, left = (_whole(s, -m, m + 1) for s, m in zip(a, most, strict=False))
    return T.crop(x, top, left, *x.shape[2:])


def _cutout(x: Tensor, a: Tensor) -> Tensor:
    """Set a window of half the side to 0, cut off at the border."""
    spans = []
    for side, share in zip(x.shape[2:], a, strict=False):
        size = int(side * CUTOUT + 0.5)
        start = _whole(share, 0, side + (1 - size % 2)) - size // 2
        spans.append((max(start, 0), min(start + size, side)))
    (top, bottom), (left, right) = spans
    return T.erase(x, top, left, bottom - top, right - left, torch.zeros(()))


def _flip(x: Tensor, a: Tensor) -> Tensor:
    return T.hflip(x) if a[0] < 0.5 else x


def _scale(x: Tensor, a: Tensor) -> Tensor:
    """Stretch both sides by factors of their own; what moves in is 0."""
    factors = a[:2] * (SCALE - 1 / SCALE) + 1 / SCALE
    theta = torch.cat([factors.diag(), torch.zeros(2, 1)], 1).to(x)
    grid = F.affine_grid(theta.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, align_corners=False)


def _rotate(x: Tensor, a: Tensor) -> Tensor:
    degrees = (2 * float(a[0]) - 1) * DEGREES
    return T.rotate(x, degrees, interpolation=InterpolationMode.BILINEAR)


_CHANGES = dict(
    zip(KINDS, (_color, _crop, _cutout, _flip, _scale, _rotate), strict=True)
)


def apply(x: Tensor, kind: str, amounts: Tensor) -> Tensor:
    """Change all images in the same way.

    Parameters
    ----------
    x : Tensor
        Normalised images ``[n, c, h, w]``.
    kind : str
        One of ``KINDS``.
    amounts : Tensor
        ``[3]`` shares in [0, 1) that decide how much; 0.5 is the middle.

    Raises
    ------
    ValueError
        Unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, expected one of {', '.join(KINDS)}")
    return _CHANGES[kind](x, amounts)


def augment(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return images ``[n, c, h, w]`` after one random change, the same for all."""
    kind = KINDS[int(torch.randint(len(KINDS), (), generator=generator))]
    return apply(x, kind, torch.rand(3, generator=generator))


def class_samples(
    shards: Shards,
    most: int | None,
    change: bool,
    random: Callable[[int], torch.Generator],
) -> Shards:
    """Return some samples of every class of every client, without the run's crops.

    Parameters
    ----------
    most : int, optional
        Largest number of samples of a class; all without it.
    change : bool
        Whether the images of a class are augmented, all alike.
    random : callable
        ``random(client)`` returns that client's generator.
    """
    index, images = [], []
    for mine, client in zip(shards.index, shards.ids, strict=True):
        draw = random(client)
        chosen = [mine[:0]]
        for c in shards.y[mine].unique().tolist():
            rows = mine[shards.y[mine] == c]
            rows = rows[torch.randperm(len(rows), generator=draw)[:most]]
            chosen.append(rows)
            if change:
                images.append(augment(shards.inputs(rows), draw))
        index.append(torch.cat(chosen))
    if not change:
        return shards._replace(index=index, augment=None)
    sizes = [len(rows) for rows in index]
    places = list(torch.arange(sum(sizes)).split(sizes))
    return Shards(torch.cat(images), shards.y[torch.cat(index)], places, shards.ids)
