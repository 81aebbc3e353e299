"""Partitions: which samples each client trains and is tested on.

A scheme is frozen settings beside the plain function that draws it, whose arguments are
the settings' fields; schemes of one kind share a file. ``draw`` takes any of them.
Where a paper's released program has fingerprints (``nway_kshot``, ``capped_dirichlet``,
``nid1``) the draws follow it with the generators that it uses. All other schemes have
generators of their own, named by seed and scheme.

No sample is given twice, except where ``nway_kshot`` is asked to (``overlap``). Unless
a scheme says otherwise, a client is tested on ``owned_tests``.
"""

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.core.rng import seed_of
from fedlib.partitions.common import Partition, SchemeSettings, by_class
from fedlib.partitions.dirichlet import (
    LDA,
    NID1,
    CappedDirichlet,
    capped_dirichlet,
    lda,
    nid1,
)
from fedlib.partitions.domains import DomainSkew, domain_skew
from fedlib.partitions.few_classes import (
    NID2,
    Subset,
    TwoClass,
    nid2,
    subset,
    two_class,
)
from fedlib.partitions.nway import NwayKshot, nway_kshot
from fedlib.partitions.users import Users, users


def long_tail(labels: Tensor, imbalance: float, seed: int) -> Tensor:
    r"""Return the indices of a long-tailed subset: class 0 is the head.

    .. math:: n_c = \lfloor n_{max} \rho^{-c / (C - 1)} \rfloor

    A larger ``imbalance`` :math:`\rho` leaves less of the tail; 1 keeps every sample.

    Parameters
    ----------
    labels : Tensor
        int64 labels in 0..C-1.
    imbalance : float
        :math:`\rho`, how many times larger the head is than the tail.
    seed : int
        Of the choice of samples.

    Returns
    -------
    Tensor
        Sorted int64 indices. No class is emptied, and none grows.

    Raises
    ------
    ValueError
        An imbalance below 1.

    Notes
    -----
    CIFAR-10-LT as in FedHPro's released program; :math:`n_{max}` is the largest class.
    """
    if not imbalance >= 1:
        raise ValueError(f"imbalance: got {imbalance}, expected at least 1")
    draw = np.random.default_rng(seed_of(seed, "long_tail"))
    pools = by_class(labels)
    largest = max(len(pool) for pool in pools)
    kept = []
    for c, pool in enumerate(pools):
        share = (1 / imbalance) ** (c / max(1, len(pools) - 1))
        size = max(1, int(largest * share))
        kept.append(draw.permutation(pool)[:size])
    return torch.from_numpy(np.sort(np.concatenate(kept)))


Scheme = Annotated[
    NwayKshot
    | CappedDirichlet
    | LDA
    | NID1
    | NID2
    | TwoClass
    | Subset
    | DomainSkew
    | Users,
    Field(discriminator="scheme"),
]

SCHEMES: dict[str, type[SchemeSettings]] = {
    "nway_kshot": NwayKshot,
    "capped_dirichlet": CappedDirichlet,
    "lda": LDA,
    "nid1": NID1,
    "nid2": NID2,
    "two_class": TwoClass,
    "subset": Subset,
    "domain_skew": DomainSkew,
    "users": Users,
}
DRAWS: dict[str, Callable[..., Partition]] = {
    "nway_kshot": nway_kshot,
    "capped_dirichlet": capped_dirichlet,
    "lda": lda,
    "nid1": nid1,
    "nid2": nid2,
    "two_class": two_class,
    "subset": subset,
    "domain_skew": domain_skew,
    "users": users,
}


def draw(
    scheme: Scheme,
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    imbalance: float = 1.0,
    groups: Tensor | None = None,
    test_groups: Tensor | None = None,
) -> Partition:
    """Draw the partition of a scheme, from a long-tailed training set if asked.

    Parameters
    ----------
    scheme : Scheme
        Settings of one scheme.
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
    imbalance : float
        How many times larger the first class is than the last (``long_tail``); 1 keeps
        every training sample. Test samples are never taken away.
    groups, test_groups : Tensor, optional
        int64 domain or user of each sample, for ``domain_skew`` and ``users`` alone.

    Returns
    -------
    Partition
        Indices into the full training and test sets.

    Raises
    ------
    ValueError
        The scheme cannot be drawn from these samples; the message names the setting.
    """
    kept = long_tail(train_labels, imbalance, seed)
    settings: dict[str, Any] = scheme.model_dump(exclude={"scheme"})
    if isinstance(scheme, DomainSkew | Users):
        if groups is None or test_groups is None:
            raise ValueError(
                f"partition: {scheme.scheme} needs the domain or user of each sample "
                "(groups, test_groups), which this data set does not have"
            )
        settings |= {"groups": groups[kept], "test_groups": test_groups}
    found = DRAWS[scheme.scheme](
        train_labels[kept], test_labels, clients=clients, seed=seed, **settings
    )
    return found._replace(train=[kept[index] for index in found.train])
