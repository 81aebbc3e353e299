"""FedPG, Fig. 8: what features, and averages of them, give away of images.

The server is curious: it knows the global model and has images of its own, of the same
kind as the clients'. It decodes or optimises images that have a feature's value
(``attacks/``), and looks which images an average was made of (``membership``).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from fedlib.attacks.image_metrics import likeness
from fedlib.attacks.inversion import decode, fire_decoder, invert
from fedlib.attacks.reconstruction import optimise
from fedlib.core.rng import generator
from fedlib.papers.fedpg.encoder import embedded, global_encoder, pictures
from fedlib.papers.fedpg.membership import reidentified
from fedlib.papers.fedpg.victims import averages, partners, split
from fedlib.runs.runner import Final

CONTROLS = ("Class mean", "Another image")  # what an attacker has without a feature


class Attack(NamedTuple):
    """What attacks on one model recovered."""

    truth: Tensor  # [V, c, h, w] in [-1, 1]
    y: Tensor  # int64 [V]
    images: dict[str, Tensor]  # attack -> [S, V, c, h, w]; of controls S is 1
    alike: pd.DataFrame  # attack, n (missing for controls), psnr, ssim: means over V
    membership: pd.DataFrame  # as from ``reidentified``


def _decoded(
    images: Tensor, known: Tensor, codes: Tensor, seed: int, **training: Any
) -> Tensor:
    """Return what a decoder trained on pairs makes of codes ``[S, V, d]``.

    Codes are standardised by the attacker's own.
    """
    std, mean = torch.std_mean(known, 0)
    known, codes = ((z - mean) / std.clamp(min=1e-6) for z in (known, codes))
    shape = images.shape[1:]
    decoder = fire_decoder(known.shape[1], shape[0], shape[1])
    fitted = invert(decoder, images, known, seed=seed, loss="l1_ssim", **training)
    return decode(fitted.decoder, codes.flatten(0, 1)).unflatten(0, codes.shape[:2])


def _class_means(values: Tensor, of: Tensor, y: Tensor) -> Tensor:
    """Return for each class of ``y`` ``[V]`` the mean of the values ``of`` it."""
    present, place = y.unique(return_inverse=True)
    return torch.stack([values[of == c].mean(0) for c in present])[place]


def _of_the_class(images: Tensor, of: Tensor, y: Tensor, seed: int) -> Tensor:
    """Return for each class of ``y`` ``[V]`` one image of it, drawn at random."""
    draw = generator(seed, "another image")
    rows = [(of == c).nonzero().flatten() for c in y]
    return images[[int(at[torch.randint(len(at), (), generator=draw)]) for at in rows]]


def _likeness(
    truth: Tensor, guesses: dict[str, Tensor], sizes: Sequence[int]
) -> pd.DataFrame:
    """Return mean likeness to the truth ``[V, ...]`` of each attack's guesses, by n."""
    rows = []
    for name, by_size in guesses.items():
        ns = [None] if name in CONTROLS else sizes
        for n, images in zip(ns, by_size, strict=True):
            mean = likeness(truth, images)[["psnr", "ssim"]].mean()
            rows.append({"attack": name, "n": n} | mean.to_dict())
    return pd.DataFrame(rows).astype({"n": "Int64"})


def attack(
    final: Final,
    *,
    sizes: Sequence[int],
    victims: int,
    candidates: int,
    attacker: int,
    averaged: int,
    decoder: dict[str, Any],
    pixels: dict[str, Any],
    seed: int,
) -> Attack:
    """Attack features, and averages of them, under a run's last global model.

    Parameters
    ----------
    sizes : list of int
        How many features are averaged, n.
    victims, candidates, attacker : int
        As in ``split``.
    averaged : int
        How many features the codes of the second decoder average; it learns to show
        one of the images.
    decoder, pixels : dict
        Settings of ``inversion.invert`` and of ``reconstruction.optimise``.
    """
    fed, encode = final.federation, global_encoder(final)
    drawn = split(
        fed.train,
        fed.ctx.classes,
        victims=victims,
        most=max(sizes),
        candidates=candidates,
        attacker=attacker,
        seed=seed,
    )
    own, own_y = pictures(fed.train, drawn.attacker), fed.train.y[drawn.attacker]
    known = embedded(encode, fed.train, drawn.attacker)
    z = embedded(encode, fed.train, drawn.groups)
    codes, truth = averages(z, sizes), pictures(fed.train, drawn.groups[:, 0])
    mixed = known[partners(own_y, averaged, seed)].mean(1)
    flat = codes.flatten(0, 1)
    nearest = own[torch.cdist(flat, known).argmin(1)]
    shape = fed.ctx.net.shape
    optimised = optimise(encode, flat, shape, seed=seed, start=nearest, **pixels)
    guesses = {
        "Decoder": _decoded(own, known, codes, seed, **decoder),
        "Decoder of averages": _decoded(own, mixed, codes, seed, **decoder),
        "Optimisation": optimised.unflatten(0, codes.shape[:2]),
        "Nearest own image": nearest.unflatten(0, codes.shape[:2]),
        CONTROLS[0]: _class_means(own, own_y, drawn.y)[None],
        CONTROLS[1]: _of_the_class(own, own_y, drawn.y, seed)[None],
    }
    among = embedded(encode, fed.train, drawn.candidates)
    centres = _class_means(known, own_y, drawn.y)
    membership = reidentified(z, among, centres, sizes)
    alike = _likeness(truth, guesses, sizes)
    return Attack(truth, drawn.y, guesses, alike, membership)
