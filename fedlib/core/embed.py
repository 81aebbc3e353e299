"""Embeddings of a cohort's samples in eval mode, and the prototypes made of them."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from fedlib.core.local import Shards, Trained
from fedlib.core.nets import Net, Out, State
from fedlib.core.protos import Protos, class_sums, fill, from_sums

Collection = Literal["train", "eval"]


def padded(index: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return indices ``[K, n]``, filled up with 0, and the mask of the real ones."""
    longest = max(1, *(len(i) for i in index))
    padded = torch.zeros(len(index), longest, dtype=torch.int64)
    real = torch.zeros(len(index), longest, dtype=torch.bool)
    for row, mine in enumerate(index):
        padded[row, : len(mine)] = mine
        real[row, : len(mine)] = True
    return padded, real


@torch.no_grad()
def forward(
    net: Net, state: State, shards: Shards, *, stacked: bool
) -> tuple[Out, Tensor]:
    """Return the outputs ``[K, n, ...]`` of every client's samples, and their mask.

    Parameters
    ----------
    stacked : bool
        Whether ``state`` has a client axis, or is one model for all.
    """
    index, real = padded(shards.index)
    pieces = []
    for columns in index.split(64, dim=1):
        x = shards.inputs(columns)
        if stacked:
            pieces.append(vmap(net)(state, x))
        else:
            flat = net(state, x.flatten(0, 1))
            pieces.append(Out(*(part.unflatten(0, columns.shape) for part in flat)))
    return Out(*(torch.cat(parts, 1) for parts in zip(*pieces, strict=True))), real


def class_means(
    net: Net,
    state: State,
    shards: Shards,
    level: str | Callable[[Out], Tensor],
    *,
    stacked: bool = True,
) -> Protos:
    """Return class means ``[K, C, d]`` in eval mode, unaugmented.

    Parameters
    ----------
    level : str or callable
        Which embedding, or a function of the outputs ``[K, n, ...]``.
    """
    out, real = forward(net, state, shards._replace(augment=None), stacked=stacked)
    labels = torch.where(real, shards.y[padded(shards.index)[0]], -1)
    z = getattr(out, level) if isinstance(level, str) else level(out)
    return from_sums(*class_sums(z, labels, net.classes))


def owned(shards: Shards, classes: int) -> Tensor:
    """Return the mask ``[K, C]`` of the classes in each client's data."""
    return shards.label_counts(classes) > 0


def collect(
    net: Net,
    trained: Trained,
    shards: Shards,
    level: str,
    how: Collection,
    *,
    of: Callable[[Out], Tensor] | None = None,
) -> Protos:
    """Return the local prototypes ``[K, C, d]`` that a cohort uploads.

    Parameters
    ----------
    level : str
        Which embedding; the method's loss must have returned it for "train".
    of : callable, optional
        The embedding as a function of the outputs, where it is neither "low" nor
        "high".
    how : "train" or "eval"
        From the last local epoch, in train mode and before each step's update, with
        classes that a dropped batch removed computed afterwards; or all of them
        computed after training, in eval mode.
    """
    source = level if of is None else of
    if how == "eval":
        return class_means(net, trained.state, shards, source)
    seen = trained.protos[level]
    if bool((seen.known | ~owned(shards, net.classes)).all()):
        return seen
    return fill(seen, class_means(net, trained.state, shards, source))
