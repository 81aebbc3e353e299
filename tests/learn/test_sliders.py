"""A slider's first picture is an output like any other; moving it draws another."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from fedlib.learn import sliders


@pytest.fixture
def shown(monkeypatch):
    """Return what is displayed, and what later takes its place."""

    class Shown(list):
        def update(self, other):
            self.append(other)

    kept = Shown()

    def display(what, display_id=False):
        kept.append(what)
        return kept if display_id else None

    monkeypatch.setattr(sliders, "display", display)
    return kept


def draw(value: float):
    numbers = pd.Series({"a": value, "b": 1 - value}).rename_axis("x")
    return sliders.bars(numbers, "share", 1.0)


def test_the_first_picture_is_kept_and_moving_draws_another(monkeypatch, shown):
    monkeypatch.delenv("FEDLIB_CI", raising=False)
    fig, numbers = sliders.slider(draw, "x", [0.1, 0.9], 0.5)
    assert numbers["share"].tolist() == [0.5, 0.5]
    assert shown[0] is fig
    handle = shown[1]
    assert handle.description == "x"
    assert [value for _, value in handle.options] == [0.1, 0.5, 0.9]
    assert handle.value == 0.5
    note = shown[2]
    assert note.value == ""
    handle.value = 0.9
    heights = [bar.get_height() for bar in shown[3].axes[0].patches]
    assert heights == pytest.approx([0.9, 0.1])
    assert note.value == "Below, all is still of x = 0.5."
    handle.value = 0.5
    assert note.value == ""
    assert not plt.get_fignums()  # nothing is left for Jupyter to show twice


def test_a_page_keeps_the_picture_alone(monkeypatch, shown):
    monkeypatch.setenv("FEDLIB_CI", "1")
    fig, _ = sliders.slider(draw, "x", [0.1, 0.9], 0.1)
    assert shown == [fig]


def test_bars_share_an_axis():
    fig, numbers = sliders.bars(pd.Series([0.2, 0.4]), "share", 1.0, kinds=[0, 1])
    (ax,) = fig.axes
    assert ax.get_ylim() == (0, 1)
    assert ax.patches[0].get_facecolor() != ax.patches[1].get_facecolor()
    assert numbers["share"].tolist() == [0.2, 0.4]
    plt.close(fig)
