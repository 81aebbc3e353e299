"""FedPG: every equation by plain numpy, every switch by hand-computed values."""

import copy
import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, islice

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from fedlib import papers
from fedlib.baselines import fedavg
from fedlib.blocks import image_generators, virtual_data
from fedlib.core.messages import as_model
from fedlib.core.method import Context, NonFiniteError, Round, rounds
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.training import Training
from fedlib.core.tree import flatten, take
from fedlib.methods import fedpg
from fedlib.methods.fedpg import HP, METHOD, REFERENCE, STUDY, Up
from tests.conftest import toy_context, toy_shards

B, V, D, C = 5, 7, 4, 3
Y = torch.tensor([0, 2, 0, 1, 2])
LABELS = torch.tensor([2, 0, 0, 1, 2, 1, 0])
EXACT = {"rtol": 0, "atol": 0}
SMALL = {"generator_steps": 2, "virtual_per_class": 3, "noise_size": 4}
BOTH_DISTANCES = pytest.mark.parametrize("dist", ["l2", "sq_l2_scale2"])


@pytest.fixture(autouse=True)
def small_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the generators' architecture and make them narrow."""
    monkeypatch.setattr(image_generators, "HIDDEN", (16, 32))
    monkeypatch.setattr(image_generators, "CHANNELS", (16, 8, 8, 8))


def rand(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(3, name), dtype=torch.float64)


def context(
    clients: int = 2, *, number: int = 1, training: Training | None = None, **changes
) -> Context:
    ctx = toy_context(METHOD, clients, **(SMALL | changes))
    return replace(ctx, round=number, training=training or ctx.training)


def play(count: int, sizes_of: list[int], method=METHOD, **changes) -> list[Round]:
    training = changes.pop("training", None)
    start = changes.pop("participation", 1.0)
    changes = (SMALL if method is METHOD else {}) | changes
    ctx = toy_context(method, len(sizes_of), **changes)
    ctx = replace(ctx, training=training or ctx.training)
    run = rounds(method, ctx, toy_shards(sizes_of), participation=start)
    return list(islice(run, count))


def assert_same(one, other, **tolerance):
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], **(EXACT | tolerance))


# --- Eq. (4), (5): prototypes ---------------------------------------------------------


def embeddings(ctx: Context, up: Up, shards, client: int) -> dict[int, np.ndarray]:
    """Embeddings of each class's samples under what the client sent, in eval mode."""
    state = {n: v[client] for n, v in up.model.state.items()}
    rows = shards.index[client]
    z = ctx.net(state, shards.x[rows]).high.detach().numpy()
    labels = shards.y[rows].numpy()
    return {c: z[labels == c] for c in range(ctx.classes)}


def one_upload(ctx: Context, shards) -> Up:
    server, mine = METHOD.init(ctx)
    return METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)[1]


def test_local_prototypes_use_all_samples_of_a_small_class():
    """Eq. (4) in eval mode, after training, with the weights that are sent."""
    ctx, shards = context(net="digits_bn"), toy_shards([24, 9])
    up = one_upload(ctx, shards)
    for client in range(2):
        for c, z in embeddings(ctx, up, shards, client).items():
            assert int(up.protos.count[client, c]) == len(z) <= 20
            wanted = z.mean(0) if len(z) else np.zeros(32)
            np.testing.assert_allclose(up.protos.mean[client, c], wanted, atol=1e-5)


@pytest.mark.parametrize("with_replacement", [False, True])
def test_local_prototypes_average_m_samples(with_replacement):
    """m = 2: every prototype is the mean of two samples; twice the same only with."""
    ctx = context(2, support=2, with_replacement=with_replacement)
    shards, same = toy_shards([24, 24]), 0
    for number in (1, 2, 3, 4):
        ctx = replace(ctx, round=number)
        up = one_upload(ctx, shards)
        assert up.protos.count.max() == 2
        for client in range(2):
            for c, z in embeddings(ctx, up, shards, client).items():
                if len(z) <= 2:
                    continue
                sent = up.protos.mean[client, c].numpy()
                pairs = [(a + b) / 2 for a, b in combinations(z, 2)]
                near = min(np.abs(sent - p).max() for p in pairs)
                alone = min(np.abs(sent - p).max() for p in z)
                assert min(near, alone) < 1e-5
                same += bool(alone < 1e-5)
    assert bool(same) == with_replacement


def test_twenty_samples_are_drawn_where_a_class_has_more():
    for with_replacement in (False, True):
        ctx = context(1, with_replacement=with_replacement)
        shards = toy_shards([120])
        count = one_upload(ctx, shards).protos.count[0]
        counts = shards.y.bincount(minlength=4)
        assert count.tolist() == [min(20, int(n)) for n in counts]
        assert int(counts.max()) > 20


def test_the_draw_of_a_client_does_not_depend_on_its_neighbours():
    ctx, shards = context(3, support=2), toy_shards([24, 30, 17])
    state = ctx.init_clients(True)
    together = fedpg.local_protos(ctx, state, shards)
    apart = fedpg.local_protos(ctx, take(state, slice(1, 2)), shards.cohort([1]))
    assert_same(take(together, slice(1, 2)), apart, atol=1e-6)


def test_global_prototypes_are_plain_means_over_the_owners():
    """Eq. (5) with loops: a client of 20 samples counts like a client of one."""
    ctx = context(3)
    server, mine = METHOD.init(ctx)
    mean = torch.randn(3, 4, 32, generator=generator(0, "p"))
    count = torch.tensor([[20, 0, 1, 0], [1, 0, 0, 3], [5, 0, 2, 9]])
    mean = mean * (count > 0).unsqueeze(-1)
    up = Up(as_model(ctx.net, mine.state), Protos(mean, count), torch.tensor([9, 8, 7]))
    after, _ = METHOD.merge(ctx, server, up)
    for c, owners in enumerate([[0, 1, 2], [], [0, 2], [1, 2]]):
        wanted = sum(mean[k, c] for k in owners) / len(owners) if owners else 0
        wanted = torch.as_tensor(wanted).expand(32)
        torch.testing.assert_close(after.protos.mean[c], wanted.float())
    assert after.protos.known.tolist() == [True, False, True, True]


