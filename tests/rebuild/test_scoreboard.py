"""The scoreboard: which numbers ran, which are near, and whether orderings hold."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from fedlib import papers, registry
from fedlib.papers import budget
from fedlib.papers.source import Accuracies
from fedlib.rebuild import artefacts, our_runs, scoreboard, scoreboard_plots, staleness
from fedlib.runs import published
from fedlib.runs.beside import REFERENCE
from fedlib.runs.notes import Note, record
from fedlib.runs.spec import Spec
from fedlib.support import paths


def write(name: str, rows: list[dict], notes: list[Note] | None = None) -> None:
    """Write a notebook's table at ``cpu``, and its provenance."""
    path = paths.figures_dir() / "cpu" / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    path.with_suffix(".json").write_text(
        json.dumps({"notes": [record(note) for note in notes or []]})
    )


def keep(name: str, *runs: tuple[Spec, Any]) -> None:
    """Write the provenance of an artefact at ``cpu``, of runs and what they reached."""
    path = paths.figures_dir() / "cpu" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = []
    for spec, reached in runs:
        told = reached if isinstance(reached, dict) else {"best": reached}
        accuracy = {"last": -1.0, **told}
        found.append({"spec": spec.model_dump(mode="json"), "accuracy": accuracy})
    record = {"artefact": name, "notes": [], "runs": found}
    path.write_text(json.dumps(record))


def fashion(method: str, **changes: Any) -> Spec:
    """Return a run of FedPA's Table II, Fashion-MNIST at alpha 0.3, unless changed."""
    alpha = {"partition": {"alpha": 0.3}}
    return papers.fedpa("fashion", method, **{"seed": 0, **alpha, **changes})


def cell(row: str = "FedPA", setting: str = "Fashion-MNIST, α 0.3") -> dict[str, Any]:
    """Return a field of FedPA's Table II."""
    table = of("fedpa/table2")
    (found,) = table[(table.row == row) & (table.setting == setting)].to_dict("records")
    return found


@pytest.fixture
def printed() -> dict[str, float]:
    """Return FedPA's Table III at a tenth taking part, method -> number."""
    table = pd.read_csv(REFERENCE / "fedpa" / "table3.csv")
    part = table[table.participation == 0.1].set_index("method")["mean"]
    assert part["fedavg"] == 66.39
    return part.to_dict()


def tenth(printed: dict[str, float], off: dict[str, float], **changes: Any) -> None:
    """Keep runs of these methods at a tenth taking part, so far off the paper's."""
    made = {"participation": 0.1, "seed": 0, **changes}
    runs = [(papers.fedpa("emnist", m, **made), printed[m] + off[m]) for m in printed]
    keep("ours/anything", *runs)


def of(table: str) -> pd.DataFrame:
    """Return the fields of one table, as ``scoreboard.cells`` has them."""
    ran, figures = our_runs.runs("cpu"), paths.figures_dir() / "cpu"
    mine = [s for s in scoreboard.SOURCES if f"{s.paper}/{s.table}" == table]
    return pd.concat([scoreboard._cells(source, figures, ran) for source in mine])


@pytest.fixture(scope="module")
def nothing_ran() -> pd.DataFrame:
    """Return every field, with no table to take numbers from."""
    return scoreboard.cells("cpu")


def test_without_tables_nothing_ran(nothing_ran):
    states = nothing_ran["state"].value_counts()
    assert set(states.index) == {"not run", "not implemented", "not available"}
    # Table 2 of FedHPro lost 50 numbers, Table VI of FedMPS the 48 at five ways.
    assert states["not available"] == 98


def test_every_number_of_every_table_is_a_field(nothing_ran):
    found = nothing_ran.dropna(subset="number").groupby("paper").size()
    columns = {"mean", "gain", "ratio", "rounds", "parameters_k", "parameters"}
    count = {}
    for paper in scoreboard.PAPERS:
        for file in sorted((REFERENCE / paper).glob("table*.csv")):
            table = pd.read_csv(file)
            mine = columns & {*table}
            numbers = int(table[sorted(mine)].count().sum())
            if file.stem == "table1" and paper == "gfpl":  # once for all three ways
                numbers -= 2 * int(table[["rounds", "parameters_k"]].count().sum()) // 3
            count[paper] = count.get(paper, 0) + numbers
    assert found.to_dict() == count


