"""FedPG, Fig. 8: what features, and averages of them, give away of images.

The server is curious: it knows the global model and has images of its own, of the same
kind as the clients'. Victims are images of one client; an average of n features of one
of its classes is what the client uploads as a prototype.
"""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
import torch
from scipy.stats import hypergeom
from torch import Tensor

from fedlib import registry
from fedlib.attacks.image_metrics import auc, likeness, ranks
from fedlib.attacks.inversion import decode, fire_decoder, invert
from fedlib.attacks.reconstruction import Encode, optimise
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.papers.study import Study
from fedlib.runs.federation import federation
from fedlib.runs.runner import Final

BATCH = 500  # images embedded at once
NEAREST = (1, 10)  # how many candidates an attacker looks at
CONTROLS = ("Class mean", "Another image")  # what an attacker has without a feature
AXIS = "Features in the average"
ALIKE = {"psnr": "PSNR (dB)", "ssim": "SSIM"}
TOLD = {
    "rank": "Median rank of contributors",
    "top10": "Contributor in nearest 10 (%)",
    "auc": "AUC of membership, by distance",
    "auc_relative": "AUC of membership, beside class mean",
}


def global_encoder(final: Final) -> Encode:
    """Return the frozen extractor: images in [-1, 1] to the head's input ``[B, d]``.

    Raises
    ------
    ValueError
        The method has no global model.
    """
    fed, state = final.federation, final.shared
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
    rows_of = torch.arange(len(y)).repeat(size, 1).T.contiguous()
    for c in y.unique():
        rows = (y == c).nonzero().flatten()
        pick = torch.randint(len(rows), (len(rows), size - 1), generator=draw)
        rows_of[rows, 1:] = rows[pick]
    return rows_of


class Attack(NamedTuple):
    """What attacks on one model found."""

    truth: Tensor  # [V, c, h, w] in [-1, 1]
    y: Tensor  # int64 [V]
    found: dict[str, Tensor]  # attack -> [S, V, c, h, w]; of controls S is 1
    alike: pd.DataFrame  # attack, n (missing for controls), psnr, ssim: means over V
    told: pd.DataFrame  # as from ``reidentified``


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


def reidentified(
    z: Tensor, candidates: Tensor, centres: Tensor, sizes: Sequence[int]
) -> pd.DataFrame:
    """Return how well averages tell their contributors among candidates of the class.

    Parameters
    ----------
    z : Tensor
        ``[V, N, d]``, the groups' embeddings.
    candidates : Tensor
        ``[V, M, d]``, the groups' first.
    centres : Tensor
        ``[V, d]``, the class means of the attacker's own embeddings.
    sizes : list of int
        How many of a group contribute; the others of it are candidates that do not.

    Returns
    -------
    DataFrame
        n, candidates, rank (median over contributors of all victims), top1 and top10
        (percent of averages with a contributor among so many nearest candidates), and
        two areas under ROC curves, means over averages: auc takes near candidates for
        contributors, auc_relative those that are nearer to the average than to the
        class mean.

    Notes
    -----
    The second is that of Homer et al. (PLoS Genetics, 2008), who told whose genomes an
    average was made of.
    """
    among, rows = candidates.shape[1], []
    every = torch.arange(among).expand(len(z), among)
    apart = (candidates - centres[:, None]).double().square().sum(2)
    for n, codes in zip(sizes, averages(z, sizes), strict=True):
        placed = ranks(codes, every, candidates)
        rank = placed[:, :n]
        row = {"n": n, "candidates": among, "rank": float(rank.median())}
        for k in NEAREST:
            row[f"top{k}"] = 100 * float((rank.amin(1) <= k).double().mean())
        nearer = apart - (candidates - codes[:, None]).double().square().sum(2)
        for name, scores in (("auc", -placed), ("auc_relative", nearer)):
            areas = [auc(scored[:n], scored[n:]) for scored in scores]
            row[name] = sum(areas) / len(areas)
        rows.append(row)
    return pd.DataFrame(rows)


def by_chance(sizes: Sequence[int], among: int) -> pd.DataFrame:
    """Return what ``reidentified`` gives an attacker who guesses."""
    rows = []
    for n in sizes:
        row = {"n": n, "candidates": among, "rank": (among + 1) / 2}
        for k in NEAREST:
            row[f"top{k}"] = 100 * float(hypergeom.sf(0, among, n, min(k, among)))
        rows.append(row | {"auc": 0.5, "auc_relative": 0.5})
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
    flat = codes.flatten(0, 1)
    nearest = own[torch.cdist(flat, known).argmin(1)]
    shape = fed.ctx.net.shape
    optimised = optimise(encode, flat, shape, seed=seed, start=nearest, **pixels)
    draw = generator(seed, "another image")
    present, place = drawn.y.unique(return_inverse=True)
    of = [(own_y == c).nonzero().flatten() for c in present]
    centres = torch.stack([known[rows].mean(0) for rows in of])[place]
    means = torch.stack([own[rows].mean(0) for rows in of])[place]
    picks = [torch.randint(len(of[k]), (), generator=draw) for k in place]
    another = own[[int(of[k][at]) for k, at in zip(place, picks, strict=True)]]
    guesses = {
        "Decoder": _decoded(own, known, codes, seed, **decoder),
        "Decoder of averages": _decoded(own, mixed, codes, seed, **decoder),
        "Optimisation": optimised.unflatten(0, codes.shape[:2]),
        "Nearest own image": nearest.unflatten(0, codes.shape[:2]),
        CONTROLS[0]: means[None],
        CONTROLS[1]: another[None],
    }
    rows = []
    for name, by_size in guesses.items():
        ns = [None] if name in CONTROLS else sizes
        for n, images in zip(ns, by_size, strict=True):
            mean = likeness(truth, images)[["psnr", "ssim"]].mean()
            rows.append({"attack": name, "n": n} | mean.to_dict())
    among = embedded(encode, fed.train, drawn.candidates)
    alike = pd.DataFrame(rows).astype({"n": "Int64"})
    areas = reidentified(z, among, centres, sizes)
    return Attack(truth, drawn.y, guesses, alike, areas)


