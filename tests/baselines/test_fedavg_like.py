"""FedProx, MOON, FedNTD, FedGKD and FedEnsemble: by hand, by plain loops, by switch."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from fedlib import papers, registry
from fedlib.baselines import fedensemble, fedgkd, fedntd, fedprox, moon
from fedlib.core import nets, readouts
from fedlib.core.losses import kl_to_teacher
from fedlib.core.messages import sizes as sizes_of
from fedlib.core.method import Context, Round, rounds
from fedlib.core.net import State
from fedlib.core.rng import generator
from fedlib.core.training import Training
from fedlib.core.tree import flatten, take
from fedlib.papers.protocol import preset
from tests.conftest import toy_context, toy_shards

SIZES = [24, 17, 9]


def context(name: str, clients: int = 3, **changes) -> Context:
    """Return a method's toy federation in round 1."""
    return replace(toy_context(registry.method(name), clients, **changes), round=1)


def play(
    name: str, count: int, *, sizes=SIZES, participation=1.0, start=None, **changes
) -> list[Round]:
    """Return the first rounds of a method on the toy digits."""
    ctx = context(name, len(sizes), **changes)
    stepping = rounds(
        registry.method(name),
        ctx,
        toy_shards(sizes),
        participation=participation,
        start=start,
    )
    return list(islice(stepping, count))


def assert_equal(one, other) -> None:
    """Compare two trees bit for bit."""
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def row(state: State, client: int) -> State:
    return {k: v[client] for k, v in state.items()}


def distance(one: State, other: State) -> float:
    return sum(float((one[k] - other[k]).square().sum()) for k in one) ** 0.5


