"""Notebooks close with what is committed of them, or with what that would cost."""

import json
import re

import pytest

from fedlib.rebuild import artefacts, closing, printed
from fedlib.support import paths
from fedlib.support.paths import NOTEBOOKS

KEPT = {"fedmps/table3", "fedmps/table2", "fedpg/fig8", "learn/leaderboard"}


def cells(name: str) -> list[dict]:
    return json.loads((NOTEBOOKS / "papers" / f"{name}.ipynb").read_text("utf-8"))[
        "cells"
    ]


@pytest.mark.parametrize("name", artefacts.names())
def test_a_notebook_ends_with_what_is_committed_of_it(name):
    """``python -m tools.conclusions`` writes it; sentences behind it are a hand's."""
    last = [cell["id"] for cell in cells(name)[-2:]]
    kept = closing.kept(name) is not None
    assert last[1 - kept :] == list(printed.CLOSING)[: 1 + kept]
    (text,) = [c["source"] for c in cells(name) if c["id"] == printed.CLOSING[0]]
    assert "".join(text) == closing.ending(name)


@pytest.mark.parametrize("name", artefacts.names())
def test_links_at_the_end_lead_somewhere(name):
    here = (NOTEBOOKS / "papers" / name).parent
    for cell in cells(name)[-2:]:
        for target in re.findall(r"\]\(([^) ]+)", "".join(cell["source"])):
            if not target.startswith("https://"):
                assert (here / target.partition("#")[0]).exists(), target


def test_the_end_has_the_picture_the_budget_and_where_it_is_from():
    text = closing.ending("fedmps/table3")
    assert "![FedMPS, Table III: accuracy, as committed](../../../figures/cpu/" in text
    about = closing.kept("fedmps/table3")
    assert about is not None
    assert closing.ran(about) in text
    for link in (
        "[FedMPS, Table III](https://doi.org/10.1109/TNNLS.2025.3611832)",
        "[fedmps](../../learn/fedmps.ipynb)",
        "[fedlib/methods/fedmps.py](../../../fedlib/methods/fedmps.py)",
        "[REPRODUCTION](../../../REPRODUCTION.md#fedmps)",
    ):
        assert link in text


def made(seeds: list[int], notes: list[tuple[str, str]], rounds: list[int]) -> dict:
    return {
        "data": [{"title": "MNIST"}, {"title": "CIFAR-10 (JPEG)"}, {"title": "MNIST"}],
        "runs": [{"rounds": each} for each in rounds],
        "seeds": seeds,
        "notes": [{"kind": kind, "text": text} for kind, text in notes],
    }


@pytest.mark.parametrize(
    ("about", "words"),
    [
        (
            made([7], [("reduced", "reduced budget: mnist, 1 of 9 rounds")], [1]),
            "CIFAR-10 (JPEG), MNIST; 1 run, 1 round; **one seed** (7) and so no "
            "spread. Reduced: mnist, 1 of 9 rounds.",
        ),
        (
            made([0, 1], [("remark", "ours"), ("reduced", "r: a")], [600, 500]),
            "CIFAR-10 (JPEG), MNIST; 2 runs, 1,100 rounds; 2 seeds (0, 1). "
            "Reduced: a. Ours.",
        ),
        (made([], [], []) | {"data": []}, "no run is made."),
    ],
)
def test_what_is_committed_is_said_with_seeds_and_budget(about, words):
    assert closing.ran(about) == words


def test_what_was_not_run_says_so_with_its_cost(monkeypatch):
    """Whatever is committed by now: without files there is no picture and no claim."""
    monkeypatch.setattr(closing, "kept", lambda name: None)
    text = closing.ending("gfpl/table2")
    assert "![" not in text
    assert text.count("**Not run** on real data yet") == 1
    budget = "one seed of five; 8 runs, 320 rounds, roughly "
    assert budget in text
    assert " of training on one core. At the paper's size: 120 runs, 11,600 " in text
    assert "MNIST; no run beforehand" in closing.ending("fedpa/fig3")


def test_the_picture_is_the_artefact_s_own_then_fair_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    folder = tmp_path / "figures/cpu/gfpl"
    folder.mkdir(parents=True)
    assert closing.picture("gfpl/fig9") is None
    for name in ("fig9_b", "fig9_a", "fig9_curves", "fig9_curves_fair", "fig9"):
        (folder / f"{name}.png").touch()
        shown = closing.picture("gfpl/fig9")
        assert shown is not None
        assert shown.stem == name
    assert closing.picture("gfpl/fig") is None
