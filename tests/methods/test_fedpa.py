"""FedPA: every equation by plain numpy, every switch by hand-computed values."""

import math
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from torch.func import vmap

import fedlib
from fedlib.blocks import descent, generators
from fedlib.core import protos
from fedlib.core.local import Batch
from fedlib.core.messages import as_model, sizes
from fedlib.core.method import Context, NonFiniteError, Round, rounds
from fedlib.core.nets import build
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.training import Training
from fedlib.core.tree import flatten, stack, tree_map
from fedlib.methods import fedpa
from fedlib.methods.fedpa import HP, METHOD, REFERENCE, Up
from tests.conftest import toy_context, toy_shards

B, D, C, K, N = 6, 5, 3, 2, 4
Y = torch.tensor([0, 2, 0, 1, 2, 0])
EXACT = {"rtol": 0, "atol": 0}


def rand(*shape: int, name: str = "x") -> torch.Tensor:
    return torch.randn(*shape, generator=generator(3, name), dtype=torch.float64)


def known(mean: torch.Tensor, *count: int) -> Protos:
    return Protos(mean, torch.tensor(count or [1] * len(mean)))


def context(
    clients: int = 2, *, number: int = 1, training: Training | None = None, **changes
) -> Context:
    ctx = toy_context(METHOD, clients, **changes)
    return replace(ctx, round=number, training=training or ctx.training)


def play(
    count: int,
    sizes_of: list[int],
    *,
    participation: float = 1.0,
    training: Training | None = None,
    **changes,
) -> list[Round]:
    changes = {"generator_steps": 2} | changes
    ctx = context(len(sizes_of), number=0, training=training, **changes)
    run = rounds(METHOD, ctx, toy_shards(sizes_of), participation=participation)
    return list(islice(run, count))


def upload(ctx: Context, local: Protos, labels: list[list[int]], **counters) -> Up:
    """An upload of clients that all send the first model."""
    state = ctx.init_clients(True)
    counted = {k: torch.tensor(v) for k, v in counters.items()}
    return Up(as_model(ctx.net, state), local, torch.tensor(labels).float(), counted)


# --- Eq. (2), (3): prototypes ---------------------------------------------------------


def test_local_prototypes_are_means_over_all_samples_after_training():
    """Eq. (2) with loops, in eval mode, under the weights that are sent."""
    shards = toy_shards([24, 17])
    ctx = context(net="digits_bn")
    server, mine = METHOD.init(ctx)
    _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    for k, rows in enumerate(shards.index):
        state = {n: v[k] for n, v in up.model.state.items()}
        z = ctx.net(state, shards.x[rows]).high.detach().numpy()
        for c in range(4):
            mine_of_c = [z[i] for i, y in enumerate(shards.y[rows]) if y == c]
            assert int(up.protos.count[k, c]) == len(mine_of_c)
            mean = sum(mine_of_c) / len(mine_of_c)
            np.testing.assert_allclose(
                up.protos.mean[k, c].numpy(), mean, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize(
    ("settings", "steps"), [({"local_steps": 2}, 2), ({"local_epochs": 2}, 6)]
)
def test_online_prototypes_are_means_over_processed_samples_in_train_mode(
    settings, steps
):
    """With a rate near 0 the weights stand still.

    Two steps of eight see 16 of 24 samples, two epochs see all twice. The second epoch
    has other batches, and so other means of BatchNorm.
    """
    shards = toy_shards([24, 24])
    training = Training(learning_rate=1e-12, momentum=0.0, batch_size=8, **settings)
    ctx = context(
        net="digits_bn", training=training, proto="online_train", pj_counts="seen_plus1"
    )
    server, mine = METHOD.init(ctx)
    _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    for k, rows in enumerate(shards.index):
        state = {n: v[k].clone() for n, v in mine.state.items()}
        pick = ctx.random("batches", k)
        order = torch.cat([torch.randperm(24, generator=pick) for _ in range(2)])
        batches = rows[order].split(8)[:steps]
        z = torch.cat([ctx.net(state, shards.x[b], train=True).high for b in batches])
        y = shards.y[torch.cat(batches)]
        assert up.protos.count[k].tolist() == y.bincount(minlength=4).tolist()
        assert torch.equal(up.protos.count[k], up.counters["seen"][k])
        for c in y.unique():
            torch.testing.assert_close(
                up.protos.mean[k, c], z[y == c].mean(0), rtol=1e-4, atol=1e-5
            )


def test_merged_prototypes_by_hand():
    """Eq. (3): one sample at 0 and three at 4 give 3; a class nobody has is carried."""
    ctx = context(generator_steps=1)
    _, d = ctx.net.embedding_sizes()
    local = Protos(torch.zeros(2, 4, d), torch.tensor([[1, 0, 2, 0], [3, 5, 0, 0]]))
    local.mean[1, 0], local.mean[1, 1], local.mean[0, 2] = 4.0, 7.0, -1.0
    server, _ = METHOD.init(ctx)
    old = known(torch.full((4, d), 9.0), 0, 6, 6, 6)
    up = upload(ctx, local, [[1, 0, 2, 0], [3, 5, 0, 0]])
    after, _ = METHOD.merge(ctx, server._replace(protos=old), up)
    assert after.protos.mean[:, 0].tolist() == [3.0, 7.0, -1.0, 9.0]
    assert after.protos.count.tolist() == [4, 5, 2, 6]
    forgets = context(generator_steps=1, missing_proto="zero")
    after, _ = METHOD.merge(forgets, server._replace(protos=old), up)
    assert after.protos.mean[:, 0].tolist() == [3.0, 7.0, -1.0, 0.0]


def test_the_zero_bug_by_hand():
    """Owned, not processed: a zero vector with the weight of its whole histogram.

    Client 0 owns one sample of class 0 and processed it (mean 8); client 1 owns three
    and processed none. Released: (1 * 8 + 3 * 0) / 4 = 2. Without the bug: 8.
    """
    ctx = context(proto="online_train")
    labels = torch.tensor([[1, 0, 0, 0], [3, 0, 0, 0]])
    seen = Protos(torch.zeros(2, 4, 1), torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]))
    seen.mean[0, 0] = 8.0
    trained = fedpa.Trained({}, {}, {"high": seen}, {})
    wanted = {True: 2.0, False: 8.0}
    for bug, value in wanted.items():
        with_bug = replace(ctx, hp=HP(proto="online_train", proto_zero_bug=bug))
        local = fedpa.local_protos(with_bug, trained, toy_shards([1, 3]), labels)
        assert float(protos.merge(local, "samples").mean[0, 0]) == value


