"""The laws of the design, over every registered method.

A method joins by its line in the registry; what it reduces to and which knob moves its
weights stand in ``KNOBS``.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, get_args

import pytest
import torch
from safetensors.torch import load, save

from fedlib import registry
from fedlib.core import nets, readouts
from fedlib.core.averaging import mean_model
from fedlib.core.local import Cohort, Losses, Task, train_local
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import Model
from fedlib.core.method import Context, NonFiniteError, Round, complete, rounds
from fedlib.core.training import Training
from fedlib.core.tree import flatten, restore, take
from tests.conftest import TOY, TOY_TRAINING, toy_context, toy_net, toy_shards

SIZES = [24, 17, 9, 16]


class Case(NamedTuple):
    """A method in one of its variants."""

    name: str
    hp: dict

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.hp.values())])


def variants(name: str) -> list[Case]:
    hp = registry.method(name).hp
    both = (
        get_args(hp.model_fields["variant"].annotation)
        if "variant" in hp.model_fields
        else ()
    )
    return [Case(name, {"variant": v}) for v in both] or [Case(name, {})]


CASES = [case for name in registry.METHODS for case in variants(name)]
every_case = pytest.mark.parametrize("case", CASES, ids=str)

# method -> (knob, neutral settings, method it then equals, where the knob is active)
KNOBS = {
    "fedproto": ({"proto_weight": 0.0}, "local", {"proto_weight": 5.0}),
    "fedproc": ({"schedule_rounds": 1}, "fedavg", {}),  # from round 2, a = 1
    "fedhkd": (
        {"soft_weight": 0.0, "proto_weight": 0.0},
        "fedavg",
        {"soft_weight": 5.0, "proto_weight": 5.0},
    ),
    "fedgmkd": (
        {
            "soft_weight": 0.0,
            "proto_weight": 0.0,
            "model_discrepancy": 0.0,
            "offset": 0.0,
            "counts": "raw",
        },
        "fedavg",
        {"soft_weight": 5.0, "proto_weight": 5.0},
    ),
    "fedtgp": ({"proto_weight": 0.0}, "fedavg", {"proto_weight": 5.0}),
    "fedsa": (
        {"anchor_weight": 0.0, "margin_weight": 0.0, "calibration_weight": 0.0},
        "fedavg",
        {"anchor_weight": 5.0},
    ),
    "fedprox": ({"prox_weight": 0.0}, "fedavg", {"prox_weight": 1.0}),
    "moon": ({"contrast_weight": 0.0}, "fedavg", {"contrast_weight": 5.0}),
    "fedntd": ({"distill_weight": 0.0}, "fedavg", {"distill_weight": 5.0}),
    "fedgkd": ({"distill_weight": 0.0}, "fedavg", {"distill_weight": 5.0}),
    "fedensemble": ({"global_models": 1}, "fedavg", {"global_models": 2}),
    "fedmps": (
        {"contrast_weight": 0.0, "soft_weight": 0.0},
        "local",
        {"contrast_weight": 1.0, "soft_weight": 5.0},
    ),
    "gfpl": (
        {"dual_classifier": False, "pseudo": False, "common_init": False},
        "local",
        {"align_weight": 5.0},
    ),
    "fedpa": (
        {
            "generator_weight": 0.0,
            "proto_weight": 0.0,
            "proto_floor": 0.0,
            "lr_decay": 1.0,
            "moments": "reset",
        },
        "fedavg",
        {"proto_weight": 5.0},
    ),
    "fedhpro": (
        {"contrast_weight": 0.0, "align_weight": 0.0},
        "fedavg",
        {"contrast_weight": 1.0, "align_weight": 1.0},
    ),
    "fedpg": (
        {"align_weight": 0.0, "tuning_weight": 0.0},
        "fedavg",
        {"align_weight": 1.0, "tuning_weight": 5.0},
    ),
    "fedgen": (
        {"generator_weight": 0.0, "latent_weight": 0.0},
        "fedavg",
        {"latent_weight": 10.0},
    ),
    "vhl": (
        {"virtual_per_class": 0},
        "fedavg",
        {"align_weight": 5.0},
    ),
    "fedper": ({"personal": "nothing"}, "fedavg", {"personal": "head"}),
    "fedrep": ({"personal": "nothing"}, "fedavg", {"head_epochs": 2}),
    "fesem": ({"clusters": 1, "weighting": "samples"}, "fedavg", {"clusters": 3}),
    "fedfa": (
        {"anchor_weight": 0.0, "calibration_rate": 0.0},
        "fedavg",
        {"anchor_weight": 1.0},
    ),
    "fedrcl": (
        {"contrast_weight": 0.0, "penalty_weight": 0.0},
        "fedavg",
        {"contrast_weight": 1.0, "penalty_weight": 1.0},
    ),
}


def house(name: str) -> dict:
    """Return the net and the training of a method's toy federation."""
    return {"net": toy_net(name), "training": TOY_TRAINING.get(name)}