def trained_alone(ctx, state, shards, client, loss) -> State:
    """Train one client by an ordinary loop over the library's batches."""
    weights = {
        k: v.clone().requires_grad_(v.is_floating_point() and k not in ctx.net.buffers)
        for k, v in row(state, client).items()
    }
    moving = [v for v in weights.values() if v.requires_grad]
    training = ctx.training
    sgd = torch.optim.SGD(moving, training.learning_rate, training.momentum)
    mine, size = shards.index[client], training.batch_size
    order = torch.randperm(len(mine), generator=ctx.random("batches", client))
    for step in range(max(1, len(mine) // size)):
        chosen = mine[order[step * size : (step + 1) * size]]
        sgd.zero_grad()
        loss(weights, shards.x[chosen], shards.y[chosen], client).backward()
        sgd.step()
    return {k: v.detach() for k, v in weights.items()}


def supervised(ctx, weights, x, y):
    logits = ctx.net(weights, x, train=True).logits
    return -torch.stack([z.log_softmax(0)[c] for z, c in zip(logits, y, strict=True)])


def assert_close(found: State, wanted: State, atol: float = 2e-6) -> None:
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=atol)


# FedProx --------------------------------------------------------------------------


def test_fedprox_case_a14_by_hand():
    """w = 3, anchor 1, mu = 0.5: 0.5 / 2 * (3 - 1)^2 = 1, slope 0.5 * (3 - 1) = 1."""
    w = torch.tensor([3.0], requires_grad=True)
    term = 0.5 * fedprox.half_square([w - 1.0])
    (slope,) = torch.autograd.grad(term, w)
    assert float(term.detach()) == 1.0
    assert slope.tolist() == [1.0]


def test_fedprox_without_weight_is_fedavg_bit_for_bit():
    plain, prox = (
        play(n, 3, **h)[-1]
        for n, h in (("fedavg", {}), ("fedprox", {"prox_weight": 0}))
    )
    assert_equal(plain.mine, prox.mine)
    assert_equal(plain.server, prox.server)


def test_fedprox_holds_clients_nearer_to_the_global_weights():
    training = Training(learning_rate=0.02, local_epochs=3)
    ends = {}
    for weight in (0.0, 1.0, 10.0):
        first = play("fedprox", 1, prox_weight=weight, training=training)[0]
        ends[weight] = [
            distance(row(first.mine.state, k), first.down.model.state) for k in range(3)
        ]
    for free, near, nearest in zip(*ends.values(), strict=True):
        assert nearest < near < free


@pytest.mark.parametrize("common", [True, False])
def test_fedprox_equals_a_plain_loop(common):
    """Gradient g + mu (w - w^t), the anchor by hand: broadcast, or the own start."""
    hp = {"prox_weight": 0.8, "common_init": common}
    ctx, shards = context("fedprox", **hp), toy_shards(SIZES)
    method = registry.method("fedprox")
    server, mine = method.init(ctx)
    after, _, terms = method.client(ctx, method.broadcast(ctx, server), mine, shards)
    for client in range(3):
        begin = row(mine.state, client)
        moved = []

        def loss(weights, x, y, client, begin=begin, moved=moved):
            flat = [(weights[k] - begin[k]).flatten() for k in begin]
            apart = torch.cat(flat).pow(2).sum()
            moved.append(float(apart.detach()) / 2)
            return supervised(ctx, weights, x, y).mean() + 0.4 * apart

        wanted = trained_alone(ctx, mine.state, shards, client, loss)
        assert_close(row(after.state, client), wanted)
        assert float(terms["prox"][client]) == pytest.approx(
            sum(moved) / len(moved), abs=1e-6
        )


def test_fedprox_anchor_is_the_broadcast_model_and_not_the_last_own_one():
    """After two free rounds a huge weight holds clients at the model they receive."""
    free = play("fedavg", 2)[-1]
    held = play(
        "fedprox",
        1,
        start=(2, free.server, free.mine),
        prox_weight=5e3,
        training=Training(learning_rate=1e-4, momentum=0.0, local_epochs=4),
    )[0]
    for client in range(3):
        begun = held.down.model.state
        apart = distance(row(free.mine.state, client), begun)
        assert distance(row(held.mine.state, client), begun) < 0.1 * apart


def test_fedprox_detached_term_is_logged_and_never_pulls():
    """FedProto's released term: FedAvg bit for bit, at any weight."""
    plain = play("fedavg", 2)[-1]
    inert = play("fedprox", 2, prox_weight=50.0, term="detached")[-1]
    assert_equal(plain.mine, inert.mine)
    prox = inert.terms["prox"]
    assert (prox[:2] > 0).all()
    assert float(prox[2]) == 0  # its one step is taken at the anchor


def test_fedprox_extra_decay_is_an_l2_decay_of_the_optimiser():
    training = Training(learning_rate=0.1)
    decayed = training.model_copy(update={"weight_decay": 0.05})
    found = play("fedprox", 2, training=training, extra_decay=0.05)[-1]
    wanted = play("fedprox", 2, training=decayed)[-1]
    assert_close(found.mine.state, wanted.mine.state, 1e-6)
    free = play("fedprox", 2, training=training)[-1]
    moved = distance(row(found.mine.state, 0), row(free.mine.state, 0))
    assert moved > 1e-2


def test_fedprox_leaves_batchnorm_statistics_free():
    """Only weights are anchored: under a huge weight the statistics still move."""
    training = Training(learning_rate=1e-5, momentum=0.0)
    first = play("fedprox", 1, prox_weight=1e3, training=training, net="digits_bn")[0]
    ctx = context("fedprox", net="digits_bn")
    begun = first.down.model
    assert (first.terms["prox"] < 1e-6).all()
    for name in ctx.net.buffers:
        assert (first.mine.state[name][0] != begun.buffers[name]).any()


@pytest.mark.parametrize(
    ("paper", "dataset", "weight"),
    [("fedmps", "cifar10", 0.01), ("fedpa", "mnist", 1.0), ("gfpl", "mnist", 0.01)],
)
def test_fedprox_settings_of_papers(paper, dataset, weight):
    hp = papers.setting(paper, dataset, "fedprox").hp
    assert hp["prox_weight"] == weight
    assert hp.get("common_init", True) == (paper != "fedmps")


def test_fedprox_weights_of_fedmps_by_data_set():
    """0.01, 0.1, 0.001, 0.01, 0.01, 0.1 (FedMPS, Section IV-B)."""
    names = ["flowers", "defungi", "realwaste", "cifar10", "fashion", "femnist"]
    table = papers.TABLES["fedmps"].presets
    found = [preset(table, "fedprox", n)["prox_weight"] for n in names]
    assert found == [0.01, 0.1, 0.001, 0.01, 0.01, 0.1]


# MOON -----------------------------------------------------------------------------


def test_moon_contrast_by_hand():
    """Cosines (1, 0) and (0, 1) over 0.5: ln(1 + e^-2) and ln(1 + e^2) = 2 more."""
    z = torch.tensor([[2.0, 0.0], [0.0, 5.0]])  # lengths do not matter
    received, previous = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[0.0, 3.0]] * 2)
    found = moon.contrast(z, received, previous, 0.5)
    assert float(found) == pytest.approx(math.log(1 + math.exp(-2)) + 1, abs=1e-6)