# --- Eq. (4): the generator -----------------------------------------------------------


GENERATORS = [
    (10, 256, 19_744, 513),
    (26, 256, 23_840, 513),
    (2, 256, 17_696, 513),
    (2, 128, 8_864, 257),
]


@pytest.mark.parametrize(("classes", "hidden", "parameters", "buffers"), GENERATORS)
def test_size_of_the_generator(classes, hidden, parameters, buffers):
    made = generators.build(classes, 32, hidden=hidden)
    state = made.init(generator(0))
    held = made.buffers
    count = {True: 0, False: 0}
    for name, value in state.items():
        count[name in held] += value.numel()
    assert count == {False: parameters, True: buffers}


@pytest.mark.parametrize("train", [True, False])
def test_generated_embeddings_by_numpy(train):
    """Eq. (4): linear, BatchNorm, ReLU, linear on noise beside a one-hot label."""
    made = generators.build(C, D, hidden=7, noise=N)
    state = {
        k: v.double() if v.is_floating_point() else v
        for k, v in made.init(generator(1)).items()
    }
    state["1.weight"], state["1.bias"] = rand(7, name="w"), rand(7, name="b")
    state["1.running_mean"] = rand(7, name="m")
    state["1.running_var"] = rand(7, name="v").square() + 0.5
    before = {k: v.clone().numpy() for k, v in state.items()}
    z = rand(B, N, name="z")
    found = made(state, z, Y, train=train).detach().numpy()

    given = np.concatenate([z.numpy(), np.eye(C)[Y.numpy()]], 1)
    hidden = given @ before["0.weight"].T + before["0.bias"]
    mean, var = before["1.running_mean"], before["1.running_var"]
    if train:
        mean, var = hidden.mean(0), hidden.var(0)
        unbiased = 0.9 * before["1.running_var"] + 0.1 * hidden.var(0, ddof=1)
        np.testing.assert_allclose(state["1.running_var"].numpy(), unbiased)
    hidden = (hidden - mean) / np.sqrt(var + 1e-5)
    hidden = np.maximum(hidden * before["1.weight"] + before["1.bias"], 0)
    wanted = hidden @ before["3.weight"].T + before["3.bias"]
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_noise_and_labels():
    """Two kinds of noise by their moments; labels follow their distribution."""
    normal = generators.draw_noise("normal", 2000, 32, generator(0, "n"))
    uniform = generators.draw_noise("uniform", 2000, 32, generator(0, "u"))
    assert float(normal.mean()) == pytest.approx(0, abs=0.02)
    assert float(normal.var()) == pytest.approx(1, abs=0.02)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    # Section 2.3, D5: mean squared difference 2 against 1/6
    for noise, wanted in ((normal, 2.0), (uniform, 1 / 6)):
        apart = (noise[:1000] - noise[1000:]).square().mean()
        assert float(apart) == pytest.approx(wanted, rel=0.02)
    y = generators.draw_labels(torch.tensor([3.0, 0.0, 1.0]), 4000, generator(0, "y"))
    assert y.bincount(minlength=3)[1] == 0
    assert float((y == 0).float().mean()) == pytest.approx(0.75, abs=0.03)


# --- Eq. (5): fidelity ----------------------------------------------------------------


def entropies() -> tuple[torch.Tensor, torch.Tensor]:
    entropy = rand(K, B, name="ce").square()
    counts = torch.tensor([[3.0, 1.0, 0.0], [1.0, 4.0, 2.0]], dtype=torch.float64)
    return entropy, (counts / counts.sum(0))[:, Y]


@pytest.mark.parametrize("norm", ["paper", "sum"])
@pytest.mark.parametrize("weight", ["per_sample", "outer_mean"])
def test_fidelity_by_loops(weight, norm):
    """Eq. (5); the released product is a mean over a B x B table."""
    entropy, share = entropies()
    wanted = 0.0
    for k in range(K):
        if weight == "per_sample":
            wanted += sum(float(share[k, j] * entropy[k, j]) for j in range(B)) / B
        else:
            table = share[k].numpy() * entropy[k].numpy()[:, None]  # (B) * (B, 1)
            assert table.shape == (B, B)
            wanted += table.mean()
    wanted /= K if norm == "paper" else 1
    found = fedpa.fidelity(entropy, share, HP(fid_weight=weight, fid_norm=norm))
    assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_outer_mean_identity():
    """The released mean is sum_k mean(p_k) mean(CE_k); with equal p both agree."""
    entropy, share = entropies()
    outer = HP(fid_weight="outer_mean", fid_norm="sum")
    wanted = sum(float(share[k].mean() * entropy[k].mean()) for k in range(K))
    assert float(fedpa.fidelity(entropy, share, outer)) == pytest.approx(wanted)
    assert float(fedpa.fidelity(entropy, share, HP(fid_norm="sum"))) != pytest.approx(
        wanted, rel=1e-3
    )
    equal = torch.full_like(share, 1 / K)
    literal = fedpa.fidelity(entropy, equal, HP())
    torch.testing.assert_close(K * literal, fedpa.fidelity(entropy, equal, outer))


def test_shares_of_a_class_by_hand():
    """p_{k,j} from the data, or from 1 + processed samples; an absent class has 0."""
    ctx = context()
    local = protos.from_sums(torch.zeros(2, 4, 32), torch.zeros(2, 4).long())
    up = upload(
        ctx,
        local,
        [[1, 0, 6, 0], [3, 0, 0, 2]],
        seen=[[1, 0, 3, 0], [2, 0, 0, 0]],
    )
    assert fedpa.owner_share(up, HP()).tolist() == [[0.25, 0, 1, 0], [0.75, 0, 0, 1]]
    released = fedpa.owner_share(up, HP(pj_counts="seen_plus1"))
    wanted = torch.tensor([[0.4, 0.5, 0.8, 0.5], [0.6, 0.5, 0.2, 0.5]])
    torch.testing.assert_close(released, wanted)


# --- Eq. (6), (10): distances to prototypes -------------------------------------------

