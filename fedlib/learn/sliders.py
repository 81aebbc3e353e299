"""Pictures with a slider: the first one is kept with the page, the others are drawn."""

import os
from collections.abc import Callable, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import display
from matplotlib.figure import Figure

from fedlib.draw.looks import COLUMN, CYCLE, HATCHES, RC

Drawn = tuple[Figure, pd.DataFrame]


def slider(
    draw: Callable[[float], Drawn], name: str, values: Sequence[float], start: float
) -> Drawn:
    """Show a picture of one value, and a slider that draws it of others in its place.

    The picture of ``start`` is an ordinary output: it stays in the page and reads the
    same where nothing computes. Under ``FEDLIB_CI`` there is no slider, so that what a
    page keeps does not depend on the front end.

    Parameters
    ----------
    draw : callable
        Takes a value, returns a figure and the numbers in it.
    name : str
        What the slider is called, as in the text: ``"tau_1"``.
    values : sequence of float
        Where the slider can stand; ``start`` is added if it is not among them.

    Returns
    -------
    Figure, DataFrame
        Of ``start``.
    """
    places = sorted({*values, start})
    fig, numbers = draw(start)
    plt.close(fig)  # shown once, by the line below, and not again by Jupyter
    shown = display(fig, display_id=True)
    if os.environ.get("FEDLIB_CI") or shown is None:
        return fig, numbers
    from ipywidgets import Label, SelectionSlider  # takes a while, and CI needs it not

    options = [(f"{place:g}", place) for place in places]
    handle = SelectionSlider(
        options=options, value=start, description=name, continuous_update=False
    )
    note = Label("")

    def moved(change: dict) -> None:
        other, _ = draw(change["new"])
        plt.close(other)
        shown.update(other)
        away = change["new"] != start
        note.value = f"Below, all is still of {name} = {start:g}." if away else ""

    handle.observe(moved, "value")
    display(handle)
    display(note)
    return fig, numbers


@mpl.rc_context(RC)
def bars(
    values: pd.Series,
    ylabel: str,
    top: float,
    *,
    low: float = 0.0,
    kinds: Sequence[int] | None = None,
) -> Drawn:
    """Draw one bar for each entry, on an axis that does not move with the numbers.

    Parameters
    ----------
    values : Series
        Its index names the bars.
    top, low : float
        Where the axis ends and begins.
    kinds : sequence of int, optional
        Colour and hatch of each bar; by default all alike.
    """
    kinds = [0] * len(values) if kinds is None else kinds
    fig, ax = plt.subplots(figsize=(COLUMN, 1.9), layout="constrained")
    for place, (number, kind) in enumerate(zip(values, kinds, strict=True)):
        ax.bar(place, number, color=CYCLE[kind], hatch=HATCHES[kind], ec="white")
    ax.set_xticks(range(len(values)), [str(name) for name in values.index])
    ax.set(ylabel=ylabel, xlabel=values.index.name, ylim=(low, top))
    ax.axhline(0, color="black", linewidth=0.6)
    return fig, values.rename(ylabel).reset_index()
