"""Schemes that give a client one or two classes, or most of one."""

from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedlib.core.rng import seed_of
from fedlib.partitions.common import (
    RETRIES,
    Partition,
    SchemeSettings,
    by_class,
    classes_of,
    finished,
)


class NID2(SchemeSettings):
    """Biased clients with few classes beside unbiased ones with all."""

    scheme: Literal["nid2"] = "nid2"
    n_biased: int = Field(default=5, ge=1)
    classes_per_biased: int | None = Field(default=None, ge=1)  # None: C / n_biased
    n_unbiased: int = Field(default=1, ge=0)


# FedDisco's released program, and what papers of the same group describe.
NID2_PRESETS = {
    "feddisco": NID2(),
    "one_class": NID2(n_biased=6, classes_per_biased=1),
}


def nid2(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    n_biased: int,
    classes_per_biased: int | None,
    n_unbiased: int,
) -> Partition:
    r"""Give biased clients a few classes each and unbiased ones some of every class.

    With :math:`u_c = \lfloor n_c / K \rfloor` an unbiased client gets :math:`u_c` of
    every class, and the biased owner of a class :math:`B u_c`, B being ``n_biased``
    (owners of the same class share it). Fewer ``classes_per_biased`` or fewer unbiased
    clients mean more skew.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients : int
        K, which must be ``n_biased + n_unbiased``.
    seed : int
        Of the choice of samples; who owns what is fixed.
    n_biased, n_unbiased : int
        The biased clients come first.
    classes_per_biased : int, optional
        Biased client i owns this many classes from i times as many on, starting over
        at the last class; by default the C classes are cut into ``n_biased`` blocks.

    Raises
    ------
    ValueError
        Another number of clients, or fewer classes than biased clients need.

    Notes
    -----
    FedHPro names NID2 and defines it nowhere; the presets (``NID2_PRESETS``) are
    FedDisco's NIID-2, which gives each biased client of CIFAR-10 two classes of 4,165
    samples, and "one_class". Samples that rounding leaves are given to nobody, and
    neither are those of a class without a biased owner beyond the unbiased clients'.
    """
    classes = classes_of(train_labels)
    if clients != n_biased + n_unbiased:
        raise ValueError(
            f"clients: got {clients}, expected n_biased + n_unbiased = "
            f"{n_biased} + {n_unbiased}"
        )
    if (classes_per_biased or n_biased) > classes:
        raise ValueError(
            f"n_biased, classes_per_biased: got {n_biased}, {classes_per_biased} for "
            f"{classes} classes, expected at most that many"
        )
    if classes_per_biased is None:
        owned = [b.tolist() for b in np.array_split(np.arange(classes), n_biased)]
    else:
        m = classes_per_biased
        owned = [[(i * m + j) % classes for j in range(m)] for i in range(n_biased)]
    rng = np.random.default_rng(seed_of(seed, "nid2"))
    train: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c, pool in enumerate(by_class(train_labels)):
        unit = len(pool) // clients
        pool = rng.permutation(pool)
        owners = [i for i, mine in enumerate(owned) if c in mine]
        for j, i in enumerate(range(n_biased, clients)):
            train[i].append(pool[j * unit :][:unit])
        share = n_biased * unit // max(1, len(owners))
        for j, i in enumerate(owners):
            train[i].append(pool[n_unbiased * unit + j * share :][:share])
    return finished(map(np.concatenate, train), train_labels, test_labels)


class TwoClass(SchemeSettings):
    """Two different classes per client, from equal parts of each class."""

    scheme: Literal["two_class"] = "two_class"


def two_class(
    train_labels: Tensor, test_labels: Tensor, *, clients: int, seed: int
) -> Partition:
    r"""Give every client two equal parts of two different classes.

    The classes are cut into 2K parts in all (with K = C: two halves of each class), as
    evenly as they go, and dealt out at random until nobody has two of one class. Where
    chance does not give that (many clients), the last deal is mended: a client with two
    of one class swaps one with a client that has none of it, drawn at random. There is
    no knob: the skew is that of two classes per client.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int

    Raises
    ------
    ValueError
        There is one class only, or a class has fewer samples than parts.

    Notes
    -----
    FedPG, Section 5. Where 2K is no multiple of C, some classes, drawn at random, have
    one part more; a class without part is given to nobody and listed.
    """
    rng = np.random.default_rng(seed_of(seed, "two_class"))
    pools = by_class(train_labels)
    if len(pools) < 2:
        raise ValueError("classes: got one, expected at least two for two_class")
    every, more = divmod(2 * clients, len(pools))
    parts = np.full(len(pools), every)
    parts[rng.permutation(len(pools))[:more]] += 1
    deal = np.repeat(np.arange(len(pools)), parts)
    for _ in range(RETRIES):
        deal = rng.permutation(deal)
        if (deal[0::2] != deal[1::2]).all():
            break
    else:
        _swap(deal, rng)
    shards = []
    for c, (pool, number) in enumerate(zip(pools, parts.tolist(), strict=True)):
        if len(pool) < number:
            raise ValueError(
                f"class {c} has {len(pool)} training samples, expected at least "
                f"{number}, one for each of its parts"
            )
        shards.append(np.array_split(rng.permutation(pool), max(1, number)))
    train = [
        np.concatenate([shards[c].pop() for c in deal[2 * i : 2 * i + 2]])
        for i in range(clients)
    ]
    lost = [f"class {c}: given to nobody" for c in np.flatnonzero(parts == 0)]
    return finished(train, train_labels, test_labels, lost)


def _swap(deal: np.ndarray, rng: np.random.Generator) -> None:
    """Give every client two different classes; ``deal`` ``[2 K]`` is changed.

    No class has more than K parts, so whoever has two of one class finds a client that
    has none of it, and neither has two alike after the swap.
    """
    pairs = deal.reshape(-1, 2)
    for pair in pairs:
        if pair[0] == pair[1]:
            others = np.flatnonzero((pairs != pair[0]).all(1))
            other = rng.choice(others)
            pair[1], pairs[other, 1] = pairs[other, 1], pair[1]


class Subset(SchemeSettings):
    """One main class per client, and a little of every other."""

    scheme: Literal["subset"] = "subset"
    dominant: float = Field(default=0.95, gt=0, le=1)  # larger: more skew


def subset(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    dominant: float,
) -> Partition:
    r"""Give most of class c to the clients whose main class it is, the rest to others.

    Client k's main class is k modulo C. The share ``dominant`` of a class is split
    evenly over its main clients, what is left evenly over all others. A larger
    ``dominant`` means more skew; with K = C it is the main class's share of a client.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
    dominant : float
        Share of a class that its main clients get.

    Raises
    ------
    ValueError
        A client is left without samples.

    Notes
    -----
    FedPG, Section 5, drawn as in the released program of VHL ("long-tail"). A class
    that is nobody's main class is split evenly over all clients.
    """
    rng = np.random.default_rng(seed_of(seed, "subset"))
    pools = by_class(train_labels)
    train: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for c, pool in enumerate(pools):
        main = list(range(c, clients, len(pools)))
        # Who gets one sample more where it does not come out even rotates with c.
        others = [k % clients for k in range(c, c + clients) if k % clients not in main]
        share = dominant if main and others else float(bool(main))
        cut = round(share * len(pool))
        pool = rng.permutation(pool)
        for owners, samples in ((main, pool[:cut]), (others, pool[cut:])):
            pieces = np.array_split(samples, max(1, len(owners)))
            for k, piece in zip(owners, pieces, strict=False):
                train[k].append(piece)
    return finished(map(np.concatenate, train), train_labels, test_labels)
