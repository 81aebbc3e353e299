"""FedGen, CCVR and VHL: equations by plain numpy, switches, and what travels."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from fedlib import papers, registry
from fedlib.baselines import ccvr, fedavg, fedgen, vhl
from fedlib.blocks import descent, generators, virtual_images, with_generator
from fedlib.blocks.virtual_images import Recipe
from fedlib.core import readouts
from fedlib.core.local import Batch
from fedlib.core.messages import as_model, sizes
from fedlib.core.method import Context, Round, rounds
from fedlib.core.nets import build
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.training import Training
from fedlib.core.tree import flatten, stack
from fedlib.papers.protocol import preset
from fedlib.runs import runner
from fedlib.runs.federation import federation
from tests.conftest import TOY, TOY_TRAINING, toy_context, toy_shards


def context(name: str, clients: int = 2, *, number: int = 1, **changes) -> Context:
    given = {"training": TOY_TRAINING.get(name)} | TOY.get(name, {}) | changes
    return replace(toy_context(registry.method(name), clients, **given), round=number)


def play(name: str, count: int, sizes_of: list[int], **changes) -> list[Round]:
    ctx = context(name, len(sizes_of), number=0, **changes)
    stepping = rounds(registry.method(name), ctx, toy_shards(sizes_of))
    return list(islice(stepping, count))


def captured_train(monkeypatch, name, ctx, down, mine, shards):
    """The arguments with which a client calls ``ctx.train``."""
    seen = {}
    train = Context.train

    def spy(self, state, shards, loss, extra=None, **settings):
        seen.update(settings, state=state, loss=loss)
        return train(self, state, shards, loss, extra, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Context, "train", spy)
        registry.method(name).client(ctx, down, mine, shards)
    return seen


def entropy(logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cross-entropies ``[B]`` of logits ``[B, C]``."""
    return np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]


# --- FedGen ---------------------------------------------------------------------------


def test_fedgen_latent_term_by_hand():
    """p = (3/4, 1/4, 0, 0) and q = (1/2, 1/2, 0, 0).

    KL(p || q) = 3/4 log(3/2) + 1/4 log(1/2) = 0.3041 - 0.1733 = 0.1308.
    """
    ctx = context("fedgen")
    state = {k: torch.zeros_like(v[0]) for k, v in ctx.init_clients(True).items()}
    state["head.0.bias"] = torch.tensor([math.log(3), 0.0, -60.0, -60.0])
    q = torch.tensor([[0.0, 0.0, -60.0, -60.0]]).expand(5, 4).clone().requires_grad_()
    for value in state.values():
        value.requires_grad_()
    found = fedgen.latent(ctx, state, torch.ones(5, 32), q)
    assert float(found.detach()) == pytest.approx(0.1308, abs=1e-4)
    found.backward()
    slope = q.grad
    assert slope is not None
    # q - p, divided by the batch: (-1/4, 1/4) / 5; the teacher is a constant
    torch.testing.assert_close(slope[0], torch.tensor([-0.05, 0.05, 0.0, 0.0]))
    assert all(v.grad is None for v in state.values())


def captured_fit(monkeypatch, ctx, server, up):
    """The arguments with which merging trains the generator."""
    seen = {}

    def fit(state, loss, steps, **settings):
        seen.update(settings, state=state, loss=loss, steps=steps)
        none = dict.fromkeys(("fidelity", "diversity", "norm"), torch.zeros(()))
        return descent.Fitted(state, none, settings["moments"])

    with monkeypatch.context() as patch:
        patch.setattr(descent, "fit", fit)
        fedgen.merge(ctx, server, up)
    return seen


@pytest.mark.parametrize("fid_weight", ["per_sample", "outer_mean"])
@pytest.mark.parametrize("noise", ["uniform", "normal"])
def test_fedgen_generator_loss_by_numpy(fid_weight, noise, monkeypatch):
    """Box 4 from uploads to the number that is minimised; class 2 was not processed."""
    switches = {"fid_weight": fid_weight, "noise": noise, "generator_steps": 50}
    switches |= {"generator_batch": 32}
    ctx = context("fedgen", 2, number=12, **switches)
    server, _ = fedgen.init(ctx)
    states = [ctx.net.init(generator(5, k)) for k in range(2)]
    seen = np.array([[1, 3, 0, 1], [2, 0, 0, 2]])
    none = torch.zeros(2, 4, 32), torch.zeros(2, 4, dtype=torch.int64)
    up = with_generator.Up(
        as_model(ctx.net, stack(states)),
        Protos(*none),
        torch.tensor([[1.0, 4, 1, 2], [3, 0, 5, 2]]),
        {"seen": torch.tensor(seen)},
    )
    args = captured_fit(monkeypatch, ctx, server, up)
    assert args["steps"] == 50
    assert args["learning_rate"] == pytest.approx(3e-4 * 0.98**11)
    assert args["weight_decay"] == 0.01
    found = args["loss"]({k: v.clone() for k, v in args["state"].items()}, 4)

    pick = ctx.random("generator 4")
    qualified = torch.tensor([1.0, 1.0, 0.0, 1.0])
    y = torch.multinomial(qualified, 32, replacement=True, generator=pick)
    assert 2 not in y
    z = {"uniform": torch.rand, "normal": torch.randn}[noise](32, 32, generator=pick)
    made = generators.build(4, 32)
    fresh = {k: v.clone() for k, v in server.generator.items()}
    h = made(fresh, z, y, train=True).detach().double().numpy()
    z, y = z.double().numpy(), y.numpy()
    fid = 0.0
    for k in range(2):
        w, b = (states[k][f"head.0.{n}"].double().numpy() for n in ("weight", "bias"))
        each = entropy(h @ w.T + b, y)
        share = (1.0 + seen[k, y]) / (2.0 + seen[:, y].sum(0))
        fid += np.mean(share * each)
        if fid_weight == "outer_mean":
            fid += share.mean() * each.mean() - np.mean(share * each)
    spread = 0.0
    for i in range(32):
        for j in range(32):
            spread += np.abs(h[i] - h[j]).mean() * ((z[i] - z[j]) ** 2).mean()
    div = math.exp(-spread / 32**2)
    assert float(found.terms["fidelity"].detach()) == pytest.approx(fid, rel=1e-5)
    assert float(found.terms["diversity"].detach()) == pytest.approx(div, rel=1e-5)
    assert float(found.total.detach()) == pytest.approx(fid + div, rel=1e-5)