def test_a_run_counts_whatever_artefact_made_it():
    keep("learn/other", (fashion("fedpa"), 85.0), (fashion("fedavg"), 80.0))
    mine, other = cell(), cell("FedAvg")
    assert (mine["ours"], mine["state"], mine["seeds"]) == (85.0, "reproduced", 1)
    assert (other["ours"], other["state"], other["budget"]) == (80.0, "off", "full")
    board = scoreboard.cells("cpu")
    assert board["ours"].notna().sum() == 2  # and at no other setting


def test_several_seeds_have_a_spread_and_one_has_none():
    """By hand: 80, 84 and 85 lie 3, 1 and 2 from their mean."""
    seeds = zip(range(3), (80.0, 84.0, 85.0), strict=True)
    runs = [(fashion("fedpa", seed=seed), number) for seed, number in seeds]
    keep("learn/other", *runs, (fashion("fedpa", hp={"variant": "reference"}), 85.0))
    found = cell()
    assert (found["ours"], found["seeds"]) == (83.0, 3)
    assert found["our_sd"] == pytest.approx(7**0.5)
    assert pd.isna(found["reference_sd"])
    (row,) = scoreboard.ran(scoreboard.cells("cpu")).to_dict("records")
    assert row["our sd"] == found["our_sd"]


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": {"alpha": 1.0}},
        {"partition": {"alpha": 0.3, "min_size": 10}},
        {"participation": 0.4},
        {"clients": 10},
        {"imbalance": 10},
        {"test": "full"},
        {"min_count": 2},
        {"training": {"learning_rate": 1e-3}},
        {"training": {"local_steps": 40}},  # longer than the paper's
        {"hp": {"po_dist": "mse"}},  # a reading of our own
        {"local_unit": "epochs"},
        {"adam": False},
    ],
)
def test_a_run_of_another_setting_does_not_count(changes):
    other = changes.get("partition", {}).get("alpha") == 1.0
    keep("fedpa/table2", (fashion("fedpa", **changes), 85.0))
    assert (cell()["state"], cell()["seeds"]) == ("not run", 0)
    assert (cell(setting="Fashion-MNIST, α 1")["ours"] == 85.0) == other
    assert scoreboard.cells("cpu")["ours"].notna().sum() == other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 3}, "3 of 200 rounds"),
        ({"training": {"local_steps": 4}}, "4 of 20 local steps"),
        ({"hp": {"generator_steps": 10}}, "10 of 50 generator steps"),
        ({"net": "lenet"}, "net lenet in place of fedpa_cnn"),
        ({"rounds": 3, "net": "lenet"}, "3 of 200 rounds, net lenet in place of fed"),
    ],
)
def test_a_run_that_cuts_the_budget_is_labelled_and_not_judged(changes, words):
    keep("fedpa/table2", (fashion("fedpa", **changes), 85.52))
    found = cell()
    assert (found["state"], found["reduced"]) == ("reduced", True)
    assert found["budget"].startswith(words)
    assert found["gap"] == 0


def test_draws_and_evaluations_are_no_setting():
    changed = fashion("fedpa", seed=7, partition_seed=1, eval_every=10)
    keep("fedpa/fig9", (changed, 85.0))
    assert cell()["state"] == "reproduced"
    keep("fedpa/fig9", (fashion("fedpa", rounds=300), 85.0))
    assert cell()["budget"] == "full"  # more rounds cut nothing


def test_numbers_are_means_over_seeds_and_whole_budgets_come_first():
    runs = [(fashion("fedpa", seed=s), 80.0 + s) for s in (0, 1, 3)]
    cuts = [(fashion("fedpa", seed=s, rounds=3), 10.0) for s in range(5)]
    longer = [(fashion("fedpa", seed=s, rounds=300), 90.0) for s in range(5)]
    keep("learn/a", *cuts, *longer, *runs)
    assert (cell()["seeds"], cell()["budget"]) == (3, "full")
    assert cell()["ours"] == pytest.approx((80 + 81 + 83) / 3)
    keep("learn/a", *cuts, (fashion("fedpa", rounds=40), 20.0))
    assert (cell()["ours"], cell()["budget"]) == (20.0, "40 of 200 rounds")


