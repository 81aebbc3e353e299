"""What a paper's package is made of, and how its tables become a setting."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from fedlib import registry
from fedlib.core.training import Training
from fedlib.data import Transform
from fedlib.papers.source import Origin
from fedlib.partitions import NwayKshot, Scheme
from fedlib.runs.spec import SettingError, Spec, TestData
from fedlib.support import spelling

# method -> data set, or "*" for all -> settings
Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]

# The digits are few, so that a round of them has 4 steps; ours, for the quick preset.
QUICK = Training(learning_rate=0.1)


class Protocol(NamedTuple):
    """Sampling, training and length of one data set in one paper."""

    net: str
    partition: Scheme
    rounds: int
    clients: int = 20
    training: Training = Training()  # FedMPS IV-A5: SGD 0.01, momentum 0.5, B 8, E 1
    participation: float = 1.0
    embedding: Literal["unit", "raw"] | None = None
    test: TestData = "clients"
    partition_seed: int | None = None
    transform: Transform | None = None  # where images are not as the data set has them


class Paper(NamedTuple):
    """The tables of a paper."""

    protocols: Mapping[str, Protocol]  # by data set
    presets: Presets  # hyper-parameters; a method without a row has its defaults
    training: Presets = MappingProxyType({})  # of clients, where a method has its own
    sources: tuple[Origin, ...] = ()  # of the scoreboard
    # released programs whose runs have a length of their own, by name
    configurations: Mapping[str, Protocol] = MappingProxyType({})


def sampling(block: int, shots: int, test_shots: int, spread: int) -> NwayKshot:
    """Return n-way k-shot sampling in blocks, as FedMPS and GFPL tabulate it."""
    return NwayKshot(shots=shots, test_shots=test_shots, spread=spread, block=block)


def with_ways(ways: int | None, changes: dict[str, Any]) -> dict[str, Any]:
    """Return changes of a protocol with the number of ways, if there is one."""
    if ways is None:
        return changes
    return changes | {"partition": dict(changes.get("partition", {})) | {"ways": ways}}


def preset(table: Presets, method: str, dataset: str) -> dict[str, Any]:
    """Return a table's settings of a method on a data set; none without a row."""
    rows = table.get(method, {})
    return {**rows.get("*", {}), **rows.get(dataset, {})}


def _refuse_idle(training: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse what changes training's settings and is read by nothing.

    The key would change and no number with it.

    Raises
    ------
    SettingError
        Names what is given, and the setting that takes its place.
    """
    both = {**training, **given}
    instead = {}
    if both.get("optimiser") == "adam":
        instead["momentum"] = "optimiser 'adam', which has moments of its own"
    if both.get("local_steps") is not None:
        instead["local_epochs"] = "local_steps, which are counted in place of epochs"
    for name, why in instead.items():
        if given.get(name) not in (None, training.get(name)):
            raise SettingError(
                f"training.{name}: got {given[name]!r} beside {why}; without effect, "
                "leave it out"
            )


def spec_of(paper: Paper, dataset: str, method: str, **changes: Any) -> Spec:
    """Return a paper's setting of a method; see ``papers.setting``."""
    protocols = paper.protocols
    if dataset not in protocols:
        raise ValueError(
            f"dataset: got {dataset!r}, expected one of {list(protocols)}"
            f"{spelling.hint(dataset, protocols)}"
        )
    registry.method(method)
    defaults = protocols[dataset]._asdict()
    trained = preset(paper.training, method, dataset)
    for name in ("partition", "training"):
        own, given = defaults[name].model_dump(), dict(changes.pop(name, {}))
        if name == "training":
            _refuse_idle(own | trained, given)
            given = trained | given
        same = given.get("scheme", own.get("scheme")) == own.get("scheme")
        defaults[name] = (own if same else {}) | given
    hp = preset(paper.presets, method, dataset) | dict(changes.pop("hp", {}))
    return Spec.of(dataset=dataset, method=method, hp=hp, **(defaults | changes))
