"""Accuracy against a setting, and grids of embedded samples."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from matplotlib.transforms import ScaledTranslation

from fedlib.draw import layout, looks, plot
from fedlib.draw.looks import RC

MARKER = 3.5  # points between lines that are moved sideways


def _logarithmic(values: Sequence[Any]) -> bool:
    """Return whether positive values span so much that their logarithm is drawn."""
    return min(values) > 0 and max(values) / min(values) >= 10


def _places(values: Sequence[Any]) -> dict[Any, Any]:
    """Return where settings are drawn: numbers to scale, others evenly spaced."""
    numbers = all(isinstance(value, int | float) for value in values)
    return {value: value if numbers else i for i, value in enumerate(values)}


def _line(
    ax: Axes,
    at: Sequence[Any],
    points: pd.DataFrame,
    y: str,
    look: looks.Style,
    moved: float,
) -> ErrorbarContainer:
    """Draw one line, with whiskers of one sd where there is one, moved by points."""
    several = "sd" in points and points["sd"].notna().any()
    spread = points["sd"] if several else None
    whiskers: dict[str, Any] = {"elinewidth": 0.8, "capsize": 2}
    drawn = ax.errorbar(at, points[y], yerr=spread, **whiskers, **look.stroke)
    aside = ScaledTranslation(moved / 72, 0, ax.figure.dpi_scale_trans)
    for part in drawn.get_children() if moved else []:
        part.set_transform(ax.transData + aside)
    return drawn


def _moved(part: pd.DataFrame, x: str, y: str, line: str) -> dict[Any, float]:
    """Return by how many points each line of a panel is moved sideways."""
    heights = {
        name: dict(zip(mine[x], mine[y], strict=True))
        for name, mine in part.groupby(line, sort=False)
    }
    return layout.beside(heights, 0.02 * np.ptp(part[y]), MARKER)


def _setting_axis(ax: Axes, place: Mapping[Any, Any]) -> None:
    """Scale and label the axis of a setting, with up to eight of its values."""
    values = list(place)
    numbers = all(isinstance(value, int | float) for value in values)
    if numbers and _logarithmic(values):
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
    labelled = values[:: math.ceil(len(values) / 8)]
    labels = [f"{value:g}" if numbers else str(value) for value in labelled]
    ax.set_xticks([place[value] for value in labelled], labels)


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
    legend: str | None = None,
    percent: bool = True,
) -> tuple[Figure, pd.DataFrame]:
    """Draw ``y`` against a setting: a panel per data set and swept setting.

    Settings that are numbers are drawn to scale, on a logarithmic axis where they are
    positive and span a factor of 10; others are evenly spaced. Lines that would lie on
    each other are moved sideways, by the width of a marker.

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
    legend : str, optional
        What the lines' names are of, above them.
    percent : bool
        Whether ``y`` are fractions to be labelled in percent.
    """
    names = dict(names or {})
    asked = [c for c in (panel, setting, x, line) if c in df]
    layout.require(df, [panel, x, line, y], asked)
    order = list(dict.fromkeys(df[line]))
    look = looks.styles(order)
    labels = [style.label for style in look.values()]
    rows = df if setting in df else df.assign(**{setting: x})
    panels = list(rows.groupby([panel, setting], sort=False))
    wide = len(order) > layout.MANY and len(panels) == 1
    fig, axes, columns = layout.panel_axes(
        len(panels), 2.2, len(order), wide, ylabel=ylabel, labels=labels
    )
    titles = [""] * len(panels)
    if df[panel].nunique() > 1:
        titles = [str(names.get(title, title)) for (title, _), _ in panels]
    drawn_in = [part for _, part in panels]
    alike = layout.compare(axes, titles, [part[y] for part in drawn_in])
    handles = {}
    for ax, title, ((_, swept), part) in zip(axes, titles, panels, strict=True):
        place = _places(list(dict.fromkeys(part[x])))
        moved = _moved(part, x, y, line)
        for name in moved:
            points = part[part[line] == name]
            at = [place[value] for value in points[x]]
            handles[name] = _line(ax, at, points, y, look[name], moved[name])
        _setting_axis(ax, place)
        ax.set_xlabel(looks.words(str(names.get(swept, swept))))
        ax.set_title(looks.words(title))
        ax.grid(axis="y")
    if percent:
        layout.in_percent(*axes)
        for ax in axes:
            layout.five_points(ax)
    else:
        layout.spread_out_alike(axes, alike, drawn_in, [line], y)
    below: dict[str, Any] = {"loc": "outside lower center", "ncols": columns}
    below |= {"title": legend, "title_fontsize": 7}
    fig.legend(handles=[handles[n] for n in order], **below)
    return fig, layout.with_sd(df, [*asked, y])


@mpl.rc_context(RC)
def dots(
    df: pd.DataFrame, *, row: str, x: str, group: str, xlabel: str
) -> tuple[Figure, pd.DataFrame]:
    """Draw a row of dots per name on a logarithmic axis, one dot per group.

    It takes the place of bars where numbers span powers of ten.

    Parameters
    ----------
    df : DataFrame
        Columns ``row``, ``x`` (at least 0) and ``group``; the returned numbers keep
        them. A 0 has no place on the axis, so its row has no dot.

    Raises
    ------
    ValueError
        Missing columns, doubled rows, or a number that has no logarithm.
    """
    layout.require(df, [row, x, group], [row, group])
    if not (df[x] >= 0).all():
        raise ValueError(f"df: got {df[x].min()} as least {x}, expected at least 0")
    names, groups = (list(dict.fromkeys(df[c])) for c in (row, group))
    look, place = looks.styles(names), {name: i for i, name in enumerate(names)}
    fig, (ax,), columns = layout.panel_axes(
        1, 0.6 + 0.2 * len(names), len(groups), xlabel=xlabel
    )
    ax.set_xscale("log")
    ax.grid(axis="x")
    for i, name in enumerate(groups):
        mine = df[(df[group] == name) & (df[x] > 0)]
        colours = [look[n].colour for n in mine[row]]
        faces = colours if i == 0 else ["white"] * len(mine)
        marker = looks.MARKERS[i]
        at = [place[n] + 0.42 * (i - (len(groups) - 1) / 2) for n in mine[row]]
        look_of = {"marker": marker, "edgecolors": colours, "zorder": 3}
        ax.scatter(mine[x], at, 18, faces, **look_of)
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            color="0.3",
            marker=looks.MARKERS[i],
            markerfacecolor="0.3" if i == 0 else "white",
            label=looks.words(str(name)),
        )
        for i, name in enumerate(groups)
    ]
    ax.set_yticks(range(len(names)), [look[name].label for name in names])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(names) - 0.4, -0.6)
    below = {"loc": "outside lower center", "handlelength": plot.SHORT}
    fig.legend(handles=handles, ncols=columns, **below)
    asked = [c for c in df if c in (row, group, x)]
    return fig, df.loc[:, asked].reset_index(drop=True)


@mpl.rc_context(RC)
def planes(
    df: pd.DataFrame, class_names: Sequence[str] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw embedded samples by class, a panel each, prototypes as outlined stars.

    Parameters
    ----------
    df : DataFrame
        Columns panel, x, y, label (class) and, optionally, kind ("sample" or
        "prototype") and domain, of which each has a marker; a prototype's is empty.
    """
    panels = list(df.groupby("panel", sort=False))
    classes = sorted(df["label"].unique())
    domains = list(dict.fromkeys(df["domain"])) if "domain" in df else []
    domains = [name for name in domains if name]
    fig, axes, _ = layout.panel_axes(
        len(panels), 2.4, min(len(classes) + 1, 12), wide=True
    )
    for ax, (title, part) in zip(axes, panels, strict=True):
        plot.embedded(ax, part, classes, 7, domains=domains)
        ax.set_title(str(title))
        ax.set_aspect("equal", "datalim")
    if len(classes) <= 26:
        stars = plot.has_stars(df)
        look: dict[str, Any] = {"handletextpad": 0.1, "columnspacing": 0.7}
        look |= {"ncols": min(len(classes) + stars, 12), "loc": "outside lower center"}
        plot.class_legend(fig, classes, class_names, domains, stars, **look)
    return fig, df.reset_index(drop=True)