def trained_server(ctx: Context) -> with_generator.Server:
    server, _ = fedgen.init(ctx)
    return server._replace(available=torch.tensor([True, True, False, True]))


def test_fedgen_client_loss_by_numpy(monkeypatch):
    """Box 2 at t = 5 with 32 generated and 8 own: B_g / B = 4; a short batch of 5."""
    shards = toy_shards([24, 17])
    ctx = context("fedgen", 2, number=6, noise="normal", client_labels="reported")
    server, (_, mine) = trained_server(ctx), fedgen.init(ctx)
    down = fedgen.broadcast(ctx, server)
    torch.testing.assert_close(down.labels.share, torch.tensor([1, 1, 0, 1]) / 3)
    args = captured_train(monkeypatch, "fedgen", ctx, down, mine, shards)
    fresh = args["draw"](1, 7)
    x, y = shards.x[:5], shards.y[:5]
    state = {k: v[1] for k, v in mine.state.items()}
    found = args["loss"](dict(state), Batch(x, y, fresh))

    assert 2 not in fresh["labels"]
    assert fresh["noise"].shape == (32, 32)
    assert fresh["own_noise"].shape == (8, 32)
    w, b = (state[f"head.0.{n}"].double().numpy() for n in ("weight", "bias"))
    f = ctx.net(state, x).high.detach().double().numpy()
    own = f @ w.T + b
    theta, made = server.generator, generators.build(4, 32)
    h = made(theta, fresh["noise"], fresh["labels"]).double().numpy()
    latent = made(theta, fresh["own_noise"][:5], y).double().numpy() @ w.T + b
    p = np.exp(latent) / np.exp(latent).sum(1, keepdims=True)
    q = np.exp(own) / np.exp(own).sum(1, keepdims=True)
    wanted = {
        "supervised": entropy(own, y.numpy()).mean(),
        "synthetic": entropy(h @ w.T + b, fresh["labels"].numpy()).mean(),
        "latent": (p * np.log(p / q)).sum(1).mean(),
    }
    for name, value in wanted.items():
        assert float(found.terms[name].detach()) == pytest.approx(value, rel=1e-4)
    total = wanted["supervised"] + 0.98**5 * (
        4 * 10 * wanted["synthetic"] + 10 * wanted["latent"]
    )
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-4)


def test_fedgen_first_round_is_cross_entropy_and_trains_the_generator():
    first, second = play("fedgen", 2, [24, 17])
    assert float(first.terms["synthetic"].sum() + first.terms["latent"].sum()) == 0
    assert bool((second.terms["latent"] > 0).all())
    assert set(first.watched) == {"fidelity", "diversity", "norm"}
    for after, steps in ((first, 3), (second, 6)):  # it goes on where it ended
        assert int(after.server.generator["1.num_batches_tracked"]) == steps


def test_fedgen_terms_pull_where_they_say():
    """Each weight makes its own term smaller than it is without it."""
    off = {"generator_weight": 0.0, "latent_weight": 0.0}
    plain = play("fedgen", 2, [24, 17], **off)[-1].terms
    for weight, term in {
        "generator_weight": "synthetic",
        "latent_weight": "latent",
    }.items():
        moved = play("fedgen", 2, [24, 17], **off | {weight: 10.0})[-1].terms
        assert bool((moved[term] < 0.99 * plain[term]).all()), term


def test_fedgen_without_latent_term_is_fedpa_without_prototypes():
    """Bit for bit, where B_g = B and no weight decays (FedPA's fidelity would)."""
    training = Training(optimiser="adam", learning_rate=0.003, local_steps=4)
    same = {"training": training, "synthetic_batch": 8, "schedule_decay": 1.0}
    released = {
        "noise": "uniform",
        "generator_weight": 10.0,
        "fidelity_weight": 1.0,
        "proto_weight": 0.0,
        "proto_floor": 0.0,
        "adversarial_weight": 0.0,
        "fid_norm": "sum",
        "pj_counts": "seen_plus1",
        "gen_labels": "uniform_qualified",
        "client_labels": "uniform_all",
        "generator_rows": "batch_size",
        "div_pairs": "all",
        "div_metric": "l1mean_msemean",
        "moments": "reset",
        "lr_decay": 1.0,
    }
    reduced = play("fedgen", 3, [24, 17], latent_weight=0.0, **same)[-1]
    other = play("fedpa", 3, [24, 17], **same, **released)[-1]
    for key, value in other.mine.state.items():
        assert torch.equal(value, reduced.mine.state[key]), key
    for key, value in other.server.generator.items():
        assert torch.equal(value, reduced.server.generator[key]), key