# --- Eq. (6) to (9): the generator's terms --------------------------------------------


def score(a: np.ndarray, b: np.ndarray, dist: str, tau: float) -> float:
    square = sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))
    return -math.sqrt(square) / tau if dist == "l2" else -2 * square


def anchor_distance_loops(
    anchors: np.ndarray, real: np.ndarray, known: list[bool], hp: HP
) -> float:
    total = 0.0
    for c in range(len(anchors)):
        if not known[c]:
            continue
        others = [i for i in range(len(real)) if known[i] or hp.absent == "zeros"]
        each = [math.exp(score(anchors[c], real[i], hp.gan_dist, 3.0)) for i in others]
        own = math.exp(score(anchors[c], real[c], hp.gan_dist, 3.0))
        total -= math.log(own / sum(each))
    return total if hp.proto_term == "sum" else total / sum(known)


@pytest.mark.parametrize("term", ["sum", "mean"])
@pytest.mark.parametrize("absent", ["mask", "zeros"])
@BOTH_DISTANCES
@pytest.mark.parametrize("count", [[2, 1, 4, 1], [2, 0, 1, 1], [0, 0, 0, 3]])
def test_anchor_distance_equals_the_loops(count, dist, absent, term):
    """Eq. (6) and (7), all classes present, one absent, only one present."""
    hp = HP(gan_dist=dist, gan_tau=3.0, absent=absent, proto_term=term)
    known = [n > 0 for n in count]
    anchors = 0.4 * rand(4, D)
    real = 0.4 * rand(4, D, name="p") * torch.tensor(known).unsqueeze(1)
    found = fedpg.anchor_distance(anchors, Protos(real, torch.tensor(count)), hp)
    wanted = anchor_distance_loops(anchors.numpy(), real.numpy(), known, hp)
    assert float(found) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


def test_anchor_distance_by_hand():
    """P' at 0, P at 2 and 6, tau = 2: log(1 + exp(-2)), and the zero row counts."""
    anchors = torch.tensor([[0.0], [6.0], [50.0]])
    real = Protos(torch.tensor([[2.0], [6.0], [0.0]]), torch.tensor([1, 1, 0]))
    first, second = math.log(1 + math.exp(-2)), math.log(1 + math.exp(-2))
    assert float(fedpg.anchor_distance(anchors, real, HP())) == pytest.approx(
        first + second, rel=1e-6
    )
    zeros = fedpg.anchor_distance(anchors, real, HP(absent="zeros"))
    first = math.log(1 + math.exp(-2) + math.exp(1))
    second = math.log(1 + math.exp(-2) + math.exp(-3))
    assert float(zeros) == pytest.approx(first + second, rel=1e-6)
    mean = fedpg.anchor_distance(anchors, real, HP(absent="zeros", proto_term="mean"))
    assert float(mean) == pytest.approx((first + second) / 2, rel=1e-6)


def test_an_absent_class_has_no_pull():
    """Eq. (7): the anchor of a class without prototype gets no gradient from it."""
    anchors = rand(C, D).requires_grad_()
    real = Protos(rand(C, D, name="p"), torch.tensor([1, 0, 2]))
    fedpg.anchor_distance(anchors, real, HP()).backward()
    assert anchors.grad is not None
    assert anchors.grad[1].abs().max() == 0
    assert anchors.grad[0].abs().max() > 0


@pytest.mark.parametrize("denominator", ["exclude_true", "all"])
@BOTH_DISTANCES
def test_anchor_entropy_equals_the_loops(dist, denominator):
    """Eq. (8), sample by sample."""
    hp = HP(gan_dist=dist, gan_tau=3.0, dce_denominator=denominator)
    z, anchors = 0.4 * rand(B, D), 0.4 * rand(C, D, name="a")
    found = fedpg.anchor_entropy(z, Y, anchors, hp)
    assert found.shape == (B,)
    for b in range(B):
        y = int(Y[b])
        e = [math.exp(score(z[b], anchors[c], dist, 3.0)) for c in range(C)]
        below = sum(e) - (e[y] if denominator == "exclude_true" else 0)
        assert float(found[b]) == pytest.approx(-math.log(e[y] / below), rel=1e-9)


def test_anchor_entropy_by_hand_and_without_bound():
    """At P'_0 = 0 with P'_1 = r: -r/2 as printed, log(1 + exp(-r/2)) over all."""
    z, y = torch.zeros(1, 1), torch.tensor([0])
    for r in (1.0, 20.0, 2000.0):
        anchors = torch.tensor([[0.0], [r]])
        printed = fedpg.anchor_entropy(z, y, anchors, HP())
        assert float(printed) == pytest.approx(-r / 2, rel=1e-6)
        usual = fedpg.anchor_entropy(z, y, anchors, HP(dce_denominator="all"))
        assert float(usual) == pytest.approx(math.log1p(math.exp(-r / 2)), abs=1e-6)
    released = HP(gan_dist="sq_l2_scale2")
    assert float(
        fedpg.anchor_entropy(z, y, torch.tensor([[0.0], [3.0]]), released)
    ) == pytest.approx(-18)


def test_proto_loss_equals_the_loops():
    """Eq. (9): a squared length, not a mean over coordinates."""
    z, anchors = rand(B, D), rand(C, D, name="a")
    found = fedpg.proto_loss(z, Y, anchors)
    for b in range(B):
        wanted = sum(float(z[b, i] - anchors[Y[b], i]) ** 2 for i in range(D))
        assert float(found[b]) == pytest.approx(wanted, rel=1e-12)
    hand = fedpg.proto_loss(
        torch.tensor([[3.0, 4.0]]), torch.tensor([0]), torch.zeros(1, 2)
    )
    assert hand.tolist() == [25.0]


# --- Eq. (11): alignment --------------------------------------------------------------


