"""What a method may ask of the training loop, against ordinary PyTorch loops."""

from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedlib import registry
from fedlib.blocks import descent
from fedlib.core import nets
from fedlib.core.augment import Augment
from fedlib.core.averaging import mean_model, start
from fedlib.core.local import Losses
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import Model
from fedlib.core.method import Context, Method, NonFiniteError, rounds
from fedlib.core.readouts import Models, Rule
from fedlib.core.shards import plan_of
from fedlib.core.training import Training
from fedlib.core.tree import flatten
from tests.conftest import TOY, TOY_TRAINING, toy_context, toy_net, toy_shards

CLOSE = {"rtol": 0, "atol": 2e-6}
ADAM = 1e-4  # of steps of 0.05: Adam divides the rounding of small gradients by itself


def context(clients: int, **training) -> Context:
    settings = Training(**({"learning_rate": 0.05} | training))
    local = registry.method("local")
    return replace(toy_context(local, clients, training=settings), round=1)


def loss_of(ctx: Context):
    def loss(state, batch):
        total = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        return Losses(total, {"supervised": total}, {})

    return loss


def batches(ctx: Context, shards, client: int, phase: str = "") -> list[Tensor]:
    def random(purpose: str, who: int) -> torch.Generator:
        return ctx.random(phase + purpose, who)

    plan = plan_of(shards, client, ctx.training, random)
    return [plan.order[a:b] for a, b in plan.spans]


def plain(ctx, state, shards, client, steps, optimiser, clip=None) -> dict[str, Tensor]:
    """Step one client's weights through given batches by a torch optimiser."""
    weights = {k: v[client].clone().requires_grad_() for k, v in state.items()}
    stepper = optimiser(list(weights.values()))
    for rows in steps:
        stepper.zero_grad()
        out = ctx.net(weights, shards.x[rows], train=True)
        torch.nn.functional.cross_entropy(out.logits, shards.y[rows]).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(list(weights.values()), clip)
        stepper.step()
    return {k: v.detach() for k, v in weights.items()}


def assert_client(found, client, wanted, atol=2e-6) -> None:
    for key, value in wanted.items():
        torch.testing.assert_close(found[key][client], value, rtol=0, atol=atol)


def sgd(rate: float):
    return lambda values: torch.optim.SGD(values, lr=rate, momentum=0.5)


def test_local_steps_go_on_over_reshuffled_passes():
    """17 samples in batches of 8: two batches a pass, so five steps need three."""
    ctx, shards = context(1, local_steps=5), toy_shards([17])
    found = batches(ctx, shards, 0)
    assert [len(rows) for rows in found] == [8] * 5
    for a, b in ((0, 1), (2, 3)):
        assert len(set(found[a].tolist()) | set(found[b].tolist())) == 16
    assert found[0].tolist() != found[2].tolist()
    state = ctx.init_clients(False)
    trained = ctx.train(state, shards, loss_of(ctx))
    assert_client(trained.state, 0, plain(ctx, state, shards, 0, found, sgd(0.05)))


def test_a_small_client_makes_as_many_steps_as_a_large_one():
    ctx, shards = context(2, local_steps=3), toy_shards([3, 40])
    sizes = [[len(rows) for rows in batches(ctx, shards, i)] for i in range(2)]
    assert sizes == [[3, 3, 3], [8, 8, 8]]


def test_decay_lowers_the_learning_rate_with_the_round():
    shards = toy_shards([16])
    ctx = replace(context(1, decay=0.5), round=3)
    state = ctx.init_clients(False)
    wanted = plain(ctx, state, shards, 0, batches(ctx, shards, 0), sgd(0.05 / 4))
    assert_client(ctx.train(state, shards, loss_of(ctx)).state, 0, wanted)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_every_client_can_have_its_own_rate(optimiser):
    shards = toy_shards([24, 17, 9])
    ctx = context(3, optimiser=optimiser, weight_decay=0.01)
    state, rate = ctx.init_clients(False), torch.tensor([1.0, 0.25, 0.5])
    found = ctx.train(state, shards, loss_of(ctx), rate=rate).state
    for client, factor in enumerate(rate.tolist()):
        kind = {
            "sgd": lambda v, lr=0.05 * factor: torch.optim.SGD(
                v, lr=lr, momentum=0.5, weight_decay=0.01
            ),
            "adam": lambda v, lr=0.05 * factor: torch.optim.Adam(
                v, lr=lr, weight_decay=0.01
            ),
        }[optimiser]
        steps = batches(ctx, shards, client)
        wanted = plain(ctx, state, shards, client, steps, kind)
        assert_client(found, client, wanted, ADAM)


