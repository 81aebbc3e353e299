"""What FedPG's tables and figures measure, against hand-made values."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import artefacts, fedpg_reports, reports, study
from fedlib.methods import fedpg
from fedlib.results import Result
from fedlib.study import Study


def made(spec, accuracy=(0.1, 0.3, 0.2, 0.5)):
    """Return a result with given accuracies, without a run."""
    n = len(accuracy)
    right = (1000 * torch.tensor(accuracy)).round().long().unsqueeze(1)
    result = Result(spec, "key", {"evaluated": torch.arange(1, n + 1)})
    name = "/".join(result.paper_rule)
    whole = torch.full((n, 1), 1000)
    result.log[f"accuracy/{name}"], result.log["samples"] = right, whole
    result.log[f"full/{name}"], result.log["full_samples"] = right, whole
    return result


@pytest.fixture
def grid_of(monkeypatch):
    """Return the grid of an artefact's preset with made results; no data are needed."""
    title = "{} as printed".format
    monkeypatch.setattr(study, "load", lambda name: SimpleNamespace(title=title(name)))

    def found(name, preset="paper"):
        grid = study.grid("fedpg", artefacts.prepare(name, preset).parameters)
        return Study("fedpg", grid.cells, [made(spec) for spec in grid.specs])

    return found


def test_every_number_of_table_1_stands_beside_a_run(grid_of):
    paper = reports.reference("fedpg", "table1")
    found = grid_of("fedpg/table1")
    table = fedpg_reports.final(found, found.like(paper, fedpg_reports.PARTITION))
    assert len(table) == len(paper) == 48
    assert sorted(table["paper"]) == sorted(paper["mean"])
    printed = paper.set_index(["dataset", "partition", "alpha", "method"])["mean"]
    for told, result in zip(table["paper"], found.results, strict=True):
        spec = result.spec
        alpha = getattr(spec.partition, "alpha", np.nan)
        here = (spec.dataset, spec.partition.scheme, alpha, spec.method)
        assert told == printed[here]
    assert table["mean"].tolist() == pytest.approx([50] * 48)
    assert table["best"].tolist() == pytest.approx([50] * 48)
    assert table["mean_last5"].tolist() == pytest.approx([27.5] * 48)
    assert table["gap"].tolist() == pytest.approx((50 - table["paper"]).tolist())
    speed = fedpg_reports.speed(found, paper)
    told = paper.dropna(subset="ratio")
    assert sorted(speed["paper"].dropna()) == sorted(told["ratio"])
    assert speed["paper_never"].tolist().count("never") == 3
    assert {*speed["method"]} == {*told["method"]}
    assert {*speed["at 95 %"]} == {1.0}


def test_every_number_of_table_2_stands_beside_a_run(grid_of):
    paper = reports.reference("fedpg", "table2")
    found = grid_of("fedpg/table2")
    sizes = [64, 128, 256, 512, 1024]
    table = fedpg_reports.final(found, fedpg_reports.ablation(paper, sizes))
    assert table["paper"].notna().all()
    assert {*table["seeds"]} == {3}
    wide = table.pivot(index="method", columns="virtual_per_class", values="paper")
    assert wide.loc["fedavg"].tolist() == [51.07] * 5
    assert wide.loc["GT-d"].tolist() == [54.82, 56.13, 54.43, 55.57, 54.30]
    assert wide.loc["LT-ct"].tolist() == [54.07, 54.25, 53.94, 53.72, 54.15]
    assert wide.loc["fedpg"].tolist() == [55.39, 56.55, 57.04, 56.20, 55.43]
    rest = wide.drop(index="fedavg").to_numpy().sum()
    assert rest == pytest.approx(paper["mean"].sum() - 51.07)


def test_a_strategy_takes_away_the_term_that_its_name_says(grid_of):
    found = grid_of("fedpg/table2")
    whole = fedpg.HP(virtual_per_class=64).model_dump()
    for label, result in zip(found.cells["method"], found.results, strict=True):
        if result.spec.hp.get("virtual_per_class") == 64:
            changed = fedpg.ABLATIONS.get(label, {})
            assert result.spec.hp == whole | changed


def test_ratios_by_hand():
    lines = {
        "slow": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],  # averaged over two: 15, 25, ..., 55
        "fast": [0.1, 0.5, 0.6, 0.5, 0.4, 0.3],  # 30, 55, 55, 45, 35
        "never": [0.3, 0.3, 0.3, 0.3, 0.3, 0.9],  # 30, 30, 30, 30, 60
    }
    curves = pd.concat(
        pd.DataFrame({"round": range(2, 14, 2), "accuracy": v, "panel": "p"}).assign(
            method=m
        )
        for m, v in lines.items()
    )
    found = reports.ratios(curves, "slow", [1.0, 0.5, 0.8], window=2)
    found = found.pivot(index="method", columns="share")
    assert found["target"].loc["fast"].tolist() == pytest.approx([27.5, 44, 55])
    assert found["rounds"].loc["slow"].tolist() == [8, 10, 12]  # 35, 45 and 55
    assert found["rounds"].loc["fast"].tolist() == [4, 6, 6]
    assert found["ratio"].loc["fast"].tolist() == [2, 10 / 6, 2]
    assert found["rounds"].loc["never"].tolist() == [4, 12, 12]
    assert found["ratio"].loc["never"].tolist() == [2, 10 / 12, 1]
    low = curves.assign(accuracy=curves["accuracy"].where(curves.method == "slow", 0.1))
    short = reports.ratios(low, "slow", window=2).set_index("method")
    assert short["rounds"].isna().tolist() == [False, True, True]
    assert np.isnan(short.loc["fast", "ratio"])
    with pytest.raises(ValueError, match=r"window: got 7, expected at most the 6"):
        reports.ratios(curves, "slow", window=7)
    with pytest.raises(ValueError, match=r"method: got 'fedavg', p has"):
        reports.ratios(curves, "fedavg")
    with pytest.raises(ValueError, match=r"shares: got \[95\], expected"):
        reports.ratios(curves, "slow", [95, 0.5])
