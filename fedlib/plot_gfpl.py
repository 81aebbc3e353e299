"""Pictures of Gaussian mixtures in the plane."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

from fedlib.mixtures import Mixtures, components

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
