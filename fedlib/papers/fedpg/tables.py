"""FedPG's tables: final accuracy, rounds beside FedAvg's, and the paper's ablation."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedlib import registry
from fedlib.methods import fedpg
from fedlib.papers.study import Study
from fedlib.runs import pacing

PARTITION = ["partition", "alpha"]  # columns of Table 1 that name a setting

# How ``final`` is printed: a clear best in bold.
MARKED: dict[str, Any] = {
    "values": ["paper", "mean", "gap", "best", "mean_last5"],
    "sd": {"mean": "sd"},
    "best": ["mean"],
}


def final(study: Study, paper: pd.DataFrame) -> pd.DataFrame:
    """Return accuracy after the last round beside the paper's, and two other readings.

    Parameters
    ----------
    paper : DataFrame
        As ``Study.table`` takes it.

    Returns
    -------
    DataFrame
        Columns of settings, method, paper, mean and sd (last round, over seeds, ddof
        1), gap, best (evaluated round, chosen on the test set), mean_last5, seeds.
    """
    table = study.table("last", paper)
    others = {name: study.table(name)["mean"] for name in ("best", "mean_last5")}
    table = table.drop(columns=["paper_sd", "last", "client_sd"]).assign(**others)
    columns = [c for c in table if c != "seeds"]
    return table[[*columns, "seeds"]]


def speed(
    study: Study, paper: pd.DataFrame, shares: Sequence[float] = (0.95,)
) -> pd.DataFrame:
    """Return how many times sooner than FedAvg methods reach targets (Table 1).

    Of the mean curve over seeds; see ``pacing.ratios``. FedAvg itself and methods that
    work on a finished model (CCVR) have no row.

    Parameters
    ----------
    paper : DataFrame
        Table 1 as ``beside.reference`` returns it.
    shares : list of float
        Targets, as shares of FedAvg's best; ``rounds`` and ``target`` are of the first.

    Returns
    -------
    DataFrame
        Columns of settings, method, paper (the printed ratio), paper_never (``never``
        where the paper prints NaN), target in percent, rounds, and a ratio per share
        in a column ``at 95 %``; empty where a target is not reached.
    """
    theirs = paper.drop(columns="mean").rename(columns={"ratio": "mean"})
    table = study.table("last", study.like(theirs, PARTITION))
    never = study.like(paper.assign(mean=paper["never"].astype(float)), PARTITION)
    never = study.table("last", never)["paper"] == 1
    keys = [*table.columns[: table.columns.get_loc("paper")]]
    ratios = pacing.ratios(study.curves(), "fedavg", shares)
    columns = {}
    for share in shares:
        here = ratios[ratios["share"] == share].reset_index(drop=True)
        if here["method"].tolist() != table["method"].tolist():
            raise ValueError("found: expected every method in every panel")
        columns.setdefault("target", here["target"])
        columns.setdefault("rounds", here["rounds"])
        columns[f"at {100 * share:g} %"] = here["ratio"]
    table = table[[*keys, "paper"]].assign(
        paper_never=never.map({True: "never", False: ""}), **columns
    )
    specs = zip(study.cells["method"], study.results, strict=True)
    methods = {label: registry.method(r.spec.method) for label, r in specs}
    rows = [
        methods[label].name != "fedavg" and methods[label].finalise is None
        for label in table["method"]
    ]
    return table[rows].reset_index(drop=True)


def ablation(paper: pd.DataFrame, sizes: Sequence[int]) -> pd.DataFrame:
    """Return Table 2 for ``Study.table``: a row per strategy and size of D'.

    Strategies have the paper's short names (``fedpg.ABLATIONS``). FedAvg, which has no
    virtual images, is repeated for every size.

    Parameters
    ----------
    paper : DataFrame
        Table 2 as ``beside.reference`` returns it.
    sizes : list of int
        Virtual images per class that ran.
    """
    short = {
        f"without_{weight.removesuffix('_weight')}": name
        for name, weights in fedpg.ABLATIONS.items()
        for weight in weights
    }
    labelled = paper.assign(method=paper["variant"].map(short).fillna(paper["method"]))
    base = labelled[labelled["method"] == "fedavg"]
    repeated = [base.assign(virtual_per_class=size) for size in sizes]
    parts = [labelled[labelled["method"] != "fedavg"], *repeated]
    columns = ["dataset", "virtual_per_class", "method", "mean"]
    return pd.concat(parts, ignore_index=True)[columns]