TERMS = {
    "po": lambda z, y, phi, **hp: fedpa.align(
        z, y, phi, HP(**{k.replace("dist", "po_dist"): v for k, v in hp.items()})
    ),
    "ad": lambda z, y, phi, **hp: fedpa.adversarial(
        z, y, phi, HP(**{k.replace("dist", "ad_dist"): v for k, v in hp.items()})
    ),
}
both = pytest.mark.parametrize("term", TERMS)


@both
def test_distance_of_ones(term):
    """Section 7: all 32 differences 1 give sqrt(32) as a length, 1 as a mean square."""
    phi = known(torch.zeros(C, 32))
    h = torch.ones(B, 32)
    assert float(TERMS[term](h, Y, phi)) == pytest.approx(5.657, abs=1e-3)
    assert float(TERMS[term](h, Y, phi, dist="mse")) == pytest.approx(1.0)


@both
@pytest.mark.parametrize("dist", ["l2", "mse"])
@pytest.mark.parametrize("missing", ["carry_and_mask", "zero"])
def test_distances_by_loops_with_a_class_unknown(term, dist, missing):
    """Eq. (6) and (10); an unknown class is left out of the mean, or is the origin."""
    h, mean = rand(B, D, name="h"), rand(C, D, name="phi")
    mean[2] = 0.0
    each = []
    for j in range(B):
        if missing == "carry_and_mask" and Y[j] == 2:
            continue
        gap = [float(h[j, i] - mean[Y[j], i]) for i in range(D)]
        square = sum(g * g for g in gap)
        each.append(math.sqrt(square) if dist == "l2" else square / D)
    found = TERMS[term](h, Y, known(mean, 4, 2, 0), dist=dist, missing_proto=missing)
    assert float(found) == pytest.approx(sum(each) / len(each), rel=1e-12)


@both
@pytest.mark.parametrize("missing", ["carry_and_mask", "zero"])
def test_without_any_prototype_the_distance_is_off(term, missing):
    z = rand(B, D).requires_grad_()
    found = TERMS[term](z, Y, protos.empty(C, D), missing_proto=missing)
    (slope,) = torch.autograd.grad(found, z)
    assert float(found.detach()) == 0
    assert not slope.any()


@both
def test_a_sample_on_its_prototype_has_a_finite_slope(term):
    """The length has no gradient at 0; torch's is 0, a square root's would be NaN."""
    phi = known(rand(C, D))
    z = phi.mean[Y].clone().requires_grad_()
    (slope,) = torch.autograd.grad(TERMS[term](z, Y, phi), z)
    assert slope.tolist() == torch.zeros(B, D).tolist()


def test_cap_bounds_the_distance_and_stops_its_pull():
    phi = known(torch.zeros(C, 4))
    h = torch.tensor([[3.0, 0, 0, 0], [0.0, 0, 0, 1]]).requires_grad_()
    y = torch.tensor([0, 1])
    for dist, wanted in (("l2", (2 + 1) / 2), ("mse", (4 + 1) / 4 / 2)):
        found = fedpa.adversarial(h, y, phi, HP(ad_cap=2.0, ad_dist=dist))
        assert float(found.detach()) == pytest.approx(wanted)
        (slope,) = torch.autograd.grad(found, h)
        assert not slope[0].any()
        assert slope[1].any()


def test_slopes_of_the_two_distances():
    """D2: a length pulls with 1 whatever r, a mean square with 2 r / 32."""
    phi = known(torch.zeros(1, 32))
    for r in (2.0, 16.0, 40.0):
        h = torch.zeros(1, 32)
        h[0, 0] = r
        h.requires_grad_()
        y = torch.tensor([0])
        for dist, wanted in (("l2", 1.0), ("mse", 2 * r / 32)):
            term = fedpa.adversarial(h, y, phi, HP(ad_dist=dist))
            (slope,) = torch.autograd.grad(term, h)
            assert float(slope.norm()) == pytest.approx(wanted)


# --- Eq. (7): diversity ---------------------------------------------------------------


@pytest.mark.parametrize("metric", ["l2_l2", "l1mean_msemean"])
@pytest.mark.parametrize("pairs", ["same", "diff", "all"])
def test_diversity_by_loops(pairs, metric):
    h, z = rand(B, D, name="h"), rand(B, N, name="z")
    total = 0.0
    for p in range(B):
        for q in range(B):
            same = bool(Y[p] == Y[q])
            if (pairs == "same" and not same) or (pairs == "diff" and same):
                continue
            dh, dz = (h[p] - h[q]).numpy(), (z[p] - z[q]).numpy()
            if metric == "l2_l2":
                total -= math.sqrt((dh**2).sum()) * math.sqrt((dz**2).sum())
            else:
                total -= np.abs(dh).mean() * (dz**2).mean()
    found = fedpa.diversity(h, z, Y, HP(div_pairs=pairs, div_metric=metric))
    assert float(found) == pytest.approx(math.exp(total / B**2), rel=1e-12)


@pytest.mark.parametrize("metric", ["l2_l2", "l1mean_msemean"])
def test_diversity_sees_only_its_pairs(metric):
    """Moving a class as a whole changes no same-class pair, and the other way round."""
    h, z = rand(B, D, name="h"), rand(B, N, name="z")
    same, diff = (HP(div_pairs=p, div_metric=metric) for p in ("same", "diff"))
    moved = h + 3.0 * torch.nn.functional.one_hot(Y, D)
    stay = fedpa.diversity(h, z, Y, same)
    torch.testing.assert_close(stay, fedpa.diversity(moved, z, Y, same))
    before, after = (fedpa.diversity(x, z, Y, diff) for x in (h, moved))
    assert float(before - after) > 1e-3
    lone = torch.tensor([0, 0, 0, 0, 0, 0])  # one class: only same-class pairs
    assert float(fedpa.diversity(h, z, lone, diff)) == 1.0
    assert float(fedpa.diversity(h, z, torch.arange(B), same)) == 1.0
    assert float(fedpa.diversity(h[:1].expand(B, D), z, Y, same)) == 1.0


# --- Eq. (8): what the server minimises -----------------------------------------------


def captured_fit(monkeypatch, ctx, server, up):
    """The arguments with which merging calls ``descent.fit``."""
    seen = {}

    def fit(state, loss, steps, **settings):
        seen.update(settings, state=state, loss=loss, steps=steps)
        return descent.Fitted(state, {}, settings["moments"])

    monkeypatch.setattr(descent, "fit", fit)
    after, _ = METHOD.merge(ctx, server, up)
    return seen, after


VARIANTS = {"paper": HP(), "reference": HP(variant="reference")}


