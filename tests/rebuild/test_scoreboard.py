"""The scoreboard: which numbers ran, which are near, and whether orderings hold."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from fedlib import registry
from fedlib.rebuild import scoreboard, scoreboard_plots
from fedlib.runs.notes import Note, record
from fedlib.runs.reports import REFERENCE
from fedlib.support import paths


def write(name: str, rows: list[dict], notes: list[Note] | None = None) -> None:
    """Write a notebook's table at ``cpu``, and its provenance."""
    path = paths.figures_dir() / "cpu" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    path.with_suffix(".json").write_text(
        json.dumps({"notes": [record(note) for note in notes or []]})
    )


@pytest.fixture
def printed() -> dict[str, float]:
    """Return FedPA's Table III at a tenth taking part, method -> number."""
    table = pd.read_csv(REFERENCE / "fedpa" / "table3.csv")
    part = table[table.participation == 0.1].set_index("method")["mean"]
    assert part["fedavg"] == 66.39
    return part.to_dict()


def fedpa_rows(printed: dict[str, float], off: dict[str, float]) -> list[dict]:
    return [
        {
            **{"dataset": "emnist", "participation": 0.1, "method": method},
            **{"paper": number, "mean": number + off[method]},
        }
        for method, number in printed.items()
    ]


def of(table: str) -> pd.DataFrame:
    figures = paths.figures_dir() / "cpu"
    own = [s for s in scoreboard.SOURCES if f"{s.paper}/{s.table}" == table]
    return pd.concat([scoreboard._cells(s, figures) for s in own], ignore_index=True)


@pytest.fixture(scope="module")
def nothing_ran() -> pd.DataFrame:
    """Return every field, with no table to take numbers from."""
    return scoreboard.cells("cpu")


def test_without_tables_nothing_ran(nothing_ran):
    states = nothing_ran["state"].value_counts()
    assert set(states.index) == {"not run", "not available"}
    # Table 2 of FedHPro lost 50 numbers, Table VI of FedMPS the 48 at five ways.
    assert states["not available"] == 98


def test_every_number_of_every_table_is_a_field(nothing_ran):
    found = nothing_ran.dropna(subset="number").groupby("paper").size()
    columns = {"mean", "gain", "ratio", "rounds", "parameters_k", "parameters"}
    columns |= {"classes", "block", "shots", "test_shots"}
    count = {}
    for paper in scoreboard.PAPERS:
        for file in sorted((REFERENCE / paper).glob("table*.csv")):
            table = pd.read_csv(file)
            mine = columns & {*table}
            if file.stem == "table3" and paper == "gfpl":
                mine = {"value"}
            if file.stem == "table2" and paper == "fedmps":
                mine |= {"spread"}
            numbers = int(table[sorted(mine)].count().sum())
            if file.stem == "table1" and paper == "gfpl":  # once for all three ways
                numbers -= 2 * int(table[["rounds", "parameters_k"]].count().sum()) // 3
            count[paper] = count.get(paper, 0) + numbers
    assert found.to_dict() == count


def test_near_is_a_point_and_a_half_where_no_sd_is_printed(printed):
    off = dict(zip(printed, [1.5, -1.5, 1.51, -9.0], strict=True))
    write("fedpa/table3", fedpa_rows(printed, off))
    table = of("fedpa/table3")
    ran = table[table.state != "not run"]
    assert list(ran.state) == ["reproduced", "reproduced", "off", "off"]
    assert list(ran.gap.round(2)) == [1.5, -1.5, 1.51, -9.0]
    assert len(table) - len(ran) == 8  # the other two participations
    assert not ran.reduced.any()


def test_near_is_twice_the_printed_sd_where_that_is_more():
    # FedPA's Table II on MNIST at 0.1: FedAvg 88.87 +- 2.19, FedEnsemble 91.09 +- 0.19.
    rows = [
        {"method": "fedavg", "paper": 88.87, "mean": 88.87 + 4.37},
        {"method": "fedensemble", "paper": 91.09, "mean": 91.09 + 1.6},
    ]
    write("fedpa/table2", [row | {"dataset": "mnist", "alpha": 0.1} for row in rows])
    ran = of("fedpa/table2").dropna(subset="ours").set_index("row")
    assert ran["near"].round(2).to_dict() == {"FedAvg": 4.38, "FedEnsemble": 1.5}
    assert ran["state"].to_dict() == {"FedAvg": "reproduced", "FedEnsemble": "off"}


