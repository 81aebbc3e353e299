"""What a run logs: named groups of tensors, and the flat names they are stored under.

On disk a log is a dict of tensors. A tensor of a group stands there under the group's
name and its own, ``term/supervised``, others under their field's name. Only this module
joins and splits names.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

NONE: Mapping[str, Tensor] = MappingProxyType({})
ABSENT = torch.empty(0)
NOT_EVALUATED = -1  # in place of a number of right predictions
GROUPS = ("term", "server", "sent", "accuracy", "watch", "full", "final")


class Log(NamedTuple):
    """Tensors with a leading axis of rounds R, or of evaluations E.

    Right predictions are named ``model/rule``, what is sent ``up/field`` and
    ``down/field``. A tensor without elements was not recorded.
    """

    cohort: Tensor = ABSENT  # [R, K] int64, the clients of each round
    term: Mapping[str, Tensor] = NONE  # [R, K] mean loss terms of the cohort
    server: Mapping[str, Tensor] = NONE  # [R, ...] numbers that merging reports
    sent: Mapping[str, Tensor] = NONE  # [R, 2] floats and integers, over the cohort
    evaluated: Tensor = ABSENT  # [E] int64, the rounds with an evaluation, from 1
    # [E, N] right predictions, own test shards, or NOT_EVALUATED; so are those of full
    accuracy: Mapping[str, Tensor] = NONE
    samples: Tensor = ABSENT  # [E, N] test samples of each client
    watch: Mapping[str, Tensor] = NONE  # [E] beside centralised prototypes, or NaN
    full: Mapping[str, Tensor] = NONE  # [E, G] right predictions, whole test set
    full_samples: Tensor = ABSENT  # [E, G] its samples, at once or by group
    final: Mapping[str, Tensor] = NONE  # [E, 2] floats and integers sent to finalise

    @classmethod
    def of(cls, flat: Mapping[str, Tensor]) -> "Log":
        """Return the log of a flat dict; a group has the dict's order.

        Raises
        ------
        ValueError
            A name that no field has.
        """
        groups: dict[str, dict[str, Tensor]] = {name: {} for name in GROUPS}
        single: dict[str, Tensor] = {}
        for name, value in flat.items():
            group, _, own = name.partition("/")
            if own and group in groups:
                groups[group][own] = value
            elif name in cls._fields and name not in groups:
                single[name] = value
            else:
                known = [f"{n}/..." if n in groups else n for n in cls._fields]
                raise ValueError(f"log: got {name!r}, expected {', '.join(known)}")
        return cls()._replace(**groups, **single)

    def flat(self) -> dict[str, Tensor]:
        """Return what is recorded by the names on disk."""
        fields: dict[str, Tensor] = {}
        for field, value in self._asdict().items():
            if field in GROUPS:
                fields |= {f"{field}/{k}": v for k, v in value.items()}
            elif value.numel():
                fields[field] = value
        return fields


PER_ROUND = ("cohort", "term", "server", "sent")  # others are per evaluation


class Rows:
    """A log as it grows: lists of equal tensors, one per round or per evaluation.

    What a round or an evaluation does not have is NaN, or ``NOT_EVALUATED``.
    """

    def __init__(self, *stored: Log):
        self._rows: dict[str, list[Tensor]] = defaultdict(list)
        for log in stored:
            self._extend(log.flat())

    def counts(self) -> tuple[int, int]:
        """Return the number of rounds and of evaluations so far."""
        return len(self._rows["cohort"]), len(self._rows["evaluated"])

    def add(self, row: Log) -> None:
        """Add a round, with its ``cohort``, or an evaluation, with ``evaluated``."""
        self._extend({name: value.cpu()[None] for name, value in row.flat().items()})

    def _extend(self, flat: Mapping[str, Tensor]) -> None:
        before = self.counts()
        for name, values in flat.items():
            self._fill(name, before[_axis(name)], values[0])
            self._rows[name] += list(values)

    def _fill(self, name: str, count: int, like: Tensor) -> None:
        missing = count - len(self._rows[name])
        absent = float("nan") if like.is_floating_point() else NOT_EVALUATED
        self._rows[name] += [torch.full_like(like, absent)] * missing

    def stacked(self, since: tuple[int, int] = (0, 0)) -> Log:
        """Return the log so far, or what came after so many rounds and evaluations."""
        counts, fields = self.counts(), {}
        for name, rows in self._rows.items():
            axis = _axis(name)
            if rows and counts[axis] > since[axis]:
                self._fill(name, counts[axis], rows[0])
                fields[name] = torch.stack(rows[since[axis] :])
        return Log.of(fields)


def _axis(name: str) -> int:
    return 0 if name.partition("/")[0] in PER_ROUND else 1
