"""Grids: every setting where its field is, every run in its cell, nothing unknown."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import papers
from fedlib.core.log import Log
from fedlib.draw import panels as plot_study
from fedlib.papers import study
from fedlib.papers.placing import labelled, parsed, placed
from fedlib.papers.study import Study, grid
from fedlib.rebuild import artefacts
from fedlib.runs import address, beside, features, pacing, reports, runner
from fedlib.runs.results import Result
from fedlib.runs.spec import SettingError

P = {
    "preset": "quick",
    "datasets": ["digits"],
    "runs": ["fedavg", "fedpa:po_dist:mse"],
    "rounds": 2,
    "seeds": [0, 1],
    "generator_steps": 2,
}
NEAREST = {"dataset": "digits", "runs": ["fedproto"], "seed": 0}


def test_a_runs_text_names_method_variant_and_switches():
    assert parsed("moon") == ("moon", {})
    assert parsed("fedpa:reference") == ("fedpa", {"variant": "reference"})
    assert parsed("gfpl:a:1:b:x") == ("gfpl", {"a": "1", "b": "x"})
    with pytest.raises(ValueError, match="runs: got 'gfpl:a:1:b', expected method"):
        parsed("gfpl:a:1:b")


def test_labels_of_a_list_are_as_printed_and_those_of_a_mapping_as_given():
    assert labelled(["fedavg", "fedpa:reference", "fedpa:po_dist:mse"]) == {
        "fedavg": "fedavg",
        "FedPA (reference)": "fedpa:reference",
        "FedPA (po_dist=mse)": "fedpa:po_dist:mse",
    }
    assert labelled({"without": "local"}) == {"without": "local"}


def test_each_setting_goes_where_its_field_is():
    given = {"rounds": 3, "alpha": 0.2, "local_steps": 4, "generator_steps": 5}
    found = placed("fedpa", "digits", "fedpa", given | {"adam": True, "net": None})
    assert found == {
        "rounds": 3,
        "adam": True,
        "partition": {"alpha": 0.2},
        "training": {"local_steps": 4},
        "hp": {"generator_steps": 5},
    }
    assert placed("fedpa", "digits", "fedavg", given)["rounds"] == 3
    assert "hp" not in placed("fedpa", "digits", "fedavg", given)


def test_a_runs_text_may_set_what_a_papers_function_takes():
    text = {"epochs": "fedpa:local_unit:epochs", "sgd": "fedpa:adam:false"}
    given = {"dataset": "digits", "seed": 0, "runs": text | {"plain": "fedpa"}}
    epochs, sgd, plain = (s.training for s in grid("fedpa", given).specs)
    assert (epochs.local_steps, epochs.local_epochs) == (None, 20)
    assert (sgd.optimiser, sgd.local_steps) == ("sgd", 20)
    assert (plain.optimiser, plain.local_steps) == ("adam", 20)
    swept = grid("fedpa", given | {"sweeps": {"local_unit": ["steps", "epochs"]}})
    assert [s.training.local_steps for s in swept.specs[2::3]] == [20, None]
    with pytest.raises(ValueError, match="local_unit: got 'days'"):
        grid("fedpa", given | {"runs": ["fedpa:local_unit:days"]})
    with pytest.raises(ValueError, match="local_unit"):
        grid("gfpl", given | {"runs": ["gfpl:local_unit:epochs"]})


def test_a_runs_text_may_set_its_training_too():
    text = {"slow": "gfpl:align_weight:4:learning_rate:0.5", "fast": "gfpl"}
    given = {"dataset": "digits", "seed": 0, "learning_rate": 0.2, "runs": text}
    slow, fast = grid("gfpl", given).specs
    assert slow.training.learning_rate == 0.5
    assert slow.hp["align_weight"] == 4.0
    assert fast.training.learning_rate == 0.2
    with pytest.raises(SettingError, match="align_weight"):
        grid("gfpl", given | {"runs": ["fedavg:align_weight:1"]})


def test_runs_that_only_training_sets_apart_have_names_of_their_own():
    texts = ["fedavg", "fedavg:learning_rate:0.01", "fedhpro:hpal:raw_sum:clip:5.0"]
    given = {"dataset": "digits", "net": "digits_bn", "rounds": 1, "local_epochs": 1}
    found = study.study("fedhpro", {**given, "seed": 0, "runs": texts}).results
    names = [
        "fedavg",
        "FedAvg (learning_rate=0.01)",
        "FedHPro (hpal=raw_sum, clip=5.0)",
    ]
    last = [100 * float(r.accuracy(*r.paper_rule, r.spec.test)[-1, 0]) for r in found]
    assert last[0] != last[1]
    readouts = reports.readouts(found)
    own = readouts[readouts["reported"] == "*"].set_index("run")["last"]
    assert own.to_dict() == pytest.approx(dict(zip(names, last, strict=True)))
    curves = reports.curves(found)
    assert (100 * curves["accuracy"]).tolist() == pytest.approx(last)
    assert curves["method"].tolist() == names
    logged = reports.logs(found)
    assert logged["run"].unique().tolist() == names
    panels = reports.log_panels(logged, "client")
    assert not panels.duplicated(["panel", "method", "round"]).any()


def test_readouts_and_logs_of_seeds_are_means_with_an_sd_by_hand():
    given = {"dataset": "digits", "net": "digits_bn", "rounds": 2, "local_epochs": 1}
    both = study.study("fedhpro", {**given, "seeds": [0, 1], "runs": ["fedhpro"]})
    table = reports.readouts(both.results)
    row = table[table["reported"] == "*"].iloc[0]
    a, b = (
        100 * float(r.accuracy(*r.paper_rule, r.spec.test)[-1, 0]) for r in both.results
    )
    assert a != b
    assert row["last"] == pytest.approx((a + b) / 2)
    assert row["last_sd"] == pytest.approx(abs(a - b) / 2**0.5)
    assert row["seeds"] == 2
    parts = [reports.logs([result]) for result in both.results]
    whole = reports.logs(both.results)
    assert len(whole) == len(parts[0])
    halves = [part["value"].to_numpy() / 2 for part in parts]
    assert whole["value"].to_numpy() == pytest.approx(halves[0] + halves[1])
    one = reports.readouts(both.results[:1])
    assert one["last_sd"].isna().all()
    assert set(one["seeds"]) == {1}


def test_a_scheme_brings_its_own_settings():
    given = {"scheme": "two_class"}
    assert placed("fedpg", "digits", "fedavg", given) == {"partition": given}
    (spec,) = grid(
        "fedpg", {"dataset": "digits", "runs": ["fedavg"], "seed": 0, **given}
    ).specs
    assert spec.partition.scheme == "two_class"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"alphas": 0.1}, "alphas: no such setting; did you mean 'alpha'"),
        ({"ruonds": None}, "ruonds: no such setting; did you mean 'rounds'"),
        ({"sweep": {"alpha": [1]}}, "sweep: no such setting; did you mean 'sweeps'"),
        (
            {"sweeps": {"alphas": [None]}},
            "alphas: no such setting; did you mean 'alpha'",
        ),
        ({"seed": 1}, "seed: got seed and seeds, expected one of the two"),
        ({"scheme": "two_clas"}, "scheme: got 'two_clas'; did you mean 'two_class'"),
        ({"datasets": ["digit"]}, "dataset: got 'digit', expected one of"),
        ({"alpha": -1.0}, "partition.alpha: got -1.0"),
        ({"runs": ["fedpa:po_dist:cosine"]}, "po_dist: got 'cosine'"),
    ],
)
def test_what_is_wrong_is_named(given, told):
    with pytest.raises((ValueError, SettingError), match=told):
        grid("fedpa", P | given)


def test_what_no_run_sees_is_declared():
    given = P | {"picture": {"steps": 3}, "watts": 50.0}
    with pytest.raises(SettingError, match="watts: no such setting"):
        grid("fedpa", given)
    assert grid("fedpa", given, ["watts"]).specs == grid("fedpa", P).specs


@pytest.mark.parametrize("name", [n for n in artefacts.names() if papers.special(n)])
def test_runs_that_are_no_grid_refuse_unknown_names_too(name):
    p = artefacts.prepare(name, "quick").parameters
    assert study.specs_for(name, p)
    with pytest.raises(SettingError, match="ruonds: no such setting"):
        study.specs_for(name, p | {"ruonds": None})


def test_the_grid_has_a_run_per_data_set_value_run_and_seed():
    found = grid("fedpa", P | {"sweeps": {"alpha": [0.5, 5.0], "participation": [0.2]}})
    cells = found.cells
    assert len(cells) == len(found.specs) == 3 * 2 * 2
    for cell, spec in zip(cells.to_dict("records"), found.specs, strict=True):
        assert spec.seed == cell["seed"]
        assert spec.method == ("fedavg" if cell["method"] == "fedavg" else "fedpa")
        swept = {"alpha": spec.partition.alpha, "participation": spec.participation}
        assert swept[cell["setting"]] == cell["value"]
        assert spec.rounds == 2
    both = grid("fedpa", P | {"rounds": {"digits": 7}})
    assert {s.rounds for s in both.specs} == {7}
    of = {"sweeps": {"alpha": {"digits": [0.5, 1.0], "fashion": [0.3]}}}
    each = grid("fedpa", P | of | {"datasets": ["digits", "fashion"], "seeds": [0]})
    assert [*zip(each.cells["dataset"], each.cells["value"], strict=True)] == [
        *[("digits", 0.5)] * 2,
        *[("digits", 1.0)] * 2,
        *[("fashion", 0.3)] * 2,
    ]


def test_without_settings_a_grid_is_the_papers_protocol():
    (spec,) = grid(
        "fedmps", {"dataset": "cifar10", "runs": ["fedntd"], "seed": 1234}
    ).specs
    assert spec == papers.fedmps("cifar10", "fedntd")


class Fixed:
    """A result with given accuracies."""

    def __init__(self, spec, best):
        self.spec, self.best = spec, best

    def summary(self):
        own = {"last": self.best - 0.01, "best": self.best, "mean_last5": self.best}
        other = dict.fromkeys(own, 0.99)
        rows = [(other, False), (own, True)]
        return pd.DataFrame(
            [
                r
                | {"data": "clients", "std_best": 0.02}
                | {"best_round": 2, "is_paper_rule": mine}
                for r, mine in rows
            ]
        )


@pytest.fixture
def fixed():
    found = grid("fedpa", P | {"sweeps": {"alpha": [0.5, 5.0]}})
    best = [0.50, 0.54, 0.60, 0.60, 0.70, 0.74, 0.80, 0.82]
    results = [Fixed(s, b) for s, b in zip(found.specs, best, strict=True)]
    return Study("fedpa", found.cells, results)


def test_a_table_has_mean_and_sd_over_seeds_beside_the_papers_numbers(fixed):
    paper = pd.DataFrame(
        {
            "dataset": ["digits", "digits", "mnist"],
            "method": ["fedavg", "fedavg", "fedavg"],
            "alpha": [5, 0.5, 0.5],
            "mean": [70.0, 53.0, 99.0],
            "sd": [1.5, 0.5, 0.1],
        }
    )
    table = fixed.table("best", paper)
    assert list(table.columns[:4]) == ["dataset", "alpha", "method", "paper"]
    first = table.iloc[0]
    assert first[["dataset", "alpha", "method"]].tolist() == ["digits", 0.5, "fedavg"]
    assert first["mean"] == pytest.approx(52)
    assert first["sd"] == pytest.approx(2.8284271)  # of 50 and 54, ddof 1
    assert first["last"] == pytest.approx(51)
    assert first["gap"] == pytest.approx(-1)
    assert first["client_sd"] == pytest.approx(2)
    assert first["seeds"] == 2
    assert table["paper"].isna().tolist() == [False, True, False, True]
    assert table.iloc[2]["paper_sd"] == 1.5
    assert fixed.table()["paper"].isna().all()


def test_a_run_without_its_papers_rule_has_an_empty_row_and_moves_no_other():
    """The whole test set is for the server's models: Local's and FedPer's have none."""
    given = {"dataset": "digits", "net": "digits_bn", "rounds": 2, "local_epochs": 1}
    runs = ["local", "fedavg", "fedper", "moon"]
    found = study.study("fedhpro", {**given, "seed": 0, "runs": runs})
    frame = found.frame().set_index("method")
    assert list(frame.index) == runs
    numbers = ["last", "best", "mean_last5", "client_sd", "best_round"]
    assert frame.loc[["local", "fedper"], numbers].isna().all(axis=None)
    whole = [r.accuracy("global", "head_all", "full") for r in found.results[1::2]]
    last = [100 * float(accuracy[-1, 0]) for accuracy in whole]
    assert last[0] != last[1]
    assert frame.loc[["fedavg", "moon"], "last"].tolist() == pytest.approx(last)
    table = found.table().set_index("method")
    assert table["seeds"].to_dict() == {"local": 0, "fedavg": 1, "fedper": 0, "moon": 1}
    alone = Study("fedhpro", found.cells[:1], found.results[:1])
    assert alone.table()["mean"].isna().all()


