"""Dirichlet schemes: each class is split over the clients by a random vector.

``capped_dirichlet`` and ``nid1`` follow the released programs of FedPA and FedHPro draw
by draw, since their fingerprints depend on it.
"""

import heapq
import random
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedlib.core.rng import seed_of
from fedlib.partitions.common import (
    Partition,
    SchemeSettings,
    among,
    by_class,
    classes_of,
    finished,
    redrawn,
    refuse_too_many,
    retries,
    split_by,
)


class CappedDirichlet(SchemeSettings):
    """FedGen's and FedPA's Dirichlet per class with a cap per client."""

    scheme: Literal["capped_dirichlet"] = "capped_dirichlet"
    alpha: float = Field(default=0.1, gt=0, allow_inf_nan=False)  # smaller: more skew
    ratio: float = Field(default=0.5, gt=0, le=1)  # of the training set
    min_size: int = Field(default=10, ge=1)  # 10 C for EMNIST and Fashion-MNIST
    without: tuple[int, ...] = ()  # classes given to nobody


def class_order(classes: list[int], seed: int) -> list[int]:
    """Return the order in which FedGen's program gives out classes."""
    order = list(classes)
    random.Random(seed).shuffle(order)
    return order


def capped_dirichlet(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    alpha: float,
    ratio: float,
    min_size: int,
    without: tuple[int, ...] = (),
) -> Partition:
    r"""Split each class over the clients by a Dirichlet draw, with a cap per client.

    With n training samples the cap is :math:`\rho n / N`. Per class: keep
    :math:`\min(\text{cap}, \lfloor \rho |A_c| \rfloor)` of its samples, draw
    :math:`p \sim \text{Dir}(\alpha 1_N)`, set p to 0 for clients that hold the cap
    already, and cut at :math:`\lfloor m \sum p \rfloor`. All is redrawn until the
    smallest client has ``min_size`` samples. A smaller ``alpha`` means more skew.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
        N and the seed of both generators (42 in the released program).
    alpha : float
        :math:`\alpha` of the Dirichlet.
    ratio : float
        :math:`\rho`: it bounds the cap and, below 1, each class. The cap bounds a
        class as well, so that MNIST at 0.5 keeps a quarter, not half.
    min_size : int
        Smallest number of samples of a client.
    without : tuple of int
        Classes given to nobody; they count in n. The released script for Fashion-MNIST
        loses class 0.

    Raises
    ------
    ValueError
        No draw of RETRIES gives every client ``min_size`` samples.

    Notes
    -----
    FedGen's and FedPA's released programs, with their order of draws from the same
    generators. The last client takes what rounding leaves, even when it is full.
    """
    # Generators of the released program, which its fingerprints depend on.
    legacy = np.random.RandomState(seed)
    pools = by_class(train_labels)
    order = class_order([c for c in range(len(pools)) if c not in without], seed)
    cap = ratio * len(train_labels) / clients

    def draw() -> list[np.ndarray]:
        held = [np.empty(0, dtype=np.int64)] * clients
        for pool in (pools[c].copy() for c in order):
            legacy.shuffle(pool)
            if ratio < 1:
                pool = pool[: int(min(cap, int(ratio * len(pool))))]
            room = np.array([len(part) < cap for part in held])
            shares = _shares(legacy, alpha, room)
            cut = split_by(pool, shares)
            held = [np.append(h, part) for h, part in zip(held, cut, strict=True)]
        return held

    asked = f"capped_dirichlet with alpha {alpha}, ratio {ratio} and {clients} clients"
    sizes = [len(pools[c]) for c in order]
    if ratio < 1:
        sizes = [int(min(cap, int(ratio * size))) for size in sizes]
    refuse_too_many(sum(sizes), clients, min_size, asked)
    train = redrawn(draw, min_size, asked, retries(clients, len(pools)))
    return finished(train, train_labels, test_labels)


def _shares(
    legacy: np.random.RandomState, alpha: float, room: np.ndarray
) -> np.ndarray:
    """Draw Dirichlet shares among those with room."""
    shares = legacy.dirichlet(np.repeat(alpha, len(room)))
    if not _drawn(shares):
        place = legacy.randint(len(room))
        shares = _limit(alpha, len(room), place)
    return among(shares, room)


def _drawn(shares: np.ndarray) -> bool:
    """Return whether a draw's numbers have neither under- nor overflowed."""
    return bool(np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6)


def _limit(alpha: float, clients: int, place: int) -> np.ndarray:
    """Return what a draw goes to where its numbers under- or overflow.

    All to one where alpha is tiny, the same to each where it is vast.
    """
    return np.eye(clients)[place] if alpha < 1 else np.full(clients, 1 / clients)


class LDA(SchemeSettings):
    """A Dirichlet per class, nothing capped."""

    scheme: Literal["lda"] = "lda"
    alpha: float = Field(default=0.1, gt=0, allow_inf_nan=False)  # smaller: more skew
    min_size: int = Field(default=1, ge=1)