def test_moon_contrast_against_its_formula():
    z, g, p = (
        torch.randn(6, 5, generator=generator(3, name), dtype=torch.float64)
        for name in ("z", "received", "previous")
    )

    def cosine(a, b):
        return a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)

    each = []
    for i, j, k in zip(z.numpy(), g.numpy(), p.numpy(), strict=True):
        near, far = np.exp(cosine(i, j) / 0.3), np.exp(cosine(i, k) / 0.3)
        each.append(-np.log(near / (near + far)))
    assert float(moon.contrast(z, g, p, 0.3)) == pytest.approx(np.mean(each), abs=1e-12)


def test_moon_contrast_has_no_gradient_between_equal_teachers():
    """The aliased teacher: ln 2 for any embedding, and a gradient of exactly 0."""
    z = torch.randn(4, 5, generator=generator(4, "z")).requires_grad_()
    teacher = torch.randn(4, 5, generator=generator(4, "teacher"))
    value = moon.contrast(z, teacher, teacher.clone(), 0.5)
    (slope,) = torch.autograd.grad(value, z)
    assert float(value.detach()) == pytest.approx(math.log(2), abs=1e-7)
    assert (slope == 0).all()


def test_moon_contrast_bears_zero_embeddings_and_small_temperatures():
    z = torch.zeros(2, 3, requires_grad=True)
    teacher = torch.eye(3)[:2]
    value = moon.contrast(z, teacher, -teacher, 1e-3)
    (slope,) = torch.autograd.grad(value, z)
    assert torch.isfinite(slope).all()
    far = moon.contrast(-teacher, teacher, -teacher, 1e-3)  # e^2000 overflows
    assert float(far) == pytest.approx(2000.0)


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_moon_equals_a_plain_loop_in_its_second_round(net):
    """Teachers: the mean of round 1, and what each client itself ended round 1 with."""
    weights = {"contrast_weight": 2.0, "temperature": 0.4}
    shards = toy_shards(SIZES)
    first, second = play("moon", 2, net=net, **weights)
    ctx = replace(context("moon", net=net), round=2)
    merged = first.server.model.state
    begin = {k: v.expand(3, *v.shape) for k, v in merged.items()}
    for client in range(3):
        own = row(first.mine.state, client)

        def loss(weights, x, y, client, own=own):
            z = ctx.net(weights, x, train=True)
            with torch.no_grad():
                near, far = ctx.net(merged, x).high, ctx.net(own, x).high
            a, b = (torch.cosine_similarity(z.high, t) / 0.4 for t in (near, far))
            pairs = torch.stack([a, b], 1)
            wrong = -pairs.log_softmax(1)[:, 0].mean()
            right = -z.logits.log_softmax(1)[range(len(y)), y].mean()
            return right + 2.0 * wrong

        wanted = trained_alone(ctx, begin, shards, client, loss)
        assert_close(row(second.mine.state, client), wanted, 1e-5)


def test_moon_pulls_embeddings_to_the_global_models():
    """Round 2: the larger the weight, the nearer to z_glob, the farther from z_prev."""
    shards = toy_shards([40, 40, 40])
    training = Training(learning_rate=0.05, local_epochs=3)
    first = play("moon", 1, sizes=[40, 40, 40], training=training)[0]
    margins = []
    for weight in (0.0, 1.0, 10.0):
        ctx = context("moon", training=training, contrast_weight=weight)
        after = play(
            "moon",
            1,
            sizes=[40, 40, 40],
            start=(1, first.server, first.mine),
            training=training,
            contrast_weight=weight,
        )[0]
        models = (row(after.mine.state, 0), first.server.model.state)
        z, near, far = (
            ctx.net(m, shards.x[shards.index[0]]).high
            for m in (*models, row(first.mine.state, 0))
        )
        near, far = (torch.cosine_similarity(z, t).mean() for t in (near, far))
        margins.append(float(near - far))
    assert margins == sorted(margins)
    assert margins[2] > margins[0] + 0.005


