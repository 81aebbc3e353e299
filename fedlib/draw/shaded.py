"""Numbers of clients and classes as shades."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.draw.layout import panel_axes
from fedlib.draw.looks import (
    COUNTS,
    RC,
)

SMALLEST = 4.9  # points of a count in a cell


def _counts(counts: Any, name: str) -> np.ndarray:
    array = np.asarray(counts)
    if array.ndim != 2 or not array.size:
        raise ValueError(
            f"{name}: got shape {array.shape}, expected [clients, classes]"
        )
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name}: got a negative or non-finite count")
    return array


def shades(arrays: Iterable[np.ndarray], least: float = 0.0) -> Normalize:
    """Return what counts' shades stand for: from 0, which is blank, to the largest.

    So a shade is as dark as a count is large, and counts that hardly differ look so.

    Parameters
    ----------
    least : float
        What the largest is at least.
    """
    every = np.concatenate([np.ravel(array).astype(float) for array in arrays])
    return Normalize(0.0, max(least, float(every.max(initial=0))))


def cells(
    ax: Axes,
    table: Any,
    norm: Normalize,
    *,
    lines: float = 0.3,
    rows: Sequence[Any] | None = None,
    columns: Sequence[Any] | None = None,
    steps: tuple[int, int] = (1, 1),
) -> None:
    """Draw numbers ``[rows, columns]`` as shades of ``norm``; 0 stays blank.

    Parameters
    ----------
    lines : float
        Width in points of the lines between cells.
    rows, columns : sequence, optional
        Names of all rows and columns, by default their numbers.
    steps : (int, int)
        Every how many rows and columns have their name at the axis.
    """
    down, across = np.shape(table)
    index: Any = rows or range(down)
    names: Any = columns or range(across)
    frame = pd.DataFrame(np.asarray(table), index, names)
    said = {"xlabel": ax.get_xlabel(), "ylabel": ax.get_ylabel()}
    sns.heatmap(
        frame,
        mask=frame.to_numpy() == 0,
        norm=norm,
        cmap=COUNTS,
        cbar=False,
        linewidths=lines,
        linecolor="0.88",
        yticklabels=steps[0],
        xticklabels=steps[1],
        ax=ax,
    )
    ax.set(**said)
    ax.tick_params(length=2, labelsize=6, labelrotation=0)
    sns.despine(ax=ax, top=False, right=False)


def shade_bar(fig: Figure, axes: list[Axes], norm: Normalize, label: str) -> None:
    """Draw beside the panels what their shades stand for."""
    bar = fig.colorbar(
        ScalarMappable(norm, COUNTS), ax=axes, label=label, aspect=30, pad=0.02
    )
    bar.ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _write_counts(
    fig: Figure, axes: list[Axes], arrays: list[np.ndarray], norm: Normalize
) -> None:
    """Write the counts into all panels if they fit at a legible size."""
    fig.draw_without_rendering()  # the layout is known only now
    digits, size = len(f"{norm.vmax:.0f}"), 7.0
    for ax, array in zip(axes, arrays, strict=True):
        box = ax.get_window_extent()
        wide = 72 / fig.dpi * box.width / array.shape[0]
        high = 72 / fig.dpi * box.height / array.shape[1]
        size = min(size, (wide - 1.5) / (0.64 * digits), high / 1.25)
    if size < SMALLEST:
        return
    for ax, array in zip(axes, arrays, strict=True):
        for (client, label), value in np.ndenumerate(array):
            if value:
                ax.text(
                    client + 0.5,
                    label + 0.5,
                    f"{value:.0f}",
                    fontsize=size,
                    color="white" if norm(value) > 0.6 else "black",
                    ha="center",
                    va="center_baseline",
                )


@mpl.rc_context(RC)
def heatmaps(
    counts: Mapping[str, Any],
    *,
    class_names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    label: str = "Training samples",
    value: str = "count",
    wide: bool = False,
) -> tuple[Figure, pd.DataFrame]:
    """Draw samples per client (across) and class (down), one panel per entry.

    Panels share one colour scale (``shades``). Cells without samples stay blank.

    Parameters
    ----------
    counts : mapping from title to int [clients, classes]
    class_names : list of str, or mapping from title to one, optional
        Panels of several data sets have each their own.
    value : str
        What the column of numbers is called in the returned table.
    wide : bool
        Whether a single panel takes the full page instead of one column.
    """
    if not counts:
        raise ValueError("counts: got no panels, expected at least one")
    arrays = {
        name: _counts(table, f"counts[{name!r}]") for name, table in counts.items()
    }
    norm = shades(arrays.values(), 1.0)
    most = max(a.shape[1] for a in arrays.values())
    names = {
        name: list(
            (class_names[name] if isinstance(class_names, Mapping) else class_names)
            or range(most)
        )
        for name in arrays
    }
    for name, array in arrays.items():
        wanted = array.shape[1] if isinstance(class_names, Mapping) else most
        if len(names[name]) != wanted:
            raise ValueError(
                f"class_names: got {len(names[name])} names, expected {wanted}"
            )
    height = min(6.0, 0.8 + 0.16 * max(8, most))
    fig, axes, _ = panel_axes(
        len(arrays), height, wide=wide, xlabel="Client", ylabel="Class"
    )
    for ax, (name, array) in zip(axes, arrays.items(), strict=True):
        clients, classes = array.shape
        step = math.ceil(clients / (20 if wide and len(axes) == 1 else 10))
        steps = (math.ceil(classes / 26), step)
        cells(ax, array.T, norm, rows=names[name][:classes], steps=steps)
        ax.set_title(name)
    shade_bar(fig, axes, norm, label)
    _write_counts(fig, axes, list(arrays.values()), norm)
    rows = [
        (name, client, c, number)
        for name, array in arrays.items()
        for (client, c), number in np.ndenumerate(array)
    ]
    return fig, pd.DataFrame(rows, columns=["panel", "client", "class", value])


def heatmap(
    counts: Any,
    *,
    title: str = "",
    class_names: Sequence[str] | None = None,
    label: str = "Training samples",
    wide: bool = False,
) -> tuple[Figure, pd.DataFrame]:
    """Draw samples per client (across) and class (down) of one partition."""
    fig, df = heatmaps({title: counts}, class_names=class_names, label=label, wide=wide)
    return fig, df.drop(columns="panel")