@pytest.mark.parametrize("variant", VARIANTS)
def test_generator_loss_by_numpy(variant, monkeypatch):
    """Eq. (8) as a whole at t = 11, from uploads to the number that is minimised."""
    ctx = context(2, number=12, variant=variant)
    _, d = ctx.net.embedding_sizes()
    server, _ = METHOD.init(ctx)
    server = server._replace(protos=known(rand(4, d, name="old").float()))
    states = [ctx.net.init(generator(5, k)) for k in range(2)]
    local = Protos(
        rand(2, 4, d, name="new").float(), torch.tensor([[1, 4, 0, 2], [3, 0, 5, 2]])
    )
    seen = [[1, 3, 0, 1], [2, 0, 4, 2]]
    up = Up(
        as_model(ctx.net, stack(states)),
        local,
        local.count.float(),
        {"seen": torch.tensor(seen)},
    )
    args, after = captured_fit(monkeypatch, ctx, server, up)
    assert args["steps"] == 50
    assert args["learning_rate"] == pytest.approx(3e-4 * 0.98**11)
    assert args["weight_decay"] == 0.01
    assert args.get("optimiser", "adam") == "adam"
    found = args["loss"]({k: v.clone() for k, v in args["state"].items()}, 4)

    released = variant == "reference"
    pick = ctx.random("generator 4")
    counts = torch.ones(4) if released else local.count.sum(0).float()
    rows = ctx.training.batch_size if released else 32
    assert rows == (8 if released else 32)
    y = torch.multinomial(counts, rows, replacement=True, generator=pick).numpy()
    drawer = torch.rand if released else torch.randn
    z = drawer(rows, 32, generator=pick)
    made = generators.build(4, d)
    fresh = {k: v.clone() for k, v in server.generator.items()}
    h = made(fresh, z, torch.from_numpy(y), train=True).detach().double().numpy()
    z = z.double().numpy()

    table = 1.0 + np.array(seen) if released else local.count.numpy()
    fid = 0.0
    for k in range(2):
        w = states[k]["head.0.weight"].double().numpy()
        b = states[k]["head.0.bias"].double().numpy()
        logits = h @ w.T + b
        entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(rows), y]
        p = table[k, y] / table[:, y].sum(0)
        fid += p.mean() * entropy.mean() if released else (p * entropy).mean() / 2
    new = sum(local.mean[k].numpy() * local.count[k].numpy()[:, None] for k in (0, 1))
    new = new / local.count.sum(0).numpy()[:, None]
    np.testing.assert_allclose(after.protos.mean.numpy(), new, rtol=1e-5, atol=1e-6)
    phi = server.protos.mean.numpy() if released else new
    gap = h - phi[y]
    ad = (gap**2).mean() if released else np.sqrt((gap**2).sum(1)).mean()
    div = 0.0
    for p in range(rows):
        for q in range(rows):
            dh, dz = h[p] - h[q], z[p] - z[q]
            if released and y[p] != y[q]:
                div -= np.abs(dh).mean() * (dz**2).mean()
            if not released and y[p] == y[q]:
                div -= np.sqrt((dh**2).sum()) * np.sqrt((dz**2).sum())
    div = math.exp(div / rows**2)
    wanted = 25 * 0.98**11 * fid + div - 0.15 * ad
    terms = {k: float(v.detach()) for k, v in found.terms.items()}
    assert terms["fidelity"] == pytest.approx(fid, rel=1e-4)
    assert terms["diversity"] == pytest.approx(div, rel=1e-4)
    assert terms["adversarial"] == pytest.approx(ad, rel=1e-4)
    assert terms["norm"] == pytest.approx(np.sqrt((h**2).sum(1)).mean(), rel=1e-4)
    apart = np.sqrt(((h - new[y]) ** 2).sum(1)).mean()
    assert terms["distance"] == pytest.approx(apart, rel=1e-4)
    assert float(found.total.detach()) == pytest.approx(wanted, rel=1e-4)


def test_what_is_not_printed_is_named_and_can_be_off(monkeypatch):
    """Weight decay and the rate's decay of the generator, and of clients, at t = 11."""
    wanted = {
        "as released": ({}, 3e-4 * 0.98**11, 0.01),
        "off": ({"generator_lr_decay": 1.0, "generator_weight_decay": 0.0}, 3e-4, 0.0),
    }
    for given, rate, decay in wanted.values():
        ctx = context(2, number=12, **given)
        server, _ = METHOD.init(ctx)
        local = known(torch.ones(4, 32), 2, 2, 2, 2)
        up = upload(ctx, stack([local, local]), [[2] * 4] * 2)
        args, _ = captured_fit(monkeypatch, ctx, server, up)
        assert args["learning_rate"] == pytest.approx(rate)
        assert args["weight_decay"] == decay
    spec = fedlib.papers.fedpa("mnist", "fedavg")
    assert spec.training.weight_decay == 0.01
    readings = fedpa.__doc__.split("Readings")[1]
    for name in ("weight_decay", "generator_weight_decay", "generator_lr_decay"):
        assert f"``{name}``" in readings


def test_prev_prototypes_are_not_there_in_the_first_round(monkeypatch):
    """D11: L_ad is skipped in round 0 with the old prototypes, not with the new."""
    for ad_proto, active in (("prev", False), ("new", True)):
        ctx = context(2, ad_proto=ad_proto)
        server, _ = METHOD.init(ctx)
        local = known(torch.ones(4, 32), 2, 2, 2, 2)
        up = upload(ctx, stack([local, local]), [[2] * 4] * 2)
        args, _ = captured_fit(monkeypatch, ctx, server, up)
        found = args["loss"](dict(args["state"]), 0)
        assert bool(found.terms["adversarial"] > 0) == active


def test_the_generator_trains_and_its_moments_go_on():
    """Fifty steps, then a hundred in Adam's counters; the heads do not move."""
    first, second = play(2, [24, 17], generator_steps=50)
    for after, steps in ((first, 50), (second, 100)):
        counted = {float(m["step"]) for m in after.server.moments.values()}
        assert counted == {steps}
        assert int(after.server.generator["1.num_batches_tracked"]) == steps
    heads = {k: v for k, v in second.server.model.params.items() if k[:5] == "head."}
    mean = {k: (24 * v[0] + 17 * v[1]) / 41 for k, v in second.up.model.params.items()}
    for key, value in heads.items():
        torch.testing.assert_close(value, mean[key], rtol=0, atol=1e-6)


