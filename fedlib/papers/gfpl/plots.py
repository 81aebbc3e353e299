"""GFPL's pictures: mixtures in the plane, error bars, nearest real features."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Ellipse
from torch import Tensor

from fedlib.blocks.mixtures import Mixtures, components, fuse
from fedlib.draw import layout, looks
from fedlib.draw.looks import RC

SPREADS = {"client_sd": (0.8, "One sd over clients"), "sd": (2.6, "One sd over seeds")}
COLUMNS = ["x", "y", "sd x", "sd y", "weight"]


def ellipses(
    ax: Axes, mixtures: Mixtures, label: int, colour: str, *, line: str = "-"
) -> pd.DataFrame:
    """Draw the components of one class, each as an ellipse of two standard deviations.

    The heavier a component, the fuller its colour; a cross marks its mean.

    Parameters
    ----------
    mixtures : Mixtures
        ``[C, M, 2]``.
    label : int
        The class.

    Returns
    -------
    DataFrame
        One row per component: mean, standard deviations and weight.
    """
    rows = []
    mean, var, weight = components(mixtures, label)
    values = zip(mean.tolist(), var.sqrt().tolist(), weight.tolist(), strict=True)
    for (x, y), (sd_x, sd_y), share in values:
        patch = Ellipse((x, y), 4 * sd_x, 4 * sd_y, facecolor=colour, linestyle=line)
        patch.set(edgecolor=colour, alpha=0.15 + 0.35 * share, linewidth=1.0)
        ax.add_patch(patch)
        ax.plot(x, y, "+", color=colour, markersize=6, markeredgewidth=1.2)
        rows.append((x, y, sd_x, sd_y, share))
    return pd.DataFrame(rows, columns=COLUMNS)


@mpl.rc_context(RC)
def merged(
    pooled: Mixtures, threshold: float, clouds: Sequence[Tensor]
) -> tuple[Figure, pd.DataFrame]:
    """Draw what merging at one threshold leaves of a pool of one class, in the plane.

    Parameters
    ----------
    pooled : Mixtures
        Components of all clients, ``d = 2``.
    threshold : float
        S_C: the distance below which components merge.
    clouds : sequence of Tensor ``[N, 2]``
        The clients' embeddings, drawn beneath.
    """
    fused = fuse(pooled, threshold)
    fig, ax = plt.subplots(figsize=(looks.COLUMN, 1.9), layout="constrained")
    for cloud, colour in zip(clouds, looks.CYCLE, strict=False):
        ax.scatter(*cloud.T.numpy(), s=4, color=colour, zorder=3)
    drawn = ellipses(ax, fused.mixtures, 0, looks.PURPLE)
    ax.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(0.1, 1.35))
    ax.set(xlabel="first number", ylabel="second number")
    ax.set_title(f"S_C = {threshold:g}: {len(drawn)} Gaussians")
    return fig, drawn


@mpl.rc_context(RC)
def error_bars(df: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw accuracies as points, a panel per setting and a row per method.

    Parameters
    ----------
    df : DataFrame
        panel, method, mean, sd (over seeds, a thick bar) and client_sd (over clients, a
        thin one), in percent; a missing sd leaves its bar out.
    """
    panels = list(df.groupby("panel", sort=False))
    order = list(dict.fromkeys(df["method"]))
    look, place = looks.styles(order), {m: i for i, m in enumerate(order)}
    height = 0.7 + 0.165 * len(order)
    fig, axes, _ = layout.panel_axes(len(panels), height, wide=True)
    across = 2 if len(panels) == 4 else min(len(panels), 3)
    for i, (ax, (title, part)) in enumerate(zip(axes, panels, strict=True)):
        for row in part.to_dict("records"):
            s, at = look[row["method"]], (row["mean"], place[row["method"]])
            for spread, (width, _) in SPREADS.items():
                if np.isfinite(row[spread]):
                    ax.errorbar(*at, xerr=row[spread], color=s.colour, lw=width)
            size = 7.5 if s.marker == "*" else 5
            edge = {"markeredgecolor": "white", "markeredgewidth": 0.4}
            ax.plot(*at, s.marker, color=s.colour, markersize=size, **edge, zorder=3)
        labels = [look[m].label for m in order] if i % across == 0 else []
        ax.set_yticks(range(len(order)), labels or [""] * len(order))
        ax.set(ylim=(len(order) - 0.5, -0.5), title=str(title))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        if i >= len(panels) - across:
            ax.set_xlabel("Test accuracy (%)")
    bars = [
        Line2D([], [], color="0.3", lw=width, label=name)
        for spread, (width, name) in SPREADS.items()
        if df[spread].notna().any()
    ]
    fig.legend(handles=bars, loc="outside lower center", ncols=2)
    columns = ["panel", "method", "mean", "sd", "client_sd"]
    return fig, df[columns].reset_index(drop=True)


@mpl.rc_context(RC)
def cumulative(
    df: pd.DataFrame,
    value: str,
    *,
    kinds: Mapping[str, str],
    xlabel: str,
    mark: float,
    marked: str,
    least: float = 1e-4,
) -> tuple[Figure, pd.DataFrame]:
    """Draw the share of rows up to each value, a line per kind, and a vertical mark.

    Parameters
    ----------
    df : DataFrame
        Columns ``kind`` and ``value``'s, drawn on a logarithmic axis.
    kinds : mapping
        From a kind to its printed name; others are left out.
    mark : float
        Where the vertical line is, named ``marked``.
    least : float
        Where smaller values are drawn.

    Returns
    -------
    Figure, DataFrame
        The numbers drawn are the percentiles 0 to 100 of each kind.
    """
    percent = np.arange(101)
    look = looks.styles(list(kinds.values()))
    labels = [*kinds.values(), marked]
    fig, axes, columns = layout.panel_axes(1, 2.3, len(labels), labels=labels)
    rows = []
    for (kind, name), line in zip(kinds.items(), ("-", *looks.LINES), strict=False):
        values = df[df["kind"] == kind][value].to_numpy()
        drawn = np.percentile(values, percent).clip(least)
        style = {"color": look[name].colour, "linestyle": line}
        axes[0].plot(drawn, percent, label=name, linewidth=1.4, **style)
        rows.append(pd.DataFrame({"kind": kind, "percent": percent, value: drawn}))
    axes[0].axvline(mark, color="0.3", linewidth=1, label=marked)
    axes[0].set(xlabel=xlabel, ylabel="Share up to here (%)", xscale="log")
    axes[0].grid()
    fig.legend(loc="outside lower center", ncols=columns)
    return fig, pd.concat(rows, ignore_index=True)
