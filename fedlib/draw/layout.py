"""Panels and their axes: how many side by side, which share an axis, in which scale."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from fedlib.draw.looks import (
    COLUMN,
    PAGE,
)

HUNDREDFOLD = 100.0  # from where on the smaller of two curves is not seen beside it
NEAR = 0.04  # accuracies of lines that are drawn on each other
LEAST = 0.015  # of accuracy that an enlarged panel shows
MANY = 4  # lines that a column's width has room for
ROOM = 4.0  # how much of its height a panel may lose to an axis that it shares


def compare(
    axes: Sequence[Axes], titles: Sequence[Any], numbers: Sequence[Any]
) -> list[list[int]]:
    """Let panels of one quantity share their vertical axis, and return them together.

    What a panel's title has before the first comma says what it measures: ``Gap of
    anchors, before`` and ``Gap of anchors, after`` are one, as are panels of one data
    set at several settings. Panels whose numbers would then have less than a quarter of
    the height keep their own axis.

    Parameters
    ----------
    titles, numbers : list
        Of each panel its title, and what it draws.
    """
    by_quantity: dict[Any, list[int]] = {}
    for place, title in enumerate(titles):
        by_quantity.setdefault(str(title).partition(",")[0], []).append(place)
    groups = []
    for places in by_quantity.values():
        values = [np.asarray(numbers[i], float) for i in places]
        values = [one[np.isfinite(one)] for one in values]
        spans = [np.ptp(one) for one in values if one.size]
        span = np.ptp(np.concatenate(values))
        if not spans or span > ROOM * min(spans):
            groups += [[place] for place in places]
            continue
        groups.append(places)
        for place in places[1:]:
            axes[place].sharey(axes[places[0]])
            axes[place].tick_params(labelleft=True)
    return groups


def in_turn(titles: Iterable[Any]) -> list[Any]:
    """Return titles of panels, those of one quantity together, ``before`` first."""
    titles = list(titles)
    quantity = [str(title).partition(",")[0] for title in titles]
    before = [", before" in str(title) for title in titles]
    places = range(len(titles))
    key = [(quantity.index(quantity[i]), not before[i], i) for i in places]
    return [titles[i] for *_, i in sorted(key)]


def crowded(
    part: pd.DataFrame, x: str, y: str, line: str
) -> tuple[float, float, float] | None:
    """Return from where on, and between which heights, a panel is worth enlarging.

    It is where half of the lines, and at least two, end in the last third within four
    points of accuracy of their median or of such a line, on less than a quarter of the
    panel's height.
    """
    first, last = part[x].min(), part[x].max()
    late = part[part[x] >= last - (last - first) / 3]
    ends = late.groupby(line)[y].mean()
    middle = ends.median()
    apart = np.sort([*ends, middle])
    cluster = dict(zip(apart, np.cumsum(np.diff(apart, prepend=0) > NEAR), strict=True))
    near = ends[ends.map(cluster) == cluster[middle]].index
    if part[x].nunique() < 12 or len(near) < max(2, len(ends) / 2):
        return None
    heights = late.loc[late[line].isin(near), y]
    low, high = heights.min(), heights.max()
    if high - low > (part[y].max() - part[y].min()) / 4:
        return None
    more = max(0.0, LEAST - (high - low)) / 2
    return late[x].min(), low - more, high + more


def spread_out(ax: Axes, lines: Iterable[Any]) -> None:
    """Make the vertical axis logarithmic where two lines differ a hundredfold.

    They do by their medians. An axis with zeros is linear below the least number above
    0; one with negative numbers stays as it is.
    """
    arrays = [np.asarray(line, float) for line in lines]
    numbers = [array[np.isfinite(array)] for array in arrays]
    every = np.concatenate(numbers or [np.empty(0)])
    medians = np.array([np.median(array) for array in numbers if array.size])
    above = medians[medians > 0]
    if not every.size or every.min() < 0 or above.size < 2:
        return
    if above.max() / above.min() < HUNDREDFOLD:
        return
    if every.min() > 0:
        ax.set_yscale("log")
    else:
        least = 10.0 ** math.floor(math.log10(every[every > 0].min()))
        ax.set_yscale("symlog", linthresh=least)
        ax.set_ylim(bottom=0)


def name_round_numbers(axis: Axis) -> None:
    """Mark 1, 2, 5, 10, ... of a logarithmic axis, as numbers and not as powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def spread_out_alike(
    axes: Sequence[Axes],
    alike: Sequence[Sequence[int]],
    parts: Sequence[pd.DataFrame],
    keys: list[str],
    y: str,
) -> None:
    """``spread_out`` for panels that share an axis, as ``compare`` returns them.

    ``keys`` are the columns that tell two lines apart in the frames of these panels.
    """
    for places in alike:
        together = pd.concat([parts[i] for i in places])
        lines = [part for _, part in together.groupby(keys)[y]]
        spread_out(axes[places[0]], lines)


