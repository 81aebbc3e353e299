"""A picture of small cells: behind how few samples a class's record stands."""

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


def _range(low: int, high: int | None) -> str:
    """Return a bar part's name: ``1``, ``3-4`` or ``10 or more`` samples."""
    if high is None:
        return f"{low} or more"
    return f"{low}" if high == low + 1 else f"{low}–{high - 1}"


@mpl.rc_context(RC)
def small_cells(frame: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw a bar per partition: its cells by their number of samples, in percent.

    Parameters
    ----------
    frame : DataFrame
        ``leaks.cells_of_papers``; partitions that were not drawn are left out.
    """
    drawn = frame[frame["cells"].notna()].reset_index(drop=True)
    below = [c for c in drawn if c.startswith("below ") and not c.endswith("_sd")]
    limits = [int(c.removeprefix("below ")) for c in below]
    edges = np.column_stack(
        [np.zeros(len(drawn)), drawn[below].to_numpy(float), np.ones(len(drawn))]
    )
    fig, ax = plt.subplots(
        figsize=(PAGE, 1.1 + 0.19 * len(drawn)), layout="constrained"
    )
    starts, ends = [1, *limits], [*limits, None]
    shades = COUNTS(np.linspace(0.95, 0.1, len(starts)))
    place = np.arange(len(drawn))
    for i, (low, high) in enumerate(zip(starts, ends, strict=True)):
        ax.barh(
            place,
            100 * (edges[:, i + 1] - edges[:, i]),
            left=100 * edges[:, i],
            height=0.75,
            color=shades[i],
            edgecolor="white",
            linewidth=0.4,
            label=_range(low, high),
        )
    names = [
        ", ".join(
            part
            for part in (
                registry.title(row["paper"]),
                facts(row["dataset"]).title,
                SCHEMES[row["scheme"]],
                row["setting"],
            )
            if part
        )
        for row in drawn.to_dict("records")
    ]
    ax.set_yticks(place, names)
    ax.set(xlim=(0, 100), ylim=(len(drawn) - 0.4, -0.6))
    ax.set_xlabel("Cells, a class of a client (%)")
    ax.tick_params(axis="y", length=0)
    fig.legend(title="Samples", loc="outside upper center", ncols=len(starts))
    keys = ["paper", "dataset", "scheme", "setting", "cells"]
    return fig, drawn[[*keys, *below]]
