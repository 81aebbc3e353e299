"""Grids of images and curves of losses: the numbers that are drawn."""

import itertools
import math

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from fedlib.draw import looks, reconstructions


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_grid_returns_grey_values_of_every_picture():
    a = torch.tensor([[[[-1.0, 0.9]]], [[[0.0, 0.2]]]])  # [2, 1, 1, 2]
    fig, drawn = reconstructions.grid(
        {"True": {"Image": a}, "Found": {"Low\nlevel": -a, "High": a}}, ["cat", "dog"]
    )
    assert list(drawn) == [
        *("row", "y", "x", "channel"),
        *("True: Image", "Found: Low level", "Found: High"),
    ]
    assert drawn["row"].tolist() == ["cat", "cat", "dog", "dog"]
    assert drawn["x"].tolist() == [0, 1, 0, 1]
    assert drawn["True: Image"].tolist() == [0, 242, 128, 153]
    assert drawn["Found: Low level"].tolist() == [255, 13, 128, 102]
    assert len(fig.axes) == 6
    assert [ax.get_title() for ax in fig.axes if ax.get_title()] == [
        "Image",
        "Low\nlevel",
        "High",
    ]


def test_colours_are_kept_and_many_columns_fit_the_page():
    x = torch.rand(2, 3, 4, 4) * 2 - 1
    columns = {str(i): x for i in range(12)}
    fig, drawn = reconstructions.grid({"": columns}, ["a", "b"])
    assert fig.get_figwidth() <= looks.PAGE + 1e-9
    assert len(drawn) == 2 * 4 * 4 * 3
    at = drawn.query("row == 'b' and y == 1 and x == 2 and channel == 0")["5"].item()
    assert at == round((float(x[1, 0, 1, 2]) + 1) * 127.5)
    for ax in fig.axes:
        box = ax.get_position()
        assert 0 <= box.x0 < box.x1 <= 1
        assert 0 <= box.y0 < box.y1 <= 1


def test_many_rows_fit_a_page_and_headings_their_images():
    x = torch.zeros(10, 1, 8, 8)
    columns = {
        "From a client": {"a": x},
        "Decoded from generated ones": {"b": x, "c": x},
    }
    fig, _ = reconstructions.grid(columns, ["name"] * 10)
    assert fig.get_figheight() < 6.5
    fig.draw_without_rendering()
    said = [t.get_text() for t in fig.texts]
    assert said == ["From a\nclient", "Decoded from\ngenerated ones"]
    first, second = (t.get_window_extent() for t in fig.texts)
    assert first.x1 < second.x0


def test_pictures_of_several_shapes_are_refused():
    x = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ValueError, match="groups: got shapes"):
        reconstructions.grid({"": {"a": x, "b": x[:1]}}, ["a", "b"])
    with pytest.raises(ValueError, match="expected one, of 3 images"):
        reconstructions.grid({"": {"a": x}}, ["a", "b", "c"])


def test_losses_are_means_over_seeds():
    rows = [("B", "Low", step, seed, step + seed) for seed in (0, 2) for step in (1, 2)]
    rows += [("A", "Low", 1, 0, -1.0)]
    df = pd.DataFrame(rows, columns=["panel", "curve", "step", "seed", "loss"])
    fig, drawn = reconstructions.losses(df, labels={"B": "Error"})
    assert drawn["loss"].tolist() == [2, 3, -1]
    assert drawn["sd"].tolist()[:2] == pytest.approx([math.sqrt(2)] * 2)
    assert math.isnan(drawn["sd"].iloc[2])
    assert [ax.get_yscale() for ax in fig.axes] == ["log", "linear"]
    assert [ax.get_ylabel() for ax in fig.axes] == ["Error", "Loss"]
    marked = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert {"2", "5"} <= set(marked)
    assert not any("10^" in label for label in marked)
    assert fig.axes[0].lines[0].get_linestyle() == "-"
    named = df.rename(columns={"curve": "features"})
    _, drawn = reconstructions.losses(named, line="features")
    assert list(drawn) == ["panel", "features", "step", "loss", "sd"]


def test_losses_of_a_methods_variant_are_dashed():
    df = pd.DataFrame({"panel": "A", "curve": ["fedmps", "other"], "step": 1})
    fig, _ = reconstructions.losses(df.assign(loss=1.0, seed=0))
    lines = [line.get_linestyle() for line in fig.axes[0].lines]
    assert lines[0] == "-" != lines[1]


def test_losses_without_a_column_are_refused():
    with pytest.raises(ValueError, match="lacks \\['panel'\\]"):
        reconstructions.losses(
            pd.DataFrame({"curve": ["a"], "step": [1], "loss": [1.0]})
        )


def test_columns_that_are_cut_to_black_and_white_say_so():
    """A fifth at each end; dark pictures, or bright ones, are none."""
    ends = torch.tensor([-1.0, -1.0, 0.0, 1.0, 1.0]).reshape(1, 1, 1, 5)
    dark = torch.tensor([-1.0, -1.0, -1.0, 0.0, 1.0]).reshape(1, 1, 1, 5)
    few = torch.cat([ends, dark, dark], -1)  # 4 of 15 white, 8 black; then 3 of 15
    rare = torch.cat([dark, dark, dark], -1)
    fig, drawn = reconstructions.grid({"": {"Some": few, "None": rare}}, ["a"])
    titles = [ax.get_title() for ax in fig.axes]
    assert titles == ["Some\nsaturated", "None"]
    assert list(drawn)[4:] == ["Some", "None"]  # the numbers keep their names


def test_titles_are_broken_to_the_width_of_an_image():
    x = torch.zeros(1, 1, 2, 2)
    fig, _ = reconstructions.grid(
        {"": {f"Of its own {i}": x for i in range(12)}}, ["a"]
    )
    fig.draw_without_rendering()
    boxes = [ax.title.get_window_extent() for ax in fig.axes]
    assert all(a.x1 <= b.x0 for a, b in itertools.pairwise(boxes))
