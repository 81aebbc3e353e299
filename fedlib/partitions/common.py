"""What all schemes share: the partition, its test shards and the redraw."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

RETRIES = 1000  # redraws before a setting is refused, or mended
WORK = 10**6  # clients times classes in all redraws: some seconds


class SchemeSettings(BaseModel):
    """What all schemes share: frozen, and unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Partition(NamedTuple):
    """Sample indices per client, and what had to be changed to draw them."""

    train: list[Tensor]  # K tensors of indices into the training set
    test: list[Tensor]  # K tensors of indices into the test set
    owns: Tensor  # [K, C] bool: classes a client trains on
    deviations: tuple[str, ...]  # where the data were too few for the settings

    def table(self, labels: Tensor) -> "pd.DataFrame":
        """Return training samples per client (row) and class (column)."""
        import pandas as pd

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


def classes_of(labels: Tensor) -> int:
    """Return C, one more than the largest label."""
    return int(labels.max()) + 1


def by_class(labels: Tensor) -> list[np.ndarray]:
    """Return the indices of each class's samples, in their order."""
    y = labels.numpy()
    return [np.flatnonzero(y == c) for c in range(classes_of(labels))]


def owned_tests(owns: Tensor, test_labels: Tensor) -> tuple[list[Tensor], list[str]]:
    r"""Give clients :math:`\lfloor |A_c| / K \rfloor` test images of each own class.

    They are consecutive and disjoint: the owners of a class take turns in their order.
    A client that owns a class with a single sample is tested on it like any other.
    FedPA's released program.

    Parameters
    ----------
    owns : Tensor ``[K, C]`` bool
    test_labels : Tensor
        int64 labels.

    Returns
    -------
    shards : K int64 index tensors; deviations : classes too small to be cut.
    """
    clients, classes = owns.shape
    pools = [torch.nonzero(test_labels == c).flatten() for c in range(classes)]
    deviations = [
        f"class {c}: {len(pool)} test samples for {clients} clients, so nobody is "
        "tested on it"
        for c, pool in enumerate(pools)
        if len(pool) < clients and owns[:, c].any()
    ]
    used = [0] * classes
    shards = []
    for mine in owns:
        taken = [torch.empty(0, dtype=torch.int64)]
        for c in mine.nonzero().flatten().tolist():
            size = len(pools[c]) // clients
            taken.append(pools[c][used[c] : used[c] + size])
            used[c] += size
        shards.append(torch.cat(taken))
    return shards, deviations


def owns_of(train: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Return ``[K, C]`` bool: classes of which a client has a training sample."""
    owns = torch.zeros(len(train), classes_of(labels), dtype=torch.bool)
    for i, index in enumerate(train):
        owns[i, labels[index]] = True
    return owns


def finished(
    train: Iterable[np.ndarray | Sequence[int]],
    train_labels: Tensor,
    test_labels: Tensor,
    deviations: Iterable[str] = (),
) -> Partition:
    """Return a partition whose tests follow ``owned_tests``; refuse empty clients."""
    index = [torch.from_numpy(np.asarray(part, dtype=np.int64)) for part in train]
    for i, part in enumerate(index):
        if len(part) == 0:
            raise ValueError(
                f"client {i} gets no training sample; expected fewer clients or more "
                "data"
            )
    owns = owns_of(index, train_labels)
    test, cut = owned_tests(owns, test_labels)
    return Partition(index, test, owns, (*deviations, *cut))


def retries(clients: int, classes: int) -> int:
    """Return how often a setting is drawn: a count, the same on every machine."""
    return min(RETRIES, max(20, WORK // (clients * classes)))


def redrawn(
    draw: Callable[[], list[np.ndarray]],
    least: int,
    settings: str,
    tries: int | None = None,
) -> list[np.ndarray]:
    """Draw until the smallest part has ``least`` samples, at most so many times.

    Raises
    ------
    ValueError
        No draw has; the message says what the best one had.
    """
    tries = RETRIES if tries is None else tries
    most = 0
    for _ in range(tries):
        parts = draw()
        smallest = min(len(part) for part in parts)
        if smallest >= least:
            return parts
        most = max(most, smallest)
    raise ValueError(
        f"{settings}: in {tries} draws the smallest client had at most {most} "
        f"samples, expected {least}; fewer clients, a larger alpha or a smaller "
        "minimum are needed"
    )


def refuse_too_many(samples: int, clients: int, least: int, settings: str) -> None:
    """Refuse at once what no draw can give.

    Raises
    ------
    ValueError
        There are fewer samples than all clients need.
    """
    if samples < clients * least:
        raise ValueError(
            f"{settings}: {samples} samples are to be given out, at most "
            f"{samples // clients} for each client, expected {least}; fewer clients or "
            "a smaller minimum are needed"
        )


def split_by(index: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
    """Split indices at the rounded-down sums of shares; the last takes the rest."""
    return np.split(index, (np.cumsum(shares) * len(index)).astype(int)[:-1])


def among(shares: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Return shares of those with room, summing to one; uniform if they had none."""
    kept = np.where(room, shares, 0.0)
    if kept.sum() == 0:  # all weight on full clients, or everybody is full
        kept = room.astype(float) if room.any() else np.ones(len(room))
    return kept / kept.sum()
