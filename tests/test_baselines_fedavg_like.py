"""FedProx, MOON, FedNTD, FedGKD and FedEnsemble: by hand, by plain loops, by switch."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedlib import papers, registry
from fedlib.baselines import fedprox
from fedlib.local import Training
from fedlib.method import Context, Round, rounds
from fedlib.nets import State
from fedlib.tree import flatten
from tests.conftest import toy_context, toy_shards

SIZES = [24, 17, 9]


def context(name: str, clients: int = 3, **changes) -> Context:
    """Return a method's toy federation in round 1."""
    number = changes.pop("round", 1)
    return replace(toy_context(registry.method(name), clients, **changes), round=number)


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
    found = [registry.presets("fedprox", "fedmps", n)["prox_weight"] for n in names]
    assert found == [0.01, 0.1, 0.001, 0.01, 0.01, 0.1]