@pytest.mark.parametrize(
    ("classes", "down", "up"), [(10, 46_690 + 10, 26_444), (26, 51_314 + 26, 26_988)]
)
def test_fedgen_numbers_that_travel(classes, down, up):
    """FedPA's section 5, with the 44 BatchNorm statistics of the model beside."""
    net = build("fedpa_cnn", (1, 28, 28), classes)
    ctx = replace(context("fedgen", 1), net=net, classes=classes)
    server, mine = fedgen.init(ctx)
    silent = sizes(fedgen.broadcast(ctx, server))  # round 1: the model alone
    silent.pop("model_buffers")
    assert sum(size.floats for size in silent.values()) == up - classes
    server = server._replace(available=torch.ones(classes, dtype=torch.bool))
    message = sizes(fedgen.broadcast(ctx, server))
    assert message.pop("model_buffers").floats == 44
    assert sum(size.floats for size in message.values()) == down
    shards = toy_shards([24], classes=4)
    shards = shards._replace(x=torch.zeros(24, 1, 28, 28))
    _, sent, _ = fedgen.client(ctx, fedgen.broadcast(ctx, server), mine, shards)
    counted = sizes(sent, 1)
    assert counted.pop("model_buffers").floats == 44
    assert sum(size.floats for size in counted.values()) == up
    fields = {(c.direction, c.field) for c in fedgen.METHOD.counted}
    named = {("down", k) for k in message} | {("up", k) for k in counted}
    assert named - fields == {("down", "protos"), ("up", "protos"), ("up", "counters")}
    assert message["protos"].floats == counted["protos"].floats == 0


def test_fedgen_generates_as_many_as_a_batch_has(monkeypatch):
    """Batches of 8 here; 8 noises are asked for in a step, or as many as given."""
    for given, rows in ((None, 8), (12, 12)):
        ctx = context("fedgen", 2, generator_batch=given)
        last = play("fedgen", 1, [24, 17], generator_batch=given)[-1]
        args = captured_fit(monkeypatch, ctx, last.server, last.up)
        seen: list[int] = []
        draw = generators.draw_noise

        def counted(kind, rows, size, pick, seen=seen, draw=draw):
            seen.append(rows)
            return draw(kind, rows, size, pick)

        with monkeypatch.context() as patch:
            patch.setattr(generators, "draw_noise", counted)
            args["loss"]({k: v.clone() for k, v in args["state"].items()}, 0)
        assert seen == [rows]
    one = Training(batch_size=1)
    with pytest.raises(ValueError, match="batch_size: got 1 with generator_batch=None"):
        play("fedgen", 1, [24], training=one)


def test_fedgen_clients_draw_classes_that_nobody_reported():
    """Class 2 is held by a client that was in no cohort; class 3 by nobody."""
    ctx = replace(context("fedgen"), held=(0, 1, 2))
    server, _ = fedgen.init(ctx)
    assert not bool(fedgen.broadcast(ctx, server).labels.share.any())  # round 1
    server = server._replace(available=torch.tensor([True, True, False, False]))
    shares = {
        which: fedgen.broadcast(
            replace(ctx, hp=fedgen.HP(client_labels=which)), server
        ).labels.share.tolist()
        for which in ("all", "reported")
    }
    assert shares["all"] == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert shares["reported"] == pytest.approx([1 / 2, 1 / 2, 0, 0])


def test_fedgen_counts_the_steps_of_all_epochs():
    """Three epochs see every sample three times; as many steps count the same."""
    for settings in ({"local_epochs": 3}, {"local_steps": 9}):
        training = Training(learning_rate=0.01, batch_size=8, **settings)
        last = play("fedgen", 1, [24, 0], training=training)[-1]
        assert last.up.counters["seen"].sum(1).tolist() == [72, 0], settings
        assert (last.up.counters["seen"] == 3 * last.up.labels).all()


def test_fedgen_counts_what_was_processed_and_what_is_owned():
    """Two steps of 8 see 16 of 24 samples; the mean of the models weighs all 24."""
    training = Training(learning_rate=0.01, local_steps=2)
    last = play("fedgen", 1, [24, 0, 17], training=training)[-1]
    assert last.up.counters["seen"].sum(1).tolist() == [16, 0, 16]
    assert last.up.labels.sum(1).tolist() == [24, 0, 17]
    for key, value in last.server.model.params.items():
        each = last.up.model.params[key]
        mean = (24 * each[0] + 17 * each[2]) / 41
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-6)


def test_fedgen_statistics_stay_local_on_request():
    last = play("fedgen", 1, [24, 17], net="digits_bn", buffers="local")[-1]
    assert last.up.model.buffers == {}
    found = fedgen.METHOD.models(context("fedgen", buffers="local"), *last[1:3])
    assert found.received is not None
    key = "low.1.running_mean"
    torch.testing.assert_close(found.received[key], last.mine.state[key])


def test_fedgen_presets():
    reduced = preset(papers.TABLES["fedpa"].presets, "fedgen", "mnist")
    assert fedgen.HP(**reduced).fid_weight == "per_sample"
    assert reduced["latent_weight"] == 0
    assert (
        preset(papers.TABLES["fedpa"].presets, "fedgen", "emnist")["generator_lr"]
        == 1e-4
    )
    celeba = preset(papers.TABLES["fedpa"].presets, "fedgen", "celeba")
    assert celeba["hidden"] == 128  # GENERATORCONFIGS of both programs
    slower = preset(papers.TABLES["fedpg"].presets, "fedgen", "cifar10")
    assert (slower["hidden"], slower["latent_weight"]) == (512, 1.0)


# --- CCVR -----------------------------------------------------------------------------


def surveyed(sizes_of: list[int], *, drop: int | None = None, **changes):
    """A FedAvg round and the survey after it; nobody has class ``drop``."""
    shards = toy_shards(sizes_of)
    if drop is not None:
        kept = [rows[shards.y[rows] != drop] for rows in shards.index]
        shards = shards._replace(index=kept)
    ctx = context("ccvr", len(sizes_of), **changes)
    last = next(rounds(ccvr.METHOD, replace(ctx, round=0), shards))
    return ctx, shards, last, ccvr.survey(ctx, last.server, last.mine, shards)


