"""What uploads tell of single samples: by autograd, and on real uploads."""

import statistics
from dataclasses import replace

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedlib import papers
from fedlib.core.messages import as_model
from fedlib.core.protos import Protos
from fedlib.methods import fedhpro
from fedlib.papers.ours import leaks
from fedlib.partitions.common import Partition
from fedlib.runs.federation import federation
from tests.conftest import toy_context, toy_shards

C, CLIENTS = 4, 2


def uploaded(sizes: list[int], *, head: bool, twice: bool = False):
    """Return an upload whose gradients autograd took, and the samples behind it."""
    ctx = replace(toy_context(fedhpro.METHOD, len(sizes)), round=1)
    shards = toy_shards(sizes)
    state = {k: 3 * v for k, v in ctx.init_clients(False).items()}  # no flat softmax
    size = ctx.net.embedding_sizes()[1]
    mean = torch.zeros(len(sizes), C, size)
    wide = torch.zeros(len(sizes), C, C * (size + 1))
    count = torch.zeros(len(sizes), C, dtype=torch.int64)
    samples = {}
    for k, rows in enumerate(shards.index):
        mine = {name: v[k] for name, v in state.items()}
        for c in shards.y[rows].unique().tolist():
            x = shards.x[rows[shards.y[rows] == c]]
            z = ctx.net(mine, x).high.detach().double().requires_grad_()
            weight = mine["head.0.weight"].double().requires_grad_()
            bias = mine["head.0.bias"].double().requires_grad_()
            logits = z @ weight.T + bias
            loss = F.cross_entropy(logits, torch.full((len(z),), c), reduction="none")
            found = torch.autograd.grad(loss.mean(), [z, weight, bias])
            of_z, of_weight, of_bias = found
            n = len(z)
            mean[k, c] = of_z.sum(0).float() / (n if twice else 1)
            wide[k, c] = torch.cat([of_weight, of_bias[:, None]], 1).flatten().float()
            count[k, c] = n
            samples[k, c] = (logits.softmax(-1).detach(), z.detach())
    none = Protos(torch.zeros(len(sizes), C, 0), count * 0)
    up = fedhpro.Up(
        as_model(ctx.net, state),
        Protos(mean, count),
        Protos(wide, count) if head else none,
        none,
        shards.sizes(),
    )
    return ctx, up, samples


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("head", [False, True])
def test_the_softmax_of_a_sample_follows_from_its_gradient(head, twice):
    """Single samples exactly, several by their mean; classes not owned stay unknown."""
    ctx, up, samples = uploaded([3, 17], head=head, twice=twice)
    hp = fedhpro.HP(grad_reduction="mean_twice" if twice else "mean")
    found = leaks.softmaxes(ctx.net, up, hp)
    assert 1 in found.count
    assert torch.equal(found.count, up.gradients.count)
    for (k, c), (softmax, _) in samples.items():
        assert softmax.max() < 1
        torch.testing.assert_close(found.mean[k, c], softmax.mean(0), rtol=0, atol=2e-6)
    assert not found.mean[~found.known].any()


def test_the_embedding_of_a_sample_follows_from_its_gradient_of_the_head():
    """Exactly for one; for several the mean weighed by 1 - p of the own class."""
    _, up, samples = uploaded([3, 17], head=True)
    found = leaks.embeddings(up)
    counts = []
    for (k, c), (softmax, z) in samples.items():
        far = 1 - softmax[:, c]
        wanted = (far[:, None] * z).sum(0) / far.sum()
        torch.testing.assert_close(found.mean[k, c], wanted, rtol=1e-4, atol=1e-5)
        if len(z) == 1:
            torch.testing.assert_close(found.mean[k, c], z[0], rtol=1e-4, atol=1e-5)
        counts.append(len(z))
    assert 1 in counts
    assert max(counts) > 1
    sure = up._replace(
        head_gradients=up.head_gradients._replace(
            mean=torch.zeros_like(up.head_gradients.mean)
        )
    )
    assert not leaks.embeddings(sure).known.any()


