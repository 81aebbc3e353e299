"""Attacks on FedMPS's uploads: they see what a client sends, and recover what they can.

The clients of the digits have 12 images of a class, so that the mean image of a class
holds a part of each; what an attacker knows without an attack is the mean of its own.
"""

import math
from itertools import islice

import pandas as pd
import pytest
import torch

from fedlib import papers
from fedlib.papers.fedmps import attacks, recovered, victim
from fedlib.papers.fedmps.attacks import Attack, Recovered
from fedlib.papers.fedmps.victim import Images
from fedlib.runs import runner
from fedlib.runs.federation import federation

SPEC = papers.fedmps("digits", "fedmps", seed=1234, rounds=2)
ATTACK = Attack(steps=600, batch=64, width=32, critic_width=32, inversion_rate=3e-3)


@pytest.fixture(scope="module")
def ended():
    runner.run(SPEC)
    return runner.final(SPEC)


@pytest.fixture(scope="module")
def seen(ended):
    return victim.watch(ended, 0, rounds=2)


def own_psnr(seen, images) -> float:
    """Return the mean PSNR of recovered images against their own, by the formula."""
    square = ((images - seen.private.x) / 2).square().mean((1, 2, 3))
    return float((-10 * square.log10()).mean())


def test_uploads_are_those_of_the_rounds_that_follow(seen):
    fed = federation(SPEC)
    steps = list(islice(fed.rounds(), 4))[2:]
    owned = fed.partition.owns[0]
    for level in ("low", "high"):
        for place, after in enumerate(steps):
            sent = getattr(after.up, level).mean[0][owned]
            torch.testing.assert_close(seen.uploads[level][place], sent)
    assert seen.classes == owned.nonzero().flatten().tolist()
    weights = steps[-1].mine.state
    assert all(value.equal(weights[name][0]) for name, value in seen.state.items())


def test_private_images_are_the_clients_and_public_ones_nobodys(ended, seen):
    fed = ended.federation
    index = fed.partition.train[0]
    stored = fed.dataset.train_x[index] / 127.5 - 1
    torch.testing.assert_close(seen.private.x, stored, atol=1e-6, rtol=0)
    assert seen.private.y.equal(fed.dataset.train_y[index])
    held = torch.cat(fed.partition.train).unique()
    assert len(seen.public.y) == len(fed.dataset.train_y) - len(held)
    apart = torch.cdist(seen.public.x.flatten(1), seen.private.x.flatten(1))
    assert apart.min() > 0.01


def test_queries_are_the_clients_embeddings(ended, seen):
    fed = ended.federation
    inputs = fed.train.inputs(fed.train.index[0])
    out = fed.ctx.net(seen.state, inputs)
    found = victim.query(seen, seen.private.x)
    torch.testing.assert_close(found["low"], out.low, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["high"], out.high, atol=1e-5, rtol=0)


def test_single_low_embeddings_beat_the_class_mean(seen):
    decoder = attacks.by_query(seen, ["low"], ATTACK, 0).decoder
    codes = victim.query(seen, seen.private.x)["low"]
    control = recovered.controls(seen, [0])[1]
    assert control.features == "Mean image of the attacker's class"
    guessed = own_psnr(seen, control.images.x)
    assert own_psnr(seen, decoder(codes)) > guessed + 1
    other = codes.roll(len(codes) // 2, 0)  # of images of another class
    assert own_psnr(seen, decoder(other)) < guessed - 1


def test_all_variants_on_all_features(seen):
    short = ATTACK._replace(steps=2, batch=4, width=4)
    made = attacks.attacks(seen, short, [0, 1])
    assert [(r.variant, r.features, r.seed) for r in made.recovered] == [
        (variant, features, seed)
        for variant in "ABC"
        for seed in (0, 1)
        for features in (
            *("Both levels", "Low level", "High level"),
            *(f"Both levels, weight {w}" for w in ("0.01", "1") if variant == "A"),
        )
    ]
    by_weight = [r.images.x for r in made.recovered if r.variant == "A" and r.seed == 0]
    assert not by_weight[0].equal(by_weight[-1])
    assert {len(r.images.x) for r in made.recovered if r.variant != "C"} == {4}
    assert {len(r.images.x) for r in made.recovered if r.variant == "C"} == {52}
    assert made.losses.groupby(["seed", "features", "panel"]).size().eq(2).all()
    groups, shown = recovered.gallery(seen, made.recovered)
    assert [len(pictures) for pictures in groups.values()] == [2, 3, 3, 3]
    assert seen.private.y[shown].tolist() == seen.classes
    single = made.recovered[-6]  # variant C, first seed, both levels
    drawn = groups[recovered.TITLES["C"]]["Both levels"]
    assert drawn.equal(single.images.x[shown])


def by_hand() -> victim.Victim:
    """Return a client with two images of class 0 and one of class 2."""
    x = torch.stack([torch.full((1, 8, 8), v) for v in (-1.0, 0.0, 1.0)])
    private = Images(x, torch.tensor([0, 0, 2]))
    public = Images(x[[0, 2]], torch.tensor([2, 0]))
    return victim.Victim(None, {}, (), (), {}, [0, 2], public, private)


def test_scores_by_hand():
    client = by_hand()
    guess = Images(torch.full((1, 1, 8, 8), 0.2), torch.tensor([0]))
    found = recovered.scores(client, [Recovered("A", "Low level", 0, guess)])
    # pixels in [0, 1]: 0.6 against the nearest, 0.5, and the mean of 0 and 0.5
    assert list(found.against) == ["nearest private image", "class mean image"]
    assert found.mse.tolist() == pytest.approx([0.1**2, 0.35**2], rel=1e-5)
    assert found.psnr.tolist() == pytest.approx(
        [20.0, -20 * math.log10(0.35)], rel=1e-5
    )
    assert found.identified.isna().all()


def test_identification_looks_within_the_class():
    client = by_hand()
    x = torch.full((3, 1, 8, 8), -0.9)
    guesses = Recovered("C", "x", 0, Images(x, client.private.y), torch.arange(3))
    found = recovered.scores(client, [guesses]).set_index("against")
    # the second is nearest to the first; the third is the only one of its class
    assert found.identified["own image"] == pytest.approx(200 / 3)


def test_controls_by_hand():
    found = recovered.controls(by_hand(), [0, 1])
    values = [r.images.x[:, 0, 0, 0].tolist() for r in found]
    assert values == [[-0.5, -0.5, 1.0], [1.0, 1.0, -1.0], *[[1.0, 1.0, -1.0]] * 2]
    assert [r.seed for r in found] == [0, 0, 0, 1]


def test_summary_says_how_many_seeds():
    row = {"variant": "A", "features": "x", "against": "y", "ssim": 0.5, "mse": 0.1}
    each = pd.DataFrame(
        [
            row | {"seed": s, "psnr": p, "identified": math.nan}
            for s, p in [(0, 1), (1, 3)]
        ]
    )
    found = recovered.summary(each).iloc[0]
    assert (found.psnr, found.seeds) == (2, 2)
    assert found.psnr_sd == pytest.approx(math.sqrt(2))
    assert "2 seeds" in attacks.note(ATTACK, [0, 1])
    assert "600 of 10,000 steps" in attacks.note(ATTACK, [0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client": 10}, "client: got 10, expected 0 to 9"),
        ({"client": 0, "rounds": 0}, "rounds: got 0, expected at least 1"),
        ({"client": 0, "public": 0}, "public: got 0, expected at least 1"),
    ],
)
def test_senseless_input_is_refused(ended, options, message):
    with pytest.raises(ValueError, match=message):
        victim.watch(ended, **options)
