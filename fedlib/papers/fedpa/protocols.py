"""FedPA's settings of every data set."""

from typing import Any, Literal

from pydantic import TypeAdapter

from fedlib.core.training import Training
from fedlib.data import Transform
from fedlib.papers.fedpa.presets import PRESETS, RELEASED
from fedlib.papers.fedpa.scoreboard import SOURCES
from fedlib.papers.protocol import Paper, Protocol, preset, spec_of
from fedlib.partitions import CappedDirichlet, Users
from fedlib.runs.spec import Spec

# FedPA, Section V-A; partition seed, ratio and smallest client from the released code,
# since the paper gives none. Section V-A3 prints E = 20 epochs of batch 32, Algorithm 1
# and the released code take one step for each of the 20: ``local_steps``, or, with
# ``local_unit="epochs"``, ``local_epochs``. A client of CelebA is ten celebrities.
_ADAM = Training(
    optimiser="adam",
    learning_rate=3e-4,
    weight_decay=0.01,
    batch_size=32,
    local_epochs=20,
    local_steps=20,
    decay=0.99,
)
_HALF = Transform(mean=(0.5,), std=(0.5,))  # pixels in [-1, 1]
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
    "mnist": _FEDPA._replace(
        partition=CappedDirichlet(alpha=0.1, min_size=10), transform=_HALF
    ),
    "fashion": _FEDPA._replace(
        partition=CappedDirichlet(alpha=0.3, min_size=100), transform=_HALF
    ),
    "emnist": _FEDPA._replace(
        partition=CappedDirichlet(alpha=0.1, ratio=0.1, min_size=260),
        training=_ADAM.model_copy(update={"learning_rate": 1e-4}),
        transform=_HALF,
    ),
    "celeba": _FEDPA._replace(
        net="fedpa_cnn_celeba",
        partition=Users(users_per_client=10),
        # the released program feeds pixels from 0 to 255 as they are
        transform=Transform(mean=(0.0,) * 3, std=(1 / 255,) * 3),
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

PAPER = Paper(FEDPA, PRESETS, sources=SOURCES)


def fedpa(
    dataset: str,
    method: str,
    *,
    adam: bool | None = None,
    local_unit: Literal["steps", "epochs"] = "steps",
    **changes: Any,
) -> Spec:
    """Return FedPA's setting of a method (Section V-A), as ``papers.setting``.

    Parameters
    ----------
    adam : bool, optional
        Whether clients train with Adam, as the paper states, or by plain SGD, as the
        released loop does; by default Adam except for ``variant="reference"``.
    local_unit : "steps" or "epochs"
        What E = 20 counts: batches (Algorithm 1, released code), or passes over a
        client's data (Section V-A3).
    """
    if local_unit not in ("steps", "epochs"):
        raise ValueError(
            f"local_unit: got {local_unit!r}, expected 'steps' or 'epochs'"
        )
    if isinstance(adam, str):  # in the text of a run
        adam = TypeAdapter(bool).validate_python(adam)
    hp = dict(changes.pop("hp", {}))
    released = hp.get("variant") == "reference"
    hp = (preset(RELEASED, method, dataset) if released else {}) | hp
    training = {} if (not released if adam is None else adam) else dict(FEDPA_SGD)
    # FedPA lowers each client's rate itself, by the rounds that it took part in
    training |= {"decay": 1.0} if method == "fedpa" else {}
    training |= {"local_steps": None} if local_unit == "epochs" else {}
    training |= dict(changes.pop("training", {}))
    return spec_of(PAPER, dataset, method, training=training, hp=hp, **changes)
