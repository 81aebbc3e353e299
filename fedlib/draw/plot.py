"""One look for all figures: a fixed style per method, and the numbers that were drawn.

Every drawing function returns the figure and a table with exactly what is in it.
Colours are safe for colour-blind readers; marker and line alone, without colour, tell
any two methods apart. A method looks alike in every figure, its variants have its
colour, and controls are grey.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedlib import registry
from fedlib.draw.tables import csv_text
from fedlib.support.files import atomic_write, write_text

COLUMN, PAGE = 3.5, 7.16  # inches: one column, the full page
SMALLEST = 4.9  # points of a count in a cell
RC: Any = {
    "figure.dpi": 150,
    "savefig.dpi": 200,
    "savefig.bbox": "standard",
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.columnspacing": 1.2,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": False,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
}

BLACK, GREY, SKY, BLUE, GREEN = "#000000", "#767676", "#56B4E9", "#0072B2", "#009E73"
ORANGE, OLIVE, PURPLE, WINE, RED = "#E69F00", "#8F8F23", "#B8569D", "#7A1F4D", "#D55E00"
DASH, DOT, DASHDOT, DASHDOTDOT = "--", ":", "-.", (0, (3, 1, 1, 1, 1, 1))
Line = str | tuple[int, tuple[int, ...]]


class Style(NamedTuple):
    """How a method is printed and drawn; the papers' own five are solid and thicker."""

    label: str
    colour: str
    marker: str
    line: Line
    hollow: bool = False  # a variant's marker is white inside

    @property
    def marks(self) -> dict[str, Any]:
        """How matplotlib draws the marker; hollow, it has the method's colour round."""
        return {
            "markersize": 6.5 if self.marker == "*" else 4,
            "markerfacecolor": "white" if self.hollow else self.colour,
            "markeredgecolor": self.colour if self.hollow else "white",
            "markeredgewidth": 0.8 if self.hollow else 0.4,
        }

    @property
    def width(self) -> float:
        """Line width in points."""
        return 1.7 if self.line == "-" else 1.1


# Looks in the order of the registry; methods of one paper differ in colour and marker.
OWN: list[tuple[str, str, Line]] = [
    (PURPLE, "s", "-"),
    (GREEN, "^", "-"),
    (RED, "o", "-"),
    (WINE, "D", "-"),
    (ORANGE, "*", "-"),
]
BASELINES: list[tuple[str, str, Line]] = [
    (GREY, "d", DOT),
    (BLACK, "v", DASH),
    (SKY, "<", DASHDOT),
    (WINE, "P", DASH),
    (ORANGE, "p", DASH),
    (OLIVE, ">", DASH),
    (BLUE, "X", DASH),
    (RED, "D", DASHDOT),
    (WINE, "X", DOT),
    (RED, "p", DASHDOT),
    (PURPLE, ">", DASHDOT),
    (OLIVE, "h", DASHDOTDOT),
    (PURPLE, "P", DASHDOT),
    (ORANGE, "s", DASHDOTDOT),
    (GREEN, ">", DOT),
    (GREEN, "P", DASHDOTDOT),
    (ORANGE, "^", DOT),
    (PURPLE, "p", DASHDOTDOT),
    (RED, "s", DASHDOT),
    (GREEN, "D", DASH),
    (WINE, "s", DOT),
]
# What a result is compared with, and is no result: grey in every figure.
CONTROLS = {"Another image", "Chance", "Class mean", "Real, to another one"}
# For classes, and for runs that are no method's.
CYCLE = [BLUE, RED, GREEN, PURPLE, ORANGE, SKY, WINE, OLIVE, BLACK, GREY]
MARKERS = "osD^vPX<>d"
LINES: list[Line] = [DASH, DOT, DASHDOT, DASHDOTDOT]
HATCHES = ["", "////", "....", "\\\\\\\\", "xxxx", "----", "++++", "||||", "oooo", "**"]
COUNTS = ListedColormap(mpl.colormaps["Blues"](np.linspace(0.12, 1, 256)))


def use_style() -> None:
    """Set the look of figures that a notebook draws by itself."""
    # Jupyter's backend turns interactive drawing on when it loads. Loaded inside one of
    # the contexts below, it would be turned off again, and later figures not be shown.
    plt.switch_backend(mpl.get_backend())
    plt.rcParams.update(RC)


def _is_of_papers(method: str) -> bool:
    return registry.module(method).startswith("fedlib.methods.")


