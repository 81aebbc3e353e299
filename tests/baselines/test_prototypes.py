"""FedProc, FedHKD, FedGMKD, FedTGP, FedSA: losses by hand and by loops, switches."""

import math
import warnings
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fedlib import papers, registry
from fedlib.baselines import fedgmkd, fedhkd, fedproc, fedsa, fedtgp
from fedlib.blocks.with_knowledge import parts
from fedlib.core import losses, nets, protos
from fedlib.core.messages import sizes as sizes_of
from fedlib.core.method import Context, Round, rounds
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.training import Training
from fedlib.core.tree import flatten
from tests.conftest import toy_context, toy_shards
from tests.core.test_messages import table_v
from tests.methods.test_oracles import supcon_loops

SIZES = [24, 17, 9, 16]
ONE_STEP = Training(learning_rate=0.1, momentum=0.0, batch_size=64)


def normal(*shape: int, name: str = "z") -> Tensor:
    return torch.randn(*shape, generator=generator(3, name), dtype=torch.float64)


def play(name: str, count: int, *, sizes=SIZES, shards=None, **changes) -> list[Round]:
    shards = shards or toy_shards(sizes)
    ctx = toy_context(registry.method(name), len(shards.index), **changes)
    return list(islice(rounds(registry.method(name), ctx, shards), count))


def call(name: str, round: int, *, server=None, sizes=SIZES, **changes):
    """Return the context, the broadcast and what clients make of it in one round."""
    method = registry.method(name)
    ctx = replace(toy_context(method, len(sizes), **changes), round=round)
    first, mine = method.init(ctx)
    down = method.broadcast(ctx, server(first) if server else first)
    return ctx, down, method.client(ctx, down, mine, toy_shards(sizes))


def one(state: dict[str, Tensor], client: int) -> dict[str, Tensor]:
    return {k: v[client] for k, v in state.items()}


def stepped(ctx: Context, begin: dict, loss) -> dict[str, Tensor]:
    """Return weights after one plain gradient step on a loss of the weights."""
    weights = {k: v.clone().requires_grad_() for k, v in begin.items()}
    grads = torch.autograd.grad(loss(weights), list(weights.values()))
    rate = ctx.training.learning_rate
    return {
        k: (v - rate * g).detach()
        for (k, v), g in zip(weights.items(), grads, strict=True)
    }


def assert_near(found: dict, wanted: dict, atol: float = 1e-6) -> None:
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=atol, msg=key)


def random_protos(ctx: Context, extra: int = 0, known=(1, 1, 1, 1)) -> Protos:
    _, size = ctx.net.embedding_sizes()
    mean = normal(ctx.classes, size + extra, name="protos").float()
    count = torch.tensor(known)
    return Protos(mean * (count > 0).unsqueeze(1), count)


def same(one, other) -> bool:
    left, right = flatten(one), flatten(other)
    return all(torch.equal(v, right[k]) for k, v in left.items())


# FedProc


def test_fedproc_contrast_by_hand():
    """z along the first prototype: similarities 1 and 0, over tau = 0.5 they are 2, 0.

    Lengths do not count. -log(e^2 / (e^2 + 1)) = log(1 + e^-2) = 0.126928.
    """
    z, y = torch.tensor([[5.0, 0.0]]), torch.tensor([0])
    means = Protos(torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([1, 1]))
    found = fedproc.contrast(z, y, means, fedproc.HP())
    assert float(found) == pytest.approx(0.126928, abs=1e-6)


def test_fedproc_contrast_equals_loops_and_leaves_out_unknown_classes():
    z, c = normal(5, 3), normal(4, 3, name="c")
    y, known = [0, 2, 1, 3, 2], [True, False, True, True]
    means = Protos(c, torch.tensor(known).long())
    total = 0.0
    for i, own in enumerate(y):
        if not known[own]:
            continue
        scores = [
            float(z[i] @ c[k]) / float(z[i].norm() * c[k].norm()) / 0.7
            for k in range(4)
        ]
        below = sum(math.exp(s) for s, seen in zip(scores, known, strict=True) if seen)
        total -= math.log(math.exp(scores[own]) / below)
    found = fedproc.contrast(z, torch.tensor(y), means, fedproc.HP(temperature=0.7))
    assert float(found) == pytest.approx(total / 5, rel=1e-10)


def test_fedproc_supcon_is_over_the_batch_and_one_prototype_per_known_class():
    z = torch.nn.functional.normalize(normal(5, 3), dim=-1)
    c, y, known = normal(4, 3, name="c"), [0, 2, 1, 3, 2], [0, 2, 3]
    means = Protos(c, torch.tensor([1, 0, 1, 1]))
    found = fedproc.contrast(z, torch.tensor(y), means, fedproc.HP(contrast="supcon"))
    wanted = supcon_loops(np.concatenate([z, c[known]]), y + known, 0.5)
    assert float(found) == pytest.approx(0.5 / 0.07 * wanted, rel=1e-10)


