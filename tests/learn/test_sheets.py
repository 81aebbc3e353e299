"""A method on one sheet: what is drawn of a round, and what its card says."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from fedlib.learn import sheets

STEPS = [("down", "the model"), ("client", "train\non it"), ("up", "a mean")]
OURS = ["gfpl", "fedpa", "fedmps", "fedhpro", "fedpg"]


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen and leave no figure open."""
    mpl.use("Agg")
    yield
    plt.close("all")


def displayed(monkeypatch, module: ModuleType) -> str:
    shown = []
    monkeypatch.setattr(sheets, "display", lambda markdown: shown.append(markdown.data))
    sheets.sheet(module)
    (text,) = shown
    return text


def test_a_round_is_drawn_from_top_to_bottom_with_arrows_to_who_gets_it():
    fig, travels = sheets.exchange(*STEPS)
    assert travels == ["the model", "a mean"]
    (ax,) = fig.axes
    texts = {t.get_text(): t.get_position() for t in ax.texts if t.get_text()}
    heights = [texts[text][1] for _, text in STEPS]
    assert heights == sorted(heights)  # y grows downwards
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    server, client = texts["Server"][0], texts["Each client"][0]
    assert server < client < texts["train\non it"][0]
    ends = [(t.xyann[0], t.xy[0]) for t in ax.texts if not t.get_text()]
    assert ends == [(server, client), (client, server)]


@pytest.mark.parametrize("steps", [[], [("sideways", "a mean")]])
def test_a_step_is_one_of_four_kinds(steps):
    with pytest.raises(ValueError, match=r"steps: got .* expected some of down, up"):
        sheets.exchange(*steps)


@pytest.mark.parametrize("name", OURS)
def test_a_sheet_has_box_equations_and_every_switch(monkeypatch, name):
    module = import_module(f"fedlib.methods.{name}")
    box, equations, *switches = displayed(monkeypatch, module).split("\n\n")
    numbers = [int(line.partition(".")[0]) for line in box.splitlines()]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) == len(re.findall(r"^    \d\. ", module.__doc__ or "", re.M))
    tags = set(re.findall(r"# Eq\. \((\d+)\)", Path(module.__file__ or "").read_text()))
    assert tags <= set(re.findall(r"\((\d+)\)", equations))
    reference = getattr(module, "REFERENCE", {})
    assert bool(switches) == bool(reference)
    assert {f"`{switch}`" for switch in reference} <= set("".join(switches).split())


def test_what_has_no_card_is_refused():
    with pytest.raises(ValueError, match="whose card has no part Box"):
        sheets.sheet(import_module("fedlib.learn.toy"))
