"""What FedPA gives away: histograms by hand, hand-placed embeddings, a few steps."""

import pytest
import torch

from fedlib import papers
from fedlib.papers.fedpa import leak
from fedlib.runs import runner


@pytest.fixture(scope="module")
def final():
    hp = {"pj_counts": "seen_plus1", "generator_steps": 2}
    return runner.final(
        papers.fedpa("digits", "fedpa", rounds=1, hp=hp, partition={"alpha": 1.0})
    )


def test_total_variation_by_hand():
    p = torch.tensor([[2, 2, 0], [0, 0, 5], [1, 1, 1]])
    q = torch.tensor([[1, 0, 3], [0, 0, 1], [9, 9, 9]])
    found = leak.total_variation(p, q)
    assert found.tolist() == pytest.approx([0.75, 0.0, 0.0])


def test_counters_tell_the_histogram_and_seen_samples_nearly_do(final):
    """The oracle counts the partition's own labels, not the shards of the run."""
    fed = final.federation
    found = leak.histograms(final).set_index(["source", "client"])
    guessed = leak.guesses(final)
    for k, index in enumerate(fed.partition.train):
        y = torch.as_tensor(fed.dataset.train_y)[index].tolist()
        truth = [float(y.count(c)) for c in range(10)]
        assert guessed["labels"][k].tolist() == truth
        for source in ("labels", "prototype counts"):
            assert found.loc[(source, k)].tolist() == [0.0, 100.0]
    seen = found.loc["samples seen", "tv"]
    assert 0 < seen.mean() < found.loc["uniform", "tv"].mean() / 3


def test_broadcast_is_the_last_cohorts_share_alike_for_all(final):
    share = leak.guesses(final)["broadcast"]
    assert torch.equal(share, share[:1].expand_as(share))
    assert float(share[0].sum()) == pytest.approx(1)


def test_distances_of_hand_placed_embeddings():
    real = torch.tensor([[0.0, 1.0], [0.0, 3.0], [4.0, 3.0]])
    made = torch.tensor([[0.0, 2.0], [30.0, 43.0]])
    found = leak.near(made, real, torch.tensor([0.0, 4.0]))
    by = dict(iter(found.groupby("kind")))
    assert by["real"]["nearest"].tolist() == pytest.approx([2, 2, 4])
    assert by["generated"]["nearest"].tolist() == pytest.approx([1, 2276**0.5])
    assert by["generated"]["percentile"].tolist() == [0, 100]
    assert by["generated"]["to_prototype"].tolist() == pytest.approx([2, 2421**0.5])
    assert by["generated"]["cosine"].iloc[0] == pytest.approx(1)
    assert by["prototype"]["to_prototype"].tolist() == [0]
    assert by["prototype"]["nearest"].tolist() == pytest.approx([1])


def test_attack_shows_what_travels_and_learns(final):
    seen = leak.attack(
        final, per_class=2, steps=60, batch=32, learning_rate=2e-3, width=16, seed=0
    )
    assert seen.losses["loss"].iloc[-1] < seen.losses["loss"].iloc[0] / 2
    known = final.server.protos.known.nonzero().flatten()
    assert torch.equal(seen.labels["generated"], known.repeat_interleave(2))
    assert torch.equal(seen.labels["prototype"], known)
    scores = leak.scores(final, seen).set_index(["kind", "against"])
    assert scores["psnr"].between(0, 100).all()
    assert scores.loc[("real", "own image"), "number"] == len(seen.private.y)
    # A perfect decoder returns each image, and then the nearest one is the image.
    perfect = seen._replace(images=seen.images | {"real": seen.private.x})
    near = leak.nearest_private(perfect, "real")
    assert torch.equal(seen.private.x[near], seen.private.x)
    groups, classes = leak.gallery(seen, 2)
    assert classes == known.tolist()
    assert all(
        len(x) == len(known) for group in groups.values() for x in group.values()
    )