def test_moments_go_on_where_each_client_stopped():
    """Client 1 joins in the second training: its Adam is one training younger."""
    shards = toy_shards([24, 17])
    ctx = context(2, optimiser="adam", learning_rate=0.01)
    state = ctx.init_clients(False)
    moments = ctx.blank_moments(state)
    first = ctx.train(
        {k: v[:1] for k, v in state.items()},
        shards.cohort([0]),
        loss_of(ctx),
        moments={k: {f: x[:1] for f, x in v.items()} for k, v in moments.items()},
    )
    both = {k: torch.cat([first.state[k], v[1:]]) for k, v in state.items()}
    kept = {
        k: {f: torch.cat([first.moments[k][f], x[1:]]) for f, x in v.items()}
        for k, v in moments.items()
    }
    found = ctx.train(both, shards, loss_of(ctx), moments=kept, phase="second ")
    name = next(iter(kept))
    assert found.moments[name]["step"].tolist() == [6.0, 2.0]
    seen = batches(ctx, shards, 0) + batches(ctx, shards, 0, "second ")
    kind = lambda values: torch.optim.Adam(values, lr=0.01)  # noqa: E731
    assert_client(found.state, 0, plain(ctx, state, shards, 0, seen, kind), ADAM)
    seen = batches(ctx, shards, 1, "second ")
    assert_client(found.state, 1, plain(ctx, state, shards, 1, seen, kind), ADAM)


def test_blank_moments_are_a_fresh_optimiser():
    for settings in ({}, {"momentum": 0.0}, {"optimiser": "adam"}):
        ctx, shards = context(2, **settings), toy_shards([24, 9])
        state = ctx.init_clients(False)
        fresh = ctx.train(state, shards, loss_of(ctx)).state
        given = ctx.train(
            state, shards, loss_of(ctx), moments=ctx.blank_moments(state)
        ).state
        for key, value in fresh.items():
            torch.testing.assert_close(given[key], value, rtol=0, atol=ADAM)


def test_clipping_is_per_client():
    shards = toy_shards([24, 9])
    ctx = context(2, clip=0.1)
    state = ctx.init_clients(False)
    found = ctx.train(state, shards, loss_of(ctx)).state
    for client in range(2):
        steps = batches(ctx, shards, client)
        wanted = plain(ctx, state, shards, client, steps, sgd(0.05), clip=0.1)
        assert_client(found, client, wanted)


