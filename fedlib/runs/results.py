"""The result of a run: logs per round as tensors, and the tables made of them."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedlib import registry
from fedlib.core.log import NOT_EVALUATED, Log
from fedlib.core.readouts import Rule
from fedlib.data import DATASETS
from fedlib.runs.spec import Spec, TestData


def _pair(name: str) -> tuple[str, str]:
    """Return the two parts of a name: model and rule, or direction and field."""
    first, _, second = name.partition("/")
    return first, second


def _spread(per_client: Tensor) -> float:
    seen = per_client[~per_client.isnan()]
    return float(seen.std(correction=0)) if len(seen) else float("nan")


@dataclass(frozen=True)
class Result:
    """A finished run: per-round logs as tensors, and tables made of them."""

    spec: Spec
    key: str
    log: Log = field(repr=False)
    called: str | None = None  # in tables and curves; None: as ``reports.label`` says

    @property
    def paper_rule(self) -> Rule:
        """Model and rule of the accuracy that the method's paper reports."""
        method = registry.method(self.spec.method)
        return method.rule(method.hp(**self.spec.hp))

    @property
    def readouts(self) -> list[tuple[str, str]]:
        """All recorded pairs of model and rule."""
        return [_pair(name) for name in self.log.accuracy]

    @property
    def evaluated(self) -> list[int]:
        """The rounds with an evaluation, from 1; not all are of every rule."""
        return self.log.evaluated.tolist()

    def accuracy(self, model: str, rule: str, data: TestData = "clients") -> Tensor:
        """Return the accuracy of a model under a rule, as fractions.

        Parameters
        ----------
        data : "clients", "pooled", "full" or "groups"
            Each client's own test shard, ``[evaluated rounds, clients]``, NaN where
            that is empty or the client has no such model, or nothing to predict by,
            as none of its classes has a prototype; the union of the shards, or
            the whole test set, ``[evaluated rounds, 1]``; each group's whole test set,
            such as each domain's, ``[evaluated rounds, groups]`` in the order of
            ``Dataset.groups.names``. NaN in rounds in which this rule was not evaluated
            (``Spec.all_rules_every``).

        Raises
        ------
        ValueError
            This was not recorded: the method has no such model, or ``Spec.test`` does
            not ask for the whole test set or its groups.
        """
        on_full = data in ("full", "groups")
        counts = self.log.full if on_full else self.log.accuracy
        name = f"{model}/{rule}"
        if name not in counts or (data == "groups" and self.spec.test != data):
            known = [*self.log.accuracy, *(f"{n} on full" for n in self.log.full)]
            raise ValueError(
                f"accuracy: {self.spec.method} has no {model}/{rule} on {data}, "
                f"recorded are {', '.join(known)}"
            )
        right = counts[name].to(torch.float64)
        samples = self.log.full_samples if on_full else self.log.samples
        samples = torch.where(right == NOT_EVALUATED, 0, samples)
        if data in ("pooled", "full"):
            right = right.clamp(min=0).sum(1, keepdim=True)
            samples = samples.sum(1, keepdim=True)
        return torch.where(samples > 0, right / samples, float("nan"))

    def evaluations(
        self,
        model: str,
        rule: str,
        data: TestData = "clients",
        rounds: Container[int] | None = None,
    ) -> tuple[list[int | None], Tensor]:
        """Return the rounds in which a rule was evaluated, and its accuracy in them.

        Parameters
        ----------
        model, rule, data
            As for ``accuracy``.
        rounds : set of int, optional
            Those that count; by default all.

        Returns
        -------
        list
            Rounds, from 1. Where there are none, None stands for one of NaN alone.
        Tensor
            As from ``accuracy``, a row per round of the list.
        """
        wanted = torch.tensor([rounds is None or r in rounds for r in self.evaluated])
        accuracy = self.accuracy(model, rule, data)
        seen = ~accuracy.isnan().all(1) & wanted
        if not seen.any():
            return [None], accuracy.new_full((1, accuracy.shape[1]), float("nan"))
        return self.log.evaluated[seen].tolist(), accuracy[seen]

    def summary(self, rounds: Container[int] | None = None) -> pd.DataFrame:
        """Return last, best and mean of the last five rounds for every readout.

        Column ``data`` says on what: ``clients`` (means over the clients that have test
        samples, each with the same weight; ``std`` over them with ddof 0), and where
        ``Spec.test`` asks for it ``pooled``, ``full`` or ``groups`` (the mean over
        groups, each with the same weight). Rounds are those in which the rule was
        evaluated, and of these by default all, else those in ``rounds``. The best
        round is chosen on the test set, which favours long and noisy curves:
        FedMPS's released program does so, most papers do not say.
        ``is_paper_rule`` marks model, rule and data of the paper.

        Column ``over`` says how many clients (or groups) the last mean is over, 1 for
        a test set that all share. Column ``who`` is ``participants`` where other
        clients have no such model, since theirs is forgotten after their rounds; then
        the mean says nothing of those. Otherwise it is ``clients``. A rule that could
        not be evaluated in any round has NaN in place of numbers.
        """
        rows = []
        test: TestData = self.spec.test
        pairs: list[tuple[str, str, TestData]] = []
        for model, rule in self.readouts:
            pairs.append((model, rule, "clients"))
        for model, rule in self.readouts if test == "pooled" else []:
            pairs.append((model, rule, "pooled"))
        for model, rule in map(_pair, self.log.full):
            pairs.append((model, rule, "full"))
            if test == "groups":
                pairs.append((model, rule, "groups"))
        for model, rule, data in pairs:
            evaluated, per_client = self.evaluations(model, rule, data, rounds)
            mean = per_client.nanmean(1)
            best = int(mean.argmax())
            some = data == "clients" and self._of_participants(model)
            rows.append(
                {
                    "model": model,
                    "rule": rule,
                    "data": data,
                    "last": float(mean[-1]),
                    "best": float(mean[best]),
                    "best_round": evaluated[best],
                    "mean_last5": float(mean[-5:].mean()),
                    "std_last": _spread(per_client[-1]),
                    "std_best": _spread(per_client[best]),
                    "over": int((~per_client[-1].isnan()).sum()),
                    "who": "participants" if some else "clients",
                    "is_paper_rule": (model, rule) == self.paper_rule and data == test,
                }
            )
        return pd.DataFrame(rows)

    def rounds_of_all_rules(self) -> set[int]:
        """Return the rounds in which every rule was evaluated that ever was."""
        masks = [~self.accuracy(*pair).isnan().all(1) for pair in self.readouts]
        all_of_them = torch.stack([m for m in masks if m.any()]).all(0)
        return set(self.log.evaluated[all_of_them].tolist())

    def _of_participants(self, model: str) -> bool:
        """Return whether some clients lack a model while others have it.

        Without prototypes to predict by, a client that has it lacks some rules alone.
        """
        counts = [v for n, v in self.log.accuracy.items() if _pair(n)[0] == model]
        absent = torch.stack([count == NOT_EVALUATED for count in counts]).all(0)
        return bool((absent.any(1) & ~absent.all(1)).any())

    def payload(self) -> pd.DataFrame:
        """Return the numbers sent per round, direction and field, over all clients.

        What a method sends once, to be finalised, stands in the last round.
        """
        rows = []
        for name, value in self.log.final.items():
            rows.append((self.spec.rounds, *_pair(name), *value[-1].tolist()))
        for name, value in self.log.sent.items():
            for number, size in enumerate(value.tolist(), 1):
                rows.append((number, *_pair(name), *size))
        return pd.DataFrame(
            rows, columns=["round", "direction", "field", "floats", "ints"]
        ).sort_values("round", kind="stable", ignore_index=True)

    def terms(self) -> pd.DataFrame:
        """Return each loss term per round, averaged over the cohort.

        A term that a method has in some rounds only is NaN in the others.
        """
        return self._per_round(self.log.term)

    def watched(self) -> pd.DataFrame:
        """Return what the server reports per round while merging; NaN: not then."""
        return self._per_round(self.log.server)

    def beside_centralised(self) -> pd.DataFrame:
        """Return what a method compares with class means of all clients' data."""
        columns = {name: value.numpy() for name, value in self.log.watch.items()}
        return pd.DataFrame(columns, index=pd.Index(self.evaluated, name="round"))

    def _per_round(self, group: Mapping[str, Tensor]) -> pd.DataFrame:
        columns = {
            n: v.flatten(1).mean(1) if v.ndim > 1 else v for n, v in group.items()
        }
        index = pd.RangeIndex(1, len(self.log.cohort) + 1, name="round")
        return pd.DataFrame({n: v.numpy() for n, v in columns.items()}, index=index)