# --- Eq. (9), (11), (12): what a client minimises -------------------------------------


def captured_train(monkeypatch, ctx, down, mine, shards):
    """The arguments with which a client calls ``ctx.train``."""
    seen = {}
    train = Context.train

    def spy(self, state, shards, loss, extra=None, **settings):
        seen.update(settings, state=state, loss=loss)
        return train(self, state, shards, loss, extra, **settings)

    monkeypatch.setattr(Context, "train", spy)
    METHOD.client(ctx, down, mine, shards)
    return seen


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("t", [5, 190])
def test_client_loss_by_numpy(variant, t, monkeypatch):
    """Eq. (9), (10), (11) and (12), early and where lambda_po is at its floor."""
    shards = toy_shards([24, 17])
    ctx = context(2, number=t + 1, variant=variant)
    server, mine = METHOD.init(ctx)
    mean = rand(4, 32, name="phi").float()
    server = server._replace(
        protos=Protos(mean, torch.tensor([3, 9, 1, 2])),
        labels=torch.tensor([3.0, 9.0, 1.0, 2.0]),
        available=torch.tensor([True] * 4),
    )
    down = METHOD.broadcast(ctx, server)
    args = captured_train(monkeypatch, ctx, down, mine, shards)
    assert ctx.training.batch_size == 8
    fresh = args["draw"](1, 7)
    x, y = shards.x[:8], shards.y[:8]
    state = {k: v[1] for k, v in mine.state.items()}
    found = args["loss"]({k: v.clone() for k, v in state.items()}, Batch(x, y, fresh))

    released = variant == "reference"
    pick = ctx.random("synthetic 7", 1)
    share = torch.full((4,), 0.25) if released else torch.tensor([3, 9, 1, 2]) / 15
    labels = torch.multinomial(share, 32, replacement=True, generator=pick)
    drawer = torch.rand if released else torch.randn
    noise = drawer(32, 32, generator=pick)
    assert torch.equal(fresh["labels"], labels)
    assert torch.equal(fresh["noise"], noise)

    def entropy(z, y):
        w, b = (state[f"head.0.{k}"].double().numpy() for k in ("weight", "bias"))
        logits = z @ w.T + b
        right = logits[np.arange(len(y)), y.numpy()]
        return (np.log(np.exp(logits).sum(1)) - right).mean()

    f = ctx.net(state, x, train=True).high.detach().double().numpy()
    made = generators.build(4, 32)
    h = made(server.generator, noise, labels, train=False).detach().double().numpy()
    gap = f - mean.double().numpy()[y.numpy()]
    po = (gap**2).mean() if released else np.sqrt((gap**2).sum(1)).mean()
    wanted = {
        "supervised": entropy(f, y),
        "align": po,
        "synthetic": entropy(h, labels),
    }
    for name, value in wanted.items():
        assert float(found.terms[name].detach()) == pytest.approx(value, rel=1e-4)
    total = (
        wanted["supervised"]
        + (32 / 8 if released else 1) * 25 * 0.98**t * wanted["synthetic"]
        + max(0.15, 5 * 0.98**t) * po
    )
    assert float(found.total.detach()) == pytest.approx(total, rel=1e-4)


def test_which_weights_each_term_reaches(monkeypatch):
    """L_ge moves the head and nothing else, L_po all but the head."""
    shards = toy_shards([24, 17])
    ctx = context(2, number=3, net="digits_bn")
    server, mine = METHOD.init(ctx)
    server = server._replace(
        protos=known(rand(4, 32).float()),
        labels=torch.ones(4),
        available=torch.tensor([True] * 4),
    )
    down = METHOD.broadcast(ctx, server)
    args = captured_train(monkeypatch, ctx, down, mine, shards)
    state = {
        k: v[0].clone().requires_grad_(k not in ctx.net.buffers)
        for k, v in mine.state.items()
    }
    trained = {k: v for k, v in state.items() if v.requires_grad}
    batch = Batch(shards.x[:8], shards.y[:8], args["draw"](0, 0))
    found = args["loss"](state, batch)
    for name, in_head in (("synthetic", True), ("align", False)):
        slopes = torch.autograd.grad(
            found.terms[name],
            list(trained.values()),
            retain_graph=True,
            allow_unused=True,
        )
        for key, slope in zip(trained, slopes, strict=True):
            touched = slope is not None and bool(slope.abs().max() > 1e-9)
            before_norm = key.endswith("bias") and not key.startswith("head.")
            if key.startswith("head.") != in_head:
                assert slope is None or not slope.any(), (name, key)
            elif not before_norm:  # a bias that BatchNorm removes has no slope
                assert touched, (name, key)


def test_the_first_round_is_cross_entropy_only():
    """D19: nothing but the model comes down, and both terms are exactly 0."""
    first, second = play(2, [24, 17])
    for name in ("align", "synthetic"):
        assert first.terms[name].tolist() == [0.0, 0.0]
        assert (second.terms[name] > 0).all()
    sent = {k for k, v in first.sent.items() if k[:5] == "down/" and any(v)}
    assert sent == {"down/model"}
    assert not first.down.generator.known
    assert second.down.generator.known


def test_schedules():
    """Section 7, and a weight of 0 stays off whatever its floor."""

    def weight(name, t):
        hp = HP()
        start, floor = getattr(hp, f"{name}_weight"), getattr(hp, f"{name}_floor")
        return fedpa.schedule(start, hp.schedule_decay, floor, t)

    assert weight("proto", 173) == pytest.approx(0.1517, abs=1e-4)
    assert weight("proto", 174) == 0.15
    assert weight("generator", 199) == pytest.approx(0.449, abs=1e-3)
    assert weight("generator", 0) == weight("fidelity", 0) == 25
    assert weight("fidelity", 199) == weight("generator", 199)
    assert fedpa.schedule(0.0, 0.98, 0.15, 3) == 0
    floor = REFERENCE["generator_floor"]
    assert fedpa.schedule(25.0, 0.98, floor, 700) == 1e-4