@pytest.mark.parametrize("chunk", [None, 1])
def test_draws_reach_the_loss_of_their_client_and_step(chunk):
    ctx = replace(context(3), chunk=chunk)
    shards, asked = toy_shards([24, 8, 17]), []

    def draw(client, step):
        asked.append((client, step))
        return {"drawn": torch.tensor(float(10 * client + step))}

    def loss(state, batch):
        total = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        seen = batch.extra["drawn"] + batch.extra["own"]
        return Losses(total, {"seen": seen}, {})

    own = {"own": torch.tensor([100.0, 200.0, 300.0])}
    found = ctx.train(ctx.init_clients(True), shards, loss, own, draw=draw)
    assert sorted(asked) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1)]
    assert found.terms["seen"].tolist() == [101.0, 210.0, 320.5]


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("apart", [False, True])
def test_weights_may_be_replaced_after_each_step(chunk, optimiser, apart):
    """Three, one and two steps; the replaced weights depend on who and how often.

    The optimiser does not notice, and a client that is done is left alone.
    """
    ctx = replace(context(3, optimiser=optimiser), chunk=chunk)
    shards = toy_shards([24, 8, 17])
    state, own = ctx.init_clients(False), torch.tensor([1.0, 2.0, 3.0])

    def after_step(state, extra):
        assert state["head.0.bias"].shape == (4,)  # one client's, as in a loss
        return {"head.0.bias": state["head.0.bias"] / 2 + extra["own"]}

    found = ctx.train(
        state,
        shards,
        loss_of(ctx),
        {"own": own},
        after_step=after_step,
        moments=ctx.blank_moments(state) if apart else None,
    ).state
    steppers = {
        "sgd": lambda values: torch.optim.SGD(values, lr=0.05, momentum=0.5),
        "adam": lambda values: torch.optim.Adam(values, lr=0.05),
    }
    for client, mine in enumerate(own):
        weights = {k: v[client].clone().requires_grad_() for k, v in state.items()}
        stepper = steppers[optimiser](list(weights.values()))
        steps = batches(ctx, shards, client)
        assert len(steps) == [3, 1, 2][client]
        for rows in steps:
            stepper.zero_grad()
            out = ctx.net(weights, shards.x[rows], train=True)
            torch.nn.functional.cross_entropy(out.logits, shards.y[rows]).backward()
            stepper.step()
            with torch.no_grad():
                weights["head.0.bias"].div_(2).add_(mine)
        wanted = {k: v.detach() for k, v in weights.items()}
        assert_client(found, client, wanted, ADAM if optimiser == "adam" else 2e-6)


def test_what_replaces_weights_sees_statistics_and_changes_none():
    """A net with BatchNorm: after one step the bias is a running mean, as it is now."""
    ctx, shards = context(2), toy_shards([8, 8])
    ctx = replace(ctx, net=nets.build("digits_bn", (1, 8, 8), 4))
    state = ctx.init_clients(True)
    plain_run = ctx.train(state, shards, loss_of(ctx)).state

    def after_step(state, extra):
        return {"head.0.bias": state["low.1.running_mean"][:4]}

    found = ctx.train(state, shards, loss_of(ctx), after_step=after_step).state
    for key, value in plain_run.items():
        wanted = plain_run["low.1.running_mean"][:, :4]
        wanted = wanted if key == "head.0.bias" else value
        torch.testing.assert_close(found[key], wanted, rtol=0, atol=0, msg=key)


def test_one_crop_for_a_whole_batch():
    ctx = context(1)
    shards = toy_shards([24])._replace(augment=Augment(2, True, per_batch=True))
    plan = plan_of(shards, 0, ctx.training, ctx.random)
    spans = [plan.draws[a:b] for a, b in plan.spans]
    assert all((draws == draws[0]).all() for draws in spans)
    assert len({tuple(draws[0].tolist()) for draws in spans}) > 1


def models_of(means: list[float]) -> Model:
    count = len(means)
    return Model(
        {"w": torch.tensor(means)},
        {"mean": torch.tensor(means) * 10, "steps": torch.arange(count)},
        torch.ones(count, dtype=torch.bool),
    )


@pytest.mark.parametrize(
    ("policy", "mean", "steps"),
    [("average", 25.0, 2), ("local", -1.0, 7), ("first", 10.0, 0)],
)
def test_policies_for_batchnorm_statistics(policy, mean, steps):
    before = Model(
        {"w": torch.tensor(0.0)},
        {"mean": torch.tensor(-1.0), "steps": torch.tensor(7)},
        torch.tensor(True),
    )
    weight = torch.tensor([1.0, 0.0, 3.0])
    found = mean_model(models_of([1.0, 9.0, 3.0]), weight, before, policy)
    assert float(found.params["w"]) == 2.5
    assert float(found.buffers["mean"]) == mean
    assert int(found.buffers["steps"]) == steps
    assert not found.buffers["steps"].is_floating_point()


def test_the_first_client_of_weight_gives_the_statistics():
    models = models_of([1.0, 9.0])
    found = mean_model(models, torch.tensor([0.0, 2.0]), models, "first")
    assert float(found.buffers["mean"]) == 90.0


