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
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from fedlib.draw import layout, looks, plot
from fedlib.draw.looks import RC


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
    asked = [c for c in (panel, setting, x, line) if c in df]
    layout.require(df, [panel, x, line, y], asked)
    order = list(dict.fromkeys(df[line]))
    look = looks.styles(order)
    rows = df if setting in df else df.assign(**{setting: x})
    panels = list(rows.groupby([panel, setting], sort=False))
    fig, axes, columns = layout.panel_axes(
        len(panels),
        2.2,
        len(order),
        ylabel=ylabel,
        labels=[s.label for s in look.values()],
    )
    several = df[panel].nunique() > 1
    titles = [str(names.get(title, title)) for (title, _), _ in panels]
    drawn_in = [part[y] for _, part in panels]
    alike = layout.compare(axes, titles if several else [""] * len(titles), drawn_in)
    handles = {}
    for ax, title, ((_, swept), part) in zip(axes, titles, panels, strict=True):
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
                elinewidth=0.8,
                capsize=2,
                zorder=3 if s.line == "-" else 2,
                **s.marks,
            )
        if numbers and _logarithmic(values):
            ax.set_xscale("log")
            ax.xaxis.set_minor_locator(NullLocator())
        shown = values if len(values) <= 8 else values[:: math.ceil(len(values) / 8)]
        labels = [f"{v:g}" if numbers else str(v) for v in shown]
        ax.set_xticks([place[v] for v in shown], labels)
        ax.set_xlabel(looks.words(str(names.get(swept, swept))))
        ax.set_title(looks.words(title) if several else "")
        ax.grid(axis="y")
        if percent:
            ax.yaxis.set_major_formatter(FuncFormatter(layout.in_percent))
    for places in [] if percent else alike:
        here = pd.concat([panels[i][1] for i in places])
        layout.spread_out(axes[places[0]], [part for _, part in here.groupby(line)[y]])
    fig.legend(
        handles=[handles[n] for n in order], loc="outside lower center", ncols=columns
    )
    asked += [y, *(c for c in ("sd",) if c in df)]
    return fig, df.loc[:, asked].reset_index(drop=True)


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
        1, 0.6 + 0.17 * len(names), len(groups), xlabel=xlabel
    )
    ax.set_xscale("log")
    ax.grid(axis="x")
    for i, name in enumerate(groups):
        mine = df[(df[group] == name) & (df[x] > 0)]
        colours = [look[n].colour for n in mine[row]]
        faces = colours if i == 0 else ["white"] * len(mine)
        marker = looks.MARKERS[i]
        at = [place[n] + 0.24 * (i - (len(groups) - 1) / 2) for n in mine[row]]
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
    fig.legend(handles=handles, loc="outside lower center", ncols=columns)
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
    fig, axes, _ = layout.panel_axes(len(panels), 2.4, min(len(classes), 12), wide=True)
    for ax, (title, part) in zip(axes, panels, strict=True):
        plot.embedded(ax, part, classes, 7, domains=domains)
        ax.set_title(str(title))
        ax.set_aspect("equal", "datalim")
    if len(classes) <= 26:
        look = {
            "handletextpad": 0.1,
            "columnspacing": 0.7,
            "ncols": min(len(classes), 12),
        }
        look["loc"] = "outside lower center"
        plot.class_legend(fig, classes, class_names, domains, **look)
    return fig, df.reset_index(drop=True)