def test_points_are_fractions_per_value_and_run(fixed):
    points = fixed.points()
    assert points["accuracy"].tolist() == pytest.approx([0.52, 0.60, 0.72, 0.81])
    fig, drawn = plot_study.lines(points, names={"alpha": "Dirichlet alpha"})
    assert fig.axes[0].get_xlabel() == "Dirichlet alpha"
    assert drawn["accuracy"].tolist() == points["accuracy"].tolist()
    ticks = [t.get_text() for t in fig.axes[0].get_xticklabels()]
    assert ticks == ["0.5", "5"]


def test_a_study_runs_and_its_models_are_kept():
    found = study.study("fedpa", P | {"seeds": [0]})
    table = found.table("last")
    own = [r.accuracy(*r.paper_rule, r.spec.test)[-1].mean() for r in found.results]
    assert table["mean"].tolist() == pytest.approx([100 * float(a) for a in own])
    assert [d.name for d in found.data] == ["digits"]
    assert set(found.curves()["round"]) == {1, 2}
    spec = found.results[0].spec
    kept = address.folder(spec) / "final.safetensors"
    assert kept.exists()
    first = features.features(runner.final(spec), "global", per_class=3)
    assert torch.bincount(first.y).max() == 3
    kept.unlink()  # made again, with the same bits
    again = features.features(runner.final(spec), "global", per_class=3)
    assert torch.equal(first.out.high, again.out.high)
    for which in ("received", "ensemble"):  # the second is FedEnsemble's rule
        with pytest.raises(ValueError, match=f"which: got '{which}', fedavg has"):
            features.features(runner.final(spec), which)