def sent_bytes(floats: float, ints: float) -> float:
    """Return the size of what is sent: a float has four bytes, an integer eight."""
    return 4 * floats + 8 * ints


def measured(result: Result) -> dict[str, Any] | None:
    """Return what a run reached by its paper's rule, as JSON holds it, in percent.

    Keys ``model``, ``rule`` and ``data`` say what it is the accuracy of; ``last``,
    ``best``, ``best_round`` and ``mean_last5`` are as in ``Result.summary``. A run that
    is tested on each group has ``groups``, the accuracy of each in the best round of
    their mean. None where that rule was not recorded, or could not be evaluated.
    """
    summary = result.summary()
    rows = summary[summary["is_paper_rule"]]
    if not len(rows):
        return None
    row = rows.iloc[0]
    if isnan(row["last"]):
        return None
    numbers = {n: round(100 * float(row[n]), 8) for n in ("last", "best", "mean_last5")}
    readout = {n: str(row[n]) for n in ("model", "rule", "data")}
    record = {**readout, **numbers, "best_round": int(row["best_round"])}
    names = DATASETS[result.spec.dataset].groups
    if result.spec.test == "groups" and names:
        at = result.evaluated.index(record["best_round"])
        per_group = 100 * result.accuracy(*result.paper_rule, "groups")[at]
        rounded = [None if isnan(v) else round(v, 8) for v in per_group.tolist()]
        record["groups"] = dict(zip(names, rounded, strict=True))
    return record
