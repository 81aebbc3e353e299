"""From finished runs to the rows of a table.

What runs are called stands in ``titles``, the paper's numbers in ``beside``, how soon
curves rise in ``pacing``. Notebooks have all of it from here.
"""

from collections.abc import Sequence

import pandas as pd

from fedlib import registry
from fedlib.data import facts
from fedlib.runs.beside import (
    against,
    beside_paper,
    leads,
    leads_of,
    leads_over,
    means_over_seeds,
    nearest_rule,
    over_seeds,
    reference,
    under_rules,
)
from fedlib.runs.pacing import ends, pace, ratios
from fedlib.runs.results import Result
from fedlib.runs.titles import (
    NAMES,
    data_title,
    label,
    labels,
    logged_title,
    printed,
)

__all__ = [
    "NAMES",
    "READOUTS",
    "SDS",
    "accuracies",
    "against",
    "beside_paper",
    "communication",
    "curves",
    "data_title",
    "ends",
    "label",
    "labels",
    "leads",
    "leads_of",
    "leads_over",
    "log_panels",
    "logged_title",
    "logs",
    "means_over_seeds",
    "message_fields",
    "nearest_rule",
    "over_seeds",
    "pace",
    "per_client",
    "printed",
    "ratios",
    "readouts",
    "reference",
    "under_rules",
]

# What a readout says of a run, and the sd of each over seeds, in ``readouts``.
READOUTS = ["last", "best", "mean_last5"]
SDS = {name: f"{name}_sd" for name in READOUTS}


def accuracies(results: Sequence[Result], shared_rounds: bool = False) -> pd.DataFrame:
    """Return one row per run, model and rule, in percent.

    On the test data that the spec reports, as ``readouts``: two sets of a run are no
    two seeds. Models that are not evaluated on it have no row.

    Columns dataset, method (as ``label`` says it), seed, model, rule, data, last, best,
    best_round, mean_last5, is_paper_rule. ``best`` is the best round by mean test
    accuracy, a selection on the test set. It grows with the number of rounds to choose
    from, and methods do not evaluate all rules equally often (``all_rules_every``):
    ``shared_rounds`` takes those in which all runs of a data set evaluated all rules,
    or all where there is none.
    """
    parts = []
    rounds: dict[str, set[int]] = {}
    for result in results if shared_rounds else ():
        dataset, there = result.spec.dataset, result.rounds_of_all_rules()
        rounds[dataset] = rounds.get(dataset, there) & there
    for result, name in zip(results, labels(results), strict=True):
        spec = result.spec
        summary = result.summary(rounds.get(spec.dataset) or None)
        numbers = ["last", "best", "mean_last5"]
        summary[numbers] *= 100
        head = {"dataset": spec.dataset, "method": name, "seed": spec.seed}
        columns = ["model", "rule", "data", *numbers, "best_round", "is_paper_rule"]
        reported = summary[summary["data"] == spec.test]
        parts.append(reported[columns].assign(**head))
    frame = pd.concat(parts, ignore_index=True)
    first = ["dataset", "method", "seed"]
    return frame[[*first, *(c for c in frame if c not in first)]]


def readouts(results: Sequence[Result]) -> pd.DataFrame:
    """Return last, best and mean of the last five for every readout, in percent.

    On the test data that the spec reports; ``reported`` marks the paper's readout.

    Returns
    -------
    DataFrame
        run, model, rule, data, reported; each number as the mean over seeds, with its
        sd (``last_sd``, ddof 1; missing for one seed); seeds.
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        summary = result.summary().assign(run=name)
        parts.append(summary[summary.data == result.spec.test])
    rows = pd.concat(parts, ignore_index=True)
    rows[READOUTS] *= 100
    marked = rows.assign(reported=rows["is_paper_rule"].map({True: "*", False: ""}))
    keys = ["run", "model", "rule", "data", "reported"]
    means = {name: (name, "mean") for name in READOUTS}
    means |= {sd: (name, "std") for name, sd in SDS.items()}
    seeds = marked.groupby(keys, sort=False).agg(**means, seeds=("last", "size"))
    return seeds.reset_index()


def per_client(results: Sequence[Result]) -> pd.DataFrame:
    """Return each client's accuracy of the last round by the paper's rule, in percent.

    Columns: run, seed, client, accuracy.
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        last = 100 * result.accuracy(*result.paper_rule)[-1]
        rows = {"client": range(len(last)), "accuracy": last.numpy()}
        parts.append(pd.DataFrame(rows).assign(run=name, seed=result.spec.seed))
    frame = pd.concat(parts, ignore_index=True)
    return frame[["run", "seed", "client", "accuracy"]]


