"""GFPL's settings of every data set."""

from itertools import count, islice
from typing import Any, Literal

from fedlib.core.training import Training
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

# The nets whose embeddings have the size that Section 5.1 gives the extractor's output;
# MNIST's net has it anyway.
EXTRACTORS = {
    "femnist": "femnist_cnn_80",
    "cifar10": "resnet18_128",
    "cifar100": "resnet18_128",
}


def gfpl(
    dataset: str,
    method: str,
    *,
    ways: int | None = None,
    size_of: Literal["projection", "extractor"] = "projection",
    rounds_of: Literal["training", "exchanges"] = "training",
    **changes: Any,
) -> Spec:
    """Return GFPL's setting of a method (Section 5.1, Table 3), as ``papers.setting``.

    Parameters
    ----------
    ways : int, optional
        The mean number of classes per client; by default 3.
    size_of : "projection" or "extractor"
        What d is the size of. Table 3 has 50, 128, 80, 80 for the projection, Section
        5.1 has 50, 80, 128, 128 for the extractor's output; then all methods have a
        net with such an embedding, and GFPL's projection its size. By default the
        former: the payloads of Table 1 and Appendix B's 512 are those of embeddings of
        50 and 512.
    rounds_of : "training" or "exchanges"
        What GFPL's rounds count. Table 1 calls its column "Comm. Round", and has 0 for
        local training: its 80 may be exchanges, which come in every tenth round. By
        default they are rounds of training, as are T in Algorithm 2 and the floor of
        T / S_T exchanges that Section 4.2 counts; all methods then train equally long.
        Other methods communicate in every round, so that both readings are one.

    Raises
    ------
    ValueError
        Another ``size_of`` or ``rounds_of``; settings as in ``papers.setting``.
    """
    changes = with_ways(ways, changes)
    if size_of not in ("projection", "extractor"):
        raise ValueError(f"size_of: got {size_of!r}, expected projection or extractor")
    if rounds_of not in ("training", "exchanges"):
        raise ValueError(
            f"rounds_of: got {rounds_of!r}, expected training or exchanges"
        )
    if size_of == "extractor":
        if dataset in EXTRACTORS:
            changes = {"net": EXTRACTORS[dataset]} | changes
        if method == "gfpl":
            own = {"projection_size": None}
            changes = changes | {"hp": own | dict(changes.get("hp", {}))}
    spec = spec_of(PAPER, dataset, method, **changes)
    if rounds_of == "exchanges" and method == "gfpl" and spec.hp["pseudo"]:
        from fedlib.methods.gfpl import HP, exchanges  # scikit-learn's seconds

        exchange_rounds = (t for t in count(1) if exchanges(HP(**spec.hp), t))
        last = next(islice(exchange_rounds, spec.rounds - 1, None))
        spec = spec.model_copy(update={"rounds": last})
    return spec
