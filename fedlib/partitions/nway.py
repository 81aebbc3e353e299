"""n-way k-shot: consecutive samples of a few classes, as the FedProto program draws it.

Seed 1234 gives the clients that FedMPS's Table V and Fig. 7 require.
"""

import random
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.partitions.common import (
    Partition,
    SchemeSettings,
    by_class,
    classes_of,
    owns_of,
)

Shot = Literal["cifar10", "mnist", "cifar100"]
Overlap = Literal["none", "wrap", "offset"]


class NwayKshot(SchemeSettings):
    """About ``ways`` classes per client with about ``shots`` samples of each."""

    scheme: Literal["nway_kshot"] = "nway_kshot"
    ways: int = Field(default=3, ge=2)  # n
    shots: int = Field(default=100, ge=1)  # k
    test_shots: int = Field(default=15, ge=1)  # t
    spread: int = Field(default=1, ge=1)  # std of n, and of k without the next
    block: int = Field(default=110, ge=1)  # |A_ij|
    shot_spread: int | None = Field(default=None, ge=1)  # std of k (GFPL)
    shot_rule: Shot = "cifar10"  # FedProto's branch for k
    overlap: Overlap = "none"  # in place of blocks (CIFAR-100)


def draw_ways_and_shots(
    *,
    clients: int,
    classes: int,
    ways: int,
    shots: int,
    spread: int,
    seed: int,
    shot_spread: int | None = None,
    shot_rule: Shot = "cifar10",
) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    r"""Draw the number of classes n, samples per class k and the classes per client.

    .. math:: n_i \in [\max(2, n - std), \min(C, n + std + 1) - 1], \quad
        k_i \in [k - std + 1, k + std]

    uniformly, with numpy's and Python's own generators as the FedProto program
    (``lib/options.py``, ``lib/sampling.py``) seeds and calls them. ``shot_rule`` names
    its branch for k: ``"mnist"`` ends at k + std - 2, ``"cifar100"`` is k exactly.

    Returns
    -------
    n : ndarray ``[K]``; k : ndarray ``[K]``; classes : K sorted lists.

    Raises
    ------
    ValueError
        No number of classes, or no number of samples, is left to draw from.
    """
    low, high = max(2, ways - spread), min(classes, ways + spread + 1)
    if low >= high:
        raise ValueError(
            f"ways: got {ways} with spread {spread}; no number of classes lies in "
            f"[{low}, {high - 1}] for {classes} classes"
        )
    name = "spread" if shot_spread is None else "shot_spread"
    std = spread if shot_spread is None else shot_spread
    first, end = {
        "cifar10": (shots - std + 1, shots + std + 1),
        "mnist": (shots - std + 1, shots + std - 1),
        "cifar100": (shots, shots + 1),
    }[shot_rule]
    if first < 1:
        raise ValueError(
            f"{name}: got {std} with shots {shots}, which lets a client draw "
            f"{first} samples; expected {name} <= shots"
        )
    if first >= end:
        raise ValueError(
            f"{name}: got {std} with shot_rule {shot_rule!r}; no number of samples "
            f"lies in [{first}, {end - 1}]"
        )
    # These two are the generators of the released program; the legacy numpy stream is
    # what its fingerprints depend on.
    legacy = np.random.RandomState(seed)
    python = random.Random(seed)
    n = legacy.randint(low, high, size=clients)
    k = legacy.randint(first, end, size=clients)
    owned = [sorted(python.sample(range(classes), int(ni))) for ni in n]
    return n, k, owned


def _blocks(
    pools: list[np.ndarray], owned: list[list[int]], k: np.ndarray, block: int
) -> tuple[list[list[np.ndarray]], list[str]]:
    """Give client i the first k of the i-th block of each class, never the next class.

    Returns
    -------
    train : per client, its samples of each class; deviations.
    """
    blocks, deviations = [], []
    for c, pool in enumerate(pools):
        room = len(pool) // len(owned)
        blocks.append(min(block, room))
        if room < block:
            deviations.append(f"class {c}: block {block} lowered to {room}")
    train = []
    for i, mine in enumerate(owned):
        parts = []
        for c in mine:
            taken = min(int(k[i]), blocks[c])
            if taken < k[i]:
                deviations.append(
                    f"client {i}, class {c}: {k[i]} samples cut to {taken}"
                )
            parts.append(pools[c][i * blocks[c] :][:taken])
        train.append(parts)
    return train, deviations