def test_what_is_not_sent_stays_each_clients_own():
    sent = Model({"w": torch.tensor(5.0)}, {}, torch.tensor(True))
    mine = {"w": torch.zeros(2), "bn": torch.tensor([1.0, 2.0])}
    found = start(sent, mine)
    assert found["w"].tolist() == [5.0, 5.0]
    assert found["bn"].tolist() == [1.0, 2.0]
    unknown = start(sent._replace(known=torch.tensor(False)), mine)
    assert unknown["w"].tolist() == [0.0, 0.0]


def test_fedavg_with_local_statistics_sends_none_of_them():
    fedavg = registry.method("fedavg")
    ctx = toy_context(fedavg, 3, net="digits_bn", buffers="local")
    shards = toy_shards([24, 17, 9])
    one, two = (r for _, r in zip(range(2), rounds(fedavg, ctx, shards), strict=False))
    assert not any("buffers" in name for name in two.sent)
    models = fedavg.models(ctx, two.server, two.mine)
    assert models.received is not None
    for name in ctx.net.buffers:
        assert torch.equal(models.received[name], two.mine.state[name])
        assert torch.equal(
            two.server.model.buffers[name],
            one.down.model.state[name]
            if name in one.down.model.state
            else two.server.model.buffers[name],
        )
    for name, value in two.server.model.params.items():
        assert torch.equal(
            models.received[name], value.expand_as(models.received[name])
        )


def quadratic(state, step):
    total = (state["a"] - 3).square().sum() + (state["b"] + 1).square().sum()
    return Losses(total, {"total": total}, {})


def test_a_fit_is_a_plain_torch_loop():
    state = {
        "a": torch.tensor([0.0, 1.0]),
        "b": torch.tensor([2.0]),
        "n": torch.ones(1),
    }
    found = descent.fit(
        state,
        quadratic,
        7,
        learning_rate=0.1,
        weight_decay=0.01,
        betas=(0.5, 0.9),
        decay=(3, 0.5),
        rates={"b": 0.02},
        buffers=frozenset({"n"}),
    )
    a, b = (state[k].clone().requires_grad_() for k in "ab")
    stepper = torch.optim.Adam(
        [{"params": [a], "lr": 0.1}, {"params": [b], "lr": 0.02}],
        betas=(0.5, 0.9),
        weight_decay=0.01,
    )
    values = []
    for step in range(7):
        for group in stepper.param_groups:
            group["lr"] = (0.1, 0.02)[group is stepper.param_groups[1]] * 0.5 ** (
                step // 3
            )
        stepper.zero_grad()
        loss = quadratic({"a": a, "b": b}, step).total
        values.append(float(loss.detach()))
        loss.backward()
        stepper.step()
    torch.testing.assert_close(found.state["a"], a.detach(), **CLOSE)
    torch.testing.assert_close(found.state["b"], b.detach(), **CLOSE)
    assert float(found.state["n"]) == 1.0
    assert state["a"].tolist() == [0.0, 1.0]
    assert float(found.terms["total"]) == pytest.approx(sum(values) / 7, rel=1e-5)


def test_a_fit_goes_on_where_it_stopped():
    state = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([2.0])}
    whole = descent.fit(state, quadratic, 6, learning_rate=0.1)
    half = descent.fit(
        state, quadratic, 3, learning_rate=0.1, moments=descent.blank(state)
    )
    rest = descent.fit(
        half.state, quadratic, 3, learning_rate=0.1, moments=half.moments
    )
    for name, value in whole.state.items():
        assert torch.equal(value, rest.state[name])


def test_a_module_is_drawn_by_its_generator_alone():
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    one, two = (
        descent.of_module(module, torch.Generator().manual_seed(5)) for _ in range(2)
    )
    assert all(torch.equal(one[k], two[k]) for k in one)
    other = descent.of_module(module, torch.Generator().manual_seed(6))
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert one["0.weight"].abs().max() <= 3**-0.5
    assert torch.equal(one["1.weight"], torch.ones(4))


class Number(NamedTuple):
    """A message, state or upload of one number."""

    value: Tensor


