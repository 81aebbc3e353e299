"""Embedded samples in a grid of panels: one setting down, another across."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlib.draw import plot
from fedlib.draw.looks import PAGE, RC

SIDE = 1.55  # inches: height of a panel
IN_A_ROW = 13  # classes in a row of the legend


@mpl.rc_context(RC)
def grid(
    df: pd.DataFrame,
    class_names: Sequence[str] | None = None,
    *,
    row: str = "row",
    column: str = "column",
) -> tuple[Figure, pd.DataFrame]:
    """Draw embedded samples by class, a panel per row and column.

    Each panel has its own scale: coordinates of t-SNE mean nothing across panels. Up
    to ten classes have a colour each, more are told apart by colour and marker.

    Parameters
    ----------
    df : DataFrame
        Columns ``row``, ``column`` (their titles), label (class), x, y and, optionally,
        kind ("sample" or "prototype", an outlined star).
    class_names : list of str, optional
    row, column : str
        Names of columns of ``df``; the returned numbers keep them.
    """
    down, across = (list(dict.fromkeys(df[c])) for c in (row, column))
    classes = sorted(df["label"].unique())
    lines = -(-(len(classes) + plot.has_stars(df)) // IN_A_ROW)
    fig, axes = plt.subplots(
        len(down),
        len(across),
        figsize=(PAGE, SIDE * len(down) + 0.25 + 0.16 * lines),
        squeeze=False,
        layout="constrained",
    )
    for (i, j), ax in np.ndenumerate(axes):
        part = df[(df[row] == down[i]) & (df[column] == across[j])]
        plot.embedded(ax, part, classes, 5)
        ax.set_title(str(across[j]) if i == 0 else "")
        ax.set_ylabel(str(down[i]) if j == 0 else "")
    look: dict[str, Any] = {"handletextpad": 0.1, "columnspacing": 0.7}
    look |= {"ncols": min(len(classes) + 1, IN_A_ROW), "stars": plot.has_stars(df)}
    plot.class_legend(fig, classes, class_names, loc="outside lower center", **look)
    columns = [row, column, "label", *(["kind"] if "kind" in df else []), "x", "y"]
    return fig, df[columns].reset_index(drop=True)