def test_the_final_models_are_those_that_were_evaluated():
    spec = grid("fedpa", P).specs[0]
    result = runner.run(spec)
    found = features.features(runner.final(spec), "global")
    right = (found.out.logits.argmax(1) == found.y).float().mean()
    assert float(right) == pytest.approx(
        float(result.accuracy("global", "head_all", "pooled")[-1, 0])
    )


def test_a_plane_is_the_same_twice_and_needs_samples():
    z = np.random.default_rng(0).normal(size=(30, 5))
    assert np.array_equal(features.plane(z), features.plane(z))
    assert features.plane(z[:4]).shape == (4, 2)
    with pytest.raises(ValueError, match=r"z: got shape \(3, 5\)"):
        features.plane(z[:3])
    z[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        features.plane(z)


@pytest.mark.parametrize(("count", "wanted"), [(4, 1.0), (31, 10.0), (200, 30.0)])
def test_a_plane_of_few_samples_has_few_neighbours(count, wanted, monkeypatch):
    """Three times the perplexity are other samples than one's own."""
    asked = []

    class Fake:
        def __init__(self, perplexity, **_):
            asked.append(perplexity)

        def fit_transform(self, z):
            return z[:, :2]

    monkeypatch.setattr(features, "TSNE", Fake)
    features.plane(np.random.default_rng(0).normal(size=(count, 5)), perplexity=30.0)
    assert asked == [wanted]


@pytest.mark.parametrize("value", [0.0, 7.0, 1e30, 1e-300])
def test_a_plane_of_equal_embeddings_ends_no_process(value):
    """C04: a finite run with dead ReLUs gets there."""
    found = features.plane(np.full((40, 16), value))
    assert found.shape == (40, 2)
    assert not found.any()


def test_a_plane_of_tiny_embeddings_tells_their_groups_apart():
    z = np.zeros((40, 16))
    z[20:] = 1e-200
    z += 1e-202 * np.random.default_rng(0).normal(size=z.shape)
    found = features.plane(z)
    assert np.isfinite(found).all()
    gap = np.abs(found[:20].mean(0) - found[20:].mean(0)).max()
    assert gap > found[:20].std()


def test_distances_within_and_between_classes_by_hand():
    z, y = np.array([[0.0], [2.0], [10.0]]), np.array([0, 0, 1])
    found = features.distances(z, y)
    assert found == {"intra": 2.0, "inter": 9.0, "ratio": 4.5}


def test_the_papers_numbers_are_found_by_the_settings_that_ran():
    paper = pd.DataFrame(
        {
            "dataset": "digits",
            "partition": ["nid1", "nid1", "nid2", "nid1", "nid1"],
            "alpha": [0.2, 0.5, np.nan, 0.5, 0.5],
            "imbalance": [1, 1, 1, 10, 50],
            "method": "fedavg",
            "mean": [1.0, 2.0, 3.0, 4.0, 5.0],
        }
    )
    p = {"dataset": "digits", "runs": ["fedavg"], "seeds": [0, 1]}
    sweeps = {"alpha": [0.5], "scheme": ["nid2"], "imbalance": [10, 20]}
    by = ["partition", "alpha", "imbalance"]

    def like(settings, paper=paper):
        found = grid("fedhpro", settings)
        results = [Fixed(s, 0.5) for s in found.specs]
        made = Study("fedhpro", found.cells, results)
        return made.table("best", made.like(paper, by))

    table = like(p | {"sweeps": sweeps})
    assert table["value"].tolist() == [0.5, "nid2", 10, 20]
    assert table["paper"].fillna(0).tolist() == [2.0, 3.0, 4.0, 0.0]
    assert table["seeds"].tolist() == [2] * 4
    one = like(p | {"sweeps": {"alpha": [0.2, 0.5]}})
    assert one["paper"].tolist() == [1.0, 2.0]
    anywhere = paper.head(1).assign(partition=None, alpha=np.nan, imbalance=np.nan)
    assert like(p | {"imbalance": 7}, anywhere)["paper"].tolist() == [1.0]


def test_nid2_has_as_many_clients_as_its_definition():
    two = {"scheme": "nid2"}
    assert papers.fedhpro("digits", "fedavg", partition=two).clients == 6
    more = two | {"n_biased": 6, "classes_per_biased": 1}
    assert papers.fedhpro("digits", "fedavg", partition=more).clients == 7
    fixed = papers.fedhpro("digits", "fedavg", partition=two, clients=8)
    assert fixed.clients == 8
    assert papers.fedhpro("digits", "fedavg").clients == 10


def test_what_runs_log_is_drawn_like_accuracy(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path))
    p = {"dataset": "digits", "rounds": 2, "eval_every": 2, "seed": 0}
    p |= {"runs": ["fedavg", "fedhpro"], "clients": 10}
    found = study.study("fedhpro", p)
    shown = found.watched("mismatch")
    assert shown["method"].unique().tolist() == ["fedhpro"]
    logged = found.results[1].watched()["mismatch"]
    assert shown["mismatch"].tolist() == pytest.approx(logged.tolist())
    assert shown["round"].tolist() == [1, 2]
    assert found.watched("hyper_cosine")["round"].tolist() == [2]