def unit_rows(v: np.ndarray) -> np.ndarray:
    return v / np.sqrt((v**2).sum(1, keepdims=True))


def eq11_loops(z, y, virtual, labels, tau) -> float:
    each = []
    for b in range(len(z)):
        e = [math.exp(float(z[b] @ x) / tau) for x in virtual]
        own = [v for v, c in zip(e, labels, strict=True) if c == y[b]]
        others = [v for v, c in zip(e, labels, strict=True) if c != y[b]]
        if own and others:
            each.append(-math.log(sum(v / sum(others) for v in own)))
    return sum(each) / len(each) if each else 0.0


def supcon_loops(v, labels, tau) -> float:
    """As released: anchors without a positive are zeros in the mean."""
    total = 0.0
    for i in range(len(v)):
        others = [a for a in range(len(v)) if a != i]
        same = [a for a in others if labels[a] == labels[i]]
        below = sum(math.exp(float(v[i] @ v[a]) / tau) for a in others)
        for a in same:
            total -= math.log(math.exp(float(v[i] @ v[a]) / tau) / below) / len(same)
    return total / len(v)


@pytest.mark.parametrize("labels", [LABELS.tolist(), [2, 0, 0, 2, 2, 2, 0]])
@pytest.mark.parametrize("fa", ["eq11_normalised", "eq11_raw", "supcon_union"])
def test_align_equals_the_loops(fa, labels):
    """Eq. (11), with all classes in the virtual batch and without class 1."""
    hp = HP(fa=fa, align_temperature=0.5)
    z, virtual = 0.7 * rand(B, D), 0.7 * rand(V, D, name="v")
    found = fedpg.align(z, Y, virtual, torch.tensor(labels), hp)
    a, b = z.numpy(), virtual.numpy()
    if fa != "eq11_raw":
        a, b = unit_rows(a), unit_rows(b)
    if fa == "supcon_union":
        both = np.concatenate([a, b])
        wanted = supcon_loops(both, [*Y.tolist(), *labels], 0.5)
        wanted += 0.1 * supcon_loops(b, labels, 0.5)
    else:
        wanted = eq11_loops(a, Y.tolist(), b, labels, 0.5)
    assert float(found) == pytest.approx(wanted, rel=1e-10)


def test_align_by_hand():
    """One sample at its virtual image, another image at a right angle: -1/tau."""
    z, virtual = torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    y, labels = torch.tensor([0]), torch.tensor([0, 1])
    tau = HP().align_temperature
    assert tau == 0.07
    found = fedpg.align(z, y, virtual, labels, HP())
    assert float(found) == pytest.approx(-1 / 0.07, rel=1e-6)
    raw = fedpg.align(z, y, virtual, labels, HP(fa="eq11_raw"))
    assert float(raw) == pytest.approx(-6 / 0.07, rel=1e-6)


@pytest.mark.parametrize(
    ("y", "labels"),
    [
        ([0, 0, 0, 0, 0], [1, 1, 2, 2, 2, 1, 1]),  # no virtual image of the class
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]),  # no virtual image of another
    ],
)
@pytest.mark.parametrize("fa", ["eq11_normalised", "eq11_raw"])
def test_anchors_without_positives_or_negatives_are_skipped(fa, y, labels):
    z = rand(B, D).requires_grad_()
    y, labels = torch.tensor(y), torch.tensor(labels)
    found = fedpg.align(z, y, rand(V, D, name="v"), labels, HP(fa=fa))
    found.backward()
    assert float(found.detach()) == 0
    assert z.grad is not None
    assert z.grad.abs().max() == 0


def test_raw_alignment_falls_with_the_length_and_the_normalised_one_does_not():
    z, virtual = rand(B, D), rand(V, D, name="v")
    virtual[:, 0] += torch.where(LABELS == 0, 9.0, -9.0)
    z[:, 0] += torch.where(Y == 0, 9.0, -9.0)
    raw, unit = HP(fa="eq11_raw", align_temperature=1.0), HP(align_temperature=1.0)
    found = [float(fedpg.align(s * z, Y, virtual, LABELS, raw)) for s in (1, 10, 100)]
    assert found[2] < 9 * found[1] < 0
    same = [float(fedpg.align(s * z, Y, virtual, LABELS, unit)) for s in (1, 100)]
    assert same[0] == pytest.approx(same[1])


def test_who_gets_a_gradient_from_alignment():
    """Eq. (11) moves both sides; the released union only its own, plus 0.1 virtual."""
    for fa in ("eq11_normalised", "eq11_raw", "supcon_union"):
        z, virtual = rand(B, D).requires_grad_(), rand(V, D, name="v").requires_grad_()
        hp = HP(fa=fa, align_temperature=0.5)
        fedpg.align(z, Y, virtual, LABELS, hp).backward()
        assert z.grad is not None
        assert z.grad.abs().max() > 1e-3
        assert virtual.grad is not None
        if fa == "supcon_union":
            alone = virtual.detach().clone().requires_grad_()
            direction = alone / alone.norm(dim=1, keepdim=True)
            (0.1 * virtual_data.supcon_over_all(direction, LABELS, 0.5)).backward()
            torch.testing.assert_close(virtual.grad, alone.grad)
        else:
            assert virtual.grad.abs().max() > 1e-3


@pytest.mark.parametrize("absent", ["mask", "zeros"])
@pytest.mark.parametrize("denominator", ["exclude_true", "all"])
@BOTH_DISTANCES
def test_gradients_of_the_generators_terms(dist, denominator, absent):
    """Float64 gradcheck of Eq. (7), (8) and (9)."""
    hp = HP(gan_dist=dist, dce_denominator=denominator, absent=absent)
    z = (0.4 * rand(B, D)).requires_grad_()
    anchors = (0.4 * rand(C, D, name="a")).requires_grad_()
    real = Protos(0.4 * rand(C, D, name="p"), torch.tensor([1, 0, 2]))
    check = torch.autograd.gradcheck
    assert check(lambda a: fedpg.anchor_distance(a, real, hp), anchors)
    assert check(lambda a, b: fedpg.anchor_entropy(a, Y, b, hp), (z, anchors))
    assert check(lambda a, b: fedpg.proto_loss(a, Y, b), (z, anchors))


