"""GFPL's tables and pictures: counted by hand, on two rounds of the digits."""

from itertools import islice

import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import papers
from fedlib.core import nets
from fedlib.core.rng import generator
from fedlib.methods import gfpl
from fedlib.papers import study
from fedlib.papers.gfpl import features, plots, tables
from fedlib.runs import beside, runner
from fedlib.runs.federation import federation

P = {
    "dataset": "digits",
    "runs": ["local", "fedavg", "gfpl"],
    "sweeps": {"ways": [3]},
    "rounds": 4,
    "first_exchange": 2,
    "exchange_every": 2,
    "eval_every": 2,
    "seed": 1234,
}


@pytest.fixture(scope="module")
def found():
    return study.study("gfpl", P)


def test_what_is_sent_by_three_ways_of_counting(found):
    local, fedavg, gfpl = tables.sent(found.results).to_dict("records")
    assert set(local.values()) == {0}
    fed = federation(found.results[1].spec)
    weights = sum(p.numel() for p in fed.ctx.net.module.parameters())
    assert fedavg["exchanges"] == 4
    assert fedavg["up"] == fedavg["down"] == weights
    assert fedavg["per_round"] == fedavg["per_exchange"] == 10 * weights
    assert fedavg["total"] == 4 * 2 * 10 * weights
    up = int(fed.partition.owns.sum()) * 4 * (2 * 32 + 1)
    assert gfpl["exchanges"] == 2
    assert gfpl["per_exchange"] == up
    assert gfpl["up"] == up / 10
    assert gfpl["per_round"] == up / 2
    simplex = 10 * 10 * 32
    assert gfpl["total"] == 2 * (up + 10 * gfpl["down"]) + simplex


def test_formula_and_messages_agree_where_nothing_merges(found):
    table = tables.against_formula(
        study.Study("gfpl", found.cells.iloc[2:].reset_index(), found.results[2:])
    )
    assert table["up"].tolist() == table["formula_up"].tolist()
    assert (table["down"] <= table["formula_down"]).all()


def test_points_are_thousands_per_direction(found):
    points = tables.sent_points(found)
    assert set(points["method"]) >= {"fedavg, sent", "gfpl, received"}
    sizes = tables.sent(found.results)
    sent = points[points["method"] == "gfpl, sent"]["floats_k"]
    assert sent.tolist() == pytest.approx([sizes["up"][2] / 1000])


def test_accuracy_in_the_round_that_the_paper_stops_at(found):
    paper = pd.DataFrame(
        {
            "dataset": "digits",
            "ways": 3,
            "method": ["local", "fedavg", "gfpl"],
            "rounds": [0, 2, 80],
            "parameters_k": [0, 430, 2],
        }
    )
    at = tables.at_rounds(found, paper)["at_paper"]
    second = found.results[1].accuracy("global", "head_all")[0].nanmean()
    assert at.isna().tolist() == [True, False, True]
    assert at[1] == pytest.approx(100 * float(second))
    table = tables.communication(found, paper)
    assert table["paper_k"].tolist() == [0, 430, 2]
    assert table["best_round"][0] == 0  # local training sends nothing
    assert table["D"][2] == pytest.approx(10 * table["A"][2])


def test_merges_are_those_of_the_last_exchange():
    given = P | {"runs": ["gfpl"], "sweeps": {"merge_threshold": [0.0, 1e9]}}
    found = study.study("gfpl", given)
    owned = federation(found.results[0].spec).partition.owns.any(0).sum()
    table = tables.merges(found)
    assert table["merged"][0] == 0
    assert table["kept"][1] == int(owned)  # one component of each class is left
    assert (table["received"] == table["kept"] + table["merged"]).all()


def test_settings_are_those_of_the_librarys_protocols():
    """All of Table 3, but for the three projections that Section 5.1 corrects."""
    printed = beside.reference("gfpl", "table3")
    table = tables.settings("gfpl", "gfpl", printed).set_index(["dataset", "setting"])
    assert len(table) == 28
    assert table["ours"].notna().all()
    other = table[table["ours"] != table["paper"]]
    assert other["ours"].to_dict() == {
        ("femnist", "projection_size"): 80,
        ("cifar10", "projection_size"): 128,
        ("cifar100", "projection_size"): 128,
    }
    assert (other["mark"] == "uncertain").all()