def _windows(
    pools: list[np.ndarray], owned: list[list[int]], k: np.ndarray, overlap: Overlap
) -> tuple[list[list[np.ndarray]], list[str]]:
    """Give each owner of a class k consecutive samples, overlapping where few are left.

    ``"wrap"``: the owners take turns, and start again where a class ends; ``"offset"``:
    client i starts at 5 i.

    Returns
    -------
    train : per client, its samples of each class; deviations.
    """
    deviations: list[str] = []
    used = [0] * len(pools)
    train = []
    for i, mine in enumerate(owned):
        parts = []
        for c in mine:
            size = min(int(k[i]), len(pools[c]))
            if size < k[i]:
                deviations.append(
                    f"client {i}, class {c}: {k[i]} samples cut to {size}"
                )
            start = min(5 * i, len(pools[c]) - size)
            if overlap == "wrap":
                again = used[c] + size > len(pools[c])
                if again:
                    deviations.append(f"client {i}, class {c}: shares its samples")
                start = 0 if again else used[c]
                used[c] = start + size
            parts.append(pools[c][start : start + size])
        train.append(parts)
    return train, deviations


def nway_kshot(
    train_labels: Tensor,
    test_labels: Tensor,
    *,
    clients: int,
    ways: int,
    shots: int,
    test_shots: int,
    spread: int,
    block: int,
    seed: int,
    shot_spread: int | None = None,
    shot_rule: Shot = "cifar10",
    overlap: Overlap = "none",
) -> Partition:
    r"""Give client i about n classes with about k consecutive samples of each.

    Client i takes the first :math:`k_i` of the i-th block of ``block`` samples of each
    of its classes, and test samples :math:`[i t, (i+1) t)`. Larger ``ways`` or smaller
    ``spread`` make the clients more alike.

    Parameters
    ----------
    train_labels, test_labels : Tensor
        int64 labels in 0..C-1.
    clients, ways, shots, test_shots, spread, block : int
        N, n, k, t, std and :math:`|A_{ij}|` of FedMPS's Table II.
    seed : int
        Of the draw of n, k and classes.
    shot_spread : int, optional
        std of k where it differs from that of n (GFPL's :math:`\hat s`).
    shot_rule : {"cifar10", "mnist", "cifar100"}
        FedProto's branch for k (``draw_ways_and_shots``).
    overlap : {"none", "wrap", "offset"}
        For classes with fewer than N blocks (CIFAR-100), in place of blocks: owners
        take turns and start again where the class ends, or client i starts at 5 i, as
        in FedProto's own branch.

    Raises
    ------
    ValueError
        A setting leaves no sample for a client, or a class has fewer samples than
        clients.

    Notes
    -----
    No client reaches into the next class: block and shots are lowered to
    :math:`\lfloor |A_j| / N \rfloor` where a class is too small, and the change is
    listed in ``deviations``. FedMPS, Section IV-A4; FedProto, ``lib/sampling.py``.
    """
    classes = classes_of(train_labels)
    _, k, owned = draw_ways_and_shots(
        clients=clients,
        classes=classes,
        ways=ways,
        shots=shots,
        spread=spread,
        seed=seed,
        shot_spread=shot_spread,
        shot_rule=shot_rule,
    )
    pools, test_by_class = by_class(train_labels), by_class(test_labels)
    test_by_class += [np.empty(0, dtype=np.int64)] * (classes - len(test_by_class))
    deviations: list[str] = []
    tests = []
    for c in range(classes):
        room = len(pools[c]) // clients if overlap == "none" else len(pools[c])
        test_room = len(test_by_class[c]) // clients
        if min(room, test_room) == 0:
            raise ValueError(
                f"class {c} has {len(pools[c])} training and "
                f"{len(test_by_class[c])} test samples, expected at least one of each "
                f"for every one of {clients} clients"
            )
        tests.append(min(test_shots, test_room))
        if test_room < test_shots:
            deviations.append(
                f"class {c}: test shots {test_shots} lowered to {test_room}"
            )
    if overlap == "none":
        train, changed = _blocks(pools, owned, k, block)
    else:
        train, changed = _windows(pools, owned, k, overlap)
    test = [
        [test_by_class[c][i * tests[c] :][: tests[c]] for c in mine]
        for i, mine in enumerate(owned)
    ]
    index = [torch.from_numpy(np.concatenate(parts)) for parts in train]
    test_index = [torch.from_numpy(np.concatenate(parts)) for parts in test]
    return Partition(
        index, test_index, owns_of(index, train_labels), (*changed, *deviations)
    )