@pytest.mark.parametrize("fa", ["eq11_normalised", "eq11_raw"])
def test_gradients_of_alignment(fa):
    """Float64 gradcheck of Eq. (11)."""
    hp = HP(fa=fa, align_temperature=0.5)
    z, virtual = rand(B, D).requires_grad_(), rand(V, D, name="v").requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: fedpg.align(a, Y, b, LABELS, hp), (z, virtual)
    )


def test_gradient_of_the_released_alignment_towards_own_samples():
    hp = HP(fa="supcon_union", align_temperature=0.5)
    virtual = rand(V, D, name="v")
    assert torch.autograd.gradcheck(
        lambda a: fedpg.align(a, Y, virtual, LABELS, hp), rand(B, D).requires_grad_()
    )


def test_coincident_points_have_finite_gradients():
    """An embedding on its anchor, an anchor on its prototype: no 0/0."""
    for dist in ("l2", "sq_l2_scale2"):
        hp = HP(gan_dist=dist)
        anchors = rand(C, D).requires_grad_()
        z = anchors.detach()[Y].clone().requires_grad_()
        real = Protos(anchors.detach().clone(), torch.ones(C, dtype=torch.int64))
        total = fedpg.anchor_entropy(z, Y, anchors, hp).sum()
        (total + fedpg.anchor_distance(anchors, real, hp)).backward()
        assert anchors.grad is not None
        assert anchors.grad.isfinite().all()
        assert z.grad is not None
        assert z.grad.isfinite().all()


# --- Eq. (10): the generator's training -----------------------------------------------


def plain_generator_training(ctx: Context, weights, model, real, anchors):
    """FedPG's Eq. (10) as a plain loop: Adam (0.5, 0.999), StepLR; f in eval mode."""
    hp: HP = ctx.hp
    module = copy.deepcopy(fedpg.build_generator(ctx).module).train()
    module.load_state_dict(weights)
    net = copy.deepcopy(ctx.net.module).eval()
    net.load_state_dict(model)
    moving = nn.Parameter(anchors.clone())
    idle = image_generators.idle(fedpg.build_generator(ctx))
    trained = [p for n, p in module.named_parameters() if n not in idle]
    if hp.freeze_f:
        net.requires_grad_(False)
    else:
        trained += list(net.parameters())
    adam = torch.optim.Adam(
        [{"params": trained}, {"params": [moving], "lr": hp.proto_lr}],
        lr=hp.generator_learning_rate,
        betas=(0.5, 0.999),
    )
    schedule = torch.optim.lr_scheduler.StepLR(adam, 20, 0.95)
    draws = ctx.random("generator")
    for _ in range(hp.generator_steps):
        y = torch.randint(4, (hp.generator_batch_size,), generator=draws)
        noise = torch.rand(len(y), hp.noise_size, generator=draws)
        images = module(torch.cat([noise, nn.functional.one_hot(y, 4).float()], 1))
        z = net(images).high
        far = (z.unsqueeze(1) - moving).pow(2).sum(2).sqrt() / 2
        own = far[torch.arange(len(y)), y]
        masked = far + 1e9 * nn.functional.one_hot(y, 4)
        entropy = own + torch.logsumexp(-masked, 1)
        lengths = (z - moving[y]).pow(2).sum(1)
        apart = (moving.unsqueeze(1) - real.mean).pow(2).sum(2).sqrt() / 2
        present = real.count.nonzero().flatten().tolist()
        distance = sum(
            apart[c, c] + torch.logsumexp(-apart[c, present], 0) for c in present
        )
        loss = entropy.mean() + hp.proto_weight * lengths.mean()
        loss = loss + hp.anchor_weight * distance
        adam.zero_grad()
        loss.backward()
        adam.step()
        schedule.step()
    return module.state_dict(), moving.detach(), net.state_dict()