def test_moon_aliased_teacher_is_fedavg():
    """The released pool of copies: a constant ln 2, and FedAvg bit for bit."""
    plain = play("fedavg", 3)
    aliased = play("moon", 3, contrast_weight=5.0, teacher="aliased")
    true = play("moon", 3, contrast_weight=5.0)
    assert_equal(plain[-1].mine.state, aliased[-1].mine.state)
    assert_equal(plain[-1].server, aliased[-1].server)
    for seen in aliased:
        assert seen.terms["contrast"].tolist() == pytest.approx([math.log(2)] * 3)
    assert_equal(plain[0].mine.state, true[0].mine.state)  # nobody has a previous model
    moved = distance(row(true[1].mine.state, 0), row(plain[1].mine.state, 0))
    assert moved > 1e-4


@pytest.mark.parametrize("common", [True, False])
def test_moon_client_that_never_trained_uses_the_received_model(common):
    """First time in a cohort: ln 2; later: its own last model, however old."""
    sizes = [24, 17, 9, 16, 0, 12]
    seen = play("moon", 6, sizes=sizes, participation=0.5, common_init=common)
    before = torch.zeros(6, dtype=torch.bool)
    again = 0
    for number, after in enumerate(seen):
        for place, client in enumerate(after.cohort):
            term = float(after.terms["contrast"][place])
            if sizes[client] == 0:
                continue
            if before[client]:
                again += 1
                assert term != pytest.approx(math.log(2), abs=1e-6)
            else:
                assert term == pytest.approx(math.log(2), abs=1e-6)
        if number:
            for client in set(range(6)) - set(after.cohort):
                kept, old = after.mine.state, seen[number - 1].mine.state
                assert_equal(row(kept, client), row(old, client))
        trained = [k for k in after.cohort if sizes[k]]
        before[trained] = True
        assert torch.equal(after.mine.trained, before)
    assert again > 3


def test_moon_sends_what_fedavg_sends():
    assert play("moon", 1)[0].sent == play("fedavg", 1)[0].sent


def test_moon_settings_of_papers():
    """FedMPS: 0.1, 0.1, 0.1, 5, 1, 1 by data set, averaged by samples."""
    names = ["flowers", "defungi", "realwaste", "cifar10", "fashion", "femnist"]
    table = papers.TABLES["fedmps"].presets
    found = [preset(table, "moon", n)["contrast_weight"] for n in names]
    assert found == [0.1, 0.1, 0.1, 5.0, 1.0, 1.0]
    hp = moon.HP(**papers.fedmps("cifar10", "moon").hp)
    assert (hp.weighting, hp.common_init, hp.teacher) == ("samples", False, "previous")
    assert papers.fedhpro("cifar10", "moon").hp["contrast_weight"] == 5.0


# FedNTD ---------------------------------------------------------------------------


def test_fedntd_distillation_by_hand():
    """True class 1 of (ln 3, 9, 0) against a flat teacher: q_l = (3/4, 1/4).

    KL of (1/2, 1/2) to it: ln(1/2) - (ln(3/4) + ln(1/4)) / 2 = ln 2 - ln(3) / 2. With
    doubled logits at tau = 2 the softmaxes are the same and tau^2 = 4 times stands
    before it.
    """
    logits, y = torch.tensor([[math.log(3), 9.0, 0.0]]), torch.tensor([1])
    teacher = torch.tensor([[5.0, -7.0, 5.0]])
    wanted = math.log(2) - math.log(3) / 2
    assert float(fedntd.distill(logits, teacher, y, 1.0)) == pytest.approx(wanted)
    found = float(fedntd.distill(2 * logits, 2 * teacher, y, 2.0))
    assert found == pytest.approx(4 * wanted)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_fedntd_distillation_against_its_formula(tau):
    student, teacher = (
        torch.randn(6, 5, generator=generator(5, name), dtype=torch.float64)
        for name in ("student", "teacher")
    )
    y = torch.tensor([0, 4, 2, 2, 1, 3])
    each = []
    for s, g, c in zip(student.numpy(), teacher.numpy(), y.tolist(), strict=True):
        others = [j for j in range(5) if j != c]
        p = np.exp(g[others] / tau) / np.exp(g[others] / tau).sum()
        q = np.exp(s[others] / tau) / np.exp(s[others] / tau).sum()
        each.append(sum(p * np.log(p / q)))
    found = float(fedntd.distill(student, teacher, y, tau))
    assert found == pytest.approx(tau**2 * np.mean(each), abs=1e-12)


