"""What a run costs: guessed from its settings, corrected by what others have taken.

A run's cost is guessed from its settings (``guess``) and corrected by what runs alike
have really taken: of the same kind, else of the same method, else of the same net, else
all. Many runs begin with the longest, so that no process waits for it in the end.
"""

import json
import math
from collections import defaultdict
from typing import Any, NamedTuple

from fedlib.data import DATASETS
from fedlib.runs.spec import Spec

UNKNOWN = 10_000  # training images of a data set whose number is not in the catalogue
VALUES = 60_000  # pixels in a step of all clients that cost as much as the step itself
STEP = 0.01  # seconds of such a step, until a run is measured


def _without_floats(value: Any) -> Any:
    """Return settings without real numbers: weights and rates do not change a pace."""
    if isinstance(value, dict):
        pairs = ((name, _without_floats(v)) for name, v in value.items())
        return {name: v for name, v in pairs if not isinstance(v, float)}
    return value


def kind(spec: Spec) -> str:
    """Return what runs share that are alike but for seed, length and real numbers.

    The share of clients that take part is a real number that counts.
    """
    settings = spec.model_dump(
        mode="json",
        exclude={"seed", "partition_seed", "rounds", "eval_every", "all_rules_every"},
    )
    return json.dumps([_without_floats(settings), spec.participation])


def samples(spec: Spec) -> float | None:
    """Return the training images of a client, on average; None where nobody knows."""
    entry, scheme = DATASETS[spec.dataset], spec.partition
    if scheme.scheme == "nway_kshot":
        return float(scheme.shots * scheme.ways)
    images = sum(entry.per_class[0]) if entry.per_class else None
    images = entry.per_split[0] if entry.per_split else images
    return None if images is None else images / spec.clients


def guess(spec: Spec) -> float:
    """Return the cost of one round in steps of a small net, from the settings alone."""
    entry, training = DATASETS[spec.dataset], spec.training
    steps = training.local_steps
    if steps is None:
        per_client = samples(spec) or UNKNOWN / spec.clients
        steps = training.local_epochs * math.ceil(per_client / training.batch_size)
    cohort = max(1.0, spec.participation * spec.clients)
    values = cohort * training.batch_size * math.prod(entry.shape)
    return max(1, steps) * (1 + values / VALUES)


def _groups(spec: Spec) -> list[tuple[str, ...]]:
    """Return what a run is alike to, from near to far."""
    place = (spec.dataset, spec.net)
    return [
        ("kind", kind(spec)),
        ("method", spec.method, *place, spec.partition.scheme),
        ("method", spec.method, *place),
        ("method", spec.method),
        ("net", *place),
        ("all",),
    ]


class Likeness(NamedTuple):
    """What is known of a run before it is measured."""

    cost: float  # of the whole run, in steps of a small net
    groups: list[tuple[str, ...]]  # what it is alike to, from near to far


def likeness(spec: Spec) -> Likeness:
    """Return what is known of a run before it is measured."""
    return Likeness(spec.rounds * guess(spec), _groups(spec))


class Costs:
    """Seconds that runs take their process, learnt from those that are done."""

    def __init__(self) -> None:
        self._took: dict[tuple[str, ...], float] = defaultdict(float)  # seconds
        self._guessed: dict[tuple[str, ...], float] = defaultdict(float)

    def __bool__(self) -> bool:
        """Return whether any run was learnt from."""
        return bool(self._guessed)

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take into account how long a run takes its process, or took it long ago."""
        cost, groups = likeness(spec)
        for group in groups:
            self._took[group] += seconds
            self._guessed[group] += cost

    def expected(self, run: Likeness) -> float:
        """Return the seconds that a run will take its process."""
        known = (group for group in run.groups if group in self._guessed)
        group = next(known, None)
        step = self._took[group] / self._guessed[group] if group else STEP
        return run.cost * step