def style(method: str) -> Style:
    """Return a method's style, by its place in the registry.

    Behind the last look of their kind, methods get markers and lines not yet taken. One
    that is added from outside of the package is drawn like a baseline.
    """
    of_papers = _is_of_papers(method)
    peers = [m for m in registry.METHODS if _is_of_papers(m) == of_papers]
    looks, lines = (OWN, ["-"]) if of_papers else (BASELINES, LINES)
    at = peers.index(method)
    if at < len(looks):
        return Style(registry.title(method), *looks[at])
    taken = {(marker, line) for _, marker, line in looks}
    every = [(marker, line) for line in lines for marker in MARKERS]
    free = [look for look in every if look not in taken]
    more = at - len(looks)
    colour, (marker, line) = CYCLE[more % len(CYCLE)], free[more % len(free)]
    return Style(registry.title(method), colour, marker, line)


def tint(colour: str, strength: int) -> str:
    """Return a colour, or at strength 1 the lighter one of a method's next variant."""
    red, green, blue = (c + 0.35 * strength * (1 - c) for c in to_rgb(colour))
    return to_hex((red, green, blue))


def family(name: str) -> str | None:
    """Return the method that a name is of: its own, or the title that it begins with.

    ``fedpa``, ``FedPA (reference)`` and ``FedPA, squared`` are all ``fedpa``'s.
    """
    if name in registry.METHODS:
        return name
    titles = {registry.title(method): method for method in registry.METHODS}
    first = re.match(r"\w+", name)
    return titles.get(first[0]) if first else None


def styles(names: Iterable[Any]) -> dict[str, Style]:
    """Return the style of each name: a method's own, or one that follows from it.

    A variant has its method's colour, every other one lighter, and a hollow marker and
    a line of its own; controls are grey. What is no method's gets a colour that nobody
    else has.
    """
    names = list(names)
    found = {name: style(name) for name in names if name in registry.METHODS}
    of = {name: family(str(name)) for name in names}
    own = {name: style(method).colour for name, method in of.items() if method}
    own |= dict.fromkeys(CONTROLS.intersection(names), GREY)
    free = [i for i, colour in enumerate(CYCLE) if colour not in own.values()]
    free += [i for i in range(len(CYCLE)) if i not in free]
    lines = LINES if any(of.values()) else ["-", *LINES]
    others = 0
    for name in (name for name in names if name not in found):
        taken = [(s.marker, s.line) for s in found.values()]
        if name in own:
            shift = sum(of[other] == of[name] for other in found)
            colour, order = tint(own[name], shift % 2), MARKERS
            avoid = [style(method).line] if (method := of[name]) else []
            patterns = [line for line in LINES if line not in avoid]
        else:
            at = free[others % len(free)]
            colour, order = CYCLE[at], MARKERS[at:] + MARKERS[:at]
            patterns, shift = lines, others
            others += 1
        used = [s.marker for s in found.values()]
        marker = min(order, key=used.count)
        turn = [patterns[(shift + i) % len(patterns)] for i in range(len(patterns))]
        line = next((each for each in turn if (marker, each) not in taken), turn[0])
        hollow = name in own and name not in CONTROLS
        found[name] = Style(words(str(name)), colour, marker, line, hollow)
    return {name: found[name] for name in names}


# What a run's switches are called in pictures; others lose their underscores.
SWITCHES = {
    "clip": "clipped at {}",
    "hpal=raw_sum": "raw",
    "learning_rate": "rate {}",
    "local_unit=epochs": "E as epochs",
    "po_dist=mse": "squared",
}


def words(name: str) -> str:
    """Return a name of code in words: ``hpal=raw_sum`` is ``raw``."""

    def told(found: re.Match) -> str:
        switch, value = found.groups()
        value = re.sub(r"\.0$", "", value)
        plain = f"{switch} {{}}"
        said = SWITCHES.get(found[0], SWITCHES.get(switch, plain)).format(value)
        return said.replace("_", " ")

    said = re.sub(r"(\w+)=([\w.+-]+)", told, name)
    return said if "$" in said else re.sub(r"(?<=\w)_(?=\w)", " ", said)


HUNDREDFOLD = 100.0  # from where on the smaller of two curves is not seen beside it


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
    found: dict[Any, list[int]] = {}
    for place, title in enumerate(titles):
        found.setdefault(str(title).partition(",")[0], []).append(place)
    groups = []
    for places in found.values():
        values = [np.asarray(numbers[i], float) for i in places]
        values = [each[np.isfinite(each)] for each in values]
        spans = [np.ptp(each) for each in values if each.size]
        whole = np.ptp(np.concatenate(values))
        if not spans or whole > ROOM * min(spans):
            groups += [[place] for place in places]
            continue
        groups.append(places)
        for place in places[1:]:
            axes[place].sharey(axes[places[0]])
            axes[place].tick_params(labelleft=True)
    return groups


