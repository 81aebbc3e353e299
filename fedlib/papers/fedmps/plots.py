"""FedMPS's figures of cost and of activation maps."""

from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.draw import looks


@mpl.rc_context(looks.RC)
def costs(df: pd.DataFrame, panels: Mapping[str, str]) -> tuple[Figure, pd.DataFrame]:
    """Draw a bar per method, a panel per cost; an empty cost is ``not reached``.

    Parameters
    ----------
    df : DataFrame
        Column method, and one per cost.
    panels : mapping
        From a cost's column to what its axis says.
    """
    names = list(df["method"])
    if not names or len(set(names)) < len(names):
        raise ValueError(f"df: got methods {names}, expected each once")
    look = looks.styles(names)
    size = (looks.COLUMN if len(panels) == 1 else looks.PAGE, 0.7 + 0.19 * len(names))
    fig, axes = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for ax, (column, label) in zip(axes.flat, panels.items(), strict=True):
        values = df[column].to_numpy(float)
        sns.barplot(
            df,
            x=column,
            y="method",
            hue="method",
            order=names,
            palette={name: s.colour for name, s in look.items()},
            saturation=1,
            width=0.72,
            linewidth=0,
            legend=False,
            ax=ax,
        )
        top = np.nanmax(values) if np.isfinite(values).any() else 1.0
        for place, value in enumerate(values):
            text = f"{value:.3g}" if np.isfinite(value) else "not reached"
            at = value if np.isfinite(value) else 0.0
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
            ax.text(
                at + 0.02 * top, place, text, va="center_baseline", fontsize=7, bbox=box
            )
        ax.set(
            xlabel=label, ylabel="", xlim=(0, 1.18 * top), ylim=(len(names) - 0.4, -0.6)
        )
        ax.set_yticks(range(len(names)), [look[name].label for name in names])
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x")
        integers = np.array_equal(np.nan_to_num(values), np.nan_to_num(values).round())
        ax.xaxis.set_major_locator(MaxNLocator(6, integer=integers))
    return fig, df.loc[:, ["method", *panels]].reset_index(drop=True)


@mpl.rc_context(looks.RC)
def maps(df: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Draw images (top row) over activation maps, a column per image.

    Parameters
    ----------
    df : DataFrame
        As ``features.client_maps`` returns it.
    """
    images = list(dict.fromkeys(df["image"]))
    pictures = list(dict.fromkeys(df["picture"]))
    side = min(0.85, (looks.PAGE - 1.6) / len(images))
    fig, axes = plt.subplots(
        len(pictures),
        len(images),
        figsize=(1.6 + side * len(images), 0.3 + (side + 0.06) * len(pictures)),
        squeeze=False,
        layout="constrained",
    )
    parts = dict(list(df.groupby(["picture", "image"], sort=False)))
    for row, picture in zip(axes, pictures, strict=True):
        for ax, image in zip(row, images, strict=True):
            part = parts[picture, image]
            shape = (-1, part["y"].max() + 1, part["x"].max() + 1)
            values = part["value"].to_numpy().reshape(shape).transpose(1, 2, 0)
            colours = "gray" if picture == pictures[0] else "viridis"
            ax.imshow(values.squeeze(), cmap=colours, vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.spines[["top", "right"]].set_visible(True)
            if picture == pictures[0]:
                name = str(part["class"].iloc[0])
                ax.set_title(f"Class {name}" if name.isdecimal() else name)
        row[0].set_ylabel(picture, rotation=0, ha="right", va="center")
    fig.colorbar(
        ScalarMappable(Normalize(0, 1), "viridis"),
        ax=axes[1:].ravel().tolist(),
        label="Share of the largest",
        aspect=16,
        pad=0.02,
    ).outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return fig, df.assign(picture=df["picture"].str.replace("\n", ", "))