def test_a_seed_counts_once_and_the_tables_own_run_of_it_first():
    keep("ours/a", (fashion("fedpa"), 80.0), (fashion("fedpa"), 81.0))
    keep("ours/b", (fashion("fedpa"), 82.0))
    assert (cell()["ours"], cell()["seeds"]) == (80.0, 1)
    keep("fedpa/table2", (fashion("fedpa"), 83.0))
    assert (cell()["ours"], cell()["seeds"]) == (83.0, 1)


@pytest.fixture
def publish(monkeypatch):
    """Publish runs and what they reached."""
    told = []
    monkeypatch.setattr(published, "records", lambda: iter(told))

    def publish(spec: Spec, best: float | None) -> None:
        reached = None if best is None else {"best": best, "last": -1.0}
        about = SimpleNamespace(spec=spec.model_dump(mode="json"), accuracy=reached)
        told.append((Path("results/fashion/fedpa/seed0.json"), about))

    return publish


def test_a_published_run_counts_and_before_those_of_artefacts(publish):
    keep("fedpa/table2", (fashion("fedpa"), 70), (fashion("fedpa", seed=1), 80))
    publish(fashion("fedpa"), 90.0)
    publish(fashion("fedpa", seed=2), None)
    assert (cell()["ours"], cell()["seeds"]) == (85, 2)
    assert our_runs.runs("quick") == {}  # its numbers are never the papers'


def test_a_published_run_with_a_setting_that_is_gone_is_named(publish):
    publish(fashion("fedpa"), 90.0)
    (_, about), *_ = published.records()
    about.spec["colour"] = "red"
    with pytest.raises(ValueError, match=r"fashion/fedpa/seed0\.json: .*colour"):
        our_runs.runs("cpu")


def test_an_artefact_that_reads_others_is_stale_after_a_published_run(publish):
    board = artefacts.prepare("scoreboard/papers", "cpu")
    before = staleness.state(board)["inputs"]["results"]
    publish(fashion("fedpa"), 90.0)
    assert staleness.state(board)["inputs"]["results"] != before
    quick = artefacts.prepare("scoreboard/papers", "quick")
    assert "results" not in staleness.state(quick)["inputs"]


def test_the_released_reading_stands_beside_and_is_never_the_papers():
    released = fashion("fedpa", hp={"variant": "reference"})
    keep("fedpa/learning", (released, 85.52))
    found = cell()
    assert (found["state"], found["reference"]) == ("reference only", 85.52)
    assert pd.isna(found["ours"])
    assert pd.isna(found["gap"])
    assert (found["seeds"], found["budget"]) == (1, "full")
    keep("fedpa/learning", (released, 85.52), (fashion("fedpa"), 70.0))
    found = cell()
    assert (found["ours"], found["reference"], found["state"]) == (70.0, 85.52, "off")
    board = scoreboard.cells("cpu")
    assert scoreboard.ran(board)["reference"].tolist() == [85.52]
    assert scoreboard.orderings(board).empty
    line = scoreboard.summary(board).set_index(["paper", "kind"]).loc["fedpa"]
    assert line.loc["accuracies", "reference only"] == 0
    short = fashion("fedpa", hp={"variant": "reference"}, rounds=5)
    keep("fedpa/learning", (short, 85.52), (fashion("fedpa"), 85.0))
    found = cell()
    assert found["budget"] == "full; reference: 5 of 200 rounds"
    assert (found["state"], found["reduced"]) == ("reproduced", False)
    keep("fedpa/learning", (short, 85.52))
    found = cell()
    assert (found["state"], found["budget"]) == ("reference only", "5 of 200 rounds")


def test_another_reading_that_the_paper_prints_stands_beside():
    """FedPA's E = 20 is printed as batches and as epochs; 85.52 is the number."""
    seeds = [(fashion("fedpa", local_unit="epochs", seed=s), 85.0 + s) for s in (0, 1)]
    keep("fedpa/learning", *seeds)
    found = cell()
    assert (found["state"], found["other"]) == ("not run", 85.5)
    assert found["other_sd"] == pytest.approx(0.5**0.5)
    assert pd.isna(found["ours"])
    keep("fedpa/learning", *seeds, (fashion("fedpa"), 76.0))
    found = cell()
    assert (found["ours"], found["other"], found["state"]) == (76.0, 85.5, "off")
    short = fashion("fedpa", local_unit="epochs", rounds=3)
    keep("fedpa/learning", (short, 85.5), (fashion("fedpa"), 76.0))
    assert pd.isna(cell()["other"])  # at its whole budget, or not at all