def test_fedntd_says_nothing_about_the_true_class():
    """Neither value nor gradient depend on the true logit, the teacher's or our own."""
    student, teacher = (torch.randn(4, 5, generator=generator(6, n)) for n in "ab")
    y = torch.tensor([0, 4, 2, 2])
    shift = 50 * torch.nn.functional.one_hot(y, 5)
    student.requires_grad_()
    value = fedntd.distill(student, teacher, y, 1.0)
    (slope,) = torch.autograd.grad(value, student)
    assert (slope[range(4), y] == 0).all()
    assert (slope != 0).sum() == 16
    moved = fedntd.distill(student + shift, teacher - shift, y, 1.0)
    assert torch.equal(value, moved)
    equal = fedntd.distill(teacher + shift, teacher, y, 1.0)
    assert float(equal) == pytest.approx(0, abs=1e-6)


def test_fedntd_of_two_classes_is_nothing():
    logits, y = torch.tensor([[3.0, 1.0]]), torch.tensor([0])
    assert float(fedntd.distill(logits, -logits, y, 1.0)) == 0


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
@pytest.mark.parametrize("common", [True, False])
def test_fedntd_equals_a_plain_loop(net, common):
    """Two rounds; the teacher is what the client begins with, in eval mode."""
    hp = {"distill_weight": 2.0, "temperature": 1.5, "common_init": common}
    shards, method = toy_shards(SIZES), registry.method("fedntd")
    ctx = context("fedntd", net=net, **hp)
    first, second = play("fedntd", 2, net=net, **hp)
    merged = first.server.model.state
    starts = [
        (ctx, method.init(ctx)[1].state, first),
        (
            replace(ctx, round=2),
            {k: v.expand(3, *v.shape) for k, v in merged.items()},
            second,
        ),
    ]
    for now, begin, after in starts:
        for client in range(3):
            teacher = {k: v.clone() for k, v in row(begin, client).items()}

            def loss(weights, x, y, client, teacher=teacher):
                own = ctx.net(weights, x, train=True).logits
                with torch.no_grad():
                    other = ctx.net(teacher, x).logits
                true = torch.nn.functional.one_hot(y, 4).bool()
                p = (other / 1.5).masked_fill(true, -1e9).softmax(1)
                q = (own / 1.5).masked_fill(true, -1e9).log_softmax(1)
                kl = (p * ((p + 1e-30).log() - q)).masked_fill(true, 0).sum(1)
                right = -own.log_softmax(1)[range(len(y)), y].mean()
                return right + 2.0 * 1.5**2 * kl.mean()

            wanted = trained_alone(now, begin, shards, client, loss)
            assert_close(row(after.mine.state, client), wanted, 1e-5)


def test_fedntd_keeps_the_teachers_view_of_wrong_classes():
    """The larger the weight, the smaller the distance after training."""
    training = Training(learning_rate=0.05, local_epochs=3)
    shards = toy_shards([40, 40])
    ends = []
    for weight in (0.0, 1.0, 10.0):
        first = play(
            "fedntd", 1, sizes=[40, 40], training=training, distill_weight=weight
        )[0]
        ctx, rows = context("fedntd"), shards.index[0]
        own, received = (
            ctx.net(state, shards.x[rows]).logits
            for state in (row(first.mine.state, 0), first.down.model.state)
        )
        ends.append(float(fedntd.distill(own, received, shards.y[rows], 1.0)))
    assert ends == sorted(ends, reverse=True)
    assert ends[2] < 0.3 * ends[0]


def test_fedntd_sends_what_fedavg_sends():
    assert play("fedntd", 1)[0].sent == play("fedavg", 1)[0].sent


def test_fedntd_settings_of_papers():
    hp = fedntd.HP(**papers.fedmps("cifar10", "fedntd").hp)
    assert (hp.weighting, hp.common_init) == ("uniform", False)
    assert (hp.distill_weight, hp.temperature) == (1.0, 1.0)
    assert papers.fedpg("cifar10", "fedntd").hp["temperature"] == 1.0


# FedGKD ---------------------------------------------------------------------------