def test_what_is_not_uploaded_cannot_be_used():
    ctx, up, _ = uploaded([3, 17], head=False)
    with pytest.raises(ValueError, match="head_gradients: got none"):
        leaks.embeddings(up)
    with pytest.raises(ValueError, match="grad_when: got 'pre_local' without"):
        leaks.softmaxes(ctx.net, up, fedhpro.HP(grad_when="pre_local"))


def test_uploads_of_a_round_on_digits_give_their_samples_away():
    """The method's own upload, and the clients' data as the truth."""
    skewed = {"scheme": "lda", "alpha": 0.1, "min_size": 5}
    hp = {"hyper_steps": 1}
    fed = federation(papers.fedhpro("digits", "fedhpro", hp=hp, partition=skewed))
    found = leaks.against_truth(fed, next(fed.rounds()))
    held = fed.partition.table(fed.dataset.train_y)
    assert len(found) == int((held > 0).sum().sum())
    assert (found.samples == 1).any()
    assert found.error.max() < 1e-6
    chances = found.own[found.samples == 1]
    assert chances.nunique() == len(chances)
    early = fed._replace(
        ctx=replace(
            fed.ctx, hp=fed.ctx.hp.model_copy(update={"grad_when": "pre_local"})
        )
    )
    with pytest.raises(ValueError, match="hp: got gradients before training"):
        leaks.against_truth(early, next(fed.rounds()))


def test_no_draw_is_refused():
    with pytest.raises(ValueError, match="draws: got 0, expected at least 1"):
        leaks.cells_of_papers(["digits"], {}, [2], 0, 0)


def test_small_cells_by_hand():
    """Client 0 has 1 and 3 samples, client 1 has 2 of one class."""
    labels = torch.tensor([0, 1, 1, 1, 2, 2])
    train = [torch.tensor([0, 1, 2, 3]), torch.tensor([4, 5])]
    owns = torch.tensor([[True, True, False], [False, False, True]])
    found = leaks.small_cells(Partition(train, train, owns, ()), labels, (2, 3, 4))
    assert found == (3, 1, 2.0, {2: 1, 3: 2, 4: 3})


def test_cells_of_papers_count_every_protocol():
    sweeps = {"fedpa": {"alpha": [0.1, 1.0]}}
    found = leaks.cells_of_papers(["digits"], sweeps, [2, 5], 3, 2)
    drawn = found[found.setting != "not drawn"]
    assert list(drawn.dataset) == ["digits"] * 6
    assert list(drawn.setting) == ["", "alpha 0.1", "alpha 1.0", "", "", ""]
    everything = {(p, d) for p, each in papers.PAPERS.items() for d in each}
    listed = set(zip(found.paper, found.dataset, strict=True))
    assert everything - listed == {("fedmps", "noise")}
    counts, shares = [], []
    spec = papers.fedpa("digits", "fedpa", partition={"alpha": 0.1})
    for seed in (42, 43):  # the released program draws by 42, whatever the run's seed
        fed = federation(spec.model_copy(update={"partition_seed": seed}))
        sizes = [
            int((fed.dataset.train_y[rows] == c).sum())
            for rows in fed.partition.train
            for c in range(10)
        ]
        counts.append([n for n in sizes if n])
        shares.append(sum(n < 5 for n in counts[-1]) / len(counts[-1]))
    (row,) = drawn.query("setting == 'alpha 0.1'").to_dict("records")
    assert row["draws"] == 2
    assert row["cells"] == sum(map(len, counts)) / 2
    assert row["smallest"] == min(map(min, counts))
    assert row["median"] == sum(map(statistics.median, counts)) / 2
    assert row["below 5"] == pytest.approx(sum(shares) / 2)
    assert row["below 5_sd"] == pytest.approx(abs(shares[0] - shares[1]) / 2**0.5)
    assert pd.isna(found.loc[found.dataset == "celeba", "cells"]).all()
