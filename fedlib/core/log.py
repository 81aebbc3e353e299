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
    accuracy: Mapping[str, Tensor] = NONE  # [E, N] right predictions, own test shards
    samples: Tensor = ABSENT  # [E, N] test samples of each client
    watch: Mapping[str, Tensor] = NONE  # [E] beside centralised prototypes
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
        found: dict[str, Tensor] = {}
        for field, value in self._asdict().items():
            if field in GROUPS:
                found |= {f"{field}/{k}": v for k, v in value.items()}
            elif value.numel():
                found[field] = value
        return found


class Rows:
    """A log as it grows: lists of equal tensors, one per round or per evaluation."""

    def __init__(self, stored: Log | None = None):
        self._rows: dict[str, list[Tensor]] = defaultdict(list)
        for name, value in (stored or Log()).flat().items():
            self._rows[name] = list(value)

    def add(self, row: Log) -> None:
        """Add a row to each tensor that ``row`` holds."""
        for name, value in row.flat().items():
            self._rows[name].append(value.cpu())

    def add_round(
        self, number: int, terms: Mapping[str, Tensor], server: Mapping[str, Tensor]
    ) -> None:
        """Add floats of a round (from 1); in rounds without them they are NaN."""
        for name, value in Log(term=terms, server=server).flat().items():
            here = value.cpu()
            self._fill(name, number - 1, here)
            self._rows[name].append(here)

    def _fill(self, name: str, count: int, like: Tensor) -> None:
        missing = count - len(self._rows[name])
        self._rows[name] += [torch.full_like(like, float("nan"))] * missing

    def stacked(self) -> Log:
        """Return the log so far."""
        first = Log.of({name: rows[0] for name, rows in self._rows.items()})
        for name, like in Log(term=first.term, server=first.server).flat().items():
            self._fill(name, len(self._rows["cohort"]), like)
        return Log.of({name: torch.stack(rows) for name, rows in self._rows.items()})
