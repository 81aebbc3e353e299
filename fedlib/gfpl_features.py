"""GFPL's features: projections beside embeddings, and how near samples are to them."""

from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib import mixtures
from fedlib.features import Features, distances, features, plane
from fedlib.methods import gfpl
from fedlib.rng import generator
from fedlib.runs import Final


def projections(final: Final, found: Features) -> Tensor:
    """Return h ``[n, d_p]`` of embeddings, each by its own client's projection."""
    fed, server, mine = final
    state = fed.method.models(fed.ctx, server, mine).personal
    assert state is not None  # GFPL has a personal model
    names = [name for name in state if name.startswith(gfpl.PROJECTION)]
    rows = [
        gfpl.projection({name: state[name][k] for name in names}, z[None])
        for k, z in zip(found.client.tolist(), found.out.high, strict=True)
    ]
    return torch.cat(rows)


def spaces(final: Final, per_class: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return features and projections of test samples by space, and their classes."""
    found = features(final, "personal", "test", per_class)
    high = found.out.high
    both = {"features": high, "projections": projections(final, found)}
    return {name: z.numpy() for name, z in both.items()}, found.y.numpy()


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
    each = {name: spaces(final, per_class) for name, final in finals.items()}
    points, apart = [], []
    for space in ("features", "projections"):
        for name, (found, y) in each.items():
            z = found[space]
            panel = f"{name}: {space}"
            x = dict(zip("xy", plane(z, seed).T, strict=True))
            points.append(pd.DataFrame({"panel": panel, **x, "label": y}))
            unit = F.normalize(torch.from_numpy(z), dim=-1).numpy()
            apart.append({"panel": panel} | distances(unit, y))
    return pd.concat(points, ignore_index=True), pd.DataFrame(apart)


def _nearest(x: Tensor, real: Tensor, itself: bool = False) -> Tensor:
    """Return the distance of each row of x to the nearest row of real."""
    apart = torch.cdist(x, real)
    if itself:
        apart.fill_diagonal_(float("inf"))
    return apart.amin(1)


def nearest_real(final: Final, number: int, seed: int) -> pd.DataFrame:
    """Return how near features drawn from the global mixtures are to real ones.

    Real features are all training features of the class, each by its owner's model.
    Vectors are scaled to length 1, so that a squared distance is 2 - 2 cosine.

    Parameters
    ----------
    number : int
        Samples of each class that has a mixture.

    Returns
    -------
    DataFrame
        kind, label, squared_distance and cosine to the nearest real feature of the
        class; kind is ``sample`` (drawn), ``real`` (a real one, to the nearest other
        one) or ``mean`` (the class mean, what a prototype would be).
    """
    found = features(final, "personal", "train")
    known = final.server.mixtures
    x, labels = mixtures.sample(known, number, generator(seed, "nearest real"))
    parts = []
    for label in labels.unique().tolist():
        real = found.out.high[found.y == label].double()
        if len(real) < 2:
            continue
        mean = real.mean(0, keepdim=True)
        drawn = x[labels == label].double()
        real, mean, drawn = (F.normalize(v, dim=-1) for v in (real, mean, drawn))
        kinds = {
            "sample": _nearest(drawn, real),
            "real": _nearest(real, real, itself=True),
            "mean": _nearest(mean, real),
        }
        for kind, apart in kinds.items():
            square = apart.square().numpy()
            values: dict[str, Any] = {"squared_distance": square}
            values["cosine"] = 1 - square / 2
            parts.append(pd.DataFrame({"kind": kind, "label": label, **values}))
    return pd.concat(parts, ignore_index=True)


def against_claim(
    apart: pd.DataFrame, least: float = 0.85, cosine: float = 0.15
) -> pd.DataFrame:
    """Return quantiles of ``nearest_real`` and the share that Appendix B claims for.

    Shares in percent: squared distance of at least ``least``, cosine below ``cosine``;
    the appendix claims 100 for drawn features.
    """
    rows = []
    for kind, part in apart.groupby("kind", sort=False):
        square = part["squared_distance"]
        far, low = square >= least, part["cosine"] < cosine
        rows.append(
            {
                "kind": kind,
                "number": len(part),
                "least": square.min(),
                "median": square.median(),
                "most": square.max(),
                "median_cosine": part["cosine"].median(),
                "far_percent": 100 * far.mean(),
                "low_cosine_percent": 100 * low.mean(),
                "claim_holds": "yes" if bool((far & low).all()) else "no",
            }
        )
    return pd.DataFrame(rows)
