"""Every equation against an independent computation in plain Python and numpy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from fedlib.core import losses, protos
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.methods import fedmps
from tests.conftest import toy_context

B, D, C = 4, 5, 3
Y = torch.tensor([0, 2, 0, 1])


def unit(*shape: int, name: str = "z") -> torch.Tensor:
    drawn = torch.randn(*shape, generator=generator(1, name), dtype=torch.float64)
    return F.normalize(drawn, dim=-1)


def supcon_loops(v: np.ndarray, labels: list[int], tau: float) -> float:
    """Eq. (3) with one loop per index, for vectors that may lack positives."""
    anchors = []
    for i in range(len(v)):
        others = [a for a in range(len(v)) if a != i]
        positives = [r for r in others if labels[r] == labels[i]]
        if not positives:
            continue
        denominator = sum(math.exp(float(v[i] @ v[a]) / tau) for a in others)
        inner = 0.0
        for r in positives:
            inner += math.log(math.exp(float(v[i] @ v[r]) / tau) / denominator)
        anchors.append(-inner / len(positives))
    return sum(anchors) / len(anchors) if anchors else 0.0


@pytest.mark.parametrize(
    ("scale", "factor"), [("paper", 1.0), ("released", 7.142857142857143)]
)
def test_contrast_equals_the_double_loop_at_both_scales(scale, factor):
    z, bar = unit(B, D), unit(C, D, name="bar")
    level = Protos(bar, torch.ones(C, dtype=torch.int64))
    found = fedmps.contrast(z, Y, level, fedmps.HP(supcon_scale=scale))
    v = np.concatenate([z.numpy(), bar.numpy()[Y.numpy()]])
    wanted = factor * supcon_loops(v, [*Y.tolist(), *Y.tolist()], 0.5)
    assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_a_class_without_prototype_uses_the_sample_or_is_dropped():
    z, bar = unit(B, D), unit(C, D, name="bar")
    level = Protos(bar, torch.tensor([3, 0, 2]))  # nobody has class 1
    v = z.numpy()
    stand_in = np.where((Y == 1).numpy()[:, None], v, bar.numpy()[Y.numpy()])
    labels = Y.tolist()
    own = fedmps.contrast(z, Y, level, fedmps.HP(supcon_scale="paper"))
    wanted = supcon_loops(np.concatenate([v, stand_in]), labels + labels, 0.5)
    assert float(own) == pytest.approx(wanted, rel=1e-12)
    dropped = fedmps.contrast(
        z, Y, level, fedmps.HP(supcon_scale="paper", missing="drop")
    )
    kept = [i for i, y in enumerate(labels) if y != 1]
    wanted = supcon_loops(
        np.concatenate([v, bar.numpy()[Y.numpy()][kept]]),
        labels + [labels[i] for i in kept],
        0.5,
    )
    assert float(dropped) == pytest.approx(wanted, rel=1e-12)


def test_what_stands_in_for_a_missing_prototype_is_a_constant():
    """By differences of the loops, in which the stand-in stays where it is."""
    z, bar = unit(B, D), unit(C, D, name="bar")
    level = Protos(bar, torch.tensor([3, 0, 2]))  # nobody has class 1
    stand_in = np.where((Y == 1).numpy()[:, None], z.numpy(), bar.numpy()[Y.numpy()])
    labels, step = Y.tolist(), 1e-6

    def at(v: np.ndarray) -> float:
        return supcon_loops(np.concatenate([v, stand_in]), labels + labels, 0.5)

    given = z.clone().requires_grad_()
    fedmps.contrast(given, Y, level, fedmps.HP(supcon_scale="paper")).backward()
    for i, j in np.ndindex(B, D):
        moved = np.zeros((B, D))
        moved[i, j] = step
        slope = (at(z.numpy() + moved) - at(z.numpy() - moved)) / (2 * step)
        assert float(given.grad[i, j]) == pytest.approx(slope, abs=1e-8)


def test_supcon_leaves_out_anchors_without_positives():
    """Case A08: labels 0, 1, 1, 3; and all labels distinct gives 0, gradient 0."""
    v = unit(4, D).requires_grad_()
    labels = torch.tensor([0, 1, 1, 3])
    found = losses.supcon(v, labels, 0.8)
    wanted = supcon_loops(v.detach().numpy(), labels.tolist(), 0.8)
    assert float(found.detach()) == pytest.approx(wanted, rel=1e-12)
    alone = losses.supcon(v, torch.arange(4), 0.8)
    (gradient,) = torch.autograd.grad(alone, v)
    assert float(alone.detach()) == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_gradients_in_float64():
    z = unit(B, D).requires_grad_()
    level = Protos(unit(C, D, name="bar"), torch.ones(C, dtype=torch.int64))
    soft = Protos(
        torch.softmax(unit(C, C, name="q"), -1), torch.ones(C, dtype=torch.int64)
    )
    logits = unit(B, C, name="logits").requires_grad_()
    hp = fedmps.HP()
    assert torch.autograd.gradcheck(lambda z: fedmps.contrast(z, Y, level, hp), z)
    assert torch.autograd.gradcheck(lambda x: fedmps.soft_term(x, Y, soft, hp), logits)
    assert torch.autograd.gradcheck(lambda z: protos.pull(z, Y, level), z)


def test_soft_term_is_the_kl_divergence():
    """Eq. (5) and (6) by numpy; a class without soft label adds 0 to the mean."""
    logits = unit(B, C, name="logits")
    teacher = torch.softmax(3 * unit(C, C, name="q"), -1)
    teacher[2] = torch.tensor([1.0, 0.0, 0.0])  # 0 log 0 = 0
    soft = Protos(teacher, torch.tensor([1, 0, 4]))
    tau = 5.0
    wanted = 0.0
    for b in range(B):
        if soft.count[Y[b]] == 0:
            continue
        e = np.exp(logits[b].numpy() / tau)
        q, bar = e / e.sum(), teacher[Y[b]].numpy()
        wanted += sum(
            p * (math.log(p) - math.log(r))
            for p, r in zip(bar, q, strict=True)
            if p > 0
        )
    found = fedmps.soft_term(logits, Y, soft, fedmps.HP(soft_temperature=tau))
    assert float(found) == pytest.approx(wanted / B, rel=1e-12)


def test_kl_is_zero_when_the_labels_agree():
    logits = unit(B, C)
    q = torch.softmax(logits / 2, -1)
    torch.testing.assert_close(
        losses.kl_to_teacher(q, logits, 2.0), torch.zeros(B, dtype=torch.float64)
    )


def test_multi_level_weights():
    hp = fedmps.HP(low_weight=0.2, high_weight=3.0)
    assert float(
        fedmps.multi_level(torch.tensor(5.0), torch.tensor(7.0), hp)
    ) == pytest.approx(22.0)


LOCAL = Protos(
    torch.tensor([[[1.0, 2.0], [0, 0], [4.0, 4.0]], [[3.0, 0.0], [5.0, 1.0], [0, 0]]]),
    torch.tensor([[10, 0, 1], [30, 2, 0]]),
)


def test_merging_by_hand():
    """Class 0 has two owners (10 and 30 samples), 1 and 2 one each."""
    uniform = protos.merge(LOCAL)
    assert uniform.mean.tolist() == [[2.0, 1.0], [5.0, 1.0], [4.0, 4.0]]
    assert uniform.count.tolist() == [40, 2, 1]
    weighted = protos.merge(LOCAL, "samples")
    assert weighted.mean.tolist() == [[2.5, 0.5], [5.0, 1.0], [4.0, 4.0]]


def test_merging_by_samples_equals_pooled_class_means():
    z = unit(2, 6, D)
    y = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 1, 0, 0, 0]])
    local = protos.from_sums(*protos.class_sums(z, y, 4))
    merged = protos.merge(local, "samples")
    flat, labels = z.flatten(0, 1), y.flatten()
    for c in range(3):
        torch.testing.assert_close(merged.mean[c], flat[labels == c].mean(0))
    assert merged.count.tolist() == [6, 5, 1, 0]
    assert not merged.known[3]


def test_merging_an_absent_class_and_filling_it():
    nobody = Protos(torch.zeros(2, 3, 2), torch.tensor([[1, 0, 0], [1, 0, 0]]))
    merged = protos.merge(nobody)
    assert merged.known.tolist() == [True, False, False]
    kept = protos.fill(
        merged,
        Protos(torch.tensor([[1.0, 1], [1, 1], [0, 0]]), torch.tensor([7, 7, 0])),
    )
    assert kept.mean.tolist() == [[0, 0], [1, 1], [0, 0]]
    assert kept.count.tolist() == [2, 7, 0]


def test_pull_by_hand():
    """Cases A05 and A06: a class without prototype adds 0, others their distance."""
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    known = Protos(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([4, 0]))
    term = protos.pull(z, torch.tensor([0, 1]), known)
    assert float(term.detach()) == pytest.approx(1.0 / 4)  # (1 + 0 + 0 + 0) / (2 * 2)
    (gradient,) = torch.autograd.grad(term, z)
    assert gradient.tolist() == [[0.5, 0.0], [0.0, 0.0]]


def test_nearest_scores_absent_classes_as_impossible():
    known = Protos(
        torch.tensor([[0.0, 0.0], [9.0, 9.0], [1.0, 1.0]]), torch.tensor([1, 0, 1])
    )
    score = protos.nearest(torch.tensor([[0.9, 0.9], [9.0, 9.0]]), known)
    assert score.argmax(1).tolist() == [2, 2]
    assert score[0].tolist() == pytest.approx([-0.81, float("-inf"), -0.01])


@pytest.mark.parametrize("mode", ["prob_mean", "logit_mean"])
def test_server_soft_labels(mode):
    """Eq. (8), and the released code's mean of logits, by numpy and loops."""
    settings = {"soft_mode": mode, "soft_temperature": 2.0}
    ctx = toy_context(fedmps.METHOD, 2, net="digits_cnn", classes=C, **settings)
    head = ctx.net.head_state(ctx.net.init(generator(0, "head")))
    mean = torch.randn(2, C, 32, generator=generator(0, "p"))
    high = Protos(mean, torch.tensor([[3, 0, 5], [1, 0, 0]]))
    found = fedmps.soft_labels(ctx, head, high)

    w = {k: v.numpy().astype(float) for k, v in head.items()}
    hidden = np.maximum(mean.numpy() @ w["0.weight"].T + w["0.bias"], 0)
    logits = hidden @ w["2.weight"].T + w["2.bias"]

    def softmax(x):
        return np.exp(x / 2.0) / np.exp(x / 2.0).sum()

    if mode == "prob_mean":
        first = (softmax(logits[0, 0]) + softmax(logits[1, 0])) / 2
    else:
        first = softmax((logits[0, 0] + logits[1, 0]) / 2)
    np.testing.assert_allclose(found.mean[0].numpy(), first, rtol=1e-5)
    np.testing.assert_allclose(found.mean[2].numpy(), softmax(logits[0, 2]), rtol=1e-5)
    assert found.known.tolist() == [True, False, True]
    assert found.mean[1].tolist() == [0, 0, 0]


def test_losses_are_the_same_under_vmap():
    z = unit(3, B, D)
    level = Protos(unit(C, D, name="bar"), torch.tensor([1, 0, 1]))
    hp = fedmps.HP()
    y = torch.stack([Y, Y.flip(0), Y])
    together = vmap(lambda z, y: fedmps.contrast(z, y, level, hp))(z, y)
    apart = torch.stack([fedmps.contrast(z[k], y[k], level, hp) for k in range(3)])
    torch.testing.assert_close(together, apart)
