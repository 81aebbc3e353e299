"""The figures that several notebooks draw: curves, bars, embeddings.

Every drawing function returns the figure and a table with exactly what is in it. How
methods look stands in ``looks``, panels and axes in ``layout``, heat maps in ``shaded``
and the end of a figure in ``saving``. Notebooks have all of it from here.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from fedlib.draw.layout import (
    MANY,
    compare,
    crowded,
    in_percent,
    in_turn,
    panel_axes,
    require,
    spread_out_alike,
    with_sd,
)
from fedlib.draw.looks import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    HATCHES,
    MARKERS,
    ORANGE,
    PURPLE,
    RC,
    RED,
    SKY,
    Style,
    family,
    styles,
    titled,
    words,
)
from fedlib.draw.saving import save
from fedlib.draw.shaded import heatmap, heatmaps

__all__ = [
    "BLACK",
    "BLUE",
    "CYCLE",
    "GREEN",
    "GREY",
    "HATCHES",
    "MARKERS",
    "ORANGE",
    "PURPLE",
    "RED",
    "SKY",
    "bars",
    "class_legend",
    "curves",
    "embedded",
    "heatmap",
    "heatmaps",
    "save",
    "scatter",
    "styles",
]
SHORT = 1.5  # letters that a marker without a line takes in a legend


def _curve(
    ax: Axes, part: pd.DataFrame, x: str, y: str, look: Style, marked: tuple[int, int]
) -> Line2D:
    """Draw one curve, with a band of one sd; ``marked``: first marker, and step."""
    (curve,) = ax.plot(part[x], part[y], markevery=marked, **look.stroke)
    if "sd" in part:
        low, high = part[y] - part["sd"], part[y] + part["sd"]
        ax.fill_between(part[x], low, high, color=look.colour, alpha=0.13, linewidth=0)
    return curve


def _enlarge(first: Axes, ax: Axes, window: tuple[float, float, float], x: str) -> None:
    """Show on a second panel what a window of the first one has, and frame it there."""
    start, low, high = window
    end, room = first.dataLim.x1, 0.08 * (high - low)
    low, high = low - room, high + room
    ax.set(xlim=(start, end + 0.02 * (end - start)), ylim=(low, high))
    ax.set_title(f"Enlarged, from {words(x)} {start:g}")
    frame = Rectangle((start, low), end - start, high - low, fill=False, zorder=4)
    frame.set(edgecolor="0.3", linewidth=0.6)
    first.add_patch(frame)


def _panels_of(
    windows: Sequence[Any], lines: int, **words: Any
) -> tuple[Figure, list[Axes], list[Axes], int]:
    """Return a figure with its panels, those that enlarge them, and legend columns.

    One panel is enlarged beside itself, several below, if each is ``crowded``.
    """
    count = len(windows)
    again = count if all(windows) and count < 4 else 0
    wide = lines > MANY
    height = 2.9 if wide and count + again == 1 else 2.2
    fig, axes, columns = panel_axes(count + again, height, lines, wide=wide, **words)
    return fig, axes[:count], axes[count:], columns


@mpl.rc_context(RC)
def curves(
    df: pd.DataFrame,
    *,
    x: str = "round",
    y: str = "accuracy",
    line: str = "method",
    panel: str = "panel",
    xlabel: str = "Communication round",
    ylabel: str = "Test accuracy (%)",
    percent: bool = True,
) -> tuple[Figure, pd.DataFrame]:
    """Draw one curve per line's name, with a band of one sd.

    Where accuracies end so close together that a panel does not show them apart, a
    second one enlarges its last third, which is framed in the first.

    Parameters
    ----------
    df : DataFrame
        Long form: columns ``x``, ``y``, ``line`` and, optionally, ``panel`` and
        ``"sd"``. A missing ``y`` leaves a gap.
    x, y, line, panel : str
        Names of columns of ``df``; the returned numbers keep them.
    percent : bool
        Whether ``y`` are fractions to be labelled in percent.
    """
    keys = [c for c in (panel, line, x) if c in df]
    require(df, [x, line, y], keys)
    order = list(dict.fromkeys(df[line]))
    look = styles(order)
    rows = df if panel in df else df.assign(**{panel: ""})
    parts = dict(list(rows.groupby([panel, line], sort=False)))
    panels = in_turn(dict.fromkeys(rows[panel]))
    drawn_in = [rows[rows[panel] == title] for title in panels]
    close = [crowded(part, x, y, line) if percent else None for part in drawn_in]
    labels = [s.label for s in look.values()]
    words_of = {"xlabel": xlabel, "ylabel": ylabel, "labels": labels}
    fig, axes, large, columns = _panels_of(close, len(order), **words_of)
    alike = compare(axes, panels, [part[y] for part in drawn_in])
    handles = {}
    shown = [*panels, *panels[: len(large)]]
    for ax, title in zip([*axes, *large], shown, strict=True):
        for place, name in enumerate(order):
            if (title, name) not in parts:
                continue
            part = parts[title, name].sort_values(x)
            step = max(1, len(part) // (24 if ax in large else 8))
            marked = (place * step // len(order), step)
            handles[name] = _curve(ax, part, x, y, look[name], marked)
        ax.grid(axis="y")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        ax.set_title(words(str(title)))
    for first, ax, window in zip(axes, large, close, strict=False):
        _enlarge(first, ax, window or (0, 0, 1), x)
    if percent:
        in_percent(*axes, *large)
    else:
        spread_out_alike(axes, alike, drawn_in, [panel, line], y)
    fig.legend(
        handles=[handles[n] for n in order], loc="outside lower center", ncols=columns
    )
    return fig, with_sd(df, [*keys, y])


def _names_below(ax: Axes, titles: Sequence[str], wide: bool) -> None:
    """Write a name below each bar, aslant where they would touch."""
    letters = sum(len(title) + 2 for title in titles)
    ax.set_xticks(range(len(titles)), [words(title) for title in titles])
    ax.tick_params(axis="x", length=0)
    if letters > (95 if wide else 42):
        plt.setp(ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
    ax.set_xlim(-0.6, len(titles) - 0.4)


def _hatched(ax: Axes, looks: Sequence[Style]) -> list[Patch]:
    """Hatch each group's bars, and return what the legend shows of them."""
    handles = []
    for i, (drawn, look) in enumerate(zip(ax.containers, looks, strict=True)):
        hatch = HATCHES[i % len(HATCHES)]
        plt.setp(list(drawn), hatch=hatch)
        handles.append(
            Patch(fc=look.colour, hatch=hatch, ec="white", lw=0, label=look.label)
        )
    return handles


