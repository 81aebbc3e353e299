"""The papers' protocols as data: what each artefact runs, and at which settings."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from fedlib import registry
from fedlib.data import Transform
from fedlib.local import Training
from fedlib.partition import LDA, NID1, CappedDirichlet, NwayKshot, Scheme
from fedlib.results import Result
from fedlib.spec import Spec, TestData


class Protocol(NamedTuple):
    """Sampling, training and length of one data set in one paper."""

    net: str
    partition: Scheme
    rounds: int
    clients: int = 20
    training: Training = Training()  # FedMPS IV-A5: SGD 0.01, momentum 0.5, B 8, E 1
    participation: float = 1.0
    transform: Transform | None = None
    embedding: Literal["unit", "raw"] | None = None
    test: TestData = "clients"
    partition_seed: int | None = None


def _sampling(block: int, shots: int, test_shots: int, spread: int) -> NwayKshot:
    return NwayKshot(shots=shots, test_shots=test_shots, spread=spread, block=block)


# The digits are few, so that a round of them has 4 steps; ours, for the quick preset.
QUICK = Training(learning_rate=0.1)

# FedMPS, Table II (|A_ij|, k, t, std); rounds from the released code's commands, since
# the paper gives none. "digits" and "noise" are ours, for machines without data: noise
# has CIFAR-10's shape and draws the same clients, which is all that Table V needs.
FEDMPS = {
    "cifar10": Protocol("lenet", _sampling(110, 100, 15, 1), 500),
    "fashion": Protocol("fashion_cnn", _sampling(110, 100, 15, 2), 800),
    "digits": Protocol("digits_cnn", _sampling(13, 12, 4, 1), 30, 10, QUICK),
    "noise": Protocol("lenet", _sampling(10, 9, 2, 1), 2),
}

# GFPL, Section 5.1, Table 3 and the rounds of Table 1; batch 4, on CIFAR 32; the number
# of local epochs is not given. MNIST's 40 test samples are FedProto's.
GFPL = {
    "mnist": Protocol(
        "mnist_cnn",
        _sampling(110, 100, 40, 2),
        80,
        training=Training(batch_size=4),
        embedding="raw",
    ),
    "cifar10": Protocol(
        "resnet18", _sampling(110, 100, 15, 1), 100, training=Training(batch_size=32)
    ),
    "digits": Protocol("digits_linear", _sampling(13, 12, 4, 1), 30, 10, QUICK),
}

# FedPA, Section V-A; partition seed, ratio and smallest client from the released code,
# since the paper gives none. Twenty steps of 32 are what both call 20 local epochs.
_ADAM = Training(
    optimiser="adam",
    learning_rate=3e-4,
    weight_decay=0.01,
    batch_size=32,
    local_steps=20,
    decay=0.99,
)
_HALF = Transform(mean=(0.5,), std=(0.5,))
_FEDPA = Protocol(
    "fedpa_cnn",
    CappedDirichlet(),
    200,
    training=_ADAM,
    participation=0.5,
    transform=_HALF,
    test="pooled",
    partition_seed=42,
)
FEDPA = {
    "mnist": _FEDPA._replace(partition=CappedDirichlet(alpha=0.1, min_size=10)),
    "fashion": _FEDPA._replace(partition=CappedDirichlet(alpha=0.3, min_size=100)),
    "digits": _FEDPA._replace(  # ours
        net="digits_bn",
        partition=CappedDirichlet(alpha=0.5, ratio=1.0, min_size=10),
        rounds=30,
        clients=10,
        training=_ADAM.model_copy(update={"learning_rate": 3e-3, "batch_size": 16}),
        transform=None,
    ),
}
# What the released loop trains clients with unless a run's name asks for Adam.
FEDPA_SGD = {
    "optimiser": "sgd",
    "learning_rate": 0.01,
    "momentum": 0.0,
    "weight_decay": 0.0,
}

# FedHPro: released code (the paper's text gives few settings); FedPG: Section V-A, with
# learning rate and normalisation from an earlier version of its code.
FEDHPRO = {
    "cifar10": Protocol(
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
        transform=Transform(
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2023, 0.1994, 0.2010),
            padding=4,
            flip=True,
        ),
        test="full",
        partition_seed=536,
    ),
    "digits": Protocol(
        "digits_bn",
        NID1(alpha=0.5),
        20,
        10,
        Training(learning_rate=0.02, momentum=0.0, batch_size=16, drop_last=False),
        test="full",
    ),
}
FEDPG = {
    "cifar10": Protocol(
        "resnet18",
        LDA(alpha=0.1),
        100,
        10,
        Training(learning_rate=0.1, momentum=0.0, batch_size=64, local_epochs=5),
        participation=0.5,
        transform=Transform(
            mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
        ),
        test="full",
    ),
    "digits": Protocol(
        "digits_bn",
        LDA(alpha=0.3, min_size=10),
        20,
        10,
        Training(learning_rate=0.1, momentum=0.0, batch_size=16),
        participation=0.5,
        test="full",
    ),
}

PAPERS = {
    "gfpl": GFPL,
    "fedpa": FEDPA,
    "fedmps": FEDMPS,
    "fedhpro": FEDHPRO,
    "fedpg": FEDPG,
}
OURS = {"digits", "noise"}


def setting(paper: str, dataset: str, method: str, **changes: Any) -> Spec:
    """Return a paper's setting of a method on a data set.

    Parameters
    ----------
    paper : str
        A key of ``PAPERS``.
    dataset : str
        A data set of that paper, as in ``PAPERS[paper]``.
    method : str
        A registered method; its presets for that paper are applied, those of training
        too.
    **changes
        ``hp`` (on top of the presets), ``partition`` and ``training`` (on top of the
        paper's), or any other field of ``Spec``.

    Raises
    ------
    SettingError
        An unknown or illegal setting.
    ValueError
        Unknown paper, data set or method.
    """
    if paper not in PAPERS:
        raise ValueError(f"paper: got {paper!r}, expected one of {list(PAPERS)}")
    protocols = PAPERS[paper]
    if dataset not in protocols:
        raise ValueError(f"dataset: got {dataset!r}, expected one of {list(protocols)}")
    registry.method(method)
    protocol = protocols[dataset]
    defaults = protocol._asdict()
    trained = registry.presets(method, paper, dataset, "TRAINING")
    for name in ("partition", "training"):
        own, given = defaults[name].model_dump(), dict(changes.pop(name, {}))
        given = trained | given if name == "training" else given
        same = given.get("scheme", own.get("scheme")) == own.get("scheme")
        defaults[name] = (own if same else {}) | given
    hp = registry.presets(method, paper, dataset) | dict(changes.pop("hp", {}))
    return Spec.of(dataset=dataset, method=method, hp=hp, **(defaults | changes))


def fedmps(
    dataset: str, method: str, *, ways: int | None = None, **changes: Any
) -> Spec:
    """Return FedMPS's setting of a method (Section IV-A, Table II); see ``setting``.

    Parameters
    ----------
    ways : int, optional
        n, the mean number of classes per client; by default 3.
    """
    return setting("fedmps", dataset, method, **_with_ways(ways, changes))


def gfpl(dataset: str, method: str, *, ways: int | None = None, **changes: Any) -> Spec:
    """Return GFPL's setting of a method (Section 5.1, Table 3); see ``setting``.

    Parameters
    ----------
    ways : int, optional
        The mean number of classes per client; by default 3.
    """
    return setting("gfpl", dataset, method, **_with_ways(ways, changes))


def fedpa(
    dataset: str, method: str, *, adam: bool | None = None, **changes: Any
) -> Spec:
    """Return FedPA's setting of a method (Section V-A); see ``setting``.

    Parameters
    ----------
    adam : bool, optional
        Whether clients train with Adam, as the paper states, or by plain SGD, as the
        released loop does; by default Adam except for ``variant="reference"``.
    """
    released = dict(changes.get("hp", {})).get("variant") == "reference"
    training = {} if (not released if adam is None else adam) else dict(FEDPA_SGD)
    # FedPA lowers each client's rate itself, by the rounds that it took part in
    training |= {"decay": 1.0} if method == "fedpa" else {}
    training |= dict(changes.pop("training", {}))
    return setting("fedpa", dataset, method, training=training, **changes)


def fedhpro(dataset: str, method: str, **changes: Any) -> Spec:
    """Return FedHPro's setting of a method (released code); see ``setting``."""
    return setting("fedhpro", dataset, method, **changes)


def fedpg(dataset: str, method: str, **changes: Any) -> Spec:
    """Return FedPG's setting of a method (Section V-A); see ``setting``."""
    return setting("fedpg", dataset, method, **changes)


def _with_ways(ways: int | None, changes: dict[str, Any]) -> dict[str, Any]:
    if ways is None:
        return changes
    return changes | {"partition": dict(changes.get("partition", {})) | {"ways": ways}}


def notes(results: Sequence[Result], paper: str = "fedmps") -> list[str]:
    """Return what a reader of these numbers of a paper must know."""
    found = []
    for spec in {r.spec.dataset: r.spec for r in results}.values():
        protocol = PAPERS[paper][spec.dataset]
        for what, ours, full in (
            ("rounds", spec.rounds, protocol.rounds),
            (
                "local epochs",
                spec.training.local_epochs,
                protocol.training.local_epochs,
            ),
        ):
            if ours < full:
                found.append(f"reduced budget: {spec.dataset}, {ours} of {full} {what}")
        if spec.net != protocol.net:
            found.append(
                f"reduced budget: {spec.dataset}, net {spec.net} in place of "
                f"{protocol.net}"
            )
        if spec.dataset in OURS:
            found.append(f"{spec.dataset} is not a data set of the paper")
    return found


BUILDERS: dict[str, Callable[..., Spec]] = {
    "gfpl": gfpl,
    "fedpa": fedpa,
    "fedmps": fedmps,
    "fedhpro": fedhpro,
    "fedpg": fedpg,
}
