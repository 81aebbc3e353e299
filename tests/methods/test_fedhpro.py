"""FedHPro: each equation by plain loops from the paper, and each released variant."""

import math
from dataclasses import replace
from itertools import islice
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlib import registry
from fedlib.blocks import creff, descent, hyperprotos, siamese
from fedlib.blocks.hyperprotos import HyperProtos
from fedlib.core import heads, protos
from fedlib.core.embed import class_means
from fedlib.core.local import Losses
from fedlib.core.messages import Model
from fedlib.core.method import Context, rounds
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.training import Training
from fedlib.core.tree import flatten, take
from fedlib.methods import fedhpro
from fedlib.methods.fedhpro import HP, METHOD
from tests.conftest import toy_context, toy_shards

B, D, C, COUNT = 4, 5, 3, 2
Y = torch.tensor([0, 2, 0, 1])
ALL = torch.ones(C, dtype=torch.bool)
SIZES = [24, 17, 9]


def drawn(*shape: int, name: str = "z") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(1, name), dtype=torch.float64)


def hyper(known: torch.Tensor = ALL) -> HyperProtos:
    return HyperProtos(drawn(C, COUNT, D, name="s"), known)


def context(clients: int, **hp) -> Context:
    """Return a context in round 1; names of its own fields may be changed, too."""
    own = {k: hp.pop(k) for k in ("training", "round") if k in hp}
    ctx = toy_context(METHOD, clients, **hp)
    return replace(ctx, **({"round": 1} | own))


def play(count: int, sizes=SIZES, **hp):
    ctx = context(len(sizes), **hp)
    return list(islice(rounds(METHOD, ctx, toy_shards(sizes)), count))


# The paper's equations, read aloud ------------------------------------------------


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def similarity(z: np.ndarray, s: np.ndarray) -> float:
    """Eq. (11)."""
    return sum(cosine(z, one) for one in s) / len(s)


def hpcl(z, y, s, margin: float, tau: float) -> float:
    """Eq. (12), mean over the batch."""
    total = 0.0
    for b in range(len(z)):
        top = sum(
            math.exp((similarity(z[b], s[j]) + margin) / tau)
            for j in range(len(s))
            if j != y[b]
        )
        total += math.log(1 + top / math.exp(similarity(z[b], s[y[b]]) / tau))
    return total / len(z)


def huber(u: float) -> float:
    return 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5


def hpal(z, y, s, unit: bool = False) -> float:
    """Eq. (13), mean over the batch; with ``unit`` of vectors of length 1."""
    total = 0.0
    for b in range(len(z)):
        middle = sum(s[y[b]]) / len(s[y[b]])
        if unit:
            z[b], middle = (v / math.sqrt(sum(v * v)) for v in (z[b], middle))
        total += sum(huber(z[b][q] - middle[q]) for q in range(len(z[b])))
    return total / len(z)


def test_conventional_prototypes():
    """Eq. (4): class means of each client; over clients every owner counts once."""
    ctx = context(2, contrast_with="prototypes")
    shards = toy_shards([6, 40])
    server, mine = METHOD.init(ctx)
    mine, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    merged, _ = METHOD.merge(ctx, server, up)
    for c in range(4):
        means = []
        for k, rows in enumerate(shards.index):
            chosen = rows[shards.y[rows] == c]
            if len(chosen):
                state = {name: v[k] for name, v in mine.state.items()}
                means.append(ctx.net(state, shards.x[chosen]).high.mean(0))
                torch.testing.assert_close(up.protos.mean[k, c], means[-1])
        wanted = torch.stack(means).mean(0)
        torch.testing.assert_close(merged.protos.mean[c], wanted)


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_class_gradients_equal_autograd(net):
    """Eq. (5): one backward for each sample, with the client's own head."""
    ctx = context(2, net=net, common_init=False)
    shards = toy_shards([7, 12])
    state = ctx.init_clients(False)
    found, none = fedhpro.class_gradients(ctx, state, shards)
    assert none.mean.shape == (2, 4, 0)
    for k, rows in enumerate(shards.index):
        one = {name: v[k] for name, v in state.items()}
        for c in range(4):
            each = []
            for i in rows[shards.y[rows] == c]:
                z = ctx.net(one, shards.x[i : i + 1]).high.detach().requires_grad_()
                logits = ctx.net.head(ctx.net.head_state(one), z)
                entropy = F.cross_entropy(logits, torch.tensor([c]))
                each.append(torch.autograd.grad(entropy, z)[0][0])
            assert int(found.count[k, c]) == len(each)
            wanted = sum(each) / max(1, len(each)) if each else torch.zeros(32)
            torch.testing.assert_close(found.mean[k, c], wanted, rtol=1e-4, atol=1e-6)


def test_merging_gradients_and_their_mismatch():
    """Eq. (6), (7) and (8) as a round meets them: owners count once each."""
    ctx = context(3, hyper="frozen")
    server, mine = METHOD.init(ctx)
    down = METHOD.broadcast(ctx, server)
    _, up, _ = METHOD.client(ctx, down, mine, toy_shards(SIZES))
    count = up.gradients.count.clone()
    count[1:, 2] = 0  # class 2 has one owner
    count[:, 3] = 0  # class 3 has none
    up = up._replace(gradients=Protos(up.gradients.mean, count))
    merged, terms = METHOD.merge(ctx, server, up)
    weight, bias = (v.double() for v in heads.linear(ctx.net, merged.model.params))
    distance = []
    for c in range(3):
        g = np.mean(
            [up.gradients.mean[k, c].numpy() for k in range(3) if count[k, c]], 0
        )
        each = []
        for s in server.hyper.points[c].double():
            p = softmax((weight @ s + bias).numpy())
            p[c] -= 1
            each.append(weight.numpy().T @ p)
        distance.append(1 - cosine(g.astype(float), np.mean(each, 0)))
    assert float(terms["mismatch"]) == pytest.approx(np.mean(distance), rel=1e-6)
    assert merged.hyper.known.tolist() == [True, True, True, False]