def test_ccvr_pooled_statistics_by_hand():
    """Client 0 has 0 and 2 (mean 1, variance 2), client 1 has 4: together 0, 2, 4.

    Mean (2 * 1 + 1 * 4) / 3 = 2; variance [1 * 2 + 2 * (1 - 2)^2 + (4 - 2)^2] / 2 = 4.
    """
    z = torch.tensor([[[0.0], [2.0], [7.0]], [[4.0], [9.0], [9.0]]])
    local = ccvr.gaussians(z, torch.tensor([[0, 0, -1], [0, -1, -1]]), 2)
    assert local.mean[:, 0, 0].tolist() == [1.0, 4.0]
    assert local.covariance[:, 0, 0, 0].tolist() == [2.0, 0.0]
    union = ccvr.pooled(local)
    assert union.count.tolist() == [3, 0]
    assert union.mean[:, 0].tolist() == [2.0, 0.0]
    assert union.covariance[:, 0, 0].tolist() == [4.0, 0.0]


@pytest.mark.parametrize("net", ["digits_linear", "digits_bn"])
def test_ccvr_pooled_statistics_are_those_of_all_samples(net):
    """Beside numpy's mean and np.cov over the union, and the article's own formula."""
    ctx, shards, last, up = surveyed([24, 0, 17, 1], drop=2, net=net)
    union = ccvr.pooled(up.gaussians)
    rows = torch.cat(shards.index)
    z = ctx.net(last.server.model.state, shards.x[rows]).high.double().numpy()
    y = shards.y[rows].numpy()
    for c in (0, 1, 3):
        of_c = z[y == c]
        assert int(union.count[c]) == len(of_c)
        np.testing.assert_allclose(union.mean[c], of_c.mean(0), atol=1e-5)
        np.testing.assert_allclose(union.covariance[c], np.cov(of_c.T), atol=1e-5)
        n = up.gaussians.count[:, c].double().numpy()
        mean = up.gaussians.mean[:, c].double().numpy()
        own = up.gaussians.covariance[:, c].double().numpy()
        total = n.sum()
        mu = (n[:, None] * mean).sum(0) / total
        literal = -total / (total - 1) * np.outer(mu, mu)
        for k in range(4):
            literal += max(n[k] - 1, 0) / (total - 1) * own[k]
            literal += n[k] / (total - 1) * np.outer(mean[k], mean[k])
        np.testing.assert_allclose(union.covariance[c], literal, atol=1e-5)
    assert not union.mean[2].any()
    assert not union.covariance[2].any()


def test_ccvr_survey_is_repeatable_and_of_one_size():
    """Neither samples nor an empty client change its shape; absent classes cost 0."""
    ctx, shards, last, up = surveyed([24, 0, 17], drop=2)
    again = ccvr.survey(ctx, last.server, last.mine, shards)
    for key, value in flatten(up).items():
        assert torch.equal(value, flatten(again)[key]), key
    big = surveyed([60, 9, 17])[-1]
    assert [v.shape for v in flatten(up).values()] == [
        v.shape for v in flatten(big).values()
    ]
    assert not up.gaussians.count[1].any()
    assert not up.gaussians.mean[1].any()
    present = int((shards.label_counts(4) > 0).sum())
    assert sizes(up, 3)["gaussians"] == (present * (32 + 32**2), present)


def test_ccvr_reads_the_statistics_that_a_client_holds():
    """With local BatchNorm statistics the global body runs under each client's own."""
    ctx, shards, last, up = surveyed([24, 17], net="digits_bn", buffers="local")
    for k, rows in enumerate(shards.index):
        own = {n: v[k] for n, v in last.mine.state.items() if n in ctx.net.buffers}
        z = ctx.net(last.server.model.params | own, shards.x[rows]).high
        mean = z[shards.y[rows] == 0].mean(0)
        torch.testing.assert_close(up.gaussians.mean[k, 0], mean, rtol=1e-4, atol=1e-5)


def test_ccvr_draws_from_the_pooled_distributions():
    """Moments of many draws; a lone sample takes the covariance within classes."""
    root = torch.randn(3, 3, generator=generator(3, "root"), dtype=torch.float64)
    cov = torch.stack([root @ root.mT, 4 * torch.eye(3).double(), torch.zeros(3, 3)])
    cov = torch.cat([cov, torch.zeros(1, 3, 3)])
    mean = torch.arange(12.0).view(4, 3).double()
    of = ccvr.Gaussians(mean, cov, torch.tensor([6, 4, 1, 0]))
    z, y = ccvr.draw(of, 20_000, 1e-4, generator(3, "draw"))
    assert y.bincount(minlength=4).tolist() == [20_000] * 3 + [0]
    within = (5 * cov[0] + 3 * cov[1]) / 8
    for c, wanted in enumerate((cov[0], cov[1], within)):
        found = z[y == c]
        np.testing.assert_allclose(found.mean(0), mean[c], atol=0.1)
        np.testing.assert_allclose(np.cov(found.T), wanted, atol=0.2)


@pytest.mark.parametrize("length", [0.1, 1.0, 100.0, 1e4])
def test_ccvr_draws_at_every_scale_of_embeddings(length):
    """C08: fewer samples than dimensions, sent in single precision."""
    z = torch.randn(2, 5, 40, generator=generator(0, "z"))
    z = length * z / z.norm(dim=-1, keepdim=True)
    found = ccvr.gaussians(z, torch.tensor([[0] * 5, [1] * 5]), 2)
    sent = ccvr.Gaussians(found.mean.float(), found.covariance.float(), found.count)
    union = ccvr.pooled(sent)
    drawn, y = ccvr.draw(union, 4000, 1e-4, generator(1, "draw"))
    for c in (0, 1):
        spread = drawn[y == c].var(0).sum()
        torch.testing.assert_close(
            spread, union.covariance[c].trace() + 40e-4, rtol=0.05, atol=0.0
        )