def test_fedgkd_distillation_by_hand():
    """Teacher (3/4, 1/4), flat student: 3/4 ln(3/2) - 1/4 ln 2, on every sample."""
    teacher = torch.tensor([[0.75, 0.25]] * 2)
    found = kl_to_teacher(teacher, torch.tensor([[1.0, 1.0], [-4.0, -4.0]]), 1.0)
    wanted = 0.75 * math.log(1.5) - 0.25 * math.log(2)
    assert found.tolist() == pytest.approx([wanted] * 2)


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
@pytest.mark.parametrize("common", [True, False])
def test_fedgkd_teacher_is_the_mean_of_the_last_global_models(net, common):
    """M = 3: merged models only, the newest three of them."""
    seen = play("fedgkd", 6, net=net, common_init=common, history=3)
    assert not seen[0].down.teacher.known
    for number in range(1, 6):
        teacher = seen[number].down.teacher
        last = [r.server.model.state for r in seen[max(0, number - 3) : number]]
        assert len(last) == min(3, number)
        assert teacher.known
        for key, value in teacher.state.items():
            each = torch.stack([m[key].double() for m in last])
            wanted = each.mean(0) if value.is_floating_point() else each.amax(0)
            torch.testing.assert_close(value.double(), wanted, rtol=0, atol=1e-6)
        newest = {k: v[0] for k, v in seen[number].server.past.params.items()}
        assert_equal(newest, seen[number].server.model.params)
    assert_equal(seen[1].down.teacher.params, seen[1].down.model.params)


@pytest.mark.parametrize(
    ("net", "buffers"),
    [("digits_linear", "average"), ("digits_bn", "average"), ("digits_bn", "local")],
)
def test_fedgkd_equals_a_plain_loop_in_its_third_round(net, buffers):
    """CE + gamma KL(teacher || student); BatchNorm's statistics by their policy."""
    shards = toy_shards(SIZES)
    _, second, third = play("fedgkd", 3, net=net, buffers=buffers, distill_weight=3.0)
    ctx = replace(context("fedgkd", net=net), round=3)
    for client in range(3):
        own = row(second.mine.state, client)
        begin = own | second.server.model.params
        mean = own | third.down.teacher.params
        if buffers == "average":
            begin |= second.server.model.buffers
            mean |= third.down.teacher.buffers
        else:
            assert third.down.teacher.buffers == third.down.model.buffers == {}
            assert any(
                (own[k] != v).any() for k, v in second.server.model.state.items()
            )

        def loss(weights, x, y, client, mean=mean):
            own = ctx.net(weights, x, train=True).logits
            p = ctx.net(mean, x).logits.detach().softmax(1)
            kl = (p * (p.log() - own.log_softmax(1))).sum(1).mean()
            return -own.log_softmax(1)[range(len(y)), y].mean() + 3.0 * kl

        stacked = {k: torch.stack([v] * 3) for k, v in begin.items()}
        wanted = trained_alone(ctx, stacked, shards, client, loss)
        assert_close(row(third.mine.state, client), wanted, 1e-5)


@pytest.mark.parametrize("common", [True, False])
def test_fedgkd_has_no_teacher_in_the_first_round(common):
    plain = play("fedavg", 1, common_init=common)[0]
    first = play("fedgkd", 1, common_init=common, distill_weight=9.0)[0]
    assert_equal(plain.mine, first.mine)
    assert (first.terms["distill"] == 0).all()
    assert first.sent["down/teacher"].floats == 0


def test_fedgkd_keeps_clients_near_the_teachers_predictions():
    """The larger the weight, the smaller KL(teacher || student) after training."""
    changes = {"sizes": [40, 40], "training": Training(local_epochs=3)}
    second = play("fedgkd", 2, distill_weight=0.0, **changes)[-1]
    ctx, shards = context("fedgkd"), toy_shards([40, 40])
    x, ends = shards.x[shards.index[0]], []
    for weight in (0.0, 1.0, 10.0):
        begun = (2, second.server, second.mine)
        third = play("fedgkd", 1, start=begun, distill_weight=weight, **changes)[0]
        soft = ctx.net(third.down.teacher.state, x).logits.softmax(1)
        logits = ctx.net(row(third.mine.state, 0), x).logits
        ends.append(float(kl_to_teacher(soft, logits, 1.0).mean()))
    assert ends == sorted(ends, reverse=True)
    assert ends[2] < 0.6 * ends[0]


