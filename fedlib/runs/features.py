"""Embeddings of finished runs, and their picture in the plane."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform
from sklearn.manifold import TSNE
from torch import Tensor

from fedlib.core.embed import forward, padded
from fedlib.core.net import Out
from fedlib.core.shards import Shards
from fedlib.runs.runner import Final


class Features(NamedTuple):
    """Outputs of a model on samples of all clients, in the clients' order."""

    out: Out  # [n, ...]
    y: Tensor  # int64 [n]
    client: Tensor  # int64 [n]


def first_of_class(shards: Shards, per_class: int) -> Shards:
    """Keep, over all clients together, the first samples of each class."""
    left = dict.fromkeys(shards.y.unique().tolist(), per_class)
    index = []
    for mine in shards.index:
        rows = []
        for i in mine.tolist():
            c = int(shards.y[i])
            if left[c] > 0:
                left[c] -= 1
                rows.append(i)
        index.append(torch.tensor(rows, dtype=torch.int64))
    return shards._replace(index=index)


def features(
    final: Final,
    which: str = "personal",
    split: Literal["train", "test"] = "test",
    per_class: int | None = None,
) -> Features:
    """Return embeddings and logits of the clients' samples after the last round.

    Parameters
    ----------
    which : "personal", "global" or "received"
        Each client's own model, the server's, or what clients receive next.
    split : "train" or "test"
        Which of the clients' shards, unaugmented.
    per_class : int, optional
        Samples of each class over all clients; by default all.

    Raises
    ------
    ValueError
        The method has no such model.
    """
    fed, server, mine = final
    models = fed.method.models(fed.ctx, server, mine)
    states = {
        "personal": models.personal,
        "global": models.shared,
        "received": models.received,
    }
    state = states.get(which)
    if state is None:
        known = [name for name, weights in states.items() if weights is not None]
        raise ValueError(f"which: got {which!r}, {fed.method.name} has {known}")
    shards = (fed.train if split == "train" else fed.test)._replace(augment=None)
    if per_class is not None:
        shards = first_of_class(shards, per_class)
    clients = torch.arange(len(shards.index))
    if which == "personal":
        clients, shards = torch.tensor(final.clients), shards.cohort(final.clients)
    out, real = forward(fed.ctx.net, state, shards, stacked=which != "global")
    owner = clients[:, None].expand_as(real)
    labels = shards.y[padded(shards.index)[0]]
    return Features(Out(*(part[real] for part in out)), labels[real], owner[real])


def plane(z: Any, seed: int = 0, perplexity: float = 30.0) -> np.ndarray:
    """Return a t-SNE of embeddings ``[n, d]`` as ``[n, 2]``; same input, same bits.

    Started from the first two principal components. ``perplexity`` is lowered to a
    third of what n samples allow. Embeddings that are all equal are all at the origin:
    t-SNE would end the process.

    Raises
    ------
    ValueError
        Fewer than four samples, or a number that is not finite.
    """
    z = np.asarray(z, dtype=np.float64)
    if z.ndim != 2 or len(z) < 4:
        raise ValueError(f"z: got shape {z.shape}, expected [n, d] with n >= 4")
    if not np.isfinite(z).all():
        raise ValueError("z: got numbers that are not finite")
    centred = z - z.mean(0)
    scale = np.abs(centred).max()
    if scale <= 1e-12 * np.abs(z).max():
        return np.zeros((len(z), 2), dtype=np.float32)
    if scale < 1e-6:  # squares of which vanish
        z = centred / scale
    fitted = TSNE(
        perplexity=min(perplexity, (len(z) - 1) / 3),
        init="pca" if z.shape[1] > 1 else "random",
        random_state=seed,
        n_jobs=1,
    )
    return fitted.fit_transform(z)


def distances(z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return mean distances within classes, between classes, and their ratio.

    Over all pairs of different samples of one class, and of two classes.

    Parameters
    ----------
    z : [n, d]
    y : int [n]
    """
    apart = squareform(pdist(np.asarray(z, dtype=np.float64)))
    same = y[:, None] == y[None, :]
    off = ~np.eye(len(y), dtype=bool)
    intra, inter = apart[same & off].mean(), apart[~same].mean()
    return {"intra": float(intra), "inter": float(inter), "ratio": float(inter / intra)}