def test_counts_must_be_equal_and_other_quantities_within_a_tenth():
    write(
        "fedmps/table5",
        [
            {"method": "fedavg", "paper": 1240120, "counted": 1240120},
            {"method": "fedmps", "paper": 30780, "counted": 30781},
        ],
    )
    ran = of("fedmps/table5").dropna(subset="ours").set_index("row")
    assert ran["state"].to_dict() == {"FedAvg": "reproduced", "FedMPS": "off"}
    row = {"dataset": "emnist", "method": "fedpa", "alpha": 0.4, "round": 0}
    far = {"paper_intra": 27.898, "paper_inter": 27.351, "intra": 30.6, "inter": 30.2}
    write("fedpa/table5", [row | far])
    ran = of("fedpa/table5").dropna(subset="ours")
    assert (
        ran["setting"].nunique() == 1
    )  # alpha 0.4 alone, though others print the same
    assert ran.set_index("row")["state"].to_dict() == {
        "FedPA, intra": "reproduced",
        "FedPA, inter": "off",
    }


def test_a_variant_is_the_row_of_its_own_name():
    # FedPA's Table IV prints 75.21; the row with a squared distance stands beside it.
    row = {"dataset": "emnist", "paper": 75.21}
    mine = row | {"method": "prototype", "mean": 74.0}
    write("fedpa/table4", [row | {"method": "prototype, squared", "mean": 1.0}, mine])
    assert of("fedpa/table4").dropna(subset="ours")["ours"].tolist() == [74.0]


def test_a_cut_budget_is_told(printed):
    off = dict.fromkeys(printed, 0.0)
    notes = [Note("remark", "reduced budget: not the kind of this"), "reduced"]
    write("fedpa/table3", fedpa_rows(printed, off), notes)
    assert of("fedpa/table3").reduced.sum() == 0  # its words do not decide
    notes = [Note("reduced", "emnist, 3 of 200 rounds")]
    write("fedpa/table3", fedpa_rows(printed, off), notes)
    assert of("fedpa/table3").reduced.sum() == 4
    table = scoreboard.summary(scoreboard.cells("cpu")).set_index(["paper", "kind"])
    line = table.loc["fedpa", "accuracies and gains"]
    # 42, 12 and 6 accuracies of three tables; four of them ran.
    assert (line["numbers"], line["reproduced"], line["not run"]) == (60, 4, 56)
    assert line["at reduced budget"] == 4
    assert table.loc["fedpa", "other quantities"]["numbers"] == 32
    assert table.loc["fedmps", "counts and settings"]["numbers"] == 38


def test_a_printed_number_that_two_settings_share_goes_to_its_own():
    # FedPG's Table 1 prints 0.6 for MOON at alpha 0.05 and under subset.
    row = {"dataset": "cifar10", "method": "moon", "paper": 0.6}
    rows = [
        row | {"setting": "alpha", "value": "0.05", "at 95 %": 0.61},
        row | {"setting": "scheme", "value": "subset", "at 95 %": 1.9},
    ]
    write("fedpg/table1_speed", rows)
    ran = of("fedpg/table1").dropna(subset="ours").set_index("setting")
    assert ran["ours"].to_dict() == {
        "CIFAR-10, LDA, α 0.05": 0.61,
        "CIFAR-10, subset": 1.9,
    }
    assert list(ran["state"]) == ["reproduced", "off"]
    # Table 3 prints one local training for both generators.
    row = {"cost": "local_training", "paper": 367.58}
    rows = [
        row | {"method": f"FedPG+{n}", "mean": m} for n, m in (("fc", 1), ("cnn", 2))
    ]
    write("fedpg/table3", rows)
    ran = of("fedpg/table3").dropna(subset="ours").set_index("row")["ours"]
    assert ran.to_dict() == {
        "FedPG, fc, local training": 1.0,
        "FedPG, cnn, local training": 2.0,
    }


def test_equal_numbers_of_two_settings_do_not_get_mixed():
    # Two methods with one number of the paper, and neither row names its own number.
    table = pd.read_csv(REFERENCE / "fedmps" / "table5.csv")
    same = table[table["parameters"] == 1240120]["method"].tolist()
    assert len(same) >= 2
    rows = [
        {"method": m, "paper": 1240120, "counted": i} for i, m in enumerate(same, 7)
    ]
    write("fedmps/table5", rows[::-1])
    ran = of("fedmps/table5").dropna(subset="ours").set_index("row")["ours"]
    assert ran.to_dict() == {registry.title(m): i for i, m in enumerate(same, 7)}


