"""Natural partition: a client holds everything that its users have."""

import random
from math import floor
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.core.shares import share_of
from fedlib.partitions.common import Partition, SchemeSettings, finished


class Users(SchemeSettings):
    """Whole users per client: writers, celebrities."""

    scheme: Literal["users"] = "users"
    users_per_client: int | None = Field(default=None, ge=1)  # None: all, evenly
    share: float = Field(default=1.0, gt=0, le=1)  # of the users, kept by chance


def _dealt(
    count: int, *, clients: int, seed: int, users_per_client: int | None, share: float
) -> list[list[int]]:
    """Return the users of each client: shuffled, the first ones kept, dealt in turn."""
    users = list(range(count))
    random.Random(seed).shuffle(users)
    users = users[: floor(share_of(count, share))]
    needed = clients * (users_per_client or 1)
    if len(users) < needed:
        raise ValueError(
            f"clients: got {clients} with {users_per_client or 'at least 1'} users "
            f"each, which need {needed} users; there are {count}, of which share "
            f"{share} keeps {len(users)}"
        )
    if users_per_client is not None:
        users = users[:needed]
    return [part.tolist() for part in np.array_split(np.array(users), clients)]


def users(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    groups: Tensor,
    test_groups: Tensor,
    users_per_client: int | None,
    share: float,
) -> Partition:
    """Give each client all samples of some users, drawn by chance.

    The data decide the skew: with fewer ``users_per_client`` clients differ more and
    hold less, while the union of many users looks like any other. A smaller ``share``
    leaves fewer users, and so less data.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
    groups, test_groups : Tensor
        int64 user of each sample, in 0..U-1.
    users_per_client : int, optional
        By default all users that are kept are dealt out, as evenly as possible.
    share : float
        Part of all users, rounded down, that is kept.

    Raises
    ------
    ValueError
        There are fewer users than the clients need, or a client's users have no
        training sample.

    Notes
    -----
    FedGen's and FedPA's released programs for CelebA (10 celebrities per client,
    Python's generator), and FedPG's FEMNIST (1 writer per client). They shuffle users
    in the order of LEAF's file, here it is that of their names. A client is tested on
    its users' test samples, so also on classes that it does not train on.
    """
    count = 1 + max(int(of.max()) for of in (groups, test_groups) if len(of))
    dealt = _dealt(
        count,
        clients=clients,
        seed=seed,
        users_per_client=users_per_client,
        share=share,
    )

    def held(of: Tensor) -> list[Tensor]:
        """Return the samples of each client, in their order."""
        return [
            torch.isin(of, torch.tensor(mine)).nonzero().flatten() for mine in dealt
        ]

    found = finished((i.numpy() for i in held(groups)), train_labels, test_labels)
    return found._replace(test=held(test_groups), deviations=())