def test_ccvr_draws_the_same_bits_where_embeddings_are_small():
    """The jitter alone, in the digits that it had before it followed the scale."""
    z = 0.3 * torch.randn(1, 6, 8, generator=generator(2, "z"))
    of = ccvr.pooled(ccvr.gaussians(z, torch.zeros(1, 6, dtype=torch.int64), 1))
    assert of.covariance[0].diagonal().mean() < 1
    drawn, _ = ccvr.draw(of, 5, 1e-4, generator(3, "draw"))
    root = torch.linalg.cholesky(of.covariance + 1e-4 * torch.eye(8))
    noise = torch.randn(1, 5, 8, generator=generator(3, "draw"), dtype=torch.float64)
    assert torch.equal(drawn, (of.mean.unsqueeze(1) + noise @ root.mT)[0])


def test_ccvr_names_a_class_whose_covariance_is_none():
    negative = -torch.eye(2, dtype=torch.float64)[None]
    of = ccvr.Gaussians(torch.zeros(1, 2).double(), negative, torch.tensor([5]))
    with pytest.raises(ValueError, match="ccvr: the covariance of class 0 .* jitter"):
        ccvr.draw(of, 3, 1e-4, generator(0, "draw"))


def test_ccvr_has_fedavgs_rounds_and_without_draws_its_model():
    """No row of KNOBS, since the rounds are FedAvg's whatever the settings."""
    ctx, shards, last, _ = surveyed([24, 17, 9])
    plain = next(rounds(fedavg.METHOD, replace(ctx, round=0), shards))
    for key, value in flatten({"m": plain.mine, "s": plain.server}).items():
        ours = flatten({"m": last.mine, "s": last.server})
        assert torch.equal(value, ours[key]), key
    for off in ({"samples_per_class": 0}, {"epochs": 0}):
        ctx, _, last, up = surveyed([24, 17, 9], **off)
        after = ccvr.finalise(ctx, last.server, up)
        assert flatten(after).keys() == flatten(last.server).keys()
        for key, value in flatten(last.server).items():
            assert torch.equal(value, flatten(after)[key]), key


@pytest.mark.parametrize("net", ["digits_linear", "digits_cnn"])
def test_ccvr_finalise_moves_the_head_alone_towards_what_is_drawn(net):
    ctx, _, last, up = surveyed([24, 0, 17], drop=2, net=net)
    before, after = last.server.model, ccvr.finalise(ctx, last.server, up).model
    for key, value in before.state.items():
        assert torch.equal(value, after.state[key]) != key.startswith("head."), key
    again = ccvr.finalise(ctx, last.server, up).model
    assert all(torch.equal(v, again.params[k]) for k, v in after.params.items())
    z, y = ccvr.draw(ccvr.pooled(up.gaussians), 500, 1e-4, generator(1, "fresh"))
    losses = [
        torch.nn.functional.cross_entropy(
            ctx.net.head(ctx.net.head_state(model.params), z.float()), y
        )
        for model in (before, after)
    ]
    assert losses[1] < losses[0]
    assert bool((up.gaussians.count.sum(0) == 0)[2])  # and class 2 does no harm


ADAM = {"server_optimiser": "adam", "server_learning_rate": 0.003}


@pytest.mark.parametrize("own", [{}, {"server_learning_rate": 0.02}, ADAM], ids=str)
def test_ccvr_head_by_a_plain_loop(own):
    """One epoch of SGD with the run's momentum, rate and batch size, or the server's.

    Its own optimiser or rate does not touch what else is the run's.
    """
    training = Training(learning_rate=0.1, momentum=0.9, batch_size=7)
    given = {"samples_per_class": 5, "training": training, **own}
    ctx, _, last, up = surveyed([24, 17], **given)
    found = ccvr.finalise(ctx, last.server, up).model.params
    pick = ctx.random("calibration")
    z, y = ccvr.draw(ccvr.pooled(up.gaussians), 5, 1e-4, pick)
    w, b = (
        last.server.model.params[f"head.0.{n}"].clone().requires_grad_()
        for n in ("weight", "bias")
    )
    rate = own.get("server_learning_rate", 0.1)
    optimiser = torch.optim.SGD([w, b], lr=rate, momentum=0.9)
    if "server_optimiser" in own:
        optimiser = torch.optim.Adam([w, b], lr=rate)
    for rows in torch.randperm(20, generator=pick).split(7):
        optimiser.zero_grad()
        logits = z[rows].float() @ w.T + b
        torch.nn.functional.cross_entropy(logits, y[rows]).backward()
        optimiser.step()
    torch.testing.assert_close(found["head.0.weight"], w.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found["head.0.bias"], b.detach(), rtol=0, atol=1e-6)


def test_ccvr_power_transform():
    """-4, 9 become -2, 3 and come back; statistics are of the transformed numbers."""
    z = torch.tensor([-4.0, 0.0, 9.0])
    assert ccvr.power(z, 0.5).tolist() == [-2.0, 0.0, 3.0]
    assert ccvr.power(ccvr.power(z, 0.5), 2.0).tolist() == z.tolist()
    assert torch.equal(ccvr.power(z, 1.0), z)
    ctx, shards, last, up = surveyed([24, 17], tukey_power=0.5)
    rows = shards.index[0][shards.y[shards.index[0]] == 1]
    high = ctx.net(last.server.model.state, shards.x[rows]).high.numpy()
    wanted = (np.sign(high) * np.sqrt(np.abs(high))).mean(0)
    np.testing.assert_allclose(up.gaussians.mean[0, 1], wanted, atol=1e-5)
    plain = ccvr.finalise(replace(ctx, hp=ccvr.HP()), last.server, up)
    moved = ccvr.finalise(ctx, last.server, up)
    key = "head.0.weight"
    assert not torch.equal(moved.model.params[key], plain.model.params[key])


