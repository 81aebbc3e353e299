"""What FedPA's tables and figures measure, against hand-made values."""

import numpy as np
import pandas as pd
import pytest

from fedlib import (
    fedpa_costs,
    reports,
    study,
)


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
    found = reports.leads(table, ["fedpa"], ["dataset", "participation"])
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
    found = reports.pace(curves, "a").set_index("method")
    assert found["best_round"].tolist() == [4, 6, 6]
    assert found["best"].tolist() == pytest.approx([60, 70, 30])
    assert found["last"].tolist() == pytest.approx([50, 70, 30])
    assert found["reached"].fillna(-1).tolist() == [4, 2, -1]
    assert found["largest_drop"].tolist() == pytest.approx([10, 40, 0])


def test_formulas_of_the_sheet_on_mnists_network():
    """specs/fedpa.md, section 5; running statistics stand apart there."""
    n = fedpa_costs.Lengths(26_434, 44, 19_744, 256, 32, 10)
    wanted = {
        "fedavg": (26_434, 26_434),
        "fedgen": (46_700, 26_444),
        "fedhkd": (26_854, 26_854),
        "fedpa": (47_020, 26_764),
    }
    for method, both in wanted.items():
        for way, floats in zip(("down", "up"), both, strict=True):
            parts = fedpa_costs.FORMULAS[method][way].values()
            assert sum(count(n) for _, count in parts) == floats + n.statistics


def test_what_was_sent_is_the_formula_where_all_classes_are_present():
    runs = [*fedpa_costs.FORMULAS]
    p = {"dataset": "digits", "runs": runs, "rounds": 2, "seed": 0, "alpha": 1000.0}
    settings = {"participation": 1.0, "clients": 3, "generator_steps": 1}
    results = study.study("fedpa", p | settings | {"threshold": 0.0}).results
    found = fedpa_costs.fields(results)
    told = found[found["formula"] != ""]
    assert told["floats"].tolist() == told["by_formula"].tolist()
    assert (found[found["formula"] == ""]["floats"] == 0).all()
    totals = fedpa_costs.totals(found).set_index(["method", "direction"])
    assert totals.loc[("fedavg", "up"), "times"] == 1
    assert totals.loc[("fedpa", "down"), "formula"] == "P + S + G + 2 H + C d + C"
    n = fedpa_costs.lengths(results[-1].spec)
    assert n.statistics == 48
    assert n.hidden == 256
    assert n.generator == 19_744
