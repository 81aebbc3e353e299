"""Reconstructed images beside the true ones, and how decoders learnt."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from fedlib.draw import layout, looks

LARGEST = 0.8  # inches a side of an image
TALLEST = 5.5  # inches that all rows of images take: a page has a caption, too
SPACE, GAP = 0.04, 0.14  # inches between images, and between groups
LINE = 0.14  # inches that a line of text takes
LETTER = 0.058  # inches that a letter of a row's name takes
TITLE_LETTER = 0.05  # inches that a letter of a column's title takes
ENDS = 0.2  # share of a column's numbers that are black, and as much white


def _numbers(
    groups: Mapping[str, Mapping[str, Tensor]], rows: Sequence[str]
) -> pd.DataFrame:
    """Return the drawn grey values, 0 to 255: a row per pixel, a column per picture."""
    columns = {
        ": ".join(part.replace("\n", " ") for part in (group, title) if part): images
        for group, pictures in groups.items()
        for title, images in pictures.items()
    }
    first = next(iter(columns.values()))
    count, channels, height, width = first.shape
    index = np.indices((count, height, width, channels)).reshape(4, -1)
    table: dict[str, object] = {
        "row": np.array(rows, dtype=object)[index[0]],
        "y": index[1],
        "x": index[2],
        "channel": index[3],
    }
    for name, images in columns.items():
        grey = ((images + 1) * 127.5).round().clamp(0, 255).byte()
        table[name] = grey.permute(0, 2, 3, 1).flatten().numpy()
    return pd.DataFrame(table)


def saturated(
    groups: Mapping[str, Mapping[str, Tensor]],
) -> dict[str, dict[str, Tensor]]:
    """Return groups whose titles say which columns are cut to black and white.

    Those of whose numbers a share ``ENDS`` is at most -1, and as many are at least 1:
    a decoder went where paper cannot follow, and shapes in them are no finding.
    """

    def told(title: str, images: Tensor) -> str:
        shares = [(images >= 1).float().mean(), (images <= -1).float().mean()]
        return f"{title.strip()}\nsaturated" if min(shares) > ENDS else title

    return {
        group: {told(title, images): images for title, images in pictures.items()}
        for group, pictures in groups.items()
    }


def _wrapped(
    groups: Mapping[str, Mapping[str, Tensor]], side: float
) -> dict[str, dict[str, Tensor]]:
    """Return groups whose titles have lines no longer than an image is wide.

    Headings have lines no longer than their images.
    """
    fit = max(6, int((side + SPACE) / TITLE_LETTER))

    def heading(group: str, pictures: Mapping[str, Tensor]) -> str:
        most = max(6, int((side + SPACE) * len(pictures) / LETTER))
        count = len(textwrap.wrap(group, most))
        widths = range(most // max(1, count), most + 1)  # lines of like length
        even = (textwrap.wrap(group, width) for width in widths)
        return "\n".join(next((part for part in even if len(part) <= count), []))

    return {
        heading(group, pictures): {
            "\n".join(
                line
                for part in title.strip().split("\n")
                for line in textwrap.wrap(part, fit, break_long_words=False)
            ): images
            for title, images in pictures.items()
        }
        for group, pictures in groups.items()
    }


@mpl.rc_context(looks.RC)
def grid(
    groups: Mapping[str, Mapping[str, Tensor]], rows: Sequence[str]
) -> tuple[Figure, pd.DataFrame]:
    r"""Draw images: columns in groups, each with its title.

    Titles are broken to the width of an image, and say what is ``saturated``.

    Parameters
    ----------
    groups : mapping
        Heading of a group (may be empty) -> title of a column (may have line breaks) ->
        images ``[N, c, h, w]`` in [-1, 1], grey or of three channels.
    rows : list of str
        The N rows' names.

    Returns
    -------
    Figure
    DataFrame
        row, y, x, channel, and a column of grey values (0 to 255) per picture.

    Raises
    ------
    ValueError
        Pictures of different shapes, or another number of rows.
    """
    shapes = {tuple(x.shape) for group in groups.values() for x in group.values()}
    if len(shapes) != 1 or next(iter(shapes))[0] != len(rows):
        raise ValueError(
            f"groups: got shapes {sorted(shapes)}, expected one, of {len(rows)} images"
        )
    _, _, height, width = next(iter(shapes))
    numbers = _numbers(groups, rows)
    groups = saturated(groups)
    titles = [title for group in groups.values() for title in group]
    left = 0.08 + LETTER * max(map(len, rows))
    gaps = SPACE * (len(titles) - 1) + (GAP - SPACE) * (len(groups) - 1)
    side = min(
        LARGEST,
        (looks.PAGE - left - 0.04 - gaps) / len(titles),
        (TALLEST / len(rows) - SPACE) * width / height,
    )
    tall = side * height / width
    groups = _wrapped(groups, side)
    titles = [title for group in groups.values() for title in group]
    lines = max(title.count("\n") + 1 for title in titles)
    above = max(heading.count("\n") + 1 for heading in groups)
    head = LINE * lines + 0.04 + (LINE * above + 0.05 if any(groups) else 0)
    size = (
        left + side * len(titles) + gaps + 0.04,
        head + (tall + SPACE) * len(rows) + 0.02,
    )
    fig = plt.figure(figsize=size)
    x = left
    for heading, pictures in groups.items():
        start = x
        for title, images in pictures.items():
            for row, image in enumerate(images.numpy()):
                top = head + row * (tall + SPACE)
                box = (x, size[1] - top - tall, side, tall)
                ax = fig.add_axes(
                    (
                        box[0] / size[0],
                        box[1] / size[1],
                        box[2] / size[0],
                        box[3] / size[1],
                    )
                )
                pixels = ((image + 1) / 2).clip(0, 1).transpose(1, 2, 0)
                ax.imshow(pixels.squeeze(-1) if len(image) == 1 else pixels, "gray")
                ax.images[0].set_clim(0, 1)
                ax.set_axis_off()
                if row == 0:
                    ax.set_title(title, fontsize=6.5, pad=3)
                if x == left:
                    ax.text(
                        -0.06,
                        0.5,
                        rows[row],
                        ha="right",
                        va="center",
                        fontsize=7,
                        transform=ax.transAxes,
                    )
            x += side + SPACE
        middle = (start + x - SPACE) / 2 / size[0]
        fig.text(middle, 1 - 0.04 / size[1], heading, ha="center", va="top")
        x += GAP - SPACE
    return fig, numbers


@mpl.rc_context(looks.RC)
def losses(
    df: pd.DataFrame, *, line: str = "curve", labels: Mapping[str, str] | None = None
) -> tuple[Figure, pd.DataFrame]:
    """Draw losses over training steps: a panel each, with a band of one sd over seeds.

    A panel whose numbers are all positive has a logarithmic axis.

    Parameters
    ----------
    df : DataFrame
        panel, step, loss, the column that ``line`` names and, optionally, seed.
    line : str
        Column with a curve per name; the returned numbers keep it.
    labels : mapping, optional
        From a panel to what its axis says; by default ``Loss``.

    Returns
    -------
    Figure
    DataFrame
        panel, ``line``, step, loss (mean over seeds), sd (ddof 1; empty for one seed).
    """
    keys = ["panel", line, "step"]
    missing = [c for c in [*keys, "loss"] if c not in df]
    if missing or df.empty:
        raise ValueError(f"df: got columns {list(df)}, {len(df)} rows; lacks {missing}")
    drawn = df.groupby(keys, sort=False)["loss"].agg(loss="mean", sd="std")
    drawn = drawn.reset_index()
    panels = list(dict.fromkeys(drawn["panel"]))
    look = looks.styles(dict.fromkeys(drawn[line]))
    entries = [s.label for s in look.values()]
    fig, axes, columns = layout.panel_axes(
        len(panels), 2.0, len(look), xlabel="Training step", labels=entries
    )
    handles = {}
    for ax, panel in zip(axes, panels, strict=True):
        part = drawn[drawn["panel"] == panel]
        for name, mine in part.groupby(line, sort=False):
            s = look[name]
            (handles[name],) = ax.plot(
                mine["step"],
                mine["loss"],
                color=s.colour,
                linestyle=s.line,
                linewidth=s.width,
                label=s.label,
            )
            if not mine["sd"].isna().to_numpy().any():
                low, high = mine["loss"] - mine["sd"], mine["loss"] + mine["sd"]
                ax.fill_between(
                    mine["step"], low, high, color=s.colour, alpha=0.15, linewidth=0
                )
        if min(part["loss"]) > 0:
            ax.set_yscale("log")
            layout.name_round_numbers(ax.yaxis)
        ax.set_title(panel)
        ax.set_ylabel((labels or {}).get(panel, "Loss"))
        ax.grid(axis="y")
    fig.legend(
        handles.values(),
        [look[n].label for n in handles],
        loc="outside lower center",
        ncols=columns,
    )
    return fig, drawn