def test_fedgkd_sends_two_models_down_and_one_up():
    second = play("fedgkd", 2, net="digits_bn")[-1].sent
    plain = play("fedavg", 2, net="digits_bn")[-1].sent
    teacher = {
        k.replace("model", "teacher"): v for k, v in plain.items() if "down" in k
    }
    assert second == plain | teacher
    assert len(teacher) == 2


def test_fedgkd_settings_of_papers():
    hp = fedgkd.HP(**papers.fedmps("cifar10", "fedgkd").hp)
    assert (hp.weighting, hp.common_init) == ("uniform", False)
    assert (hp.distill_weight, hp.history) == (0.1, 5)


# FedEnsemble ----------------------------------------------------------------------


def test_fedensemble_with_one_global_model_trains_as_fedavg():
    plain, voted = (
        play(name, 3, sizes=[24, 17, 9, 16], participation=0.5, net="digits_bn")
        for name in ("fedavg", "fedensemble")
    )
    for one, other in zip(plain, voted, strict=True):
        cohort = torch.tensor(one.cohort)  # all that FedAvg holds
        assert_equal(one.mine.state, take(other.mine.state, cohort))
        assert_equal(one.server.model, fedensemble.one(other.server.models, 0))
        assert other.sent == one.sent | {"up/origin": (0, 2)}


@pytest.mark.parametrize("common", [True, False])
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_fedensemble_voters_are_the_cohort_and_what_was_broadcast(common, buffers):
    """Six clients, three a round, one of them empty; three rounds."""
    sizes = [24, 17, 0, 16, 9, 12]
    hp = {"common_init": common, "buffers": buffers, "net": "digits_bn"}
    seen = play("fedensemble", 3, sizes=sizes, participation=0.5, **hp)
    ctx = context("fedensemble", 6, **hp)
    drawn = fedensemble.init(ctx)[1].state
    for number, after in enumerate(seen):
        models = fedensemble.models(ctx, after.server, after.mine)
        assert models.ensemble is not None
        assert models.ensemble.vote == "logits"
        for client in range(6):
            held = row(models.ensemble.states, client)
            own = row(after.mine.state, client)
            before = row(seen[number - 1].mine.state if number else drawn, client)
            if client in after.cohort and sizes[client]:
                assert_equal(held, own)
                assert distance(held, before) > 1e-3
                continue
            known = common or number > 0
            sent = before
            if known:
                model = fedensemble.one(
                    seen[number - 1].server.models if number else seen[0].server.sent, 0
                )
                sent = before | (model.params if buffers == "local" else model.state)
            assert_equal(held, sent)


