"""Leads that papers print beside those that came out here, reading by reading."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedlib import registry
from fedlib.draw.looks import BLACK, GREEN, GREY, PAGE, RC, RED
from fedlib.rebuild.captions import REDUCED
from fedlib.runs.beside import reference
from fedlib.runs.notes import Note
from fedlib.support.paths import figures_dir

ROW, GAP = 0.175, 0.4  # inches; between claims, in rows
# verdict -> colour, and a marker that tells it in grey
VERDICTS = {
    "ahead with each seed": (GREEN, ">"),
    "behind with each seed": (RED, "<"),
    "changes with the seed, or one seed": (GREY, "o"),
}
COLUMNS = ["claim", "reading", "printed", "mean", "sd", "ahead", "seeds", "reduced"]


class Reading(NamedTuple):
    """A reading of a claim, and where a notebook has written its lead."""

    said: str  # in words
    file: str  # "<paper>/<table>", as from ``reports.leads_over``
    row: Mapping[str, Any]  # columns and values that one of its rows has
    reduced: bool = False  # a budget below the paper's


class Claim(NamedTuple):
    """A paper's lead over another method, in one of its tables, and its readings."""

    paper: str
    over: str  # the other method
    table: str  # of the paper's numbers
    where: Mapping[str, Any]  # columns and values of the setting
    setting: str  # in words
    readings: Sequence[Reading]


