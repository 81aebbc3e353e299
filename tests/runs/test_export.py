"""A run as a folder: what is in it is the run, and nothing of the machine."""

import json

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from fedlib.cli import main
from fedlib.runs import address, runner
from fedlib.runs.spec import Spec
from fedlib.runs.watching import by_round
from fedlib.support.paths import private_path
from tests.runs.test_runner import small

FILES = ["log.safetensors", "provenance.json", "rounds.csv", "settings.json"]
FILES += ["summary.csv"]


def export(*arguments: str):
    return CliRunner().invoke(main, ["export", *arguments])


def test_a_folder_holds_the_run(tmp_path):
    spec = small("fedproto", seed=8)
    run, folder = runner.run(spec), tmp_path / "run"
    done = export(run.key[:10], "-o", str(folder))
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in folder.iterdir()) == FILES

    settings = json.loads((folder / "settings.json").read_text("utf-8"))
    assert address.key(Spec.model_validate(settings)) == run.key
    told = json.loads((folder / "provenance.json").read_text("utf-8"))
    assert told["key"] == run.key
    assert told["versions"]["torch"] == torch.__version__
    assert {"code", "data", "device", "kernel", "partition"} <= told.keys()

    rounds = pd.read_csv(folder / "rounds.csv")
    wanted = {(n, k): v for n, row in by_round(run) for k, v in row.items()}
    found = {(r, n): v for r, n, v in rounds.itertuples(index=False)}
    assert found.keys() == wanted.keys()
    assert all(abs(found[k] - v) <= 1e-6 * abs(v) for k, v in wanted.items())

    log = load_file(folder / "log.safetensors")
    assert log["cohort"].tolist() == run.log.cohort.tolist()
    summary = pd.read_csv(folder / "summary.csv")
    # older pandas reads the last digit otherwise than it is written
    wanted = run.summary()["best"].tolist()
    assert summary["best"].tolist() == pytest.approx(wanted, rel=1e-14)
    for file in folder.glob("*.[jc]s*"):
        assert private_path(file.read_text("utf-8")) == "", file.name


def test_a_full_folder_is_left_alone(tmp_path):
    run = runner.run(small("fedproto", seed=8))
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    done = export(run.key, "-o", str(folder))
    assert done.exit_code == 2
    assert "expected a new or empty folder" in done.output
    assert [file.name for file in folder.iterdir()] == ["mine.txt"]


def test_an_empty_folder_is_taken(tmp_path):
    run, folder = runner.run(small("fedproto", seed=8)), tmp_path / "empty"
    folder.mkdir()
    assert export(run.key, "-o", str(folder)).exit_code == 0
    assert sorted(file.name for file in folder.iterdir()) == FILES


def test_without_a_name_the_folder_says_what_it_is(tmp_path, monkeypatch):
    run = runner.run(small("fedproto", seed=8))
    monkeypatch.chdir(tmp_path)
    assert export(run.key).exit_code == 0
    assert (tmp_path / f"fedproto-digits-seed8-{run.key[:8]}").is_dir()