def _bar_looks(names: Sequence[Any], grouped: bool) -> dict[str, Style]:
    """Return each bar's look; bars of one group that are no methods' are of one."""
    look = styles(names)
    if grouped or any(family(str(name)) for name in names):
        return look
    return {name: style._replace(colour=BLUE) for name, style in look.items()}


def _beside(of: Sequence[Any], groups: Sequence[Any]) -> np.ndarray:
    """Return how far from the middle of its place each group's bar stands."""
    places = np.array([groups.index(group) for group in of])
    return 0.8 / len(groups) * (places - (len(groups) - 1) / 2)


@mpl.rc_context(RC)
def bars(
    df: pd.DataFrame,
    *,
    x: str,
    y: str,
    group: str | None = None,
    ylabel: str = "Test accuracy (%)",
    percent: bool = True,
    wide: bool = False,
) -> tuple[Figure, pd.DataFrame]:
    """Draw one bar per ``x``, or one per ``x`` and group, with whiskers of one sd.

    Without groups, bars of methods have their colours and others are of one. What spans
    several powers of ten is for ``panels.dots``: a bar begins at 0.

    Parameters
    ----------
    df : DataFrame
        Long form: columns ``x``, ``y``, with a name also ``group``, and, optionally,
        ``"sd"``; a missing ``y`` leaves its place empty.
    x, y, group : str
        Names of columns of ``df``; the returned numbers keep them.
    percent : bool
        Whether ``y`` are fractions to be labelled in percent.
    """
    keys = [x] if group is None else [x, group]
    require(df, [*keys, y], keys)
    labels = list(dict.fromkeys(df[x]))
    groups = [None] if group is None else list(dict.fromkeys(df[group]))
    fig, axes, columns = panel_axes(1, 2.2, len(groups) if group else 0, wide)
    ax, look = axes[0], _bar_looks(groups if group else labels, bool(group))
    sns.barplot(
        df,
        x=x,
        y=y,
        hue=group or x,
        order=labels,
        hue_order=list(look),
        palette={name: s.colour for name, s in look.items()},
        saturation=1,
        gap=0.08,
        errorbar=None,
        edgecolor="white",
        linewidth=0,
        legend=False,
        zorder=2,
        ax=ax,
    )
    handles = _hatched(ax, list(look.values())) if len(groups) > 1 else []
    if "sd" in df:
        middles = np.array([labels.index(label) for label in df[x]], float)
        if group:
            middles += _beside(df[group], groups)
        caps = {"capsize": 2, "capthick": 0.8, "elinewidth": 0.8}
        ax.errorbar(middles, df[y], df["sd"], fmt="none", ecolor="black", **caps)
    _names_below(ax, [titled(name) for name in labels], wide)
    ax.set(xlabel="", ylabel=ylabel)
    ax.grid(axis="y")
    if percent:
        in_percent(ax)
    if handles:
        fig.legend(handles=handles, loc="outside lower center", ncols=columns)
    return fig, with_sd(df, [*keys, y])


