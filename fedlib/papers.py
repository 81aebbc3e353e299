"""The papers' protocols as data: what each artefact runs, and at which settings."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

from fedlib import registry
from fedlib.local import Training
from fedlib.results import Result
from fedlib.partition import NwayKshot
from fedlib.spec import Spec


class Protocol(NamedTuple):
    """Sampling and length of one data set in one paper."""

    net: str
    partition: NwayKshot
    rounds: int
    clients: int = 20
    training: Training = Training()  # Section IV-A5: SGD 0.01, momentum 0.5, B 8, E 1


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


OURS = {"digits", "noise"}


def fedmps(dataset: str, method: str, **changes: Any) -> Spec:
    """Return FedMPS's setting of a method on a data set (Section IV-A, Table II).

    Parameters
    ----------
    dataset : str
        A key of ``FEDMPS``.
    method : str
        A registered method; its FedMPS presets are applied.
    **changes
        ``ways`` (n), ``hp`` (on top of the presets) or any other field of ``Spec``.

    Raises
    ------
    SettingError
        An unknown or illegal setting.
    ValueError
        Unknown data set or method.
    """
    if dataset not in FEDMPS:
        raise ValueError(f"dataset: got {dataset!r}, expected one of {list(FEDMPS)}")
    registry.method(method)
    protocol = FEDMPS[dataset]
    hp = registry.presets(method, "fedmps", dataset) | dict(changes.pop("hp", {}))
    partition = protocol.partition.model_dump()
    partition |= {"ways": changes.pop("ways")} if "ways" in changes else {}
    defaults = {
        "net": protocol.net,
        "rounds": protocol.rounds,
        "clients": protocol.clients,
        "training": protocol.training.model_dump(),
        "partition": partition,
    }
    return Spec.of(dataset=dataset, method=method, hp=hp, **(defaults | changes))


def notes(results: Sequence[Result]) -> list[str]:
    """Return what a reader of these FedMPS numbers must know."""
    found = []
    for spec in {r.spec.dataset: r.spec for r in results}.values():
        full = FEDMPS[spec.dataset].rounds
        if spec.rounds < full:
            found.append(
                f"reduced budget: {spec.dataset}, {spec.rounds} of {full} rounds"
            )
        if spec.dataset in OURS:
            found.append(f"{spec.dataset} is not a data set of the paper")
    return found


def _table3(p: dict[str, Any]) -> list[Spec]:
    if len(p["datasets"]) != len(p["rounds"]):
        raise ValueError(
            f"rounds: got {p['rounds']}, expected one entry for each of {p['datasets']}"
        )
    grid = product(p["datasets"], p["methods"], p["seeds"])
    rounds = dict(zip(p["datasets"], p["rounds"], strict=True))
    return [fedmps(d, m, seed=s, ways=p["ways"], rounds=rounds[d]) for d, m, s in grid]


def _table5(p: dict[str, Any]) -> list[Spec]:
    return [
        fedmps(p["dataset"], m, seed=p["seed"], ways=p["ways"], rounds=2)
        for m in p["methods"]
    ]


ARTEFACTS = {"fedmps/table3": _table3, "fedmps/table5": _table5}


def specs_for(artefact: str, parameters: dict[str, Any]) -> list[Spec]:
    """Return the runs that an artefact needs; none for a picture of a partition."""
    runs_of = ARTEFACTS.get(artefact)
    return runs_of(parameters) if runs_of else []
