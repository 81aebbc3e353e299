"""GFPL's tables: what is sent by several ways of counting, and settings as printed."""

from collections.abc import Sequence

import pandas as pd

from fedlib import papers
from fedlib.data import DATASETS
from fedlib.papers.study import Study
from fedlib.runs.federation import federation
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec

DIRECTIONS = {"up": "sent", "down": "received"}


def sent(results: Sequence[Result]) -> pd.DataFrame:
    """Return what each run sends, counted from its messages; one row per run.

    An exchange is a round in which a client uploads floats; the last one stands for
    all. Columns, in floats:

    - ``exchanges``: how many there are;
    - ``up``, ``down``: of one client in one exchange (A is ``up``);
    - ``per_round``: uploads of all clients, per round of all rounds (B);
    - ``per_exchange``: uploads of all clients in one exchange (D);
    - ``total``: both directions, all clients, all rounds.
    """
    rows = []
    for result in results:
        floats = result.payload().pivot_table(
            index="round", columns="direction", values="floats", aggfunc="sum"
        )
        floats = floats.reindex(columns=["up", "down"], fill_value=0)
        clients = result.log.cohort.shape[1]
        busy = floats[floats["up"] > 0]
        up, down = busy.iloc[-1] if len(busy) else (0, 0)
        rows.append(
            {
                "exchanges": len(busy),
                "up": up / clients,
                "down": down / clients,
                "per_round": floats["up"].sum() / result.spec.rounds,
                "per_exchange": float(up),
                "total": float(floats.to_numpy().sum()),
            }
        )
    return pd.DataFrame(rows)


def sent_points(study: Study) -> pd.DataFrame:
    """Return what ``panels.lines`` draws of a client's traffic in one exchange.

    In thousands (``floats_k``); lines are the directions, of each run where there are
    several.
    """
    runs = study.cells.join(sent(study.results)[[*DIRECTIONS]])
    keys = ["dataset", "setting", "value", "method"]
    mean = runs.groupby(keys, sort=False)[[*DIRECTIONS]].mean() / 1000
    long = mean.reset_index().melt(keys, var_name="way", value_name="floats_k")
    ways = long["way"].map(DIRECTIONS)
    several = long["method"].nunique() > 1
    lines = long["method"] + ", " + ways if several else ways
    return long.assign(method=lines).drop(columns="way")


def communication(study: Study, paper: pd.DataFrame) -> pd.DataFrame:
    """Return rounds and thousands of floats sent, beside the paper's; no seeds.

    Where accuracy is best first (``best_round``) is averaged over seeds; it is 0 where
    nothing is sent, as the paper counts.
    """
    keys = ["dataset", "ways", "method"]
    sizes = sent(study.results)
    thousands = ["up", "per_round", "per_exchange", "down", "total"]
    sizes[thousands] /= 1000
    runs = study.frame().rename(columns={"value": "ways"}).join(sizes)
    grouped = runs.groupby(keys, sort=False)
    mean = grouped[["best_round", "exchanges", *thousands]].mean().reset_index()
    mean["best_round"] = mean["best_round"].where(mean["total"] > 0, 0)
    names = {"rounds": "paper_rounds", "parameters_k": "paper_k"}
    theirs = paper.rename(columns=names)[[*keys, *names.values()]]
    table = mean.merge(theirs, "left", keys, validate="1:1")
    names = {"up": "A", "per_round": "B", "per_exchange": "D"}
    order = [*keys, "paper_rounds", "best_round", "exchanges", "paper_k"]
    return table.rename(columns=names)[[*order, "A", "B", "D", "down", "total"]]


def at_rounds(study: Study, paper: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy in the round that the paper stops a method at, in percent.

    Columns dataset, ways, method, ``at_paper``; empty where the run is shorter, where
    that round was not evaluated, and where the paper gives none.
    """
    keys = ["dataset", "ways", "method"]
    runs = study.cells.rename(columns={"value": "ways"})
    runs = runs.merge(paper[[*keys, "rounds"]], "left", keys, validate="many_to_one")
    values = []
    for stop, result in zip(runs["rounds"], study.results, strict=True):
        mean = result.accuracy(*result.paper_rule, result.spec.test).nanmean(1)
        by_round = dict(zip(result.evaluated, (100 * mean).tolist(), strict=True))
        values.append(by_round.get(stop, float("nan")))
    runs = runs.assign(at_paper=values)
    return runs.groupby(keys, sort=False)["at_paper"].mean().reset_index()


def _setting(spec: Spec, name: str) -> float | None:
    """Return a number of a spec, wherever it is; None for one that it does not have."""
    if name == "channels":
        return DATASETS[spec.dataset].shape[0]
    for part in (spec.hp, spec.training.model_dump(), spec.partition.model_dump()):
        if name in part:
            return part[name]
    return None


def settings(paper: str, method: str, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return the settings that a paper prints beside those that the library runs with.

    Parameters
    ----------
    theirs : DataFrame
        dataset, setting, value and mark, as ``reports.reference`` returns them.

    Returns
    -------
    DataFrame
        dataset, setting, paper, ours, gap, mark; empty where the library has no
        protocol for the data set.
    """
    known = papers.PAPERS[paper]
    specs = {
        name: papers.BUILDERS[paper](name, method)
        for name in theirs["dataset"].unique()
        if name in known
    }
    ours = [
        _setting(specs[row.dataset], row.setting) if row.dataset in specs else None
        for row in theirs.itertuples()
    ]
    table = theirs.rename(columns={"value": "paper"}).assign(ours=ours)
    table["ours"] = table["ours"].astype(float)
    table["gap"] = table["ours"] - table["paper"]
    return table[["dataset", "setting", "paper", "ours", "gap", "mark"]]


def merges(study: Study) -> pd.DataFrame:
    """Return components before and after merging in the last exchange, per setting.

    Columns dataset, the setting's name, method, best, last (accuracy in percent),
    received, kept, merged, and the 10, 50 and 90 % quantiles of the distances between
    components of a class (distance_low, distance_median, distance_high); means over
    seeds.
    """
    counts = ["received", "kept", "merged"]
    counts += ["distance_low", "distance_median", "distance_high"]
    last = [r.watched().reindex(columns=counts).dropna() for r in study.results]
    ends = pd.DataFrame([w.iloc[-1] if len(w) else {} for w in last], columns=counts)
    runs = study.frame()[[*study.cells, "best", "last"]].join(
        ends.reset_index(drop=True)
    )
    name = runs["setting"].iloc[0]
    runs = runs.rename(columns={"value": name})
    by = runs.groupby(["dataset", name, "method"], sort=False)
    return by[["best", "last", *counts]].mean().reset_index()


def against_formula(study: Study) -> pd.DataFrame:
    """Return what a client sends and receives in an exchange, beside the arithmetic.

    ``formula_up`` is n w (2 d + 1) with the mean number w of classes that clients drew;
    ``formula_down`` is that of all clients, as if nothing merged.
    """
    rows = []
    for result in study.results:
        fed = federation(result.spec)
        size = 2 * fed.ctx.net.embedding_sizes()[1] + 1
        owned = fed.partition.owns.sum() * result.spec.hp["components"] * size
        everything = float(owned)
        per_client = everything / result.spec.clients
        rows.append({"formula_up": per_client, "formula_down": everything})
    beside = sent(study.results)[["up", "down"]].join(pd.DataFrame(rows))
    table = study.cells.join(beside).drop(columns="seed")
    order = ["up", "formula_up", "down", "formula_down"]
    return table[["dataset", "setting", "value", "method", *order]]
