"""FedMPS's settings of every data set."""

from typing import Any

from fedlib.papers.fedmps.presets import PRESETS, TRAINING
from fedlib.papers.fedmps.scoreboard import SOURCES
from fedlib.papers.protocol import (
    QUICK,
    Paper,
    Protocol,
    sampling,
    spec_of,
    with_ways,
)
from fedlib.runs.spec import Spec

# FedMPS, Table II (|A_ij|, k, t, std); rounds from the released code's commands, since
# the paper gives none. Of ImageNet it gives neither: the row is from the size of the
# smallest class, rounds are ours, and its ResNet-18 is pretrained, unlike this one.
# "digits" and "noise" are ours, for machines without data: noise has CIFAR-10's shape
# and draws the same clients, which is all that Table V needs.
FEDMPS = {
    "flowers": Protocol("lenet", sampling(30, 28, 10, 2), 400),
    "defungi": Protocol("lenet", sampling(29, 27, 7, 2), 800),
    "realwaste": Protocol("lenet", sampling(10, 9, 4, 1), 6000),
    "cifar10": Protocol("lenet", sampling(110, 100, 15, 1), 500),
    "fashion": Protocol("fashion_cnn", sampling(110, 100, 15, 2), 800),
    "femnist": Protocol("femnist_cnn", sampling(96, 95, 15, 1), 1000),
    "imagenet": Protocol("resnet18", sampling(36, 35, 2, 1), 100),
    "digits": Protocol("digits_cnn", sampling(13, 12, 4, 1), 30, 10, QUICK),
    "noise": Protocol("lenet", sampling(10, 9, 2, 1), 2),
}

PAPER = Paper(FEDMPS, PRESETS, training=TRAINING, sources=SOURCES)


def fedmps(
    dataset: str, method: str, *, ways: int | None = None, **changes: Any
) -> Spec:
    """Return FedMPS's setting of a method (IV-A, Table II), as ``papers.setting``.

    Parameters
    ----------
    ways : int, optional
        n, the mean number of classes per client; by default 3.
    """
    return spec_of(PAPER, dataset, method, **with_ways(ways, changes))
