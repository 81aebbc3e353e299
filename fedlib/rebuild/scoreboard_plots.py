"""The scoreboard as one picture: what ran of each printed table, and how far it is."""

import re
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fedlib import registry
from fedlib.draw.looks import BLUE, GREEN, ORANGE, PAGE, PURPLE, RC, RED
from fedlib.rebuild import printed
from fedlib.rebuild.scoreboard import POINTS, RAN, STATES
from fedlib.support import paths

REFERENCE = "reference only"
OTHER = "another reading"
# reading beside the judged one -> legend, colour, marker, rows from its dot
BESIDE = {
    OTHER: ("by another printed reading", PURPLE, "s", -0.3),
    REFERENCE: ("as released", BLUE, "D", 0.3),
}
# state -> what the legend says, colour, hatch
LOOK = {
    "reproduced": (f"near: 2 sd or {POINTS:g} points", GREEN, ""),
    "off": ("not near", RED, "xxxx"),
    "reduced": ("smaller budget, not judged", ORANGE, ""),
    REFERENCE: ("as released", BLUE, ""),
    "not run": ("not run", "#e6e6e6", ""),
    "not implemented": ("not implemented", "#ffffff", "......"),
    "not available": ("not in our copy", "#ffffff", "//////"),
}
ROW = 0.165  # inches


def _rows(cells: pd.DataFrame) -> pd.Series:
    """Return the row of each number: its paper and table."""
    table = cells["table"].str.removeprefix("table")
    return cells["paper"].map(registry.title) + ", Table " + table


def _as_printed(cells: pd.DataFrame) -> list[str]:
    """Return the name of each table as its paper numbers it: ``FedPA, Table II``."""
    tables = cells[["paper", "table", "row"]].drop_duplicates()
    names = []
    for paper, table, row in tables.itertuples(index=False):
        there = (paths.NOTEBOOKS / "papers" / paper / f"{table}.ipynb").exists()
        titled = printed.title(f"{paper}/{table}") if there else ""
        number = re.search(r"Table \w+", titled)
        names.append(f"{registry.title(paper)}, {number[0]}" if number else row)
    return names


def gaps(cells: pd.DataFrame) -> pd.DataFrame:
    """Return ours minus the paper's, in points, of all accuracies and gains that ran.

    Columns row, state, gap: the judged reading by its state, the others by their names
    in ``BESIDE``.
    """
    points = cells[cells["kind"].isin(["points", "gain"])]
    own = points[points["ours"].notna() & (points["state"] != REFERENCE)]
    values = {"ours": own, "other": points, "reference": points}
    names = {"other": OTHER, "reference": REFERENCE}
    parts = [
        pd.DataFrame(
            {
                "row": _rows(part),
                "state": names.get(value, part["state"]),
                "gap": part[value] - part["number"],
            }
        )
        for value, part in values.items()
    ]
    return pd.concat(parts, ignore_index=True).dropna(subset="gap")


@mpl.rc_context(RC)
def board(cells: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw all papers' numbers, a row per table.

    On the left how many there are and what became of them; on the right how far ours
    are, where they are accuracies and ran.

    Parameters
    ----------
    cells : DataFrame
        ``scoreboard.cells``.

    Returns
    -------
    Figure, DataFrame
        The figure, and per row and state the numbers, with the least and the largest
        gap in points.
    """
    labelled = cells.assign(row=_rows(cells))
    rows = list(dict.fromkeys(labelled["row"]))
    place = {row: i for i, row in enumerate(rows)}
    counts = labelled.pivot_table(
        index="row", columns="state", values="number", aggfunc="size", fill_value=0
    ).reindex(index=rows, columns=list(STATES), fill_value=0)
    apart = gaps(cells)
    fig, (left, right) = plt.subplots(
        1,
        2,
        figsize=(PAGE, 1.0 + ROW * len(rows)),
        sharey=True,
        width_ratios=(1.5, 1),
        layout="constrained",
    )
    at = pd.Series(0, index=rows)
    for state in STATES:
        _, colour, hatch = LOOK[state]
        look: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "0.7"}
        left.barh(range(len(rows)), counts[state], 0.7, left=at, **look, linewidth=0.3)
        at = at + counts[state]
    ran = counts[[*RAN]].sum(axis=1)
    for row, total in at.items():
        text = f"{ran[row]} of {total}"
        left.text(total + 1.5, place[row], text, fontsize=6, va="center_baseline")
    left.set_yticks(range(len(rows)), _as_printed(labelled))
    left.set(xlim=(0, at.max() + 24), ylim=(len(rows) - 0.4, -0.6))
    left.set(xlabel="Printed numbers", title="How many numbers of a table ran")
    right.axvline(0, color="0.3", linewidth=0.8)
    for state, part in apart.groupby("state", sort=False):
        _, colour, marker, aside = (
            BESIDE[state] if state in BESIDE else (*LOOK[state][:2], "o", 0)
        )
        face = "white" if state == "reduced" else colour
        heights = [place[row] + aside for row in part["row"]]
        right.scatter(part["gap"], heights, 16, face, marker=marker, edgecolors=colour)
    right.grid(axis="x")
    right.set(
        xlabel="Ours minus the paper's (points)",
        title="How far accuracies that ran are",
    )
    for ax in (left, right):
        ax.tick_params(axis="y", length=0)
    handles: list[Any] = [
        Patch(fc=colour, hatch=hatch, ec="0.7", lw=0.3, label=said)
        for state, (said, colour, hatch) in LOOK.items()
        if counts[state].any()
    ]
    for state, (said, colour, marker, _) in BESIDE.items():
        if (apart["state"] == state).any():
            look = {"marker": marker, "color": colour, "markersize": 4}
            handles.append(Line2D([], [], linestyle="", label=said, **look))
    fig.legend(handles=handles, loc="outside lower center", ncols=4)
    long = counts.melt(ignore_index=False, value_name="numbers").reset_index()
    ends = apart.groupby(["row", "state"])["gap"].agg(["min", "max"])
    ends = ends.add_suffix("_gap").reset_index()
    drawn = long[long["numbers"] > 0].merge(ends, "outer", ["row", "state"])
    states = [*STATES, OTHER]
    order = drawn["row"].map(place) * len(states) + drawn["state"].map(states.index)
    return fig, drawn.loc[order.sort_values().index].reset_index(drop=True)
