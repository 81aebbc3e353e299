"""What FedPA and its baselines send in a round: formulas beside what was counted."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from fedlib.methods import fedpa
from fedlib.runs.federation import federation
from fedlib.runs.results import Result, sent_bytes
from fedlib.runs.spec import Spec


class Lengths(NamedTuple):
    """What the formulas are made of."""

    model: int  # P, trained weights of the classifier network
    statistics: int  # S, running means and variances of its BatchNorm layers
    generator: int  # G, trained weights of the generator
    hidden: int  # H, width of its BatchNorm layer
    embedding: int  # d
    classes: int  # C


Formula = tuple[str, Callable[[Lengths], int]]

WEIGHTS: dict[str, Formula] = {
    "model": ("P", lambda n: n.model),
    "model_buffers": ("S", lambda n: n.statistics),
}
GENERATOR: dict[str, Formula] = {
    "generator": ("G", lambda n: n.generator),
    "generator_buffers": ("2 H", lambda n: 2 * n.hidden),
}
LABELS: dict[str, Formula] = {"labels": ("C", lambda n: n.classes)}
PROTOS: dict[str, Formula] = {"protos": ("C d", lambda n: n.classes * n.embedding)}
SOFT: dict[str, Formula] = {  # prototypes and soft labels
    "protos": ("C (d + C)", lambda n: n.classes * (n.embedding + n.classes))
}
# Floats of each field, with all classes present; counts of samples are integers.
FORMULAS: dict[str, dict[str, dict[str, Formula]]] = {
    "fedavg": {"down": WEIGHTS, "up": WEIGHTS},
    "fedprox": {"down": WEIGHTS, "up": WEIGHTS},
    "fedensemble": {"down": WEIGHTS, "up": WEIGHTS},
    "fedgen": {"down": WEIGHTS | GENERATOR | LABELS, "up": WEIGHTS | LABELS},
    "fedhkd": {"down": WEIGHTS | SOFT, "up": WEIGHTS | SOFT},
    "fedpa": {
        "down": WEIGHTS | GENERATOR | PROTOS | LABELS,
        "up": WEIGHTS | PROTOS | LABELS,
    },
}


def lengths(spec: Spec) -> Lengths:
    """Return the lengths of a spec's network, and of FedPA's generator for it."""
    fed = federation(spec)
    net, classes = fed.ctx.net, fed.ctx.classes
    hp = spec.hp if spec.method == "fedpa" else {}
    made = fedpa.generator_of(replace(fed.ctx, hp=fedpa.HP(**hp))).module
    held = [b.numel() for b in net.module.buffers() if b.is_floating_point()]
    return Lengths(
        model=sum(p.numel() for p in net.module.parameters()),
        statistics=sum(held),
        generator=sum(p.numel() for p in made.parameters()),
        hidden=fedpa.HP(**hp).hidden,
        embedding=net.embedding_sizes()[1],
        classes=classes,
    )


def _place(row: dict) -> tuple[str, int]:
    """Return where a field stands: weights first, what has no formula last."""
    known = [*(WEIGHTS | GENERATOR | PROTOS | LABELS), row["field"]]
    return row["direction"], known.index(row["field"])


def fields(results: Sequence[Result], number: int = 2) -> pd.DataFrame:
    """Return what one client receives and sends in a round, field by field.

    Parameters
    ----------
    results : list of Result
        Runs of methods in ``FORMULAS``, all of one data set and network.
    number : int
        The round, from 1; in the first a server has nothing but weights to send.

    Returns
    -------
    DataFrame
        method, direction, field, formula and ``by_formula``, floats if all classes are
        present; floats and ints as counted in the messages, a mean over the cohort;
        bytes (``sent_bytes``).
    """
    rows, n = [], lengths(results[-1].spec)
    for result in results:
        cohort = result.log.cohort.shape[1]
        sent = result.payload().query("round == @number")
        for row in sorted(sent.to_dict("records"), key=_place):
            way, field = row["direction"], row["field"]
            known = FORMULAS[result.spec.method][way]
            text, count = known.get(field, ("", None))
            floats, ints = row["floats"] / cohort, row["ints"] / cohort
            if not (floats or ints):
                continue
            rows.append(
                {
                    "method": result.spec.method,
                    "direction": way,
                    "field": field,
                    "formula": text,
                    "by_formula": count(n) if count else 0,
                    "floats": floats,
                    "ints": ints,
                    "bytes": sent_bytes(floats, ints),
                }
            )
    return pd.DataFrame(rows)


def totals(fields: pd.DataFrame, method: str = "fedavg") -> pd.DataFrame:
    """Return the sums of ``fields`` per method and direction.

    Column ``times`` is the bytes over those of ``method`` in the same direction.
    """
    joined = fields.groupby(["method", "direction"], sort=False)
    table = joined[["by_formula", "floats", "ints", "bytes"]].sum()
    formula = joined["formula"].agg(lambda terms: " + ".join(f for f in terms if f))
    table.insert(0, "formula", formula)
    table = table.reset_index()
    base = table[table["method"] == method].set_index("direction")["bytes"]
    return table.assign(times=table["bytes"] / table["direction"].map(base))