def test_hyper_gradients_equal_autograd():
    """Eq. (7)."""
    s, weight, bias = drawn(C, COUNT, D, name="s"), drawn(C, D, name="w"), drawn(C)
    found = fedhpro.hyper_gradients(s, weight, bias)
    for c in range(C):
        total = torch.zeros(D, dtype=torch.float64)
        for i in range(COUNT):
            one = s[c, i].clone().requires_grad_()
            virtual = F.cross_entropy(weight @ one + bias, torch.tensor(c))
            total += torch.autograd.grad(virtual, one)[0]
        torch.testing.assert_close(found[c], total / COUNT)


def test_matching_equals_double_backward():
    """Eq. (9): M plain steps on the sum over classes, derived twice by autograd."""
    hp = HP(hyper_steps=4, hyper_learning_rate=0.7)
    weight, bias = drawn(C, D, name="w"), drawn(C, name="b")
    wanted = Protos(drawn(C, D, name="g"), torch.tensor([5, 0, 2]))
    found, terms = fedhpro.match(hyper(), wanted, weight, bias, hp)
    s = hyper().points.clone().requires_grad_()
    history = []
    for _ in range(5):
        total = 0
        for c in (0, 2):  # nobody holds class 1
            label = torch.full((COUNT,), c)
            virtual = F.cross_entropy(s[c] @ weight.T + bias, label, reduction="sum")
            (g,) = torch.autograd.grad(virtual, s, create_graph=True)
            made = g[c].mean(0)
            total = total + 1 - F.cosine_similarity(made, wanted.mean[c], dim=0)
        history.append(float(total.detach()) / 2)
        (slope,) = torch.autograd.grad(total, s)
        moved, s = s, (s - 0.7 * slope).detach().requires_grad_()
    torch.testing.assert_close(found.points, moved.detach())
    assert torch.equal(found.points[1], hyper().points[1])
    assert float(terms["mismatch_before"]) == pytest.approx(history[0])
    assert float(terms["mismatch"]) == pytest.approx(history[4])
    assert history[4] < history[0]


def test_margin_by_hand():
    """Eq. (10): (0, 0) and (3, 4) are 5 apart, counted in both orders, over (C-1)^2."""
    mean = torch.tensor([[[0.0, 0], [3, 4], [9, 9]]] * 3)
    count = torch.tensor([[1, 7, 0], [2, 0, 0], [1, 1, 1]])
    found = fedhpro.margins(Protos(mean, count), "l2_exp")
    third = 2 * (5 + math.sqrt(162) + math.sqrt(61)) / 4
    assert found.tolist() == pytest.approx([2 * 5 / 4, 0.0, third])
    inner = fedhpro.margins(Protos(mean, count), "dot_additive")
    assert inner.tolist() == pytest.approx([0.0, 0.0, 2 * 63 / 4])


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_contrast_equals_the_formula(margin):
    """Eq. (11) and (12)."""
    z, s = drawn(B, D), hyper()
    hp = HP(temperature=0.2)
    found = fedhpro.contrast(z, Y, s, torch.tensor(margin), hp)
    wanted = hpcl(z.numpy(), Y.tolist(), s.points.numpy(), margin, 0.2)
    assert float(found) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("kind", ["raw_sum", "norm_sum"])
def test_align_equals_the_formula(kind):
    """Eq. (13), raw and of unit vectors; the draw has elements on both sides of 1."""
    z, s = 2 * drawn(B, D), hyper()
    away = (z - s.centre[Y]).abs()
    assert (away < 1).any()
    assert (away > 1).any()
    found = fedhpro.align(z, Y, s, HP(hpal=kind))
    wanted = hpal(z.numpy().copy(), Y.tolist(), s.points.numpy(), kind == "norm_sum")
    assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_alignment_of_unit_vectors_is_one_minus_the_cosine():
    """The default; the length of an embedding does not matter to it."""
    z, s = drawn(B, D).abs(), hyper()
    s = s._replace(points=s.points.abs())  # so that no coordinate is 1 away
    wanted = (1 - F.cosine_similarity(z, s.centre[Y])).mean()
    for scale in (0.1, 1.0, 30.0):
        found = fedhpro.align(scale * z, Y, s, HP())
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", ["raw_sum", "norm_sum"])
def test_a_step_minimises_the_sum_of_the_three_terms(kind):
    """Eq. (14): one batch, one step of SGD, with weights on the two terms."""
    training = Training(learning_rate=0.1, momentum=0.0, batch_size=8)
    own = {"contrast_weight": 0.5, "align_weight": 0.1, "temperature": 0.5}
    ctx = context(1, training=training, hpal=kind, **own)
    shards = toy_shards([8])
    server, mine = METHOD.init(ctx)
    after, _, terms = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    state = {k: v[0].clone().requires_grad_() for k, v in mine.state.items()}
    z = ctx.net(state, shards.x).high
    means = [z[shards.y == c].mean(0) for c in shards.y.unique()]
    pairs = sum(float((a - b).detach().norm()) for a in means for b in means)
    s, tau = server.hyper.points, 0.5
    cos = F.cosine_similarity(z[:, None, None], s[None], dim=-1).mean(2)
    top = ((cos + pairs / 9) / tau).exp()
    own_class = F.one_hot(shards.y, 4).bool()
    negative = top.masked_fill(own_class, 0).sum(1)
    near = (1 + negative / (cos[own_class] / tau).exp()).log().mean()
    ends = (z, s.mean(1)[shards.y])
    if kind == "norm_sum":
        ends = tuple(F.normalize(end, dim=1) for end in ends)
    home = F.smooth_l1_loss(*ends, reduction="sum") / 8
    entropy = F.cross_entropy(ctx.net.head(ctx.net.head_state(state), z), shards.y)
    wanted = {"supervised": entropy, "contrast": near, "align": home}
    for name, value in wanted.items():
        assert float(terms[name]) == pytest.approx(float(value.detach()), rel=1e-4)
    assert float(terms["margin"]) == pytest.approx(pairs / 9, rel=1e-5)
    slopes = torch.autograd.grad(
        entropy + 0.5 * near + 0.1 * home, list(state.values())
    )
    for (name, value), slope in zip(state.items(), slopes, strict=True):
        stepped = (value - 0.1 * slope).detach()
        torch.testing.assert_close(after.state[name][0], stepped, rtol=1e-4, atol=1e-5)


