"""What an attacker sees of a client of FedMPS, and the truth that it does not.

The attacker is the server, or whoever reads what a client uploads: it knows the class
means of both levels with their labels, can query the client's model (Fig. 11 calls this
an opaque box), and has images of its own of the same kind. It receives and sends no
gradient.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from fedlib.attacks.pixels import to_inputs, to_pixels
from fedlib.core.net import Net, State
from fedlib.core.rng import generator
from fedlib.runs.runner import Final


class Images(NamedTuple):
    """Images with values in [-1, 1], and their classes."""

    x: Tensor  # [n, c, h, w]
    y: Tensor  # int64 [n]


class Victim(NamedTuple):
    """One client: what the attacker sees, and the truth that it does not."""

    net: Net
    state: State  # of the client's model, queried and never read
    mean: tuple[float, ...]  # of the normalisation, per channel
    std: tuple[float, ...]
    uploads: dict[str, Tensor]  # level -> [R, n_i, d]: prototypes of R rounds
    classes: list[int]  # whose prototypes these are
    public: Images  # the attacker's own: of no client
    private: Images  # the client's training images


def watch(
    ended: Final, client: int, *, rounds: int = 1, public: int = 10_000, seed: int = 0
) -> Victim:
    """Watch a client for some rounds that follow the last one of a run.

    The model under attack is the client's after these rounds, in eval mode.

    Parameters
    ----------
    ended : Final
        Of a run of FedMPS.
    client : int
        Counted from 0.
    rounds : int >= 1
        Whose uploads are kept, the last one's included.
    public : int >= 1
        How many images of the training split that no client holds the attacker has; all
        of them where there are fewer. Drawn from the seed.

    Raises
    ------
    ValueError
        The client does not exist, or a number below 1.
    """
    fed, server, mine = ended
    if not 0 <= client < fed.ctx.clients:
        raise ValueError(f"client: got {client}, expected 0 to {fed.ctx.clients - 1}")
    for name, number in (("rounds", rounds), ("public", public)):
        if number < 1:
            raise ValueError(f"{name}: got {number}, expected at least 1")
    watched = list(islice(fed.rounds((fed.ctx.round, server, mine)), rounds))
    personal = fed.method.models(fed.ctx, server, watched[-1].mine).personal
    classes = fed.partition.owns[client].nonzero().flatten()
    rows = [after.cohort.index(client) for after in watched]
    uploads = {
        level: torch.stack(
            [
                getattr(after.up, level).mean[row][classes]
                for after, row in zip(watched, rows, strict=True)
            ]
        )
        for level in ("low", "high")
    }
    mean, std = fed.train.mean, fed.train.std
    index = fed.train.index[client]
    private = to_pixels(fed.train.inputs(index), mean, std)
    free = torch.ones(len(fed.dataset.train_y), dtype=torch.bool)
    free[torch.cat(fed.partition.train)] = False
    spare = free.nonzero().flatten()
    order = torch.randperm(len(spare), generator=generator(seed, "public images"))
    spare = spare[order[:public]].sort().values
    return Victim(
        fed.ctx.net,
        {name: value[client] for name, value in personal.items()},
        mean,
        std,
        uploads,
        classes.tolist(),
        Images(fed.dataset.train_x[spare] / 127.5 - 1, fed.dataset.train_y[spare]),
        Images(private, fed.train.y[index]),
    )


def counted(seen: Victim, names: Sequence[str]) -> pd.DataFrame:
    """Return per class of the client: its images, and those of the attacker."""
    counts = [images.y.bincount().tolist() for images in (seen.private, seen.public)]
    columns = {
        "class": [names[c] for c in seen.classes],
        "private images": [counts[0][c] for c in seen.classes],
        "attacker's images": [counts[1][c] for c in seen.classes],
    }
    return pd.DataFrame(columns)


@torch.no_grad()
def query(seen: Victim, x: Tensor) -> dict[str, Tensor]:
    """Return the client's embeddings ``[n, d]`` of images in [-1, 1], by level."""
    x = to_inputs(x, seen.mean, seen.std)
    parts = [seen.net(seen.state, part) for part in x.split(256)]
    return {
        level: torch.cat([getattr(part, level) for part in parts])
        for level in ("low", "high")
    }


def side_by_side(by_level: Mapping[str, Tensor], levels: Sequence[str]) -> Tensor:
    """Return the levels of n codes as ``[n, d]``."""
    return torch.cat([by_level[level] for level in levels], -1).flatten(0, -2)


def class_means(images: Images, classes: Sequence[int]) -> Tensor:
    """Return the mean image of each class, ``[C, c, h, w]``."""
    return torch.stack([images.x[images.y == c].mean(0) for c in classes])
