"""Committed pictures: drawn by today's rules, described, and fit for a column."""

import json
import re
from itertools import combinations

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedlib.data import DataError
from fedlib.draw import saving, shaded
from fedlib.papers.ours import leaderboard_plots
from fedlib.support import paths
from tools import redraw

FIGURES = paths.ROOT / "figures"
COMMITTED = ("cpu", "bench")  # a reader's own builds go to other folders
PICTURES = sorted(
    file.relative_to(FIGURES).with_suffix("").as_posix()
    for folder in COMMITTED
    for file in (FIGURES / folder).rglob("*.png")
)
ALT = json.loads((FIGURES / "alt.json").read_text("utf-8"))
# from tables that other artefacts have written, or by a program of benchmarks
ELSEWHERE = {"cpu/scoreboard/papers_board"}
CODE = re.compile(r"[A-Za-z]\w*_\w+|\w=\w|raw_sum|^[a-z]+\d+$")


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


def test_every_picture_is_described_and_nothing_else():
    assert {*ALT} == {*PICTURES}
    for name, text in ALT.items():
        assert 40 < len(text) < 400, name
        assert text.endswith("."), name
        assert not {*'"|[]'} & {*text}, name


@pytest.mark.parametrize("page", ["README.md", "REPRODUCTION.md", "docs/index.md"])
def test_pictures_in_pages_have_words_for_those_who_do_not_see_them(page):
    text = (paths.ROOT / page).read_text("utf-8")
    for words, target in re.findall(r"!\[([^]]*)\]\(([^) ]+)", text):
        assert len(words) > 20, target


def test_every_picture_can_be_drawn_again_from_its_numbers():
    cpu = {name for name in PICTURES if name.startswith("cpu/")} - ELSEWHERE
    assert {f"cpu/{name}" for name in redraw.DRAWN} == cpu


def texts(fig: Figure) -> list[str]:
    found = (t.get_text() for t in fig.findobj(Text) if t.get_visible())
    return [text for text in found if text and "$" not in text]


def boxes(found: list[Text]) -> list[tuple[str, np.ndarray]]:
    return [(t.get_text(), t.get_window_extent().extents) for t in found]


@pytest.mark.parametrize("name", redraw.DRAWN)
def test_a_committed_picture_keeps_the_rules(name):
    try:
        fig, drawn = redraw.redrawn(name)
    except DataError as error:  # some take the names of classes from the data
        pytest.skip(str(error).splitlines()[0])
    kept = pd.read_csv(redraw.FOLDER / f"{name}.csv")
    assert list(drawn) == list(kept)
    pd.testing.assert_frame_equal(
        drawn.select_dtypes("number").astype(float),
        kept.select_dtypes("number").astype(float),
        rtol=1e-9,
    )
    saving.honest(fig)
    said = texts(fig)
    assert not [text for text in said if CODE.search(text)]
    (note,) = (t for t in fig.texts if t.get_gid() == "footnote")
    assert note.get_text().endswith(".")
    fig.draw_without_rendering()
    shown = [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]
    axes = [axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    ticks = {id(t) for axis in axes for t in axis.get_ticklabels(which="both")}
    assert all(t.get_fontsize() >= shaded.SMALLEST for t in shown)
    whole = fig.bbox.padded(1)
    for text, box in boxes([t for t in shown if id(t) not in ticks]):
        across = whole.x0 <= box[0] <= box[2] <= whole.x1
        assert across, text
        assert whole.y0 <= box[1] <= box[3] <= whole.y1, text


def test_the_leaderboards_names_do_not_lie_on_each_other_nor_their_leaders_cross():
    fig, _ = redraw.redrawn("learn/leaderboard_bytes")
    fig.draw_without_rendering()
    ax = fig.subfigs[0].axes[0]
    assert len(ax.texts) > 20
    names = [t for t in ax.texts if t.get_text()]
    for a, b in combinations(names, 2):
        first, second = (Text.get_window_extent(t) for t in (a, b))
        assert not first.overlaps(second), (a.get_text(), b.get_text())
    led = [t for t in names if getattr(t, "arrowprops", None)]
    ends = {}
    for t in led:
        (x, y), (edge, height) = t.xy, t.xyann
        ends.setdefault(edge, []).append(
            np.array([np.log10(x), y, np.log10(edge), height])
        )
    assert sum(map(len, ends.values())) > 15
    for side in ends.values():
        for a, b in combinations(side, 2):
            assert not leaderboard_plots.crossing(a, b)


def test_files_are_small():
    for file in FIGURES.rglob("*"):
        assert file.stat().st_size < 1_000_000, file
