"""FedPer, FedRep, FeSEM, FedFA and FedRCL by hand, by plain loops and by purpose.

The loops train one client at a time with torch's own optimisers; they share nothing
with the library but the order of the batches and the forward pass of a net.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib import nets, readouts, registry
from fedlib.local import Shards, Training, _batches
from fedlib.messages import Size
from fedlib.method import Context, Round, rounds
from fedlib.nets import State
from tests.conftest import toy_context, toy_shards

CLOSE = {"rtol": 0, "atol": 3e-6}
SIZES = [24, 9, 17]


def federation(name: str, clients: int, **changes) -> Context:
    return toy_context(registry.method(name), clients, **changes)


def play(ctx: Context, name: str, shards: Shards, count: int = 1) -> list[Round]:
    return list(islice(rounds(registry.method(name), ctx, shards), count))


def row(state: State, client: int) -> State:
    return {k: v[client].clone() for k, v in state.items()}


def assert_equal(one: State, other: State, **tolerance) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(
            value, other[key], msg=lambda m, k=key: f"{k}: {m}", **tolerance
        )


def steps_of(
    ctx: Context, shards: Shards, client: int, phase: str = ""
) -> list[Tensor]:
    """Return the rows of each batch of one client in one round."""

    def random(purpose: str, who: int) -> torch.Generator:
        return ctx.random(phase + purpose, who)

    plan = _batches(shards, client, ctx.training, random)
    return [plan.order[start:end] for start, end in plan.spans]


def fit(
    ctx: Context,
    weights: State,
    shards: Shards,
    batches: list[Tensor],
    free: Collection[str],
    more: Callable[[nets.Out, Tensor], Tensor | float] = lambda out, y: 0.0,
    after: Callable[[State], None] = lambda weights: None,
) -> State:
    """Train one client's free weights by torch's SGD on cross-entropy and ``more``."""
    weights = {k: v.clone().requires_grad_(k in free) for k, v in weights.items()}
    stepper = torch.optim.SGD([weights[k] for k in free], lr=0.1, momentum=0.5)
    for rows in batches:
        out, y = ctx.net(weights, shards.x[rows], train=True), shards.y[rows]
        stepper.zero_grad()
        (F.cross_entropy(out.logits, y) + more(out, y)).backward()
        stepper.step()
        with torch.no_grad():
            after(weights)
    return {k: v.detach() for k, v in weights.items()}


def average(
    models: list[State], weight: Sequence[float], names: Collection[str]
) -> State:
    share = torch.tensor(weight, dtype=torch.float64) / sum(weight)
    stacked = {k: torch.stack([m[k].double() for m in models]) for k in names}
    return {k: torch.tensordot(share, v, 1).float() for k, v in stacked.items()}


def disagreeing(turn: int = 2) -> Shards:
    """Four clients; what the last two call class c, the first two call c + 2."""
    shards = toy_shards([64, 64, 64, 64])
    y = shards.y.clone()
    y[128:] = (y[128:] + turn) % 4
    return shards._replace(y=y)


def accuracy(ctx: Context, name: str, last: Round, shards: Shards) -> float:
    method = registry.method(name)
    found = readouts.evaluate(
        ctx.net,
        method.models(ctx, last.server, last.mine),
        torch.ones(len(shards.index), 4, dtype=torch.bool),
        shards,
        shards,
    )
    right = found["accuracy/" + "/".join(method.rule(ctx.hp))]
    return float(right.sum() / found["samples"].sum())


HEAD = {"head.0.weight", "head.0.bias"}
LINEAR = HEAD | {"high.1.weight", "high.1.bias"}
CONVOLUTIONS = {"low.0.weight", "low.0.bias", "low.3.weight", "low.3.bias"}


# FedPer and FedRep: what is personal


@pytest.mark.parametrize(
    ("net", "shape", "head", "linear"),
    [
        ("digits_linear", (1, 8, 8), ["head.0"], ["high.1", "head.0"]),
        ("digits_cnn", (1, 8, 8), ["head.0", "head.2"], ["high.1", "head.0", "head.2"]),
        ("mnist_cnn", (1, 28, 28), ["head.1"], ["high.1", "head.1"]),
        ("fedpa_cnn", (1, 28, 28), ["head.0"], ["high.1", "head.0"]),
        ("convnet5", (1, 32, 32), ["head.0", "head.2"], ["head.0", "head.2"]),
        ("resnet10", (3, 8, 8), ["head.0"], ["head.0"]),
    ],
)
def test_which_layers_are_personal(net, shape, head, linear):
    """Every name of the net's layers is on one side; BatchNorm goes with the body."""
    built = nets.build(net, shape, 4)
    own_names = registry.import_module("fedlib.baselines.fedper").own_names
    for which, layers in {"head": head, "linear": linear, "nothing": []}.items():
        wanted = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        assert own_names(built, which) == wanted


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
@pytest.mark.parametrize(
    ("net", "classes", "shared"),
    # GFPL, Table 1: 10 * 25 + 10 and 20 * 250 + 20; kernel 3: 10 * 9 + 10
    [("mnist_cnn", 10, 260 + 5_020), ("femnist_cnn", 62, 100 + 5_020)],
)
def test_what_twenty_clients_upload_in_gfpls_table(name, net, classes, shared):
    """105.6k floats on MNIST and 102.4k on FEMNIST, and as much the other way."""
    x = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    index = [torch.tensor([k]) for k in range(20)]
    shards = Shards(x, torch.arange(20) % classes, index, list(range(20)))
    for dataset in ("mnist", "cifar10"):
        hp = registry.presets(name, "gfpl", dataset)
        assert hp == {"personal": "linear", "weighting": "uniform"}
    ctx = federation(name, 20, **hp)
    ctx = replace(ctx, net=nets.build(net, (1, 28, 28), classes), classes=classes)
    (first,) = play(ctx, name, shards)
    assert first.sent["up/model"] == Size(20 * shared, 0)
    assert first.sent["down/model"] == Size(20 * shared, 0)
    assert 20 * shared == {"mnist_cnn": 105_600, "femnist_cnn": 102_400}[net]
    assert [c.field for c in registry.method(name).counted] == ["model"]


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_bodies_are_averaged_and_heads_stay_by_hand(name):
    """Weights 1 and 5, of 10 and 30 samples: a body of (10 + 150) / 40 = 4."""
    ctx = federation(name, 2)
    method = registry.method(name)
    server, mine = method.init(ctx)
    each = torch.tensor([1.0, 5.0])
    state = {
        k: each.view(2, *[1] * (v.ndim - 1)).expand_as(v).clone()
        for k, v in mine.state.items()
    }
    shards = toy_shards([10, 30])
    _, up, _ = method.client(
        replace(ctx, round=1), method.broadcast(ctx, server), mine, shards
    )
    model = up.model._replace(params={k: state[k] for k in up.model.params})
    merged, _ = method.merge(ctx, server, up._replace(model=model))
    held = method.models(ctx, merged, mine._replace(state=state)).received
    assert held is not None
    for key, value in held.items():
        wanted = [1.0, 5.0] if key in HEAD else [4.0, 4.0]
        assert value.flatten(1)[:, 0].tolist() == pytest.approx(wanted), key