@pytest.mark.parametrize(("number", "share"), [(2, 0.25), (4, 0.75), (9, 1.0)])
def test_fedproc_weighs_cross_entropy_by_the_rounds_played(number, share):
    """One step in round t + 1 equals the step on a CE + (1 - a) l_con, a = t / 4."""
    settings = {"training": ONE_STEP, "schedule_rounds": 4}
    ctx = toy_context(fedproc.METHOD, 4, **settings)
    means = random_protos(ctx)
    ctx, down, (mine, _, _) = call(
        "fedproc", number, server=lambda s: s._replace(protos=means), **settings
    )
    shards = toy_shards(SIZES)
    for k, rows in enumerate(shards.index):
        x, y = shards.x[rows], shards.y[rows]

        def loss(weights, x=x, y=y):
            out = ctx.net(weights, x, train=True)
            entropy = torch.nn.functional.cross_entropy(out.logits, y)
            direction = torch.nn.functional.normalize(means.mean, dim=-1)
            z = torch.nn.functional.normalize(out.high, dim=-1)
            con = torch.nn.functional.cross_entropy(z @ direction.T / 0.5, y)
            return share * entropy + (1 - share) * con

        assert_near(one(mine.state, k), stepped(ctx, down.model.state, loss))


def test_fedproc_begins_as_fedavg():
    ours, plain = play("fedproc", 2), play("fedavg", 2)
    assert same(plain[0].mine, ours[0].mine)
    assert not same(plain[1].mine, ours[1].mine)


def test_fedproc_brings_embeddings_nearer_to_their_own_than_to_other_prototypes():
    """From one state and to the same prototypes: l_con against cross-entropy."""

    def lead(schedule_rounds: int) -> float:
        last = play("fedproc", 2, schedule_rounds=schedule_rounds)[-1]
        ctx, shards = toy_context(fedproc.METHOD, 4), toy_shards(SIZES)
        z = ctx.net(last.server.model.state, shards.x).high
        cosine = torch.cosine_similarity(z.unsqueeze(1), last.down.protos.mean, dim=-1)
        own = cosine.gather(1, shards.y.unsqueeze(1)).squeeze(1)
        return float((own - (cosine.sum(1) - own) / 3).mean())

    assert lead(1000) > lead(1) + 0.05


def test_fedproc_prototypes_by_samples_or_uniform_and_when():
    eval_mode = play("fedproc", 1)
    up = eval_mode[0].up
    weight = up.protos.count.double()
    total = (weight.unsqueeze(-1) * up.protos.mean.double()).sum(0)
    wanted = total / weight.sum(0).unsqueeze(-1)
    torch.testing.assert_close(
        eval_mode[0].server.protos.mean.double(), wanted, rtol=0, atol=1e-5
    )
    uniform = play("fedproc", 1, proto_weighting="uniform")[0].server.protos
    owners = up.protos.known.double()
    wanted = (owners.unsqueeze(-1) * up.protos.mean.double()).sum(0)
    wanted = wanted / owners.sum(0).unsqueeze(-1)
    torch.testing.assert_close(uniform.mean.double(), wanted, rtol=0, atol=1e-5)
    seen = play("fedproc", 1, collection="train")[0].up.protos
    assert not torch.allclose(seen.mean, up.protos.mean, atol=1e-3)


def test_fedproc_sends_what_table_v_of_fedmps_counts():
    found = table_v("fedproc", 1)
    wanted = {("up", "model"): 20 * 62_006, ("up", "protos"): 59 * 120}
    assert found == wanted
    assert sum(wanted.values()) == 1_247_200


def payload(name: str, net: str, shape: tuple[int, int, int], classes: int, **hp):
    """Return what travels to and from one client that owns every class of a net."""
    method = registry.method(name)
    y = torch.arange(classes)
    shards = Shards(normal(classes, *shape).float(), y, [y], [0])
    training = Training(learning_rate=0.01, batch_size=classes)
    ctx = toy_context(method, 1, classes=classes, training=training, **hp)
    ctx = replace(ctx, net=nets.build(net, shape, classes))
    _, second = islice(rounds(method, ctx, shards), 2)
    return sizes_of(second.down), sizes_of(second.up, 1)


# FedHKD


def test_pull_by_hand():
    """z = (3, 4) to the origin: length 5, mean square 12.5; an unknown class adds 0."""
    z, y = torch.tensor([[3.0, 4.0], [9.0, 9.0]]), torch.tensor([0, 1])
    means = Protos(torch.zeros(2, 2), torch.tensor([1, 0]))
    assert float(protos.pull(z, y, means, "l2")) == 2.5
    assert float(protos.pull(z, y, means, "mse")) == 6.25


def hkd_terms(ctx: Context, state: dict, known: Protos, x, y, kind: str):
    """Return the head's and the embeddings' term, entry by entry."""
    classes = ctx.classes
    row = known.mean.double().numpy()
    size = row.shape[1] - classes

    def length(v: np.ndarray) -> float:
        return math.sqrt(float(v @ v)) if kind == "l2" else float(v @ v) / len(v)

    out = ctx.net(state, x)
    pull, soft = 0.0, 0.0
    for z, label in zip(out.high.double().numpy(), y.tolist(), strict=True):
        if known.count[label]:
            pull += length(z - row[label, :size]) / len(y)
    for c in range(classes):
        if known.count[c]:
            h = torch.from_numpy(row[c : c + 1, :size]).float()
            logits = ctx.net.head(ctx.net.head_state(state), h)[0].double().numpy()
            above = np.exp(logits / 0.5)
            soft += length(above / above.sum() - row[c, size:]) / classes
    return soft, pull


