"""Accuracy against a setting, and grids of embedded samples."""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from fedlib.draw import plot
from fedlib.draw.plot import RC


def _logarithmic(values: Sequence[Any]) -> bool:
    """Return whether positive values span so much that their logarithm is drawn."""
    return min(values) > 0 and max(values) / min(values) >= 20


@mpl.rc_context(RC)
def lines(
    df: pd.DataFrame,
    *,
    x: str = "value",
    y: str = "accuracy",
    line: str = "method",
    panel: str = "dataset",
    setting: str = "setting",
    names: Mapping[str, str] | None = None,
    ylabel: str = "Test accuracy (%)",
    percent: bool = True,
) -> tuple[Figure, pd.DataFrame]:
    """Draw ``y`` against a setting: a panel per data set and swept setting.

    Settings that are numbers are drawn to scale, on a logarithmic axis where they are
    positive and span a factor of 20; others are evenly spaced.

    Parameters
    ----------
    df : DataFrame
        Long form, as from ``Study.points``: columns ``x``, ``y``, ``line``, ``panel``
        and, optionally, ``"sd"`` over seeds, drawn as whiskers, and ``setting``.
    x, y, line, panel : str
        Names of columns of ``df``; the returned numbers keep them.
    setting : str
        Column that says what ``x`` is; each has panels of its own. Without it ``x``
        is what its column says.
    names : mapping, optional
        From a setting, or a panel, to its printed name.
    percent : bool
        Whether ``y`` are fractions to be labelled in percent.
    """
    names = dict(names or {})
    kept = [c for c in (panel, setting, x, line) if c in df]
    plot.require(df, [panel, x, line, y], kept)
    order = list(dict.fromkeys(df[line]))
    look = plot.styles(order)
    whole = df if setting in df else df.assign(**{setting: x})
    panels = list(whole.groupby([panel, setting], sort=False))
    fig, axes, columns = plot.panel_axes(
        len(panels),
        2.2,
        len(order),
        ylabel=ylabel,
        longest=max(len(s.label) for s in look.values()),
    )
    handles = {}
    for ax, ((title, swept), part) in zip(axes, panels, strict=True):
        values = list(dict.fromkeys(part[x]))
        numbers = all(isinstance(v, int | float) for v in values)
        place = {v: v if numbers else i for i, v in enumerate(values)}
        for name in order:
            mine = part[part[line] == name]
            if mine.empty:
                continue
            s = look[name]
            handles[name] = ax.errorbar(
                [place[v] for v in mine[x]],
                mine[y],
                yerr=mine["sd"] if "sd" in mine and mine["sd"].notna().any() else None,
                label=s.label,
                color=s.colour,
                marker=s.marker,
                linestyle=s.line,
                linewidth=s.width,
                markersize=6.5 if s.marker == "*" else 4,
                markeredgecolor="white",
                markeredgewidth=0.4,
                elinewidth=0.8,
                capsize=2,
                zorder=3 if s.line == "-" else 2,
            )
        if numbers and _logarithmic(values):
            ax.set_xscale("log")
            ax.xaxis.set_minor_locator(NullLocator())
        shown = values if len(values) <= 8 else values[:: math.ceil(len(values) / 8)]
        labels = [f"{v:g}" if numbers else str(v) for v in shown]
        ax.set_xticks([place[v] for v in shown], labels)
        ax.set_xlabel(names.get(swept, swept))
        ax.set_title(names.get(title, title) if df[panel].nunique() > 1 else "")
        ax.grid(axis="y")
        if percent:
            ax.yaxis.set_major_formatter(FuncFormatter(plot.in_percent))
    fig.legend(
        handles=[handles[n] for n in order], loc="outside lower center", ncols=columns
    )
    kept += [y, *(c for c in ("sd",) if c in df)]
    return fig, df.loc[:, kept].reset_index(drop=True)


@mpl.rc_context(RC)
def planes(
    df: pd.DataFrame, class_names: Sequence[str] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw embedded samples by class, a panel each, prototypes as outlined stars.

    Parameters
    ----------
    df : DataFrame
        Columns panel, x, y, label (class) and, optionally, kind ("sample" or
        "prototype").
    """
    panels = list(df.groupby("panel", sort=False))
    classes = sorted(df["label"].unique())
    fig, axes, _ = plot.panel_axes(len(panels), 2.4, min(len(classes), 12), wide=True)
    for ax, (title, part) in zip(axes, panels, strict=True):
        plot.embedded(ax, part, classes, 7)
        ax.set_title(str(title))
        ax.set_aspect("equal", "datalim")
    if len(classes) <= 26:
        look = {
            "handletextpad": 0.1,
            "columnspacing": 0.7,
            "ncols": min(len(classes), 12),
        }
        plot.class_legend(fig, classes, class_names, loc="outside lower center", **look)
    return fig, df.reset_index(drop=True)
