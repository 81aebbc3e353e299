"""FedProc, FedHKD, FedGMKD, FedTGP, FedSA: losses by hand and by loops, switches."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlib import registry
from fedlib.baselines import fedproc
from fedlib.local import Training
from fedlib.method import Context, Round, rounds
from fedlib.protos import Protos
from fedlib.rng import generator
from fedlib.tree import flatten
from tests.conftest import toy_context, toy_shards
from tests.test_messages import table_v
from tests.test_oracles import supcon_loops

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