# Derivatives ----------------------------------------------------------------------


@pytest.mark.parametrize("margin", ["l2_exp", "none", "dot_additive"])
@pytest.mark.parametrize("reduction", ["mean", "mean_div_B"])
def test_contrast_gradient(margin, reduction):
    hp = HP(margin=margin, hpcl_reduction=reduction, temperature=0.5)
    z, d = drawn(B, D).requires_grad_(), torch.tensor(0.4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: fedhpro.contrast(z, Y, hyper(), d, hp), z)


@pytest.mark.parametrize("hpal", get_args(fedhpro.Alignment))
def test_align_gradient(hpal):
    z = drawn(B, D).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda z: fedhpro.align(z, Y, hyper(), HP(hpal=hpal)), z
    )


@pytest.mark.parametrize("metric", ["cosine", "coordwise_eps", "mse"])
def test_matching_gradient(metric):
    """Through the closed form of the virtual gradient."""
    weight, bias, wanted = drawn(C, D, name="w"), drawn(C), drawn(C, D, name="g")

    def apart(s):
        made = fedhpro.hyper_gradients(s, weight, bias)
        return fedhpro.mismatch(wanted, made, metric)

    assert torch.autograd.gradcheck(apart, hyper().points.requires_grad_())


def test_losses_are_the_same_under_vmap():
    z, y = drawn(3, B, D), torch.stack([Y, Y.flip(0), Y])
    d = torch.tensor([0.0, 0.5, 40.0], dtype=torch.float64)
    s, hp = hyper(), HP()

    def both(z, y, d):
        return fedhpro.contrast(z, y, s, d, hp), fedhpro.align(z, y, s, hp)

    together = torch.func.vmap(both)(z, y, d)
    for k in range(3):
        for one, other in zip(together, both(z[k], y[k], d[k]), strict=True):
            torch.testing.assert_close(one[k], other)


# Edge cases -----------------------------------------------------------------------


@pytest.mark.parametrize("margin", ["l2_exp", "dot_additive"])
def test_a_large_margin_stays_finite(margin):
    """At tau = 0.05 a margin of 300 is e^6000; the term goes on linearly."""
    z = drawn(B, D).float().requires_grad_()
    s = HyperProtos(hyper().points.float(), ALL)
    hp = HP(margin=margin)
    term = fedhpro.contrast(z, Y, s, torch.tensor(300.0), hp)
    (slope,) = torch.autograd.grad(term, z)
    assert torch.isfinite(term)
    assert torch.isfinite(slope).all()
    if margin == "l2_exp":
        more = fedhpro.contrast(z, Y, s, torch.tensor(301.0), hp)
        assert float((more - term).detach()) == pytest.approx(1 / 0.05, rel=1e-3)


def test_a_negative_inner_product_counts_as_no_margin():
    z = drawn(B, D)
    hp = HP(margin="dot_additive")
    zero = torch.tensor(0.0, dtype=torch.float64)
    none = fedhpro.contrast(z, Y, hyper(), zero, HP(margin="none"))
    for value in (0.0, -3.0):
        found = fedhpro.contrast(z, Y, hyper(), zero + value, hp)
        torch.testing.assert_close(found, none)


def test_a_zero_embedding_has_finite_terms_and_no_pull_along_the_sphere():
    z = torch.zeros(1, D, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0])
    for term in (
        fedhpro.contrast(z, y, hyper(), torch.tensor(0.1), HP()),
        fedhpro.align(z, y, hyper(), HP(hpal="norm_mean")),
    ):
        (slope,) = torch.autograd.grad(term, z)
        assert torch.isfinite(term)
        assert slope.abs().max() == 0


def test_masked_classes_take_part_in_no_term():
    """Class 1 is unknown: no negative, and its own sample adds 0 to the mean."""
    z, s = drawn(B, D), hyper(torch.tensor([True, False, True]))
    hp = HP(temperature=0.2, hpal="raw_sum")
    found = fedhpro.contrast(z, Y, s, torch.tensor(0.3), hp)
    kept, pair = z[:3].numpy(), s.points[[0, 2]].numpy()
    wanted = hpcl(kept, [0, 1, 0], pair, 0.3, 0.2) * 3 / 4
    assert float(found) == pytest.approx(wanted, rel=1e-10)
    home = fedhpro.align(z, Y, s, hp)
    wanted = hpal(kept, Y.tolist()[:3], s.points.numpy()) * 3 / 4
    assert float(home) == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("mask", [False, True])
def test_classes_nobody_has_held_yet(mask):
    first, second = play(2, mask_unseen_classes=mask)
    assert bool((first.terms["contrast"] == 0).all()) is mask
    assert bool((first.terms["align"] == 0).all()) is mask
    assert (second.terms["contrast"] > 0).all()


def test_only_one_class_in_the_mask_leaves_nothing_to_contrast():
    only = hyper(torch.tensor([True, False, False]))
    z = drawn(B, D).requires_grad_()
    y = torch.zeros_like(Y)
    term = fedhpro.contrast(z, y, only, torch.tensor(0.0), HP())
    (slope,) = torch.autograd.grad(term, z)
    assert float(term.detach()) == 0
    assert slope.abs().max() == 0


