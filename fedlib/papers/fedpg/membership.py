"""Who contributed to an average of features: an attacker's guess, and chance.

As Homer et al. (PLoS Genetics, 2008) told whose genomes an average was made of.
"""

from collections.abc import Sequence

import pandas as pd
import torch
from scipy.stats import hypergeom
from torch import Tensor

from fedlib.attacks.image_metrics import auc, ranks
from fedlib.papers.fedpg.victims import averages

NEAREST = (1, 10)  # how many candidates an attacker looks at


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