def spread_out(ax: Axes, lines: Iterable[Any]) -> None:
    """Make the vertical axis logarithmic where two lines differ a hundredfold.

    They do by their medians. An axis with zeros is linear below the least number above
    0; one with negative numbers stays as it is.
    """
    arrays = [np.asarray(line, float) for line in lines]
    numbers = [array[np.isfinite(array)] for array in arrays]
    every = np.concatenate(numbers or [np.empty(0)])
    medians = np.array([np.median(each) for each in numbers if each.size])
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


def in_percent(value: float, _: int) -> str:
    """Return a fraction as an axis in percent shows it."""
    return f"{100 * value:.4g}"


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


def panel_axes(
    panels: int,
    height: float,
    legend: int = 0,
    wide: bool = False,
    xlabel: str = "",
    ylabel: str = "",
    longest: int = 0,
) -> tuple[Figure, list[Axes], int]:
    """Return a figure of panels and the number of legend columns that fit it.

    ``longest`` is the number of letters of the legend's longest entry.
    """
    across = 2 if panels == 4 else min(panels, 3)
    width = PAGE if wide or panels > 1 else COLUMN
    fit = 3 if width == COLUMN else 6
    fit = min(fit, int(width / (0.42 + 0.055 * longest)))  # handle and letters, inches
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
    whole = df if panel in df else df.assign(**{panel: ""})
    parts = dict(list(whole.groupby([panel, line], sort=False)))
    panels = list(dict.fromkeys(whole[panel]))
    longest = max(len(s.label) for s in look.values())
    fig, axes, columns = panel_axes(
        len(panels), 2.2, len(order), xlabel=xlabel, ylabel=ylabel, longest=longest
    )
    drawn_in = [whole.loc[whole[panel] == title, y] for title in panels]
    alike = compare(axes, panels, drawn_in)
    handles = {}
    for ax, title in zip(axes, panels, strict=True):
        for place, name in enumerate(order):
            if (title, name) not in parts:
                continue
            part = parts[title, name].sort_values(x)
            step = max(1, len(part) // 8)
            s = look[name]
            (handles[name],) = ax.plot(
                part[x],
                part[y],
                label=s.label,
                color=s.colour,
                marker=s.marker,
                linestyle=s.line,
                linewidth=s.width,
                markevery=(place * step // len(order), step),
                zorder=3 if s.line == "-" else 2,
                **s.marks,
            )
            if "sd" in part:
                low, high = part[y] - part["sd"], part[y] + part["sd"]
                ax.fill_between(
                    part[x], low, high, color=s.colour, alpha=0.13, linewidth=0
                )
        ax.grid(axis="y")
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if percent:
            ax.yaxis.set_major_formatter(FuncFormatter(in_percent))
        ax.set_title(words(str(title)))
    for places in [] if percent else alike:
        here = whole[whole[panel].isin([panels[i] for i in places])]
        each = [part for _, part in here.groupby([panel, line])[y]]
        spread_out(axes[places[0]], each)
    fig.legend(
        handles=[handles[n] for n in order], loc="outside lower center", ncols=columns
    )
    drawn = [*keys, y, *(c for c in ("sd",) if c in df)]
    return fig, df.loc[:, drawn].reset_index(drop=True)


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
    """Return what counts' shades stand for, so that they show what differs.

    From 0, or, where no count above 0 is below half of the largest, from the smallest
    of them; one number alone is as dark as the largest.

    Parameters
    ----------
    least : float
        What the largest is at least.
    """
    every = np.concatenate([np.ravel(each).astype(float) for each in arrays])
    above = every[every > 0]
    top = max(least, float(above.max(initial=0)))
    low = float(above.min(initial=np.inf))
    return Normalize(low if top / 2 < low < top else 0.0, top)


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
    arrays = {name: _counts(each, f"counts[{name!r}]") for name, each in counts.items()}
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
    ax, look = axes[0], styles(groups if group else labels)
    if not group and not any(family(str(name)) for name in labels):
        look = {name: s._replace(colour=BLUE) for name, s in look.items()}
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
    hatches = {name: HATCHES[i % len(HATCHES)] for i, name in enumerate(look)}
    if len(groups) > 1:
        for drawn, name in zip(ax.containers, look, strict=True):
            plt.setp(list(drawn), hatch=hatches[name])
    if "sd" in df:
        size, middle = 0.8 / len(groups), (len(groups) - 1) / 2
        side = [size * (groups.index(g) - middle) for g in df[group]] if group else 0
        at = np.array([labels.index(label) for label in df[x]]) + side
        caps = {"capsize": 2, "capthick": 0.8, "elinewidth": 0.8}
        ax.errorbar(at, df[y], df["sd"], fmt="none", ecolor="black", **caps)
    many = sum(len(registry.title(str(n))) + 2 for n in labels) > (95 if wide else 42)
    said = [words(registry.title(str(name))) for name in labels]
    ax.set_xticks(range(len(labels)), said)
    ax.tick_params(axis="x", length=0)
    if many:
        plt.setp(ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
    ax.set(xlabel="", ylabel=ylabel, xlim=(-0.6, len(labels) - 0.4))
    ax.grid(axis="y")
    if percent:
        ax.yaxis.set_major_formatter(FuncFormatter(in_percent))
    if len(groups) > 1:
        handles = [
            Patch(fc=s.colour, hatch=hatches[name], ec="white", lw=0, label=s.label)
            for name, s in look.items()
        ]
        fig.legend(handles=handles, loc="outside lower center", ncols=columns)
    kept = [*keys, y, *(c for c in ("sd",) if c in df)]
    return fig, df.loc[:, kept].reset_index(drop=True)


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
    **options: Any,
) -> Legend:
    """Write the colour, marker and name of each class beside the panels.

    With domains a class has its colour alone, and each domain's marker follows in grey.
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
    return fig.legend(handles=handles, **options)


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
    found = sorted(set(df["label"].tolist()))
    fig, axes, _ = panel_axes(1, 2.6)
    embedded(axes[0], df, found, 9, 110)
    axes[0].set(title=title or "", aspect="equal", adjustable="datalim")
    class_legend(
        fig,
        found,
        class_names,
        loc="outside right center",
        handletextpad=0.2,
        labelspacing=0.35,
    )
    return fig, df


NOTE = 5.5  # points of a footnote


@mpl.rc_context(RC)
def footnote(fig: Figure, text: str) -> None:
    """Write a note below all that a figure has, which grows by as much."""
    wide, tall = fig.get_size_inches()
    lines = textwrap.wrap(text, int(72 * wide / (0.58 * NOTE)))
    if not lines:
        return
    more = (1.3 * len(lines) + 0.6) * NOTE / 72
    share, kept = more / (tall + more), tall / (tall + more)
    engine = fig.get_layout_engine()
    if engine is None:
        for ax in fig.axes:
            x, y, width, height = ax.get_position().bounds
            ax.set_position((x, share + kept * y, width, kept * height))
        for each in fig.texts:
            each.set_y(share + kept * each.get_position()[1])
    else:
        engine.set(rect=(0, share, 1, kept))  # pyright: ignore[reportCallIssue]
    for legend in fig.legends:
        if getattr(legend, "_outside_loc", None) == "lower":
            size = float(legend.get_texts()[0].get_fontsize())
            legend.borderaxespad += 72 * more / size
    fig.set_size_inches(wide, tall + more)
    fig.text(
        0.06 / wide,
        0.3 * NOTE / 72 / (tall + more),
        "\n".join(lines),
        fontsize=NOTE,
        color="0.3",
        va="bottom",
        linespacing=1.3,
        gid="footnote",
    )


def honest(fig: Figure) -> None:
    """Refuse a bar on a logarithmic axis: where it begins is anyone's choice.

    Raises
    ------
    ValueError
        Such a bar.
    """
    for ax in fig.axes:
        for bars in ax.containers:
            along = getattr(bars, "orientation", None)
            scale = {"vertical": ax.get_yscale, "horizontal": ax.get_xscale}
            if along in scale and scale[along]() != "linear":
                raise ValueError(
                    f"fig: got bars on a {scale[along]()} axis, expected dots on it "
                    "(panels.dots), or bars from 0 on a linear one"
                )


@mpl.rc_context(RC)
def save(fig: Figure, df: pd.DataFrame, path_without_suffix: Path) -> list[Path]:
    """Write a figure as PNG and PDF and its numbers as CSV; same input, same bytes.

    Raises
    ------
    ValueError
        Bars on a logarithmic axis.
    """
    honest(fig)
    base = Path(path_without_suffix)
    png, pdf, csv = (base.with_name(f"{base.name}.{s}") for s in ("png", "pdf", "csv"))
    with atomic_write(png) as temporary:
        fig.savefig(temporary, dpi=200, metadata={"Software": None})
    blank = {"CreationDate": None, "Creator": None, "Producer": None}
    with atomic_write(pdf) as temporary:
        fig.savefig(temporary, metadata=blank)
    write_text(csv, csv_text(df))
    return [png, pdf, csv]