@pytest.mark.parametrize(
    ("batches", "epochs", "within", "otherwise"),
    [(76.0, 85.5, 0, 1), (76.0, 83.9, 0, 0), (85.0, 85.5, 1, 0), (85.0, 76.0, 1, 0)],
)
def test_a_number_that_only_another_reading_gives_is_counted_apart(
    batches, epochs, within, otherwise
):
    other = fashion("fedpa", local_unit="epochs")
    keep("fedpa/learning", (fashion("fedpa"), batches), (other, epochs))
    row = scoreboard.tables(of("fedpa/table2")).set_index("dataset")
    counts = row.loc["Fashion-MNIST", ["run", "within", "otherwise"]].tolist()
    assert counts == [1, within, otherwise]
    assert row.drop("Fashion-MNIST")["otherwise"].sum() == 0


def test_papers_without_another_reading_have_none():
    keep("gfpl/learning", (papers.gfpl("mnist", "gfpl", ways=3), 98.3))
    found = of("gfpl/table1").dropna(subset="ours")
    assert found["other"].isna().all()


def test_fedmps_as_released_is_not_fedmps_as_printed():
    made = {"ways": 3, "rounds": 100, "hp": {"variant": "reference"}}
    keep("fedmps/table3", (papers.fedmps("cifar10", "fedmps", **made), 76.8))
    found = of("fedmps/table3").dropna(subset="reference")
    assert found["state"].tolist() == ["reference only"]
    assert found["budget"].tolist() == ["100 of 500 rounds"]


def test_a_table_that_is_of_one_seed_takes_that_seeds_run():
    """FedMPS's Table VI is of one seed, its Table III of three."""
    seeds = zip((1234, 1235, 1236), (80.0, 60.0, 70.0), strict=True)
    runs = [
        (papers.fedmps("cifar10", "fedmps", ways=3, rounds=500, seed=seed), number)
        for seed, number in seeds
    ]
    keep("fedmps/table3", *runs)
    over, one = (of(f"fedmps/{t}").dropna(subset="ours") for t in ("table3", "table6"))
    assert over[["ours", "seeds"]].to_numpy().tolist() == [[70.0, 3]]
    assert one[["ours", "seeds"]].to_numpy().tolist() == [[80.0, 1]]
    keep("fedmps/table3", *runs[1:])
    assert of("fedmps/table6")["ours"].isna().all()


def test_gfpls_spread_of_shots_may_be_told_or_that_of_classes():
    drawn = [{}, {"shot_spread": 2}, {"shot_spread": 1}]
    specs = [papers.gfpl("mnist", "gfpl", ways=3, partition=d) for d in drawn]
    for spec, counts in zip(specs, (True, True, False), strict=True):
        keep("gfpl/learning", (spec, 98.3))
        found = of("gfpl/table1").dropna(subset="ours")
        assert found["setting"].tolist() == ["MNIST, n = 3"] * counts


def test_a_tables_rounds_are_those_of_each_method():
    # GFPL's Table 1: FeSEM 150 rounds on MNIST, GFPL 80, Local none: the protocol's 80
    names = ("local", "fesem", "gfpl")
    runs = [(papers.gfpl("mnist", m, ways=3, rounds=80), 50.0) for m in names]
    keep("gfpl/learning", *runs)
    found = of("gfpl/table1").dropna(subset="ours").set_index("row")["budget"]
    assert found.to_dict() == {
        "Local": "full",
        "FeSEM": "80 of 150 rounds",
        "GFPL": "full",
    }


def test_a_domain_is_read_from_the_round_of_the_best_average():
    spec = papers.fedhpro("digits_domains", "fedavg")
    each = {"MNIST": 96.0, "USPS": 90.0, "SVHN": 70.0, "SYN": 50.0}
    keep("fedhpro/table2", (spec, {"best": 76.5, "groups": each}))
    found = of("fedhpro/table2").dropna(subset="ours").set_index("setting")["ours"]
    assert found.to_dict() == {
        **{f"Digits, {name}": value for name, value in each.items()},
        "Digits, average": 76.5,
    }


