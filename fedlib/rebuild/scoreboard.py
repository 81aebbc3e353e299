"""All numbers of the papers' tables against ours: what came out the same, what not.

Ours are accuracies of runs (``our_runs``), or stand in the table of one notebook
(``our_rows``).
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib import registry
from fedlib.data import DATASETS
from fedlib.papers import placing
from fedlib.papers.source import Accuracies, Kind, Origin, Source
from fedlib.rebuild import our_rows, our_runs
from fedlib.rebuild.our_rows import SETTINGS
from fedlib.rebuild.our_runs import RELEASED, SOURCES, Found, Run
from fedlib.runs.beside import reference
from fedlib.support.paths import figures_dir

POINTS = 1.5  # of accuracy, where twice the paper's sd is less
SHARE = 0.1  # of other measured quantities
GAIN = 0.5  # of a printed gain: ours has its sign, and half to one and a half its size
JUDGED = ("reproduced", "off")  # by a run of the paper's reading and its whole budget
RAN = (*JUDGED, "reduced", "reference only")
STATES = (*RAN, "not run", "not implemented", "not available")
ROWS = ("method", "variant", "distance", "cost")  # what a row is named by
PREFIX = {
    **{"alpha": "α ", "ways": "n = ", "imbalance": "tail ", "round": "round "},
    **{"shot_spread": "spread ", "virtual_per_class": "images per class "},
    "participation": "participation ",
}
NAMES = {"paper": registry.title}  # how ``tables.render`` prints what CSVs hold by name
SHORT = {"nid1": "NID1", "nid2": "NID2", "lda": "LDA", "none": "without all"}

KINDS = {
    "points": "accuracies",
    "gain": "gains",
    "exact": "counts",
    "share": "other quantities",
}


PAPERS = tuple(dict.fromkeys(source.paper for source in SOURCES))


def _near(kind: Kind, number: float, sd: float) -> float:
    """Return how far ours may be from a paper's number."""
    if kind == "exact":
        return 1e-9
    if kind in ("share", "gain"):
        return {"share": SHARE, "gain": GAIN}[kind] * abs(number)
    return POINTS if np.isnan(sd) else max(2 * sd, POINTS)


def _labels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the name of a row and of a column of the printed table.

    A setting that a data set has throughout is not told.
    """
    there = [name for name in SETTINGS if name in table]
    within = table.groupby("dataset" if "dataset" in table else [0] * len(table))
    settings = [
        name
        for name in there
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
        paper, table, column (of its reference file), dataset, kind, row and setting (as
        a table is printed), number and sd (the paper's), ours (of the paper's own
        reading of its method) and our_sd (over seeds), seeds, gap, near (how far ours
        may be off: twice the paper's sd over runs, at least 1.5 points of accuracy;
        half of a gain; nothing for counts; a tenth of other quantities), reference and
        reference_sd (of the released reading), other and other_sd (of another reading
        that the paper prints, at its whole budget), budget (``full``, or what of it
        was cut), reduced and reference_reduced (whether it was), state (of
        ``STATES``), mark (of the reference file). Seeds and budget are of ours, where
        there is none of the reference; where the two budgets differ, both are told.

    Raises
    ------
    ValueError
        The settings of a paper's number are those of several rows of a table that a
        notebook wrote, or of a row with another number of the paper; a run that was
        written has a setting that no longer exists.
    """
    ran = our_runs.runs(preset)
    parts = [_cells(source, figures_dir() / preset, ran) for source in SOURCES]
    return pd.concat(parts, ignore_index=True)


def _cells(source: Origin, figures: Path, ran: Mapping[str, list[Run]]) -> pd.DataFrame:
    table = reference(source.paper, source.table)
    runs_of_it = isinstance(source, Accuracies)
    column, kind = ("mean", "points") if runs_of_it else (source.column, source.kind)
    for name, value in ({} if runs_of_it else source.where).items():
        table = table[table[name] == value]
    row, setting = _labels(table)
    numbers = pd.to_numeric(table[column])
    sd = table["sd"] if "sd" in table and column == "mean" else float("nan")
    mark = table["mark"] if "mark" in table else pd.Series(pd.NA, table.index)
    board = pd.DataFrame(
        {
            **{"paper": source.paper, "table": source.table, "column": column},
            "dataset": table["dataset"] if "dataset" in table else "",
            **{"kind": kind, "row": row, "setting": setting},
            **{"number": numbers, "sd": sd},
        },
    )
    ours = (
        _by_runs(source, table, ran) if runs_of_it else _by_rows(source, table, figures)
    )
    board = board.join(pd.DataFrame(ours, table.index))
    board.insert(12, "gap", board["ours"] - board["number"])
    over_runs = runs_of_it and source.sd_over == "runs"
    wide = board["sd"] if over_runs else [float("nan")] * len(board)
    pairs = zip(board["number"], wide, strict=True)
    board.insert(13, "near", [_near(kind, number, sd) for number, sd in pairs])
    board["state"] = np.select(
        [
            mark.eq("unavailable").fillna(False).astype(bool),
            board.pop("absent"),
            board["ours"].isna() & board["reference"].notna(),
            board["ours"].isna(),
            board["reduced"] & (kind != "exact"),
            board["gap"].abs() <= board["near"] + 1e-9,
        ],
        [
            *("not available", "not implemented", "reference only", "not run"),
            *("reduced", "reproduced"),
        ],
        "off",
    )
    counts = board["number"].notna() | (board["state"] == "not available")
    return board.assign(mark=mark.astype("string"))[counts]