def test_panels_of_what_runs_log_have_words_for_titles():
    names = ["mismatch_before", "supervised", "first_step"]
    logged = pd.DataFrame({"source": "server", "name": names, "run": "fedhpro"})
    panels = reports.log_panels(logged.assign(round=1, value=0.5), "server")["panel"]
    words = ["Mismatch, before fitting", "Cross-entropy", "First step"]
    assert panels.tolist() == words


def test_without_domains_there_is_their_average_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path))
    p = {"dataset": "digits", "rounds": 2, "seeds": [0, 1], "runs": ["fedavg"]}
    found = study.study("fedhpro", p)
    paper = pd.DataFrame(
        {"dataset": "digits", "domain": ["average"], "method": "fedavg", "mean": [50.0]}
    )
    table = found.per_domain(paper)
    (row,) = table.to_dict("records")
    assert (row["domain"], row["paper"], row["seeds"]) == ("average", 50.0, 2)
    whole = found.table("best", paper.drop(columns="domain")).iloc[0]
    for name in ("mean", "sd", "gap", "last"):
        assert row[name] == pytest.approx(whole[name])
    assert {*found.marked_per_domain["values"]} <= {*table}


@pytest.mark.parametrize(
    ("right", "best", "last"),
    [
        ([[-1, -1], [9, 9], [5, 5]], 90, 50),
        ([[3, 5], [9, 9], [-1, -1]], 90, 90),
        ([[-1, -1]] * 3, np.nan, np.nan),
    ],
)
def test_a_round_that_cannot_be_evaluated_is_no_best_and_no_last(right, best, last):
    """-1: no class of the client's has a prototype."""
    spec = papers.fedmps("digits", "fedproto", clients=2, rounds=3)
    log = Log(
        cohort=torch.tensor([[0, 1]] * 3),
        evaluated=torch.tensor([1, 2, 3]),
        samples=torch.full((3, 2), 10),
        accuracy={"personal/nearest_own": torch.tensor(right)},
    )
    found = Study("fedmps", grid("fedmps", NEAREST).cells, [Result(spec, "key", log)])
    paper = {"dataset": ["digits"], "domain": "average", "method": "fedproto"}
    table = found.per_domain(pd.DataFrame(paper).assign(mean=1.0))
    for rows in (table, found.table()):
        (row,) = rows.to_dict("records")
        numbers = [row["mean"], row["last"]]
        assert numbers == pytest.approx([best, last], nan_ok=True)
        assert row["seeds"] == (not np.isnan(best))


