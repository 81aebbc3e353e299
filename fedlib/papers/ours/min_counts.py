"""What it costs that clients keep back classes of few samples (``Spec.min_count``)."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedlib import registry
from fedlib.core.method import cohort_size
from fedlib.data import load
from fedlib.papers.ours import leaderboard
from fedlib.runs.federation import partition_of
from fedlib.runs.results import Result, sent_bytes
from fedlib.runs.spec import Spec, refuse_unknown


def specs(p: Mapping[str, Any]) -> list[Spec]:
    """Return the runs: those of ``leaderboard.specs`` at each of ``min_counts``.

    Parameters
    ----------
    p : mapping
        As for the leaderboard, with ``min_counts``, and ``sampling``: settings in place
        of a partition's own, for the schemes that have them.

    Raises
    ------
    SettingError
        A method that sends nothing per class, or an unknown or illegal setting.
    """
    refuse_unknown(p, leaderboard.PARAMETERS | {"min_counts", "sampling"})
    shared = {name: p[name] for name in p if name in leaderboard.PARAMETERS}
    runs = []
    for spec in leaderboard.specs(shared):
        own = spec.partition.model_dump()
        drawn = own | {k: v for k, v in p["sampling"].items() if k in own}
        same = spec.model_dump() | {"partition": drawn}
        runs += [Spec.of(**same | {"min_count": m}) for m in p["min_counts"]]
    return runs


def kilobytes(result: Result) -> float:
    """Return what one client sends of its classes per round, in kB (10^3 bytes).

    Floats count four bytes, integers eight.
    """
    spec = result.spec
    sent = result.payload()
    fields = registry.method(spec.method).per_class
    sent = sent[(sent["direction"] == "up") & sent["field"].isin(fields)]
    total = sent_bytes(sent["floats"].sum(), sent["ints"].sum())
    cohort = cohort_size(spec.participation, spec.clients)
    return float(total) / cohort / spec.rounds / 1e3


def table(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per partition, method and ``min_count``.

    Returns
    -------
    DataFrame
        partition (as printed), method, min_count, withheld (share of the cells, a
        class of a client, that are withheld), accuracy (on the clients' own test
        shards by the method's own rule, mean over clients, last round), change (of
        accuracy, from the smallest ``min_count`` of the same seed), change_sd (of it
        over seeds, ddof 1), kilobytes (of what is sent of classes, per client and
        round), seeds.
    """
    rows = []
    for result in results:
        spec, data = result.spec, load(result.spec.dataset)
        cells = partition_of(spec, data).table(data.train_y).to_numpy()
        rows.append(
            {
                "partition": leaderboard.PARTITIONS[spec.partition.scheme],
                "method": spec.method,
                "min_count": spec.min_count,
                "seed": spec.seed,
                "withheld": float((cells[cells > 0] < spec.min_count).mean()),
                "accuracy": float(result.accuracy(*result.paper_rule)[-1].nanmean()),
                "kilobytes": kilobytes(result),
            }
        )
    frame = pd.DataFrame(rows)
    runs = ["partition", "method", "seed"]
    first = frame.groupby(runs)["min_count"].transform("idxmin")
    frame["change"] = frame["accuracy"] - frame.loc[first, "accuracy"].to_numpy()
    grouped = frame.groupby(["partition", "method", "min_count"], sort=False)
    means = grouped[["withheld", "accuracy", "change", "kilobytes"]].mean()
    means["change_sd"], means["seeds"] = grouped["change"].std(), grouped.size()
    order = ["withheld", "accuracy", "change", "change_sd", "kilobytes", "seeds"]
    return means[order].reset_index()