@pytest.mark.parametrize(("vote", "wins"), [("logits", 0), ("softmax", 1)])
def test_votes_by_hand(vote, wins):
    """Logits (10, 0), (0, 3), (0, 3): their sum is (10, 6), that of softmax (1.1, 1.9).

    The softmax of (0, 3) is (0.047, 0.953).
    """
    net = context("fedavg", classes=2).net
    bias = torch.tensor([[10.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
    states = {
        k: torch.zeros(3, *v.shape) for k, v in net.init(torch.Generator()).items()
    }
    ensemble = readouts.Ensemble(states | {"head.0.bias": bias}, vote)
    total = readouts.votes(net, ensemble, toy_shards([1]))[0, 0]
    wanted = [10.0, 6.0] if vote == "logits" else [1.0948, 1.9052]
    assert total.tolist() == pytest.approx(wanted, abs=1e-3)
    assert int(total.argmax()) == wins


@pytest.mark.parametrize("count", [1, 3])
def test_fedensemble_accuracy_is_that_of_the_summed_outputs(count):
    """Logits of the four clients' models, or softmax of the three global ones."""
    changes = {"sizes": [24, 17, 9, 16], "participation": 0.5, "global_models": count}
    last = play("fedensemble", 4, **changes)[-1]
    ctx = context("fedensemble", 4, global_models=count)
    models = fedensemble.models(ctx, last.server, last.mine)
    train, test = (toy_shards([30, 20, 10, 15], seed=s) for s in (0, 3))
    owns = torch.ones(4, 4, dtype=torch.bool)
    found = readouts.evaluate(ctx.net, models, owns, train, test)
    total = np.zeros((75, 4))
    if count == 1:
        for k in range(4):
            sent = row(last.server.sent.params, 0)
            state = row(last.mine.state, k) if k in last.cohort else sent
            total += ctx.net(state, test.x).logits.numpy()
    else:
        for m in range(3):
            logits = ctx.net(row(last.server.models.params, m), test.x).logits.numpy()
            total += np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    right = total.argmax(1) == test.y.numpy()
    wanted = [int(right[i].sum()) for i in test.index]
    assert found["accuracy/ensemble/head_all"].tolist() == wanted
    assert sum(wanted) > 25  # chance is 19
    assert ("accuracy/global/head_all" in found) == (count == 1)


def test_fedensemble_deals_every_model_to_every_client_once_an_age():
    """Seven clients, three models: groups of 2, 2 and 3; a new draw each 3 rounds."""
    ctx = context("fedensemble", 7, global_models=3)
    ages = [
        torch.stack([fedensemble.deal(replace(ctx, round=t)) for t in rounds])
        for rounds in ((1, 2, 3), (4, 5, 6))
    ]
    for dealt in ages:
        assert (dealt.sort(0).values == torch.arange(3).unsqueeze(1)).all()
        for each in dealt:
            assert sorted(each.bincount(minlength=3).tolist()) == [2, 2, 3]
    assert not torch.equal(*ages)


@pytest.mark.parametrize("participation", [1.0, 0.34])
def test_fedensemble_merges_each_model_from_those_that_trained_it(participation):
    """Weighted by samples; a model that nobody trained stays, bit for bit."""
    sizes = [24, 17, 9, 16, 0, 12]
    changes = {"global_models": 4, "net": "digits_bn", "buffers": "first"}
    seen = play("fedensemble", 3, sizes=sizes, participation=participation, **changes)
    ctx, idle = context("fedensemble", 6, **changes), 0
    for after in seen:
        dealt = fedensemble.deal(replace(ctx, round=after.number)).tolist()
        for m in range(4):
            new, old = (
                fedensemble.one(each, m)
                for each in (after.server.models, after.server.sent)
            )
            who = [k for k in after.cohort if dealt[k] == m and sizes[k]]
            idle += not who
            if not who:
                assert_equal(new, old)
                continue
            total = sum(sizes[k] for k in who)
            for key, value in new.params.items():
                wanted = sum(
                    sizes[k] / total * after.mine.state[key][k].double() for k in who
                )
                torch.testing.assert_close(value.double(), wanted, rtol=0, atol=1e-6)
            first = row(after.mine.state, who[0])
            assert_equal(new.buffers, {k: first[k] for k in new.buffers})
    assert (idle > 0) == (participation < 1)


def test_fedensemble_clients_begin_with_the_model_that_they_were_sent():
    """A vanishing learning rate leaves it as it was; the models differ at first."""
    still = Training(learning_rate=1e-12)
    first = play("fedensemble", 1, training=still, global_models=2)[0]
    sent = first.server.sent.params
    assert distance(row(sent, 0), row(sent, 1)) > 1
    assert set(first.up.origin.tolist()) == {0, 1}
    for client, m in enumerate(first.up.origin.tolist()):
        assert_close(row(first.mine.state, client), row(sent, m))


@pytest.mark.parametrize(
    ("name", "hp"),
    [
        ("fedavg", {}),
        ("fedprox", {}),
        ("fedensemble", {}),
        ("fedensemble", {"global_models": 3}),
    ],
)
def test_fedpas_model_is_sent_once_each_way(name, hp):
    """26,434 numbers on MNIST and 26,962 on 26 letters, whatever M is."""
    for classes, numbers in ((10, 26_434), (26, 26_962)):
        method = registry.method(name)
        net = nets.build("fedpa_cnn", (1, 28, 28), classes)
        ctx = replace(context(name, **hp), net=net, classes=classes)
        server, _ = method.init(ctx)
        down = sizes_of(method.broadcast(ctx, server))
        assert down["model"].floats == numbers
        assert down["model_buffers"].floats == 44
    sent = play(name, 1, **hp)[0].sent
    assert sent["up/model"] == sent["down/model"]


def test_fedensemble_refuses_global_models_without_statistics():
    with pytest.raises(ValueError, match="global_models=2, expected 'average'"):
        fedensemble.HP(global_models=2, buffers="local")