def test_an_absent_class_keeps_its_hyper_prototypes():
    shards = toy_shards([24, 24])
    shards = shards._replace(y=shards.y % 3)  # class 3 is absent
    ctx = context(2)
    last = list(islice(rounds(METHOD, ctx, shards), 2))[-1]
    begun = fedhpro.first_hyper(ctx).points
    assert torch.equal(last.server.hyper.points[3], begun[3])
    assert not torch.equal(last.server.hyper.points[0], begun[0])
    assert last.server.hyper.known.tolist() == [True, True, True, False]
    nobody = protos.empty(4, 32)._replace(count=torch.tensor([0, 0, 0, 1]))
    weight, bias = heads.linear(ctx.net, last.server.model.params)
    later, _ = fedhpro.match(last.server.hyper, nobody, weight, bias, HP())
    assert later.known.all()  # a class once held stays known


def test_saturated_heads_are_left_out_or_resolved():
    """Gradients of 1e-9 still have a direction; zero gradients leave a class alone."""
    weight, bias = 40 * drawn(C, D, name="w"), torch.zeros(C, dtype=torch.float64)
    s = HyperProtos(drawn(C, COUNT, D, name="s").float(), ALL)
    tiny = 1e-9 * drawn(C, D, name="g")
    tiny[1] = 0
    wanted = Protos(tiny.float(), torch.tensor([1, 1, 1]))
    found, terms = fedhpro.match(s, wanted, weight, bias, HP())
    assert torch.isfinite(found.points).all()
    assert torch.equal(found.points[1], s.points[1])
    assert 0 <= float(terms["mismatch"]) <= 2
    nothing = Protos(torch.zeros(C, D), torch.tensor([1, 1, 1]))
    found, terms = fedhpro.match(s, nothing, weight, bias, HP())
    assert torch.equal(found.points, s.points)
    assert terms["mismatch"].isnan()


def test_one_class_and_empty_clients():
    shards = toy_shards([8, 0, 12])
    shards.y[:8] = 2
    ctx = context(3)
    first = next(rounds(METHOD, ctx, shards))
    assert first.terms["margin"].tolist()[:2] == [0, 0]
    assert first.up.gradients.count[0].tolist() == [0, 0, 8, 0]
    assert first.up.gradients.count[1].tolist() == [0, 0, 0, 0]
    assert float(first.up.gradients.mean[1].abs().max()) == 0


@pytest.mark.parametrize("net", ["digits_cnn", "fashion_cnn"])
def test_only_a_linear_head_is_taken(net):
    ctx = context(2, net=net)
    if net == "digits_cnn":
        with pytest.raises(ValueError, match=r"'digits_cnn' is Linear, ReLU, Linear"):
            METHOD.init(ctx)
    else:
        METHOD.init(ctx)


# The released variants ------------------------------------------------------------


def test_reference_fills_in_released_values():
    released = HP(variant="reference")
    for name, value in fedhpro.REFERENCE.items():
        assert getattr(released, name) == value
        assert getattr(HP(), name) != value
    mixed = HP(variant="reference", hpal="raw_sum")
    assert mixed.hpal == "raw_sum"
    assert mixed.margin == "none"


@pytest.mark.parametrize("value", [0, -3])
def test_numbers_of_gradient_samples(value):
    with pytest.raises(ValueError, match="expected 'all' or at least 1"):
        HP(grad_samples=value)


def test_coordinatewise_mismatch_by_hand():
    """0 for equal signs, 2 for unequal ones, 1 where a coordinate vanishes."""
    wanted = torch.tensor([[1.0, -2.0, 0.5, 0.0, 1e-5], [1, 1, 1, 1, 1]])
    made = torch.tensor([[3.0, -0.1, -4.0, 1.0, 1e-5], [2, 2, 2, 2, 2]])
    found = fedhpro.mismatch(wanted.double(), made.double(), "coordwise_eps")
    assert found.tolist() == pytest.approx([4.0, 0.0], abs=2e-3)
    square = fedhpro.mismatch(wanted[1:], made[1:], "mse")
    assert square.tolist() == [5.0]


def test_scales_of_the_alignment():
    """Unit vectors at right angles: 1/2 each in two of 256 coordinates."""
    z = torch.zeros(2, 256)
    z[:, 0] = 7.0
    s = torch.zeros(C, COUNT, 256)
    s[..., 1] = 3.0
    known = HyperProtos(s, ALL)
    y = torch.tensor([0, 1])
    raw = fedhpro.align(z, y, known, HP(hpal="raw_sum"))
    assert float(raw) == pytest.approx(6.5 + 2.5)
    unit = fedhpro.align(z, y, known, HP(hpal="norm_sum"))
    assert float(unit) == pytest.approx(1)
    mean = fedhpro.align(z, y, known, HP(hpal="raw_mean"))
    assert float(mean) == pytest.approx(9 / 256)
    norm = fedhpro.align(z, y, known, HP(hpal="norm_mean"))
    assert float(norm) == pytest.approx(1 / 256)


def test_alignment_by_mean_square_is_fedprotos_pull():
    z = torch.randn(5, 7, generator=generator(1, "z"))
    y = torch.tensor([0, 2, 2, 1, 0])
    points = torch.randn(3, 4, 7, generator=generator(1, "points"))
    known = HyperProtos(points, torch.tensor([True, False, True]))
    found = fedhpro.align(z, y, known, HP(hpal="mse"))
    wanted = protos.pull(z, y, Protos(points.mean(1), torch.tensor([2, 0, 9])))
    torch.testing.assert_close(found, wanted)