def lda(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    alpha: float,
    min_size: int,
) -> Partition:
    r"""Split each class over the clients by a Dirichlet draw of its own.

    Per class: shuffle, draw :math:`p \sim \text{Dir}(\alpha 1_K)`, cut at
    :math:`\lfloor n_c \sum p \rfloor`; every sample is given to someone. All is redrawn
    until the smallest client has ``min_size`` samples. Where that does not come, the
    last draw is mended: the largest client gives to the smallest, sample by sample, and
    ``deviations`` says how many. A smaller ``alpha`` means more skew, in classes and in
    sizes.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
    alpha : float
        :math:`\alpha` of the Dirichlet.
    min_size : int
        Smallest number of samples of a client.

    Raises
    ------
    ValueError
        There are fewer samples than clients times ``min_size``.

    Notes
    -----
    FedPG, Section 5, with FederatedScope's splitter; Hsu et al., arXiv 1909.06335.
    """
    rng = np.random.default_rng(seed_of(seed, "lda"))
    pools = by_class(train_labels)

    def shares() -> np.ndarray:
        drawn = rng.dirichlet(np.repeat(alpha, clients))
        if _drawn(drawn):
            return drawn
        return _limit(alpha, clients, int(rng.integers(clients)))

    last: list[np.ndarray] = []

    def draw() -> list[np.ndarray]:
        nonlocal last
        cuts = [split_by(rng.permutation(pool), shares()) for pool in pools]
        last = [np.concatenate(mine) for mine in zip(*cuts, strict=True)]
        return last

    asked = f"lda with alpha {alpha} and {clients} clients"
    refuse_too_many(len(train_labels), clients, min_size, asked)
    tries = retries(clients, len(pools))
    deviations = []
    try:
        train = redrawn(draw, min_size, asked, tries)
    except ValueError:
        train, moved = mended(last, min_size)
        deviations.append(
            f"in {tries} draws a client had fewer than {min_size} samples; in the last "
            f"one {moved} samples went from the largest clients to the smallest"
        )
    return finished(train, train_labels, test_labels, deviations)


def mended(parts: list[np.ndarray], least: int) -> tuple[list[np.ndarray], int]:
    """Return parts of at least so many samples each, and how many have moved.

    The largest part gives its last sample, again and again; of two the first.
    """
    held = [part.tolist() for part in parts]
    heap = [(-len(part), k) for k, part in enumerate(held)]
    heapq.heapify(heap)
    moved = 0
    for part in held:
        while len(part) < least:
            size, k = heapq.heappop(heap)
            if -size != len(held[k]):  # it was given something since
                heapq.heappush(heap, (-len(held[k]), k))
                continue
            part.append(held[k].pop())
            heapq.heappush(heap, (size + 1, k))
            moved += 1
    return [np.array(part, dtype=np.int64) for part in held], moved


class NID1(SchemeSettings):
    """FedHPro's Dirichlet with clients of equal size."""

    scheme: Literal["nid1"] = "nid1"
    alpha: float = Field(default=0.5, gt=0, allow_inf_nan=False)  # smaller: more skew
    variant: Literal["equal_chunks", "plain"] = "equal_chunks"


def _groups(samples: int, clients: int, workers: int) -> list[tuple[int, int, int]]:
    """Return first sample, end and number of workers of each group of clients."""
    size = int(workers / clients * samples)
    starts = range(0, clients, workers)
    last = len(starts) - 1
    return [
        (
            g * size,
            samples if g == last else (g + 1) * size,
            min(workers, clients - start),
        )
        for g, start in enumerate(starts)
    ]


def _workers(
    pools: list[np.ndarray], legacy: np.random.RandomState, workers: int, alpha: float
) -> list[np.ndarray]:
    """Split the classes of a group over its auxiliary workers."""
    share = sum(len(pool) for pool in pools) / workers

    def draw() -> list[np.ndarray]:
        held = [np.empty(0, dtype=np.int64)] * workers
        for pool in pools:
            room = np.array([len(part) < share for part in held])
            shares = _shares(legacy, alpha, room)
            cut = split_by(pool, shares)
            held = [np.append(h, part) for h, part in zip(held, cut, strict=True)]
        return held

    return redrawn(draw, int(0.5 * share), f"nid1 with alpha {alpha}")


def nid1(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    alpha: float,
    variant: Literal["equal_chunks", "plain"],
) -> Partition:
    r"""Line the samples up by a capped Dirichlet draw, then cut K equal chunks.

    Samples are shuffled and split into groups of ten auxiliary workers. In a group of
    :math:`N_g` samples each class is split over the workers by
    :math:`p \sim \text{Dir}(\alpha 1)`, without those that hold :math:`N_g / 10`
    already; the group is redrawn until its smallest worker has half of that. The
    workers' samples in a row are cut into K contiguous chunks whose sizes differ by at
    most one: chunk borders are not the workers' borders, so a client is a splice of
    neighbours. A smaller ``alpha`` means more skew in classes; sizes stay equal.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
        Below ten clients a group has as many workers as clients (the released program
        refuses).
    alpha : float
        :math:`\alpha` of the Dirichlet.
    variant : {"equal_chunks", "plain"}
        The released program's scheme, or ``lda``, as papers usually mean it.

    Raises
    ------
    ValueError
        No draw of RETRIES gives every worker half of its share.

    Notes
    -----
    NID1 of FedHPro, released program, with its order of draws from its generator.
    """
    if variant == "plain":
        return lda(
            train_labels,
            test_labels,
            clients=clients,
            seed=seed,
            alpha=alpha,
            min_size=1,
        )
    # The generator of the released program, which its fingerprints depend on.
    legacy = np.random.RandomState(seed)
    y = train_labels.numpy()
    order = np.argsort(y, kind="stable")
    legacy.shuffle(order)
    line = []
    for first, end, workers in _groups(len(y), clients, 10):
        group = order[first:end]
        pools = [group[y[group] == c] for c in range(classes_of(train_labels))]
        line += _workers(pools, legacy, workers, alpha)
    chunks = np.array_split(np.concatenate(line), clients)
    return finished(chunks, train_labels, test_labels)