def test_all_terms_have_right_gradients():
    """Central differences in float64, for the functions of every equation."""
    h, z = rand(B, D, name="h").requires_grad_(), rand(B, N, name="z")
    phi = known(rand(C, D, name="phi"), 1, 0, 2)
    entropy, share = entropies()
    entropy.requires_grad_()
    check = torch.autograd.gradcheck
    for released in (HP(), HP(variant="reference"), HP(div_pairs="all", ad_cap=1.5)):
        assert check(lambda e, hp=released: fedpa.fidelity(e, share, hp), entropy)
        assert check(lambda h, hp=released: fedpa.adversarial(h, Y, phi, hp), h)
        assert check(lambda h, hp=released: fedpa.diversity(h, z, Y, hp), h)
        assert check(lambda h, hp=released: fedpa.align(h, Y, phi, hp), h)
    ctx = context(classes=C)
    state = {k: v.double() for k, v in ctx.net.init(generator(0)).items()}
    made = generators.build(C, 32, hidden=6, noise=N)
    theta = {
        k: v.double() if v.is_floating_point() else v
        for k, v in made.init(generator(2)).items()
    }

    def through_the_head(weight, bias):
        weights = state | {"head.0.weight": weight, "head.0.bias": bias}
        features = made(theta, z, Y)
        return fedpa.synthetic(ctx, weights, features, Y)

    head = [state[f"head.0.{k}"].requires_grad_() for k in ("weight", "bias")]
    assert check(through_the_head, head)

    def generated(weight):
        fresh = {k: v.clone() for k, v in theta.items()} | {"3.weight": weight}
        features = made(fresh, z, Y, train=True)
        return fedpa.diversity(features, z, Y, HP())

    assert check(generated, theta["3.weight"].requires_grad_())


def test_terms_are_the_same_under_vmap():
    h, z = rand(3, B, D, name="h"), rand(3, B, N, name="z")
    y = torch.stack([Y, Y.flip(0), Y.roll(1)])
    phi = known(rand(C, D, name="phi"), 1, 0, 2)
    for hp in VARIANTS.values():
        for term in (fedpa.adversarial, fedpa.align):
            together = vmap(lambda h, y, f=term, hp=hp: f(h, y, phi, hp))(h, y)
            apart = torch.stack([term(h[k], y[k], phi, hp) for k in range(3)])
            torch.testing.assert_close(together, apart)
        together = vmap(lambda h, z, y, hp=hp: fedpa.diversity(h, z, y, hp))(h, z, y)
        apart = torch.stack([fedpa.diversity(h[k], z[k], y[k], hp) for k in range(3)])
        torch.testing.assert_close(together, apart)


# --- label distributions --------------------------------------------------------------


def test_label_distributions_with_partial_participation():
    """Selected: this cohort's counts. Cumulative: every client's, once each."""
    sizes_of = [24, 17, 9, 16]
    for ptilde in ("selected", "cumulative"):
        shards = toy_shards(sizes_of)
        played = play(5, sizes_of, participation=0.5, ptilde=ptilde)
        reported: set[int] = set()
        for after in played:
            reported |= set(after.cohort)
            source = after.cohort if ptilde == "selected" else sorted(reported)
            y = torch.cat([shards.y[shards.index[k]] for k in source])
            wanted = y.bincount(minlength=4)
            assert after.server.labels.tolist() == wanted.tolist()
            assert after.server.labels.tolist() != [0, 0, 0, 0]
        assert len(reported) == 4
        share = played[1].server.labels / played[1].server.labels.sum()
        torch.testing.assert_close(played[2].down.labels.share, share)


def test_available_labels_are_those_ever_reported():
    """Uniform over classes of all cohorts so far; a class never reported has 0."""
    ctx = context(2, client_labels="uniform_available", generator_steps=1)
    server, _ = METHOD.init(ctx)
    for owned, wanted in (
        ([[2, 0, 0, 0], [0, 1, 0, 0]], [0.5, 0.5, 0, 0]),
        ([[0, 0, 9, 0], [0, 0, 1, 0]], [1 / 3, 1 / 3, 1 / 3, 0]),
    ):
        count = torch.tensor(owned)
        up = upload(ctx, Protos(torch.ones(2, 4, 32), count), owned)
        server, _ = METHOD.merge(ctx, server, up)
        share = METHOD.broadcast(ctx, server).labels.share
        torch.testing.assert_close(share, torch.tensor(wanted))


def test_labels_of_all_clients_from_the_second_round_on():
    """Released: any class that someone holds, in or out of the cohort; 3 nobody does.

    A client out of the cohort is the only one with class 2. The cohort of round 1
    reports classes 0 and 1; nothing is sent before.
    """
    told = {}
    for name in ("uniform_all", "uniform_available"):
        ctx = context(2, client_labels=name, generator_steps=1)
        ctx = replace(ctx, held=(0, 1, 2))
        server, _ = METHOD.init(ctx)
        before = METHOD.broadcast(ctx, server)
        assert before.labels.sent() == (0, 0)
        assert not before.labels.share.any()
        owned = [[2, 0, 0, 0], [0, 1, 0, 0]]
        up = upload(ctx, Protos(torch.ones(2, 4, 32), torch.tensor(owned)), owned)
        server, _ = METHOD.merge(ctx, server, up)
        told[name] = METHOD.broadcast(ctx, server).labels.share
    torch.testing.assert_close(
        told["uniform_all"], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0])
    )
    torch.testing.assert_close(
        told["uniform_available"], torch.tensor([0.5, 0.5, 0, 0])
    )


def test_a_federation_says_which_classes_anyone_holds():
    """Two-class clients, three of them: what they hold by a loop over their labels."""
    spec = fedlib.papers.fedpa(
        "digits", "fedpa", clients=3, partition={"scheme": "two_class"}
    )
    fed = fedlib.federation(spec)
    held = set()
    for rows in fed.train.index:
        held |= {int(y) for y in fed.train.y[rows]}
    assert fed.ctx.held == tuple(sorted(held))
    assert 0 < len(held) < 10


def test_a_generator_on_batches_of_one_is_refused():
    training = Training(batch_size=1)
    ctx = context(training=training, variant="reference")
    with pytest.raises(ValueError, match=r"batch_size: got 1.*at least 2"):
        METHOD.init(ctx)
    METHOD.init(context(training=training))


def test_celebas_generator_is_half_as_wide_in_the_released_code():
    """Printed [32, 256, 32], released hidden 128; a width that is given stays."""
    widths = {}
    for variant in ("paper", "reference"):
        for dataset in ("celeba", "mnist"):
            given = {"variant": variant}
            spec = fedlib.papers.fedpa(dataset, "fedpa", hp=given)
            widths[variant, dataset] = spec.hp["hidden"]
    assert widths.pop(("reference", "celeba")) == 128
    assert set(widths.values()) == {256}
    given = {"variant": "reference", "hidden": 64}
    assert fedlib.papers.fedpa("celeba", "fedpa", hp=given).hp["hidden"] == 64