def test_fedpgs_final_accuracy_is_the_last_rounds():
    spec = papers.fedpg("cifar10", "fedavg", partition={"alpha": 0.1})
    keep("fedpg/fig5", (spec, {"best": 60.0, "last": 55.0}))
    found = of("fedpg/table1").dropna(subset="ours")
    assert (found["ours"].tolist(), len(found)) == ([55.0], 1)


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_every_accuracy_of_fedpg_has_a_run_in_its_own_artefact(table):
    specs = artefacts.prepare(f"fedpg/{table}", "paper").specs
    (source,) = (
        s
        for s in scoreboard.SOURCES
        if (s.paper, s.table) == ("fedpg", table) and isinstance(s, Accuracies)
    )
    for row in pd.read_csv(REFERENCE / "fedpg" / f"{table}.csv").to_dict("records"):
        told = {name: value for name, value in row.items() if not pd.isna(value)}
        full = our_runs.setting(source, told)
        assert full is not None
        cuts = [budget.cut(s, full) for s in specs if s.method == full.method]
        assert [] in cuts, told


def test_what_has_no_run_is_not_implemented_and_what_is_lost_not_available(
    nothing_ran,
):
    table = nothing_ran[nothing_ran.paper == "fedhpro"]
    rows = table[table.state == "not implemented"]["row"].unique()
    assert sorted(rows) == ["FedGMKD, hyper", "FedSA, hyper"]
    lost = nothing_ran[nothing_ran.state == "not available"]
    assert set(zip(lost["paper"], lost["table"], strict=True)) == {
        ("fedmps", "table6"),
        ("fedhpro", "table2"),
    }


def test_a_run_with_a_setting_that_is_gone_is_named():
    spec = fashion("fedpa")
    keep("fedpa/learning", (spec, 80.0))
    path = paths.figures_dir() / "cpu" / "fedpa" / "learning.json"
    path.write_text(path.read_text().replace("po_dist", "po_distance"))
    with pytest.raises(ValueError, match=r"cpu/fedpa/learning: .*po_distance"):
        scoreboard.cells("cpu")


def test_a_run_without_its_accuracy_is_no_number():
    keep("fedpa/learning", (fashion("fedpa"), 80.0))
    path = paths.figures_dir() / "cpu" / "fedpa" / "learning.json"
    record = json.loads(path.read_text())
    record["runs"][0]["accuracy"] = None
    path.write_text(json.dumps(record))
    assert cell()["state"] == "not run"


def test_near_is_a_point_and_a_half_where_no_sd_is_printed(printed):
    tenth(printed, dict(zip(printed, [1.5, -1.5, 1.51, -9.0], strict=True)))
    table = of("fedpa/table3")
    ran = table[table.state != "not run"]
    assert list(ran.state) == ["reproduced", "reproduced", "off", "off"]
    assert list(ran.gap.round(2)) == [1.5, -1.5, 1.51, -9.0]
    assert len(table) - len(ran) == 8  # the other two participations
    assert not ran.reduced.any()


def test_near_is_twice_the_printed_sd_where_that_is_more():
    # FedMPS's Table III on CIFAR-10: FedAvg 60.91 +- 1.99, FedMPS 80.14 +- 0.30.
    reached = {"fedavg": 60.91 + 3.97, "fedmps": 80.14 + 1.6}
    keep("ours/a", *((papers.fedmps("cifar10", m), n) for m, n in reached.items()))
    ran = of("fedmps/table3").dropna(subset="ours").set_index("row")
    assert ran["near"].round(2).to_dict() == {"FedAvg": 3.98, "FedMPS": 1.5}
    assert ran["state"].to_dict() == {"FedAvg": "reproduced", "FedMPS": "off"}


def test_a_printed_sd_over_clients_makes_no_number_near():
    # GFPL's Table 1, MNIST, n = 3: Local 94.05 +- 2.93, of what is not told.
    keep("ours/a", (papers.gfpl("mnist", "local", ways=3), 98.39))
    (found,) = of("gfpl/table1").dropna(subset="ours").to_dict("records")
    assert (found["sd"], found["near"], found["state"]) == (2.93, 1.5, "off")
    board = scoreboard.cells("cpu")
    assert (board[board.table == "table7"]["near"] == 1.5).all()


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


