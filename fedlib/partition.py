r"""Partitions: which samples each client trains and is tested on.

``nway_kshot`` follows the FedProto program draw by draw, so that seed 1234 gives the
clients that FedMPS's Table V and Fig. 7 require.
"""

import hashlib
import random
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor


class Partition(NamedTuple):
    """Sample indices per client, and what had to be changed to draw them."""

    train: list[Tensor]  # K tensors of indices into the training set
    test: list[Tensor]  # K tensors of indices into the test set
    owns: Tensor  # [K, C] bool: classes a client trains on
    deviations: tuple[str, ...]  # where the data were too few for the settings

    def table(self, labels: Tensor) -> pd.DataFrame:
        """Return training samples per client (row) and class (column)."""
        classes = self.owns.shape[1]
        rows = [torch.bincount(labels[i], minlength=classes) for i in self.train]
        frame = pd.DataFrame(torch.stack(rows).numpy())
        return frame.rename_axis(index="client", columns="class")

    @property
    def fingerprint(self) -> str:
        """Hash of all indices: equal partitions have equal fingerprints."""
        parts = [
            np.asarray(i, dtype=np.int64).tobytes() for i in self.train + self.test
        ]
        return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def draw_ways_and_shots(
    *, clients: int, classes: int, ways: int, shots: int, spread: int, seed: int
) -> tuple[np.ndarray, np.ndarray, list[list[int]]]:
    r"""Draw the number of classes n, samples per class k and the classes per client.

    .. math:: n_i \in [\max(2, n - std), \min(C, n + std + 1) - 1], \quad
        k_i \in [k - std + 1, k + std]

    uniformly, with numpy's and Python's own generators as the FedProto program
    (``lib/options.py``, ``lib/sampling.py``) seeds and calls them.

    Returns
    -------
    n : ndarray ``[K]``; k : ndarray ``[K]``; classes : K sorted lists.
    """
    # These two are the generators of the released program; the legacy numpy stream is
    # what its fingerprints depend on.
    legacy = np.random.RandomState(seed)
    python = random.Random(seed)
    n = legacy.randint(
        max(2, ways - spread), min(classes, ways + spread + 1), size=clients
    )
    k = legacy.randint(shots - spread + 1, shots + spread + 1, size=clients)
    owned = [sorted(python.sample(range(classes), int(ni))) for ni in n]
    return n, k, owned


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
    classes = int(train_labels.max()) + 1
    if shots - spread + 1 < 1:
        raise ValueError(
            f"spread: got {spread} with shots {shots}, which lets a client draw "
            f"{shots - spread + 1} samples; expected spread <= shots"
        )
    low, high = max(2, ways - spread), min(classes, ways + spread + 1)
    if low >= high:
        raise ValueError(
            f"ways: got {ways} with spread {spread}; no number of classes lies in "
            f"[{low}, {high - 1}] for {classes} classes"
        )
    _, k, owned = draw_ways_and_shots(
        clients=clients,
        classes=classes,
        ways=ways,
        shots=shots,
        spread=spread,
        seed=seed,
    )
    by_class = [torch.nonzero(train_labels == c).flatten() for c in range(classes)]
    test_by_class = [torch.nonzero(test_labels == c).flatten() for c in range(classes)]
    deviations: list[str] = []
    blocks, tests = [], []
    for c in range(classes):
        room, test_room = len(by_class[c]) // clients, len(test_by_class[c]) // clients
        if min(room, test_room) == 0:
            raise ValueError(
                f"class {c} has {len(by_class[c])} training and "
                f"{len(test_by_class[c])} test samples, expected at least one of each "
                f"for every one of {clients} clients"
            )
        blocks.append(min(block, room))
        tests.append(min(test_shots, test_room))
        if room < block:
            deviations.append(f"class {c}: block {block} lowered to {room}")
        if test_room < test_shots:
            deviations.append(
                f"class {c}: test shots {test_shots} lowered to {test_room}"
            )
    train, test = [], []
    owns = torch.zeros(clients, classes, dtype=torch.bool)
    for i, mine in enumerate(owned):
        owns[i, mine] = True
        parts, test_parts = [], []
        for c in mine:
            taken = min(int(k[i]), blocks[c])
            if taken < k[i]:
                deviations.append(
                    f"client {i}, class {c}: {k[i]} samples cut to {taken}"
                )
            parts.append(by_class[c][i * blocks[c] :][:taken])
            test_parts.append(test_by_class[c][i * tests[c] :][: tests[c]])
        train.append(torch.cat(parts))
        test.append(torch.cat(test_parts))
    return Partition(train, test, owns, tuple(deviations))
