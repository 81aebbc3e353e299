"""All numbers of the papers' tables against ours: what came out the same, what not.

A table's notebook has put the paper's number and ours into one row. That row is found
by its settings, and must hold the number that the paper has for them. So a number
counts as run only where the notebook has said which run it belongs to.
"""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib import papers, registry
from fedlib.data import DATASETS
from fedlib.papers import TABLES
from fedlib.papers.source import Kind, Source
from fedlib.runs.reports import reference
from fedlib.support.paths import figures_dir

POINTS = 1.5  # of accuracy, where twice the paper's sd is less
SHARE = 0.1  # of other measured quantities
STATES = ("reproduced", "off", "not run", "not available")
SETTINGS = (
    *("dataset", "domain", "partition", "alpha", "imbalance", "participation", "ways"),
    *("spread", "shot_spread", "setting", "virtual_per_class", "round"),
)
ROWS = ("setting", "method", "variant", "distance", "cost")  # what a row is named by
PREFIX = {
    **{"alpha": "α ", "ways": "n = ", "imbalance": "tail ", "round": "round "},
    **{"shot_spread": "spread ", "virtual_per_class": "n_v "},
}
NAMES = {"paper": registry.title}  # how ``tables.render`` prints what CSVs hold by name
SHORT = {"nid1": "NID1", "nid2": "NID2", "lda": "LDA", "none": "without all"}

KINDS = {
    "points": "accuracies and gains",
    "exact": "counts and settings",
    "share": "other quantities",
}


SOURCES = tuple(source for paper in TABLES.values() for source in paper.sources)
PAPERS = tuple(dict.fromkeys(source.paper for source in SOURCES))


def _reduced(path: Path) -> bool:
    """Return whether a table's provenance says that its budget was cut."""
    if not path.exists():
        return False
    notes = json.loads(path.read_text(encoding="utf-8"))["notes"]
    return any(note["kind"] == "reduced" for note in notes)


def _equal(column: pd.Series, value: Any) -> pd.Series:
    """Return where a column has a value; an empty cell goes with any."""
    if isinstance(value, str):
        return column.isna() | (column.astype(str) == value)
    return column.isna() | np.isclose(pd.to_numeric(column, "coerce"), value)


def _label(source: Source, wanted: pd.Series) -> str:
    """Return by what name a notebook's table has the row of a method or a variant."""
    variant = wanted.get("variant")
    if pd.isna(variant):
        return wanted["method"]
    label = source.labels.get(variant, variant)
    return label.format(method=registry.title(wanted["method"]))


def _row(source: Source, wanted: pd.Series, there: pd.DataFrame) -> pd.Series | None:
    """Return the row of a notebook's table with the settings of a paper's number.

    The notebook has put that number into it; a row without one is beside no number.

    Raises
    ------
    ValueError
        Several rows could be meant, or the row's own number of the paper is another.
    """
    shared = [name for name in (*SETTINGS, "cost") if name in wanted and name in there]
    equal = {name: wanted[name] for name in shared}
    if "method" in wanted and "method" in there:
        equal["method"] = _label(source, wanted)
    same = pd.Series(True, there.index)
    for name, value in (*equal.items(), *source.there.items()):
        if not pd.isna(value):
            same = same & _equal(there[name], value)
    found = there[same].dropna(subset=[source.theirs, source.ours])
    if "value" in there and "setting" not in wanted:
        protocol = _protocol(source.paper, wanted["dataset"])
        rows = found[["setting", "value"]].to_dict("records")
        swept = [_swept(row, wanted, protocol) for row in rows]
        found = found.loc[np.array(swept, bool)]
    where = f"{source.paper}/{source.table}: {source.column} {wanted['number']}"
    if found[source.ours].nunique() > 1:
        raise ValueError(
            f"{where} has the settings of {len(found)} rows of what its notebook wrote"
        )
    told = pd.to_numeric(found[source.theirs], "coerce")
    if not np.isclose(told, wanted["number"]).all():
        raise ValueError(
            f"{where}: its notebook wrote {told.iloc[0]} beside these settings"
        )
    return found.iloc[0] if len(found) else None


def _protocol(paper: str, dataset: str) -> dict[str, Any]:
    """Return the settings that a paper's protocol has where a table tells none."""
    spec = papers.BUILDERS[paper](dataset, "fedavg")
    rest = {"imbalance": spec.imbalance, "participation": spec.participation}
    return rest | dict(spec.partition) | {"partition": spec.partition.scheme}