def _rows(table: pd.DataFrame, wanted: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a table that have all values."""
    same = pd.Series(True, table.index)
    for name, value in wanted.items():
        same &= table[name] == value
    return table[same]


def printed(claim: Claim) -> float:
    """Return by how many points a paper prints its method above the other one.

    Raises
    ------
    ValueError
        Not one number of each of both methods in that setting.
    """
    rows = _rows(reference(claim.paper, claim.table), claim.where)
    if "variant" in rows:
        rows = rows[rows["variant"].isna()]
    by_method = rows.set_index("method")["mean"]
    numbers = [by_method[by_method.index == n] for n in (claim.paper, claim.over)]
    if [len(part) for part in numbers] != [1, 1]:
        raise ValueError(
            f"{claim.paper}/{claim.table}: {dict(claim.where)} has not one number of "
            f"{claim.paper} and one of {claim.over}"
        )
    return float(numbers[0].iloc[0] - numbers[1].iloc[0])


def leads(claims: Sequence[Claim], preset: str) -> pd.DataFrame:
    """Return printed leads and ours, a row for each reading.

    Parameters
    ----------
    claims : list of Claim
    preset : str
        Whose folder of figures is read.

    Returns
    -------
    DataFrame
        claim and reading (in words), printed (points), mean and sd of ours (over
        seeds, each lead taken within a seed), ahead (in how many seeds it is above
        zero), seeds, reduced. Ours is empty where its notebook has not written it.

    Raises
    ------
    ValueError
        Several rows of a notebook's table could be meant.
    """
    rows = []
    for claim in claims:
        names = registry.title(claim.paper), registry.title(claim.over)
        said = f"{names[0]} over {names[1]}: {claim.setting}"
        for reading in claim.readings:
            path = figures_dir() / preset / f"{reading.file}.csv"
            table = pd.read_csv(path) if path.exists() else None
            ours = None if table is None else _rows(table, reading.row)
            if ours is not None and len(ours) > 1:
                raise ValueError(
                    f"{reading.file}: {dict(reading.row)}: got {len(ours)} rows, "
                    "expected one"
                )
            row = {"claim": said, "reading": reading.said, "printed": printed(claim)}
            if ours is not None and len(ours):
                row |= ours.iloc[0][["mean", "sd", "ahead", "seeds"]].to_dict()
            rows.append(row | {"reduced": reading.reduced})
    return pd.DataFrame(rows, columns=COLUMNS)


def verdict(row: Mapping[str, Any]) -> str:
    """Return what all seeds of a lead say, of ``VERDICTS``."""
    ahead, behind, open_ = VERDICTS
    if row["seeds"] < 2:
        return open_
    return {row["seeds"]: ahead, 0: behind}.get(row["ahead"], open_)


def notes(table: pd.DataFrame) -> list[Note]:
    """Return what was cut of the runs behind leads that are drawn hollow."""
    hollow = table["reduced"] & table["mean"].notna()
    cut = "hollow leads are of fewer rounds, one local epoch and a small net"
    return [Note("reduced", REDUCED + cut)] if hollow.any() else []


def _told(row: Mapping[str, Any]) -> str:
    """Return a lead as text, with its sd where it has one and the number of seeds."""
    if np.isnan(row["mean"]):
        return "not run"
    sd = "" if np.isnan(row["sd"]) else f" ± {row['sd']:.1f}"
    seeds = "1 seed" if row["seeds"] == 1 else f"{row['seeds']:.0f} seeds"
    return f"{row['mean']:+.1f}{sd}, {seeds}"


@mpl.rc_context(RC)
def board(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw leads: in bold what a paper prints of a claim, below it what ran.

    Parameters
    ----------
    table : DataFrame
        As from ``leads``.

    Returns
    -------
    Figure, DataFrame
        The figure, and the table.
    """
    claims = [*table.groupby("claim", sort=False)]
    height = ROW * (len(table) + (1 + GAP) * len(claims))
    fig, ax = plt.subplots(figsize=(PAGE, 0.85 + height), layout="constrained")
    ax.axvline(0, color="0.3", linewidth=0.8)
    heads, at, top = [], {}, 0.0  # the height of each row by its place
    for claim, part in claims:
        lead = part["printed"].iloc[0]
        below = top + len(part) + GAP
        ax.plot(lead, top, "d", color=BLACK, markersize=5)
        ax.plot([lead, lead], [top, below], ":", color=BLACK, linewidth=0.8)
        _beside(ax, top, f"{lead:+.1f} printed", weight="bold")
        heads.append((top, claim))
        for y, row in enumerate(part.to_dict("records"), 1):
            at[top + y] = row
        top = below + 1
    for y, row in at.items():
        _beside(ax, y, _told(row))
        colour, marker = VERDICTS[verdict(row)]
        face = "white" if row["reduced"] else colour
        sd = np.nan_to_num(row["sd"])
        look: dict[str, Any] = {
            "fmt": marker,
            "color": colour,
            "mfc": face,
            "capsize": 2,
        }
        ax.errorbar(row["mean"], y, xerr=sd, **look)
    ax.set_yticks([*at], [row["reading"] for row in at.values()])
    ax.set_yticks(*zip(*heads, strict=True), minor=True, weight="bold")
    ax.set(ylim=(top - GAP - 0.4, -0.6), xlabel="Lead (points of accuracy)")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(axis="x")
    ax.tick_params(axis="y", which="both", length=0, labelsize=7)
    fig.legend(handles=_legend(), loc="outside lower center", ncols=3)
    return fig, table


def _legend() -> list[Line2D]:
    """Return what marks mean."""
    look: dict[str, Any] = {"linestyle": "", "marker": "o"}
    theirs = Line2D([], [], linestyle=":", marker="d", color=BLACK, label="printed")
    ours = [
        Line2D([], [], linestyle="", color=colour, marker=marker, label=said)
        for said, (colour, marker) in VERDICTS.items()
    ]
    hollow: dict[str, Any] = look | {"mfc": "white", "label": "hollow: smaller budget"}
    whisker: dict[str, Any] = {"marker": "|", "label": "whiskers: one sd over seeds"}
    others = [Line2D([], [], color=GREY, **part) for part in (hollow, whisker)]
    return [theirs, *ours, *others]


def _beside(ax: Axes, y: float, text: str, **look: Any) -> None:
    """Write a text to the right of a row."""
    text = text.replace("-", "\N{MINUS SIGN}")
    across = ax.get_yaxis_transform()
    ax.text(1.02, y, text, fontsize=7, va="center_baseline", transform=across, **look)
