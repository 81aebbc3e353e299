"""What FedPA's generator makes after a number of rounds, and how far apart it is."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.spatial.distance import cdist, pdist
from torch import Tensor

from fedlib.blocks import generators
from fedlib.core.rng import generator as named_generator
from fedlib.methods import fedpa
from fedlib.papers.study import Grid
from fedlib.runs.features import plane
from fedlib.runs.federation import federation
from fedlib.runs.spec import Spec


class Generated(NamedTuple):
    """Embeddings of all classes, from the same noise after each number of rounds."""

    noise: Tensor  # [C * n, ...]
    y: Tensor  # int64 [C * n], sorted
    h: dict[int, Tensor]  # rounds -> [C * n, d]


def generated(spec: Spec, rounds: Sequence[int], per_class: int) -> Generated:
    """Step a federation of FedPA and let its generator make embeddings on the way.

    Parameters
    ----------
    rounds : list of int
        After how many rounds; 0 is before the first, untrained.
    per_class : int
        Samples of each class, made as clients make them: in eval mode.
    """
    fed = federation(spec)
    network, hp = fedpa.generator_of(fed.ctx), fedpa.HP(**spec.hp)
    y = torch.arange(fed.ctx.classes).repeat_interleave(per_class)
    pick = named_generator(spec.seed, "generated")
    noise = generators.draw_noise(hp.noise, len(y), hp.noise_size, pick)
    server, stepping, by_round = fed.method.init(fed.ctx)[0], fed.rounds(), {}
    for number in range(max(rounds) + 1):
        if number:
            server = next(stepping).server
        if number in rounds:
            with torch.no_grad():
                by_round[number] = network(server.generator, noise, y)
    return Generated(noise, y, by_round)


def spread(points: Any, y: Any) -> dict[str, float]:
    """Return the distances of Table V: within classes, and between their centroids.

    ``intra`` is the mean distance of a class's points to their centroid, averaged over
    classes; ``inter`` the mean of all entries of the centroids' distance matrix, zeros
    on its diagonal included, as in the released code; ``ratio`` is inter over intra.
    """
    points, y = np.asarray(points, dtype=np.float64), np.asarray(y)
    parts = [points[y == c] for c in np.unique(y)]
    centroids = np.stack([part.mean(0) for part in parts])
    lengths = [
        np.linalg.norm(part - c, axis=1).mean()
        for part, c in zip(parts, centroids, strict=True)
    ]
    intra, inter = float(np.mean(lengths)), float(cdist(centroids, centroids).mean())
    return {"intra": intra, "inter": inter, "ratio": inter / intra}


def follows_noise(noise: Any, h: Any, y: Any) -> float:
    """Return how far distances of embeddings follow those of their noise.

    Pearson's correlation over the pairs of a class, averaged over classes: 1 if the
    generator keeps the noise's geometry, near 0 if the noise does not matter.
    """
    noise, h, y = np.asarray(noise), np.asarray(h), np.asarray(y)
    shares = [
        np.corrcoef(pdist(noise[y == c]), pdist(h[y == c]))[0, 1] for c in np.unique(y)
    ]
    return float(np.mean(shares))


def survey(
    grid: Grid, rounds: Sequence[int], per_class: int, seed: int = 100
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return what the generators of a grid's runs make: points, and distances.

    Parameters
    ----------
    rounds, per_class
        As for ``generated``.
    seed : int
        Of t-SNE.

    Returns
    -------
    points : DataFrame
        The grid's cell, round, label, and x, y in the plane of t-SNE.
    distances : DataFrame
        The grid's cell, round, space (``plane`` or ``embedding``), intra, inter, ratio,
        ``noise_r`` (``follows_noise``, which is of the embedding).
    """
    points, rows = [], []
    for cell, spec in zip(grid.cells.to_dict("records"), grid.specs, strict=True):
        made = generated(spec, rounds, per_class)
        for number, h in made.h.items():
            head = cell | {"round": number}
            flat = plane(h, seed)
            drawn = {"label": made.y, "x": flat[:, 0], "y": flat[:, 1]}
            points.append(pd.DataFrame(head | drawn))
            own = {"noise_r": follows_noise(made.noise, h, made.y)}
            rows.append(head | {"space": "plane"} | spread(flat, made.y))
            rows.append(head | {"space": "embedding"} | spread(h, made.y) | own)
    return pd.concat(points, ignore_index=True), pd.DataFrame(rows)
