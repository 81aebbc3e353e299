"""What FedPA's tables and figures measure, against hand-made values."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.draw import planes
from fedlib.methods import fedpa
from fedlib.papers import study
from fedlib.papers.fedpa import costs, generated
from fedlib.rebuild import artefacts, staleness
from fedlib.runs import beside, pacing
from fedlib.runs import runner as runs
from fedlib.runs.federation import federation


def test_a_lead_is_over_the_best_of_the_others():
    table = pd.DataFrame(
        {
            "dataset": "digits",
            "participation": [0.1] * 3 + [0.5] * 3,
            "method": ["fedavg", "fedgen", "fedpa"] * 2,
            "paper": [66.0, 69.0, 74.0, np.nan, np.nan, 77.0],
            "mean": [50.0, 40.0, 45.0, 60.0, 65.0, 70.0],
            "last": [50.0, 40.0, 41.0, 60.0, 65.0, 70.0],
        }
    )
    found = beside.leads(table, ["fedpa"], ["dataset", "participation"])
    assert found["method"].tolist() == ["fedpa", "fedpa"]
    assert found["participation"].tolist() == [0.1, 0.5]
    assert found["mean"].tolist() == [-5.0, 5.0]
    assert found["last"].tolist() == [-9.0, 5.0]
    assert found["paper"].tolist()[0] == 5.0
    assert np.isnan(found["paper"].tolist()[1])


def test_pace_says_when_a_curve_reaches_anothers_best():
    rows = {"a": [0.1, 0.6, 0.5], "b": [0.6, 0.2, 0.7], "c": [0.1, 0.2, 0.3]}
    curves = pd.concat(
        pd.DataFrame({"round": [2, 4, 6], "accuracy": v}).assign(panel="p", method=m)
        for m, v in rows.items()
    )
    found = pacing.pace(curves, "a").set_index("method")
    assert found["best_round"].tolist() == [4, 6, 6]
    assert found["best"].tolist() == pytest.approx([60, 70, 30])
    assert found["last"].tolist() == pytest.approx([50, 70, 30])
    assert found["reached"].fillna(-1).tolist() == [4, 2, -1]
    assert found["largest_drop"].tolist() == pytest.approx([10, 40, 0])


def test_formulas_on_mnists_network():
    """FedPA's payloads, counted by hand; running statistics stand apart."""
    n = costs.Lengths(26_434, 44, 19_744, 256, 32, 10)
    wanted = {
        "fedavg": (26_434, 26_434),
        "fedgen": (46_700, 26_444),
        "fedhkd": (26_854, 26_854),
        "fedpa": (47_020, 26_764),
    }
    for method, both in wanted.items():
        for way, floats in zip(("down", "up"), both, strict=True):
            parts = costs.FORMULAS[method][way].values()
            assert sum(count(n) for _, count in parts) == floats + n.statistics


def test_what_was_sent_is_the_formula_where_all_classes_are_present():
    runs = [*costs.FORMULAS]
    p = {"dataset": "digits", "runs": runs, "rounds": 2, "seed": 0, "alpha": 1000.0}
    settings = {"participation": 1.0, "clients": 3, "generator_steps": 1}
    settings |= {"local_steps": 1, "threshold": 0.0}
    results = study.study("fedpa", p | settings).results
    found = costs.fields(results)
    told = found[found["formula"] != ""]
    assert told["floats"].tolist() == told["by_formula"].tolist()
    assert (found[found["formula"] == ""]["floats"] == 0).all()
    totals = costs.totals(found).set_index(["method", "direction"])
    assert totals.loc[("fedavg", "up"), "times"] == 1
    assert totals.loc[("fedpa", "down"), "formula"] == "P + S + G + 2 H + C d + C"
    n = costs.lengths(results[-1].spec)
    assert n.statistics == 48
    assert n.hidden == 256
    assert n.generator == 19_744


