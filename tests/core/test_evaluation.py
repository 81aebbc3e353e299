"""On what an accuracy is measured, what is logged, and how a run is labelled."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlib import papers, registry
from fedlib.core import embed, readouts
from fedlib.core.log import Log, Rows
from fedlib.papers import study
from fedlib.runs import reports, runner, titles
from fedlib.runs.federation import federation
from tests.conftest import TOY


def small(method: str = "fedavg", paper: str = "fedpg", **changes):
    toy = {"rounds": 2, "clients": 4, "participation": 1.0, "net": "digits_linear"}
    toy["hp"] = TOY.get(method, {}) | changes.pop("hp", {})
    return papers.setting(paper, "digits", method, **(toy | changes))


def test_the_whole_test_set_is_counted_by_hand():
    spec = small()
    fed = federation(spec)
    after = next(fed.rounds())
    found = fed.evaluate(after)
    data, net = fed.dataset, fed.ctx.net
    x = (data.test_x / 255 - data.mean[0]) / data.std[0]
    logits = net(after.server.model.state, x).logits
    right = int((logits.argmax(1) == data.test_y).sum())
    assert found["full/global/head_all"].tolist() == [right]
    assert found["full_samples"].tolist() == [len(data.test_y)]


def test_a_summary_names_its_data_and_marks_the_papers():
    full = runner.run(small())
    rows = full.summary()
    marked = rows[rows.is_paper_rule]
    assert marked[["model", "rule", "data"]].to_numpy().tolist() == [
        ["global", "head_all", "full"]
    ]
    assert full.accuracy("global", "head_all", "full").shape == (2, 1)
    with pytest.raises(ValueError, match="has no personal/head_all on full"):
        full.accuracy("personal", "head_all", "full")


def test_pooled_accuracy_weighs_clients_by_their_test_samples():
    result = runner.run(small(test="pooled"))
    each = result.accuracy("global", "head_all")
    samples = result.log.samples.double()
    pooled = (each * samples).sum(1) / samples.sum(1)
    found = result.accuracy("global", "head_all", "pooled")[:, 0]
    torch.testing.assert_close(found, pooled)
    assert samples.unique().numel() > 1  # else the two averages could not differ
    rows = result.summary()
    assert set(rows.data) == {"clients", "pooled"}
    assert rows[rows.is_paper_rule].data.tolist() == ["pooled"]


def test_a_transform_replaces_the_data_sets_own():
    spec = small(transform={"mean": [0.5], "std": [0.25]})
    fed = federation(spec)
    pixel = fed.dataset.train_x[fed.partition.train[0][:3]] / 255
    mine = fed.train.x[fed.train.index[0][:3]]
    torch.testing.assert_close(mine, (pixel - 0.5) / 0.25)
    cropped = federation(small(transform={"padding": 1, "flip": True}))
    assert cropped.train.augment is not None
    assert cropped.test.augment is None
    told = r"transform.mean: got \(0.5, 0.5\), expected 1 numbers, one per channel"
    with pytest.raises(ValueError, match=told):
        federation(small(transform={"mean": [0.5, 0.5]}))


def test_a_long_tail_thins_the_last_classes():
    even, tail = federation(small()), federation(small(imbalance=10))
    counts = [
        torch.cat([f.train.y[i] for i in f.train.index]).bincount()
        for f in (even, tail)
    ]
    assert counts[0].max() < 1.1 * counts[0].min()
    assert int(counts[1][-1]) * 9 < int(counts[1][0]) < int(counts[1][-1]) * 12


def test_numbers_of_some_rounds_are_nan_in_the_others():
    rows = Rows()
    for number in range(1, 5):
        now = {"now": torch.tensor(float(number))} if number in (2, 3) else {}
        rows.add(Log(cohort=torch.tensor([0]), server=now))
    found = rows.stacked().server["now"].tolist()
    assert found[1:3] == [2.0, 3.0]
    assert math.isnan(found[0])
    assert math.isnan(found[3])


def test_labels_tell_variants_and_switches():
    wanted = {
        "fedpg": {},
        "FedPG (reference)": {"variant": "reference"},
        "FedPG (fa=eq11_raw)": {"fa": "eq11_raw"},
        "FedPG (reference, noise=normal)": {"variant": "reference", "noise": "normal"},
    }
    for text, hp in wanted.items():
        spec = small("fedpg", hp=hp)
        assert titles.label(runner.Result(spec, "key", Log())) == text
    assert titles.label(runner.Result(small("fedavg"), "key", Log())) == "fedavg"


def test_two_runs_of_one_name_are_no_two_seeds():
    fast = runner.Result(small("fedavg"), "fast", Log())
    slow = replace(fast, spec=small("fedavg", training={"learning_rate": 0.001}))
    for table in (reports.curves, reports.readouts, reports.accuracies, reports.logs):
        with pytest.raises(ValueError, match="got two runs of digits called 'fedavg'"):
            table([fast, slow])
    named = replace(slow, called="FedAvg (learning_rate=0.001)")
    assert titles.labels([fast, named]) == ["fedavg", "FedAvg (learning_rate=0.001)"]
    other = replace(slow, spec=small("fedavg", seed=7))
    assert titles.labels([fast, other]) == ["fedavg", "fedavg"]


def test_logs_are_tidy_and_leave_out_what_a_round_lacks():
    result = runner.run(small("gfpl", "gfpl", hp={"exchange_every": 2}))
    frame = reports.logs([result])
    merged = frame[(frame.source == "server") & (frame.name == "received")]
    assert merged["round"].tolist() == [1]  # first exchange in round 1, next in 3
    assert set(frame.source) == {"client", "server"}
    clients = reports.per_client([result])
    assert len(clients) == 4
    assert {*clients["seed"]} == {result.spec.seed}
    wanted = 100 * result.accuracy("personal", "head_all")[-1]
    assert clients["accuracy"].tolist() == pytest.approx(wanted.tolist())


def test_an_entry_of_runs_is_a_method_a_variant_or_a_switch():
    asked = {
        "dataset": "digits",
        "runs": ["fedavg", "fedpg:reference", "fedpg:fa:eq11_raw"],
        "rounds": 3,
        "seed": 1,
        "generator_steps": 5,
    }
    plain, released, switched = study.specs_for("fedpg/learning", asked)
    assert (plain.method, released.hp["variant"]) == ("fedavg", "reference")
    assert (switched.hp["fa"], switched.hp["variant"]) == ("eq11_raw", "paper")
    assert {s.rounds for s in (plain, released, switched)} == {3}
    assert switched.hp["generator_steps"] == 5


# every rule, by a plain loop


def looped(net, state, x):
    """Return embeddings and logits of samples, one at a time."""
    with torch.no_grad():
        each = [net(state, one[None]) for one in x]
    return [(out.high[0].numpy(), out.logits[0].numpy()) for out in each]


def looped_means(net, states, shards):
    """Return class -> mean over its owners of their class means."""
    found = {}
    for state, index in zip(states, shards.index, strict=True):
        embedded = looped(net, state, shards.inputs(index))
        labels = shards.y[index].tolist()
        for c in set(labels):
            mine = [z for (z, _), y in zip(embedded, labels, strict=True) if y == c]
            found.setdefault(c, []).append(np.mean(mine, 0))
    return {c: np.mean(each, 0) for c, each in found.items()}


def looped_right(net, states, shards, owns, means):
    """Return rule -> right predictions of each client, -1 where it predicts nothing."""
    counts = {}
    for k, (state, index) in enumerate(zip(states, shards.index, strict=True)):
        own = owns[k].nonzero().flatten().tolist()
        embedded = looped(net, state, shards.inputs(index))
        for (z, logits), y in zip(embedded, shards.y[index].tolist(), strict=True):
            far = {c: ((z - mean) ** 2).mean() for c, mean in means.items()}
            head_own = max(own, key=lambda c: logits[c])
            near = [c for c in own if c in far]
            said = {
                "head_all": int(logits.argmax()),
                "head_own": head_own,
                "nearest_own": min(near, key=far.get) if near else head_own,
                "nearest_all": min(far, key=far.get) if far else None,
            }
            for rule, c in said.items():
                each = counts.setdefault(rule, [0] * len(states))
                each[k] = -1 if c is None else each[k] + (c == y)
    return counts


def rows_of(state, count):
    return [{name: value[k] for name, value in state.items()} for k in range(count)]


def test_clients_of_like_size_are_embedded_at_once_within_bounds(monkeypatch):
    """100 pixels, of images of 10; of a client eight images at once."""
    monkeypatch.setattr(embed, "PIXELS", 100)
    monkeypatch.setattr(embed, "COLUMNS", 8)
    sizes = [9, 3, 0, 7, 5, 5]
    found = list(embed._alike(sizes, 10))
    assert [[sizes[i] for i in group] for group in found] == [[9], [7], [5, 5], [3, 0]]
    assert list(embed._alike([0, 0], 10)) == [[0, 1]]
    assert list(embed._alike([1, 2], 1000)) == [[1], [0]]  # one at least


@pytest.mark.parametrize("side_by_side", [1, 3000, 2**18])
@pytest.mark.parametrize("name", ["fedavg", "fedproto", "fedpa", "fedper"])
def test_every_rule_equals_a_plain_loop(name, side_by_side, monkeypatch):
    """Clients of very unequal size, one of them without a sample."""
    monkeypatch.setattr(embed, "PIXELS", side_by_side)
    monkeypatch.setattr(embed, "COLUMNS", 16)
    monkeypatch.setattr(readouts, "PIECE", 7)
    local = {"bn": "local"} if name == "fedpa" else {}
    spec = small(name, "fedmps", test="full", net="digits_bn", hp=local)
    fed = federation(spec)
    whole = torch.cat(fed.train.index)
    index = [whole[:40], whole[:0], whole[40:43], whole[43:]]
    fed = fed._replace(train=fed.train._replace(index=index))
    tests = fed.test._replace(
        index=[i[:n] for i, n in zip(fed.test.index, [9, 0, 1, 12], strict=True)]
    )
    fed = fed._replace(test=tests)
    after, net = next(fed.rounds()), fed.ctx.net
    models, found = fed.models(after)[0], fed.evaluate(after)
    owns = fed.partition.owns
    states = {
        "personal": rows_of(models.personal, 4),
        "global": [models.shared] * 4,
        "received": models.received and rows_of(models.received, 4),
    }
    seen = set()
    for model, each in states.items():
        if not each or each[0] is None:
            continue
        means = looped_means(net, each, fed.train)
        if models.protos is not None:
            known = models.protos.known.nonzero().flatten().tolist()
            means = {c: models.protos.mean[c].numpy() for c in known}
        for rule, right in looped_right(net, each, tests, owns, means).items():
            seen.add(f"accuracy/{model}/{rule}")
            assert found[f"accuracy/{model}/{rule}"].tolist() == right, (model, rule)
    assert {n for n in found if n.startswith("accuracy/")} == seen
    assert found["samples"].tolist() == tests.sizes().tolist()
    if models.shared is not None:
        every = torch.ones(1, 10, dtype=torch.bool)
        right = looped_right(net, [models.shared], fed.full, every, means)
        assert found["full/global/head_all"].tolist() == right["head_all"]
        if models.protos is not None:
            assert found["full/global/nearest_all"].tolist() == right["nearest_all"]


@pytest.mark.parametrize("known", [[], [3], list(range(10))])
def test_a_rule_without_a_prototype_is_empty_on_shards_and_on_the_whole(
    known, monkeypatch
):
    """C07: no class has a prototype, or one that not every client owns."""
    monkeypatch.setattr(readouts, "PIECE", 7)
    fed = federation(small("fedpa", test="full"))
    owns = torch.zeros(4, 10, dtype=torch.bool)
    owns[0, 3], owns[1:, 5:] = True, True
    models = fed.models(next(fed.rounds()))[0]
    count = torch.zeros(10, dtype=torch.int64)
    count[known] = 7
    models = models._replace(protos=models.protos._replace(count=count))
    net, shared = fed.ctx.net, models.shared
    found = readouts.evaluate(net, models, owns, fed.train, fed.test)
    whole = readouts.evaluate_full(net, models, fed.full)
    means = {c: models.protos.mean[c].numpy() for c in known}
    right = looped_right(net, [shared] * 4, fed.test, owns, means)
    for rule, wanted in right.items():
        assert found[f"accuracy/global/{rule}"].tolist() == wanted, rule
    every = torch.ones(1, 10, dtype=torch.bool)
    wanted = looped_right(net, [shared], fed.full, every, means)
    for rule in ("head_all", "nearest_all"):
        assert whole[f"full/global/{rule}"].tolist() == wanted[rule]
    assert (right["nearest_all"] == [-1] * 4) == (known == [])
    assert (right["nearest_own"][1:] == right["head_own"][1:]) == (len(known) < 10)


def test_a_run_without_prototypes_has_empty_cells(monkeypatch):
    """C07: every table is made, and what has no number has none."""
    forget = {"count": torch.zeros(10, dtype=torch.int64)}
    method = registry.method("fedproto")

    def models(ctx, server, mine):
        whole = method.models(ctx, server, mine)
        return whole._replace(protos=whole.protos._replace(**forget))

    blank = method._replace(models=models)
    monkeypatch.setattr(registry, "method", lambda name: blank)
    spec = small("fedproto", "fedmps")
    fed, rows = federation(spec), Rows()
    for after in fed.rounds():
        rows.add(Log(cohort=torch.tensor(after.cohort)))
        one = Log.of(fed.evaluate(after))
        rows.add(one._replace(evaluated=torch.tensor(after.number)))
        if after.number == 2:
            break
    result = runner.Result(spec, "key", rows.stacked())
    table = result.summary().set_index("rule")
    numbers = ["last", "best", "best_round", "mean_last5", "std_last", "std_best"]
    assert table.loc["nearest_all", numbers].isna().all()
    assert table.loc["nearest_all", ["over", "who"]].tolist() == [0, "clients"]
    own = table.loc[["head_own", "nearest_own"], numbers]
    assert own.notna().all(axis=None)
    assert own.nunique().eq(1).all()  # the head stands in among a client's own classes
    assert table.loc["head_all", "over"] == 4
    assert reports.accuracies([result])["last"].isna().sum() == 1
    assert reports.readouts([result])["last"].isna().sum() == 1


def test_means_of_training_data_do_not_depend_on_who_is_beside_whom(monkeypatch):
    fed = federation(small("fedavg", "fedmps"))
    state = fed.ctx.init_clients(False)
    sizes = [1, 30, 7, 0]
    index = [i[:n] for i, n in zip(fed.train.index, sizes, strict=True)]
    shards = fed.train._replace(index=index)
    together = embed.class_means_of(fed.ctx.net, state, shards, ["low", "high"])
    monkeypatch.setattr(embed, "PIXELS", 1)
    for level, whole in zip(["low", "high"], together, strict=True):
        apart = embed.class_means(fed.ctx.net, state, shards, level)
        assert torch.equal(whole.count, apart.count)
        torch.testing.assert_close(whole.mean, apart.mean, rtol=0, atol=1e-6)