def _swept(row: Mapping[str, Any], wanted: pd.Series, protocol: dict) -> bool:
    """Return whether a row of a sweep has the settings of a paper's row.

    Parameters
    ----------
    row : mapping
        Its ``setting`` and ``value``.
    wanted : Series
        Settings; an empty one goes with any.
    protocol : dict
        Values of the settings that this row does not sweep.
    """
    name = {"scheme": "partition"}.get(row["setting"], row["setting"])
    own = {} if pd.isna(row["value"]) else {name: row["value"]}
    for name, value in (protocol | own).items():
        told = wanted.get(name)
        if pd.isna(told):
            continue
        same = (
            value == told if isinstance(told, str) else np.isclose(float(value), told)
        )
        if not same:
            return False
    return True


def _near(kind: Kind, number: float, sd: float) -> float:
    """Return how far ours may be from a paper's number."""
    if kind == "exact":
        return 1e-9
    if kind == "share":
        return SHARE * abs(number)
    return POINTS if np.isnan(sd) else max(2 * sd, POINTS)


def _labels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the name of a row and of a column of the printed table.

    A setting that a data set has throughout is not told.
    """
    named = [name for name in SETTINGS if name in table and name != "setting"]
    within = table.groupby("dataset" if "dataset" in table else [0] * len(table))
    settings = [
        name
        for name in named
        if table[name].nunique(dropna=False) > 1
        and (name == "dataset" or (within[name].nunique(dropna=False) > 1).any())
    ]
    rows = [table[name].map(_told(name)) for name in ROWS if name in table]
    columns = [table[name].map(_told(name)) for name in settings]
    return _joined(rows, table), _joined(columns, table)


def _joined(texts: list[pd.Series], table: pd.DataFrame) -> pd.Series:
    rows = zip(*texts, strict=True) if texts else [()] * len(table)
    return pd.Series([", ".join(filter(None, row)) for row in rows], index=table.index)


def _told(name: str) -> Callable[[Any], str]:
    """Return how a setting's value is told."""

    def told(value: Any) -> str:
        if pd.isna(value):
            return ""
        if name == "method":
            return registry.title(value)
        if name == "dataset":
            return DATASETS[value].title
        text = value.replace("_", " ") if isinstance(value, str) else f"{value:g}"
        return PREFIX.get(name, "") + SHORT.get(text, text)

    return told


def cells(preset: str) -> pd.DataFrame:
    """Return every number of the papers' tables with ours, where it ran at a preset.

    Parameters
    ----------
    preset : str
        Whose folder of figures is read.

    Returns
    -------
    DataFrame
        paper, table, column (of its reference file), kind, row and setting (as a table
        is printed), number and sd (the paper's), ours, gap, near (how far it may be
        off: twice the paper's sd, at least 1.5 points of accuracy; nothing for counts
        and settings; a tenth of other quantities), state (of ``STATES``), reduced (the
        budget was), mark (of the reference file).

    Raises
    ------
    ValueError
        The settings of a paper's number are those of several rows of a table that a
        notebook wrote, or of a row with another number of the paper.
    """
    parts = [_cells(source, figures_dir() / preset) for source in SOURCES]
    return pd.concat(parts, ignore_index=True)


def _cells(source: Source, figures: Path) -> pd.DataFrame:
    table = reference(source.paper, source.table)
    for name, value in source.where.items():
        table = table[table[name] == value]
    if "setting" not in table and source.there:
        table = table.assign(setting=source.there["setting"])
    row, setting = _labels(table)
    mark = table["mark"] if "mark" in table else pd.Series(pd.NA, table.index)
    sd = table["sd"] if "sd" in table and source.column == "mean" else float("nan")
    found = pd.DataFrame(
        {
            **{"paper": source.paper, "table": source.table, "column": source.column},
            **{"kind": source.kind, "row": row, "setting": setting},
            **{"number": pd.to_numeric(table[source.column]), "sd": sd},
        },
    ).assign(mark=mark.astype("string"))
    folder = figures / source.paper
    path = folder / f"{source.file or source.table}.csv"
    there = pd.read_csv(path) if path.exists() else None
    hits = [
        None
        if there is None or pd.isna(wanted["number"])
        else _row(source, pd.Series(wanted), there)
        for wanted in table.assign(number=found["number"]).to_dict("records")
    ]
    found["ours"] = [float("nan") if h is None else float(h[source.ours]) for h in hits]
    found["gap"] = found["ours"] - found["number"]
    pairs = zip(found["number"], found["sd"], strict=True)
    found["near"] = [_near(source.kind, number, wide) for number, wide in pairs]
    found["state"] = np.select(
        [
            found["mark"].eq("unavailable").fillna(False).astype(bool),
            found["ours"].isna(),
            found["gap"].abs() <= found["near"] + 1e-9,
        ],
        ["not available", "not run", "reproduced"],
        "off",
    )
    ran = found["state"].isin(["reproduced", "off"])
    found["reduced"] = ran & _reduced(folder / f"{source.table}.json")
    kept = found["number"].notna() | (found["state"] == "not available")
    first = [c for c in found if c != "mark"]
    return found.loc[kept, [*first, "mark"]]


