"""Attacks on FedPG's averages: who is attacked, what is measured, and that it can."""

from itertools import combinations
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from fedlib import papers
from fedlib.attacks.image_metrics import likeness
from fedlib.core.rng import generator
from fedlib.data import load
from fedlib.papers import study
from fedlib.papers.fedpg import encoder, membership, privacy, victims
from fedlib.papers.fedpg import privacy_tables as tables
from fedlib.runs import runner

P = {
    "dataset": "digits",
    "sweeps": {"net": ["digits_bn"]},
    "runs": ["fedavg"],
    "alpha": 0.3,
    "rounds": 1,
    "seeds": [908, 1],
}
SPLIT = {"victims": 6, "most": 5, "candidates": 30, "attacker": 200, "seed": 0}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLIB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def found() -> study.Study:
    return study.study("fedpg", P)


@pytest.fixture(scope="module")
def final(found) -> runner.Final:
    return runner.final(found.results[0].spec)


def test_victims_and_the_attackers_images_are_of_different_clients(final):
    shards = final.federation.train
    drawn = victims.split(shards, 10, **SPLIT)
    mine = set(shards.index[drawn.client].tolist())
    assert drawn.groups.shape == (6, 5)
    assert {int(i) for i in drawn.groups.flatten()} <= mine
    assert len(drawn.attacker) == 200
    assert not mine & set(drawn.attacker.tolist())
    assert len(set(drawn.attacker.tolist())) == 200


def test_the_client_has_most_classes_and_victims_take_turns(final):
    shards = final.federation.train
    drawn = victims.split(shards, 10, **SPLIT)
    held = [
        [int((shards.y[i] == c).sum()) >= 5 for c in range(10)] for i in shards.index
    ]
    assert sum(held[drawn.client]) == max(sum(h) for h in held)
    classes = [c for c in range(10) if held[drawn.client][c]]
    assert drawn.y.tolist() == [classes[v % len(classes)] for v in range(6)]


def test_candidates_are_of_the_class_and_hold_the_group_first(final):
    shards = final.federation.train
    drawn = victims.split(shards, 10, **SPLIT)
    assert drawn.candidates.shape == (6, 30)
    assert torch.equal(drawn.candidates[:, :5], drawn.groups)
    assert (shards.y[drawn.candidates] == drawn.y[:, None]).all()
    assert all(len(set(row.tolist())) == 30 for row in drawn.candidates)
    many = victims.split(shards, 10, **SPLIT | {"victims": 10, "candidates": 10**6})
    whole = torch.bincount(torch.cat([shards.y[i] for i in shards.index]))
    assert many.candidates.shape[1] == whole[many.y].min()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"most": 10_000, "candidates": 20_000}, "most: got 10000, expected at most"),
        ({"candidates": 5}, "candidates: got 5, expected more than 5"),
    ],
)
def test_a_split_that_cannot_be_is_refused(final, changes, told):
    with pytest.raises(ValueError, match=told):
        victims.split(final.federation.train, 10, **SPLIT | changes)


def test_pictures_and_their_embeddings_are_the_nets(final):
    """Pixels from -1 to 1 give what the net makes of its normalised inputs."""
    shards, data = final.federation.train, load("digits")
    index = torch.tensor([[0, 5], [7, 30]])
    stored = torch.cat(final.federation.partition.train).unique()[index]
    expected = data.train_x[stored] / 127.5 - 1
    torch.testing.assert_close(
        encoder.pictures(shards, index), expected, rtol=0, atol=1e-5
    )
    encode = encoder.global_encoder(final)
    z = encoder.embedded(encode, shards, index)
    with torch.no_grad():
        own = final.federation.ctx.net(final.server.model.state, shards.x[index[0]])
    torch.testing.assert_close(z[0], own.high, rtol=1e-4, atol=1e-4)


def test_a_method_without_a_global_model_is_refused():
    local = runner.final(papers.fedpg("digits", "local", rounds=1))
    with pytest.raises(ValueError, match="got local, expected a global model"):
        encoder.global_encoder(local)


def test_averages_grow_from_the_victim():
    z = torch.tensor([[[1.0], [3.0], [8.0]]])
    assert victims.averages(z, [1, 2, 3]).flatten().tolist() == [1, 2, 4]


def test_partners_are_of_the_class_and_the_image_itself_comes_first():
    y = torch.tensor([0, 1, 0, 1, 1, 2])
    rows = victims.partners(y, 4, seed=0)
    assert torch.equal(rows[:, 0], torch.arange(6))
    assert (y[rows] == y[:, None]).all()
    assert len(rows[:, 1:].unique()) > 3


def test_reidentification_by_hand():
    """Candidates at 0, 4, 1, 5 on a line; the average of the first two is 2.

    Distances are 2, 2, 1, 3: the contributors share ranks 2 and 3. Four pairs of a
    contributor and another: both lose to the candidate at 1 and win over that at 5.
    Beside a class mean of 1 squares shrink by 1-4, 9-4, 0-1, 16-9 = -3, 5, -1, 7: of
    four pairs the second contributor wins one.
    """
    candidates = torch.tensor([0.0, 4, 1, 5]).view(1, 4, 1)
    told = membership.reidentified(
        candidates[:, :2], candidates, torch.ones(1, 1), [1, 2]
    )
    one, two = told.to_dict("records")
    assert (one["rank"], one["top1"], one["auc"]) == (1, 100, 1)
    assert two == pytest.approx(
        {
            "n": 2,
            "candidates": 4,
            "rank": 2.5,
            "top1": 0,
            "top10": 100,
            "auc": 0.5,
            "auc_relative": 0.25,
        }
    )