@pytest.mark.parametrize("labels", ["global", "uniform_qualified"])
def test_labels_that_the_cohort_lacks_are_not_generated(labels, monkeypatch):
    """The cohort owns classes 0 and 3; older clients reported 1; 2 is unknown."""
    ctx = context(2, gen_labels=labels, ptilde="cumulative")
    server, _ = METHOD.init(ctx)
    server = server._replace(labels=torch.tensor([1.0, 50.0, 0.0, 1.0]))
    owned = [[9, 0, 0, 0], [0, 0, 0, 3]]
    local = Protos(torch.ones(2, 4, 32), torch.tensor(owned))
    seen = [[9, 0, 0, 0], [0, 0, 0, 0]]
    up = upload(ctx, local, owned, seen=seen, first=[True, False])
    drawn = set()
    spy = generators.draw_labels

    def draw(share, rows, pick):
        drawn.update(torch.nonzero(share).flatten().tolist())
        return spy(share, rows, pick)

    monkeypatch.setattr(generators, "draw_labels", draw)
    METHOD.merge(ctx, server, up)
    assert drawn == ({0, 3} if labels == "global" else {0})


# --- learning rate, moments, BatchNorm ------------------------------------------------


@pytest.mark.parametrize("sched", ["last_trained", "by_round"])
def test_learning_rates_by_hand(sched, monkeypatch):
    """Released rule: 0.99 to the round in which the client trained last."""
    rates = []
    train = Context.train

    def spy(self, *args, **settings):
        rates.append(settings["rate"].tolist())
        return train(self, *args, **settings)

    monkeypatch.setattr(Context, "train", spy)
    played = play(6, [24, 17, 9, 16], participation=0.5, lr_sched=sched)
    last = dict.fromkeys(range(4), 0)
    for t, (after, found) in enumerate(zip(played, rates, strict=True)):
        age = last if sched == "last_trained" else dict.fromkeys(range(4), t)
        wanted = [0.99 ** age[k] for k in after.cohort]
        assert found == pytest.approx(wanted)
        last |= dict.fromkeys(after.cohort, t)
    assert played[-1].mine.last.tolist() == [last[k] for k in range(4)]


@pytest.mark.parametrize("moments", ["persist", "reset"])
def test_adam_moments_of_clients(moments):
    """They outlive a round although the weights are replaced, or they do not."""
    training = Training(optimiser="adam", learning_rate=1e-3, local_steps=3)
    given = {"training": training, "moments": moments}
    played = play(3, [24, 17, 9], participation=0.7, **given)
    if moments == "reset":
        assert flatten(played[-1].mine.moments) == {}
        return
    trained = [sum(k in r.cohort for r in played) for k in range(3)]
    assert set(trained) != {3}
    for each in played[-1].mine.moments.values():
        assert each["step"].tolist() == [3.0 * n for n in trained]


def test_persistent_moments_change_the_second_round_only():
    training = Training(optimiser="adam", learning_rate=1e-2, local_steps=3)
    kept, fresh = (
        play(2, [24, 17], training=training, moments=m) for m in ("persist", "reset")
    )
    for key, value in kept[0].mine.state.items():
        torch.testing.assert_close(value, fresh[0].mine.state[key], rtol=0, atol=1e-7)
    assert any(
        not torch.allclose(v, fresh[1].mine.state[k], atol=1e-4)
        for k, v in kept[1].mine.state.items()
    )


def test_batchnorm_statistics_averaged_or_local():
    """D20: averaged and sent, or each client's own, with the server's at the first."""
    sizes_of = [24, 17, 16]
    shared = play(2, sizes_of, net="digits_bn")[-1]
    ctx = context(3, net="digits_bn")
    floats = [k for k in ctx.net.buffers if k.endswith(("running_mean", "running_var"))]
    share = torch.tensor(sizes_of) / sum(sizes_of)
    for key in floats:
        mean = torch.einsum("k,k...->...", share, shared.up.model.buffers[key])
        torch.testing.assert_close(shared.server.model.buffers[key], mean)
    assert METHOD.models(ctx, shared.server, shared.mine).received is None

    local = play(3, sizes_of, net="digits_bn", bn="local", participation=0.67)
    own = context(3, net="digits_bn", bn="local")
    start, _ = METHOD.init(own)
    for before, after in pairwise(local):
        assert after.down.model.buffers == after.up.model.buffers == {}
        assert not any("model_buffers" in name for name in after.sent)
        found = METHOD.models(own, after.server, after.mine)
        for key in floats:
            assert torch.equal(found.shared[key], start.model.buffers[key])
            assert torch.equal(found.received[key], after.mine.state[key])
            for k in set(range(3)) - set(after.cohort):
                assert torch.equal(after.mine.state[key][k], before.mine.state[key][k])
        for key, value in after.server.model.params.items():
            assert torch.equal(found.received[key], value.expand(3, *value.shape))
    assert any(
        not torch.equal(found.received[k][0], found.received[k][1]) for k in floats
    )


# --- messages, reductions, laws -------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "down", "up"), [(10, 47_020, 26_764), (26, 52_172, 27_820)]
)
def test_numbers_that_travel(classes, down, up):
    """Section 5, for a client that owns all classes; BatchNorm statistics beside."""
    ctx = replace(context(1), net=build("fedpa_cnn", (1, 28, 28), classes))
    ctx = replace(ctx, classes=classes)
    server, mine = METHOD.init(ctx)
    server = server._replace(
        protos=known(torch.ones(classes, 32)),
        labels=torch.ones(classes),
        available=torch.ones(classes, dtype=torch.bool),
    )
    message = sizes(METHOD.broadcast(ctx, server))
    assert message.pop("model_buffers").floats == 44
    assert sum(size.floats for size in message.values()) == down
    assert sum(size.ints for size in message.values()) == classes
    local = known(torch.ones(classes, 32))
    sent = Up(as_model(ctx.net, mine.state), stack([local]), torch.ones(1, classes), {})
    counted = sizes(sent, 1)
    assert counted.pop("model_buffers").floats == 44
    assert sum(size.floats for size in counted.values()) == up
    wanted = {c.field for c in METHOD.counted if c.direction == "down"}
    assert wanted == set(message)
    assert {c.field for c in METHOD.counted if c.direction == "up"} == set(counted) - {
        "counters"
    }


