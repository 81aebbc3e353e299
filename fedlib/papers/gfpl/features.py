"""GFPL's features: projections beside embeddings, and how near samples are to them."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy.stats import percentileofscore
from torch import Tensor

from fedlib.blocks import mixtures
from fedlib.blocks.mixtures import Mixtures
from fedlib.core.rng import generator
from fedlib.methods import gfpl
from fedlib.runs.features import Features, distances, features, plane
from fedlib.runs.runner import Final


def projections(final: Final, seen: Features) -> Tensor:
    """Return h ``[n, d_p]`` of embeddings, each by its own client's projection."""
    fed, server, mine = final
    state = fed.method.models(fed.ctx, server, mine).personal
    assert state is not None  # GFPL has a personal model
    names = [name for name in state if name.startswith(gfpl.PROJECTION)]
    rows = [
        gfpl.projection({name: state[name][k] for name in names}, z[None])
        for k, z in zip(seen.client.tolist(), seen.out.high, strict=True)
    ]
    return torch.cat(rows)


def spaces(final: Final, per_class: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return features and projections of test samples by space, and their classes."""
    seen = features(final, "personal", "test", per_class)
    high = seen.out.high
    both = {"features": high, "projections": projections(final, seen)}
    return {name: z.numpy() for name, z in both.items()}, seen.y.numpy()


def planes(
    finals: dict[str, Final], per_class: int, seed: int
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return features and projections of several losses in the plane, and apart.

    Returns
    -------
    points : DataFrame
        panel, x, y, label; the t-SNE of each space, features of all losses first.
    apart : DataFrame
        panel and mean distances within and between classes (``features.distances``),
        of unit vectors before t-SNE.
    """
    by_run = {name: spaces(final, per_class) for name, final in finals.items()}
    points, apart = [], []
    for space in ("features", "projections"):
        for name, (embedded, y) in by_run.items():
            z = embedded[space]
            panel = f"{name}: {space}"
            x = dict(zip("xy", plane(z, seed).T, strict=True))
            points.append(pd.DataFrame({"panel": panel, **x, "label": y}))
            unit = F.normalize(torch.from_numpy(z), dim=-1).numpy()
            apart.append({"panel": panel} | distances(unit, y))
    return pd.concat(points, ignore_index=True), pd.DataFrame(apart)


class _Near(NamedTuple):
    """The nearest real feature of each of n features."""

    apart: Tensor  # [n] distance
    which: Tensor  # int64 [n], its row


def _nearest(x: Tensor, real: Tensor, itself: bool = False) -> _Near:
    """Return the nearest row of real for each row of x, or the nearest other one."""
    apart = torch.cdist(x, real)
    if itself:
        apart.fill_diagonal_(float("inf"))
    return _Near(*apart.min(1))


def against_real(
    drawn: dict[str, Tensor], real: Tensor, owner: Tensor, sender: Tensor
) -> pd.DataFrame:
    """Return how near features of one class are to real ones.

    Vectors are scaled to length 1, so that a squared distance is 2 - 2 cosine.

    Parameters
    ----------
    drawn : dict of Tensor
        Kind -> features ``[n, d]``; those of kind ``upload`` have a sender.
    real, owner : Tensor
        ``[N, d]`` real features, N at least 2, and int64 ``[N]`` whose they are.
    sender : Tensor
        int64 ``[n]``, whose mixture each feature of kind ``upload`` was drawn from.

    Returns
    -------
    DataFrame
        kind, squared_distance and cosine to the nearest real feature; percentile of
        this distance among those of real features to their nearest other one (ties
        count half); own: percent, 100 where the nearest one is the sender's, else 0;
        chance: percent of the real features that are the sender's. Both are empty
        without a sender; the sender of a ``real`` feature is its owner.
    """
    real = F.normalize(real.double(), dim=-1)
    among = _nearest(real, real, itself=True)
    parts = []
    for kind, x in {**drawn, "real": real}.items():
        unit = F.normalize(x.double(), dim=-1)
        near = among if kind == "real" else _nearest(unit, real)
        square = near.apart.square().numpy()
        values: dict[str, Any] = {"squared_distance": square, "cosine": 1 - square / 2}
        values["percentile"] = percentileofscore(
            among.apart.numpy(), near.apart.numpy(), "mean"
        )
        of = {"upload": sender, "real": owner}.get(kind)
        values["own"] = values["chance"] = float("nan")
        if of is not None:
            values["own"] = 100.0 * (owner[near.which] == of).numpy()
            mine = (of[:, None] == owner).double().sum(1)
            other = int(kind == "real")  # a real feature is not its own neighbour
            values["chance"] = (100 * (mine - other) / (len(owner) - other)).numpy()
        parts.append(pd.DataFrame({"kind": kind, **values}))
    return pd.concat(parts, ignore_index=True)


def nearest_real(final: Final, number: int, seed: int) -> pd.DataFrame:
    """Return how near features drawn from mixtures are to real ones.

    Real features are all training features of the class, each by its owner's model.

    Parameters
    ----------
    number : int
        Samples of each class that has a mixture: of the merged one, and of all uploads
        together, by turns.

    Returns
    -------
    DataFrame
        label, dimensions and the columns of ``against_real``; kind is ``sample`` (drawn
        from the merged mixtures), ``upload`` (drawn from one client's, as it would send
        them now: after an exchange, as it sent them), ``mean`` (the class mean, what a
        prototype would be) or ``real`` (a real one, to the nearest other one).
    """
    fed, server, mine = final
    seen = features(final, "personal", "train")
    known = server.mixtures
    x, labels = mixtures.sample(known, number, generator(seed, "nearest real"))
    sent = gfpl.local_mixtures(fed.ctx, mine.state, fed.train)
    parts = []
    for label in labels.unique().tolist():
        here = seen.y == label
        real, owner = seen.out.high[here], seen.client[here]
        if len(real) < 2:
            continue
        owners = owner.unique()
        per_owner = -(-number // len(owners))
        uploads = [
            mixtures.sample(
                Mixtures(*(part[k, label : label + 1] for part in sent)),
                per_owner,
                generator(seed, "upload", label, k),
            )[0]
            for k in owners.tolist()
        ]
        drawn = {
            "sample": x[labels == label],
            "upload": torch.cat(uploads),
            "mean": real.mean(0, keepdim=True),
        }
        near = against_real(drawn, real, owner, owners.repeat_interleave(per_owner))
        parts.append(near.assign(label=label, dimensions=real.shape[1]))
    return pd.concat(parts, ignore_index=True)


def against_claim(
    apart: pd.DataFrame,
    least: float = 0.85,
    cosine: float = 0.15,
    same: float = 1e-4,
) -> pd.DataFrame:
    """Return quantiles of ``nearest_real`` and the share that Appendix B claims for.

    Parameters
    ----------
    apart : DataFrame
        As ``nearest_real`` returns it, with a column ``seed``.
    least, cosine : float
        The appendix claims that drawn features have a squared distance of at least
        ``least``, and a cosine below ``cosine``.
    same : float
        Squared distance below which a feature is called a copy of a real one.

    Returns
    -------
    DataFrame
        A row per kind. Over all seeds: seeds, number, least and most squared distance,
        claim_holds. Means over seeds: median squared distance, its sd (ddof 1), median
        cosine, far_percent and low_cosine_percent (the claimed shares), copy_percent,
        median percentile and its sd, own_percent, its sd, chance_percent.
    """
    rows = []
    for kind, part in apart.groupby("kind", sort=False):
        square = part["squared_distance"]
        far, low = square >= least, part["cosine"] < cosine
        shares = {"far_percent": 100.0 * far, "low_cosine_percent": 100.0 * low}
        shares["copy_percent"] = 100.0 * (square < same)
        seeds = part.assign(**shares).groupby("seed")
        medians = seeds[["squared_distance", "cosine", "percentile"]].median()
        means = seeds[[*shares, "own", "chance"]].mean()
        middle, average = medians.mean(), means.mean()
        rows.append(
            {
                "kind": kind,
                "dimensions": part["dimensions"].iloc[0],
                "seeds": len(medians),
                "number": len(part),
                "least": square.min(),
                "median": middle["squared_distance"],
                "median_sd": medians["squared_distance"].std(),
                "most": square.max(),
                "median_cosine": middle["cosine"],
                "far_percent": average["far_percent"],
                "low_cosine_percent": average["low_cosine_percent"],
                "copy_percent": average["copy_percent"],
                "percentile": middle["percentile"],
                "percentile_sd": medians["percentile"].std(),
                "own_percent": average["own"],
                "own_sd": means["own"].std(),
                "chance_percent": average["chance"],
                "claim_holds": "yes" if bool((far & low).all()) else "no",
            }
        )
    return pd.DataFrame(rows)