def test_contrast_divided_by_the_batch_again():
    z, d = drawn(B, D), torch.tensor(0.2)
    once = fedhpro.contrast(z, Y, hyper(), d, HP())
    twice = fedhpro.contrast(z, Y, hyper(), d, HP(hpcl_reduction="mean_div_B"))
    assert float(twice) == pytest.approx(float(once) / B)


def test_additive_margin_stands_outside_the_exponential():
    z, s = drawn(B, D).numpy(), hyper().points.numpy()
    total = 0.0
    for b, c in enumerate(Y.tolist()):
        e = [math.exp(similarity(z[b], s[j]) / 0.2) for j in range(C)]
        total -= math.log(e[c] / (sum(e) + 1.7))
    found = fedhpro.contrast(
        drawn(B, D),
        Y,
        hyper(),
        torch.tensor(1.7),
        HP(margin="dot_additive", temperature=0.2),
    )
    assert float(found) == pytest.approx(total / B, rel=1e-8)


def test_gradients_divided_twice():
    ctx = context(2)
    shards, state = toy_shards([7, 12]), ctx.init_clients(True)
    once, _ = fedhpro.class_gradients(ctx, state, shards)
    twice, _ = fedhpro.class_gradients(
        replace(ctx, hp=HP(grad_reduction="mean_twice")), state, shards
    )
    divided = once.mean / once.count.clamp(min=1).unsqueeze(-1)
    torch.testing.assert_close(twice.mean, divided)
    weight, bias = drawn(C, D, name="w"), drawn(C)
    wanted = Protos(drawn(C, D, name="g"), torch.ones(C, dtype=torch.int64))
    hp = HP(gm_metric="mse", grad_reduction="mean_twice", hyper="frozen")
    _, terms = fedhpro.match(hyper(), wanted, weight, bias, hp)
    made = fedhpro.hyper_gradients(hyper().points, weight, bias) / COUNT
    apart = (wanted.mean - made).square().sum(1).mean()
    assert float(terms["mismatch"]) == pytest.approx(float(apart))


def test_gradients_before_or_after_training():
    shards = toy_shards(SIZES)
    for when in ("pre_local", "post_local"):
        ctx = context(3, grad_when=when)
        server, mine = METHOD.init(ctx)
        after, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
        at = mine.state if when == "pre_local" else after.state
        wanted, _ = fedhpro.class_gradients(ctx, at, shards)
        assert torch.equal(up.gradients.mean, wanted.mean)


def test_gradient_samples_are_limited_per_class_and_drawn_per_client():
    shards = toy_shards([40, 3])
    ctx = context(2, grad_samples=4)
    found, _ = fedhpro.class_gradients(ctx, ctx.init_clients(True), shards)
    own = torch.stack([shards.y[i].bincount(minlength=4) for i in shards.index])
    assert torch.equal(found.count, own.clamp(max=4))

    def some(client):
        return generator(3, "samples", client)

    both = siamese.class_samples(shards, 4, False, some)
    alone = siamese.class_samples(shards.cohort([1]), 4, False, some)
    assert torch.equal(both.index[1], alone.index[0])
    assert set(both.index[0].tolist()) < set(shards.index[0].tolist())
    changed = siamese.class_samples(shards, 4, True, some)
    for k in range(2):
        assert torch.equal(changed.y[changed.index[k]], shards.y[both.index[k]])
    assert not torch.equal(changed.inputs(changed.index[0]), shards.x[both.index[0]])


# Merging --------------------------------------------------------------------------


def constants(values: list[float]) -> Model:
    each = torch.tensor(values)
    known = torch.ones(len(values), dtype=torch.bool)
    return Model({"w": each.view(-1, 1).repeat(1, 3)}, {"count": each.long()}, known)


def test_alias_returns_the_last_client_and_the_default_the_weighted_mean():
    """Two clients with different constants: the test that the released loop lacks."""
    shards, last = toy_shards([30, 10]), set()
    for seed in range(6):
        ctx = replace(context(2), seed=seed)
        server, mine = METHOD.init(ctx)
        _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
        merged, _ = METHOD.merge(ctx, server, up)
        alias = replace(ctx, hp=HP(aggregation="alias_last_client"))
        single, _ = METHOD.merge(alias, server, up)
        for name, value in up.model.params.items():
            mean = 0.75 * value[0] + 0.25 * value[1]
            torch.testing.assert_close(merged.model.params[name], mean)
        same = [
            all(
                torch.equal(v[k], single.model.params[n])
                for n, v in up.model.params.items()
            )
            for k in range(2)
        ]
        assert sum(same) == 1
        last.add(same.index(True))
    assert last == {0, 1}  # either may be visited last


def test_alias_passes_over_clients_without_samples():
    ctx = context(3)
    for number in range(1, 9):
        ctx = replace(ctx, round=number)
        found = fedhpro.last_client(ctx, constants([1, 2, 3]), torch.tensor([0, 4, 0]))
        assert found.params["w"].tolist() == [2, 2, 2]
        assert found.buffers["count"].tolist() == 2


def test_order_of_clients_matters_only_to_the_alias():
    ctx = context(3)
    server, mine = METHOD.init(ctx)
    down = METHOD.broadcast(ctx, server)
    _, up, _ = METHOD.client(ctx, down, mine, toy_shards(SIZES))
    turned = take(up, torch.tensor([2, 0, 1]))
    for aggregation, alike in (("fedavg", True), ("alias_last_client", False)):
        own = replace(ctx, hp=HP(aggregation=aggregation))
        one, other = (METHOD.merge(own, server, u)[0].model for u in (up, turned))
        same = all(
            torch.allclose(v, other.params[n], atol=1e-6) for n, v in one.params.items()
        )
        assert same is alike


# Re-training the head (released code) ----------------------------------------------