def test_how_the_released_log_ends():
    log = beside.reference("fedhpro", "log")
    log = log.assign(panel="", accuracy=log["mean"] / 100)
    (row,) = pacing.ends(log).to_dict("records")
    assert (row["last"], row["best"], row["rounds"]) == (64.24, 65.98, 100)
    means = (round(row["mean_last5"], 2), round(row["mean_last10"], 2))
    assert means == (63.21, 59.31)
    change = np.diff(log["mean"])[-50:]
    assert row["change_sd"] == pytest.approx(change.std(ddof=1))
    assert row["change_sd"] == pytest.approx(8.55, abs=0.005)


def test_how_curves_end_is_a_mean_over_seeds_of_how_each_ends():
    zigzag, flat = [0.2, 0.4, 0.2, 0.4, 0.2, 0.4], [0.1, 0.2, 0.3, 0.3, 0.3, 0.3]
    curves = pd.concat(
        pd.DataFrame({"round": range(1, 7), "accuracy": line}).assign(seed=seed)
        for seed, line in enumerate([zigzag, flat])
    )
    (row,) = pacing.ends(curves.assign(panel="d", method="a")).to_dict("records")
    assert (row["rounds"], row["seeds"]) == (6, 2)
    assert (row["last"], row["best"]) == (pytest.approx(35), pytest.approx(35))
    assert row["mean_last5"] == pytest.approx((32 + 28) / 2)
    assert row["mean_last5_sd"] == pytest.approx(8**0.5)
    # the mean curve would have half the zigzag's changes
    change = np.std([20, -20, 20], ddof=1)
    assert row["change_sd"] == pytest.approx(change / 2)
    log = curves[curves["seed"] == 0].assign(panel="d", method="a", seed=np.nan)
    (one,) = pacing.ends(log).to_dict("records")
    assert one["seeds"] == 1
    assert np.isnan(one["mean_last5_sd"])


