"""Numbers of FedMPS's tables and figures that a grid of runs does not give alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from fedlib import papers
from fedlib.data import load
from fedlib.papers.study import Study
from fedlib.partitions import Partition, draw
from fedlib.runs.timings import cpu_seconds_per_round

SAMPLING = ["classes", "block", "shots", "test_shots", "spread"]


def sampling(datasets: Sequence[str], paper: pd.DataFrame) -> pd.DataFrame:
    """Return the settings of n-way k-shot sampling, one row per data set and setting.

    Parameters
    ----------
    paper : DataFrame
        dataset and the columns of ``SAMPLING``, as printed.

    Returns
    -------
    DataFrame
        dataset, setting, paper (empty where it has no such data set), ours, gap.
    """
    theirs = paper.set_index("dataset")[SAMPLING].to_dict("index")
    rows = []
    for name in datasets:
        ours: dict[str, Any] = papers.PAPERS["fedmps"][name].partition.model_dump()
        ours["classes"] = len(load(name).classes)
        for setting in SAMPLING:
            their = theirs.get(name, {}).get(setting, float("nan"))
            rows.append((name, setting, float(their), float(ours[setting])))
    table = pd.DataFrame(rows, columns=["dataset", "setting", "paper", "ours"])
    return table.assign(gap=table["ours"] - table["paper"])


def _span(values: np.ndarray) -> str:
    """Return the least and the largest value, ``2 to 4``, or the one there is."""
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def draws(
    datasets: Sequence[str], ways: Sequence[int], seed: int
) -> tuple[pd.DataFrame, dict[str, Partition]]:
    """Draw the clients of every data set and number of ways, from labels alone.

    Returns
    -------
    DataFrame
        One row per draw: ``n``, ``k`` and ``t``, the least and the largest number of
        classes of a client, and of training and test samples of a class that a client
        has; ``prototypes``, the sum of n over clients; ``one_owner`` and ``no_owner``,
        classes of which one client and no client has samples; ``train`` and ``test``
        samples; ``changes``, how often a class was too small for the settings.
    dict
        The partitions, by ``dataset, n = ways``.
    """
    rows, parts = [], {}
    for name in datasets:
        data = load(name)
        for n in ways:
            spec = papers.fedmps(name, "local", ways=n, seed=seed)
            part = draw(
                spec.partition,
                data.train_y,
                data.test_y,
                clients=spec.clients,
                seed=spec.seed,
            )
            parts[f"{name}, n = {n}"] = part
            held = part.table(data.train_y).to_numpy()
            classes = held.shape[1]
            tested = np.stack(
                [data.test_y[i].bincount(minlength=classes).numpy() for i in part.test]
            )
            owners = (held > 0).sum(0)
            row = {"dataset": name, "ways": n, "clients": spec.clients}
            row |= {"n": _span((held > 0).sum(1)), "k": _span(held[held > 0])}
            row |= {"t": _span(tested[tested > 0]), "prototypes": int(owners.sum())}
            row |= {"one_owner": int((owners == 1).sum())}
            row |= {"no_owner": int((owners == 0).sum())}
            row |= {"train": int(held.sum()), "test": int(tested.sum())}
            rows.append(row | {"changes": len(part.deviations)})
    return pd.DataFrame(rows), parts


def over_clients(
    study: Study, paper: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return a table whose ``sd`` is over clients (ddof 0), and how it is printed.

    In the best round; with several seeds it is the mean of their sds. Nothing is
    marked as best: clients' spread says nothing about that of the seeds.
    """
    table = study.table("best", paper)
    table = table.assign(sd=table["client_sd"]).drop(columns="client_sd")
    values = [v for v in study.marked["values"] if v != "client_sd"]
    return table, study.marked | {"values": values, "best": []}


def sensitivity(table: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return how much accuracy depends on each swept setting, beside the paper's.

    Parameters
    ----------
    table : DataFrame
        As ``Study.table`` returns it for several sweeps.
    paper : DataFrame
        dataset, setting, best, sd.

    Returns
    -------
    DataFrame
        dataset, setting, paper_best, best (the value with the highest mean, the first
        of equals), paper_sd, sd (of the means over the values, ddof 0).
    """
    rows = []
    for (dataset, setting), part in table.groupby(["dataset", "setting"], sort=False):
        best = part["value"].iloc[int(part["mean"].to_numpy().argmax())]
        sd = part["mean"].std(ddof=0)
        rows.append((dataset, setting, float(best), float(sd)))
    ours = pd.DataFrame(rows, columns=["dataset", "setting", "best", "sd"])
    columns = {"best": "paper_best", "sd": "paper_sd"}
    theirs = paper.rename(columns=columns)[["dataset", "setting", *columns.values()]]
    joined = ours.merge(theirs, "left", ["dataset", "setting"], validate="1:1")
    return joined[["dataset", "setting", "paper_best", "best", "paper_sd", "sd"]]


def targets(study: Study, target: float) -> pd.DataFrame:
    """Return when each run first has a mean test accuracy of ``target``, a fraction.

    Returns
    -------
    DataFrame
        dataset, method, seed, best (percent), rounds (the first evaluated round that
        has it, empty where none has) and sent (floats up to there, both directions).
    """
    rows = []
    cells = study.cells.to_dict("records")
    for cell, result in zip(cells, study.results, strict=True):
        mean = result.accuracy(*result.paper_rule, result.spec.test).nanmean(1)
        reached = (mean >= target).nonzero().flatten().tolist()
        row = {name: cell[name] for name in ("dataset", "method", "seed")}
        row |= {"best": 100 * float(mean.max())}
        row |= {"rounds": float("nan"), "sent": float("nan")}
        if reached:
            number, payload = result.evaluated[reached[0]], result.payload()
            sent = payload.loc[payload["round"] <= number, "floats"].sum()
            row |= {"rounds": float(number), "sent": float(sent)}
        rows.append(row)
    return pd.DataFrame(rows)


def seconds(study: Study, target: float) -> pd.DataFrame:
    """Return the processor's seconds of each run, per round and up to a target.

    They were measured when the run was made, evaluation included, and differ between
    machines and between two runs on one machine.
    """
    table = targets(study, target)
    per_round = [cpu_seconds_per_round(result.spec) for result in study.results]
    table = table.assign(per_round=pd.Series(per_round, dtype=float))
    table = table.assign(to_target=table["per_round"] * table["rounds"])
    return table[["dataset", "method", "seed", "per_round", "to_target"]]
