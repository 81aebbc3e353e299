"""The scoreboard as a picture: a field per number, coloured by what became of it."""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from fedlib.draw.plot import PAGE, RC
from fedlib.rebuild.scoreboard import STATES

COLOURS = {
    "reproduced": "#8fd0b8",
    "off": "#f0a882",
    "reduced": "#f6e3a1",
    "reference only": "#b9d3ee",
    "not run": "#e6e6e6",
    "not implemented": "#ffffff",
    "not available": "#ffffff",
}
REFERENCE = "reference only"  # the colour of the released reading, beside ours too
HATCHES = {"not implemented": "....", "not available": "/////"}
ROW, FIELD, LETTER = 0.15, 0.37, 0.042  # inches: a row, a field's width, a letter's
HEAD, TITLE = 0.4, 0.3  # inches: the legend, a panel's title
TITLES = {
    "gain": "gain in points",
    "ratio": "rounds of FedAvg over those of the method",
    "rounds": "rounds",
    "parameters_k": "parameters sent",
}


def gap_text(kind: str, number: float, ours: float) -> str:
    """Return how far ours is from a number, as its field says it.

    Points of accuracy, and of gains, with their sign; counts ``=`` or our value; of
    other quantities ours over the paper's.
    """
    if pd.isna(ours):
        return ""
    if kind in ("points", "gain"):
        return f"{ours - number:+.1f}".replace("-", "−")
    if kind == "exact":
        return "=" if ours == number else f"{ours:g}"
    return f"×{ours / number:.1f}" if number else f"{ours:g}"


class _Panel(NamedTuple):
    """A table's numbers of one kind, and the inches that it takes."""

    title: str
    part: pd.DataFrame
    rows: list[str]
    columns: list[str]

    @property
    def left(self) -> float:
        return LETTER * max(map(len, self.rows)) + 0.15

    @property
    def above(self) -> float:
        longest = max(map(len, self.columns))
        return TITLE + 0.7 * LETTER * max(longest, 5 * bool(longest))

    @property
    def field(self) -> float:
        return min(FIELD, (PAGE - self.left - self.over) / len(self.columns))

    @property
    def over(self) -> float:
        """How far the last column's slanted label stands out to the right."""
        return max(0.1, 0.8 * LETTER * len(self.columns[-1]) - FIELD / 2)

    @property
    def width(self) -> float:
        title = 1.5 * LETTER * len(self.title)
        return self.left + max(self.field * len(self.columns) + self.over, title)

    @property
    def height(self) -> float:
        return ROW * len(self.rows)


def _panels(cells: pd.DataFrame) -> list[_Panel]:
    kinds = cells["column"].map(TITLES).fillna("")
    found = []
    for (table, kind), part in cells.groupby(["table", kinds], sort=False):
        title = f"Table {table.removeprefix('table')}" + (f", {kind}" if kind else "")
        rows, columns = (list(dict.fromkeys(part[c])) for c in ("row", "setting"))
        found.append(_Panel(title, part, rows, columns))
    return found


def _shelves(panels: list[_Panel]) -> list[list[_Panel]]:
    """Return panels line by line, as many as fit into a page's width."""
    shelves: list[list[_Panel]] = []
    for panel in panels:
        used = sum(p.width for p in shelves[-1]) if shelves else PAGE
        if used + panel.width > PAGE:
            shelves.append([])
        shelves[-1].append(panel)
    return shelves


def _look(state: str) -> dict[str, Any]:
    """Return how a field of a state is filled; without a number, how it is hatched."""
    hatch = HATCHES.get(state)
    edge = "#bbbbbb" if hatch else "white"
    return {"facecolor": COLOURS[state], "edgecolor": edge, "hatch": hatch}


def _parts(cell: Any) -> list[tuple[str, str]]:
    """Return state and text of ours and of the released reading, where they ran."""
    found = []
    if cell.state != REFERENCE:
        text = gap_text(cell.kind, cell.number, cell.ours) + "*" * cell.reduced
        found.append((cell.state, text))
    if not pd.isna(cell.reference):
        text = gap_text(cell.kind, cell.number, cell.reference)
        found.append((REFERENCE, text + "*" * cell.reference_reduced))
    return found


def _draw(ax: Axes, panel: _Panel) -> None:
    for cell in panel.part.itertuples():
        x, y = panel.columns.index(cell.setting), panel.rows.index(cell.row)
        parts = _parts(cell)
        wide = 1 / len(parts)
        for i, (state, text) in enumerate(parts):
            box = (x + i * wide, y), wide, 1
            ax.add_patch(Rectangle(*box, linewidth=0.6, **_look(state)))
            middle = x + (i + 0.5) * wide
            size = 5 if len(parts) == 1 else 3.6  # two of six signs fit a field
            ax.text(middle, y + 0.53, text, ha="center", va="center", fontsize=size)
    ax.set_xlim(0, len(panel.columns))
    ax.set_ylim(len(panel.rows), 0)
    ax.set_yticks([i + 0.5 for i in range(len(panel.rows))], panel.rows)
    ax.set_xticks([i + 0.5 for i in range(len(panel.columns))], panel.columns)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=5.5, pad=1.5)
    for label in ax.get_xticklabels():
        label.set(rotation=40, ha="left", rotation_mode="anchor")
    ax.spines[:].set_visible(False)
    ax.grid(False)


@mpl.rc_context(RC)
def board(cells: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw one paper's numbers, a panel per table and kind of number.

    Parameters
    ----------
    cells : DataFrame
        One paper's rows of ``scoreboard.cells``.

    Returns
    -------
    Figure, DataFrame
        The figure and the rows it drew. A field says how far ours is from the paper's
        number (``gap_text``), and beside it, or alone, how far the released reading is;
        a star marks a reduced budget.
    """
    shelves = _shelves(_panels(cells))
    heads = [max(p.above for p in shelf) for shelf in shelves]
    bodies = [max(p.height for p in shelf) for shelf in shelves]
    tall = HEAD + sum(heads) + sum(bodies) + 0.1
    fig = plt.figure(figsize=(PAGE, tall))
    top = HEAD
    for shelf, head, body in zip(shelves, heads, bodies, strict=True):
        x = 0.0
        for panel in shelf:
            bottom, left = tall - top - head - panel.height, x + panel.left
            wide = panel.field * len(panel.columns)
            box = (left / PAGE, bottom / tall, wide / PAGE, panel.height / tall)
            _draw(fig.add_axes(box), panel)
            high = (bottom + panel.height + panel.above - TITLE + 0.08) / tall
            fig.text(left / PAGE, high, panel.title, fontsize=7, fontweight="bold")
            x += panel.width
        top += head + body
    there = set(cells["state"])
    there |= {REFERENCE} if cells["reference"].notna().any() else set()
    handles = [
        Patch(
            label="reference" if state == REFERENCE else state,
            **(_look(state) | {"edgecolor": "#bbbbbb"}),
        )
        for state in STATES
        if state in there
    ]
    fig.legend(handles=handles, loc="upper center", ncol=len(handles), fontsize=6.5)
    return fig, cells.reset_index(drop=True)