def _over_seeds(
    study: Study, parts: Sequence[pd.DataFrame], keys: list[str]
) -> pd.DataFrame:
    """Return mean and sd over seeds of each number, by net and method."""
    cells = study.cells[["value", "method"]].itertuples(index=False)
    frames = [
        part.assign(net=net, method=method)
        for part, (net, method) in zip(parts, cells, strict=True)
    ]
    rows = pd.concat(frames, ignore_index=True)
    keys = ["net", "method", *keys]
    grouped = rows.groupby(keys, sort=False, dropna=False)
    columns: dict[str, pd.Series] = {}
    for name in (c for c in rows if c not in keys):
        columns[name] = grouped[name].mean()
        columns[f"{name}_sd"] = grouped[name].std()
    columns["seeds"] = grouped.size()
    return pd.DataFrame(columns).reset_index()


def alike(study: Study, attacks: Sequence[Attack]) -> pd.DataFrame:
    """Return likeness of reconstructions to the victims, mean and sd over seeds.

    Columns: net, method (whose model), attack, n (missing for controls), psnr, ssim,
    each with its sd over seeds (ddof 1), seeds.
    """
    return _over_seeds(study, [attack.alike for attack in attacks], ["attack", "n"])


def told(study: Study, attacks: Sequence[Attack]) -> pd.DataFrame:
    """Return how well averages tell contributors, and what guessing would give.

    Columns: net, method, then those of ``reidentified``, each with its sd over seeds
    (ddof 1), seeds; guessing is the method "Chance".
    """
    rows = _over_seeds(study, [by_n.told for by_n in attacks], ["n"])
    parts = []
    for net, mine in rows.groupby("net", sort=False):
        by_n = mine.drop_duplicates("n")
        guess = by_chance(by_n["n"].tolist(), round(by_n["candidates"].mean()))
        parts += [mine, guess.assign(net=net, method="Chance")]
    frame = pd.concat(parts, ignore_index=True).drop(columns="candidates_sd")
    return frame.astype({"candidates": int, "seeds": "Int64"})


def points(table: pd.DataFrame, line: str, measures: dict[str, str]) -> pd.DataFrame:
    """Return what ``panels.lines`` draws of ``alike`` or ``told``.

    A panel per measure and, where they have no lines and are several, per method and
    net. Numbers of controls hold for every n. Columns: n, ``line``, measured, sd and
    panel.

    Parameters
    ----------
    line : "attack" or "method"
        What has a line.
    measures : mapping
        From a column to its printed name.
    """
    fixed, moving = table[table["n"].isna()], table[table["n"].notna()]
    every = [fixed.assign(n=n) for n in moving["n"].unique()]
    rows = pd.concat([moving, *every], ignore_index=True)
    apart = [c for c in ("method", "net") if c != line and rows[c].nunique() > 1]
    panels = [
        [registry.title(c) for c in row] for row in rows[apart].itertuples(index=False)
    ]
    parts = []
    for name, title in measures.items():
        numbers = {"measured": rows[name], "sd": rows[f"{name}_sd"]}
        columns = {"n": rows["n"].astype(int), line: rows[line]} | numbers
        columns["panel"] = [", ".join([title, *panel]) for panel in panels]
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts).sort_values("n", kind="stable").reset_index(drop=True)


def shown(
    attack: Attack, sizes: Sequence[int], averaged: int, rows: int
) -> dict[str, dict[str, Tensor]]:
    """Return what ``reconstructions.grid`` draws of the first victims.

    The victims, what the decoder and optimisation make of averages of n, and controls,
    among them the decoder of averages at the n that it was trained on.
    """
    groups: dict[str, dict[str, Tensor]] = {"": {"Image": attack.truth}}
    for name in ("Decoder", "Optimisation"):
        by_title = zip(sizes, attack.found[name], strict=True)
        groups[f"{name}, n features"] = {f"n = {n}": x for n, x in by_title}
    trained = attack.found["Decoder of averages"][list(sizes).index(averaged)]
    controls = {name.replace(" ", "\n"): attack.found[name][0] for name in CONTROLS}
    groups["Controls"] = {f"Trained\non {averaged}": trained} | controls
    return {
        group: {title: images[:rows] for title, images in by_title.items()}
        for group, by_title in groups.items()
    }


def small_cells(study: Study) -> pd.DataFrame:
    """Return how many prototypes are of so few images that they nearly are one.

    A cell is a class of a client, of which it uploads a prototype.

    Returns
    -------
    DataFrame
        seed, cells (with at least one image), one, two (cells with as many images),
        below_3_percent, cells_of_20 (with 20 or more: FedPG averages 20).
    """
    rows = []
    firsts = study.cells.drop_duplicates("seed").index
    for at in firsts:
        result = study.results[at]
        fed = federation(result.spec)
        counts = fed.train.label_counts(fed.ctx.classes)
        held = int((counts > 0).sum())
        one, two = (int((counts == n).sum()) for n in (1, 2))
        row = {"seed": result.spec.seed, "cells": held, "one": one, "two": two}
        row["below_3_percent"] = 100 * (one + two) / held
        rows.append(row | {"cells_of_20": int((counts >= 20).sum())})
    return pd.DataFrame(rows)