def _words(runs_there: Found) -> str:
    """Return a budget in words: what was cut, or ``full``; empty without a run."""
    return ", ".join(runs_there.cut) or ("full" if runs_there.seeds else "")


def _by_runs(
    source: Accuracies, table: pd.DataFrame, ran: Mapping[str, list[Run]]
) -> list[dict[str, Any]]:
    """Return what runs of each row's setting reached, whatever artefact made them."""
    rows = []
    for wanted in table.to_dict("records"):
        settings = {name: value for name, value in wanted.items() if not pd.isna(value)}
        text = our_runs.text_of(source, settings)
        method = None if text is None else placing.parsed(text)[0]
        there = ran.get(settings["dataset"], [])
        there = [run for run in there if run.spec.method == method]
        own = released = other = Found()
        if there and "mean" in settings:
            readings: list[Mapping[str, str]] = [{}, RELEASED, source.otherwise[1]]
            own, released, other = (
                our_runs.reached(
                    source, settings, our_runs.setting(source, settings, reading), there
                )
                for reading in readings
            )
            if other.cut or not source.otherwise[1]:
                other = Found()
        shown = own if own.seeds else released
        words = _words(shown)
        if own.seeds and released.seeds and own.cut != released.cut:
            words += f"; reference: {_words(released)}"
        rows.append(
            {
                **{"ours": own.mean, "our_sd": own.sd, "seeds": shown.seeds},
                **{"reference": released.mean, "reference_sd": released.sd},
                **{"other": other.mean, "other_sd": other.sd},
                "budget": words,
                **{"reduced": bool(shown.cut), "reference_reduced": bool(released.cut)},
                "absent": text is None,
            }
        )
    return rows


def _by_rows(
    source: Source, table: pd.DataFrame, figures: Path
) -> list[dict[str, Any]]:
    """Return what a notebook's table has beside each number of the paper."""
    folder = figures / source.paper
    path = folder / f"{source.file or source.table}.csv"
    there = pd.read_csv(path) if path.exists() else None
    cut = our_rows.reduced(folder / f"{source.table}.json")
    rows = []
    for wanted in table.to_dict("records"):
        series = pd.Series({**wanted, "number": float(wanted[source.column])})
        known = there is not None and not pd.isna(series["number"])
        hit = our_rows.row_of(source, series, there) if known else None
        seeds = hit["seeds"] if hit is not None and "seeds" in hit else 1
        nothing = float("nan")
        row = {"ours": nothing, "our_sd": nothing, "seeds": 0}
        row |= {"reference": nothing, "reference_sd": nothing}
        row |= {"other": nothing, "other_sd": nothing}
        row |= {"reference_reduced": False}
        if hit is not None:
            row |= {"ours": float(hit[source.ours]), "seeds": int(seeds)}
        budget = ("reduced" if cut else "full") if hit is not None else ""
        absent = (wanted.get("method"), wanted.get("variant")) in source.missing
        row |= {"budget": budget, "reduced": budget == "reduced", "absent": absent}
        rows.append(row)
    return rows


def summary(board: pd.DataFrame) -> pd.DataFrame:
    """Return how many numbers of each paper and kind are in which state.

    Accuracies, gains, counts, and other measured quantities stand apart: that a count
    is the printed one says nothing of how well a method does.
    """
    kinds = board["kind"].map(KINDS)
    counts = pd.crosstab([board["paper"], kinds], board["state"])
    counts = counts.reindex(columns=list(STATES), fill_value=0)
    table = counts.assign(numbers=counts.sum(axis=1))
    table = table.rename_axis(columns=None).reset_index()
    places = [list(dict.fromkeys(board["paper"])), list(KINDS.values())]
    place = table.apply(
        lambda row: (places[0].index(row["paper"]), places[1].index(row["kind"])),
        axis=1,
    )
    order = ["paper", "kind", "numbers", *STATES]
    return in_words(table.loc[place.sort_values().index, order].reset_index(drop=True))


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for readers, headers in words."""
    worded = table.copy()
    if "table" in worded:
        worded["table"] = worded["table"].str.removeprefix("table")
    return worded.rename(columns=lambda name: name.replace("_", " "))


def ran(board: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that ran, for printing: the paper's and ours."""
    rows = board[board["state"].isin(RAN)]
    columns = ["paper", "table", "column", "row", "setting", "number", "sd"]
    ours = ["ours", "our_sd", "seeds", "gap", "near"]
    ours += ["reference", "reference_sd", "other", "other_sd"]
    return in_words(rows[[*columns, *ours, "state", "budget"]])