def test_a_variant_is_the_run_of_its_own_switches():
    # FedPA's Table IV prints 75.21 for the prototype term alone.
    off = {"generator_weight": 0.0, "adversarial_weight": 0.0}
    squared = papers.fedpa("emnist", "fedpa", hp=off | {"po_dist": "mse"})
    keep("ours/a", (papers.fedpa("emnist", "fedpa", hp=off), 74.0), (squared, 1.0))
    (found,) = of("fedpa/table4").dropna(subset="ours").to_dict("records")
    assert (found["row"], found["number"]) == ("FedPA, prototype", 75.21)
    assert found["ours"] == 74.0


def test_a_gain_is_judged_by_sign_and_size():
    # FedHPro's Table 6, digits: -1.08, -1.51, -3.45
    row = {"dataset": "digits_domains"}
    names = ("prototypes_in_contrast", "prototypes_in_align", "prototypes_in_both")
    pairs = zip(names, (-1.08, -1.51, -3.45), (-1.6, 0.1, -1.0), strict=True)
    rows = [
        row | {"method": name, "paper_change": theirs, "change": ours}
        for name, theirs, ours in pairs
    ]
    write("fedhpro/table6", rows)
    table = of("fedhpro/table6").dropna(subset="ours")
    assert table["kind"].unique().tolist() == ["gain"]
    assert table["state"].tolist() == ["reproduced", "off", "off"]


def test_a_cut_budget_of_a_notebooks_table_is_told():
    row = {"dataset": "emnist", "method": "fedpa", "alpha": 0.4, "round": 0}
    row |= {"paper_intra": 27.898, "paper_inter": 27.351, "intra": 30.6, "inter": 30.2}
    write("fedpa/table5", [row], [Note("remark", "reduced budget: not of this kind")])
    states = of("fedpa/table5").dropna(subset="ours")["state"]
    assert states.tolist() == ["reproduced", "off"]  # its words do not decide
    write("fedpa/table5", [row], [Note("reduced", "emnist, 3 of 200 rounds")])
    found = of("fedpa/table5").dropna(subset="ours")
    assert found["state"].tolist() == ["reduced", "reduced"]
    table = scoreboard.summary(scoreboard.cells("cpu")).set_index(["paper", "kind"])
    line = table.loc["fedpa", "other quantities"]
    assert (line["numbers"], line["reduced"], line["not run"]) == (32, 2, 30)


def test_settings_are_on_no_board(nothing_ran):
    assert (nothing_ran["kind"] == "exact").sum() == 8  # FedMPS's Table V, of messages
    tables = set(zip(nothing_ran["paper"], nothing_ran["table"], strict=True))
    assert not tables & {("fedmps", "table2"), ("gfpl", "table3")}


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
    runs = [
        (papers.fedhpro("cifar10", "fedavg", imbalance=tail), float(tail))
        for tail in (1, 10)
    ]
    keep("ours/a", *runs)
    ran = of("fedhpro/table1").dropna(subset="ours").set_index("setting")["ours"]
    assert ran.to_dict() == {
        "CIFAR-10, NID1, α 0.5, tail 1": 1.0,
        "CIFAR-10, NID1, α 0.5, tail 10": 10.0,
    }


def test_a_row_with_another_number_of_the_paper_is_refused():
    write("fedmps/table5", [{"method": "fedmps", "paper": 50, "counted": 30780}])
    with pytest.raises(ValueError, match=r"30780\.0: its notebook wrote 50 beside"):
        scoreboard.cells("cpu")


def test_a_number_in_two_rows_is_refused():
    row = {"method": "fedmps", "paper": 30780, "counted": 30780}
    write("fedmps/table5", [row, row | {"counted": 1}])
    with pytest.raises(
        ValueError, match=r"fedmps/table5: parameters 30780.* has the settings of 2"
    ):
        scoreboard.cells("cpu")