def test_curves_of_seeds_average_to_the_curve(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path))
    p = {"dataset": "digits", "rounds": 2, "seeds": [0, 1], "runs": ["fedavg"]}
    ran = study.study("fedpg", p)
    each, curve = ran.curve_of_each(), ran.curves()
    assert each.groupby("seed").size().to_dict() == {0: 2, 1: 2}
    by_round = each.groupby("round")["accuracy"]
    assert by_round.mean().tolist() == pytest.approx(curve["accuracy"].tolist())
    assert by_round.std().tolist() == pytest.approx(curve["sd"].tolist())


def test_leads_over_a_method_are_taken_seed_by_seed():
    rows = accuracies_of_seeds().query("model == 'personal'")
    leads = beside.leads_over(rows, "other", "best").to_dict("records")
    assert [(r["method"], r["mean"], r["ahead"], r["seeds"]) for r in leads] == [
        ("ours", 1.0, 1, 2)  # nobody else has a seed that both have
    ]
    with pytest.raises(ValueError, match="runs: got two rows of ours, seed 0"):
        beside.leads_over(pd.concat([rows, rows]), "other", "best")


def test_all_numbers_of_runs_have_means_and_sds_over_seeds():
    """A control has no n; of one number a seed is missing, and an sd needs two."""
    columns = ["attack", "n", "seed", "psnr", "top1"]
    rows = [("decoder", 1, 0, 1.0, 5.0), ("decoder", 1, 1, 3.0, np.nan)]
    rows += [("control", None, 0, 7.0, 8.0)]
    frame = pd.DataFrame(rows, columns=columns).astype({"n": "Int64"})
    table = beside.means_over_seeds(frame, ["attack", "n"])
    wanted = ["attack", "n", "psnr", "psnr_sd", "top1", "top1_sd", "seeds"]
    assert list(table) == wanted
    decoder, control = table.to_dict("records")
    assert (decoder["attack"], decoder["n"], decoder["seeds"]) == ("decoder", 1, 2)
    assert (decoder["psnr"], decoder["psnr_sd"]) == (2, pytest.approx(2**0.5))
    assert (decoder["top1"], control["psnr"], control["seeds"]) == (5, 7, 1)
    assert np.isnan([decoder["top1_sd"], control["psnr_sd"]]).all()