def test_head_gradients_equal_autograd():
    ctx = context(2, classifier_retrain="creff")
    shards, state = toy_shards([7, 12]), ctx.init_clients(True)
    _, found = fedhpro.class_gradients(ctx, state, shards)
    for k, rows in enumerate(shards.index):
        one = {name: v[k] for name, v in state.items()}
        head = {
            n: v.clone().requires_grad_() for n, v in ctx.net.head_state(one).items()
        }
        for c in range(4):
            chosen = rows[shards.y[rows] == c]
            if not len(chosen):
                assert float(found.mean[k, c].abs().max()) == 0
                continue
            z = ctx.net(one, shards.x[chosen]).high
            entropy = F.cross_entropy(ctx.net.head(head, z), shards.y[chosen])
            weight, bias = torch.autograd.grad(
                entropy, [head["0.weight"], head["0.bias"]]
            )
            wanted = torch.cat([weight, bias.unsqueeze(1)], 1).flatten()
            torch.testing.assert_close(found.mean[k, c], wanted, rtol=1e-4, atol=1e-6)


def test_federated_features_equal_double_backward():
    """Rows of the weight gradient and the bias gradient, 1 - cosine each, eps 1e-6."""
    features, weight, bias = drawn(C, 4, D, name="f"), drawn(C, D, name="w"), drawn(C)
    wanted = Protos(drawn(C, C * (D + 1), name="g"), torch.tensor([3, 0, 1]))
    found = creff.match(features, wanted, weight, bias, 3)
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    f = features.clone().requires_grad_()
    for _ in range(3):
        total = 0
        for c in (0, 2):
            entropy = F.cross_entropy(f[c] @ w.T + b, torch.full((4,), c))
            made = torch.autograd.grad(entropy, [w, b], create_graph=True)
            real = wanted.mean[c].view(C, D + 1)
            rows = [(made[0][r], real[r, :D]) for r in range(C)] + [
                (made[1], real[:, D])
            ]
            for a, g in rows:
                total = total + 1 - (a @ g) / (a.norm() * g.norm() + 1e-6)
        (slope,) = torch.autograd.grad(total, f)
        f = (f - 0.1 * slope).detach().requires_grad_()
    torch.testing.assert_close(found, f.detach())
    assert torch.equal(found[1], features[1])


def test_a_fresh_head_learns_the_features():
    ctx = context(2)
    middle = 3 * torch.eye(4, 32)
    features = middle.unsqueeze(1) + 0.1 * drawn(4, 50, 32).float()
    head = creff.train_head(ctx, features, 20)
    right = ctx.net.head(head, features).argmax(-1) == torch.arange(4).unsqueeze(1)
    assert right.all()
    again = creff.train_head(ctx, features, 20)
    other = creff.train_head(replace(ctx, round=2), features, 20)
    assert torch.equal(head["0.weight"], again["0.weight"])
    assert not torch.equal(head["0.weight"], other["0.weight"])


def test_retraining_replaces_the_head_and_sends_it():
    few = {"retrain_features": 8, "retrain_steps": 3, "retrain_epochs": 3}
    ctx = context(3, classifier_retrain="creff", grad_when="pre_local", **few)
    first, second = islice(rounds(METHOD, ctx, toy_shards(SIZES)), 2)
    for name, value in second.down.meta_head.items():
        assert torch.equal(value, first.server.model.params[f"head.{name}"])
        assert torch.equal(value, first.server.kept.head[name])
    begun, _ = METHOD.init(ctx)
    sent = first.down.meta_head["0.weight"]
    assert not torch.equal(sent, begun.model.params["head.0.weight"])
    assert not torch.equal(begun.kept.features, first.server.kept.features)
    # gradients are those of the received trunk under the head of that message
    at = begun.model.state | heads.within(first.down.meta_head)
    at = {k: v.expand(3, *v.shape) for k, v in at.items()}
    wanted, _ = fedhpro.class_gradients(replace(ctx, round=1), at, toy_shards(SIZES))
    torch.testing.assert_close(first.up.gradients.mean, wanted.mean)


# Siamese augmentation (released code) ----------------------------------------------

IMAGES = torch.arange(2 * 3 * 8 * 8).float().view(2, 3, 8, 8)


def test_siamese_flip_crop_and_cutout_by_hand():
    half = torch.tensor([0.6, 0.6, 0.6])
    low = torch.tensor([0.0, 0.9, 0.0])
    assert torch.equal(siamese.apply(IMAGES, "flip", low), IMAGES.flip(3))
    assert torch.equal(siamese.apply(IMAGES, "flip", half), IMAGES)
    moved = siamese.apply(IMAGES, "crop", low)  # one row up, one column right
    assert torch.equal(moved[..., 1:, :-1], IMAGES[..., :-1, 1:])
    assert moved[..., 0, :].abs().max() == 0
    assert moved[..., -1].abs().max() == 0
    cut = siamese.apply(IMAGES, "cutout", half)  # 4 x 4 around (5, 5)
    hole = torch.zeros(8, 8, dtype=torch.bool)
    hole[3:7, 3:7] = True
    assert cut[..., hole].abs().max() == 0
    assert torch.equal(cut[..., ~hole], IMAGES[..., ~hole])
    corner = siamese.apply(IMAGES, "cutout", torch.zeros(3))
    assert corner[..., :2, :2].abs().max() == 0
    assert (corner[..., 2:, :] != 0).all()


