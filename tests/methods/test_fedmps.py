"""FedMPS's two variants: what each switch is, and the server as printed, by loops."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from fedlib import federation, papers
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.methods import fedmps
from fedlib.methods.fedmps import HP, REFERENCE
from tests.conftest import toy_context

C, D = 4, 32  # classes; the high embedding of the digits' net

# The defaults before there was a variant: what the committed numbers were made with.
BEFORE = {
    "supcon_scale": "released",
    "soft_mode": "prob_mean",
    "server_optimiser": "adam",
    "server_learning_rate": 1e-3,
    "collection": "train",
    "missing": "own_embedding",
    "common_init": False,
}
# Of three rounds on the digits with them, by the code of that time.
FINGERPRINT = {"head": 68.08613, "high": 23.21798, "soft": 0.8010668, "state": 1238.138}


def after(rounds: int, **hp):
    spec = papers.fedmps("digits", "fedmps", clients=4, seed=3, hp=hp)
    return next(islice(federation(spec).rounds(), rounds - 1, None))


def test_the_reference_variant_fills_every_switch():
    released, paper = HP(variant="reference"), HP()
    for name, value in REFERENCE.items():
        assert getattr(released, name) == value
        assert getattr(paper, name) != value, name
    mixed = HP(variant="reference", supcon_scale="paper")
    assert (mixed.supcon_scale, mixed.collection) == ("paper", "train")


def test_the_paper_variant_is_what_is_printed_or_where_silent_released():
    paper = HP()
    assert (paper.supcon_scale, paper.soft_mode) == ("paper", "prob_mean")  # (3), (8)
    assert (paper.server_optimiser, paper.collection) == ("sgd", "eval")  # IV-A5, III-C
    assert (paper.missing, paper.common_init) == ("own_embedding", False)  # silent


def test_the_reference_variant_has_the_bits_of_the_former_defaults_but_for_eq_8():
    now = after(3, variant="reference", soft_mode="prob_mean")
    before = after(3, **BEFORE)
    for a, b in ((now.server.head, before.server.head), (now.mine[0], before.mine[0])):
        assert all(torch.equal(a[name], b[name]) for name in a)
    for level in ("low", "high", "soft"):
        a, b = (getattr(run.server, level) for run in (now, before))
        assert torch.equal(a.mean, b.mean)
        assert torch.equal(a.count, b.count)
    paper = after(3)
    assert not torch.equal(paper.server.high.mean, now.server.high.mean)


def test_the_reference_variant_has_the_numbers_of_the_former_code_but_for_eq_8():
    now = after(3, variant="reference", soft_mode="prob_mean")
    found = {
        "head": sum(float(w.double().abs().sum()) for w in now.server.head.values()),
        "high": float(now.server.high.mean.double().abs().sum()),
        "soft": float(now.server.soft.mean.double().square().sum()),
        "state": sum(float(w.double().abs().sum()) for w in now.mine[0].values()),
    }
    assert found == pytest.approx(FINGERPRINT, rel=1e-4)


def entropy_gradient(w: dict, p: np.ndarray, y: np.ndarray) -> dict:
    """Gradient of Eq. (7) for a head of two linear layers with a ReLU between."""
    grads = {name: np.zeros_like(value) for name, value in w.items()}
    for x, label in zip(p, y, strict=True):
        hidden = w["0.weight"] @ x + w["0.bias"]
        active = np.maximum(hidden, 0)
        logits = w["2.weight"] @ active + w["2.bias"]
        out = np.exp(logits - logits.max())
        out /= out.sum()
        out[label] -= 1
        back = (w["2.weight"].T @ out) * (hidden > 0)
        for name, outer, inner in (("2", out, active), ("0", back, x)):
            grads[f"{name}.weight"] += np.outer(outer, inner) / len(y)
            grads[f"{name}.bias"] += outer / len(y)
    return grads


@pytest.mark.parametrize(
    ("hp", "rate"), [({}, 0.01), ({"server_learning_rate": 0.3}, 0.3)]
)
def test_the_printed_server_is_sgd_at_a_hundredth_with_momentum_by_loops(hp, rate):
    """IV-A5: SGD, 0.01 and 0.5; global batch 4, T = 6."""
    ctx = toy_context(fedmps.METHOD, 3, net="digits_cnn", classes=C, **hp)
    ctx = replace(ctx, round=2)
    head = ctx.net.head_state(ctx.net.init(generator(0, "head")))
    mean = torch.randn(3, C, D, generator=generator(0, "p"))
    count = torch.tensor([[3, 0, 5, 1], [1, 2, 0, 0], [0, 0, 4, 2]])
    found = fedmps.train_head(ctx, head, Protos(mean, count))

    owned = [(k, i) for k in range(C) for i in range(3) if count[i, k]]
    owned.sort(key=lambda at: (at[0], float(mean[at[1], at[0]].sum())))  # the set
    label = np.array([k for k, _ in owned])
    p = np.stack([mean[i, k].numpy() for k, i in owned]).astype(float)
    w = {name: value.numpy().astype(float) for name, value in head.items()}
    velocity = {name: np.zeros_like(value) for name, value in w.items()}
    shuffle = ctx.random("server batches")
    for _ in range(6):
        order = torch.randperm(len(label), generator=shuffle).numpy()
        for start in range(0, len(label), 4):
            rows = order[start : start + 4]
            for name, grad in entropy_gradient(w, p[rows], label[rows]).items():
                velocity[name] = 0.5 * velocity[name] + grad
                w[name] = w[name] - rate * velocity[name]
    for name, value in w.items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-4, atol=1e-6)


def test_the_rate_of_the_server_follows_its_optimiser():
    """Adam's first step is its rate in every weight, whatever the gradient."""
    one = {"server_epochs": 1, "server_batch_size": 64}
    ctx = toy_context(
        fedmps.METHOD, 1, net="digits_cnn", classes=C, variant="reference", **one
    )
    head = ctx.net.head_state(ctx.net.init(generator(0, "head")))
    mean = torch.randn(1, C, D, generator=generator(0, "p"))
    found = fedmps.train_head(ctx, head, Protos(mean, torch.ones(1, C).long()))
    moved = (found["2.bias"] - head["2.bias"]).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-3), rtol=1e-3, atol=0)