@pytest.mark.parametrize(("personal", "own"), [("head", HEAD), ("linear", LINEAR)])
def test_fedper_is_a_plain_loop(personal, own):
    """Two rounds: each client's own layers on the mean of the bodies, trained whole."""
    ctx = federation("fedper", 3, personal=personal)
    shards = toy_shards(SIZES)
    everything = ctx.net.init_names()
    mine = registry.method("fedper").init(ctx)[1]
    held = [row(mine.state, k) for k in range(3)]
    for number, found in enumerate(play(ctx, "fedper", shards, 2), 1):
        now = replace(ctx, round=number)
        trained = [
            fit(now, held[k], shards, steps_of(now, shards, k), everything)
            for k in range(3)
        ]
        for k in range(3):
            assert_equal(row(found.mine.state, k), trained[k], **CLOSE)
        shared = average(trained, SIZES, everything - own)
        assert_equal(found.server.model.params, shared, **CLOSE)
        held = [trained[k] | shared for k in range(3)]


def test_personal_heads_serve_clients_that_disagree():
    """One head cannot be right for both; four can, on one body."""
    shards = disagreeing()
    found = {}
    for name in ("fedavg", "fedper", "fedrep"):
        ctx = federation(name, 4)
        found[name] = accuracy(ctx, name, play(ctx, name, shards, 5)[-1], shards)
    assert found["fedavg"] < 0.6
    assert found["fedper"] > 0.9
    assert found["fedrep"] > 0.9


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_statistics_of_the_body_follow_the_policy(name):
    """Averaged and sent with the body, or each client's own beside its head."""
    shards = toy_shards(SIZES)
    for policy in ("average", "local"):
        ctx = federation(name, 3, net="digits_bn", buffers=policy)
        last = play(ctx, name, shards, 2)[-1]
        assert ("up/model_buffers" in last.sent) == (policy == "average")
        models = registry.method(name).models(ctx, last.server, last.mine)
        assert models.received is not None
        for key in ctx.net.buffers:
            value = models.received[key]
            own = last.mine.state[key]
            if policy == "local":
                assert torch.equal(value, own)
            elif value.is_floating_point():
                torch.testing.assert_close(value, own, rtol=0, atol=1.0)
                assert not torch.equal(value, own)
                assert torch.equal(value[0], value[1])


