"""FedPG's picture of two local models (Fig. 3)."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedlib.draw.looks import CYCLE, PAGE, RC

SHAPES = ["o", "^"]  # of the clients' markers
GREYS = ["0.3", "0.7"]  # of the clients' bars
PANELS = {"truth": "Coloured by true class", "prediction": "Coloured by prediction"}


def _points(ax: Axes, points: pd.DataFrame, kind: str) -> None:
    """Draw every client's embeddings, in the colours of their ``kind`` of class."""
    for shape, (_, mine) in zip(SHAPES, points.groupby("client"), strict=True):
        colours = [CYCLE[c % len(CYCLE)] for c in mine[kind]]
        look = {"s": 8, "alpha": 0.65, "linewidths": 0}
        ax.scatter(mine["x"], mine["y"], c=colours, marker=shape, **look)
    ax.set(xticks=[], yticks=[], title=PANELS[kind])
    ax.spines[["top", "right"]].set_visible(True)


def _bars(ax: Axes, held: pd.DataFrame, names: Sequence[str]) -> None:
    """Draw each client's training samples per class."""
    for i, (grey, (_, mine)) in enumerate(
        zip(GREYS, held.groupby("client"), strict=True)
    ):
        at = np.arange(len(mine)) + 0.4 * (i - 0.5)
        ax.barh(at, mine["samples"], 0.4, color=grey)
    step = math.ceil(len(names) / 20)
    ax.set_yticks(range(0, len(names), step), names[::step])
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.set(title="Training data", xlabel="Samples", ylabel="Class")
    ax.set_ylim(len(names) - 0.5, -0.5)


@mpl.rc_context(RC)
def drift(
    points: pd.DataFrame, held: pd.DataFrame, class_names: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    """Draw two local models' embeddings by truth and prediction, and their data.

    Up to ten classes have a colour each; of more, colours repeat. Shapes are clients.

    Parameters
    ----------
    points : DataFrame
        As ``drift.planes`` returns it.
    held : DataFrame
        As ``drift.histograms`` returns it.

    Returns
    -------
    The figure, and all its numbers: ``points`` and, below, ``held``.
    """
    fig, axes = plt.subplots(1, 3, figsize=(PAGE, 2.55), layout="constrained")
    for ax, kind in zip(axes, PANELS, strict=False):
        _points(ax, points, kind)
    _bars(axes[2], held, class_names)
    dot = {"linestyle": "", "markersize": 4.5}
    entries: dict[str, Any] = {
        str(name): Line2D([], [], marker="s", color=CYCLE[c], **dot)
        for c, name in enumerate(class_names[: len(CYCLE)])
    }
    clients = sorted(points["client"].unique())
    for shape, grey, client in zip(SHAPES, GREYS, clients, strict=True):
        mark = Line2D([], [], marker=shape, color="0.3", **dot)
        entries[f"Client {client}"] = (mark, Patch(color=grey))
    fig.legend(
        handles=list(entries.values()),
        labels=list(entries),
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.6)},
        loc="outside lower center",
        ncols=12 if max(map(len, entries)) < 9 else 6,
        handlelength=1.8,
        handletextpad=0.4,
        columnspacing=0.8,
    )
    return fig, pd.concat([points, held], ignore_index=True)