def test_siamese_scale_rotate_and_color():
    same = (1 - 1 / siamese.SCALE) / (siamese.SCALE - 1 / siamese.SCALE)
    kept = siamese.apply(IMAGES, "scale", torch.tensor([same, same, 0]))
    torch.testing.assert_close(kept, IMAGES, rtol=1e-4, atol=1e-3)
    kept = siamese.apply(IMAGES, "rotate", torch.tensor([0.5, 0, 0]))
    torch.testing.assert_close(kept, IMAGES)
    left, right = (
        siamese.apply(IMAGES, "rotate", torch.tensor([a, 0.0, 0])) for a in (0.0, 1.0)
    )
    assert not torch.allclose(left, right)
    amounts = torch.tensor([0.8, 0.5, 0.5])  # +0.3; saturation and contrast times 1
    brighter = siamese.apply(IMAGES, "color", amounts)
    torch.testing.assert_close(brighter, IMAGES + 0.3)
    grey = siamese.apply(IMAGES, "color", torch.tensor([0.5, 0.0, 0.5]))
    torch.testing.assert_close(grey, IMAGES.mean(1, keepdim=True).expand_as(IMAGES))
    flat = siamese.apply(IMAGES, "color", torch.tensor([0.5, 0.5, 0.0]))
    level = IMAGES.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(flat, (IMAGES - level) / 2 + level)


def test_siamese_changes_all_images_alike_and_by_seed_only():
    x = torch.rand(1, 3, 8, 8, generator=generator(0, "x")).repeat(3, 1, 1, 1)
    kinds = []
    for seed in range(20):
        found = siamese.augment(x, generator(seed, "dsa"))
        assert torch.equal(found[0], found[1])
        assert found.shape == x.shape
        assert torch.equal(found, siamese.augment(x, generator(seed, "dsa")))
        kinds.append(not torch.equal(found, x))
    assert any(kinds)
    with pytest.raises(ValueError, match="got 'blur', expected one of color"):
        siamese.apply(x, "blur", torch.zeros(3))


# What the method is ----------------------------------------------------------------


@pytest.mark.parametrize("epochs", [1, 2])
def test_without_its_terms_it_is_fedavg(epochs):
    training = Training(learning_rate=0.1, momentum=0.9, local_epochs=epochs)
    off = {"contrast_weight": 0.0, "align_weight": 0.0, "net": "digits_bn"}
    ctx = context(3, training=training, **off)
    fedavg = registry.method("fedavg")
    plain = replace(ctx, hp=fedavg.hp())
    one = list(islice(rounds(METHOD, ctx, toy_shards(SIZES)), 2))[-1]
    other = list(islice(rounds(fedavg, plain, toy_shards(SIZES)), 2))[-1]
    for name, value in flatten(other.server.model).items():
        assert torch.equal(value, flatten(one.server.model)[name]), name
    assert set(one.terms) == {"supervised", "margin"}


def test_momentum_goes_on_when_the_margin_is_taken_anew():
    """Epoch by epoch equals one plain loop over the batches of both epochs."""
    training = Training(learning_rate=0.05, momentum=0.9, local_epochs=2)
    own = {"contrast_weight": 1e-12, "align_weight": 0.0}
    ctx = context(2, training=training, **own)
    shards = toy_shards([24, 9])
    state = ctx.init_clients(True)
    server, mine = METHOD.init(ctx)
    found, _, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    for k, rows in enumerate(shards.index):
        weights = {n: v[k].clone().requires_grad_() for n, v in state.items()}
        optimiser = torch.optim.SGD(weights.values(), lr=0.05, momentum=0.9)
        for purpose in ("batches", "epoch 1 batches"):
            order = rows[torch.randperm(len(rows), generator=ctx.random(purpose, k))]
            for batch in order[: len(order) - len(order) % 8].split(8):
                optimiser.zero_grad()
                logits = ctx.net(weights, shards.x[batch], train=True).logits
                F.cross_entropy(logits, shards.y[batch]).backward()
                optimiser.step()
        for name, value in weights.items():
            torch.testing.assert_close(
                found.state[name][k], value.detach(), rtol=0, atol=2e-6
            )


def test_the_margin_is_taken_per_epoch_or_per_round():
    training = Training(learning_rate=0.1, local_epochs=2)
    once = play(1, training=training, margin_when="round")[0]
    anew = play(1, training=training)[0]
    ctx = context(3)
    shards = toy_shards(SIZES)
    begun = class_means(ctx.net, ctx.init_clients(True), shards, "high")
    first = fedhpro.margins(begun, "l2_exp")
    torch.testing.assert_close(once.terms["margin"], first)
    assert (anew.terms["margin"] - first).abs().min() > 1e-3
    short = Training(learning_rate=0.1)
    same = [play(1, training=short, margin_when=when)[0] for when in ("round", "epoch")]
    for name, value in flatten(same[0].mine).items():
        assert torch.equal(value, flatten(same[1].mine)[name])


def test_a_number_of_steps_is_one_training():
    training = Training(learning_rate=0.1, local_steps=5, local_epochs=2)
    one, other = (
        play(1, training=training, margin_when=when)[0] for when in ("round", "epoch")
    )
    for name, value in flatten(one.mine).items():
        assert torch.equal(value, flatten(other.mine)[name])


def test_frozen_hyper_prototypes_stay():
    first, second = play(2, hyper="frozen")
    begun = fedhpro.first_hyper(context(3)).points
    assert torch.equal(second.server.hyper.points, begun)
    assert float(second.watched["moved"]) == 0
    matched = play(2)[-1]
    assert 0 < float(matched.watched["moved"]) < 0.1
    assert matched.watched["mismatch"] < matched.watched["mismatch_before"]
    assert torch.equal(first.down.hyper.points, begun)


def test_hyper_prototypes_go_on_from_the_last_round():
    one, two = play(2)
    assert torch.equal(two.down.hyper.points, one.server.hyper.points)
    weight, bias = heads.linear(context(3).net, two.server.model.params)
    g = protos.merge(two.up.gradients)
    wanted, _ = fedhpro.match(one.server.hyper, g, weight, bias, HP())
    assert torch.equal(two.server.hyper.points, wanted.points)
    assert not torch.equal(two.server.hyper.points, one.server.hyper.points)