@pytest.mark.parametrize("distance", ["l2", "mse"])
@pytest.mark.parametrize("missing", ["mask", "zero"])
def test_fedhkd_terms_equal_loops(distance, missing):
    """Class 2 has no row: masked, or a row of zeros that counts."""
    settings = {"training": ONE_STEP, "distance": distance, "missing": missing}
    known = random_protos(toy_context(fedhkd.METHOD, 4), 4, known=(1, 1, 0, 1))
    ctx, down, (_, _, terms) = call(
        "fedhkd", 2, server=lambda s: s._replace(protos=known), **settings
    )
    counted = known._replace(count=torch.ones(4)) if missing == "zero" else known
    shards = toy_shards(SIZES)
    for k, rows in enumerate(shards.index):
        x, y = shards.x[rows], shards.y[rows]
        wanted = hkd_terms(ctx, down.model.state, counted, x, y, distance)
        found = float(terms["soft"][k]), float(terms["pull"][k])
        assert found == pytest.approx(wanted, rel=1e-5)


def test_fedhkd_rows_of_zeros_pull_from_round_2_on():
    """Nobody reaches a share of 1: masked, it is FedAvg; with zeros, it is not."""
    plain = play("fedavg", 2)
    masked = play("fedhkd", 2, threshold=1.0)
    zeros = play("fedhkd", 2, threshold=1.0, missing="zero")
    assert same(plain[1].mine, masked[1].mine)
    assert same(plain[0].mine, zeros[0].mine)
    assert not same(plain[1].mine, zeros[1].mine)
    assert float(masked[1].terms["pull"].sum()) == 0
    assert masked[1].sent["up/protos"] == (0, 0)


def skewed() -> Shards:
    """Two clients: 6, 2, 0, 0 and 0, 3, 1, 0 samples of the classes."""
    shards = toy_shards([8, 4])
    shards.y[:] = torch.tensor([0] * 6 + [1] * 2 + [1] * 3 + [2])
    return shards


