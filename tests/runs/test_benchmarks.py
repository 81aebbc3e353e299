"""Benchmarks compare what is equal, and say where they cannot."""

import runpy
import sys
from typing import Any

import pytest

from fedlib.runs import checkpoints
from fedlib.support.paths import ROOT
from tests.runs.test_runner import small


def script(name: str) -> dict[str, Any]:
    """Return what a script of ``benchmarks`` defines."""
    return runpy.run_path(str(ROOT / "benchmarks" / f"{name}.py"))


def test_our_loop_and_the_ordinary_one_train_the_same_weights():
    row = script("training")["compare"]("digits", small("fedproto"), 1, 1.0)
    assert row["largest_gap"] < 1e-6
    assert row["device"] == "cpu"
    assert row["ratio"] > 0


def test_without_a_gpu_it_is_said_what_is_there(monkeypatch, capsys):
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda:7")
    monkeypatch.setattr(sys, "argv", ["training.py"])
    with pytest.raises(SystemExit):
        script("training")["main"]()
    assert "got 'cuda:7', but torch" in capsys.readouterr().err


def test_loads_are_what_their_names_say(own_cache):
    """Ten times as much, at a size that takes no time; the log comes back whole."""
    load = script("load")
    own_cache.mkdir()
    stale = load["listed"](3)()
    assert stale == [""] * 3
    missing, failed = load["queued"](3)()
    assert len({task.key for task in missing}) == 3
    assert failed == []
    assert load["logged"](1_050)()
    assert len(list((own_cache / "run").glob("log-*"))) == 1_050 // checkpoints.SEGMENT
    sizes = [len(index) for index in load["parted"](10)().train]
    assert sum(sizes) == 600
