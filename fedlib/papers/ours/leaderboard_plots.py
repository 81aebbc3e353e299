"""The leaderboard's page: accuracy against bytes, and who wins where."""

import itertools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedlib import registry
from fedlib.draw.looks import PAGE, RC, Style, style, titled
from fedlib.papers.ours.leaderboard import method_of

SILENT = "local"  # sends nothing: a line across, not a point
TOGETHER = 1.5  # labels of points whose bytes differ by less share a column
CROWDED = 6  # points of a column whose names fit on one side


def _spread(values: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """Return the values, moved apart to at least ``gap``, within ``[low, high]``."""
    order = np.argsort(values)
    placed = values[order].astype(float)
    for _ in range(200):
        placed = placed.clip(low, high)
        for i in range(1, len(placed)):
            short = gap - (placed[i] - placed[i - 1])
            if short > 0:
                placed[i - 1] -= short / 2
                placed[i] += short / 2
        placed = placed - max(0.0, placed[-1] - high)
        placed = placed + max(0.0, low - placed[0])
    spread = np.empty_like(placed)
    spread[order] = placed
    return spread


def crossing(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether two leaders ``(x, y, edge, height)`` to one edge cross."""
    at = max if first[2] > first[0] else min
    x = at(first[0], second[0])
    there = [y + (h - y) * (x - a) / (e - a) for a, y, e, h in (first, second)]
    return (there[0] - there[1]) * (first[3] - second[3]) < 0


def _uncrossed(
    x: np.ndarray, y: np.ndarray, edge: float, heights: np.ndarray
) -> np.ndarray:
    """Return the heights of names, exchanged where their leaders cross."""
    places = heights.copy()
    for _ in range(len(x)):
        for i, j in itertools.combinations(range(len(x)), 2):
            lines = [np.array([x[k], y[k], edge, places[k]]) for k in (i, j)]
            if crossing(*lines):
                places[i], places[j] = places[j], places[i]
    return places


def _beside(
    values: np.ndarray, gap: float, low: float, high: float, line: float
) -> np.ndarray:
    """Return the values moved apart as by ``_spread``, and off a line across."""
    places, above = np.empty_like(values, float), values >= line
    for side, least, most in (
        (above, max(low, line + 0.6 * gap), high),
        (~above, low, min(high, line - 0.6 * gap)),
    ):
        if side.any():
            places[side] = _spread(values[side], gap, least, most)
    return places


def _look(name: str) -> Style:
    """Return the style of a row; a released variant has its method's."""
    return style(method_of(name))


def _points(ax: Axes, frame: pd.DataFrame, size: float) -> None:
    """Draw one marker per method, and the silent method as a line."""
    ax.set_xscale("log")
    ax.grid(axis="y")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{100 * v:.0f}"))
    for row in frame.to_dict("records"):
        look = _look(row["method"])
        if row["method"] == SILENT:
            height = row["own"]
            ax.axhline(height, color=look.colour, linestyle=":", linewidth=1, zorder=1)
            continue
        ours = look.line == "-"
        hollow = method_of(row["method"]) != row["method"]  # a released variant
        ax.plot(
            row["megabytes"],
            row["own"],
            linestyle="",
            marker=look.marker,
            color=look.colour,
            markerfacecolor="white" if hollow else look.colour,
            markersize=size * (1.5 if look.marker == "*" else 1.0),
            markeredgecolor=look.colour if hollow else "black" if ours else "white",
            markeredgewidth=0.8 if ours else 0.4,
            zorder=3 if ours else 2,
        )


def _sides(part: pd.DataFrame) -> list[pd.DataFrame]:
    """Return a column's points whose names stand on its right, and on its left.

    A point that stands out to the right has its name there, so that no leader crosses
    the column; the rest are shared out from below, as evenly as that leaves.
    """
    sent = part["megabytes"].to_numpy(float)
    out = sent > 1.15 * np.median(sent)
    right: list[int] = []
    left: list[int] = []
    for place in range(len(part)):
        later = int(out[place:].sum())
        goes_right = out[place] or len(right) + later < len(left)
        (right if goes_right else left).append(place)
    return [part.iloc[right], part.iloc[left]]


def _weight(method: str) -> str:
    """Return the font weight of a name: the papers' own five are bold."""
    return "bold" if _look(method).line == "-" else "normal"


def _label(ax: Axes, frame: pd.DataFrame) -> None:
    """Write the names beside the points, in columns of points with like bytes.

    Where many points share a column, every other name stands on its left; a point
    that is alone has its name above, or below where the silent method's line is in the
    way. No name stands on that line.
    """
    silent = frame.loc[frame["method"] == SILENT, "own"]
    line = float(silent.iloc[0]) if len(silent) else float("-inf")
    drawn = frame.loc[frame["method"] != SILENT].sort_values("megabytes")
    column = (drawn.megabytes > drawn.megabytes.shift() * TOGETHER).cumsum()
    low, high = ax.get_ylim()
    gap = (high - low) / 30
    for _, part in drawn.groupby(column):
        part = part.sort_values("own")
        if len(part) == 1:
            (row,) = part.to_dict("records")
            below = row["own"] < line < row["own"] + 1.5 * gap
            ax.annotate(
                titled(row["method"]),
                (row["megabytes"], row["own"]),
                (0, -6 if below else 6),
                textcoords="offset points",
                fontsize=6.5,
                fontweight=_weight(row["method"]),
                ha="center",
                va="top" if below else "baseline",
            )
            continue
        halves = _sides(part) if len(part) > CROWDED else [part]
        for half, right in zip(halves, (True, False), strict=False):
            wanted = half["own"].to_numpy()
            heights = _beside(wanted, gap, low + gap / 2, high - gap / 2, line)
            edge = part["megabytes"].max() * 1.16
            edge = edge if right else part["megabytes"].min() / 1.16
            # leaders begin at the names' near edge, so that they cross no other name
            arrow = {"arrowstyle": "-", "color": "0.75", "linewidth": 0.4}
            arrow |= {"relpos": (0 if right else 1, 0.5)}
            across = np.log10(half["megabytes"].to_numpy(float))
            heights = _uncrossed(across, wanted, np.log10(edge), heights)
            for row, height in zip(half.to_dict("records"), heights, strict=True):
                ax.annotate(
                    titled(row["method"]),
                    (row["megabytes"], row["own"]),
                    (edge, height),
                    fontsize=6.5,
                    fontweight=_weight(row["method"]),
                    ha="left" if right else "right",
                    va="center",
                    arrowprops=arrow,
                )


@mpl.rc_context(RC)
def bytes_page(frame: pd.DataFrame, means: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw accuracy against bytes: the mean of all partitions large, each one small.

    Parameters
    ----------
    frame : DataFrame
        ``leaderboard.table``: partition, method, own, megabytes.
    means : DataFrame
        ``leaderboard.overall``.

    Returns
    -------
    The figure, and the numbers in it; partition "mean" is the large panel.
    """
    partitions = list(dict.fromkeys(frame["partition"]))
    fig = plt.figure(figsize=(PAGE, 7.6), layout="constrained")
    top, below = fig.subfigures(2, 1, squeeze=False, height_ratios=(2.1, 1)).flat
    ax = top.subplots()
    _points(ax, means, 6)
    ax.set_xlim(right=means["megabytes"].max() * 2.6)
    ax.set_xlabel("MB sent and received per client, whole run")
    ax.set_ylabel("Accuracy on own test samples (%)")
    ax.set_title("Mean of all partitions, head over the client's own classes")
    _label(ax, means)
    for height in means.loc[means.method == SILENT, "own"]:
        ax.annotate(
            f"{registry.title(SILENT)} (sends nothing)",
            (0.995, height),
            xycoords=("axes fraction", "data"),
            xytext=(0, 2),
            textcoords="offset points",
            fontsize=6.5,
            ha="right",
            color=style(SILENT).colour,
        )
    small = below.subplots(1, len(partitions), sharey=True, squeeze=False)[0]
    for panel, name in zip(small, partitions, strict=True):
        _points(panel, frame.loc[frame["partition"] == name], 4)
        panel.set_title(name.replace(" (", "\n("), fontsize=7)
    small[0].set_ylabel("Accuracy (%)")
    below.supxlabel("MB per client", fontsize=8)
    columns = ["partition", "method", "megabytes", "own"]
    rows = pd.concat([means.assign(partition="mean"), frame])
    return fig, rows.loc[:, columns].reset_index(drop=True)


@mpl.rc_context(RC)
def ranks(frame: pd.DataFrame, means: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw accuracies of all methods (rows, best mean rank first) per partition.

    Left on the clients' own test samples, by the head over their own classes; right
    the one model of all clients, or FedEnsemble's vote, on the whole test set by the
    head over all classes. Colour is the rank within a column; a method whose clients
    have models of their own has no cell on the right.
    """
    order = list(means["method"])
    partitions = list(dict.fromkeys(frame["partition"]))
    fig, axes = plt.subplots(
        1, 2, figsize=(PAGE, 0.9 + 0.19 * len(order)), layout="constrained", sharey=True
    )
    titles = {
        "own": "Own test samples, own classes (%)",
        "whole": "Whole test set, all classes (%)",
    }
    for ax, (column, title) in zip(axes, titles.items(), strict=True):
        cells = frame.pivot(index="method", columns="partition", values=column)
        cells = cells.loc[order, partitions]
        sns.heatmap(
            1 - cells.rank(ascending=False, pct=True),
            vmin=0,
            vmax=1.25,
            cmap="Blues",
            annot=100 * cells,
            fmt=".1f",
            annot_kws={"fontsize": 6.5, "va": "center_baseline"},
            cbar=False,
            xticklabels=[p.split(" (")[0] for p in partitions],
            yticklabels=[titled(name) for name in order],
            ax=ax,
        )
        ax.tick_params(axis="x", labelrotation=25, length=0)
        ax.tick_params(axis="y", length=0)
        ax.set(xlabel="", ylabel="", title=title)
    for text, name in zip(axes[0].get_yticklabels(), order, strict=True):
        text.set_fontweight(_weight(name))
    shade = "Darker: better rank in the column; blank: clients have models of their own"
    fig.suptitle(f"{shade}; rows by mean rank on the left", fontsize=7)
    columns = ["partition", "method", "own", "whole"]
    return fig, frame.loc[:, columns].reset_index(drop=True)
