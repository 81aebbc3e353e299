"""What FedPG's tables and figures measure, against hand-made values."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import registry
from fedlib.core.log import Log
from fedlib.methods import fedpg
from fedlib.papers import study
from fedlib.papers.fedpg import costs, drift, plots, tables
from fedlib.papers.study import Study
from fedlib.rebuild import artefacts
from fedlib.runs import beside, pacing
from fedlib.runs import runner as runs
from fedlib.runs.results import Result


def made(spec, accuracy=(0.1, 0.3, 0.2, 0.5)):
    """Return a result with given accuracies, without a run."""
    n = len(accuracy)
    right = (1000 * torch.tensor(accuracy)).round().long().unsqueeze(1)
    method = registry.method(spec.method)
    found = {"/".join(method.rule(method.hp(**spec.hp))): right}
    whole = torch.full((n, 1), 1000)
    log = Log(
        evaluated=torch.arange(1, n + 1),
        accuracy=found,
        samples=whole,
        full=found,
        full_samples=whole,
    )
    return Result(spec, "key", log)


@pytest.fixture
def grid_of(monkeypatch):
    """Return the grid of an artefact's preset with made results; no data are needed."""
    title = "{} as printed".format
    monkeypatch.setattr(study, "facts", lambda name: SimpleNamespace(title=title(name)))

    def found(name, preset="paper"):
        grid = study.grid("fedpg", artefacts.prepare(name, preset).parameters)
        return Study("fedpg", grid.cells, [made(spec) for spec in grid.specs])

    return found


def test_every_number_of_table_1_stands_beside_a_run(grid_of):
    paper = beside.reference("fedpg", "table1")
    found = grid_of("fedpg/table1")
    table = tables.final(found, found.like(paper, tables.PARTITION))
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
    speed = tables.speed(found, paper)
    told = paper.dropna(subset="ratio")
    assert sorted(speed["paper"].dropna()) == sorted(told["ratio"])
    assert speed["paper_never"].tolist().count("never") == 3
    assert {*speed["method"]} == {*told["method"]}
    assert {*speed["at 95 %"]} == {1.0}


def test_every_number_of_table_2_stands_beside_a_run(grid_of):
    paper = beside.reference("fedpg", "table2")
    found = grid_of("fedpg/table2")
    sizes = [64, 128, 256, 512, 1024]
    table = tables.final(found, tables.ablation(paper, sizes))
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
    found = pacing.ratios(curves, "slow", [1.0, 0.5, 0.8], window=2)
    found = found.pivot(index="method", columns="share")
    assert found["target"].loc["fast"].tolist() == pytest.approx([27.5, 44, 55])
    assert found["rounds"].loc["slow"].tolist() == [8, 10, 12]  # 35, 45 and 55
    assert found["rounds"].loc["fast"].tolist() == [4, 6, 6]
    assert found["ratio"].loc["fast"].tolist() == [2, 10 / 6, 2]
    assert found["rounds"].loc["never"].tolist() == [4, 12, 12]
    assert found["ratio"].loc["never"].tolist() == [2, 10 / 12, 1]
    low = curves.assign(accuracy=curves["accuracy"].where(curves.method == "slow", 0.1))
    short = pacing.ratios(low, "slow", window=2).set_index("method")
    assert short["rounds"].isna().tolist() == [False, True, True]
    assert np.isnan(short.loc["fast", "ratio"])
    with pytest.raises(ValueError, match=r"window: got 7, expected at most the 6"):
        pacing.ratios(curves, "slow", window=7)
    with pytest.raises(ValueError, match=r"method: got 'fedavg', p has"):
        pacing.ratios(curves, "fedavg")
    with pytest.raises(ValueError, match=r"shares: got \[95\], expected"):
        pacing.ratios(curves, "slow", [95, 0.5])


