"""Domain skew: every client holds samples of one domain."""

from math import floor
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.core.rng import seed_of
from fedlib.core.shares import share_of
from fedlib.partitions.common import (
    RETRIES,
    Partition,
    SchemeSettings,
    classes_of,
    finished,
    owned_tests,
)


class DomainSkew(SchemeSettings):
    """One domain per client."""

    scheme: Literal["domain_skew"] = "domain_skew"
    mode: Literal["fixed", "random"] = "fixed"
    per_domain: tuple[Annotated[int, Field(ge=0)], ...] = (3, 2, 2, 3)  # fixed: clients
    share: float = Field(default=0.2, gt=0, le=1)  # of its domain that a client gets
    every_class: bool = True  # each client sees every class of its domain
    each_domain: bool = True  # random: nobody's domain is left out
    most: int = Field(default=10, ge=1)  # random: clients of one domain


# Office-Caltech: Caltech, Amazon, Webcam, DSLR; digits: MNIST, USPS, SVHN, SYN.
DOMAIN_PRESETS = {
    "office": DomainSkew(),
    "office_random": DomainSkew(mode="random"),
    "digits_f2dc": DomainSkew(per_domain=(3, 6, 6, 5), share=0.01, every_class=False),
    "digits_fpl": DomainSkew(per_domain=(6, 4, 3, 7), share=0.01, every_class=False),
    "digits_random": DomainSkew(
        mode="random", share=0.01, every_class=False, each_domain=False
    ),
}


def _domain_of(
    clients: int,
    count: int,
    rng: np.random.Generator,
    *,
    mode: Literal["fixed", "random"],
    per_domain: tuple[int, ...],
    each_domain: bool,
    most: int,
) -> list[int]:
    """Return the domain of each client, in order."""
    if mode == "fixed":
        if len(per_domain) != count or sum(per_domain) != clients:
            raise ValueError(
                f"per_domain: got {per_domain} for {count} domains and {clients} "
                f"clients, expected {count} numbers with the sum {clients}"
            )
        return np.repeat(np.arange(count), per_domain).tolist()
    sure = np.arange(count if each_domain else 0)
    if clients < len(sure) or clients > most * count:
        raise ValueError(
            f"clients: got {clients} for {count} domains with each_domain "
            f"{each_domain} and at most {most} clients of a domain"
        )
    for _ in range(RETRIES):
        free = rng.integers(count, size=clients - len(sure))
        drawn = np.sort(np.concatenate([sure, free]))
        if np.bincount(drawn).max() <= most:
            return drawn.tolist()
    raise ValueError(
        f"most: got {most} clients of a domain; no draw of {RETRIES} kept to it"
    )


def _with_every_class(
    shards: list[np.ndarray], spare: np.ndarray, y: np.ndarray, classes: list[int]
) -> dict[int, list[int]]:
    """Swap samples, in place, until each shard has every class.

    A missing class comes from the spare samples, in exchange for a sample of the class
    that the shard has most of.

    Returns
    -------
    missing : position of a shard -> classes that could not be had.
    """
    missing: dict[int, list[int]] = {}
    for i, shard in enumerate(shards):
        for c in classes:
            if (y[shard] == c).any():
                continue
            counts = np.bincount(y[shard])
            found = np.flatnonzero(y[spare] == c)
            if len(found) == 0 or counts.max() < 2:
                missing.setdefault(i, []).append(c)
                continue
            place = np.flatnonzero(y[shard] == counts.argmax())[0]
            shard[place], spare[found[0]] = spare[found[0]], shard[place]
    return missing


def domain_skew(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    seed: int,
    groups: Tensor,
    test_groups: Tensor,
    mode: Literal["fixed", "random"],
    per_domain: tuple[int, ...],
    share: float,
    every_class: bool,
    each_domain: bool,
    most: int,
) -> Partition:
    r"""Give each client a random share of one domain, disjoint from all others.

    Who has which domain decides the skew: the less evenly the clients spread over the
    domains, the more the average follows one of them. A smaller ``share`` leaves each
    client less data.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, seed : int
    groups, test_groups : Tensor
        int64 domain of each sample, in 0..D-1.
    mode : {"fixed", "random"}
        Clients in the order of ``per_domain``, or a domain drawn for each client (one
        of each first, where ``each_domain``), redrawn while one has more than ``most``.
    per_domain : tuple of int
        Number of clients of each domain.
    share : float
        Part of the domain's training samples, rounded down, that a client gets.
    every_class : bool
        Swap samples with the domain's spare ones until a client has every class.
    each_domain : bool
    most : int

    Raises
    ------
    ValueError
        The settings do not fit the number of domains, or a client's share of its domain
        is no sample.

    Notes
    -----
    F2DC's and FPL's released programs, whose protocol FedHPro presumably follows: its
    slides and its code do not say (``DOMAIN_PRESETS``). Where a domain is too small for
    its clients their share is lowered to what makes them disjoint, and listed. Clients
    are tested by ``owned_tests`` inside their domain, which is cut by its own number of
    clients.
    """
    y, of, count = train_labels.numpy(), groups.numpy(), classes_of(groups)
    rng = np.random.default_rng(seed_of(seed, "domain_skew"))
    drawn = _domain_of(
        clients,
        count,
        rng,
        mode=mode,
        per_domain=per_domain,
        each_domain=each_domain,
        most=most,
    )
    deviations: list[str] = []
    train: list[np.ndarray] = []
    for d in sorted(set(drawn)):
        pool = rng.permutation(np.flatnonzero(of == d))
        wanted = floor(share_of(len(pool), share))
        room = len(pool) // drawn.count(d)
        size = min(wanted, room)
        if room < wanted:
            deviations.append(
                f"domain {d}: {wanted} samples per client lowered to {room}"
            )
        end = size * drawn.count(d)
        shards = list(pool[:end].reshape(drawn.count(d), size))
        if every_class and size:  # without a sample a client is refused below
            present = np.unique(y[pool]).tolist()
            lost = _with_every_class(shards, pool[end:], y, present)
            deviations += [
                f"client {len(train) + i}: no sample of classes {c}"
                for i, c in lost.items()
            ]
        train += shards
    found = finished(train, train_labels, test_labels, deviations)
    test: list[Tensor] = []
    for d in sorted(set(drawn)):
        here = torch.nonzero(test_groups == d).flatten()
        mine = torch.tensor(drawn) == d
        shards, cut = owned_tests(found.owns[mine], test_labels[here])
        test += [here[index] for index in shards]
        deviations += [f"domain {d}, {text}" for text in cut]
    return found._replace(test=test, deviations=tuple(deviations))