def in_percent(*axes: Axes) -> None:
    """Label fractions on vertical axes in percent."""
    for ax in axes:
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: _percent(v)))


def _percent(value: float) -> str:
    return f"{100 * value:.4g}".replace("-", "\N{MINUS SIGN}")


def five_points(ax: Axes) -> None:
    """Let an axis of accuracies span five points: a seed's noise is no trend."""
    low, high = ax.get_ylim()
    more = max(0.0, 0.05 - (high - low)) / 2
    above = min(more, max(0.0, 1 - high)) if high <= 1 else more
    ax.set_ylim(low - 2 * more + above, high + above)


def beside(
    heights: Mapping[Any, Mapping[Any, float]], apart: float, step: float
) -> dict[Any, float]:
    """Return by how much each line is moved sideways, so that none hides another.

    Lines are moved that are no further than ``apart`` from another one at a place.

    Parameters
    ----------
    heights : mapping
        Of each line, from a place on the horizontal axis to its height.
    step : float
        Between two such lines.
    """
    near: dict[Any, None] = {}
    for one, other in combinations(heights, 2):
        both = set(heights[one]) & set(heights[other])
        if any(abs(heights[one][at] - heights[other][at]) <= apart for at in both):
            near |= {one: None, other: None}
    order = [name for name in heights if name in near]
    moved = {name: step * (i - (len(order) - 1) / 2) for i, name in enumerate(order)}
    return {name: moved.get(name, 0.0) for name in heights}


def with_sd(df: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the columns that a figure shows, and ``sd`` where there is one."""
    spread = ["sd"] if "sd" in df else []
    return df.loc[:, [*columns, *spread]].reset_index(drop=True)


def require(df: pd.DataFrame, columns: Sequence[str], keys: list[str]) -> None:
    """Refuse a frame without these columns, without rows, or with doubled keys."""
    missing = [c for c in columns if c not in df]
    if missing:
        raise ValueError(f"df: got columns {list(df)}, expected also {missing}")
    if df.empty:
        raise ValueError("df: got no rows, expected at least one")
    if df.duplicated(keys).any():
        twice = df.loc[df.duplicated(keys), keys].iloc[0].tolist()
        raise ValueError(f"df: got two rows for {keys} = {twice}, expected one")


def _columns(width: float, labels: Iterable[str]) -> int:
    """Return how many columns of a legend with these entries fit a width in inches."""
    rc = plt.rcParams
    font = FontProperties(size=rc["legend.fontsize"])
    letters = [TextPath((0, 0), text, prop=font).get_extents().width for text in labels]
    size = font.get_size_in_points()
    between, border = rc["legend.columnspacing"], 2 * rc["legend.borderpad"]
    column = (rc["legend.handlelength"] + rc["legend.handletextpad"] + between) * size
    column += 1.01 * max(letters, default=0)  # pixels are whole
    return int((72 * width + (between - border) * size) / column)


def panel_axes(
    panels: int,
    height: float,
    legend: int = 0,
    wide: bool = False,
    xlabel: str = "",
    ylabel: str = "",
    labels: Iterable[str] = (),
) -> tuple[Figure, list[Axes], int]:
    """Return a figure of panels and the number of legend columns that fit it.

    ``labels`` are the legend's entries, if they may be long.
    """
    across = 2 if panels == 4 else min(panels, 3)
    width = PAGE if wide or panels > 1 else COLUMN
    fit = 3 if width == COLUMN else 6
    fit = min(fit, _columns(width, labels))
    columns = min(fit, legend) or 1
    columns = math.ceil(legend / math.ceil(legend / columns)) if legend else 1
    down = math.ceil(panels / across)
    total = height * down + 0.16 * math.ceil(legend / columns)
    fig, grid = plt.subplots(
        down, across, figsize=(width, total), squeeze=False, layout="constrained"
    )
    for unused in grid.flat[panels:]:
        unused.remove()
    axes = list(grid.flat[:panels])
    for place, ax in enumerate(axes):
        ax.set_xlabel(xlabel if place + across >= panels else "")
        ax.set_ylabel(ylabel if place % across == 0 else "")
    return fig, axes, columns
