"""The papers' protocols as data: what each artefact runs, and at which settings."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from fedlib import registry
from fedlib.data.catalogue import entry_of
from fedlib.local import Training
from fedlib.notes import Note
from fedlib.partition import (
    LDA,
    NID1,
    NID2,
    CappedDirichlet,
    NwayKshot,
    Scheme,
    Users,
)
from fedlib.results import Result
from fedlib.schemes.domains import DOMAIN_PRESETS
from fedlib.spec import Spec, TestData


class Protocol(NamedTuple):
    """Sampling, training and length of one data set in one paper.

    What the paper does to images is the data set's to know (``Entry.transforms``).
    """

    net: str
    partition: Scheme
    rounds: int
    clients: int = 20
    training: Training = Training()  # FedMPS IV-A5: SGD 0.01, momentum 0.5, B 8, E 1
    participation: float = 1.0
    embedding: Literal["unit", "raw"] | None = None
    test: TestData = "clients"
    partition_seed: int | None = None


def _sampling(block: int, shots: int, test_shots: int, spread: int) -> NwayKshot:
    return NwayKshot(shots=shots, test_shots=test_shots, spread=spread, block=block)


# The digits are few, so that a round of them has 4 steps; ours, for the quick preset.
QUICK = Training(learning_rate=0.1)

# FedMPS, Table II (|A_ij|, k, t, std); rounds from the released code's commands, since
# the paper gives none. Of ImageNet it gives neither: the row is from the size of the
# smallest class, rounds are ours, and its ResNet-18 is pretrained, unlike this one.
# "digits" and "noise" are ours, for machines without data: noise has CIFAR-10's shape
# and draws the same clients, which is all that Table V needs.
FEDMPS = {
    "flowers": Protocol("lenet", _sampling(30, 28, 10, 2), 400),
    "defungi": Protocol("lenet", _sampling(29, 27, 7, 2), 800),
    "realwaste": Protocol("lenet", _sampling(10, 9, 4, 1), 6000),
    "cifar10": Protocol("lenet", _sampling(110, 100, 15, 1), 500),
    "fashion": Protocol("fashion_cnn", _sampling(110, 100, 15, 2), 800),
    "femnist": Protocol("femnist_cnn", _sampling(96, 95, 15, 1), 1000),
    "imagenet": Protocol("resnet18", _sampling(36, 35, 2, 1), 100),
    "digits": Protocol("digits_cnn", _sampling(13, 12, 4, 1), 30, 10, QUICK),
    "noise": Protocol("lenet", _sampling(10, 9, 2, 1), 2),
}

# GFPL, Section 5.1, Table 3 and the rounds of Table 1; batch 4, on CIFAR 32; the number
# of local epochs is not given. Test samples (MNIST 40, CIFAR-100 5) are FedProto's. Of
# CIFAR-100 owners in turn take disjoint samples while there are some.
GFPL = {
    "mnist": Protocol(
        "mnist_cnn",
        _sampling(110, 100, 40, 2),
        80,
        training=Training(batch_size=4),
        embedding="raw",
    ),
    "femnist": Protocol(
        "femnist_cnn",
        _sampling(93, 92, 15, 1),
        110,
        training=Training(batch_size=4),
        embedding="raw",
    ),
    "cifar10": Protocol(
        "resnet18", _sampling(110, 100, 15, 1), 100, training=Training(batch_size=32)
    ),
    "cifar100": Protocol(
        "resnet18",
        NwayKshot(shots=100, test_shots=5, spread=2, overlap="wrap"),
        80,
        training=Training(batch_size=32),
    ),
    "digits": Protocol("digits_linear", _sampling(13, 12, 4, 1), 30, 10, QUICK),
}

# FedPA, Section V-A; partition seed, ratio and smallest client from the released code,
# since the paper gives none. Twenty steps of 32 are what both call 20 local epochs. A
# client of CelebA is ten celebrities.
_ADAM = Training(
    optimiser="adam",
    learning_rate=3e-4,
    weight_decay=0.01,
    batch_size=32,
    local_steps=20,
    decay=0.99,
)
_FEDPA = Protocol(
    "fedpa_cnn",
    CappedDirichlet(),
    200,
    training=_ADAM,
    participation=0.5,
    test="pooled",
    partition_seed=42,
)
FEDPA = {
    "mnist": _FEDPA._replace(partition=CappedDirichlet(alpha=0.1, min_size=10)),
    "fashion": _FEDPA._replace(partition=CappedDirichlet(alpha=0.3, min_size=100)),
    "emnist": _FEDPA._replace(
        partition=CappedDirichlet(alpha=0.1, ratio=0.1, min_size=260),
        training=_ADAM.model_copy(update={"learning_rate": 1e-4}),
    ),
    "celeba": _FEDPA._replace(
        net="fedpa_cnn_celeba", partition=Users(users_per_client=10)
    ),
    "digits": _FEDPA._replace(  # ours
        net="digits_bn",
        partition=CappedDirichlet(alpha=0.5, ratio=1.0, min_size=10),
        rounds=30,
        clients=10,
        training=_ADAM.model_copy(update={"learning_rate": 3e-3, "batch_size": 16}),
    ),
}
# What the released loop trains clients with unless a run's name asks for Adam.
FEDPA_SGD = {
    "optimiser": "sgd",
    "learning_rate": 0.01,
    "momentum": 0.0,
    "weight_decay": 0.0,
}

# FedHPro: released code (the paper's text gives few settings), which is for CIFAR
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
    "cifar10": _NID1,
    "cifar100": _NID1,
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
# FedPG: Section V-A, with the learning rate and the largest norm of a gradient from an
# earlier version of its code, where they stand together: at this rate training diverges
# without. A client of FEMNIST is a writer; all clients' test samples are one test set.
_FEDPG = Protocol(
    "resnet18",
    LDA(alpha=0.1),
    100,
    10,
    Training(learning_rate=0.1, momentum=0.0, batch_size=64, local_epochs=5, clip=5.0),
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
)
FEDPG = {
    "cifar10": _FEDPG,
    "cifar100": _FEDPG._replace(
        net="resnet50",
        rounds=200,
        clients=100,
        training=_FEDPG.training.model_copy(update={"local_epochs": 3}),
        participation=0.1,
    ),
    "femnist_writers": _WRITERS,
    "femnist_writers_fs": _WRITERS,
    "digits": Protocol(
        "digits_bn",
        LDA(alpha=0.3, min_size=10),
        20,
        10,
        Training(learning_rate=0.1, momentum=0.0, batch_size=16, clip=5.0),
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
        too, and the data set's transform for it.
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
    defaults["transform"] = entry_of(dataset).transforms.get(paper)
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
    """Return FedHPro's setting of a method (released code); see ``setting``.

    Under NID2 there are as many clients as its definition names, unless told.
    """
    drawn = dict(changes.get("partition", {}))
    if drawn.get("scheme") == "nid2":
        own = NID2(**drawn)
        changes = {"clients": own.n_biased + own.n_unbiased} | changes
    return setting("fedhpro", dataset, method, **changes)


def fedpg(dataset: str, method: str, **changes: Any) -> Spec:
    """Return FedPG's setting of a method (Section V-A); see ``setting``."""
    return setting("fedpg", dataset, method, **changes)


def _with_ways(ways: int | None, changes: dict[str, Any]) -> dict[str, Any]:
    if ways is None:
        return changes
    return changes | {"partition": dict(changes.get("partition", {})) | {"ways": ways}}


def notes(results: Sequence[Result], paper: str = "fedmps") -> list[Note]:
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
                text = f"reduced budget: {spec.dataset}, {ours} of {full} {what}"
                found.append(Note("reduced", text))
        if spec.net != protocol.net:
            nets = f"net {spec.net} in place of {protocol.net}"
            text = f"reduced budget: {spec.dataset}, {nets}"
            found.append(Note("reduced", text))
        if spec.dataset in OURS:
            text = f"{spec.dataset} is not a data set of the paper"
            found.append(Note("not_paper_data", text))
    return found


BUILDERS: dict[str, Callable[..., Spec]] = {
    "gfpl": gfpl,
    "fedpa": fedpa,
    "fedmps": fedmps,
    "fedhpro": fedhpro,
    "fedpg": fedpg,
}