def accuracies_of_seeds() -> pd.DataFrame:
    """Return rows as from ``accuracies``: the second seed is hard for both methods."""
    columns = ["dataset", "method", "seed", "model", "rule", "best"]
    rows = [("d", "ours", 0, "personal", "own", 80.0)]
    rows += [("d", "other", 0, "personal", "own", 76.0)]
    rows += [("d", "ours", 1, "personal", "own", 60.0)]
    rows += [("d", "other", 1, "personal", "own", 62.0)]
    rows += [("d", "other", 0, "global", "own", 50.0)]
    rows += [("d", "alone", 2, "personal", "own", 10.0)]
    return pd.DataFrame(rows, columns=columns)


def test_a_lead_under_a_rule_is_taken_seed_by_seed():
    rows, by = accuracies_of_seeds().query("model == 'personal'"), ["dataset", "rule"]
    (lead,) = beside.leads_of(rows, "ours", "best", by).to_dict("records")
    assert lead.pop("sd") == pytest.approx(18**0.5)  # of 4 and -2; 14 of ours alone
    assert lead == {
        "dataset": "d",
        "rule": "own",
        "method": "other",
        "mean": 1.0,
        "ahead": 1,
        "seeds": 2,
    }
    assert beside.leads_of(rows, "nobody", "best", by).empty


def test_two_test_sets_of_one_run_are_no_two_seeds():
    given = {"dataset": "digits", "net": "digits_bn", "rounds": 1, "seed": 0}
    (result,) = study.study(
        "fedpa", {**given, "runs": ["fedavg"], "local_steps": 2}
    ).results
    assert set(result.summary()["data"]) == {"clients", "pooled"}
    rows = reports.accuracies([result])
    assert set(rows["data"]) == {"pooled"}  # which FedPA reports
    assert not rows.duplicated(["model", "rule"]).any()
    over = reports.over_seeds(rows, "best", ["dataset", "method", "model", "rule"])
    assert set(over["seeds"]) == {1}
    under = reports.under_rules(rows, "best").iloc[0]
    pooled = 100 * float(result.accuracy("global", "head_all", "pooled")[0, 0])
    assert under["global/head_all"] == pytest.approx(pooled)
    assert np.isnan(under["global/head_all sd"])


def test_every_method_under_every_rule_has_its_spread():
    found = beside.under_rules(accuracies_of_seeds(), "best").set_index("method")
    assert list(found.index) == ["ours", "other", "alone"]
    own = found["personal/own"]
    assert own.to_dict() == {"ours": 70.0, "other": 69.0, "alone": 10.0}
    sd = found["personal/own sd"]
    assert sd["other"] == pytest.approx(98**0.5)
    assert np.isnan(sd["alone"])
    assert found["global/own"].dropna().to_dict() == {"other": 50.0}
    assert found["global/own sd"].isna().all()


@pytest.mark.parametrize("twice", [{"seeds": [1, 1]}, {"datasets": ["digits"] * 2}])
def test_a_grid_with_a_run_twice_is_refused(twice):
    p = {"datasets": ["digits"], "seeds": [1], "runs": ["fedavg"], "rounds": 1}
    with pytest.raises(SettingError, match=r"runs: got .*fedavg.* twice"):
        study.grid("fedmps", p | twice)


@pytest.mark.parametrize("nothing", ["datasets", "seeds", "runs"])
def test_a_grid_without_a_run_is_refused(nothing):
    p = {"datasets": ["digits"], "seeds": [1], "runs": ["fedavg"], "rounds": 1}
    with pytest.raises(SettingError, match="got no run"):
        study.grid("fedmps", p | {nothing: []})


def test_a_variant_of_a_method_that_has_none_is_named():
    p = {"datasets": ["digits"], "seeds": [1], "runs": ["fedavg:foo"], "rounds": 1}
    with pytest.raises(
        SettingError, match="got fedavg:foo, but fedavg has no variants"
    ):
        study.grid("fedmps", p)
