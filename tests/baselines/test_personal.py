"""FedPer, FedRep, FeSEM, FedFA and FedRCL by hand, by plain loops and by purpose.

The loops train one client at a time with torch's own optimisers; they share nothing
with the library but the order of the batches and the forward pass of a net.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

import fedlib
from fedlib import papers, registry
from fedlib.baselines import fedfa, fedrcl, fesem
from fedlib.blocks import personal_layers
from fedlib.core import method, nets, readouts
from fedlib.core.messages import Model, Size
from fedlib.core.method import Context, Round, rounds
from fedlib.core.net import Out, State
from fedlib.core.protos import class_sums, from_sums
from fedlib.core.rng import seed_of
from fedlib.core.shards import Shards, plan_of
from fedlib.core.training import Training
from fedlib.papers.ours import leaderboard
from fedlib.papers.protocol import preset
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

    plan = plan_of(shards, client, ctx.training, random)
    return [plan.order[start:end] for start, end in plan.spans]


def fit(
    ctx: Context,
    weights: State,
    shards: Shards,
    batches: list[Tensor],
    free: Collection[str],
    more: Callable[[Out, Tensor], Tensor | float] = lambda out, y: 0.0,
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
    every: dict[personal_layers.Personal, list[str]]
    every = {"head": head, "linear": linear, "nothing": []}
    for which, layers in every.items():
        wanted = {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
        assert personal_layers.own_names(built, which) == wanted


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
        hp = preset(papers.TABLES["gfpl"].presets, name, dataset)
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


def test_a_phase_is_as_long_as_the_runs_local_epochs():
    """Three local epochs: six passes of a head of two, three of the body.

    They are those of a run of one local epoch whose parts are so much longer.
    """
    shards, runs = toy_shards(SIZES), []
    for epochs, parts in (
        (3, {"head_epochs": 2}),
        (1, {"head_epochs": 6, "body_epochs": 3}),
    ):
        training = Training(learning_rate=0.1, local_epochs=epochs)
        ctx = federation("fedrep", 3, training=training, **parts)
        runs.append(play(ctx, "fedrep", shards)[0].mine.state)
    assert_equal(runs[0], runs[1], rtol=0, atol=0)
    short = play(federation("fedrep", 3, head_epochs=2), "fedrep", shards)
    assert not torch.equal(short[0].mine.state["high.1.bias"], runs[0]["high.1.bias"])


def test_a_phase_of_a_run_by_steps_has_that_many_per_epoch(monkeypatch):
    """Three steps: a head of two epochs takes six, the body three."""
    taken = []
    whole = method.train_local

    def watched(cohort, task, training, *others, **options):
        taken.append(training.local_steps)
        return whole(cohort, task, training, *others, **options)

    monkeypatch.setattr(method, "train_local", watched)
    training = Training(learning_rate=0.1, local_steps=3)
    ctx = federation("fedrep", 3, training=training, head_epochs=2)
    play(ctx, "fedrep", toy_shards(SIZES))
    assert taken == [6, 3]


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
    before = fesem.Server(kept, torch.tensor(home), torch.zeros(len(home)))
    server, _ = fesem.merge(ctx, before, up)
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


def test_an_empty_cluster_of_fesem_takes_who_is_farthest_from_home():
    """Of three at home in cluster 0 the second is 5 away; one alone stays."""
    home, clients = torch.tensor([0, 0, -1, 0]), torch.tensor([0, 1, 3])
    distance = torch.tensor([[1.0, 9.0], [5.0, 9.0], [2.0, 9.0]])
    assert fesem.fill_empty(home, clients, distance).tolist() == [0, 1, -1, 0]
    assert home.tolist() == [0, 0, -1, 0]  # as it was
    lone, far = torch.tensor([0, 1]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert fesem.fill_empty(lone, torch.arange(2), far).tolist() == [0, 1]


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
def test_newcomers_start_from_a_centre(buffers):
    """One of four clients a round, more clusters than have come so far.

    In round 1 from own weights; later from the centre of a cluster that has clients.
    """
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
        used = sorted({int(home[i]) for i in met})
        centres = found.down.centre.centres.state
        for i in set(range(4)) - met:
            here = used[int(found.down.centre.lot[i] * len(used))] if used else None
            for key, value in begun.items():
                moved = here is not None and key in centres
                wanted = centres[key][here] if moved else value[i]
                assert torch.equal(start[key][i], wanted), key
        met.add(k)
    assert len(met) > 2
    assert all(torch.isfinite(v).all() for v in found.server.centres.params.values())


def test_lots_spread_newcomers_over_the_centres():
    """Of a thousand newcomers about half begin at either of two used centres."""
    home = torch.tensor([0, 2, 2] + [-1] * 1000)
    lot = fesem.init(federation("fesem", 1003, clusters=3))[0].lot
    kept = fesem.Server(Model({}, {}, torch.ones(3, dtype=torch.bool)), home, lot)
    start = kept.start(torch.arange(1003))
    assert start[:3].tolist() == [0, 2, 2]
    share = start.bincount(minlength=3) / 1003
    assert share[1] == 0
    assert 0.45 < share[0] < 0.55
    empty = kept._replace(home=torch.full((1003,), -1))
    assert bool((empty.start(torch.arange(1003)) == -1).all())


def test_fesem_learns_where_a_tenth_takes_part():
    """Twenty clients, two a round: not far behind FedAvg.

    While a newcomer began at the first weights it reached 40 % of FedAvg's accuracy.
    """
    p = {"dataset": "digits", "methods": ["fedavg", "fesem"], "partitions": ["nid1"]}
    p |= {"clients": 20, "rounds": 30, "server_steps": 1, "seeds": [1]}
    found = []
    for spec in leaderboard.specs(p):
        result = fedlib.run(spec.model_copy(update={"participation": 0.1}))
        found.append(float(result.accuracy(*result.paper_rule)[-1].nanmean()))
    assert found[1] > 0.7 * found[0] > 0.5


# FedFA: anchors


def test_the_pull_by_hand():
    """Squared distances 0 and 4 in a class of two, 4 in one of one, 3 classes.

    (0 / 2 + 4 / 2 + 4 / 1) / 3 = 2. By sample: 2 (z - a) / (n_c C).
    """
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]], requires_grad=True)
    anchors = torch.tensor([[1.0, 0.0], [0.0, 0.0], [5.0, 5.0]])
    found = fedfa.pull(z, torch.tensor([0, 0, 1]), anchors)
    assert float(found.detach()) == pytest.approx(2.0)
    (gradient,) = torch.autograd.grad(found, z)
    wanted = torch.tensor([[0.0, 0.0], [2 * 2 / 2 / 3, 0.0], [0.0, 2 * 2 / 3]])
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize(
    ("batch_means", "wanted"), [("held", [2.0, 3.5, 1.0]), ("all", [2.0, 2.0, 1.0])]
)
def test_anchors_move_by_hand(batch_means, wanted):
    """Two batches: class 0 has means 2 and 4; class 1 only the second one's 6.

    Means 3 and 6, or (2 + 4) / 2 and 6 / 2 by the number of batches; half way there
    from 1. Class 2 is not there.
    """
    rows = [
        (1.0, 0, 2, 2),
        (3.0, 0, 2, 2),
        (4.0, 0, 1, 3),
        (5.0, 1, 2, 3),
        (7.0, 1, 2, 3),
    ]
    z = torch.tensor([[[v / own, 1 / own, 1 / size] for v, _, own, size in rows]])
    sums = class_sums(z, torch.tensor([[label for _, label, _, _ in rows]]), 3)
    hp = fedfa.HP(batch_means=batch_means)
    found = fedfa.moved(torch.ones(1, 3, 1), from_sums(*sums), hp)
    assert found.flatten().tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("net", ["digits_linear", "digits_cnn"])
def test_calibration_is_the_first_step_of_torchs_adam(net):
    """Heads of one and of two layers; every weight moves by the rate."""
    ctx = federation("fedfa", 1, net=net, calibration_rate=0.01)
    state = ctx.net.init(torch.Generator().manual_seed(0))
    anchors = torch.rand(4, 32, generator=torch.Generator().manual_seed(1))
    found = fedfa.calibrate(ctx, state, anchors)
    head = {k: v.clone().requires_grad_() for k, v in ctx.net.head_state(state).items()}
    stepper = torch.optim.Adam(list(head.values()), lr=0.01)
    F.cross_entropy(ctx.net.head(head, anchors), torch.arange(4)).backward()
    stepper.step()
    wanted = {f"head.{k}": v.detach() for k, v in head.items()}
    assert_equal(found, wanted, rtol=0, atol=1e-6)
    for key, value in found.items():
        apart = (value - state[key]).abs()
        still = head[key.removeprefix("head.")].grad == 0  # behind a dead ReLU
        assert bool(((apart - 0.01).abs() < 1e-4)[~still].all())


@pytest.mark.parametrize("batch_means", ["held", "all"])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("moments", ["round", "step"])
def test_fedfa_is_a_plain_loop(batch_means, epochs, moments):
    """Two rounds: the pull, Adam on the head after each batch, anchors by epoch."""
    training = Training(learning_rate=0.1, local_epochs=epochs)
    ctx = federation("fedfa", 3, training=training, batch_means=batch_means)
    changed = {"calibration_rate": 0.01, "calibration_moments": moments}
    ctx = replace(ctx, hp=ctx.hp.model_copy(update=changed))
    shards = toy_shards(SIZES)
    server, mine = registry.method("fedfa").init(ctx)
    held, anchors = [row(mine.state, k) for k in range(3)], server.anchors
    once = replace(ctx, training=training.model_copy(update={"local_epochs": 1}))
    for number, found in enumerate(play(ctx, "fedfa", shards, 2), 1):
        now = replace(once, round=number)
        trained, own_anchors = [], []
        for k in range(3):
            seen: list[tuple[Tensor, Tensor]] = []

            def more(out, y, fixed=anchors, seen=seen):
                seen.append((out.high.detach(), y))
                total = torch.zeros(())
                for z, label in zip(out.high, y.tolist(), strict=True):
                    size = y.tolist().count(label)
                    total = total + (z - fixed[label]).square().sum() / size
                return 0.1 * total / 4

            going: dict[str, torch.optim.Adam] = {}  # the one that goes on

            def after(weights, fixed=anchors, going=going):
                head = {key: weights[key].detach().requires_grad_() for key in HEAD}
                adam = torch.optim.Adam(list(head.values()), lr=0.01)
                if moments == "round" and going:
                    old = going["adam"]
                    for new, was in zip(
                        head.values(), old.param_groups[0]["params"], strict=True
                    ):
                        adam.state[new] = old.state[was]
                going["adam"] = adam
                with torch.enable_grad():
                    logits = fixed @ head["head.0.weight"].T + head["head.0.bias"]
                    F.cross_entropy(logits, torch.arange(4)).backward()
                adam.step()  # in place of the weights, whose memory this is
                return None

            parts = [
                steps_of(now, shards, k, f"epoch {e} " if e else "")
                for e in range(epochs)
            ]
            everything = held[k].keys()
            batches = [rows for part in parts for rows in part]
            trained.append(fit(now, held[k], shards, batches, everything, more, after))
            mine_now = anchors.clone()
            for part in parts:
                epoch, seen = seen[: len(part)], seen[len(part) :]
                for c in range(4):
                    means = [z[y == c].mean(0) for z, y in epoch if (y == c).any()]
                    if means:
                        count = len(means) if batch_means == "held" else len(epoch)
                        mean = torch.stack(means).sum(0) / count
                        mine_now[c] = 0.5 * mine_now[c] + 0.5 * mean
            own_anchors.append(mine_now)
            assert_equal(row(found.mine.state, k), trained[k], rtol=0, atol=1e-5)
            torch.testing.assert_close(found.up.anchors[k], mine_now, rtol=0, atol=1e-5)
        shared = average(trained, SIZES, trained[0].keys())
        each = [{"anchors": a} for a in own_anchors]
        anchors = average(each, SIZES, ["anchors"])["anchors"]
        assert_equal(found.server.model.params, shared, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.server.anchors, anchors, rtol=0, atol=1e-5)
        held = [shared for _ in range(3)]


def test_first_anchors_are_unit_vectors():
    """At right angles in 32 dimensions for 4 classes; at random for 40."""
    few = registry.method("fedfa").init(federation("fedfa", 2))[0].anchors
    torch.testing.assert_close(few @ few.T, torch.eye(4))
    ctx = federation("fedfa", 2, classes=40)
    many = registry.method("fedfa").init(ctx)[0].anchors
    assert many.shape == (40, 32)
    torch.testing.assert_close(many.norm(dim=1), torch.ones(40))
    assert len(many.unique(dim=0)) == 40
    assert torch.equal(many, registry.method("fedfa").init(ctx)[0].anchors)


def test_anchors_travel_whole_with_the_model():
    """GFPL: the model and C * d floats; a net with dropout before its head."""
    x = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    index = [torch.arange(4), torch.arange(4, 6)]
    shards = Shards(x, torch.tensor([0, 1, 2, 3, 9, 9]), index, [0, 1])
    net = nets.build("mnist_cnn", (1, 28, 28), 10, "raw")
    ctx = replace(federation("fedfa", 2), net=net, classes=10)
    one, again = (play(ctx, "fedfa", shards)[0] for _ in range(2))
    for way in ("up", "down"):
        assert one.sent[f"{way}/model"] == Size(2 * 21_840, 0)
        assert one.sent[f"{way}/anchors"] == Size(2 * 10 * 50, 0)
    assert {c.field for c in registry.method("fedfa").counted} == {"model", "anchors"}
    assert_equal(one.mine.state, again.mine.state, rtol=0, atol=0)
    first = registry.method("fedfa").init(ctx)[0].anchors
    assert torch.equal(one.up.anchors[1, :9], first[:9])  # classes it does not have
    assert not torch.equal(one.up.anchors[1, 9], first[9])


def test_anchors_are_averaged_by_samples_by_hand():
    """Anchors 1 and 5 of 10 and 30 samples: 4; a client without samples counts not."""
    ctx = federation("fedfa", 3)
    first = play(ctx, "fedfa", toy_shards([10, 30, 0]))[0]
    before = registry.method("fedfa").init(ctx)[0].anchors
    assert torch.equal(first.up.anchors[2], before)
    each = torch.tensor([1.0, 5.0, 9.0]).view(3, 1, 1).expand(3, 4, 32)
    server, _ = fedfa.merge(ctx, first.server, first.up._replace(anchors=each))
    torch.testing.assert_close(server.anchors, torch.full((4, 32), 4.0))


def test_a_stronger_pull_and_calibration_do_what_they_say():
    """Embeddings end nearer to the anchors; the head tells anchors apart."""
    shards = toy_shards([64, 64])
    found = {}
    for weight, rate in ((0.0, 0.0), (2.0, 0.0), (0.0, 0.05)):
        ctx = federation("fedfa", 2, anchor_weight=weight, calibration_rate=rate)
        last = play(ctx, "fedfa", shards, 3)[-1]
        state, anchors = row(last.mine.state, 0), last.down.anchors
        index = shards.index[0]
        z = ctx.net(state, shards.x[index]).high
        far = float((z - anchors[shards.y[index]]).square().sum(1).mean())
        logits = ctx.net.head(ctx.net.head_state(state), anchors)
        wrong = float(F.cross_entropy(logits, torch.arange(4)))
        found[weight, rate] = (far, wrong)
    (far, wrong), pulled, calibrated = found.values()
    assert pulled[0] < 0.5 * far
    assert calibrated[1] < 0.5 * wrong


# FedRCL: the relaxed contrast


def value_of(one: Tensor) -> float:
    return float(one.detach())


def relaxed(z: Tensor, y: Tensor, tau: float, edge: float) -> tuple[Tensor, Tensor]:
    """Both terms of one level by loops over samples, with two negatives."""
    unit = [one / one.norm() for one in z]
    total = [torch.zeros(()), torch.zeros(())]
    for i, label in enumerate(y.tolist()):
        same = [(unit[i] @ v, j) for j, v in enumerate(unit) if int(y[j]) == label]
        others = [unit[i] @ v for j, v in enumerate(unit) if int(y[j]) != label]
        positive = min((s for s, _ in same), key=value_of)
        hard = sorted(others, key=value_of)[-2:]
        if hard:
            scores = torch.stack([positive, *hard]) / tau
            total[0] = total[0] - torch.log_softmax(scores, 0)[0]
        mates = [s for s, j in same if j != i]
        if mates:
            least = min(mates, key=value_of)
            least = least if value_of(least) >= edge else torch.tensor(-1.0)
            scores = torch.stack([torch.tensor(1.0), least]) / tau
            total[1] = total[1] - torch.log_softmax(scores, 0)[0]
    return total[0] / len(y), total[1] / len(y)


def test_the_relaxed_contrast_by_hand():
    """Two samples of a class at one place, one of another at a right angle; tau 1.

    L_scl: log(1 + 1/e) twice and, with two negatives, log(1 + 2/e); L_pen: log 2 twice
    and nothing; over three samples. Length does not matter.
    """
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])
    hp = fedrcl.HP(temperature=1.0)
    found = fedrcl.contrast(z, torch.tensor([0, 0, 1]), hp)
    e = math.e
    wanted = (2 * math.log(1 + 1 / e) + math.log(1 + 2 / e)) / 3, 2 * math.log(2) / 3
    assert [float(v) for v in found] == pytest.approx(wanted)
    single = fedrcl.contrast(
        z, torch.tensor([0, 0, 1]), fedrcl.HP(temperature=1.0, negatives=1)
    )
    assert float(single[0]) == pytest.approx(math.log(1 + 1 / e))


def test_only_what_has_collapsed_is_pushed_apart():
    """A class at cosine 0.8 and one at 0.6, on either side of 0.7.

    The pair at 0.8 moves apart; the pair at 0.6 counts log(1 + e^-2) and stays.
    """
    z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, -1.0], [0.8, -0.6]])
    z.requires_grad_()
    y, hp = torch.tensor([0, 0, 1, 1]), fedrcl.HP(temperature=1.0)
    _, apart = fedrcl.contrast(z, y, hp)
    wanted = (math.log(1 + math.exp(-0.2)) + math.log(1 + math.exp(-2))) / 2
    assert float(apart.detach()) == pytest.approx(wanted)
    (gradient,) = torch.autograd.grad(apart, z)
    assert gradient[2:].abs().max() == 0
    nearer = (z[0] * gradient[1]).sum() + (z[1] * gradient[0]).sum()
    assert nearer > 0  # descent lowers their inner product
    loose = fedrcl.contrast(z.detach(), y, fedrcl.HP(temperature=1.0, threshold=0.5))
    wanted = (math.log(1 + math.exp(-0.2)) + math.log(1 + math.exp(-0.4))) / 2
    assert float(loose[1]) == pytest.approx(wanted)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0], [0, 1]])
def test_batches_without_mates_or_strangers(labels):
    z = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(0))
    z.requires_grad_()
    y = torch.tensor(labels)
    found = fedrcl.contrast(z, y, fedrcl.HP())
    for one, wanted in zip(found, relaxed(z, y, 0.05, 0.7), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)
    (gradient,) = torch.autograd.grad(found[0] + found[1], z)
    assert bool(torch.isfinite(gradient).all())
    if len(set(labels)) == 1:
        assert float(found[0].detach()) == 0
    if len(set(labels)) == len(labels):
        assert float(found[1].detach()) == 0


@pytest.mark.parametrize(
    ("net", "shape", "levels"),
    [("digits_bn", (1, 8, 8), 3), ("resnet10", (3, 8, 8), 5)],
)
def test_one_step_of_fedrcl_by_loops(net, shape, levels):
    """A batch of eight each: the terms, and the step along their gradient."""
    shards = toy_shards([8, 8])
    shards = shards._replace(x=shards.x.expand(-1, *shape))
    training = Training(learning_rate=0.01, momentum=0.0)
    ctx = federation(
        "fedrcl", 2, training=training, contrast_weight=0.5, penalty_weight=2.0
    )
    ctx = replace(ctx, net=nets.build(net, shape, 4))
    begun = row(registry.method("fedrcl").init(ctx)[1].state, 0)
    (found,) = play(ctx, "fedrcl", shards)
    for k, rows in enumerate(shards.index):
        own = {
            key: v.clone().requires_grad_(key not in ctx.net.buffers)
            for key, v in begun.items()
        }
        out, each = ctx.net.levels(own, shards.x[rows], train=True)
        assert len(each) == levels
        pairs = [relaxed(z, shards.y[rows], 0.05, 0.7) for z in each]
        together, apart = (
            torch.stack(terms).mean() for terms in zip(*pairs, strict=True)
        )
        torch.testing.assert_close(
            found.terms["contrast"][k], together.detach(), rtol=1e-3, atol=1e-4
        )
        torch.testing.assert_close(
            found.terms["penalty"][k], apart.detach(), rtol=1e-3, atol=1e-4
        )
        assert value_of(together) > 0
        assert value_of(apart) > 0
        supervised = F.cross_entropy(out.logits, shards.y[rows])
        (supervised + 0.5 * together + 2 * apart).backward()
        for key, value in own.items():
            if value.grad is not None:
                wanted = value.detach() - 0.01 * value.grad
                torch.testing.assert_close(
                    found.mine.state[key][k],
                    wanted,
                    rtol=1e-3,
                    atol=2e-4,
                    msg=lambda m, key=key: f"{key}: {m}",
                )


def test_contrast_and_penalty_do_what_they_say():
    """The first sets classes apart, the second spreads each; beside plain training."""
    shards, found = toy_shards([64, 64]), []
    index = shards.index[0]
    y = shards.y[index]
    same = y.unsqueeze(1) == y
    for contrast, penalty in ((0.0, 0.0), (1.0, 0.0), (0.0, 3.0)):
        weights = {"contrast_weight": contrast, "penalty_weight": penalty}
        ctx = federation("fedrcl", 2, **weights)
        state = row(play(ctx, "fedrcl", shards, 3)[-1].mine.state, 0)
        _, levels = ctx.net.levels(state, shards.x[index])
        cosine = torch.stack([F.normalize(z) @ F.normalize(z).T for z in levels]).mean(
            0
        )
        found.append((float(cosine[same].mean()), float(cosine[~same].mean())))
    (inside, between), contrasted, spread = found
    assert contrasted[0] - contrasted[1] > inside - between + 0.1
    assert spread[0] < inside - 0.01


def test_fedrcl_sends_a_model():
    ctx = federation("fedrcl", 2)
    (first,) = play(ctx, "fedrcl", toy_shards([9, 9]))
    assert first.sent["up/model"] == Size(2 * ctx.net.parameter_count(), 0)
    assert first.sent.keys() == {"up/model", "up/samples", "down/model"}