def test_table_3_by_hand():
    paper = beside.reference("fedpg", "table3")
    names = ["fedavg", "FedPG+fc", "FedPG+cnn"]
    p = artefacts.prepare("fedpg/table3", "paper").parameters
    named = p.pop("measured")
    for name in ("warm_rounds", "measured_rounds", "watts", "idle_seconds"):
        del p[name]
    specs = study.grid("fedpg", p | {"runs": named}).specs
    runs = dict(zip(named, specs, strict=True))
    assert [*runs] == names
    rows = [
        (name, cost, i + k, 100.0 * (i + k))
        for i, name in enumerate(names, 1)
        for cost in ("local_training", "generator_training", "round")
        for k in (0, 2)
    ]
    columns = ["method", "cost", "seconds", "joules"]
    found = costs.costs(pd.DataFrame(rows, columns=columns), runs, paper)
    assert sorted(found["paper"].dropna()) == sorted(paper["mean"])
    cell = found.set_index(["method", "cost"])
    assert np.isnan(cell.loc[("fedavg", "generator_training"), "paper"])
    assert cell.loc[("FedPG+cnn", "round"), "paper"] == 28.54
    assert cell.loc[("FedPG+fc", "generator_training"), "paper"] == 822.88
    local = cell.loc[("FedPG+fc", "local_training")]
    assert local[["mean", "seconds", "times"]].tolist() == [300, 3, 1.5]
    assert local["sd"] == pytest.approx(100 * np.sqrt(2))
    assert local["wh_per_run"] == pytest.approx(300 * 100 / 3600)
    whole = cell.loc[("FedPG+cnn", "round")]
    assert whole[["unit", "mean", "times"]].tolist() == ["s", 4, 2]
    assert whole["wh_per_run"] == pytest.approx(400 * 100 / 3600)
    assert cell["times"].isna().sum() == 3
    ours = {"dataset": "digits"}
    digits = {name: spec.model_copy(update=ours) for name, spec in runs.items()}
    other = costs.costs(pd.DataFrame(rows, columns=columns), digits, paper)
    assert other["paper"].isna().tolist() == [True] * 9


def counter(folder, name, size, value):
    folder.mkdir()
    texts = {"name": name, "max_energy_range_uj": size, "energy_uj": value}
    for file, text in texts.items():
        (folder / file).write_text(f"{text}\n")


def test_a_counter_is_read_and_may_begin_anew(tmp_path):
    counter(tmp_path / "intel-rapl:0", "package-0", 10_000_000, 9_000_000)
    counter(tmp_path / "intel-rapl:0:0", "core", 10_000_000, 0)
    counter(tmp_path / "intel-rapl:1", "package-1", 10_000_000, 1_000_000)
    (tmp_path / "intel-rapl:2").mkdir()  # nothing in it may be read
    meter = costs.Meter(50, root=tmp_path)
    assert meter.source == "RAPL"
    assert len(meter.counters) == 2
    with meter("work"):
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("2000000\n")
        (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1500000\n")
    (name, seconds, joules) = meter.rows[0]
    assert name == "work"
    assert seconds > 0
    assert joules == pytest.approx(3.5)  # 3 past the end of the first, and 0.5
    meter.idle = 2.0
    with meter("rest"):
        pass
    assert meter.rows[1][2] == pytest.approx(-2 * meter.rows[1][1])


def test_the_idle_machines_power_is_measured(tmp_path, monkeypatch):
    counter(tmp_path / "intel-rapl:0", "package-0", 10_000_000, 0)
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))

    def sleep(seconds):
        assert seconds == 4
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("6000000\n")

    monkeypatch.setattr(costs.time, "sleep", sleep)
    meter = costs.Meter(50, 4, root=tmp_path)
    assert meter.idle == 1.5
    assert meter.rows == []


def test_without_a_counter_energy_is_estimated(tmp_path, monkeypatch):
    meter = costs.Meter(50, 3, root=tmp_path)
    clock = iter([1.0, 3.0])
    monkeypatch.setattr(costs.time, "perf_counter", lambda: next(clock))
    with meter("work"):
        pass
    assert (meter.source, meter.rows) == ("estimated", [("work", 2.0, 100.0)])
    with pytest.raises(ValueError, match="watts: got 0, expected more than 0"):
        costs.Meter(0)


def one_step(**more):
    """Return specs in which one client takes one step of 16 samples."""
    p = {"dataset": "digits", "net": "digits_linear", "seed": 0, "local_steps": 1}
    p |= {"rounds": 3, "participation": 0.1, "generator_steps": 2} | more
    runs = {"fedavg": "fedavg", "fedpg": "fedpg:v_batch_size:8:generator_batch_size:4"}
    specs = study.grid("fedpg", p | {"runs": runs}).specs
    return dict(zip(runs, specs, strict=True))


def test_operations_by_hand():
    """A conv's gradients cost what it costs, each; the first layer has one gradient."""
    per_image = 3 * (16 * 16 * 8 * 9) + 2 * (64 * 8 * 1 * 9)
    per_image += 3 * (64 * 32 + 32 * 10)
    found = costs.operations(one_step()).set_index("method")
    local = found["local_training"] * 1e6
    assert local["fedavg"] == pytest.approx(2 * 16 * per_image)
    assert local["fedpg"] > 2 * (16 + 8) * per_image  # and prototypes, and alignment
    assert found["generator"].isna().tolist() == [True, False]
    sizes = [522, 128, 256, 512, 1024, 64]
    layers = sum(a * b + b for a, b in pairwise(sizes))
    assert found["generator"]["fedpg"] == layers + 2 * sum(sizes[1:5])
    assert found["times"]["fedavg"] == 1


