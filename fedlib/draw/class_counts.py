"""A picture and a table of partitions: who has how many samples of which class."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from fedlib.draw import layout, looks, shaded
from fedlib.partitions import Partition

CELL = 0.17  # inches: a row of a panel, as high as a legible count
FINE = 40  # classes or clients from which on cells have no edges


def _tables(partitions: Mapping[str, Partition], labels: Tensor) -> dict[str, Any]:
    """Return samples ``[clients, classes]`` of each partition."""
    if not partitions:
        raise ValueError("partitions: got none, expected at least one")
    return {name: p.table(labels).to_numpy() for name, p in partitions.items()}


@mpl.rc_context(looks.RC)
def heat(
    partitions: Mapping[str, Partition],
    labels: Tensor,
    *,
    class_names: Sequence[str] | None = None,
    write: bool = True,
    wide: bool = False,
) -> tuple[Figure, pd.DataFrame]:
    """Draw training samples per client (down) and class (across); darker is more.

    Panels share one colour scale; cells without samples stay blank. The picture of
    FedPA's Fig. 3.

    Parameters
    ----------
    partitions : mapping from title to Partition
    labels : Tensor
        int64 labels of the training set that the partitions index.
    class_names : list of str, optional
    write : bool
        Whether counts are written into the cells, where they fit.
    wide : bool
        Whether a single panel takes the full page instead of one column.
    """
    look = {"class_names": class_names, "write": write, "wide": wide}
    return heat_of(_tables(partitions, labels), **look)


@mpl.rc_context(looks.RC)
def heat_of(
    tables: Mapping[str, np.ndarray],
    *,
    class_names: Sequence[str] | None = None,
    write: bool = True,
    wide: bool = False,
) -> tuple[Figure, pd.DataFrame]:
    """Draw counts ``[clients, classes]``, a panel each, as ``heat`` does."""
    norm = shaded.shades(tables.values(), 1.0)
    most = max(table.shape[1] for table in tables.values())
    if class_names is not None and len(class_names) != most:
        raise ValueError(f"class_names: got {len(class_names)} names, expected {most}")
    names = list(class_names or range(most))
    rows = max(len(table) for table in tables.values())
    height = 0.7 + CELL * min(max(rows, 6), 30)
    fig, axes, _ = layout.panel_axes(
        len(tables), height, wide=wide, xlabel="Class", ylabel="Client"
    )
    for ax, (title, table) in zip(axes, tables.items(), strict=True):
        clients, classes = table.shape
        step = math.ceil(classes / (26 if len(axes) == 1 and wide else 13))
        shaded.cells(
            ax,
            table,
            norm,
            lines=0.3 if max(table.shape) < FINE else 0,
            columns=names[:classes],
            steps=(math.ceil(clients / 20), step),
        )
        ax.set_title(title)
    shaded.shade_bar(fig, axes, norm, "Training samples")
    if write:
        across = [table.T for table in tables.values()]
        shaded._write_counts(fig, axes, across, norm)
    rows = [
        (name, client, c, int(value))
        for name, table in tables.items()
        for (client, c), value in np.ndenumerate(table)
    ]
    return fig, pd.DataFrame(rows, columns=["panel", "client", "class", "count"])


def summary(partitions: Mapping[str, Partition], labels: Tensor) -> pd.DataFrame:
    r"""Return how skewed partitions are, one row each.

    ``samples`` are those given out, and per client the smallest, median and largest
    number; ``classes`` are a client's and ``owners`` a class's, on average;
    ``entropy`` is :math:`-\sum_c p_c \log_C p_c` of a client's labels, averaged over
    clients: 0 for one class, 1 for all C classes alike.

    Parameters
    ----------
    partitions : mapping from name to Partition
    labels : Tensor
        int64 labels of the training set that the partitions index.
    """
    rows = []
    for name, table in _tables(partitions, labels).items():
        sizes = table.sum(1)
        share = table / sizes[:, None]
        logs = np.log(np.where(table > 0, share, 1.0))
        entropy = -(share * logs).sum(1) / math.log(max(2, table.shape[1]))
        rows.append(
            {
                "scheme": name,
                "samples": int(sizes.sum()),
                "smallest": int(sizes.min()),
                "median": float(np.median(sizes)),
                "largest": int(sizes.max()),
                "classes": float((table > 0).sum(1).mean()),
                "owners": float((table > 0).sum(0).mean()),
                "entropy": float(entropy.mean()) + 0.0,
            }
        )
    return pd.DataFrame(rows)
