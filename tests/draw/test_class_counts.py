"""Pictures of partitions show the counts, and their table is right."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.collections import QuadMesh

from fedlib.draw import looks
from fedlib.draw.class_counts import heat, summary
from fedlib.partitions import LDA, Partition, draw

LABELS = torch.tensor([0] * 8 + [1] * 4 + [2] * 2)


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


def by_hand() -> Partition:
    """Two clients: one of a single class, one of three."""
    train = [torch.arange(2, 8), torch.tensor([0, 8, 9, 10, 12, 13])]
    owns = torch.tensor([[True, False, False], [True, True, True]])
    return Partition(train, [torch.tensor([], dtype=torch.int64)] * 2, owns, ())


def counts(df: pd.DataFrame, panel: str) -> np.ndarray:
    part = df[df["panel"] == panel]
    return part.pivot(index="client", columns="class", values="count").to_numpy()


def test_the_numbers_drawn_are_the_partition():
    parts = {"hand": by_hand(), "lda": draw(LDA(), LABELS, LABELS, clients=3, seed=0)}
    fig, df = heat(parts, LABELS)
    assert list(df) == ["panel", "client", "class", "count"]
    assert counts(df, "hand").tolist() == [[6, 0, 0], [1, 3, 2]]
    assert (counts(df, "lda") == parts["lda"].table(LABELS).to_numpy()).all()
    left, right = fig.axes[:2]
    assert [left.get_title(), right.get_title()] == ["hand", "lda"]
    assert left.get_xlim() == (0, 3)
    assert left.get_ylim() == (2, 0)  # client 0 on top
    assert left.get_xlabel() == "Class"
    assert left.get_ylabel() == "Client"


def test_heat_fills_the_right_cells_and_writes_them():
    fig, _ = heat({"": by_hand()}, LABELS)
    ax = fig.axes[0]
    (mesh,) = (c for c in ax.collections if isinstance(c, QuadMesh))
    values = np.ma.asarray(mesh.get_array()).reshape(2, 3)
    assert values.filled(-1).tolist() == [[6, -1, -1], [1, 3, 2]]
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written == {
        (0.5, 0.5): "6",
        (0.5, 1.5): "1",
        (1.5, 1.5): "3",
        (2.5, 1.5): "2",
    }
    fig, _ = heat({"": by_hand()}, LABELS, write=False)
    assert not fig.axes[0].texts


def test_heat_leaves_out_counts_that_do_not_fit():
    y = torch.arange(5000) % 100
    fig, _ = heat({"": draw(LDA(), y, y, clients=50, seed=0)}, y)
    assert not fig.axes[0].texts
    assert fig.axes[0].collections[0].get_linewidth() == 0  # edges would fill the cells
    ticks = [text.get_text() for text in fig.axes[0].get_xticklabels()]
    assert len(ticks) <= 13
    assert ticks[1] == "8"


def test_class_names_and_widths():
    fig, _ = heat({"": by_hand()}, LABELS, class_names=["a", "b", "c"])
    names = [text.get_text() for text in fig.axes[0].get_xticklabels()]
    assert names == ["a", "b", "c"]
    assert fig.get_size_inches()[0] == looks.COLUMN
    fig, _ = heat({"": by_hand()}, LABELS, wide=True)
    assert fig.get_size_inches()[0] == looks.PAGE


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match="partitions: got none"):
        heat({}, LABELS)
    with pytest.raises(ValueError, match="class_names: got 2 names, expected 3"):
        heat({"": by_hand()}, LABELS, class_names=["a", "b"])


def test_summary_by_hand():
    df = summary({"hand": by_hand()}, LABELS)
    (row,) = df.to_dict("records")
    p = np.array([1, 3, 2]) / 6
    assert row.pop("entropy") == pytest.approx(-(p * np.log(p)).sum() / np.log(3) / 2)
    assert row == {
        "scheme": "hand",
        "samples": 12,
        "smallest": 6,
        "median": 6.0,
        "largest": 6,
        "classes": 2.0,
        "owners": 4 / 3,
    }


def test_summary_of_the_two_ends():
    """One class each: entropy 0; all classes alike: 1."""
    y = torch.arange(40) % 4
    none = torch.tensor([], dtype=torch.int64)
    single = [torch.nonzero(y == c).flatten() for c in range(4)]
    even = [torch.arange(10 * i, 10 * i + 8) for i in range(4)]
    parts = {
        name: Partition(train, [none] * 4, torch.ones(4, 4, dtype=torch.bool), ())
        for name, train in {"single": single, "even": even}.items()
    }
    df = summary(parts, y)
    assert df["entropy"].tolist() == pytest.approx([0, 1])
    assert df["owners"].tolist() == [1, 4]
    assert df["smallest"].tolist() == [10, 8]