def material(ctx: Context):
    """A generator, a model, prototypes without class 2, and random anchors."""
    weights = fedpg.build_generator(ctx).init(generator(0, "g"))
    model = ctx.net.init(generator(0, "f"))
    mean = torch.randn(4, 32, generator=generator(0, "p"))
    count = torch.tensor([3, 1, 0, 2])
    real = Protos(mean * (count > 0).unsqueeze(1), count)
    return weights, model, real, torch.randn(4, 32, generator=generator(0, "a"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"anchor_weight": 0.0},  # GT-d
        {"proto_weight": 0.0},  # GT-p
        {"proto_weight": 3.0, "anchor_weight": 2.0},
        {"freeze_f": False},
        {"proto_lr": 1e-2},
    ],
    ids=str,
)
@pytest.mark.usefixtures("float64")
def test_generator_training_equals_a_plain_loop(changes):
    """Eq. (10) over 22 steps, beyond the first decay of the rate."""
    steps = {"generator_steps": 22, "generator_batch_size": 8}
    ctx = context(net="digits_bn", **(steps | changes))
    weights, model, real, anchors = material(ctx)
    fitted = fedpg.train_generator(ctx, weights, model, real, anchors)
    wanted, moved, f = plain_generator_training(ctx, weights, model, real, anchors)
    found = fedpg.part("generator.", fitted.state)
    idle = image_generators.idle(fedpg.build_generator(ctx))
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-9)
        moves = name not in idle and not torch.equal(found[name], weights[name])
        assert moves or name in idle, name
    found_anchors = fitted.state["anchors"]
    torch.testing.assert_close(found_anchors, moved, rtol=0, atol=1e-9)
    away = (moved - anchors).abs().mean()
    assert away > (1e-4 if "proto_lr" not in changes else 1e-2)
    for name, value in fedpg.part("f.", fitted.state).items():
        torch.testing.assert_close(value, f[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("freeze_f", [True, False])
def test_a_frozen_model_stays_and_the_released_copy_moves(freeze_f):
    """The server's own model is the average in both; only a copy is corrupted."""
    ctx = context(net="digits_bn", freeze_f=freeze_f, generator_steps=20)
    weights, model, real, anchors = material(ctx)
    kept = {k: v.clone() for k, v in model.items()}
    fitted = fedpg.train_generator(ctx, weights, model, real, anchors)
    assert_same(model, kept)
    copied = fedpg.part("f.", fitted.state)
    assert bool(copied) != freeze_f
    for name, value in copied.items():
        still = name in ctx.net.buffers or name.startswith("head.")  # not in the loss
        assert torch.equal(value, kept[name]) == still, name
        assert (value - kept[name]).abs().max() <= 20 * 2e-5 * 2
    server, mine = METHOD.init(ctx)
    shards = toy_shards([24, 17])
    _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    after, _ = METHOD.merge(ctx, server, up)
    share = torch.tensor([24.0, 17.0], dtype=torch.float64) / 41
    for name, each in up.model.params.items():
        wanted = torch.tensordot(share, each.double(), 1)
        torch.testing.assert_close(after.model.params[name].double(), wanted)


def test_virtual_prototypes_hardly_move_at_the_printed_rate():
    """300 steps: no coordinate can go further than the sum of the rates, 0.0043."""
    reach = sum(2e-5 * 0.95 ** (step // 20) for step in range(300))
    assert reach == pytest.approx(0.0043, abs=1e-4)
    ctx = context(generator_steps=300, generator_batch_size=4, net="digits_linear")
    weights, model, real, anchors = material(ctx)
    fitted = fedpg.train_generator(ctx, weights, model, real, anchors)
    after = fitted.state["anchors"]
    assert 0.001 < (after - anchors).abs().mean()
    assert (after - anchors).abs().max() < 1.05 * reach
    before, now = fedpg.gap(anchors, real), fedpg.gap(after, real)
    assert 0.99 < now / before < 1


def test_virtual_prototypes_move_at_a_rate_of_their_own():
    """Without the terms of the images, the study's rate brings P' to P."""
    ctx = context(
        generator_steps=60, generator_batch_size=4, proto_lr=0.3, anchor_weight=1e3
    )
    weights, model, real, anchors = material(ctx)
    fitted = fedpg.train_generator(ctx, weights, model, real, anchors)
    after = fitted.state["anchors"]
    nearest = torch.cdist(after, real.mean)[:, real.known].argmin(1)
    assert nearest[real.known].tolist() == [0, 1, 2]
    assert fedpg.anchor_distance(after, real, ctx.hp) < 0.5
    assert fedpg.anchor_distance(anchors, real, ctx.hp) > 2
    ctx = context(generator_steps=2, proto_lr=0.0)
    fitted = fedpg.train_generator(ctx, weights, model, real, anchors)
    assert torch.equal(fitted.state["anchors"], anchors)


def test_where_virtual_prototypes_begin():
    ctx = context()
    real = Protos(torch.full((4, 32), 7.0), torch.tensor([2, 0, 1, 0]))
    server, _ = METHOD.init(ctx)
    later = server._replace(anchors=torch.full((4, 32), 5.0), known=torch.tensor(True))

    def begin(kept, number=1, **changes):
        return fedpg.first_anchors(context(number=number, **changes), kept, real)

    drawn = begin(later)
    assert drawn.std() == pytest.approx(1, abs=0.2)
    assert drawn.mean().abs() < 0.3
    assert torch.equal(drawn, begin(later))
    assert not torch.equal(drawn, begin(later, number=2))  # afresh in each round
    partly = begin(later, proto_init="real_or_randn")
    assert torch.equal(partly[[0, 2]], real.mean[[0, 2]])
    assert torch.equal(partly[[1, 3]], drawn[[1, 3]])
    assert torch.equal(begin(server, proto_persist=True), drawn)  # nothing to keep yet
    assert torch.equal(begin(later, proto_persist=True), later.anchors)
    study = begin(later, **STUDY)
    assert torch.equal(study[[0, 2]], real.mean[[0, 2]])
    assert torch.equal(study[[1, 3]], later.anchors[[1, 3]])


def test_gap_and_right_share_by_hand():
    real = Protos(torch.tensor([[3.0, 4.0], [9.0, 9.0]]), torch.tensor([1, 0]))
    assert float(fedpg.gap(torch.zeros(2, 2), real)) == 5.0
    ctx = context(virtual_per_class=3)
    model = ctx.net.init(generator(0, "f"))
    model["head.0.weight"] = torch.zeros_like(model["head.0.weight"])
    model["head.0.bias"] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    images = torch.zeros(12, 1, 8, 8)
    assert float(fedpg.right_share(ctx, model, images)) == 0.25


# --- Virtual data -------------------------------------------------------------------


def test_virtual_images_are_the_same_for_the_same_seed_and_round():
    ctx = context(virtual_per_class=3)
    weights = fedpg.build_generator(ctx).init(generator(0, "g"))
    kept = {k: v.clone() for k, v in weights.items()}
    images = fedpg.make_images(ctx, weights)
    assert images.shape == (12, 1, 8, 8)
    assert images.abs().max() <= 1
    assert torch.equal(images, fedpg.make_images(ctx, weights))
    assert not torch.equal(images, fedpg.make_images(replace(ctx, round=2), weights))
    assert_same(weights, kept)  # eval mode
    assert fedpg.virtual_labels(ctx).tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    noise = torch.rand(12, 4, generator=ctx.random("virtual"))
    labels = torch.arange(4).repeat_interleave(3)
    wanted = fedpg.build_generator(ctx)(weights, noise, labels)
    torch.testing.assert_close(images, wanted)


def test_noise_is_uniform_or_normal():
    images = {}
    for noise in ("uniform", "normal"):
        ctx = context(noise=noise)
        weights = fedpg.build_generator(ctx).init(generator(0, "g"))
        images[noise] = fedpg.make_images(ctx, weights)
    assert not torch.equal(images["uniform"], images["normal"])


def test_the_generator_goes_on_from_round_to_round():
    one, two = play(2, [24, 17])
    start = METHOD.init(toy_context(METHOD, 2, **SMALL))[0].generator
    for before, after in ((start, one), (one.server.generator, two)):
        step = {k: after.server.generator[k] - before[k] for k in before}
        furthest = max(float(v.abs().max()) for k, v in step.items() if "weight" in k)
        assert 1e-5 < furthest < 2 * 2e-5 * 2  # two steps of Adam
    assert not torch.equal(one.server.images, two.server.images)
    assert torch.equal(two.down.virtual.images, one.server.images)


def test_a_plain_virtual_order_covers_all_images_and_differs_by_client_and_round():
    ctx = context(virtual_per_class=5, v_batch_size=8)
    first, second = virtual_data.plans(ctx, [0, 1]).values()
    batches = first
    assert [len(b) for b in batches] == [8, 8, 4]
    assert sorted(torch.cat(batches).tolist()) == list(range(20))
    again = virtual_data.plans(ctx, [0])[0]
    assert torch.equal(torch.cat(batches), torch.cat(again))
    for other in (second, virtual_data.plans(replace(ctx, round=2), [0])[0]):
        assert not torch.equal(torch.cat(batches), torch.cat(other))


@pytest.mark.parametrize(
    ("size", "per_class", "sizes"), [(9, 2, [8, 8, 4]), (3, 1, [4] * 5), (99, 5, [20])]
)
def test_balanced_virtual_batches_hold_all_classes_alike(size, per_class, sizes):
    ctx = context(virtual_per_class=5, v_batch_size=size, v_batch_balanced=True)
    batches = virtual_data.plans(ctx, [0])[0]
    assert [len(b) for b in batches] == sizes
    assert sorted(torch.cat(batches).tolist()) == list(range(20))
    labels = fedpg.virtual_labels(ctx)
    for batch in batches:
        count = Counter(labels[batch].tolist())
        assert set(count) == {0, 1, 2, 3}
        assert len(set(count.values())) == 1
        assert count[0] <= per_class
    within = [b[labels[b] == 0].tolist() for b in batches]
    assert [i for part in within for i in part] != sorted(range(5))  # shuffled


# --- Eq. (12), (13): local training ---------------------------------------------------


def plain_local_training(ctx: Context, down, shards, client: int) -> dict:
    """An ordinary loop over Eq. (13) with the virtual order of the client."""
    hp, net = ctx.hp, copy.deepcopy(ctx.net.module).train()
    net.load_state_dict(down.model.state)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    mine, draw = shards.index[client], ctx.random("batches", client)
    pool = down.virtual.images, down.virtual.labels
    order = torch.randperm(
        len(pool[1]), generator=ctx.random("virtual batches", client)
    )
    size, step = hp.v_batch_size, 0
    cycle = [order[i : i + size] for i in range(0, len(order), size)]
    for _ in range(ctx.training.local_epochs):
        for rows in mine[torch.randperm(len(mine), generator=draw)].split(8):
            if len(rows) < 8:
                continue
            x, y = shards.x[rows], shards.y[rows]
            v, c = (part[cycle[step % len(cycle)]] for part in pool)
            if hp.separate_virtual_bn_forward:
                own, made = net(x), net(v)
                z, logits, zv, scores = own.high, own.logits, made.high, made.logits
            else:
                out = net(torch.cat([x, v]))
                z, zv = out.high[:8], out.high[8:]
                logits, scores = out.logits[:8], out.logits[8:]
            unit = nn.functional.normalize
            s = (unit(z) @ unit(zv).T / hp.align_temperature).exp()
            terms = []
            for b in range(8):
                own, others = s[b][c == y[b]].sum(), s[b][c != y[b]].sum()
                if (c == y[b]).any() and (c != y[b]).any():
                    terms.append((others / own).log())
            loss = nn.functional.cross_entropy(logits, y)
            loss = loss + hp.tuning_weight * nn.functional.cross_entropy(scores, c)
            if terms:
                loss = loss + hp.align_weight * torch.stack(terms).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            step += 1
    return net.state_dict()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"net": "digits_bn"},
        {"net": "digits_bn", "separate_virtual_bn_forward": True},
        {"align_weight": 0.0},  # LT-fa
        {"tuning_weight": 0.0},  # LT-ct
        {"align_weight": 0.3, "tuning_weight": 2.0, "v_batch_size": 4},
    ],
    ids=str,
)
def test_local_training_equals_a_plain_loop(changes):
    """Eq. (12), (13): two epochs, five virtual images a batch, twelve in all."""
    training = Training(learning_rate=0.1, local_epochs=2)
    changes = {"v_batch_size": 5, "align_temperature": 0.5} | changes
    ctx = context(2, number=2, training=training, **changes)
    server, mine = METHOD.init(ctx)
    images = torch.rand(server.images.shape, generator=generator(0, "v")) * 2 - 1
    server = server._replace(images=images, known=torch.tensor(True))
    down, shards = METHOD.broadcast(ctx, server), toy_shards([24, 17])
    after, _, terms = METHOD.client(ctx, down, mine, shards)
    for client in range(2):
        wanted = plain_local_training(ctx, down, shards, client)
        for name, value in wanted.items():
            found = after.state[name][client]
            torch.testing.assert_close(found, value, rtol=0, atol=2e-5)
    assert all(terms[name].abs().min() > 0 for name in ("supervised", "tuning"))


@pytest.mark.parametrize("keep", [True, False])
def test_statistics_of_the_virtual_pass_can_be_forgotten(keep):
    """Without them the running means are those of own images alone."""
    ctx = context(
        net="digits_bn",
        separate_virtual_bn_forward=True,
        keep_virtual_statistics=keep,
    )
    x = torch.randn(8, 1, 8, 8, generator=generator(0, "x"))
    virtual = torch.rand(6, 1, 8, 8, generator=generator(0, "v"))
    states = [ctx.net.init(generator(0, "f")) for _ in range(2)]
    own, made = fedpg.forward(ctx, states[0], x, virtual)
    plain = ctx.net(states[1], x, train=True)
    torch.testing.assert_close(own.logits, plain.logits)
    assert made.high.shape == (6, 32)
    for name in ctx.net.buffers:
        assert torch.equal(states[0][name], states[1][name]) != keep, name


def test_virtual_statistics_cannot_be_forgotten_in_a_joint_pass():
    with pytest.raises(ValidationError, match="needs separate_virtual_bn_forward"):
        HP(keep_virtual_statistics=False)


def test_the_switches_of_local_training_matter():
    """Every reading of the client's side leads to other weights."""

    def trained(**changes):
        ctx = context(1, number=2, net="digits_bn", **changes)
        server, mine = METHOD.init(ctx)
        images = torch.rand(server.images.shape, generator=generator(0, "v"))
        server = server._replace(images=images, known=torch.tensor(True))
        down = METHOD.broadcast(ctx, server)
        return METHOD.client(ctx, down, mine, toy_shards([24]))[0].state

    plain = trained()
    for changes in (
        {"fa": "eq11_raw", "align_temperature": 1.0},
        {"fa": "supcon_union"},
        {"align_temperature": 1.0},
        {"v_batch_size": 5},
        {"v_batch_balanced": True, "v_batch_size": 4},
        {"separate_virtual_bn_forward": True},
        {"align_weight": 0.0},
        {"tuning_weight": 0.0},
    ):
        other = trained(**changes)
        assert max(float((plain[k] - other[k]).abs().max()) for k in plain) > 1e-3


# --- The method as a whole ------------------------------------------------------------


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
@pytest.mark.parametrize(
    "changes",
    [
        {"align_weight": 0.0, "tuning_weight": 0.0},
        {"align_weight": 0.0, "tuning_weight": 0.0, "variant": "reference"},
        {"virtual_until": 0},
    ],
    ids=str,
)
def test_without_virtual_data_it_is_fedavg_bit_for_bit(net, changes):
    mine = play(3, [24, 17, 0, 9], net=net, **changes)[-1]
    simpler = play(3, [24, 17, 0, 9], method=fedavg.METHOD, net=net)[-1]
    assert_same(mine.mine, simpler.mine)
    assert_same(mine.server.model, simpler.server.model)


def test_the_first_round_has_no_virtual_data():
    one, two = play(2, [24, 17])
    simpler = play(1, [24, 17], method=fedavg.METHOD)[0]
    assert_same(one.mine, simpler.mine)
    assert not one.down.virtual.known
    assert two.down.virtual.known
    assert one.terms["tuning"].tolist() == one.terms["align"].tolist() == [0, 0]
    assert (two.terms["tuning"] > 0).all()


def test_what_is_sent():
    """FedPG's Algorithm 1: D' is C n_v images; d numbers for each class one owns."""
    one, two = play(2, [24, 17, 9], virtual_per_class=5)
    parameters = toy_context(METHOD, 1).net.parameter_count()
    assert one.sent["down/virtual"] == (0, 0)
    assert two.sent["down/virtual"] == (3 * 4 * 5 * 64, 3 * 4 * 5)
    for after in (one, two):
        assert after.sent["down/model"].floats == 3 * parameters
        assert after.sent["up/model"].floats == 3 * parameters
        present = int((after.up.protos.count > 0).sum())
        assert 9 <= present <= 12
        assert after.sent["up/protos"] == (present * 32, present)
        assert after.sent["up/samples"] == (0, 3)
    virtual = fedpg.Virtual(
        torch.zeros(640, 3, 32, 32), torch.zeros(640).long(), torch.tensor(True)
    )
    assert virtual.sent()[0] * 4 == 7_864_320  # 7.86 MB of CIFAR-10


def test_all_clients_of_a_round_get_the_same_images():
    after = play(2, [24, 17, 9], participation=0.67)[-1]
    assert len(after.cohort) == 2
    assert after.down.virtual.images.shape == (12, 1, 8, 8)  # no client axis


def test_images_of_the_last_round_that_makes_them_are_used_in_the_next():
    """The released log, bound 30: test accuracy jumps after round 31, from 44.5.

    virtual_until = 2: D' is made in rounds 1 and 2 and used in rounds 2 and 3.
    """
    ever, until = play(5, [24, 17]), play(5, [24, 17], virtual_until=2)
    for number in (0, 1, 2):
        assert_same(ever[number].mine, until[number].mine)
    used = [bool((after.terms["tuning"] > 0).all()) for after in until]
    sent = [after.sent["down/virtual"] != (0, 0) for after in until]
    made = [not after.watched["right"].isnan() for after in until]
    told = [after.sent["up/protos"] != (0, 0) for after in until]
    assert used == sent == [False, True, True, False, False]
    assert made == told == [True, True, False, False, False]
    assert_same(until[2].down.virtual.images, until[1].server.images)
    for after in until[2:]:
        assert set(after.watched) == set(until[1].watched)
        assert all(v.isnan() for v in after.watched.values())
        for field in ("generator", "protos", "anchors", "images"):
            assert_same(getattr(after.server, field), getattr(until[1].server, field))


def test_every_generator_that_was_trained_is_sent():
    """Whatever the bound, as many rounds use images as make them."""
    for bound in (0, 1, 3):
        after = play(bound + 2, [24, 17], virtual_until=bound)
        used = [bool(a.down.virtual.known) for a in after]
        made = [not a.watched["right"].isnan() for a in after]
        assert (sum(made), used) == (bound, [False, *made[:-1]])
        assert_same(after[-1].terms["align"], torch.zeros(2))  # FedAvg from here on


def test_without_a_prototype_the_old_images_stay():
    one = play(1, [24, 17])[0]
    ctx = context(2, number=2)
    nothing = one.up._replace(
        protos=Protos(0 * one.up.protos.mean, 0 * one.up.protos.count)
    )
    after, terms = METHOD.merge(ctx, one.server, nothing)
    assert_same(after.images, one.server.images)
    assert_same(after.protos, one.server.protos)
    assert bool(after.known)
    assert all(v.isnan() for v in terms.values())


def test_merge_reports_the_generators_terms():
    """By the functions themselves where P' do not move and one step is made."""
    ctx = context(2, proto_lr=0.0, generator_steps=1)
    server, mine = METHOD.init(ctx)
    shards = toy_shards([24, 17])
    _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    after, terms = METHOD.merge(ctx, server, up)
    start = fedpg.first_anchors(ctx, server, after.protos)
    assert_same(after.anchors, start)
    distance = fedpg.anchor_distance(start, after.protos, ctx.hp)
    torch.testing.assert_close(terms["distance"], distance)
    draws, weights = ctx.random("generator"), copy.deepcopy(server.generator)
    y = torch.randint(4, (128,), generator=draws)
    noise = torch.rand(128, 4, generator=draws)
    images = fedpg.build_generator(ctx)(weights, noise, y, train=True)
    z = ctx.net(after.model.state, images).high
    far = torch.cdist(z, start) / 2
    own, rest = far[range(128), y], far.scatter(1, y[:, None], 1e9)
    entropy = (own + torch.logsumexp(-rest, 1)).mean()
    torch.testing.assert_close(terms["entropy"], entropy, rtol=1e-4, atol=1e-5)
    lengths = (2 * own).pow(2).mean()
    torch.testing.assert_close(terms["proto"], lengths, rtol=1e-4, atol=1e-4)
    norm = (start - after.protos.mean).norm(dim=1).mean()
    torch.testing.assert_close(terms["gap"], norm)
    torch.testing.assert_close(terms["gap_before"], norm)
    assert 0 <= terms["right"] <= 1


@pytest.mark.parametrize("generator_kind", ["fc", "conv"])
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_both_variants_and_generators_run_with_batchnorm_and_few_clients(
    variant, generator_kind
):
    last = play(
        3,
        [24, 1, 9, 0],
        participation=0.75,
        net="digits_bn",
        variant=variant,
        generator=generator_kind,
    )[-1]
    for value in flatten(last.server).values():
        assert value.float().isfinite().all()
    assert last.server.images.abs().max() <= 1


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_chunks_do_not_matter(net):
    sizes = [24, 9, 17, 8, 30]
    together = play(2, sizes, net=net)[-1]
    for chunk in (1, 2):
        apart = play(2, sizes, net=net, chunk=chunk)[-1]
        assert_same(together.mine, apart.mine, atol=1e-5)
        assert_same(together.server.images, apart.server.images, atol=1e-4)


def test_same_bits_twice():
    assert_same(play(2, [24, 17])[-1].server, play(2, [24, 17])[-1].server)


def test_batchnorm_statistics_are_averaged():
    after = play(2, [24, 17], net="digits_bn")[-1]
    share = torch.tensor([24.0, 17.0], dtype=torch.float64) / 41
    for name, each in after.up.model.buffers.items():
        if each.is_floating_point():
            wanted = torch.tensordot(share, each.double(), 1).float()
            torch.testing.assert_close(after.server.model.buffers[name], wanted)


def test_single_sample_prototypes_are_counted():
    """A class with one sample: its prototype is that sample's embedding."""
    shards = toy_shards([9, 9])
    shards.y[:9] = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 3])
    shards.y[9:] = 2
    ctx = context(2)
    server, mine = METHOD.init(ctx)
    _, up, terms = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    assert terms["single_sample_protos"].tolist() == [2, 0]
    assert up.protos.count.tolist() == [[5, 2, 1, 1], [0, 0, 9, 0]]


