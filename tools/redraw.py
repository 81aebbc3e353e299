"""Draw committed pictures again from the numbers beside them, without data or runs.

python tools/redraw.py [NAME ...]     # such as fedmps/table3_curves; by default all

For a change of how pictures look, or of their words. What changes a number is
``fedlib rebuild``.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from fedlib.data import facts
from fedlib.data.words import class_names
from fedlib.draw import class_counts, panels, plot, reconstructions, saving, shaded
from fedlib.papers.fedmps import attacks
from fedlib.papers.fedpg import privacy_tables
from fedlib.papers.gfpl import plots
from fedlib.papers.ours import leaderboard_plots, leaks_plots
from fedlib.rebuild import captions, leads
from fedlib.runs import titles
from fedlib.support import paths

FOLDER = paths.ROOT / "figures" / "cpu"
Drawing = tuple[Figure, pd.DataFrame]
BEST = "Best test accuracy (%)"
MERGING: dict[str, Any] = {
    "names": {"merge_threshold": "Merge threshold"},
    "legend": "Distance of components, over dimensions",
}


def _curves(df: pd.DataFrame, **options: Any) -> Drawing:
    known = {n: titles.logged_title(n) for n in df["panel"].unique() if n.islower()}
    return plot.curves(df.replace({"panel": known}), **options)


def _logged(label: str) -> Callable[[pd.DataFrame], Drawing]:
    return lambda df: _curves(df, y="value", ylabel=label, percent=False)


def _images(df: pd.DataFrame) -> Drawing:
    """Draw images of their grey values, a column each."""
    rows = list(dict.fromkeys(df["row"]))
    names = df.columns[4:]
    shape = (len(rows), *(int(df[c].max()) + 1 for c in ("y", "x", "channel")))
    groups: dict[str, dict[str, torch.Tensor]] = {}
    for name in names:
        group, colon, title = name.rpartition(": ")
        grey = torch.from_numpy(df[name].to_numpy().reshape(shape).copy())
        images = (grey / 127.5 - 1).permute(0, 3, 1, 2)
        groups.setdefault(group if colon else "", {})[title] = images
    fig, drawn = reconstructions.grid(groups, [str(row) for row in rows])
    return fig, drawn.set_axis(df.columns, axis=1).assign(row=df["row"])


def _counts(df: pd.DataFrame) -> dict[str, np.ndarray]:
    return {
        str(panel): part.pivot(index="client", columns="class", values="count").values
        for panel, part in df.groupby("panel", sort=False)
    }


def _heatmaps(df: pd.DataFrame) -> Drawing:
    counts = _counts(df)
    data = [facts(name) for name in ("cifar10", "fashion")]
    names = {each.title: class_names(each) for each in data}
    return shaded.heatmaps(
        counts, class_names={panel: names[panel] for panel in counts}
    )


def _by_client(df: pd.DataFrame) -> Drawing:
    return class_counts.heat_of(_counts(df))


def _communication(df: pd.DataFrame) -> Drawing:
    look = {"x": "method", "y": "kilobytes", "group": "direction", "percent": False}
    return plot.bars(df, ylabel="kB per client and round", **look)


def _planes(df: pd.DataFrame) -> Drawing:
    return panels.planes(df, class_names(facts("cifar10")))


def _leak(df: pd.DataFrame) -> Drawing:
    classes = class_names(facts("fashion"))
    named = df["row"].map(lambda row: classes[row] if isinstance(row, int) else row)
    return _images(df.assign(row=named))


def _fig8(line: str, **options: Any) -> Callable[[pd.DataFrame], Drawing]:
    look = {"x": "n", "y": "measured", "panel": "panel", "percent": False}
    look |= {"names": {"n": privacy_tables.AXIS}}

    def draw(df: pd.DataFrame) -> Drawing:
        return panels.lines(df, line=line, **look, **options)

    return draw


def _min_count(y: str, **options: Any) -> Callable[[pd.DataFrame], Drawing]:
    names = {"min_count": "Least samples of a class to send it, m"}
    look = {"x": "min_count", "panel": "partition", "names": names}
    return lambda df: panels.lines(df, y=y, **look, **options)


def _ranks(df: pd.DataFrame) -> Drawing:
    order = pd.read_csv(FOLDER / "learn" / "leaderboard.csv")["method"]
    return leaderboard_plots.ranks(df, order.to_frame())


def _bytes(df: pd.DataFrame) -> Drawing:
    mean = df["partition"] == "mean"
    return leaderboard_plots.bytes_page(df[~mean], df[mean])


def _nearest(df: pd.DataFrame) -> Drawing:
    kinds = {
        "sample": "From merged mixtures",
        "upload": "From one client's mixture",
        "real": "Real, to another one",
    }
    axis = "Squared distance to nearest real feature"
    claim = {"mark": 0.85, "marked": "Claimed least distance"}
    return plots.cumulative(df, "squared_distance", kinds=kinds, xlabel=axis, **claim)


def _sent(df: pd.DataFrame) -> Drawing:
    look = {"row": "method", "x": "floats", "group": "direction"}
    return panels.dots(df, xlabel="Numbers per client and round", **look)


def _losses(df: pd.DataFrame) -> Drawing:
    fig, drawn = reconstructions.losses(df, line="features", labels=attacks.AXES)
    return fig, drawn.assign(sd=df["sd"])


def _participation(df: pd.DataFrame) -> Drawing:
    names = {"participation": "Share of the clients in a round"}
    return panels.lines(df, names=names, ylabel=BEST)


def _readings(df: pd.DataFrame) -> Drawing:
    names = {"reading": "What E = 20 counts"}
    return panels.lines(df, x="reading", panel="panel", names=names, ylabel=BEST)


def _thresholds(df: pd.DataFrame) -> Drawing:
    return panels.lines(df, ylabel=BEST, **MERGING)


def _floats(df: pd.DataFrame) -> Drawing:
    look = {"ylabel": "Floats per client (thousands)", "percent": False}
    return panels.lines(df, y="floats_k", **look, **MERGING)


# What each committed picture is drawn by, as its notebook draws it.
DRAWN: dict[str, Callable[[pd.DataFrame], Drawing]] = {
    "fedhpro/learning_curves": _curves,
    "fedhpro/learning_server": _logged(""),
    "fedhpro/learning_terms": _logged("Mean over clients"),
    "fedhpro/log_curves": _curves,
    "fedmps/fig11": _images,
    "fedmps/fig11_losses": _losses,
    "fedmps/fig3": _heatmaps,
    "fedmps/fig4": _curves,
    "fedmps/fig6": _planes,
    "fedmps/fig7": _planes,
    "fedmps/table3_curves": _curves,
    "fedmps/table3_curves_fair": _curves,
    "fedmps/table5_both": _sent,
    "fedmps/table7_curves": _curves,
    "fedpa/communication_bytes": _communication,
    "fedpa/epochs_readings": _readings,
    "fedpa/fig3": _by_client,
    "fedpa/leak_pictures": _leak,
    "fedpa/learning_curves": _curves,
    "fedpa/learning_generator": _logged(""),
    "fedpa/learning_terms": _logged("Mean over clients"),
    "fedpa/table2_curves": _curves,
    "fedpa/table3_participation": _participation,
    "fedpg/fig8_fedavg_lenet": _images,
    "fedpg/fig8_fedpg_lenet": _images,
    "fedpg/fig8_likeness": _fig8("attack", ylabel="Likeness"),
    "fedpg/fig8_membership": _fig8("method", ylabel=""),
    "fedpg/learning_curves": _curves,
    "fedpg/learning_server": _logged(""),
    "fedpg/learning_terms": _logged("Mean over clients"),
    "fedpg/log_curves": _curves,
    "gfpl/appendix_b": _nearest,
    "gfpl/fig6_accuracy": _thresholds,
    "gfpl/fig6_communication": _floats,
    "gfpl/learning_curves": _curves,
    "gfpl/learning_terms": _logged("Mean over clients"),
    "gfpl/table1_curves": _curves,
    "learn/leaderboard_bytes": _bytes,
    "learn/leaderboard_ranks": _ranks,
    "learn/min_count_bytes": _min_count(
        "kilobytes", ylabel="kB per client and round", percent=False
    ),
    "learn/min_count_change": _min_count(
        "change", ylabel="Change of accuracy (points)"
    ),
    "learn/small_cells": lambda df: leaks_plots.small_cells(df.fillna({"setting": ""})),
    "scoreboard/leads": leads.board,
}


def redrawn(name: str) -> Drawing:
    """Return a committed picture as today's code draws it, and its numbers."""
    df = pd.read_csv(FOLDER / f"{name}.csv")
    fig, drawn = DRAWN[name](df)
    own = [n for n in paths.artefact_names() if name == n or name.startswith(f"{n}_")]
    about = json.loads((FOLDER / f"{max(own, key=len)}.json").read_text("utf-8"))
    saving.footnote(fig, captions.budget(about, list(drawn)))
    return fig, drawn


if __name__ == "__main__":
    for each in sys.argv[1:] or DRAWN:
        saving.save(*redrawn(each), FOLDER / each)
        plt.close("all")
        print(each)
