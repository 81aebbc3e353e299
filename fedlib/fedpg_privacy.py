"""FedPG, Fig. 8: what features, and averages of them, give away of images.

The server is curious: it knows the global model and has images of its own, of the same
kind as the clients'. Victims are images of one client; an average of n features of one
of its classes is what the client uploads as a prototype.
"""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from scipy.stats import hypergeom
from torch import Tensor

from fedlib.image_metrics import auc, likeness, ranks
from fedlib.inversion import decode, fire_decoder, invert
from fedlib.local import Shards
from fedlib.reconstruction import Encode, optimise
from fedlib.rng import generator
from fedlib.runs import Final
from fedlib.study import Study

BATCH = 500  # images embedded at once
NEAREST = (1, 10)  # how many candidates an attacker looks at
CONTROLS = ("Class mean", "Another image")  # what an attacker has without a feature
MEASURES = {
    "psnr": "PSNR (dB)",
    "ssim": "SSIM",
    "rank": "Median rank",
    "top10": "A contributor among the 10 nearest (%)",
    "auc": "Area under ROC",
}


def global_encoder(final: Final) -> Encode:
    """Return the frozen extractor: images in [-1, 1] to the head's input ``[B, d]``.

    Raises
    ------
    ValueError
        The method has no global model.
    """
    fed, server, mine = final
    state = fed.method.models(fed.ctx, server, mine).shared
    if state is None:
        raise ValueError(f"final: got {fed.method.name}, expected a global model")
    mean, std = _normalisation(fed.train)

    def encode(images: Tensor) -> Tensor:
        return fed.ctx.net(state, ((images + 1) / 2 - mean) / std).high

    return encode


def _normalisation(shards: Shards) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (shards.mean, shards.std))
    return mean, std


def pictures(shards: Shards, index: Tensor) -> Tensor:
    """Return images ``[..., c, h, w]`` in [-1, 1] for indices of any shape."""
    mean, std = _normalisation(shards)
    x = shards._replace(augment=None).inputs(index)
    return (2 * (x * std + mean) - 1).clamp(-1, 1)


@torch.no_grad()
def embedded(encode: Encode, shards: Shards, index: Tensor) -> Tensor:
    """Return embeddings ``[..., d]`` of images for indices of any shape."""
    parts = [encode(pictures(shards, i)) for i in index.flatten().split(BATCH)]
    return torch.cat(parts).unflatten(0, index.shape)


class Split(NamedTuple):
    """Whose images are attacked and what the attacker has, as training indices."""

    client: int
    y: Tensor  # int64 [V], the victims' classes
    groups: Tensor  # int64 [V, N], the client's images of the class, the victim first
    candidates: Tensor  # int64 [V, M], the group, then others of the class
    attacker: Tensor  # int64 [A], of other clients