@pytest.mark.parametrize(
    ("threshold", "sent"),
    [
        (0.0, [[6, 2, 0, 0], [0, 3, 1, 0]]),
        (0.25, [[6, 2, 0, 0], [0, 3, 1, 0]]),  # a quarter is enough
        (0.26, [[6, 0, 0, 0], [0, 3, 0, 0]]),
        (0.8, [[0, 0, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_fedhkd_reports_classes_with_a_large_share(threshold, sent):
    found = play("fedhkd", 1, shards=skewed(), threshold=threshold)[0]
    assert found.up.protos.count.tolist() == sent
    present = sum(n > 0 for row in sent for n in row)
    assert found.sent["up/protos"] == (present * (32 + 4), present)
    means = found.server.protos
    assert means.count.tolist() == [sum(both) for both in zip(*sent, strict=True)]
    if threshold == 0.25:  # class 1 by samples: 2 and 3
        rows = found.up.protos.mean[:, 1]
        torch.testing.assert_close(means.mean[1], 0.4 * rows[0] + 0.6 * rows[1])


def test_fedhkd_keeps_or_zeroes_the_row_of_a_class_nobody_reports():
    method = registry.method("fedhkd")
    for missing, stays in {"mask": True, "zero": False}.items():
        ctx = toy_context(method, 2, missing=missing)
        server, _ = method.init(ctx)
        server = server._replace(protos=random_protos(ctx, 4))
        up = play("fedhkd", 1, shards=skewed())[0].up
        merged = method.merge(ctx, server, up)[0].protos
        assert torch.equal(merged.mean[3], server.protos.mean[3]) == stays
        assert bool(merged.count[3]) == stays
        assert stays or not merged.mean[3].any()


@pytest.mark.parametrize("collection", ["eval", "train"])
def test_fedhkd_knowledge_is_the_mean_embedding_and_mean_soft_prediction(collection):
    """After training; with ``train``, before the only step: at the broadcast model."""
    settings = {"training": ONE_STEP, "noise": 0.0, "threshold": 0.0}
    ctx, down, (mine, up, _) = call("fedhkd", 1, collection=collection, **settings)
    shards = toy_shards(SIZES)
    for k, rows in enumerate(shards.index):
        after = one(mine.state, k)
        out = ctx.net(
            after if collection == "eval" else down.model.state, shards.x[rows]
        )
        soft = torch.softmax(out.logits / 0.5, -1)
        for c in shards.y[rows].unique():
            chosen = shards.y[rows] == c
            wanted = torch.cat([out.high[chosen].mean(0), soft[chosen].mean(0)])
            torch.testing.assert_close(up.protos.mean[k, c], wanted, rtol=0, atol=1e-5)


def test_fedhkd_noise_is_on_reported_embeddings_only_and_each_clients_own():
    quiet = play("fedhkd", 1, sizes=[80, 80], noise=0.0, threshold=0.2)[0].up.protos
    loud = play("fedhkd", 1, sizes=[80, 80], noise=3.0, threshold=0.2)[0].up.protos
    drawn = torch.where(quiet.known.unsqueeze(-1), loud.mean - quiet.mean, 0.0)
    assert torch.equal(drawn, loud.mean - quiet.mean)
    embedding, soft = drawn[..., :32], drawn[..., 32:]
    assert not soft.any()
    assert float(embedding[quiet.known].std()) == pytest.approx(3.0, rel=0.2)
    both = quiet.known.all(0)
    assert not torch.allclose(embedding[0, both], embedding[1, both])


def test_fedhkd_weights_move_towards_the_knowledge():
    def after(**weights) -> tuple[float, float]:
        settings = {"training": ONE_STEP, "threshold": 0.0, "noise": 0.0}
        ctx = toy_context(fedhkd.METHOD, 4)
        known = random_protos(ctx, 4)
        known.mean[:, 32:] = torch.softmax(3 * known.mean[:, 32:], -1)
        ctx, _, (mine, _, _) = call(
            "fedhkd",
            2,
            server=lambda s: s._replace(protos=known),
            **settings,
            **weights,
        )
        shards, each = toy_shards(SIZES), []
        for k, rows in enumerate(shards.index):
            x, y = shards.x[rows], shards.y[rows]
            each.append(hkd_terms(ctx, one(mine.state, k), known, x, y, "l2"))
        soft, pull = np.mean(each, 0)
        return soft, pull

    neutral = after(soft_weight=0.0, proto_weight=0.0)
    assert after(soft_weight=1.0, proto_weight=0.0)[0] < neutral[0]
    assert after(soft_weight=0.0, proto_weight=1.0)[1] < neutral[1]


@pytest.mark.parametrize(
    ("classes", "down", "up"), [(10, 26_854, 26_864), (26, 28_470, 28_496)]
)
def test_fedhkd_payload_of_fedpas_nets(classes, down, up):
    """P + C d + C C, and C counts upwards: FedPA's MNIST and EMNIST."""
    sent, back = payload("fedhkd", "fedpa_cnn", (1, 28, 28), classes, threshold=0.0)
    assert sent["model"].floats + sent["protos"].floats == down
    assert back["model"].floats + sum(back["protos"]) == up


def test_fedhkd_is_read_out_by_the_global_head_and_knows_prototypes():
    last = play("fedhkd", 1, threshold=0.0)[0]
    ctx = toy_context(fedhkd.METHOD, 4)
    found = fedhkd.METHOD.models(ctx, last.server, last.mine)
    assert found.protos.mean.shape == (4, 32)
    assert torch.equal(found.protos.mean, parts(last.server.protos)[0].mean)
    assert fedhkd.METHOD.rule(ctx.hp) == ("global", "head_all")


# FedGMKD


def test_fedgmkd_weights_by_hand():
    """ReLU(n - 0.2 d + 0.2): 0.25 + 0.2, 0.75 - 0.2 * 2 + 0.2; a client without samples
    counts nothing, and where a d_i leaves nothing, the n_i stand in."""
    n, d = torch.tensor([0.25, 0.75, 0.0]), torch.tensor([0.0, 2.0, 0.0])
    found = fedgmkd.shares(n, d, 0.2, 0.2)
    torch.testing.assert_close(found, torch.tensor([0.45, 0.55, 0.0]))
    found = fedgmkd.shares(n, d, 1.0, 0.2)
    torch.testing.assert_close(found, torch.tensor([0.45, 0.0, 0.0]))
    far = torch.tensor([9.0, 9.0, 0.0])
    assert torch.equal(fedgmkd.shares(n, far, 1.0, 0.2), n)


@pytest.mark.parametrize("components", [1, 2, 4])
def test_the_mean_of_a_mixture_is_the_mean_of_the_data(components):
    """Why FedGMKD needs no mixture: sum_j pi_j mu_j after any number of EM steps."""
    z = np.concatenate([normal(30, 3), 2 + normal(11, 3, name="more")])
    for steps in (1, 3, 100):
        fitted = GaussianMixture(components, random_state=0, max_iter=steps, tol=1e-12)
        with warnings.catch_warnings(action="ignore"):  # that EM has not converged
            fitted.fit(z)
        found = fitted.weights_ @ fitted.means_
        np.testing.assert_allclose(found, z.mean(0), atol=1e-12)


def test_fedgmkd_prototypes_are_class_means_after_training():
    ctx, _, (mine, up, _) = call("fedgmkd", 1, training=ONE_STEP)
    shards = toy_shards(SIZES)
    assert torch.equal(up.labels, up.protos.count)
    for k, rows in enumerate(shards.index):
        out = ctx.net(one(mine.state, k), shards.x[rows])
        soft = torch.softmax(out.logits / 0.6, -1)
        for c in shards.y[rows].unique():
            chosen = shards.y[rows] == c
            wanted = torch.cat([out.high[chosen].mean(0), soft[chosen].mean(0)])
            torch.testing.assert_close(up.protos.mean[k, c], wanted, rtol=0, atol=1e-5)


def soft_rows(ctx: Context, known=(1, 1, 1, 1)) -> Protos:
    """Return rows whose last C numbers are a distribution."""
    rows = random_protos(ctx, ctx.classes, known)
    soft = torch.softmax(rows.mean[:, -ctx.classes :], -1) * rows.known.unsqueeze(1)
    return rows._replace(mean=torch.cat([rows.mean[:, : -ctx.classes], soft], 1))


def gmkd_terms(ctx: Context, state: dict, rows: Protos, x, y) -> tuple[float, float]:
    """Return the head's and the embeddings' term, entry by entry."""
    table = rows.mean.double().numpy()
    known = [c for c in range(ctx.classes) if rows.count[c]]
    entropy, pull = 0.0, 0.0
    for c in known:
        h = torch.from_numpy(table[c : c + 1, : -ctx.classes]).float()
        logits = ctx.net.head(ctx.net.head_state(state), h)[0].double().numpy()
        q = np.exp(logits / 0.6)
        q, teacher = q / q.sum(), table[c, -ctx.classes :]
        for j in range(ctx.classes):
            entropy += teacher[j] * math.log(teacher[j] / q[j]) / len(known)
    z = ctx.net(state, x).high.double().numpy()
    for row, label in zip(z, y.tolist(), strict=True):
        if label in known:
            apart = row - table[label, : -ctx.classes]
            pull += float(apart @ apart) / apart.size / len(z)
    return entropy, pull


def test_fedgmkd_terms_equal_loops():
    rows = soft_rows(toy_context(fedgmkd.METHOD, 4), (1, 0, 1, 1))
    ctx, down, (_, _, terms) = call(
        "fedgmkd", 2, server=lambda s: s._replace(protos=rows), training=ONE_STEP
    )
    shards = toy_shards(SIZES)
    for k, mine in enumerate(shards.index):
        x, y = shards.x[mine], shards.y[mine]
        wanted = gmkd_terms(ctx, down.model.state, rows, x, y)
        found = float(terms["soft"][k]), float(terms["pull"][k])
        assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("counts", ["fraction", "raw"])
def test_fedgmkd_merge_equals_loops(counts):
    """Clients lack classes; class 3 is new to the server, nobody has class 2."""
    shards = toy_shards([8, 4, 5])
    shards.y[:] = torch.tensor([0] * 6 + [1] * 2 + [1] * 3 + [3] + [0, 0, 0, 1, 3])
    method = registry.method("fedgmkd")
    ctx = toy_context(method, 3, counts=counts)
    server, mine = method.init(ctx)
    server = server._replace(protos=soft_rows(ctx, (1, 1, 1, 0)))
    ctx = replace(ctx, round=2)
    _, up, _ = method.client(ctx, method.broadcast(ctx, server), mine, shards)
    found, _ = method.merge(ctx, server, up)

    labels, total = up.labels.tolist(), len(shards.y)
    n = [sum(row) / (total if counts == "fraction" else 1) for row in labels]
    weight = []
    for row, size in zip(labels, n, strict=True):
        skew = math.sqrt(sum((c / sum(row) - 1 / 4) ** 2 for c in row))
        weight.append(max(0.0, size - 0.2 * skew + 0.2))
    for key, value in found.model.params.items():
        each = up.model.params[key].double()
        wanted = sum(w * e for w, e in zip(weight, each, strict=True)) / sum(weight)
        torch.testing.assert_close(value.double(), wanted, rtol=0, atol=1e-6)

    table, before = up.protos.mean.double().numpy(), server.protos.mean.double().numpy()
    for c in (0, 1, 3):
        weight = []
        for k, row in enumerate(labels):
            apart = 0.0
            if row[c] and c != 3:
                for j in range(4):
                    p, q = before[c, 32 + j], table[k, c, 32 + j]
                    apart += p * math.log(p / q)
            kept = max(0.0, n[k] - 0.4 * apart + 0.2) if row[c] else 0.0
            weight.append(kept)
        wanted = sum(w * t for w, t in zip(weight, table[:, c], strict=True))
        wanted = wanted / sum(weight)
        np.testing.assert_allclose(found.protos.mean[c], wanted, rtol=0, atol=1e-5)
    assert torch.equal(found.protos.mean[2], server.protos.mean[2])


def test_fedgmkd_counts_a_client_less_the_further_its_soft_prediction_is():
    """The other client's row is the server's own, so it alone gains."""
    method = registry.method("fedgmkd")
    up = play("fedgmkd", 1, sizes=[40, 40])[0].up
    owned = int(up.protos.known.all(0).nonzero()[0])

    def distance(scale: float) -> float:
        ctx = toy_context(method, 2, class_discrepancy=scale)
        server, _ = method.init(ctx)
        server = server._replace(
            protos=Protos(up.protos.mean[0].clone(), up.protos.count[0])
        )
        found = method.merge(ctx, server, up)[0].protos.mean[owned]
        return float((found - up.protos.mean[0, owned]).norm())

    assert distance(20.0) < distance(0.4) < distance(0.0)


def test_fedgmkd_weights_move_towards_the_knowledge():
    rows = soft_rows(toy_context(fedgmkd.METHOD, 4))

    def after(**weights) -> tuple[float, float]:
        ctx, _, (mine, _, _) = call(
            "fedgmkd",
            2,
            server=lambda s: s._replace(protos=rows),
            training=ONE_STEP,
            **weights,
        )
        shards, each = toy_shards(SIZES), []
        for k, index in enumerate(shards.index):
            x, y = shards.x[index], shards.y[index]
            each.append(gmkd_terms(ctx, one(mine.state, k), rows, x, y))
        soft, pull = np.mean(each, 0)
        return soft, pull

    neutral = after(soft_weight=0.0, proto_weight=0.0)
    assert after(soft_weight=1.0, proto_weight=0.0)[0] < neutral[0]
    assert after(soft_weight=0.0, proto_weight=1.0)[1] < neutral[1]


RESNET10 = 1_228_970


def test_fedgmkd_payload_on_fedhpros_net():
    """M + C (d + C) down, M + |C_k| (d + C) and a label histogram up."""
    down, up = payload("fedgmkd", "resnet10", (3, 32, 32), 10)
    assert down["model"].floats == up["model"].floats == RESNET10
    assert down["protos"].floats == up["protos"].floats == 10 * (256 + 10)
    assert up["labels"] == (0, 10)


# FedTGP


def test_margin_contrast_by_hand():
    """From the origin to (3, 4) and (0, 1): 5 and 1; with margin 2 the own class's
    distance is 7, so log(1 + e^6) = 6.002476; without, log(1 + e^4) = 4.018150."""
    z, y = torch.zeros(1, 2), torch.tensor([0])
    centres = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    for margin, wanted in {2.0: 6.002476, 0.0: 4.018150}.items():
        found = losses.margin_contrast(z, y, centres, margin)
        assert float(found) == pytest.approx(wanted, abs=1e-5)


def test_margin_contrast_is_finite_on_a_centre():
    z = torch.zeros(1, 2, requires_grad=True)
    losses.margin_contrast(z, torch.tensor([0]), torch.zeros(2, 2), 1.0).backward()
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_gaps_by_hand():
    """Points 0, 3, 10 on a line, and a class without a mean: 3, 3, 7, 0."""
    mean = torch.tensor([[0.0], [3.0], [10.0], [0.0]])
    means = Protos(mean, torch.tensor([1, 1, 1, 0]))
    assert protos.gaps(means).tolist() == [3.0, 3.0, 7.0, 0.0]
    alone = means._replace(count=torch.tensor([1, 0, 0, 0]))
    assert protos.gaps(alone).tolist() == [0.0] * 4
    pair = Protos(torch.stack([mean, mean]), torch.stack([means.count, alone.count]))
    assert protos.gaps(pair).tolist() == [[3.0, 3.0, 7.0, 0.0], [0.0] * 4]


def mean_gaps(local: Protos) -> list[float]:
    """Return the gaps of the plain mean of uploaded prototypes, by loops."""
    count, table = local.count.numpy(), local.mean.double().numpy()
    mean = {
        c: np.mean([table[k, c] for k in range(len(table)) if count[k, c]], 0)
        for c in range(count.shape[1])
        if count[:, c].any()
    }
    return [
        min(np.linalg.norm(mean[c] - mean[o]) for o in mean if o != c) for c in mean
    ]


def test_fedtgp_margin_is_the_largest_gap_up_to_a_bound():
    found = play("fedtgp", 1, server_epochs=1)[0]
    wanted = max(mean_gaps(found.up.protos))
    assert float(found.watched["margin"]) == pytest.approx(wanted, rel=1e-5)
    bounded = play("fedtgp", 1, server_epochs=1, largest_margin=0.01)[0]
    assert float(bounded.watched["margin"]) == pytest.approx(0.01)


def test_fedtgp_prototypes_equal_those_of_an_ordinary_torch_loop():
    """One batch holds all uploads, so that the order of batches does not matter.

    The rate is the server's own, whatever the clients' (0.1).
    """
    settings = {"training": ONE_STEP, "server_epochs": 5, "server_learning_rate": 0.05}
    ctx, _, (_, up, _) = call("fedtgp", 1, **settings)
    server, _ = fedtgp.METHOD.init(ctx)
    found, watched = fedtgp.METHOD.merge(ctx, server, up)

    size = up.protos.mean.shape[-1]
    net = torch.nn.Sequential(
        torch.nn.Embedding(4, size),
        torch.nn.Linear(size, size),
        torch.nn.ReLU(),
        torch.nn.Linear(size, size),
    )
    renamed = {"table": "0.weight", "0.weight": "1.weight", "0.bias": "1.bias"}
    renamed |= {"2.weight": "3.weight", "2.bias": "3.bias"}
    net.load_state_dict({renamed[k]: v for k, v in server.net.items()})
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    owner, label = up.protos.known.nonzero(as_tuple=True)
    p, margin = up.protos.mean[owner, label], max(mean_gaps(up.protos))
    seen = []
    for _ in range(5):
        made = net(torch.arange(4))
        logits = torch.stack(
            [
                torch.stack([-(one - made[c]).norm() for c in range(4)])
                - margin * torch.nn.functional.one_hot(own, 4)
                for one, own in zip(p, label, strict=True)
            ]
        )
        contrast = torch.nn.functional.cross_entropy(logits, label)
        seen.append(float(contrast.detach()))
        optimiser.zero_grad()
        contrast.backward()
        optimiser.step()
    wanted = net(torch.arange(4)).detach()
    torch.testing.assert_close(found.protos.mean, wanted, rtol=0, atol=1e-5)
    assert float(watched["contrast"]) == pytest.approx(np.mean(seen), rel=1e-4)


def test_fedtgp_server_goes_on_from_its_last_net_and_learns():
    first, second = play("fedtgp", 2, server_epochs=30)
    assert second.watched["contrast"] < first.watched["contrast"]
    ctx = toy_context(fedtgp.METHOD, 4, server_epochs=30)
    fresh, _ = fedtgp.METHOD.init(ctx)
    _, again = fedtgp.METHOD.merge(ctx, fresh, first.up)
    _, further = fedtgp.METHOD.merge(ctx, first.server, first.up)
    assert further["contrast"] < again["contrast"]


def test_fedtgp_margin_makes_the_own_prototype_nearer_than_others():
    """Far apart uploads: without a margin the loss is content with a small lead."""
    _, _, (_, up, _) = call("fedtgp", 1)
    p = 3 * normal(4, 32).float()
    up = up._replace(protos=up.protos._replace(mean=p.expand(4, 4, 32)))

    def lead(largest: float) -> float:
        settings = {"server_epochs": 100, "largest_margin": largest}
        ctx = toy_context(fedtgp.METHOD, 4, training=ONE_STEP, **settings)
        server, _ = fedtgp.METHOD.init(ctx)
        made = fedtgp.METHOD.merge(ctx, server, up)[0].protos.mean
        apart = torch.cdist(p, made)
        others = apart.masked_fill(torch.eye(4, dtype=torch.bool), float("inf"))
        return float((others.amin(1) - apart.diagonal()).mean())

    assert lead(100.0) > lead(0.0) + 1


def test_fedtgp_mini_batches_are_of_the_clients_size():
    """Four clients, one without class 3: 15 prototypes are 2 batches of 8."""
    up = play("fedtgp", 1, server_epochs=1)[0].up
    assert int(up.protos.known.sum()) == 15
    server = {}
    for size in (8, 15):
        training = Training(learning_rate=0.1, batch_size=size)
        ctx = toy_context(fedtgp.METHOD, 4, training=training, server_epochs=1)
        first, _ = fedtgp.METHOD.init(ctx)
        server[size] = fedtgp.METHOD.merge(ctx, first, up)[0]
    assert not torch.equal(server[8].protos.mean, server[15].protos.mean)


def test_fedtgp_a_class_nobody_has_uploaded_is_not_sent():
    first, second = play("fedtgp", 2, shards=skewed(), server_epochs=3)
    assert first.sent["down/protos"] == (0, 0)
    assert second.down.protos.known.tolist() == [True, True, True, False]
    assert not second.down.protos.mean[3].any()
    assert second.sent["down/protos"] == (2 * 3 * 32, 2 * 3)
    assert first.sent["up/protos"] == (4 * 32, 4)  # two classes from each


def test_fedtgp_single_class_has_no_margin():
    shards = toy_shards([9, 9])
    shards.y[:] = 2
    found = play("fedtgp", 2, shards=shards, server_epochs=3)[-1]
    assert float(found.watched["margin"]) == 0
    assert torch.isfinite(found.server.protos.mean).all()


def distance_to_anchors(name: str, centres: Tensor, server, **changes) -> float:
    """Return the clients' mean distance to their classes' centres after a round."""
    ctx, _, (mine, _, _) = call(name, 2, server=server, **changes)
    shards, total = toy_shards(SIZES), 0.0
    for k, rows in enumerate(shards.index):
        z = ctx.net(one(mine.state, k), shards.x[rows]).high
        total += float((z - centres[shards.y[rows]]).norm(dim=1).sum())
    return total / len(shards.y)


def test_fedtgp_pull_moves_embeddings_to_the_prototypes():
    means = random_protos(toy_context(fedtgp.METHOD, 4))
    near, far = (
        distance_to_anchors(
            "fedtgp", means.mean, lambda s: s._replace(protos=means), proto_weight=w
        )
        for w in (10.0, 0.0)
    )
    assert near < 0.9 * far


def test_fedtgp_with_personal_models_sends_prototypes_only():
    """The original: nothing but prototypes travels; without a pull, it is Local."""
    personal = {"share_model": False, "server_epochs": 3}
    found = play("fedtgp", 2, **personal)[-1]
    assert found.sent["up/model"] == found.sent["down/model"] == (0, 0)
    assert found.sent["up/protos"].floats == 15 * 32
    alone = play("local", 2)[-1]
    free = play("fedtgp", 2, common_init=False, proto_weight=0.0, **personal)[-1]
    assert same(alone.mine, free.mine)
    ctx = toy_context(fedtgp.METHOD, 4, share_model=False)
    assert fedtgp.METHOD.rule(ctx.hp) == ("personal", "nearest_all")
    assert fedtgp.METHOD.models(ctx, found.server, found.mine).shared is None


def test_fedtgps_server_keeps_its_rate_where_clients_use_adam():
    """The same uploads make the same prototypes, whatever the clients train with."""
    up = play("fedtgp", 1)[0].up
    made = []
    for training in (ONE_STEP, Training(optimiser="adam", learning_rate=1e-3)):
        training = training.model_copy(update={"batch_size": 64})
        ctx = toy_context(fedtgp.METHOD, 4, training=training)
        made.append(fedtgp.METHOD.merge(ctx, fedtgp.METHOD.init(ctx)[0], up)[0].protos)
    assert same(*made)


def test_fedhpros_preset_of_fedtgp_steps_as_its_clients_do():
    """All clients of that paper use SGD, as those of the official program."""
    for dataset in papers.PAPERS["fedhpro"]:
        spec = papers.fedhpro(dataset, "fedtgp")
        assert spec.training.optimiser == "sgd"
        assert spec.hp["server_learning_rate"] == spec.training.learning_rate
        assert (spec.hp["share_model"], spec.hp["proto_weight"]) == (True, 1.0)


def test_fedtgp_payload_on_fedhpros_net():
    down, up = payload("fedtgp", "resnet10", (3, 32, 32), 10, server_epochs=1)
    assert down["model"].floats == up["model"].floats == RESNET10
    assert down["protos"].floats == up["protos"].floats == 10 * 256


# FedSA


def sa_terms(ctx: Context, state: dict, anchors: Tensor, margin: float, x, y):
    """Return pull, contrast and calibration, entry by entry."""
    a, z = anchors.double().numpy(), ctx.net(state, x).high.double().numpy()
    pull, contrast, calibration = 0.0, 0.0, 0.0
    for row, own in zip(z, y.tolist(), strict=True):
        pull += float((row - a[own]) @ (row - a[own])) / a.shape[1] / len(z)
        far = [float(np.linalg.norm(row - a[c])) for c in range(len(a))]
        far[own] += margin
        contrast += (far[own] + math.log(sum(math.exp(-d) for d in far))) / len(z)
    logits = ctx.net.head(ctx.net.head_state(state), anchors).double().numpy()
    for c, row in enumerate(logits):
        calibration += (math.log(np.exp(row).sum()) - row[c]) / len(a)
    return pull, contrast, calibration


def gap_of_data(ctx: Context, state: dict, x: Tensor, y: Tensor) -> float:
    """Return the mean distance from a class mean to the nearest other one."""
    z = ctx.net(state, x).high.double().numpy()
    means = [z[(y == c).numpy()].mean(0) for c in range(ctx.classes) if (y == c).any()]
    gaps = [
        min(np.linalg.norm(m - o) for j, o in enumerate(means) if j != i)
        for i, m in enumerate(means)
    ]
    return float(np.mean(gaps))


@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_fedsa_terms_equal_loops_with_the_larger_of_both_gaps(spread):
    """Global means in one point or far apart: the margin is the client's or theirs."""
    ctx = toy_context(fedsa.METHOD, 4)
    means = random_protos(ctx)
    means = means._replace(mean=spread * means.mean)
    wide = np.mean(mean_gaps(Protos(means.mean[None], means.count[None])))
    ctx, down, (_, _, terms) = call(
        "fedsa", 2, server=lambda s: s._replace(protos=means), training=ONE_STEP
    )
    assert float(down.gap) == pytest.approx(wide, abs=1e-5)
    shards, state = toy_shards(SIZES), down.model.state
    for k, rows in enumerate(shards.index):
        x, y = shards.x[rows], shards.y[rows]
        margin = max(gap_of_data(ctx, state, x, y), wide)
        assert (margin > wide) == (spread == 0.0)
        assert float(terms["margin"][k]) == pytest.approx(margin, rel=1e-4)
        wanted = sa_terms(ctx, state, down.anchors, margin, x, y)
        names = ("pull", "contrast", "calibration")
        found = [float(terms[name][k]) for name in names]
        assert found == pytest.approx(wanted, rel=1e-4)


def test_fedsa_margins_of_clients_with_one_class_are_the_global_gap():
    shards = toy_shards([9, 9])
    shards.y[:9] = 1
    first = play("fedsa", 1, shards=shards)[0]
    assert float(first.down.gap) == 0
    assert float(first.terms["margin"][0]) == 0
    assert float(first.terms["margin"][1]) > 0


def test_fedsa_anchors_by_hand():
    """A = 2, P = 4, alpha = 0.9: 1.8 + 0.4 = 2.2; a class without upload stays."""
    _, _, (_, up, _) = call("fedsa", 1)
    count = torch.tensor([1, 1, 0, 1]).expand(4, 4)
    mean = torch.full((4, 4, 32), 4.0) * (count > 0).unsqueeze(-1)
    up = up._replace(protos=Protos(mean, count))
    for momentum, wanted in {0.9: 2.2, 1.0: 2.0, 0.0: 4.0}.items():
        ctx = toy_context(fedsa.METHOD, 4, anchor_momentum=momentum)
        server, _ = fedsa.METHOD.init(ctx)
        server = server._replace(anchors=torch.full((4, 32), 2.0))
        found = fedsa.METHOD.merge(ctx, server, up)[0].anchors
        torch.testing.assert_close(found[[0, 1, 3]], torch.full((3, 32), wanted))
        assert (found[2] == 2).all()


def test_fedsa_calibration_moves_the_head_alone_and_towards_the_anchors():
    def after(weight: float):
        settings = {"anchor_weight": 0.0, "margin_weight": 0.0}
        return call(
            "fedsa", 1, training=ONE_STEP, calibration_weight=weight, **settings
        )

    _, _, (plain, _, _) = after(0.0)
    ctx, down, (moved, _, _) = after(1.0)
    for key, value in plain.state.items():
        assert torch.equal(value, moved.state[key]) != key.startswith("head."), key
    x, y = torch.zeros(1, 1, 8, 8), torch.tensor([0])
    for k in range(4):
        left, right = (
            sa_terms(ctx, one(m.state, k), down.anchors, 0.0, x, y)[2]
            for m in (plain, moved)
        )
        assert right < left


def test_fedsa_pull_and_contrast_move_embeddings_to_their_anchors():
    anchors = torch.randn(4, 32, generator=generator(7, "init", "anchors"))
    off = {"anchor_weight": 0.0, "margin_weight": 0.0, "calibration_weight": 0.0}

    def distance(**weights) -> float:
        return distance_to_anchors("fedsa", anchors, None, **(off | weights))

    assert torch.equal(fedsa.init(toy_context(fedsa.METHOD, 4))[0].anchors, anchors)
    assert distance(anchor_weight=10.0) < 0.9 * distance()
    assert distance(margin_weight=5.0) < 0.97 * distance()


def test_fedsa_payload_on_fedhpros_net():
    """Model, C d anchors and one gap down; model and own classes' means up."""
    down, up = payload("fedsa", "resnet10", (3, 32, 32), 10)
    assert down["model"].floats == up["model"].floats == RESNET10
    assert down["anchors"].floats + down["gap"].floats == 10 * 256 + 1
    assert up["protos"].floats == 10 * 256


def test_fedsa_reads_out_by_anchors_of_seen_classes():
    last = play("fedsa", 1, shards=skewed())[0]
    ctx = toy_context(fedsa.METHOD, 2)
    found = fedsa.METHOD.models(ctx, last.server, last.mine).protos
    assert torch.equal(found.mean, last.server.anchors)
    assert found.known.tolist() == [True, True, True, False]
    assert last.sent["up/protos"] == (4 * 32, 4)