def tables(board: pd.DataFrame) -> pd.DataFrame:
    """Return what became of each printed table of accuracies, a row per data set.

    Returns
    -------
    DataFrame
        As ``in_words``: paper, table, dataset (its title); numbers that the paper
        prints and our copy has; of these run (with the whole budget), within (near
        enough), otherwise (off, and near enough by another reading that the paper
        prints), cut (at less); orderings, settings in which two methods or more ran,
        and of these hold and open, as ``orderings`` has them; seeds, fewest to most;
        budget, in words, each once.
    """
    accuracy = board[(board.kind == "points") & (board.column == "mean")]
    accuracy = accuracy[accuracy.state != "not available"]
    rows = []
    for (paper, table, dataset), part in accuracy.groupby(
        ["paper", "table", "dataset"], sort=False
    ):
        ran = part[part.state.isin(RAN)]
        order = orderings(part)["ordering"]
        near = (part["other"] - part["number"]).abs() <= part["near"]
        least, most = ran["seeds"].min(), ran["seeds"].max()
        span = [f"{n:.0f}" for n in dict.fromkeys([least, most]) if not pd.isna(n)]
        rows.append(
            {
                **{"paper": paper, "table": table},
                "dataset": DATASETS[dataset].title,
                "numbers": len(part),
                "run": int(part.state.isin(JUDGED).sum()),
                "within": int((part.state == "reproduced").sum()),
                "otherwise": int((near & (part.state == "off")).sum()),
                "cut": int((part.state == "reduced").sum()),
                "orderings": len(order),
                "hold": int((order == "holds").sum()),
                "open": int((order == "open").sum()),
                **{"seeds": " to ".join(span), "budget": _budgets(ran)},
            }
        )
    columns = ["paper", "table", "dataset", "numbers", "run", "within"]
    columns += ["otherwise", "cut", "orderings", "hold", "open", "seeds", "budget"]
    return in_words(pd.DataFrame(rows, columns=columns))


def orderings(board: pd.DataFrame) -> pd.DataFrame:
    """Return whether methods come in the paper's order where two or more of them ran.

    Two methods are level where our numbers are within ``POINTS`` of each other, as near
    as a number may be off.

    Returns
    -------
    DataFrame
        As ``in_words``: paper, table, setting, methods (how many ran), leads and leads
        here (the best of those, by the paper's numbers and by ours), pairs (with
        different numbers in the paper), in order (those with the same sign here) and
        level; ordering: ``holds`` (all pairs), ``open`` (no pair is turned, some are
        level), where others are turned the same of those with the paper's best,
        ``leader holds`` and ``leader open``, or ``differs``; seeds (the fewest) and
        budget.
    """
    accuracy = board[(board.kind == "points") & (board.column == "mean")]
    ran = accuracy.dropna(subset="ours")
    rows = []
    for (paper, table, setting), part in ran.groupby(
        ["paper", "table", "setting"], sort=False
    ):
        theirs, ours = part["number"].to_numpy(), part["ours"].to_numpy()
        pairs = [
            (ours[i] - ours[j]) * np.sign(theirs[i] - theirs[j])
            for i, j in combinations(range(len(part)), 2)
            if theirs[i] != theirs[j]
        ]
        if not pairs:
            continue
        level = sum(abs(p) < POINTS for p in pairs)
        in_order = sum(p >= POINTS for p in pairs)
        here = part["row"].iloc[int(ours.argmax())]
        best = int(theirs.argmax())
        lead = ours[best] - ours[theirs < theirs[best]].max()
        turned = "leader holds" if lead >= POINTS else "leader open"
        turned = turned if lead > -POINTS else "differs"
        in_full = "open" if level else "holds"
        rows.append(
            {
                **{"paper": paper, "table": table, "setting": setting},
                **{"methods": len(part), "leads": part["row"].iloc[best]},
                "leads_here": here,
                **{"in_order": in_order, "level": level, "pairs": len(pairs)},
                "ordering": in_full if in_order + level == len(pairs) else turned,
                **{"seeds": int(part["seeds"].min()), "budget": _budgets(part)},
            }
        )
    columns = ["paper", "table", "setting", "methods", "leads", "leads_here"]
    columns += ["in_order", "level", "pairs", "ordering", "seeds", "budget"]
    return in_words(pd.DataFrame(rows, columns=columns))


def _budgets(part: pd.DataFrame) -> str:
    """Return the budgets of a setting's runs, each once."""
    return "; ".join(dict.fromkeys(part["budget"]))