def _some(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return ``count`` of the rows in random order, all if there are no more."""
    return rows[torch.randperm(len(rows), generator=draw)[:count]]


def split(
    shards: Shards,
    classes: int,
    *,
    victims: int,
    most: int,
    candidates: int,
    attacker: int,
    seed: int,
) -> Split:
    """Draw victims of one client, candidates, and the attacker's own images.

    The client is the one with most classes of at least ``most`` samples. Victims take
    turns over those of them that the attacker has images of.

    Parameters
    ----------
    shards : Shards
        All clients' training data.
    victims : int >= 1
        V.
    most : int >= 1
        N, the size of the largest average.
    candidates : int > most
        M, at most; no more than the smallest of the classes has. They hold the group.
    attacker : int >= 1
        A, at most.

    Raises
    ------
    ValueError
        No more candidates than contributors, or no client has such a class.
    """
    if candidates <= most:
        raise ValueError(f"candidates: got {candidates}, expected more than {most}")
    counts = shards.label_counts(classes)
    client = int((counts >= most).sum(1).argmax())
    mine = shards.index[client]
    others = torch.cat([i for k, i in enumerate(shards.index) if k != client])
    own = _some(others, attacker, generator(seed, "attacker"))
    known = shards.y[own].bincount(minlength=classes) > 0
    turns = ((counts[client] >= most) & known).nonzero().flatten()
    if not len(turns):
        raise ValueError(
            f"most: got {most}, expected at most {int(counts.max())}, the largest "
            "class of a client, of which the attacker has images, too"
        )
    draw = generator(seed, "victims")
    y = turns.repeat(-(-victims // len(turns)))[:victims]
    size = min(candidates, int(counts.sum(0)[turns].min()))
    groups, rivals = [], []
    for c in y:
        group = _some(mine[shards.y[mine] == c], most, draw)
        rest = torch.cat([mine, others])
        rest = rest[(shards.y[rest] == c) & ~torch.isin(rest, group)]
        groups.append(group)
        rivals.append(torch.cat([group, _some(rest, size - most, draw)]))
    return Split(client, y, torch.stack(groups), torch.stack(rivals), own)


def averages(z: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the means ``[S, V, d]`` of the first n of each group ``[V, N, d]``."""
    return torch.stack([z[:, :n].mean(1) for n in sizes])


def partners(y: Tensor, size: int, seed: int) -> Tensor:
    """Return groups ``[A, size]``: each row itself, then random ones of its class."""
    draw = generator(seed, "partners")
    found = torch.arange(len(y)).repeat(size, 1).T.contiguous()
    for c in y.unique():
        rows = (y == c).nonzero().flatten()
        pick = torch.randint(len(rows), (len(rows), size - 1), generator=draw)
        found[rows, 1:] = rows[pick]
    return found


class Attack(NamedTuple):
    """What attacks on one model found."""

    truth: Tensor  # [V, c, h, w] in [-1, 1]
    y: Tensor  # int64 [V]
    found: dict[str, Tensor]  # attack -> [S, V, c, h, w]; of controls S is 1
    alike: pd.DataFrame  # attack, n (missing for controls), psnr, ssim: means over V
    told: pd.DataFrame  # n, candidates, rank, top1, top10, auc


def _decoded(
    images: Tensor, known: Tensor, codes: Tensor, seed: int, **training: float
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


def reidentified(z: Tensor, candidates: Tensor, sizes: Sequence[int]) -> pd.DataFrame:
    """Return how well averages tell their contributors among candidates of the class.

    Parameters
    ----------
    z : Tensor
        ``[V, N, d]``, the groups' embeddings.
    candidates : Tensor
        ``[V, M, d]``, the groups' first.
    sizes : list of int
        How many of a group contribute; the others of it are candidates that do not.

    Returns
    -------
    DataFrame
        n, candidates, rank (median over contributors of all victims), top1 and top10
        (percent of averages with a contributor among so many nearest candidates), auc
        (mean over averages; contributors are to be nearer than other candidates).
    """
    among, rows = candidates.shape[1], []
    for n, codes in zip(sizes, averages(z, sizes), strict=True):
        at = torch.arange(n).expand(len(z), n)
        placed = ranks(codes, torch.arange(among).expand(len(z), among), candidates)
        rank = placed.gather(1, at)
        row = {"n": n, "candidates": among, "rank": float(rank.median())}
        for k in NEAREST:
            row[f"top{k}"] = 100 * float((rank.amin(1) <= k).double().mean())
        areas = [auc(-each[:n], -each[n:]) for each in placed]
        rows.append(row | {"auc": sum(areas) / len(areas)})
    return pd.DataFrame(rows)


def by_chance(sizes: Sequence[int], among: int) -> pd.DataFrame:
    """Return what ``reidentified`` gives an attacker who guesses."""
    rows = []
    for n in sizes:
        row = {"n": n, "candidates": among, "rank": (among + 1) / 2}
        for k in NEAREST:
            row[f"top{k}"] = 100 * float(hypergeom.sf(0, among, n, k))
        rows.append(row | {"auc": 0.5})
    return pd.DataFrame(rows)


def attack(
    final: Final,
    *,
    sizes: Sequence[int],
    victims: int,
    candidates: int,
    attacker: int,
    averaged: int,
    decoder: dict[str, float],
    pixels: dict[str, float],
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
    optimised = optimise(
        encode, codes.flatten(0, 1), fed.ctx.net.shape, seed=seed, **pixels
    )
    draw = generator(seed, "another image")
    same = [own[own_y == c] for c in drawn.y]
    another = [x[torch.randint(len(x), (), generator=draw)] for x in same]
    found = {
        "Decoder": _decoded(own, known, codes, seed, **decoder),
        f"Decoder of averages of {averaged}": _decoded(
            own, mixed, codes, seed, **decoder
        ),
        "Optimisation": optimised.unflatten(0, codes.shape[:2]),
        CONTROLS[0]: torch.stack([x.mean(0) for x in same])[None],
        CONTROLS[1]: torch.stack(another)[None],
    }
    rows = []
    for name, each in found.items():
        told = [None] if name in CONTROLS else sizes
        for n, images in zip(told, each, strict=True):
            mean = likeness(truth, images)[["psnr", "ssim"]].mean()
            rows.append({"attack": name, "n": n} | mean.to_dict())
    among = embedded(encode, fed.train, drawn.candidates)
    alike = pd.DataFrame(rows).astype({"n": "Int64"})
    return Attack(truth, drawn.y, found, alike, reidentified(z, among, sizes))


def _pooled(
    study: Study, parts: Sequence[pd.DataFrame], keys: list[str]
) -> pd.DataFrame:
    """Return mean and sd over seeds of a number per attacked model."""
    cells = study.cells[["value", "method"]].to_dict("records")
    named = [
        p.assign(net=c["value"], features=c["method"])
        for p, c in zip(parts, cells, strict=True)
    ]
    whole = pd.concat(named, ignore_index=True)
    keys = ["net", "features", *keys]
    grouped = whole.groupby(keys, sort=False, dropna=False)
    numbers = [c for c in whole if c not in keys]
    spread = grouped[numbers].std().add_suffix("_sd")
    seeds = grouped.size().rename("seeds")
    return grouped[numbers].mean().join([spread, seeds]).reset_index()
