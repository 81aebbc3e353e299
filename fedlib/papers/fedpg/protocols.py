"""FedPG's settings of every data set."""

from typing import Any

from fedlib.core.training import Training
from fedlib.data import Transform
from fedlib.papers.fedpg.presets import PRESETS
from fedlib.papers.fedpg.scoreboard import SOURCES
from fedlib.papers.protocol import Paper, Protocol, spec_of
from fedlib.partitions import LDA, Users
from fedlib.runs.spec import Spec

# FedPG: Section 5.1, with the learning rate and the largest norm of a gradient from the
# released notebook, where they stand together: at this rate training diverges without.
# No batch is dropped: the paper does not say, the released runs keep the last one (the
# log counts samples, and its counts are no multiples of 64), and would stop at one of a
# single sample, which BatchNorm on maps of one pixel refuses: that one is dropped. A
# client of FEMNIST is a writer; all clients' test samples are one test set.
# CIFAR-10's numbers for both
_CIFAR = Transform(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))
_FEDPG = Protocol(
    "resnet18",
    LDA(alpha=0.1),
    100,
    10,
    Training(
        learning_rate=0.1,
        momentum=0.0,
        batch_size=64,
        local_epochs=5,
        drop_last=False,
        drop_single=True,
        clip=5.0,
    ),
    participation=0.5,
    test="full",
)
_WRITERS = _FEDPG._replace(
    net="convnet5",
    partition=Users(users_per_client=1),
    rounds=400,
    clients=200,
    training=_FEDPG.training.model_copy(update={"local_epochs": 1}),
    participation=0.05,
    test="pooled",
    transform=Transform(mean=(0.1307,), std=(0.3081,), side=64),
)
FEDPG = {
    "cifar10": _FEDPG._replace(transform=_CIFAR),
    # all 60,000 images, split 85/5/10, as the released log counts; the paper is silent
    "cifar10_fs": _FEDPG._replace(transform=_CIFAR),
    "cifar100": _FEDPG._replace(
        net="resnet50",
        rounds=200,
        clients=100,
        training=_FEDPG.training.model_copy(update={"local_epochs": 3}),
        participation=0.1,
        transform=_CIFAR,
    ),
    "femnist_writers": _WRITERS,
    "femnist_writers_fs": _WRITERS,
    "digits": Protocol(
        "digits_bn",
        LDA(alpha=0.3, min_size=10),
        20,
        10,
        _FEDPG.training.model_copy(update={"batch_size": 16, "local_epochs": 1}),
        participation=0.5,
        test="full",
    ),
}

# The released programs, by name: whole runs of CIFAR-10, of any method. What they set
# of FedPG itself is its variant of that name, see its Readings.
CONFIGURATIONS = {
    "notebook": FEDPG["cifar10"],  # run_fedpg.ipynb: Section 5.1, alpha 0.1
    "script": FEDPG["cifar10"]._replace(  # run_fedpg.py
        partition=LDA(alpha=0.05),
        rounds=200,
        participation=0.1,
        training=_FEDPG.training.model_copy(
            update={"learning_rate": 0.01, "batch_size": 128, "local_epochs": 1}
        ),
    ),
}

PAPER = Paper(FEDPG, PRESETS, sources=SOURCES, configurations=CONFIGURATIONS)


def fedpg(
    dataset: str, method: str, *, configuration: str | None = None, **changes: Any
) -> Spec:
    """Return FedPG's setting of a method (Section 5.1), as ``papers.setting``.

    Parameters
    ----------
    configuration : str, optional
        ``"notebook"`` or ``"script"``: that released program's run in place of the
        paper's, of CIFAR-10 (``cifar10_fs`` with the images split as released); FedPG
        is then its variant of that name.
    """
    if configuration is None:
        return spec_of(PAPER, dataset, method, **changes)
    if configuration not in CONFIGURATIONS:
        raise ValueError(
            f"configuration: got {configuration!r}, expected one of "
            f"{list(CONFIGURATIONS)}"
        )
    released = dict.fromkeys(("cifar10_fs", "cifar10"), CONFIGURATIONS[configuration])
    own = {"variant": configuration} if method == "fedpg" else {}
    changes["hp"] = own | dict(changes.get("hp", {}))
    return spec_of(PAPER._replace(protocols=released), dataset, method, **changes)