OFF = {"adversarial_weight": 0.0, "generator_weight": 0.0, "proto_weight": 0.0}
PLAIN = {"moments": "reset", "lr_decay": 1.0}


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_off_is_fedavg(variant):
    """Section 2.5: bit for bit, with the same optimiser; each term moves weights."""
    from fedlib.baselines.fedavg import METHOD as FEDAVG

    training = Training(optimiser="adam", learning_rate=1e-3, weight_decay=0.01)
    shards = toy_shards([24, 17, 9])
    ctx = replace(toy_context(FEDAVG, 3), training=training)
    plain = next(islice(rounds(FEDAVG, ctx, shards), 2, None))
    given = PLAIN | {"training": training, "variant": variant}
    off = play(3, [24, 17, 9], **given, **OFF)[-1]
    for key, value in plain.server.model.state.items():
        assert torch.equal(value, off.server.model.state[key]), key
    for key, value in plain.mine.state.items():
        assert torch.equal(value, off.mine.state[key]), key
    for name, value in {"generator_weight": 25.0, "proto_weight": 5.0}.items():
        moved = play(3, [24, 17, 9], **given, **OFF | {name: value})[-1]
        assert any(
            not torch.allclose(v, moved.server.model.state[k], atol=1e-4)
            for k, v in plain.server.model.state.items()
        ), name
    with_ge = OFF | {"generator_weight": 25.0}
    far, near = (
        play(2, [24, 17, 9], **given, **with_ge | {"adversarial_weight": w})[-1]
        for w in (0.0, 0.15)
    )
    assert not torch.equal(
        far.server.generator["3.weight"], near.server.generator["3.weight"]
    )


def test_the_reference_variant_fills_every_switch():
    released, paper = HP(variant="reference"), HP()
    for name, value in REFERENCE.items():
        assert getattr(released, name) == value
        assert getattr(paper, name) != value, name
    mixed = HP(variant="reference", fid_norm="paper", po_dist="l2")
    assert (mixed.fid_norm, mixed.po_dist, mixed.ad_dist) == ("paper", "l2", "mse")
    with pytest.raises(ValueError, match="generator_batch"):
        HP(generator_batch=1)


@pytest.mark.parametrize("order", [[2, 0, 1], [1, 2, 0]])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_uploads_does_not_matter(variant, order, float64):
    shards = toy_shards([24, 17, 9])
    shards = shards._replace(x=shards.x.double())
    ctx = context(3, variant=variant)
    server, mine = METHOD.init(ctx)
    _, up, _ = METHOD.client(ctx, METHOD.broadcast(ctx, server), mine, shards)
    turned = tree_map(lambda x: x[torch.tensor(order)], up)
    one, other = (METHOD.merge(ctx, server, u)[0] for u in (up, turned))
    for key, value in flatten(one).items():
        torch.testing.assert_close(value, flatten(other)[key], rtol=0, atol=1e-11)


def test_a_client_without_samples_changes_nothing():
    with_empty = play(2, [24, 0, 17])[-1]
    assert with_empty.mine.last.tolist() == [1, -1, 1]
    assert with_empty.up.protos.count[1].tolist() == [0] * 4
    released = play(2, [24, 0, 17], variant="reference")[-1]
    for value in flatten({"s": released.server, "m": released.mine}).values():
        assert torch.isfinite(value.float()).all()


def test_a_runaway_generator_is_refused():
    with pytest.raises(NonFiniteError, match="the server's"):
        play(1, [24, 17], generator_lr=1e30)


# --- the runaway ----------------------------------------------------------------------


def runaway(played: int, **hp) -> list[float]:
    """Mean ``||h||`` per round of a generator alone, against fixed heads.

    Five heads, each a common one with noise of 0.1; fixed prototypes of length 5.2;
    shares of a class by Dirichlet(0.5), as in Section 2.3 at half its clients.
    """
    ctx = context(5, classes=10, **hp)
    directions = torch.nn.functional.normalize(rand(10, 32, name="phi").float())
    phi = known(5.2 * directions, *[1] * 10)
    draw = np.random.default_rng(0)
    owners = torch.tensor(draw.dirichlet([0.5] * 5, 10).T, dtype=torch.float32)
    heads = {
        "0.weight": directions + 0.1 * rand(5, 10, 32, name="w").float(),
        "0.bias": 0.1 * rand(5, 10, name="b").float(),
    }
    server, _ = METHOD.init(ctx)
    norms = []
    for number in range(1, played + 1):
        now = replace(ctx, round=number)
        fitted = fedpa.train_generator(
            now, server, heads, owners, torch.ones(10), phi, phi
        )
        server = server._replace(generator=fitted.state, moments=fitted.moments)
        norms.append(float(fitted.terms["norm"]))
    return norms


def test_generated_features_run_away_sooner_when_fidelity_is_divided():
    """Section 2.3's caution: ||h|| grows, most in the literal form; a cap stops it."""
    fast = {"generator_lr": 1e-2, "schedule_decay": 0.3}
    literal = runaway(3, **fast)
    summed = runaway(3, fid_norm="sum", **fast)
    capped = runaway(3, ad_cap=5.0, **fast)
    assert literal[-1] > 5 * summed[-1]
    assert literal[-1] > 5 * literal[0]
    assert summed[-1] > 2 * capped[-1]


def base(**switch) -> Round:
    """Three rounds in which clients see only some of their samples."""
    training = Training(learning_rate=0.05, local_steps=2)
    given = {"net": "digits_bn", "training": training, "participation": 0.67}
    return play(3, [40, 33, 24], **given, **switch)[-1]


# Without a lone effect: it takes another switch, an absent class, or 600 rounds.
SILENT = {"proto_zero_bug", "missing_proto", "generator_floor", "fidelity_floor"}


@pytest.mark.parametrize("name", REFERENCE)
def test_every_switch_works_alone(name):
    """Each of them runs beside the paper's others, and is not without effect."""
    paper, released = base(), base(**{name: REFERENCE[name]})
    before, after = (flatten({"s": r.server, "m": r.mine}) for r in (paper, released))
    changed = any(not torch.equal(v, after[k]) for k, v in before.items())
    assert changed != (name in SILENT)