def embedded(
    ax: Axes,
    df: pd.DataFrame,
    classes: Sequence[int],
    size: float,
    star: float = 90,
    domains: Sequence[str] = (),
) -> None:
    """Draw samples as a colour and a marker per class, prototypes as outlined stars.

    Parameters
    ----------
    df : DataFrame
        Columns x, y, label (class) and, optionally, kind ("sample" or "prototype") and
        domain.
    classes : list of int
        Classes of all panels, in order.
    size, star : float
        Area of a marker in square points.
    domains : list of str
        With several, a marker says the domain in place of the class.
    """
    kind = df["kind"] if "kind" in df else pd.Series("sample", df.index)
    samples: Any = df[kind == "sample"]
    colours = {c: CYCLE[c % len(CYCLE)] for c in classes}
    sns.scatterplot(
        samples,
        x="x",
        y="y",
        hue="label",
        style="domain" if domains else "label",
        hue_order=classes,
        style_order=domains or classes,
        palette=colours,
        markers=dict(zip(domains, MARKERS, strict=False))
        if domains
        else {c: class_marker(c) for c in classes},
        s=size,
        alpha=0.65,
        linewidth=0,
        legend=False,
        ax=ax,
    )
    stars = df[kind == "prototype"]
    look: Any = {"marker": "*", "edgecolors": "black", "linewidths": 0.7, "zorder": 3}
    ax.scatter(
        stars["x"], stars["y"], s=star, c=[colours[c] for c in stars["label"]], **look
    )
    ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
    ax.spines[["top", "right"]].set_visible(True)


def class_marker(c: int) -> str:
    """Return a class's marker; classes of one colour differ in it."""
    return MARKERS[(c + c // len(CYCLE)) % len(MARKERS)]


def class_legend(
    fig: Figure,
    classes: Sequence[int],
    class_names: Sequence[str] | None = None,
    domains: Sequence[str] = (),
    stars: bool = False,
    **options: Any,
) -> Legend:
    """Write the colour, marker and name of each class beside the panels.

    With domains a class has its colour alone, and each domain's marker follows in grey;
    last, with ``stars``, what a star is.
    """
    dot = {"linestyle": "", "markersize": 4.5, "markeredgewidth": 0}
    handles = [
        Line2D(
            [],
            [],
            marker="o" if domains else class_marker(c),
            color=CYCLE[c % len(CYCLE)],
            label=str(class_names[c] if class_names else c),
            **dot,
        )
        for c in classes
    ]
    handles += [
        Line2D([], [], marker=marker, color="0.3", label=name, **dot)
        for name, marker in zip(domains, MARKERS, strict=False)
    ]
    if stars:
        star: Any = {"marker": "*", "color": "white", "markeredgecolor": "black"}
        star |= {"linestyle": "", "markersize": 9, "markeredgewidth": 0.7}
        handles.append(Line2D([], [], label="prototype", **star))
    options = {"handlelength": SHORT} | options
    return fig.legend(handles=handles, **options)


def has_stars(df: pd.DataFrame) -> bool:
    """Return whether samples have prototypes beside them, as ``embedded`` draws."""
    return "kind" in df and bool((df["kind"] == "prototype").any())


@mpl.rc_context(RC)
def scatter(
    points: Any,
    labels: Any,
    *,
    prototypes: Any = None,
    prototype_labels: Any = None,
    title: str | None = None,
    class_names: Sequence[str] | None = None,
) -> tuple[Figure, pd.DataFrame]:
    """Draw embedded samples by class, and prototypes as large outlined stars.

    Parameters
    ----------
    points : [n, 2]
    labels : int [n]
    prototypes : [m, 2], optional
        A row with NaN is an absent prototype.
    prototype_labels : int [m], optional
        Class of each prototype; by default row c belongs to class c.
    """
    points, labels = np.asarray(points, float), np.asarray(labels)
    if points.ndim != 2 or points.shape[1] != 2 or labels.shape != points.shape[:1]:
        raise ValueError(
            f"points, labels: got shapes {points.shape}, {labels.shape}, "
            "expected [n, 2], [n]"
        )
    stars = np.empty((0, 2)) if prototypes is None else np.asarray(prototypes, float)
    owner = np.arange(len(stars)) if prototype_labels is None else prototype_labels
    owner = np.asarray(owner)
    if stars.ndim != 2 or stars.shape[1] != 2 or owner.shape != stars.shape[:1]:
        raise ValueError(
            f"prototypes, prototype_labels: got shapes {stars.shape}, {owner.shape}, "
            "expected [m, 2], [m]"
        )
    here = np.isfinite(stars).all(1)
    stars, owner = stars[here], owner[here]
    df = pd.DataFrame(np.concatenate([points, stars]), columns=["x", "y"])
    df["label"] = np.concatenate([labels, owner.astype(labels.dtype)])
    df["kind"] = ["sample"] * len(points) + ["prototype"] * len(stars)
    classes = sorted(set(df["label"].tolist()))
    fig, axes, _ = panel_axes(1, 2.6)
    embedded(axes[0], df, classes, 9, 110)
    axes[0].set(title=title or "", aspect="equal", adjustable="datalim")
    class_legend(
        fig,
        classes,
        class_names,
        loc="outside right center",
        handletextpad=0.2,
        labelspacing=0.35,
    )
    return fig, df