def test_one_class_is_refused_where_eq_8_would_have_an_empty_denominator():
    with pytest.raises(ValueError, match="needs two classes"):
        METHOD.init(context(classes=1))
    METHOD.init(context(classes=1, dce_denominator="all"))


def test_raw_alignment_that_runs_away_is_refused_by_name():
    hot = Training(learning_rate=50.0, local_epochs=3)
    with pytest.raises(NonFiniteError, match=r"fedpg, round \d, client \d: \w+"):
        play(9, [24, 17], fa="eq11_raw", training=hot)


def test_variants_and_presets():
    """Print and release differ in each of ``REFERENCE``; one switch changes alone."""
    hp = HP(variant="reference")
    for name, value in REFERENCE.items():
        assert getattr(hp, name) == value
        assert getattr(HP(), name) != value, name
    assert HP(variant="reference", gan_dist="l2").gan_dist == "l2"
    assert (hp.virtual_per_class, hp.align_weight, hp.tuning_weight) == (64, 1, 1)
    paper = HP()
    assert (paper.virtual_per_class, paper.align_weight, paper.support) == (64, 1, 20)
    assert (paper.generator_steps, paper.generator_batch_size) == (300, 128)
    assert paper.generator_learning_rate == paper.proto_lr == 2e-5
    assert (paper.gan_tau, paper.proto_weight, paper.noise_size) == (2, 0.001, 512)
    assert "fedpg" not in papers.TABLES["fedpg"].presets
    assert set(fedpg.ABLATIONS) == {"GT-d", "GT-p", "LT-fa", "LT-ct"}
    for weights in fedpg.ABLATIONS.values():
        assert [getattr(HP(**weights), name) for name in weights] == [0.0]


def test_released_configurations():
    """What both programs set of FedPG at commit 73ce01e, and the code's readings."""
    wanted = {"notebook": (256, 64, 20, 1, 30), "script": (50, 64, 0.1, 0.5, None)}
    names = ("virtual_per_class", "v_batch_size", "align_weight", "tuning_weight")
    for variant, values in wanted.items():
        hp = HP.model_validate({"variant": variant})
        for name, value in zip((*names, "virtual_until"), values, strict=True):
            assert getattr(hp, name) == value
        told = {"variant", *names, "virtual_until"}
        rest = HP(variant="reference").model_dump(exclude=told)
        assert hp.model_dump(exclude=told) == rest
    assert HP(variant="notebook", align_weight=5.0).align_weight == 5
