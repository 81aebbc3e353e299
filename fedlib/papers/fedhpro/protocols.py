"""FedHPro's settings of every data set."""

from typing import Any

from fedlib.core.training import Training
from fedlib.data import Transform
from fedlib.papers.fedhpro.presets import PRESETS
from fedlib.papers.fedhpro.scoreboard import SOURCES
from fedlib.papers.protocol import Paper, Protocol, spec_of
from fedlib.partitions import NID1, NID2
from fedlib.partitions.domains import DOMAIN_PRESETS
from fedlib.runs.spec import Spec

# FedHPro: released code (the slides print no number of these), which is for CIFAR
# alone; domains as in F2DC's program, by the same author. CIFAR10-LT is cifar10 with
# ``imbalance``.
_NID1 = Protocol(
    "resnet10",
    NID1(alpha=0.5),
    100,
    10,
    Training(
        learning_rate=0.1,
        momentum=0.0,
        batch_size=64,
        local_epochs=10,
        drop_last=False,
    ),
    test="full",
    partition_seed=536,
)
# CIFAR-10's numbers for both
_CIFAR = _NID1._replace(
    transform=Transform(
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        padding=4,
        flip=True,
    )
)
_DOMAINS = _NID1._replace(
    partition=DOMAIN_PRESETS["office"],
    training=Training(
        learning_rate=0.01,
        momentum=0.9,
        weight_decay=1e-5,
        batch_size=64,
        local_epochs=10,
        drop_last=False,
    ),
    test="groups",
)
FEDHPRO = {
    "cifar10": _CIFAR,
    "cifar100": _CIFAR,
    "tiny_imagenet": _NID1,
    "ham10000": _NID1,
    "ham10000_lesion": _NID1,
    "ham10000_stratified": _NID1,
    "digits_domains": _DOMAINS._replace(
        partition=DOMAIN_PRESETS["digits_f2dc"], clients=20
    ),
    "office_caltech": _DOMAINS,
    "digits": Protocol(
        "digits_bn",
        NID1(alpha=0.5),
        20,
        10,
        Training(learning_rate=0.02, momentum=0.0, batch_size=16, drop_last=False),
        test="full",
    ),
}

PAPER = Paper(FEDHPRO, PRESETS, sources=SOURCES)


def fedhpro(dataset: str, method: str, **changes: Any) -> Spec:
    """Return FedHPro's setting of a method (released code), as ``papers.setting``.

    Under NID2 there are as many clients as its definition names, unless told.
    """
    drawn = dict(changes.get("partition", {}))
    if drawn.get("scheme") == "nid2":
        own = NID2(**drawn)
        changes = {"clients": own.n_biased + own.n_unbiased} | changes
    return spec_of(PAPER, dataset, method, **changes)