def test_matching_hardly_moves_hyper_prototypes():
    """Fact 0.4: C = 10, d = 256, a trained linear head, 600 steps at rate 0.1."""
    draw = generator(0, "toy classes")
    means = torch.randn(10, 256, generator=draw)
    label = torch.arange(10).repeat_interleave(40)
    z = means[label] + 0.5 * torch.randn(400, 256, generator=draw)
    head = descent.of_module(torch.nn.Linear(256, 10), draw)

    def loss(state, step):
        entropy = F.cross_entropy(F.linear(z, state["weight"], state["bias"]), label)
        return Losses(entropy, {}, {})

    head = descent.fit(head, loss, 60, learning_rate=0.01).state
    logits = F.linear(z, head["weight"], head["bias"])
    assert (logits.argmax(1) == label).all()
    miss = heads.residual(logits.double(), label)
    real = protos.from_sums(*protos.class_sums(miss[None], label[None], 10))
    real = Protos(real.mean[0] @ head["weight"].double(), real.count[0])
    s = hyperprotos.draw(10, 5, 256, generator(0, "s"))
    hp = HP(hyper_steps=600)
    found, terms = fedhpro.match(s, real, head["weight"], head["bias"], hp)
    moved = (found.points - s.points).norm() / s.points.norm()
    assert 0 < float(moved) < 0.1
    assert float(terms["mismatch_before"]) < 0.1
    assert float(terms["mismatch"]) < float(terms["mismatch_before"])
    away = F.cosine_similarity(found.centre, means, dim=1)
    assert float(away.mean().abs()) < 0.1
    nearest = torch.cdist(z, found.centre).argmin(1) == label
    assert float(nearest.float().mean()) < 0.4  # the class means are right for all


def test_a_single_sample_of_a_class_gives_its_softmax_away():
    """The server solves W' r = g of FedHPro's upload for r = softmax - e_c."""
    ctx = context(1)
    shards = toy_shards([9])
    shards.y[:] = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 3])
    server, mine = METHOD.init(ctx)
    after, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    weight, _ = heads.linear(ctx.net, {k: v[0] for k, v in up.model.params.items()})
    miss = torch.linalg.pinv(weight.T.double()) @ up.gradients.mean[0, 3].double()
    state = {k: v[0] for k, v in after.state.items()}
    softmax = ctx.net(state, shards.x[8:9]).logits.softmax(1)[0]
    found = miss.float() + F.one_hot(torch.tensor(3), 4)
    torch.testing.assert_close(found, softmax, rtol=0, atol=1e-4)


def test_payload():
    """What FedHPro's messages hold, for C = 4, d = 32, |I| = 5, M = 3,460."""
    first = play(1, SIZES)[0]
    shards = toy_shards(SIZES)
    owned = sum(len(shards.y[i].unique()) for i in shards.index)
    model = context(1).net.parameter_count()
    floats = {k: v.floats for k, v in first.sent.items() if v.floats}
    paper = {
        "up/model": 3 * model,
        "up/gradients": owned * 32,
        "down/model": 3 * model,
        "down/hyper": 3 * 4 * 5 * 32,
    }
    assert floats == paper
    few = {"retrain_features": 2, "retrain_steps": 1, "retrain_epochs": 1}
    released = play(1, SIZES, variant="reference", **few)[0]
    floats = {k: v.floats for k, v in released.sent.items() if v.floats}
    assert floats == paper | {
        "up/head_gradients": owned * (4 * 32 + 4),
        "down/meta_head": 3 * (4 * 32 + 4),
    }
    table = play(1, SIZES, align_with="prototypes")[0]
    assert table.sent["up/protos"].floats == owned * 32
    assert table.sent["down/protos"].floats == 0  # nobody has sent one yet


def test_prototypes_in_place_of_hyper_prototypes():
    """Table 6: nothing to compare with in round 1, class means from round 2."""
    first, second = play(2, contrast_with="prototypes", align_with="prototypes")
    assert float(first.terms["contrast"].abs().max()) == 0
    assert float(first.terms["align"].abs().max()) == 0
    assert (second.terms["align"] > 0).all()
    assert (second.terms["contrast"] > 0).all()
    assert torch.equal(second.down.protos.mean, first.server.protos.mean)
    half = play(1, align_with="prototypes")[0]
    assert float(half.terms["align"].abs().max()) == 0
    assert (half.terms["contrast"] > 0).all()


def test_watching_the_distance_to_central_prototypes():
    ctx = context(3)
    last = play(2)[-1]
    models = METHOD.models(ctx, last.server, last.mine)
    centre = last.server.hyper.points.mean(1)
    same = models.watch(Protos(centre, torch.ones(4, dtype=torch.int64)))
    assert float(same["hyper_cosine"]) == pytest.approx(1, abs=1e-5)
    assert float(same["hyper_distance"]) == pytest.approx(0, abs=1e-5)
    other = models.watch(Protos(-2 * centre, torch.tensor([1, 0, 0, 0])))
    assert float(other["hyper_cosine"]) == pytest.approx(-1, abs=1e-5)
    distance = 3 * float(centre[0].norm())
    assert float(other["hyper_distance"]) == pytest.approx(distance, rel=1e-5)
    nobody = models.watch(protos.empty(4, 32))
    assert nobody["hyper_cosine"].isnan()


def test_shapes_of_hyper_prototypes():
    s = hyperprotos.draw(200, 50, 8, generator(0, "s"))
    assert abs(float(s.points.mean())) < 0.02
    assert abs(float(s.points.std()) - 1) < 0.02
    assert not s.known.any()
    found = hyper()
    for c in range(C):
        a, b = found.points[c].numpy()
        np.testing.assert_allclose(found.centre[c], (a + b) / 2)
        unit = (a / np.linalg.norm(a) + b / np.linalg.norm(b)) / 2
        np.testing.assert_allclose(found.direction[c], unit)