def test_a_sweep_of_one_setting_has_the_protocols_value_of_the_others():
    # FedHPro's Table 1: alpha 0.5 without a tail, and a tail of 10 at alpha 0.5.
    table = pd.read_csv(REFERENCE / "fedhpro" / "table1.csv")
    mine = table[(table.dataset == "cifar10") & (table.method == "fedavg")]
    mine = mine[(mine.partition == "nid1") & (mine.alpha == 0.5)]
    printed = mine.set_index("imbalance")["mean"]
    row = {"dataset": "cifar10", "method": "fedavg"}
    swept = (("alpha", "0.5", 1, 1.0), ("imbalance", "10", 10, 2.0))
    rows = [
        row | {"setting": s, "value": v, "paper": printed[tail], "mean": ours}
        for s, v, tail, ours in swept
    ]
    write("fedhpro/table1", rows)
    ran = of("fedhpro/table1").dropna(subset="ours").set_index("number")["ours"]
    assert ran.to_dict() == {printed[1]: 1.0, printed[10]: 2.0}


def test_a_row_with_another_number_of_the_paper_is_refused(printed):
    rows = fedpa_rows(printed, dict.fromkeys(printed, 0.0))
    write("fedpa/table3", [rows[0] | {"paper": 50.0}, *rows[1:]])
    with pytest.raises(ValueError, match=r"66\.39: its notebook wrote 50\.0 beside"):
        scoreboard.cells("cpu")


def test_a_number_in_two_rows_is_refused(printed):
    rows = fedpa_rows(printed, dict.fromkeys(printed, 0.0))
    write("fedpa/table3", [*rows, rows[0] | {"mean": 1.0}])
    with pytest.raises(
        ValueError, match=r"fedpa/table3: mean 66\.39 has the settings of 2"
    ):
        scoreboard.cells("cpu")


@pytest.mark.parametrize(
    ("off", "ordering", "in_order"),
    [
        ([0, 0, 0, 0], "holds", 6),
        ([-50, 0, 0, 0], "holds", 6),  # the worst gets worse
        ([50, 0, 0, 0], "differs", 3),  # the worst is best: its three pairs turn
    ],
)
def test_orderings(printed, off, ordering, in_order):
    ranked = dict(sorted(printed.items(), key=lambda item: item[1]))  # the worst first
    write("fedpa/table3", fedpa_rows(ranked, dict(zip(ranked, off, strict=True))))
    (row,) = scoreboard.orderings(scoreboard.cells("cpu")).to_dict("records")
    best = registry.title(max(printed, key=lambda name: printed[name]))
    assert (row["paper"], row["methods"], row["pairs"]) == ("fedpa", 4, 6)
    assert row["leads"] == best
    assert (row["ordering"], row["in order"]) == (ordering, in_order)


def test_a_leader_may_hold_where_the_order_does_not(printed):
    ranked = dict(sorted(printed.items(), key=lambda item: item[1]))
    worst, next_to = [*ranked.values()][:2]
    gap = next_to - worst + 0.001
    off = dict(zip(ranked, [gap, 0, 0, 0], strict=True))  # the last two change places
    write("fedpa/table3", fedpa_rows(ranked, off))
    (row,) = scoreboard.orderings(scoreboard.cells("cpu")).to_dict("records")
    assert (row["ordering"], row["in order"]) == ("leader holds", 5)


@pytest.mark.parametrize(
    ("kind", "number", "ours", "text"),
    [
        ("points", 80.0, 78.75, "−1.2"),
        ("points", 80.0, 80.3, "+0.3"),
        ("exact", 7080, 7080, "="),
        ("exact", 128, 80, "80"),
        ("share", 2.0, 3.0, "×1.5"),
        ("points", 80.0, float("nan"), ""),
    ],
)
def test_what_a_field_says(kind, number, ours, text):
    assert scoreboard_plots.gap_text(kind, number, ours) == text


@pytest.mark.parametrize("paper", scoreboard.PAPERS)
def test_a_board_has_a_field_per_number_and_fits_on_a_page(paper, nothing_ran):
    part = nothing_ran[nothing_ran.paper == paper]
    fig, drawn = scoreboard_plots.board(part)
    assert sum(len(ax.patches) for ax in fig.axes) == len(part) == len(drawn)
    for ax in fig.axes:
        box = ax.get_position()
        assert 0 < box.x0 < box.x1 < 1
        assert 0 < box.y0 < box.y1 < 1
    plt.close(fig)