def logs(results: Sequence[Result]) -> pd.DataFrame:
    """Return what runs log per round, averaged over seeds.

    Columns: run, source, name, round, value.

    ``source`` is ``client`` (loss terms, averaged over the cohort), ``server`` (what
    merging reports) or ``centralised`` (beside class means of all data). Rounds in
    which a method does not have a number are left out.
    """
    parts = []
    for result, run in zip(results, labels(results), strict=True):
        frames = {
            "client": result.terms(),
            "server": result.watched(),
            "centralised": result.beside_centralised(),
        }
        for source, frame in frames.items():
            long = frame.reset_index().melt("round", var_name="name").dropna()
            parts.append(long.assign(run=run, source=source))
    # of frames without rows older pandas warns, since their columns have no type
    rows = pd.concat([part for part in parts if len(part)] or parts, ignore_index=True)
    keys = ["run", "source", "name", "round"]
    return rows.groupby(keys, sort=False)["value"].mean().reset_index()


def log_panels(
    logged: pd.DataFrame, source: str, names: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return what ``plot.curves`` draws of one source of ``logs``.

    A panel per name, with words for its title; what was logged is ``value``.
    """
    chosen = logged[logged.source == source]
    if names is not None:
        chosen = chosen[chosen.name.isin(names)]
    columns = {"run": "method", "name": "panel"}
    chosen = chosen.assign(name=chosen["name"].map(logged_title))
    return chosen.rename(columns=columns).drop(columns="source")


def curves(
    results: Sequence[Result], rule: tuple[str, str] | None = None
) -> pd.DataFrame:
    """Return accuracy per round, as fractions, averaged over clients and then seeds.

    Parameters
    ----------
    rule : (model, rule), optional
        One readout for all; methods without that model are left out. By default each
        method's own, as its paper evaluates it.

    Returns
    -------
    DataFrame
        panel (title of the data set), method, round, accuracy and, with several
        seeds, sd over them (ddof 1).
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        model, how = rule or result.paper_rule
        if (model, how) not in result.readouts:
            continue
        data = result.spec.test if rule is None else "clients"
        accuracy = result.accuracy(model, how, data).nanmean(1)
        rows = {"round": result.evaluated, "accuracy": accuracy.numpy()}
        head = {"panel": facts(result.spec.dataset).title, "method": name}
        parts.append(pd.DataFrame(rows).assign(**head))
    by_round = pd.concat(parts).dropna(subset="accuracy")  # of rounds with this rule
    grouped = by_round.groupby(["panel", "method", "round"], sort=False)["accuracy"]
    frame = grouped.agg(accuracy="mean", sd="std").reset_index()
    return frame if frame["sd"].notna().all() else frame.drop(columns="sd")


def message_fields(results: Sequence[Result], number: int = 2) -> pd.DataFrame:
    """Return what each method sends in a round, over all clients, field by field."""
    parts = []
    for result in results:
        sent = result.payload().query("round == @number").drop(columns="round")
        parts.append(sent.assign(method=result.spec.method))
    frame = pd.concat(parts, ignore_index=True).astype({"floats": int, "ints": int})
    return frame[["method", "direction", "field", "floats", "ints"]]


def communication(results: Sequence[Result], number: int = 2) -> pd.DataFrame:
    """Return floats per round by each paper's way of counting, and in both directions.

    Columns: method, counted (the fields in ``Method.counted``; a broadcast counted
    once stands for one receiver), both_directions (all floats, every receiver).
    """
    rows = []
    for result in results:
        name = result.spec.method
        receivers = result.log.cohort.shape[1]
        sent = result.payload().query("round == @number")
        floats = sent.set_index(["direction", "field"])["floats"]
        counted = 0
        for part in registry.method(name).counted:
            value = int(floats[part.direction, part.field])
            counted += value // receivers if part.once else value
        rows.append((name, counted, int(floats.sum())))
    return pd.DataFrame(rows, columns=["method", "counted", "both_directions"])