def test_every_watched_round_is_measured_part_by_part():
    meter = costs.Meter(50)
    found = costs.measure(one_step(), meter, 1, 2)
    assert found.groupby(["method", "cost"], sort=False).size().tolist() == [2] * 6
    wide = found[found.method == "fedpg"].groupby("cost")["seconds"].sum()
    assert wide["round"] >= wide["local_training"] + wide["generator_training"]
    with pytest.raises(ValueError, match="warm: got 0, expected at least 1"):
        costs.measure(one_step(), meter, 0, 2)


def test_what_two_distributions_share():
    a, b = torch.tensor([3, 1, 0, 0]), torch.tensor([10, 10, 10, 10])
    assert drift.overlap(a, b) == pytest.approx(50)  # 25 of the first, 25
    assert drift.overlap(a, 7 * a) == pytest.approx(100)
    assert drift.overlap(a, torch.tensor([0, 0, 1, 0])) == 0


@pytest.fixture(scope="module")
def ended():
    """Return one short run's result and what it ended with."""
    p = {"dataset": "digits", "net": "digits_linear", "seed": 0, "local_steps": 4}
    (spec,) = study.grid("fedpg", p | {"runs": ["fedavg"], "rounds": 2}).specs
    return runs.run(spec), runs.final(spec)


def test_two_clients_of_the_last_cohort(ended):
    cohort = ended[0].log.cohort[-1].tolist()
    pairs = {tuple(drift.pair(ended[0], seed)) for seed in range(20)}
    assert len(pairs) > 3
    assert {*sum(pairs, ())} == {*cohort}
    assert all(a < b for a, b in pairs)


def test_local_models_class_by_class(ended):
    """One client and image at a time."""
    fed = ended[1].federation
    found = drift.by_class(ended[1])
    data, cohort = fed.dataset, ended[0].log.cohort[-1].tolist()
    place = ended[1].clients.index(cohort[0])
    state = {k: v[place] for k, v in ended[1].mine.state.items()}
    assert len(found) == len(cohort)
    x = (data.test_x / 255 - data.mean[0]) / data.std[0]
    guessed = fed.ctx.net(state, x).logits.argmax(1)
    for label in range(10):
        here = data.test_y == label
        right = (guessed[here] == label).double().mean()
        assert float(found[0, label]) == pytest.approx(float(right))
    balance = drift.balance({"FedAvg": ended[1]}, 5)
    row = balance.iloc[0]
    last = 100 * ended[0].accuracy("global", "head_all", "full")[-1, 0]
    assert row["global"] == pytest.approx(float(last))
    assert row["local"] == pytest.approx(100 * float(found.mean()))
    spread = [np.std(100 * mine.numpy()) for mine in found]
    assert row["class_sd"] == pytest.approx(np.mean(spread), rel=1e-5)
    assert row["unknown"] == pytest.approx(100 * float((found == 0).float().mean()))


def test_models_see_the_same_images(ended):
    pair = drift.pair(ended[0], 0)
    points = drift.planes(ended[1], pair, 3, 0)
    assert points.equals(drift.planes(ended[1], pair, 3, 0))
    first, second = (points[points.client == c] for c in pair)
    assert first["truth"].tolist() == second["truth"].tolist()
    assert first["image"].tolist() == second["image"].tolist() == [*range(30)]
    assert first["truth"].value_counts().tolist() == [3] * 10
    same = drift.apart(ended[1], [pair[0], pair[0]], 3).iloc[0]
    assert same["same_image"] == 0
    other = drift.apart(ended[1], pair, 3).iloc[0]
    assert 0 < other["same_image"] < 2
    held = drift.histograms(ended[1], pair)
    assert held.groupby("client")["samples"].sum().tolist() == [
        len(ended[1].federation.train.index[c]) for c in pair
    ]
    bias = drift.bias(ended[1], pair)
    assert bias["samples"].tolist() == held.groupby("client")["samples"].sum().tolist()
    fig, drawn = plots.drift(points, held, [str(c) for c in range(10)])
    assert len(fig.axes) == 3
    assert len(drawn) == len(points) + len(held)
    shard = ended[1]._replace(federation=ended[1].federation._replace(full=None))
    with pytest.raises(ValueError, match="test: got 'full', expected"):
        drift.by_class(shard)