def test_projections_are_each_clients_own_unit_vectors(found):
    final = runner.final(found.results[2].spec)
    seen = features.features(final, "personal", "test", 4)
    h = features.projections(final, seen)
    assert torch.allclose(h.norm(dim=1), torch.ones(len(h)))
    points, apart = features.planes({"both": final}, 4, 0)
    assert list(dict.fromkeys(points["panel"])) == [
        "both: features",
        "both: projections",
    ]
    assert len(points) == 2 * len(h)
    assert (apart["inter"] > 0).all()


def at(*degrees):
    """Return points on the circle, twice as far out: only their angle counts."""
    angle = torch.tensor(degrees).double().deg2rad()
    return 2 * torch.stack([angle.cos(), angle.sin()], 1)


def test_nearest_real_features_of_hand_placed_points():
    """Client 0 is at 0 and 10 degrees, client 1 at 90 and 150."""
    real, owner = at(0.0, 10.0, 90.0, 150.0), torch.tensor([0, 0, 1, 1])
    drawn = {"upload": at(30.0, 91.0, 60.0), "mean": at(55.0)}
    sender = torch.tensor([0, 1, 0])
    found = features.against_real(drawn, real, owner, sender)
    by = dict(iter(found.groupby("kind")))
    gaps = np.deg2rad([20.0, 1.0, 30.0])  # to 10, 90 and 90 degrees
    assert by["upload"]["cosine"].tolist() == pytest.approx(np.cos(gaps))
    square = by["upload"]["squared_distance"]
    assert square.tolist() == pytest.approx(2 - 2 * np.cos(gaps))
    # Real ones are 10, 10, 60 and 60 degrees from their nearest other one.
    assert by["upload"]["percentile"].tolist() == [50.0, 0.0, 50.0]
    assert by["real"]["percentile"].tolist() == [25.0, 25.0, 75.0, 75.0]
    assert by["upload"]["own"].tolist() == [100.0, 100.0, 0.0]
    assert by["upload"]["chance"].tolist() == [50.0] * 3
    assert by["real"]["own"].tolist() == [100.0] * 4
    assert by["real"]["chance"].tolist() == pytest.approx([100 / 3] * 4)
    assert by["mean"][["own", "chance"]].isna().all(axis=None)