def summary(board: pd.DataFrame) -> pd.DataFrame:
    """Return how many numbers of each paper and kind are in which state.

    Accuracies (and their gains), counts and settings, and other measured quantities
    stand apart: that a setting is the printed one says nothing of a method.
    """
    kinds = board["kind"].map(KINDS)
    counts = pd.crosstab([board["paper"], kinds], board["state"])
    counts = counts.reindex(columns=list(STATES), fill_value=0)
    reduced = board.groupby(["paper", kinds])["reduced"].sum()
    table = counts.assign(numbers=counts.sum(axis=1), **{"at reduced budget": reduced})
    table = table.rename_axis(columns=None).reset_index()
    places = [list(dict.fromkeys(board["paper"])), list(KINDS.values())]
    place = table.apply(
        lambda row: (places[0].index(row["paper"]), places[1].index(row["kind"])),
        axis=1,
    )
    order = ["paper", "kind", "numbers", *STATES, "at reduced budget"]
    return printed(table.loc[place.sort_values().index, order].reset_index(drop=True))


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for readers: whether budgets were cut, headers in words."""
    named = table.copy()
    if "reduced" in named:
        budget = named.pop("reduced").map({True: "reduced", False: "full"})
        named = named.assign(budget=budget)
    if "table" in named:
        named["table"] = named["table"].str.removeprefix("table")
    return named.rename(columns=lambda name: name.replace("_", " "))


def ran(board: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that ran, for printing: the paper's and ours."""
    found = board[board["state"].isin(["reproduced", "off"])]
    columns = ["paper", "table", "column", "row", "setting", "number", "sd"]
    return printed(found[[*columns, "ours", "gap", "near", "state", "reduced"]])


def orderings(board: pd.DataFrame) -> pd.DataFrame:
    """Return whether methods come in the paper's order where two or more of them ran.

    Returns
    -------
    DataFrame
        As ``printed``: paper, table, setting, methods (how many ran), leads and leads
        here (the best of those, by the paper's numbers and by ours), pairs (with
        different numbers in the paper) and in order (those with the same sign here),
        ordering: ``holds`` (all pairs), ``leader holds`` or ``differs``; budget.
    """
    accuracy = board[(board.kind == "points") & (board.column == "mean")]
    ran = accuracy.dropna(subset="ours")
    rows = []
    for (paper, table, setting), part in ran.groupby(
        ["paper", "table", "setting"], sort=False
    ):
        theirs, ours = part["number"].to_numpy(), part["ours"].to_numpy()
        pairs = [
            (theirs[i] - theirs[j]) * (ours[i] - ours[j])
            for i, j in combinations(range(len(part)), 2)
            if theirs[i] != theirs[j]
        ]
        if not pairs:
            continue
        best, here = (part["row"].iloc[int(x.argmax())] for x in (theirs, ours))
        in_order = sum(p > 0 for p in pairs)
        leader = "leader holds" if best == here else "differs"
        rows.append(
            {
                **{"paper": paper, "table": table, "setting": setting},
                **{"methods": len(part), "leads": best, "leads_here": here},
                **{"in_order": in_order, "pairs": len(pairs)},
                "ordering": "holds" if in_order == len(pairs) else leader,
                "reduced": bool(part["reduced"].any()),
            }
        )
    columns = ["paper", "table", "setting", "methods", "leads", "leads_here"]
    columns += ["in_order", "pairs", "ordering", "reduced"]
    return printed(pd.DataFrame(rows, columns=columns))
