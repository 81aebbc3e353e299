"""Whose images are attacked (FedPG, Fig. 8), what is uploaded, what the attacker has.

Victims are images of one client; an average of n features of one of its classes is what
the client uploads as a prototype.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.core.rng import generator
from fedlib.core.shards import Shards


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
