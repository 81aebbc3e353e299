"""The bars of small cells, from a count made by hand."""

import pandas as pd
import pytest

from fedlib.papers.ours import leaks_plots


def test_bars_are_the_cells_between_two_limits():
    row = {"paper": "fedpa", "dataset": "digits", "scheme": "lda", "setting": "alpha 1"}
    shares = {"below 2": 0.25, "below 2_sd": 0.125, "below 5": 0.5, "below 5_sd": 0.5}
    absent = {"paper": "fedpa", "dataset": "celeba", "scheme": "users"}
    frame = pd.DataFrame([row | {"cells": 8.0} | shares, absent])
    fig, drawn = leaks_plots.small_cells(frame)
    (ax,) = fig.axes
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([25, 25])
    assert [bar.get_x() for bar in ax.patches] == pytest.approx([0, 25])
    assert ax.get_xlabel().startswith("Classes of clients with fewer than 5 samples")
    (name,) = [label.get_text() for label in ax.get_yticklabels()]
    assert name == "FedPA, digits, plain Dirichlet, alpha 1"
    assert list(drawn.filter(like="below")) == ["below 2", "below 5"]


def test_partitions_without_small_cells_share_a_bar_that_says_so():
    row = {"paper": "gfpl", "dataset": "digits", "scheme": "nway_kshot", "cells": 9.0}
    none, some = {"below 2": 0.0}, {"below 2": 0.1}
    ways = [row | {"setting": f"ways {n}"} for n in (3, 4, 5)]
    frame = pd.DataFrame([ways[0] | none, ways[1] | some, ways[2] | none])
    fig, drawn = leaks_plots.small_cells(frame)
    (ax,) = fig.axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    kind = "GFPL, digits, n-way k-shot"
    assert names == [f"{kind}, ways 3, 5", f"{kind}, ways 4"]
    assert [text.get_text() for text in ax.texts] == ["none"]
    assert len(drawn) == 3
