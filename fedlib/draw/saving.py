"""The end of a figure: its footnote, what is refused, and its files."""

import textwrap
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from fedlib.draw.looks import (
    RC,
)
from fedlib.draw.tables import csv_text
from fedlib.support.files import atomic_write, write_text

NOTE = 5.5  # points of a footnote


@mpl.rc_context(RC)
def footnote(fig: Figure, text: str) -> None:
    """Write a note below all that a figure has, which grows by as much."""
    wide, tall = fig.get_size_inches()
    lines = textwrap.wrap(text, int(72 * wide / (0.58 * NOTE)))
    if not lines:
        return
    more = (1.3 * len(lines) + 0.6) * NOTE / 72
    share, rest = more / (tall + more), tall / (tall + more)
    engine = fig.get_layout_engine()
    if engine is None:
        for ax in fig.axes:
            x, y, width, height = ax.get_position().bounds
            ax.set_position((x, share + rest * y, width, rest * height))
        for note in fig.texts:
            note.set_y(share + rest * note.get_position()[1])
    else:
        engine.set(rect=(0, share, 1, rest))  # pyright: ignore[reportCallIssue]
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
