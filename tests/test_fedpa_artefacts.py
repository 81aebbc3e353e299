"""What FedPA's tables and figures measure, against hand-made values."""

import numpy as np
import pandas as pd
import pytest

from fedlib import reports


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
