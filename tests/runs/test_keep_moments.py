"""Optimisers that outlive a round, beside torch's own, kept by hand."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedlib import papers, registry
from fedlib.core.tree import flatten, restore
from fedlib.runs.federation import federation
from fedlib.runs.spec import Spec
from tests.conftest import TOY

KEPT = {"keep_moments": True}


def spec(method: str, training: dict, **changes) -> Spec:
    scheme = {"scheme": "lda", "alpha": 5.0}
    given = {"clients": 3, "participation": 0.67, "partition": scheme, "rounds": 3}
    given |= {"hp": TOY.get(method, {}), "net": "digits_linear"} | changes
    return papers.fedpa(
        "digits", method, training=training | {"local_steps": 3}, **given
    )


def played(of: Spec, count: int = 4):
    return list(islice(federation(of).rounds(), count))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "optimiser", [{}, {"optimiser": "sgd", "momentum": 0.9, "learning_rate": 0.05}]
)
def test_fedavg_by_torchs_optimisers(optimiser, kept):
    """A client's own Adam, made once, or in each round; weights are the broadcast."""
    of = spec("fedavg", optimiser | {"keep_moments": kept})
    fed, training = federation(of), of.training
    server = fed.method.init(fed.ctx)[0].model.state
    own: dict[int, torch.optim.Optimizer] = {}
    weights = {k: {n: v.clone() for n, v in server.items()} for k in range(3)}
    seen = [0, 0, 0]
    for after in played(of):
        ctx, rows = fed.ctx, after.cohort
        for k in rows:
            seen[k] += 1
            for name, value in weights[k].items():
                value.requires_grad_(False).copy_(server[name]).requires_grad_()
            if k not in own or not kept:
                leaves = list(weights[k].values())
                decay = training.weight_decay
                own[k] = (
                    torch.optim.Adam(leaves, weight_decay=decay)
                    if training.optimiser == "adam"
                    else torch.optim.SGD(leaves, 0.1, momentum=0.9, weight_decay=decay)
                )
            faded = training.learning_rate * training.decay ** (after.number - 1)
            own[k].param_groups[0]["lr"] = faded
            index = fed.train.index[k]
            pick = replace(ctx, round=after.number).random("batches", k)
            order = index[torch.randperm(len(index), generator=pick)]
            for batch in order[:48].split(16):
                x, y = fed.train.inputs(batch), fed.train.y[batch]
                logits = ctx.net(weights[k], x, train=True).logits
                own[k].zero_grad()
                torch.nn.functional.cross_entropy(logits, y).backward()
                own[k].step()
        total = sum(len(fed.train.index[k]) for k in rows)
        server = {
            n: sum(
                len(fed.train.index[k]) / total * weights[k][n].detach() for k in rows
            )
            for n in server
        }
        for name, value in after.server.model.state.items():
            torch.testing.assert_close(value, server[name], rtol=1e-4, atol=1e-5)
    assert sorted(seen) != [4, 4, 4]


def test_fedpas_own_switch_does_the_same():
    """Bit for bit; and afresh is another run."""
    hp = TOY["fedpa"]
    kept = played(spec("fedpa", KEPT, hp=hp | {"moments": "reset"}))[-1]
    own = played(spec("fedpa", {}, hp=hp | {"moments": "persist"}))[-1]
    both = played(spec("fedpa", KEPT, hp=hp | {"moments": "persist"}))[-1]
    fresh = played(spec("fedpa", {}, hp=hp | {"moments": "reset"}))[-1]
    for name, value in flatten(own.server).items():
        assert torch.equal(value, flatten(kept.server)[name]), name
        assert torch.equal(value, flatten(both.server)[name]), name
    assert not torch.equal(
        own.server.model.state["head.0.weight"],
        fresh.server.model.state["head.0.weight"],
    )


@pytest.mark.parametrize("method", ["fedprox", "fedensemble", "fedgen", "fedhkd"])
def test_methods_of_fedpas_tables_keep_them_and_go_on_after_a_stop(method):
    of = spec(method, KEPT)
    fed, whole = federation(of), played(of)
    tree = {"server": whole[1].server, "mine": whole[1].mine}
    server, mine = fed.method.init(fed.ctx)
    again = restore({"server": server, "mine": mine}, flatten(tree))
    last = next(islice(fed.rounds((2, again["server"], again["mine"])), 1, None))
    for name, value in flatten(whole[-1].mine).items():
        assert torch.equal(value, flatten(last.mine)[name]), name
    trained = [sum(k in r.cohort for r in whole) for k in range(3)]
    for each in whole[-1].mine.moments.values():
        assert each["step"].tolist() == [3.0 * n for n in trained]
    assert fed.evaluate(whole[-1])
    fresh = played(spec(method, {}))
    heads = [r[-1].server for r in (whole, fresh)]
    one, other = (flatten(h) for h in heads)
    assert any(not torch.equal(v, other[k]) for k, v in one.items())


@pytest.mark.parametrize("method", ["gfpl", "vhl"])
@pytest.mark.parametrize(
    "optimiser", [{}, {"optimiser": "sgd", "momentum": 0.9, "learning_rate": 0.05}]
)
def test_what_a_method_trains_beside_the_net_has_moments_too(method, optimiser):
    """GFPL's projection, VHL's second outputs; a round later and after a stop."""
    of = spec(method, optimiser | KEPT)
    fed, whole = federation(of), played(of)
    server, mine = fed.method.init(fed.ctx)
    own = {name for name in flatten(mine.moments) if name.startswith("own.")}
    assert own
    for after in whole:
        assert set(flatten(after.mine)) == set(flatten(mine))
        moments = flatten(after.mine.moments)
        assert any(bool(moments[name].any()) for name in own)
    stopped = whole[1]
    again = (2, restore(server, flatten(stopped.server)))
    again = (*again, restore(mine, flatten(stopped.mine)))
    last = next(islice(fed.rounds(again), 1, None))
    for part in ("server", "mine"):
        leaves = flatten(getattr(last, part))
        for name, value in flatten(getattr(whole[-1], part)).items():
            assert torch.equal(value, leaves[name]), name


def test_without_it_the_method_is_the_registered_one():
    assert federation(spec("fedavg", {})).method is registry.method("fedavg")


def test_a_method_that_trains_twice_in_a_round_is_refused():
    with pytest.raises(ValueError, match="keep_moments: got True for fedrep"):
        played(spec("fedrep", KEPT), 1)