def counting(server_value: float = 1.0) -> Method:
    """Return a method that counts what happens to it."""

    def client(ctx, down, mine, shards):
        up = Number(mine.value + 1)
        return Number(mine.value + 1), up, {"seen": mine.value}

    def finish(ctx, answer, mine):
        return Number(mine.value + answer.value), {"finished": mine.value}

    return Method(
        name="counting",
        source="test",
        hp=registry.method("local").hp,
        init=lambda ctx: (Number(torch.tensor(0.0)), Number(torch.zeros(ctx.clients))),
        broadcast=lambda ctx, server: server,
        client=client,
        merge=lambda ctx, server, up: (
            Number(server_value * up.value.sum()),
            {"sum": up.value.sum()},
        ),
        models=lambda ctx, server, mine: Models({}, None, None),
        predict=Rule("personal", "head_all"),
        reply=lambda ctx, server: Number(10 * server.value),
        finish=finish,
    )


def test_a_reply_reaches_the_cohort_after_merging():
    method = counting()
    ctx = toy_context(registry.method("local"), 2)
    first = next(rounds(method, ctx, toy_shards([8, 8])))
    assert float(first.server.value) == 2.0  # each client sent 1
    assert first.mine.value.tolist() == [21.0, 21.0]  # 1 + 10 * 2
    assert first.terms["finished"].tolist() == [1.0, 1.0]
    assert float(first.watched["sum"]) == 2.0
    assert first.sent["up/value"].floats == 2
    assert first.sent["down/value"].floats == 2


def test_a_server_that_is_not_finite_stops_the_run():
    ctx = toy_context(registry.method("local"), 2)
    told = "counting, round 1: the server's value is not finite"
    with pytest.raises(NonFiniteError, match=told):
        next(rounds(counting(float("inf")), ctx, toy_shards([8, 8])))


# Plain Python in place of vmap


@pytest.mark.parametrize(
    ("name", "hp"),
    [
        ("fedproto", {}),
        ("fedfa", {}),  # what follows a step
        ("fedmps", {}),
        ("gfpl", {}),
        ("fedpa", {"variant": "reference"}),  # draws, moments, rates
        ("fedhpro", {}),
        ("fedpg", {"separate_virtual_bn_forward": True}),
    ],
)
def test_clients_one_by_one_in_plain_python_end_where_vmap_does(name, hp):
    """Clients of 24, 17, 9 and 0 samples, in two rounds."""
    # with Adam a gradient of rounding alone, as of a bias before BatchNorm, is a step
    own = name in ("fedmps", "fedhpro", "fedpa")
    net = toy_net(name) if own else "digits_bn"
    method = registry.method(name)
    settings = {"net": net, "training": TOY_TRAINING.get(name), **TOY.get(name, {})}
    ctx, shards = toy_context(method, 4, **settings, **hp), toy_shards([24, 17, 9, 0])
    fast, plain = (
        flatten(list(islice(rounds(method, now, shards), 2))[-1].mine)
        for now in (ctx, replace(ctx, plain=True))
    )
    assert fast.keys() == plain.keys()
    for key, value in fast.items():
        torch.testing.assert_close(value, plain[key], rtol=0, atol=1e-5, msg=key)


def test_plain_python_prints_numbers_and_names_client_step_and_shapes():
    """Where vmap refuses ``float``, and names neither."""
    method = registry.method("local")
    shards = toy_shards([16, 24])
    ctx = replace(toy_context(method, 2), round=1)
    state, seen = ctx.init_clients(True), []

    def loss(weights, batch):
        total = cross_entropy(ctx.net(weights, batch.x, train=True).logits, batch.y)
        seen.append(float(total.detach()))
        if len(seen) == 4:
            raise ValueError("the fourth")
        return Losses(total, {}, {})

    with pytest.raises(RuntimeError):
        ctx.train(state, shards, loss)
    seen.clear()
    with pytest.raises(ValueError, match="the fourth") as caught:
        replace(ctx, plain=True).train(state, shards, loss)
    assert caught.value.__notes__ == ["client 1, step 1: inputs [8, 1, 8, 8], [8]"]
    assert len(set(seen)) == 4