def test_nearest_real_features_of_samples_and_of_themselves(found):
    final = runner.final(found.results[2].spec)
    apart = features.nearest_real(final, 5, 0).assign(seed=0)
    counts = apart["kind"].value_counts()
    known = final.server.mixtures.known
    owners = final.federation.partition.owns.sum(0)[known]
    assert counts["sample"] == 5 * len(owners)
    assert counts["upload"] == sum(-(-5 // int(n)) * int(n) for n in owners)
    assert counts["mean"] == len(owners)
    assert np.allclose(apart["cosine"], 1 - apart["squared_distance"] / 2)
    assert apart["squared_distance"].between(0, 4).all()
    table = features.against_claim(apart).set_index("kind")
    assert table.loc["real", "claim_holds"] == "no"
    _, drawn = plots.cumulative(
        apart,
        "squared_distance",
        kinds={"sample": "Drawn", "real": "Real"},
        xlabel="Distance",
        mark=0.85,
        marked="Claim",
    )
    ends = drawn[drawn["percent"] == 100].set_index("kind")["squared_distance"]
    most = apart.groupby("kind")["squared_distance"].max()
    assert ends["sample"] == pytest.approx(max(most["sample"], 1e-4))


def test_uploads_of_the_last_round_are_those_that_were_sent(found):
    """Retraining after an exchange moves the heads, not what mixtures describe."""
    fed = federation(found.results[2].spec)
    after = next(islice(fed.rounds(), P["rounds"] - 1, None))
    ended, _, mine = runner.final(found.results[2].spec)
    again = gfpl.local_mixtures(ended.ctx, mine.state, ended.train)
    for now, sent in zip(again, after.up.mixtures, strict=True):
        assert torch.equal(now, sent)


def test_the_claim_is_counted_over_seeds():
    values = {
        "squared_distance": [1.8, 1.9, 5e-5, 1.8],
        "cosine": [0.1, 0.05, 1.0, 0.1],
    }
    values |= {
        "percentile": [90.0, 100.0, 10.0, 30.0],
        "own": [100.0, 0.0, 100.0, 100.0],
    }
    far = pd.DataFrame({"kind": "upload", "seed": [0, 0, 1, 1], **values})
    far = far.assign(chance=50.0, dimensions=2)
    row = features.against_claim(far).iloc[0]
    assert row["claim_holds"] == "no"
    assert (row["seeds"], row["number"]) == (2, 4)
    assert row["far_percent"] == row["low_cosine_percent"] == 75
    assert row["median"] == pytest.approx((1.85 + 0.900025) / 2)
    assert row["median_sd"] == pytest.approx(0.949975 / 2**0.5)
    assert row["percentile"] == pytest.approx((95 + 20) / 2)
    assert row["own_percent"] == 75
    assert row["copy_percent"] == 25
    one = features.against_claim(far[far["seed"] == 0]).iloc[0]
    assert one["claim_holds"] == "yes"
    assert np.isnan(one["median_sd"])


def test_error_bars_leave_out_a_spread_that_is_missing():
    nan = float("nan")
    rows = {"method": ["local", "gfpl"], "mean": [50.0, 60.0], "sd": [nan, 1.0]}
    df = pd.DataFrame({"panel": "Digits", **rows, "client_sd": [5.0, nan]})
    fig, drawn = plots.error_bars(df)
    assert len(fig.axes[0].collections) == 2
    named = [t.get_text() for t in fig.legends[0].get_texts()]
    assert named == ["One sd over clients", "One sd over seeds"]
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["Local", "GFPL"]
    assert drawn["mean"].tolist() == [50.0, 60.0]


@pytest.mark.parametrize(
    ("dataset", "shape", "classes", "size"),
    [
        ("mnist", (1, 28, 28), 10, 50),
        ("femnist", (1, 128, 128), 62, 80),
        ("cifar10", (3, 32, 32), 10, 128),
        ("cifar100", (3, 32, 32), 100, 128),
    ],
)
def test_the_printed_size_is_the_projections_or_the_extractors(
    dataset, shape, classes, size
):
    """Section 5.1's four numbers are the embedding's, or the projection's alone."""
    plain = papers.gfpl(dataset, "gfpl")
    assert plain.hp["projection_size"] == size
    assert plain == papers.gfpl(dataset, "gfpl", size_of="projection")
    other = papers.gfpl(dataset, "gfpl", size_of="extractor")
    assert other.hp["projection_size"] is None  # that of the embedding
    net = nets.build(other.net, shape, classes, other.embedding)
    state = net.init(generator(0, "init"))
    out = net(state, torch.rand(2, *shape))
    assert out.high.shape == (2, size)
    assert out.logits.shape == (2, classes)
    assert (out.high >= 0).all()
    beside = papers.gfpl(dataset, "fedavg", size_of="extractor")
    assert beside.net == other.net
    same = {"net": other.net, "hp": other.hp}
    assert other == plain.model_copy(update=same)


def test_settings_of_a_reading_stay_where_they_are_given():
    spec = papers.gfpl(
        "cifar10", "gfpl", size_of="extractor", net="lenet", hp={"projection_size": 12}
    )
    assert (spec.net, spec.hp["projection_size"]) == ("lenet", 12)
    with pytest.raises(ValueError, match="size_of: got 'net', expected projection"):
        papers.gfpl("cifar10", "gfpl", size_of="net")


def test_rounds_are_of_training_or_exchanges():
    """80 exchanges in every tenth round from the tenth on end with round 800."""
    plain = papers.gfpl("mnist", "gfpl")
    assert (plain.rounds, papers.gfpl("cifar10", "gfpl").rounds) == (80, 100)
    assert plain == papers.gfpl("mnist", "gfpl", rounds_of="training")
    other = papers.gfpl("mnist", "gfpl", rounds_of="exchanges")
    assert other == plain.model_copy(update={"rounds": 800})
    late = {"first_exchange": 7, "exchange_every": 3}
    cases = {"from_first": [7, 10, 13, 16], "multiples": [9, 12, 15, 18]}
    for schedule, wanted in cases.items():
        hp = late | {"schedule": schedule}
        for n, last in enumerate(wanted, start=1):
            spec = papers.gfpl("mnist", "gfpl", hp=hp, rounds=n, rounds_of="exchanges")
            assert spec.rounds == last
    off = {"hp": {"pseudo": False}, "rounds_of": "exchanges"}
    assert papers.gfpl("mnist", "gfpl", **off).rounds == 80  # it never exchanges
    assert papers.gfpl("mnist", "fedavg", rounds_of="exchanges").rounds == 80
    with pytest.raises(ValueError, match="rounds_of: got 'all', expected training"):
        papers.gfpl("mnist", "gfpl", rounds_of="all")
