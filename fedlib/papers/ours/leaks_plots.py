"""A picture of small cells: behind how few samples a class's record stands."""

from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedlib import registry
from fedlib.data import facts
from fedlib.draw.looks import COUNTS, PAGE, RC

# scheme -> its name in the figure
SCHEMES = {
    "nway_kshot": "n-way k-shot",
    "capped_dirichlet": "capped Dirichlet",
    "lda": "plain Dirichlet",
    "nid1": "equal chunks",
    "nid2": "biased and unbiased",
    "two_class": "two classes",
    "subset": "subset",
    "domain_skew": "domains",
    "users": "users",
}


def _range(low: int, high: int) -> str:
    """Return a bar part's name: ``1`` or ``3-4`` samples."""
    return f"{low}" if high == low + 1 else f"{low}–{high - 1}"


def _title(rows: pd.DataFrame) -> str:
    """Return the name of a bar: of one partition, or of several that are alike."""
    first = rows.iloc[0]
    settings = [setting for setting in rows["setting"] if setting]
    word = {setting.partition(" ")[0] for setting in settings}
    if len(word) == 1:
        values = [setting.partition(" ")[2] for setting in settings]
        settings = [f"{word.pop()} {', '.join(values)}"]
    data, scheme = facts(first["dataset"]).title, SCHEMES[first["scheme"]]
    return ", ".join([registry.title(first["paper"]), data, scheme, *settings])


def _bars(drawn: pd.DataFrame, below: list[str]) -> list[pd.DataFrame]:
    """Return the rows of each bar; partitions without small cells share one."""
    none = (drawn[below] == 0).all(axis=1)
    keys = ["paper", "dataset", "scheme"]
    alone = (~none).cumsum().where(~none, -1)
    groups = drawn.groupby([*(drawn[key] for key in keys), alone], sort=False)
    return [rows for _, rows in groups]


@mpl.rc_context(RC)
def small_cells(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw a bar per partition: its cells with few samples, in percent.

    Parameters
    ----------
    frame : DataFrame
        ``leaks.cells_of_papers``; partitions that were not drawn are left out.
    """
    drawn = frame[frame["cells"].notna()].reset_index(drop=True)
    below = [c for c in drawn if c.startswith("below ") and not c.endswith("_sd")]
    limits = [int(c.removeprefix("below ")) for c in below]
    bars = _bars(drawn, below)
    shares = np.array([rows[below].iloc[0].to_numpy(float) for rows in bars])
    edges = 100 * np.column_stack([np.zeros(len(bars)), shares])
    height = 1.1 + 0.19 * len(bars)
    fig, ax = plt.subplots(figsize=(PAGE, height), layout="constrained")
    shades = COUNTS(np.linspace(0.95, 0.25, len(limits)))
    place = np.arange(len(bars))
    look: dict[str, Any] = {"height": 0.75, "edgecolor": "0.4", "linewidth": 0.4}
    for i, (low, high) in enumerate(zip([1, *limits], limits, strict=False)):
        wide = edges[:, i + 1] - edges[:, i]
        look |= {"left": edges[:, i], "color": shades[i], "label": _range(low, high)}
        ax.barh(place, wide, **look)
    for at in place[edges[:, -1] == 0]:
        ax.text(0.3, at, "none", fontsize=7, va="center_baseline", color="0.3")
    ax.set_yticks(place, [_title(rows) for rows in bars])
    ax.set(xlim=(0, 1.05 * edges.max() or 1), ylim=(len(bars) - 0.4, -0.6))
    few = f"fewer than {limits[-1]} samples"
    ax.set_xlabel(f"Classes of clients with {few} (%), mean over draws")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")
    fig.legend(title="Samples", loc="outside upper center", ncols=len(limits))
    keys = ["paper", "dataset", "scheme", "setting", "cells"]
    return fig, drawn[[*keys, *below]]
