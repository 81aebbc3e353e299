"""FedPer, FedRep, FeSEM, FedFA and FedRCL by hand, by plain loops and by purpose.

The loops train one client at a time with torch's own optimisers; they share nothing
with the library but the order of the batches and the forward pass of a net.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from fedlib import nets, readouts, registry
from fedlib.baselines import fesem
from fedlib.local import Shards, Training, _batches
from fedlib.messages import Model, Size
from fedlib.method import Context, Round, rounds
from fedlib.nets import State
from fedlib.rng import seed_of
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


# FeSEM: who belongs together


def meet(
    weights: list[float],
    centres: list[float],
    home: list[int],
    *,
    clients: list[int] | None = None,
    samples: list[int] | None = None,
    classes: list[int] | None = None,
    **hp,
) -> tuple[list[float], list[int]]:
    """Merge clients of one weight each; return the centres and who is where."""
    clients = list(range(len(weights))) if clients is None else clients
    ctx = federation("fesem", len(home), clusters=len(centres), **hp)
    known = torch.ones(len(weights), dtype=torch.bool)
    up = fesem.Up(
        Model({"w": torch.tensor(weights).view(-1, 1)}, {}, known),
        torch.tensor(samples or [1] * len(weights)),
        torch.tensor(clients),
        torch.tensor(classes) if classes else {},
    )
    held = torch.tensor(centres).view(-1, 1)
    kept = Model({"w": held}, {}, torch.ones(len(held), dtype=torch.bool))
    server, _ = fesem.merge(ctx, fesem.Server(kept, torch.tensor(home)), up)
    return server.centres.params["w"].flatten().tolist(), server.home.tolist()


def test_expectation_and_maximisation_by_hand():
    """1 and 2 are nearer to 0, 9 is nearer to 10; their means are 1.5 and 9.

    By 1, 3 and 5 samples the first mean is (1 + 3 * 2) / 4.
    """
    seen = [0, 1, 1]  # all three have met before; the second changes sides
    assert meet([1.0, 2.0, 9.0], [0.0, 10.0], seen) == ([1.5, 9.0], [0, 0, 1])
    counted = {"samples": [1, 3, 5], "weighting": "samples"}
    assert meet([1.0, 2.0, 9.0], [0.0, 10.0], seen, **counted)[0] == [1.75, 9.0]
    assert meet([9.0, 1.0, 2.0], [0.0, 10.0], seen, clients=[2, 0, 1]) == (
        [1.5, 9.0],
        [0, 0, 1],
    )


@pytest.mark.parametrize(
    ("weights", "centres", "home", "wanted"),
    [
        # all are nearest to 0; the farthest of them begins the other cluster
        ([1.0, 2.0, 9.0], [0.0, 100.0], [0, 0, 1], ([1.5, 9.0], [0, 0, 1])),
        # two clusters are empty: the farthest client, then the next one
        (
            [1.0, 2.0, 9.0],
            [0.0, 90.0, 100.0],
            [0, 0, 1],
            ([1.0, 9.0, 2.0], [0, 2, 1]),
        ),
        # the farther client is alone in its cluster, and stays there
        (
            [1.0, 2.0, 70.0],
            [0.0, 50.0, 100.0],
            [0, 0, 1],
            ([1.0, 70.0, 2.0], [0, 2, 1]),
        ),
        # nobody to spare: an empty cluster stays as it is
        ([1.0, 60.0], [0.0, 50.0, 99.0], [0, 1], ([1.0, 60.0, 99.0], [0, 1, -1])),
    ],
)
def test_empty_clusters_by_hand(weights, centres, home, wanted):
    home = home + [-1] * (len(wanted[1]) - len(home))
    assert meet(weights, centres, home) == wanted


def test_absent_clients_keep_their_cluster_and_its_centre():
    """Client 2 is away: its centre at 10 is not empty, and does not move."""
    found = meet([1.0, 2.0], [0.0, 10.0], [0, 0, 1], clients=[0, 1])
    assert found == ([1.5, 10.0], [0, 0, 1])


def test_a_client_without_samples_joins_no_cluster():
    found = meet([1.0, 9.0, 9.0], [0.0, 10.0], [0, 1, -1], samples=[1, 1, 0])
    assert found == ([1.0, 9.0], [0, 1, -1])


def test_fedprotos_clusters_count_classes():
    """Two and three classes are below the mean of 3.25; distances do not matter."""
    wanted = ([4.5, 6.0], [1, 0, 1, 0])
    hp = {"classes": [4, 2, 4, 3], "assign": "class_count"}
    found = meet([3.0, 1.0, 9.0, 8.0], [3.0, 9.0], [-1] * 4, **hp)
    assert found == wanted
    alike = meet([3.0, 1.0], [-7.0, 9.0], [-1] * 2, **(hp | {"classes": [2, 2]}))
    assert alike == ([-7.0, 2.0], [1, 1])  # nobody is below the mean
    one = meet([3.0, 1.0], [3.0], [-1] * 2, **(hp | {"classes": [2, 4]}))
    assert one == ([2.0], [0, 0])


def test_fedprotos_clusters_in_a_run():
    """Clients of one class and of four."""
    shards = toy_shards([24, 24, 24, 24])
    y = shards.y.clone()
    y[:24], y[48:72] = 0, 1
    ctx = federation("fesem", 4, assign="class_count")
    last = play(ctx, "fesem", shards._replace(y=y), 2)[-1]
    assert last.up.classes.tolist() == [1, 4, 1, 4]
    assert last.server.home.tolist() == [0, 1, 0, 1]
    plain = play(federation("fesem", 4), "fesem", shards, 1)[0]
    assert plain.up.classes == {}


def test_fesem_is_a_plain_loop():
    """Three rounds: k-means++ on the first weights, then loops over clients."""
    shards = disagreeing()
    ctx = federation("fesem", 4)
    mine = registry.method("fesem").init(ctx)[1]
    held = [row(mine.state, k) for k in range(4)]
    keys = held[0].keys()
    centres: list[State] = []
    for number, found in enumerate(play(ctx, "fesem", shards, 3), 1):
        now = replace(ctx, round=number)
        held = [
            fit(now, held[k], shards, steps_of(now, shards, k), keys) for k in range(4)
        ]
        for k in range(4):
            assert_equal(row(found.mine.state, k), held[k], **CLOSE)
        if number == 1:
            flat = [torch.cat([one[k].flatten() for k in keys]).numpy() for one in held]
            seed = seed_of(ctx.seed, "k-means++") % 2**32
            drawn = kmeans_plusplus(np.stack(flat), 2, random_state=seed)[1]
            centres = [held[i] for i in drawn]
        home = []
        for one in held:
            far = [
                sum(float((one[k] - c[k]).double().square().sum()) for k in keys)
                for c in centres
            ]
            home.append(far.index(min(far)))
        assert found.server.home.tolist() == home
        for c in (0, 1):
            members = [one for one, h in zip(held, home, strict=True) if h == c]
            centres[c] = average(members, [1.0] * len(members), keys)
            assert_equal(row(found.server.centres.params, c), centres[c], **CLOSE)
        held = [centres[h] for h in home]
        models = registry.method("fesem").models(ctx, found.server, found.mine)
        assert models.received is not None
        for k in range(4):
            assert_equal(row(models.received, k), held[k], **CLOSE)


def test_fesem_finds_who_agrees():
    """Two pairs of clients that call the classes differently."""
    shards = disagreeing()
    found = {}
    for name in ("fedavg", "fesem"):
        ctx = federation(name, 4)
        history = play(ctx, name, shards, 5)
        found[name] = accuracy(ctx, name, history[-1], shards)
    home = history[-1].server.home.tolist()
    assert home[0] == home[1] != home[2] == home[3]
    assert found["fedavg"] < 0.6 < 0.9 < found["fesem"]
    assert float(history[0].watched["changed"]) == 4
    assert float(history[-1].watched["changed"]) == 0


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_a_client_receives_one_centre(net):
    """Nothing in round 1, then one model each, however many clusters there are."""
    ctx = federation("fesem", 4, net=net, clusters=3)
    first, second = play(ctx, "fesem", toy_shards([16, 16, 16, 16]), 2)
    held = [v for v in ctx.net.module.state_dict().values()]
    floats = sum(v.numel() for v in held if v.is_floating_point())
    ints = sum(v.numel() for v in held if not v.is_floating_point())
    assert first.sent["down/centre"] == Size(0, 0)
    assert second.sent["down/centre"] == Size(4 * floats, 4 * ints)
    assert second.sent["up/model"] == Size(4 * ctx.net.parameter_count(), 0)
    assert second.sent["up/client"] == Size(0, 4)
    assert "up/classes" not in second.sent


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
def test_newcomers_start_from_their_own_weights(buffers):
    """One of four clients a round, more clusters than have come so far."""
    ctx = federation("fesem", 4, net="digits_bn", clusters=3, buffers=buffers)
    fesem_method, shards = registry.method("fesem"), toy_shards([16, 16, 16, 16])
    stepping = rounds(fesem_method, ctx, shards, participation=0.25)
    begun = fesem_method.init(ctx)[1].state
    met: set[int] = set()
    for found in islice(stepping, 6):
        (k,) = found.cohort
        home = found.down.centre.home
        assert {i for i in range(4) if home[i] >= 0} == met
        start = found.down.centre.own(torch.arange(4), begun)
        for i in set(range(4)) - met:
            assert_equal(row(start, i), row(begun, i), rtol=0, atol=0)
        met.add(k)
    assert all(torch.isfinite(v).all() for v in found.server.centres.params.values())