@pytest.mark.parametrize("preset", ["quick", "cpu", "paper"])
@pytest.mark.parametrize("name", ["table2", "table3", "table4", "fig4"])
def test_the_released_program_has_a_row_at_every_preset(name, preset):
    """As released as a whole: every switch, plain SGD, and the other rows with Adam."""
    mine = artefacts.prepare(f"fedpa/{name}", preset)
    cells = study.grid("fedpa", mine.parameters)
    rows = list(zip(cells.cells["method"], cells.specs, strict=True))
    programs = {"FedPA (reference)", "adversarial+generator+prototype, released"}
    there = [spec for label, spec in rows if label in programs]
    assert len(there) == sum(label.endswith("squared") for label, _ in rows) / (
        3 if name == "table4" else 1
    )
    for spec in there:
        assert spec.method == "fedpa"
        assert fedpa.REFERENCE.items() <= spec.hp.items()
        training = spec.training
        assert (training.optimiser, training.learning_rate) == ("sgd", 0.01)
        assert (training.momentum, training.weight_decay) == (0.0, 0.0)
    others = [
        spec
        for label, spec in rows
        if label not in programs and "released" not in label.lower()
    ]
    assert {spec.training.optimiser for spec in others} == {"adam"}


def test_spread_as_published_by_hand():
    z, y = np.array([[0.0, 0], [2, 0], [0, 9], [0, 11]]), np.array([0, 0, 1, 1])
    found = generated.spread(z, y)
    assert found["intra"] == 1.0
    assert found["inter"] == pytest.approx(np.sqrt(101) / 2)  # with the diagonal
    assert found["ratio"] == found["inter"]


def test_embeddings_follow_the_noise_or_do_not():
    draw = np.random.default_rng(0)
    noise, y = draw.normal(size=(60, 4)), np.repeat([0, 1], 30)
    assert generated.follows_noise(noise, 3 * noise, y) == pytest.approx(1)
    other = draw.normal(size=(60, 4))
    assert abs(generated.follows_noise(noise, other, y)) < 0.2


def test_generators_are_sampled_on_the_way():
    p = {"dataset": "digits", "runs": ["fedpa"], "seed": 0, "generator_steps": 2}
    p |= {"local_steps": 1}
    grid = study.grid("fedpa", p | {"sweeps": {"alpha": [0.5]}, "rounds": 2})
    made = generated.generated(grid.specs[0], [0, 2], 3)
    assert [*made.h] == [0, 2]
    assert made.h[0].shape == (30, made.h[2].shape[1])
    assert not torch.equal(made.h[0], made.h[2])
    last = runs.final(grid.specs[0]).server.generator
    again = generated.generated(grid.specs[0], [2], 3)
    assert torch.equal(again.h[2], made.h[2])
    network = fedpa.generator_of(federation(grid.specs[0]).ctx)
    assert torch.equal(network(last, made.noise, made.y), made.h[2])
    points, found = generated.survey(grid, [0, 2], 3)
    assert len(points) == 60
    assert found["space"].tolist() == ["plane", "embedding"] * 2
    assert found["noise_r"].isna().tolist() == [True, False] * 2
    fig, drawn = planes.grid(points, row="value", column="round")
    assert len(fig.axes) == 2
    assert len(drawn) == 60
    assert list(drawn) == ["value", "round", "label", "x", "y"]


def test_an_artefact_whose_runs_are_a_mapping_is_current_until_their_order_changes():
    mine = artefacts.prepare("fedpa/table4", "quick")
    assert [*mine.parameters["runs"]] != sorted(mine.parameters["runs"])
    now = {key: {} for key in sorted(staleness.STAMPED - {"outputs"})}
    now |= {"notebook": "", "runs": "", "parameters": mine.parameters}
    staleness.stamp(mine, now, [])
    assert staleness.why_stale(mine, now) == []
    turned = dict(reversed(mine.parameters["runs"].items()))
    later = now | {"parameters": mine.parameters | {"runs": turned}}
    assert len(staleness.why_stale(mine, later)) == 1


@pytest.mark.parametrize("preset", ["quick", "cpu", "paper"])
def test_fedavg_is_compared_with_its_moments_kept_too(preset):
    """FedPA's clients keep theirs; the paper does not say what others' do."""
    mine = artefacts.prepare("fedpa/table2", preset)
    cells = study.grid("fedpa", mine.parameters)
    kept = {
        label: spec.training.keep_moments
        for label, spec in zip(cells.cells["method"], cells.specs, strict=True)
        if spec.method == "fedavg"
    }
    assert kept == {"fedavg": False, "FedAvg, moments kept": True}