@pytest.mark.parametrize(
    ("off", "ordering", "in_order", "level"),
    [
        # 66.39, 69.46, 70.58 and 74.00: the second and third are a point apart
        ([0, 0, 0, 0], "open", 5, 1),
        ([-50, -9, 0, 0], "holds", 6, 0),  # the worst get worse
        ([50, 0, 0, 0], "differs", 2, 1),  # the worst is best: its three pairs turn
        ([5, 0, 0, 0], "leader holds", 3, 2),
        ([7, 0, 0, 0], "leader open", 2, 2),  # the leader is ahead by 0.61
        ([7, 0, 0, -2], "leader open", 1, 3),  # the leader is behind by 1.39
        ([0, 0, 4, 0], "open", 5, 1),  # the third is ahead, by half a point
        ([0, 0, 5.5, 0], "differs", 5, 0),
    ],
)
def test_orderings(printed, off, ordering, in_order, level):
    ranked = dict(sorted(printed.items(), key=lambda item: item[1]))  # the worst first
    assert [*ranked.values()] == [66.39, 69.46, 70.58, 74.0]
    tenth(ranked, dict(zip(ranked, off, strict=True)))
    (row,) = scoreboard.orderings(scoreboard.cells("cpu")).to_dict("records")
    best = registry.title(max(printed, key=lambda name: printed[name]))
    assert (row["paper"], row["methods"], row["pairs"]) == ("fedpa", 4, 6)
    assert (row["leads"], row["seeds"], row["budget"]) == (best, 1, "full")
    found = (row["ordering"], row["in order"], row["level"])
    assert found == (ordering, in_order, level)


def test_tables_count_numbers_and_orderings_by_data_set(printed):
    """Two of the twelve numbers of Fashion-MNIST ran whole, one at less."""
    keep("a/a", (fashion("fedavg"), 84.4), (fashion("fedavg", seed=1), 84.4))
    keep("a/b", (fashion("fedpa"), 50.0), (fashion("fedgen", rounds=3), 84.0))
    found = scoreboard.tables(of("fedpa/table2")).set_index("dataset")
    assert found["numbers"].sum() == len(of("fedpa/table2"))
    row = found.loc["Fashion-MNIST"].to_dict()
    assert (row["numbers"], row["run"], row["within"], row["cut"]) == (12, 2, 1, 1)
    assert row["orderings"] == 1  # FedPA leads in print
    assert (row["hold"], row["open"]) == (0, 0)
    assert row["seeds"] == "1 to 2"
    assert row["budget"] == "full; 3 of 200 rounds"
    nothing = found.loc["MNIST"].to_dict()
    assert (nothing["run"], nothing["seeds"], nothing["budget"]) == (0, "", "")


def test_the_board_has_every_number_once(nothing_ran):
    fig, drawn = scoreboard_plots.board(nothing_ran)
    assert drawn["numbers"].sum() == len(nothing_ran)
    left, right = fig.axes
    assert sum(bar.get_width() for bar in left.patches) == len(nothing_ran)
    tables = nothing_ran[["paper", "table"]].drop_duplicates()
    assert len(left.get_yticklabels()) == len(tables) == drawn["row"].nunique()
    assert {t.get_text()[:5] for t in left.texts} == {"0 of "}
    names = {t.get_text() for t in left.get_yticklabels()}
    assert {"GFPL, Table 1", "FedPA, Table V", "FedMPS, Table III"} <= names
    assert not right.collections
    plt.close(fig)


def test_the_boards_dots_are_gaps_of_all_readings():
    keep(
        "fedpa/learning",
        (fashion("fedpa"), 77.52),
        (fashion("fedpa", local_unit="epochs"), 86.02),
        (fashion("fedpa", hp={"variant": "reference"}), 85.02),
    )
    cells = of("fedpa/table2")
    found = scoreboard_plots.gaps(cells).set_index("state")["gap"]
    assert found.to_dict() == {
        "off": pytest.approx(77.52 - 85.52),
        "another reading": pytest.approx(86.02 - 85.52),
        "reference only": pytest.approx(85.02 - 85.52),
    }
    fig, drawn = scoreboard_plots.board(cells)
    dots = [c.get_offsets()[0, 0] for c in fig.axes[1].collections]
    assert sorted(dots) == sorted(found)
    assert drawn["min_gap"].notna().sum() == 3
    assert [t.get_text() for t in fig.axes[0].texts] == ["1 of 42"]
    plt.close(fig)
