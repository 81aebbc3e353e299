"""The result of a run: logs per round as tensors, and the tables made of them."""

from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import Tensor

from fedlib import registry
from fedlib.readouts import Rule
from fedlib.spec import Spec


@dataclass(frozen=True)
class Result:
    """A finished run: per-round logs as tensors, and tables made of them."""

    spec: Spec
    key: str
    log: dict[str, Tensor] = field(repr=False)  # each with a leading round axis

    @property
    def paper_rule(self) -> Rule:
        """Model and rule of the accuracy that the method's paper reports."""
        return registry.method(self.spec.method).predict

    @property
    def readouts(self) -> list[tuple[str, str]]:
        """All recorded pairs of model and rule."""
        names = [n.split("/") for n in self.log if n.startswith("accuracy/")]
        return [(model, rule) for _, model, rule in names]

    @property
    def evaluated(self) -> list[int]:
        """The rounds with an evaluation, from 1."""
        return self.log["evaluated"].tolist()

    def accuracy(self, model: str, rule: str) -> Tensor:
        """Return the accuracy ``[evaluated rounds, clients]`` as fractions.

        Raises
        ------
        ValueError
            This pair was not recorded: the method has no such model.
        """
        if (model, rule) not in self.readouts:
            raise ValueError(
                f"accuracy: {self.spec.method} has no {model}/{rule}, recorded are "
                + ", ".join("/".join(pair) for pair in self.readouts)
            )
        right = self.log[f"accuracy/{model}/{rule}"].to(torch.float64)
        return right / self.log["samples"].clamp(min=1)

    def summary(self) -> pd.DataFrame:
        """Return last, best and mean of the last five rounds for every readout.

        Means are over clients, each with the same weight; ``std`` over clients with
        ddof 0. The best round is chosen on the test set, as the papers do.
        """
        rows = []
        for model, rule in self.readouts:
            each = self.accuracy(model, rule)
            mean = each.mean(1)
            best = int(mean.argmax())
            rows.append(
                {
                    "model": model,
                    "rule": rule,
                    "last": float(mean[-1]),
                    "best": float(mean[best]),
                    "best_round": self.evaluated[best],
                    "mean_last5": float(mean[-5:].mean()),
                    "std_last": float(each[-1].std(correction=0)),
                    "std_best": float(each[best].std(correction=0)),
                    "is_paper_rule": (model, rule) == self.paper_rule,
                }
            )
        return pd.DataFrame(rows)

    def payload(self) -> pd.DataFrame:
        """Return the numbers sent per round, direction and field, over all clients."""
        rows = []
        for name, value in self.log.items():
            if name.startswith("sent/"):
                _, direction, part = name.split("/")
                for number, (floats, ints) in enumerate(value.tolist(), 1):
                    rows.append((number, direction, part, floats, ints))
        return pd.DataFrame(
            rows, columns=["round", "direction", "field", "floats", "ints"]
        ).sort_values("round", kind="stable", ignore_index=True)

    def terms(self) -> pd.DataFrame:
        """Return each loss term per round, averaged over the cohort."""
        found = {
            n.removeprefix("term/"): v.mean(1)
            for n, v in self.log.items()
            if n[:5] == "term/"
        }
        frame = pd.DataFrame({n: v.numpy() for n, v in found.items()})
        return frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="round"))