def test_membership_shows_in_many_dimensions_and_only_there():
    """Twenty of a hundred in an average: told apart in 500 dimensions, hardly in 2."""
    areas = []
    for size in (500, 2):
        z = torch.randn(10, 100, size, generator=generator(0, "members"))
        centres = torch.zeros(10, size)
        told = membership.reidentified(z[:, :20], z, centres, [20])
        strangers = torch.randn(10, 20, size, generator=generator(1, "members"))
        nobody = membership.reidentified(strangers, z, centres, [20])
        assert nobody["auc_relative"][0] == pytest.approx(0.5, abs=0.07)
        areas.append(told["auc_relative"][0])
    assert areas[0] > 0.99
    assert areas[1] < 0.75


def test_chance_by_enumeration():
    """Which of 6 candidates contributed: all pairs alike."""
    (row,) = membership.by_chance([2], 6).to_dict("records")
    pairs = list(combinations(range(6), 2))
    assert row["top1"] == pytest.approx(100 * sum(0 in p for p in pairs) / len(pairs))
    assert (row["top10"], row["rank"], row["auc"]) == (pytest.approx(100), 3.5, 0.5)


def test_attacks_succeed_on_an_encoder_that_hides_nothing(final, monkeypatch):
    """Of one feature, not of an average; a broken attack would find neither."""
    rough = torch.randn(64, 64, generator=generator(0, "matrix"))
    matrix = torch.linalg.qr(rough).Q
    shows_all = lambda final: lambda x: x.flatten(1) @ matrix  # noqa: E731
    monkeypatch.setattr(privacy, "global_encoder", shows_all)
    done = privacy.attack(
        final,
        sizes=[1, 5],
        victims=8,
        candidates=50,
        attacker=500,
        averaged=2,
        decoder={"steps": 60, "batch": 32, "learning_rate": 3e-3},
        pixels={"steps": 150, "learning_rate": 0.1, "tv": 0.0},
        seed=0,
    )
    psnr = done.alike.set_index(["attack", "n"])["psnr"]
    control = float(psnr["Class mean"].iloc[0])
    assert psnr["Optimisation", 1] > 30
    assert psnr["Decoder", 1] > control + 1.5
    assert psnr["Optimisation", 5] < control + 3
    assert done.membership["rank"].tolist()[0] == 1
    first = likeness(done.truth, done.images["Optimisation"][0])["psnr"].mean()
    assert psnr["Optimisation", 1] == pytest.approx(first)
    assert len(psnr) == 4 * 2 + 2


def alike(value: float) -> privacy.Attack:
    rows = [("Decoder", 1, value, 0.5), ("Class mean", None, 3 * value, 0.1)]
    table = pd.DataFrame(rows, columns=["attack", "n", "psnr", "ssim"])
    told = pd.DataFrame([membership.by_chance([1], 9).iloc[0]])
    empty = torch.empty(0)
    return privacy.Attack(
        empty, empty, {}, table.astype({"n": "Int64"}), told.assign(rank=value)
    )


def test_tables_are_over_seeds():
    cells = pd.DataFrame({"value": "a", "method": ["m", "m", "q"], "seed": [0, 1, 0]})
    whole = SimpleNamespace(cells=cells)
    attacks = [alike(v) for v in (2.0, 4.0, 7.0)]
    table = tables.alike(whole, attacks)
    first = table.iloc[0].to_dict()
    assert (first["psnr"], first["psnr_sd"], first["seeds"]) == (3, 2**0.5, 2)
    assert table["method"].tolist() == ["m", "m", "q", "q"]
    told = tables.membership(whole, attacks)
    assert told["method"].tolist() == ["m", "q", "Chance"]
    assert told["rank"].tolist() == [3, 7, 5]
    drawn = tables.points(table, "attack", {"psnr": "PSNR"})
    assert set(drawn["panel"]) == {"PSNR, m", "PSNR, q"}
    assert drawn[drawn["attack"] == "Class mean"]["n"].tolist() == [1, 1]
    assert set(tables.points(told, "method", {"rank": "R"})["panel"]) == {"R"}


def test_small_cells_by_hand(found):
    table = tables.small_cells(found)
    assert table["seed"].tolist() == [908, 1]
    for at, row in enumerate(table.to_dict("records")):
        fed = runner.final(found.results[at].spec).federation
        counts = (
            fed.partition.table(load("digits").train_y).to_numpy().flatten().tolist()
        )
        held = [c for c in counts if c]
        few = [c for c in held if c < 3]
        assert row["cells"] == len(held)
        assert row["one"] == held.count(1)
        assert row["two"] == held.count(2)
        assert row["below_3_percent"] == pytest.approx(100 * len(few) / len(held))
        assert row["cells_of_20"] == len([c for c in held if c >= 20])