def toy(case: Case, clients: int, **changes) -> Context:
    """Return a case's toy federation."""
    settings = house(case.name)
    settings |= TOY.get(case.name, {}) | case.hp
    return toy_context(registry.method(case.name), clients, **(settings | changes))


def stepping(
    case: Case | str, *, sizes=SIZES, start=None, **changes
) -> Iterator[Round]:
    case = Case(case, {}) if isinstance(case, str) else case
    ctx = toy(case, len(sizes), **changes)
    return rounds(registry.method(case.name), ctx, toy_shards(sizes), start=start)


def play(case: Case | str, count: int, **changes) -> list[Round]:
    return list(islice(stepping(case, **changes), count))


PLAYED: dict[str, list[Round]] = {}


def straight(case: Case | str, **changes) -> list[Round]:
    """Return three rounds of four clients, which several laws compare with."""
    name = f"{case} {changes}"
    if name not in PLAYED:
        PLAYED[name] = play(case, 3, **changes)
    return PLAYED[name]


def assert_same(one, other, **tolerance):
    left, right = flatten(one), flatten(other)
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(
            value, right[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance
        )


EXACT = {"rtol": 0, "atol": 0}


@every_case
def test_same_generator_same_bits_and_inputs_stay(case):
    first, second, _ = straight(case)
    again = play(case, 2)
    assert_same(second.mine, again[1].mine, **EXACT)
    assert_same(second.server, again[1].server, **EXACT)
    assert_same(
        first.mine, again[0].mine, **EXACT
    )  # round 2 did not write into round 1
    moved = max(
        float((a - b).abs().max())
        for a, b in zip(
            flatten(first.mine).values(), flatten(second.mine).values(), strict=True
        )
        if a.is_floating_point()  # counters and marks move without training
    )
    assert moved > 0


@every_case
def test_chunk_size_does_not_matter(case):
    """Four clients of unequal size: three and one, and all at once."""
    apart = play(case, 2, chunk=3)[-1]
    assert_same(straight(case)[1].mine, apart.mine, rtol=0, atol=1e-5)


@every_case
def test_client_order_does_not_matter(case):
    method = registry.method(case.name)
    ctx = replace(toy(case, 4), round=1)
    shards = toy_shards(SIZES)
    server, mine = method.init(ctx)
    down = method.broadcast(ctx, server)
    order = [2, 0, 3, 1]
    place = torch.tensor(order)
    as_they_are, up, _ = method.client(ctx, down, mine, shards)
    theirs = take(mine, place), shards.cohort(order)
    shuffled, up_shuffled, _ = method.client(ctx, down, *theirs)
    for key, value in flatten(shuffled).items():
        torch.testing.assert_close(
            value, flatten(as_they_are)[key][place], rtol=0, atol=1e-6
        )
    merged, _ = method.merge(ctx, server, up)
    merged_shuffled, _ = method.merge(ctx, server, up_shuffled)
    if getattr(ctx.hp, "aggregation", "fedavg") == "alias_last_client":
        # FedHPro's released loop takes whoever comes last: order matters, by design
        with pytest.raises(AssertionError):
            assert_same(merged, merged_shuffled, rtol=0, atol=1e-5)
        return
    assert_same(merged, merged_shuffled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [[24], [1, 9], [0, 9, 8], [8, 8]], ids=str)
@every_case
def test_small_and_empty_clients(case, sizes):
    """One client, one sample, an empty member, a class that most lack."""
    first, last = play(case, 2, sizes=sizes)
    for value in flatten(last.server).values():
        assert torch.isfinite(value.float()).all()
    for client, size in enumerate(sizes):
        if size == 0 and registry.method(case.name).finish is None:
            method = registry.method(case.name)
            start = flatten(method.init(toy(case, len(sizes)))[1])
            for key, value in flatten(first.mine).items():
                assert torch.equal(value[client], start[key][client]), key


@every_case
def test_a_cohort_without_samples_is_refused(case):
    with pytest.raises(ValueError, match="no client of this cohort has a sample"):
        play(case, 1, sizes=[0, 0])


@every_case
def test_state_survives_save_and_load(case):
    _, kept, last = straight(case)
    state = {"server": kept.server, "mine": kept.mine}
    stored = load(save({k: v.contiguous().clone() for k, v in flatten(state).items()}))
    back = restore(state, stored)
    resumed = play(case, 1, start=(2, back["server"], back["mine"]))[0]
    assert resumed.number == 3
    assert_same(resumed.mine, last.mine, **EXACT)
    assert_same(resumed.server, last.server, **EXACT)


@pytest.mark.parametrize("common", [True, False])
@every_case
def test_what_a_method_forgets_no_round_reads(case, common):
    """Half of the clients in a round: the same bits as if each kept all it had."""
    method = registry.method(case.name)
    switch = "common_init" in method.hp.model_fields
    if not switch and not common:
        pytest.skip("has no switch for the first weights")
    hp = {"common_init": common} if switch else {}
    ctx, shards = toy(case, 4, **hp), toy_shards(SIZES)
    keeping = method._replace(forgets=lambda hp: False)
    plain = list(islice(rounds(keeping, ctx, shards, participation=0.5), 3))
    last = None
    for number, after in enumerate(rounds(method, ctx, shards, participation=0.5)):
        there = plain[number]
        assert_same(after.server, there.server, **EXACT)
        assert_same(after.up, there.up, **EXACT)
        mine = there.mine
        if method.forgets(ctx.hp):
            mine = take(mine, torch.tensor(after.cohort))
        assert_same(after.mine, mine, **EXACT)
        last = after
        if number == 2:
            break
    assert last is not None
    one = take(plain[1].mine, slice(0, 1)) if method.forgets(ctx.hp) else plain[1].mine
    resumed = rounds(
        *(method, ctx, shards), participation=0.5, start=(2, plain[1].server, one)
    )
    assert_same(next(resumed).server, plain[2].server, **EXACT)


@every_case
def test_uploads_do_not_grow_with_samples(case):
    small, large = play(case, 1, sizes=[9, 9])[0], play(case, 1, sizes=[35, 9])[0]
    shapes = [{k: v.shape for k, v in flatten(r.up).items()} for r in (small, large)]
    assert shapes[0] == shapes[1]


@every_case
def test_records_with_class_counts_are_declared(case):
    """``Method.per_class``, beside what a client does upload, in rounds and once."""
    method, ctx, shards = registry.method(case.name), toy(case, 4), toy_shards(SIZES)
    after = straight(case)[0]
    uploads = [after.up]
    if method.survey is not None:
        uploads.append(method.survey(ctx, after.server, after.mine, shards))
    leaves = [name for up in uploads for name in flatten(up)]
    found = [name.removesuffix("/count") for name in leaves if name.endswith("/count")]
    assert sorted(found) == sorted(method.per_class)


@pytest.mark.parametrize(
    "alone", [{"reply"}, {"finish"}, {"survey"}, {"finalise"}, {"finish", "survey"}]
)
def test_half_a_pair_of_functions_is_refused(alone, monkeypatch):
    """By its name, and where rounds begin."""

    def optional(*args):
        raise NotImplementedError

    half = registry.method("fedavg")._replace(**dict.fromkeys(alone, optional))
    message = rf"fedavg: got ({'|'.join(alone)}) alone, expected both of \w+ and \w+"
    with pytest.raises(ValueError, match=message):
        next(rounds(half, toy(Case("fedavg", {}), 4), toy_shards(SIZES)))
    monkeypatch.setattr("fedlib.baselines.fedavg.METHOD", half)
    with pytest.raises(ValueError, match=message):
        registry.method("fedavg")


@pytest.mark.parametrize("pair", [("reply", "finish"), ("survey", "finalise")])
def test_both_of_a_pair_or_neither_are_complete(pair):
    whole = registry.method("fedavg")._replace(**dict.fromkeys(pair, print))
    assert complete(whole) is whole
    assert complete(whole._replace(**dict.fromkeys(pair))).reply is None


@every_case
def test_beats_chance_within_five_rounds(case):
    method = registry.method(case.name)
    shards = toy_shards([64, 64])
    long = {"retrain_steps": 100, "retrain_epochs": 100}  # a fresh head every round
    ctx = toy(case, 2, **(long if case.name == "fedhpro" else {}))
    owns = torch.ones(2, 4, dtype=torch.bool)
    found = "accuracy/" + "/".join(method.rule(ctx.hp))
    accuracy = []
    for after in islice(rounds(method, ctx, shards), 5):
        models = method.models(ctx, after.server, after.mine)
        right = readouts.evaluate(ctx.net, models, owns, shards, shards)
        accuracy.append(float(right[found].sum() / right["samples"].sum()))
        if after.number > 2 and accuracy[-1] > 0.6:
            break
    assert accuracy[-1] > 0.6  # chance is 0.25


@every_case
def test_nothing_non_finite_is_merged(case):
    method = registry.method(case.name)
    shards = toy_shards(SIZES)
    shards.x[shards.index[2][0]] = float("nan")
    with pytest.raises(NonFiniteError, match=rf"{case.name}, round 1, client 2: \w+"):
        next(rounds(method, toy(case, 4), shards))


@pytest.mark.parametrize("name", KNOBS)
def test_reduction_and_knob(name):
    """Neutral settings equal the simpler method bit for bit; the knob moves weights."""
    neutral, simpler, active = KNOBS[name]
    plain = [flatten(after.mine.state) for after in straight(simpler, **house(name))]
    reduced = flatten(play(name, 3, **neutral)[-1].mine.state)
    for key, value in plain[-1].items():
        assert torch.equal(value, reduced[key]), key
    turned = (flatten(after.mine.state) for after in stepping(name, **active))
    assert any(
        not torch.allclose(value, other[key], atol=1e-4)
        for same, other in zip(plain, turned, strict=False)
        for key, value in same.items()
    )


def test_fedavg_with_one_client_is_local_training():
    shared = play("fedavg", 3, sizes=[24])[-1]
    alone = play("local", 3, sizes=[24], common_init=True)[-1]
    assert_same(shared.mine, alone.mine, **EXACT)


def test_fedavg_averages_by_samples_or_uniformly():
    """Weights of the mean by hand, and a client without samples counts nothing."""
    for weighting, weight in {
        "samples": [24, 17, 9, 0],
        "uniform": [1, 1, 1, 0],
    }.items():
        last = play("fedavg", 1, sizes=[24, 17, 9, 0], weighting=weighting)[0]
        for key, value in last.server.model.params.items():
            each = last.up.model.params[key].double()
            share = torch.tensor(weight, dtype=torch.float64) / sum(weight)
            wanted = sum(s * e for s, e in zip(share, each, strict=True))
            torch.testing.assert_close(value.double(), wanted, rtol=0, atol=1e-6)


def test_batchnorm_statistics_are_averaged_and_counters_take_the_maximum():
    """Case A13."""
    buffers = {"mean": torch.tensor([[0.0], [10.0]]), "count": torch.tensor([3, 4])}
    model = Model({}, buffers, torch.tensor([True, True]))
    for order in ([0, 1], [1, 0]):
        turned = Model({}, {k: v[order] for k, v in buffers.items()}, model.known)
        found = mean_model(turned, torch.tensor([1.0, 1.0]), turned)
        assert found.buffers["mean"].tolist() == [5.0]
        assert int(found.buffers["count"]) == 4


def plain_loop(ctx, state, shards, training, epochs):
    """An ordinary PyTorch loop over clients, batches in the library's order."""
    trained = []
    for client, mine in enumerate(shards.index):
        weights = {k: v[client].clone().requires_grad_() for k, v in state.items()}
        optimiser = torch.optim.SGD(
            weights.values(), lr=training.learning_rate, momentum=training.momentum
        )
        draw = ctx.random("batches", client)
        for _ in range(epochs):
            order = mine[torch.randperm(len(mine), generator=draw)]
            size = training.batch_size
            whole = training.drop_last and len(mine) >= size
            for step in range(len(order) // size if whole else -(-len(order) // size)):
                rows = order[step * size : (step + 1) * size]
                if training.drop_single and step > 0 and len(rows) == 1:
                    continue
                loss = torch.nn.functional.cross_entropy(
                    ctx.net(weights, shards.x[rows], train=True).logits, shards.y[rows]
                )
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        trained.append({k: v.detach() for k, v in weights.items()})
    return trained


@pytest.mark.parametrize(
    "dropped",
    [
        {"drop_last": True},
        {"drop_last": False},
        {"drop_last": False, "drop_single": True},  # of 17 and of 9, not of 1
    ],
    ids=str,
)
def test_the_cohort_equals_a_plain_loop(dropped):
    """Unequal sizes, two epochs, short batches: every client as if it were alone."""
    method = registry.method("local")
    shards = toy_shards([24, 17, 5, 9, 1, 11])
    training = Training(learning_rate=0.1, local_epochs=2, **dropped)
    ctx = replace(toy_context(method, 6), round=1, training=training)
    state = ctx.init_clients(False)

    def loss(weights, batch):
        logits = ctx.net(weights, batch.x, train=True).logits
        return Losses(cross_entropy(logits, batch.y), {}, {})

    found = ctx.train(state, shards, loss).state
    for client, wanted in enumerate(plain_loop(ctx, state, shards, training, 2)):
        for key, value in wanted.items():
            torch.testing.assert_close(found[key][client], value, rtol=0, atol=2e-6)


def test_batchnorm_statistics_are_each_clients_own():
    """A net with BatchNorm: weights, statistics and counters as in a plain loop."""
    method = registry.method("local")
    shards = toy_shards([24, 9])
    net = nets.build("fashion_cnn", (1, 8, 8), 4)
    training = Training(learning_rate=0.1, drop_last=False)  # 8, 8, 8 beside 8, 1
    ctx = replace(toy_context(method, 2), round=1, net=net, training=training)
    state = ctx.init_clients(False)

    def loss(weights, batch):
        logits = ctx.net(weights, batch.x, train=True).logits
        return Losses(cross_entropy(logits, batch.y), {}, {})

    found = ctx.train(state, shards, loss).state
    for client, mine in enumerate(shards.index):
        module = copy.deepcopy(net.module).train()
        module.load_state_dict({k: v[client] for k, v in state.items()})
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        order = mine[torch.randperm(len(mine), generator=ctx.random("batches", client))]
        for rows in order.split(8):
            optimiser.zero_grad()
            out = module(shards.x[rows])
            torch.nn.functional.cross_entropy(out.logits, shards.y[rows]).backward()
            optimiser.step()
        for key, value in module.state_dict().items():
            torch.testing.assert_close(found[key][client], value, rtol=0, atol=1e-5)


def test_adam_keeps_each_clients_moments_when_others_retire():
    method = registry.method("local")
    shards = toy_shards([40, 8])
    training = Training(optimiser="adam", learning_rate=0.01)
    ctx = replace(toy_context(method, 2), round=1, training=training)
    state = ctx.init_clients(False)

    def loss(weights, batch):
        logits = ctx.net(weights, batch.x, train=True).logits
        return Losses(cross_entropy(logits, batch.y), {}, {})

    together = ctx.train(state, shards, loss).state
    first = Cohort({k: v[:1] for k, v in state.items()}, shards.cohort([0]))
    alone = train_local(first, Task(loss), training, ctx.net, ctx.random).state
    for key, value in alone.items():
        torch.testing.assert_close(together[key][0], value[0], rtol=0, atol=1e-6)


def test_prototypes_are_the_class_means_of_the_last_epoch():
    """With a learning rate near 0 the collected means equal those of the data."""
    method = registry.method("fedproto")
    shards = toy_shards([24, 16])
    training = Training(learning_rate=1e-12, local_epochs=3)
    ctx = replace(toy_context(method, 2), round=1, training=training)
    server, mine = method.init(ctx)
    _, up, _ = method.client(ctx, method.broadcast(ctx, server), mine, shards)
    for client, rows in enumerate(shards.index):
        state = {k: v[client] for k, v in mine.state.items()}
        z = ctx.net(state, shards.x[rows]).high
        for c in range(4):
            chosen = shards.y[rows] == c
            assert int(up.protos.count[client, c]) == int(chosen.sum())
            if chosen.any():
                torch.testing.assert_close(
                    up.protos.mean[client, c], z[chosen].mean(0), rtol=1e-4, atol=1e-5
                )


def test_a_class_that_a_dropped_batch_removed_still_has_a_prototype():
    """Nine samples, one of class 3: whichever is dropped, every owned class is sent."""
    method = registry.method("fedmps")
    shards = toy_shards([9, 9])
    shards.y[:9] = torch.tensor([0] * 8 + [3])
    for seed in range(12):
        ctx = replace(toy_context(method, 2), round=1, seed=seed)
        server, mine = method.init(ctx)
        _, up, _ = method.client(ctx, method.broadcast(ctx, server), mine, shards)
        assert up.high.known[0].tolist() == [True, False, False, True]
        assert up.low.known[0].tolist() == [True, False, False, True]


def test_counters_start_fresh_for_every_client():
    """Case A15: 10 of 10 right, then 0 of 10."""
    owns = torch.ones(2, 4, dtype=torch.bool)
    method = registry.method("local")
    shards = toy_shards([10, 10])
    ctx = toy_context(method, 2)
    state = ctx.init_clients(True)
    models = readouts.Models(state, None, None)
    predicted = ctx.net({k: v[0] for k, v in state.items()}, shards.x).logits.argmax(1)
    labels = predicted.clone()
    labels[10:] = (predicted[10:] + 1) % 4
    right = readouts.evaluate(ctx.net, models, owns, shards, shards._replace(y=labels))
    assert right["accuracy/personal/head_all"].tolist() == [10, 0]
    assert right["samples"].tolist() == [10, 10]


def test_common_first_weights_stand_in_the_memory_of_one_client():
    ctx = toy_context(registry.method("fedavg"), 3)
    for common, owners in ((True, 1), (False, 3)):
        state = ctx.init_clients(common)
        held = sum(v.untyped_storage().nbytes() for v in state.values())
        assert held == owners * sum(v[0].nbytes for v in state.values())


def test_own_class_rules_never_leave_the_clients_classes():
    method = registry.method("fedavg")
    shards = toy_shards([40, 40])
    ctx = toy_context(method, 2)
    last = play("fedavg", 2, sizes=[40, 40])[-1]
    models = method.models(ctx, last.server, last.mine)
    owns = torch.tensor([[True, False, False, False], [True, True, True, True]])
    only = shards._replace(y=torch.zeros_like(shards.y))
    right = readouts.evaluate(ctx.net, models, owns, shards, only)
    assert int(right["accuracy/global/head_own"][0]) == 40
    assert int(right["accuracy/global/nearest_own"][0]) == 40
    assert int(right["accuracy/global/head_own"][1]) == int(
        right["accuracy/global/head_all"][1]
    )
