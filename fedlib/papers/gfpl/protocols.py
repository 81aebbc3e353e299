"""GFPL's settings of every data set."""

from typing import Any

from fedlib.core.local import Training
from fedlib.papers.gfpl.presets import PRESETS
from fedlib.papers.gfpl.scoreboard import SOURCES
from fedlib.papers.protocol import (
    QUICK,
    Paper,
    Protocol,
    sampling,
    spec_of,
    with_ways,
)
from fedlib.partitions import NwayKshot
from fedlib.runs.spec import Spec

# GFPL, Section 5.1, Table 3 and the rounds of Table 1; batch 4, on CIFAR 32; the number
# of local epochs is not given. Test samples (MNIST 40, CIFAR-100 5) are FedProto's. Of
# CIFAR-100 owners in turn take disjoint samples while there are some.
GFPL = {
    "mnist": Protocol(
        "mnist_cnn",
        sampling(110, 100, 40, 2),
        80,
        training=Training(batch_size=4),
        embedding="raw",
    ),
    "femnist": Protocol(
        "femnist_cnn",
        sampling(93, 92, 15, 1),
        110,
        training=Training(batch_size=4),
        embedding="raw",
    ),
    "cifar10": Protocol(
        "resnet18", sampling(110, 100, 15, 1), 100, training=Training(batch_size=32)
    ),
    "cifar100": Protocol(
        "resnet18",
        NwayKshot(shots=100, test_shots=5, spread=2, overlap="wrap"),
        80,
        training=Training(batch_size=32),
    ),
    "digits": Protocol("digits_linear", sampling(13, 12, 4, 1), 30, 10, QUICK),
}

PAPER = Paper(GFPL, PRESETS, sources=SOURCES)


def gfpl(dataset: str, method: str, *, ways: int | None = None, **changes: Any) -> Spec:
    """Return GFPL's setting of a method (Section 5.1, Table 3), as ``papers.setting``.

    Parameters
    ----------
    ways : int, optional
        The mean number of classes per client; by default 3.
    """
    return spec_of(PAPER, dataset, method, **with_ways(ways, changes))