# FedRep: one part at a time


def test_fedrep_is_a_plain_loop_in_two_phases():
    """Two rounds of two head epochs and one body epoch; the other part stands still."""
    ctx = federation("fedrep", 3, head_epochs=2)
    shards = toy_shards(SIZES)
    mine = registry.method("fedrep").init(ctx)[1]
    held = [row(mine.state, k) for k in range(3)]
    twice = ctx.training.model_copy(update={"local_epochs": 2})
    for number, found in enumerate(play(ctx, "fedrep", shards, 2), 1):
        now = replace(ctx, round=number)
        long = replace(now, training=twice)
        for k in range(3):
            before = held[k]
            order = steps_of(long, shards, k, "head ")
            first = fit(now, before, shards, order, HEAD)
            body = before.keys() - HEAD
            held[k] = fit(now, first, shards, steps_of(now, shards, k), body)
            assert_equal(row(found.mine.state, k), held[k], **CLOSE)
            assert all(torch.equal(first[key], before[key]) for key in body)
        shared = average(held, SIZES, body)
        assert_equal(found.server.model.params, shared, **CLOSE)
        held = [one | shared for one in held]


@pytest.mark.parametrize(
    ("epochs", "still"),
    [
        ({"head_epochs": 0}, HEAD),
        ({"body_epochs": 0}, LINEAR - HEAD | CONVOLUTIONS),
        ({"head_epochs": 0, "body_epochs": 0}, LINEAR | CONVOLUTIONS),
    ],
)
def test_a_part_of_no_epochs_is_not_trained(epochs, still):
    ctx = federation("fedrep", 3, **epochs)
    start = registry.method("fedrep").init(ctx)[1].state
    found = play(ctx, "fedrep", toy_shards(SIZES), 2)[-1]
    for key, value in found.mine.state.items():
        assert torch.equal(value, start[key]) == (key in still), key
    wanted = {
        f"{k}_supervised" for k in ("head", "body") if f"{k}_epochs" not in epochs
    }
    assert found.terms.keys() == wanted


def test_longer_heads_fit_their_clients_closer():
    """After ten epochs of its head a client's own loss is below that after one."""
    shards = toy_shards(SIZES)
    left = []
    for count in (1, 10):
        ctx = federation("fedrep", 3, head_epochs=count, body_epochs=0)
        state = play(ctx, "fedrep", shards)[0].mine.state
        each = [
            F.cross_entropy(ctx.net(row(state, k), shards.x[i]).logits, shards.y[i])
            for k, i in enumerate(shards.index)
        ]
        left.append(torch.stack(each))
    assert bool((left[1] < left[0]).all())


def test_a_phase_does_not_read_the_runs_local_epochs():
    """The same lengths under a run of three epochs, and of four steps."""
    shards = toy_shards(SIZES)
    runs = []
    for more in ({}, {"local_epochs": 3}, {"local_steps": 4}):
        training = Training(learning_rate=0.1).model_copy(update=more)
        ctx = federation("fedrep", 3, training=training)
        runs.append(play(ctx, "fedrep", shards)[0].mine.state)
    assert_equal(runs[0], runs[1], rtol=0, atol=0)
    assert_equal(runs[0], runs[2], rtol=0, atol=0)