def test_ccvr_in_a_run_is_calibrated_on_the_side():
    """The rounds go on from FedAvg's model; d + d^2 floats per class, at the end."""
    given = {"rounds": 2, "clients": 4, "net": "digits_linear", "participation": 1.0}
    spec = papers.fedpg("digits", "ccvr", **given)
    fed = federation(spec)
    after = list(islice(fed.rounds(), 2))[-1]
    found = fed.evaluate(after)
    ctx = replace(fed.ctx, round=2)
    up = ccvr.survey(ctx, after.server, after.mine, fed.train)
    state = ccvr.finalise(ctx, after.server, up).model.state
    assert fed.full is not None
    logits = ctx.net(state, fed.full.x).logits
    right = int((logits.argmax(1) == fed.full.y).sum())
    assert found["full/global/head_all"].tolist() == [right]
    table = runner.run(spec).payload()
    once = table[table.field == "gaussians"]
    assert once["round"].tolist() == [2]
    present = int((fed.train.label_counts(10) > 0).sum())
    wanted = [present * (32 + 32**2), present]
    assert once[["floats", "ints"]].to_numpy().tolist() == [wanted]


# --- VHL: the images ------------------------------------------------------------------

SMALL = Recipe(style_size=8, width=8)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (2, 12, 20)], ids=str
)
def test_virtual_images_of_any_shape(shape):
    """One distribution per class: half of the images tell the classes of the others."""
    images = virtual_images.make(3, 4, 20, shape, SMALL)
    assert images.shape == (80, *shape)
    flat = images.transpose(0, 1).flatten(1)
    torch.testing.assert_close(flat.mean(1), torch.zeros(shape[0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(flat.std(1), torch.ones(shape[0]), rtol=0, atol=1e-4)
    of_class = images.flatten(1).view(4, 2, 10, -1)
    means, rest = of_class[:, 0].mean(1), of_class[:, 1]
    nearest = torch.cdist(rest.flatten(0, 1), means).argmin(1).view(4, 10)
    right = (nearest == torch.arange(4).unsqueeze(1)).float().mean()
    assert right > 0.8  # chance is 0.25


def test_virtual_images_depend_on_the_seed_alone():
    first = virtual_images.make(3, 4, 5, (1, 8, 8), SMALL).clone()
    other = virtual_images.make(4, 4, 5, (1, 8, 8), SMALL)
    again = virtual_images.make(3, 4, 5, (1, 8, 8), SMALL)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, atol=0.1)


@pytest.mark.parametrize(("noise", "spread"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.1)])
def test_images_of_a_class_differ_by_latents_and_by_noise(noise, spread):
    recipe = SMALL._replace(noise_weight=noise, sample_spread=spread)
    images = virtual_images.make(3, 2, 6, (1, 8, 8), recipe).view(2, 6, -1)
    within = float(images.std(1).max())
    assert (within > 1e-3) == bool(noise or spread)
    assert float(images.mean(1).std(0).max()) > 0.1  # classes differ in any case


def test_noise_means_are_as_unlike_as_can_be():
    """Orthogonal rows where they fit; else unit rows with orthogonal columns."""
    few = virtual_images.frame(3, 5, generator(3, "few")).double()
    torch.testing.assert_close(few @ few.T, torch.eye(3).double(), rtol=0, atol=1e-5)
    many = virtual_images.frame(10, 3, generator(3, "many")).double()
    torch.testing.assert_close(many.norm(dim=1), torch.ones(10).double())
    wanted = torch.eye(3).double() * 10 / 3
    torch.testing.assert_close(many.T @ many, wanted, rtol=0, atol=1e-3)


def test_modulated_convolution_by_loops():
    """Each image has a kernel of its own, scaled by input map and then made unit."""
    pick = generator(3, "modulated")
    x, kernel, scale = (
        torch.randn(shape, generator=pick).double()
        for shape in ((2, 3, 5, 4), (6, 3, 3, 3), (2, 3))
    )
    found = virtual_images.modulated(x, kernel, scale)
    plain = virtual_images.modulated(x, kernel, scale, demodulate=False)
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for b in range(2):
        for o in range(6):
            own = kernel[o].numpy() * scale[b].numpy()[:, None, None]
            for i in range(5):
                for j in range(4):
                    sums = (padded[b, :, i : i + 3, j : j + 3] * own).sum()
                    assert float(plain[b, o, i, j]) == pytest.approx(sums)
                    unit = sums / np.sqrt((own**2).sum())
                    assert float(found[b, o, i, j]) == pytest.approx(unit, rel=1e-6)


def test_a_kernel_of_zeros_has_no_direction_and_gives_zeros():
    x, scale = torch.ones(1, 2, 4, 4), torch.ones(1, 2)
    found = virtual_images.modulated(x, torch.zeros(3, 2, 3, 3), scale)
    assert torch.equal(found, torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize("per_class", [2, 4, 5])
def test_virtual_images_are_made_some_at_a_time(monkeypatch, per_class):
    monkeypatch.setattr(virtual_images, "BATCH", 2)
    virtual_images.make.cache_clear()
    images = virtual_images.make(3, 2, per_class, (1, 8, 8), SMALL)
    virtual_images.make.cache_clear()
    assert len(images) == 2 * per_class


def test_virtual_images_image_by_image():
    """Boxes 1 to 5 for 8 x 8 from the same draws: once at 4 x 4, twice at 8 x 8."""
    recipe = Recipe(style_size=3, width=2, noise_weight=0.6)
    found = virtual_images.make(5, 2, 3, (1, 8, 8), recipe)
    pick = generator(5, "virtual images")

    def normal(*shape):
        return torch.randn(*shape, generator=pick)

    x0 = normal(1, 2, 4, 4)
    convs = [(normal(2, 2, 3, 3), normal(2, 3)) for _ in range(3)]
    to_image = [(normal(1, 2, 1, 1), normal(2, 3)) for _ in range(2)]
    mapping, centres = normal(3, 3), 0.3 * normal(2, 3)
    means = virtual_images.frame(2, 3, pick)
    made = []
    for c in range(2):
        z = centres[c] + 0.1 * normal(3, 3)
        noises = [normal(3, 1, s, s) * 0.1 / 3 for s in (4, 8, 8)]
        for b in range(3):
            unit = z[b] / z[b].square().mean().sqrt()
            style = bent(unit @ mapping / 3**0.5)

            def styled(x, number, c=c, b=b, style=style, noises=noises):
                kernel, affine = convs[number]
                own = kernel * (1 + affine @ style / 3**0.5)[:, None, None]
                own = own / own.square().sum((1, 2, 3), keepdim=True).sqrt()
                x = torch.nn.functional.conv2d(x, own, padding=1)
                noise = means[c, number] + noises[number][b]
                return bent(x + 0.6 * noise)

            def shown(x, number, style=style):
                kernel, affine = to_image[number]
                own = kernel * (1 + affine @ style / 3**0.5)[:, None, None]
                return torch.nn.functional.conv2d(x, own / 2**0.5)

            low = styled(x0, 0)
            high = styled(styled(doubled(low), 1), 2)
            made.append(doubled(shown(low, 0)) + shown(high, 1))
    wanted = torch.cat(made)
    wanted = (wanted - wanted.mean()) / wanted.std()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def bent(x):
    return 2**0.5 * torch.where(x > 0, x, 0.2 * x)


def doubled(x):
    """Each pixel becomes four: 3/4 of it and 1/4 of a neighbour, along each side."""
    for dim in (2, 3):
        x = x.movedim(dim, -1)
        left = torch.cat([x[..., :1], x[..., :-1]], -1)
        right = torch.cat([x[..., 1:], x[..., -1:]], -1)
        x = torch.stack([0.75 * x + 0.25 * left, 0.75 * x + 0.25 * right], -1)
        x = x.flatten(-2).movedim(-1, dim)
    return x


# --- VHL: the method ------------------------------------------------------------------


def asked(monkeypatch, **changes):
    """A client's loss in VHL's first round, and what it is given."""
    ctx = context("vhl", 2, v_batch_balanced=True, **changes)
    server, mine = vhl.init(ctx)
    shards = toy_shards([24, 17])
    down = vhl.broadcast(ctx, server)
    args = captured_train(monkeypatch, "vhl", ctx, down, mine, shards)
    recipe = Recipe(**{k: getattr(ctx.hp, k) for k in Recipe._fields})
    images = virtual_images.make(int(down.seed), 4, 8, (1, 8, 8), recipe)
    return ctx, mine, shards, args, images


def test_vhl_loss_by_hand(monkeypatch):
    """All weights 0, eight own and sixteen virtual images, four of each class.

    Each cross-entropy is over eight equal outputs: log 8. All similarities are 0, and
    every image has others of its class: SupCon is log 23 over 24 embeddings and log 15
    over 16. In all 2 log 8 + log 23 + 0.1 log 15 = 4.1589 + 3.1355 + 0.2708 = 7.5652.
    """
    _, mine, shards, args, _ = asked(monkeypatch)
    state = {k: torch.zeros_like(v[0]) for k, v in mine.state.items()}
    batch = Batch(shards.x[:8], shards.y[:8], args["draw"](0, 0))
    found = args["loss"](state, batch)
    assert float(found.total) == pytest.approx(7.5652, abs=1e-4)


def test_vhl_loss_and_slopes_by_loops(monkeypatch):
    """Box 3 with weights of its own for each term, and which terms reach what."""
    weights = {"tuning_weight": 0.7, "align_weight": 0.3, "align_temperature": 0.5}
    ctx, mine, shards, args, images = asked(monkeypatch, **weights)
    x, y = shards.x[:6], shards.y[:6]
    fresh = args["draw"](1, 3)
    made = fresh["virtual"] // 8
    assert made.bincount().tolist() == [4, 4, 4, 4]
    slopes = []
    for oracle in (False, True):
        state = {k: v[1].clone().requires_grad_() for k, v in mine.state.items()}
        if not oracle:
            total = args["loss"](state, Batch(x, y, fresh)).total
        else:
            both = torch.cat([x, images[fresh["virtual"]]])
            z = ctx.net(state, both, train=True).high
            parts = [state["head.0.weight"], state["own.virtual.weight"]]
            biases = [state["head.0.bias"], state["own.virtual.bias"]]
            logits = z @ torch.cat(parts).T + torch.cat(biases)
            shifted = torch.cat([y, made + 4])
            each = logits.logsumexp(1) - logits[torch.arange(22), shifted]
            u = z / z.norm(dim=1, keepdim=True)
            union = [*u[:6], *u[6:].detach()]
            aligned = supcon(union, torch.cat([y, made]).tolist(), 0.5)
            aligned = aligned + 0.1 * supcon([*u[6:]], made.tolist(), 0.5)
            total = each[:6].mean() + 0.7 * each[6:].mean() + 0.3 * aligned
        total.backward()
        slopes.append((total.detach(), {k: v.grad for k, v in state.items()}))
    (found, ours), (wanted, theirs) = slopes
    torch.testing.assert_close(found, wanted)
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-4, atol=1e-6)


def supcon(vectors: list, labels: list[int], temperature: float) -> torch.Tensor:
    """The mean over all anchors; those without a positive add 0."""
    total = torch.zeros(())
    for i, v in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        size = sum(torch.exp(v @ vectors[j] / temperature) for j in others)
        same = [j for j in others if labels[j] == labels[i]]
        for j in same:
            total = total - (v @ vectors[j] / temperature - size.log()) / len(same)
    return total / len(vectors)


def test_vhl_terms_pull_where_they_say():
    off = {"tuning_weight": 0.0, "align_weight": 0.0}
    plain = play("vhl", 3, [24, 17], **off)[-1].terms
    for weight, term in {"tuning_weight": "tuning", "align_weight": "align"}.items():
        moved = play("vhl", 3, [24, 17], **off | {weight: 1.0})[-1].terms
        assert bool((moved[term] < 0.9 * plain[term]).all()), term


def test_vhl_second_outputs_travel_with_the_model():
    """C (d + 1) floats more than FedAvg both ways, one seed down, and no image."""
    first, last = play("vhl", 2, [24, 0, 17])
    plain = play("fedavg", 2, [24, 0, 17])[-1]
    more = 4 * (32 + 1)
    for way in ("up/model", "down/model"):
        assert last.sent[way].floats == plain.sent[way].floats + 3 * more
    assert last.sent["down/seed"] == (0, 3)
    assert set(last.sent) == set(plain.sent) | {"down/seed"}
    key = "own.virtual.weight"
    mean = (
        24 * first.up.model.params[key][0] + 17 * first.up.model.params[key][2]
    ) / 41
    for place in (first.server.model.params[key], last.down.model.params[key]):
        torch.testing.assert_close(place, mean, rtol=0, atol=1e-6)
    assert not torch.equal(last.mine.state[key][0], last.mine.state[key][2])
    kept = flatten({"s": last.server, "m": last.mine, "d": last.down}).values()
    assert all(v.shape[-2:] != (8, 8) for v in kept)


def test_vhl_first_second_outputs_are_common_or_own():
    for common in (True, False):
        _, mine = vhl.init(context("vhl", 2, common_init=common))
        one, other = mine.state["own.virtual.weight"]
        assert torch.equal(one, other) == common
    _, mine = vhl.init(context("vhl", 2, virtual_per_class=0))
    assert not any(k.startswith("own.") for k in mine.state)


def test_vhl_clients_share_images_and_shuffle_on_their_own(monkeypatch):
    _, _, _, args, images = asked(monkeypatch)
    kept = images.clone()
    play("vhl", 1, [24, 17], v_batch_balanced=True)
    again = asked(monkeypatch)[-1]
    assert torch.equal(kept, again)  # nobody wrote to them
    one, other = args["draw"](0, 0)["virtual"], args["draw"](1, 0)["virtual"]
    assert not torch.equal(one, other)
    cycle = [args["draw"](0, step)["virtual"] for step in range(4)]
    assert torch.equal(cycle[0], cycle[2])  # 32 images are two batches of 16
    assert torch.cat(cycle[:2]).sort()[0].tolist() == list(range(32))


@pytest.mark.parametrize("net", ["digits_linear", "digits_cnn"])
def test_vhl_rules_by_hand(net):
    """A virtual output that always wins is always wrong; other rules stay."""
    shards = toy_shards([24, 17])
    ctx = context("vhl", 2, net=net)
    last = next(rounds(vhl.METHOD, replace(ctx, round=0), shards))
    owns = torch.ones(2, 4, dtype=torch.bool)
    owns[0, 1:] = False
    key = "own.virtual.bias"
    found = {}
    for name, bias in {"wins": 1e4, "loses": -1e4}.items():
        params = last.server.model.params | {key: torch.full((4,), bias)}
        server = last.server._replace(model=last.server.model._replace(params=params))
        state = last.mine.state | {key: torch.full((2, 4), bias)}
        models = vhl.models(ctx, server, last.mine._replace(state=state))
        found[name] = readouts.evaluate(ctx.net, models, owns, shards, shards)
        full = shards.cohort([0])
        found[name] |= readouts.evaluate_full(ctx.net, models, full)
    for model in ("accuracy/personal", "accuracy/global", "full/global"):
        wins, loses = (found[n][f"{model}/outputs_all"] for n in ("wins", "loses"))
        assert not wins.any()
        assert torch.equal(loses, found["wins"][f"{model}/head_all"])
        assert loses.any()
    own = "accuracy/global/outputs_own"
    assert torch.equal(found["loses"][own], found["loses"]["accuracy/global/head_own"])
    assert not found["wins"][own].any()


def test_vhl_presets():
    for dataset, count in {"cifar10": 5000, "cifar100": 500, "femnist": 200}.items():
        hp = vhl.HP(**preset(papers.TABLES["fedpg"].presets, "vhl", dataset))
        assert hp.virtual_per_class == count
        assert hp.style_size == (256 if dataset == "cifar100" else 64)


def test_vhl_in_a_run_is_read_out_by_the_first_or_by_all():
    given = {"rounds": 1, "clients": 4, "net": "digits_linear", "participation": 1.0}
    hp = TOY["vhl"]
    result = runner.run(papers.fedpg("digits", "vhl", hp=hp, **given))
    for chosen, rule in {"first": "head_all", "all": "outputs_all"}.items():
        spec = papers.fedpg("digits", "vhl", hp=hp | {"test_outputs": chosen}, **given)
        result = replace(result, spec=spec)
        rows = result.summary()
        marked = rows[rows.is_paper_rule][["model", "rule", "data"]]
        assert marked.to_numpy().tolist() == [["global", rule, "full"]]
        assert rule in readouts.RULES
    none = vhl.HP(virtual_per_class=0, test_outputs="all")
    assert vhl.METHOD.rule(none).readout == "head_all"
