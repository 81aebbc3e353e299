"""``min_count``: clients keep back what few of their samples made."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from fedlib import registry
from fedlib.core.messages import sizes
from fedlib.core.method import rounds
from fedlib.core.protos import Protos
from fedlib.core.training import Training
from fedlib.core.tree import flatten
from fedlib.papers import study
from fedlib.runs.federation import federation
from fedlib.runs.spec import SettingError, Spec
from fedlib.runs.withhold import withheld, withhold
from tests.conftest import toy_context, toy_shards
from tests.methods.test_contracts import (
    CASES,
    EXACT,
    SIZES,
    Case,
    assert_same,
    every_case,
    straight,
    toy,
)

# They weigh models by class counts, so that something has to be left
NEEDS_ONE = {"fedpa", "fedgen", "fedgmkd"}
COUNTED = [case for case in CASES if registry.method(case.name).per_class]
counted = pytest.mark.parametrize("case", COUNTED, ids=str)


def played(case: Case, min_count: int, count: int = 2):
    method = withhold(registry.method(case.name), min_count)
    stepping = rounds(method, toy(case, len(SIZES)), toy_shards(SIZES))
    return list(islice(stepping, count))


@every_case
def test_a_method_declares_every_record_with_class_counts_that_it_uploads(case):
    method, shards = registry.method(case.name), toy_shards(SIZES)
    ctx = replace(toy(case, 4), round=1)
    server, mine = method.init(ctx)
    ups = [method.client(ctx, method.broadcast(ctx, server), mine, shards)[1]]
    if method.survey is not None:
        ups.append(method.survey(ctx, server, mine, shards))
    sent = {name: part for up in ups for name, part in up._asdict().items()}
    found = {n for n, part in sent.items() if "count" in getattr(part, "_fields", ())}
    assert found == set(method.per_class)


def test_which_methods_send_something_per_class():
    assert not registry.method("fedavg").per_class
    assert registry.method("fedmps").per_class == ("low", "high")
    assert registry.method("ccvr").per_class == ("gaussians",)


def test_what_a_method_does_not_declare_is_refused_whatever_its_annotations_say():
    def client(ctx, down, mine, shards):
        raise NotImplementedError

    bare = registry.method("fedproto")._replace(client=client)
    assert withhold(bare, 2).client is not client
    with pytest.raises(
        ValueError, match="min_count: got 2 for fedproto, which uploads"
    ):
        withhold(bare._replace(per_class=()), 2)


@counted
def test_withholding_classes_of_less_than_one_sample_changes_no_bit(case):
    plain, kept = straight(case)[1], played(case, 1)[1]
    assert_same(plain.server, kept.server, **EXACT)
    assert_same(plain.mine, kept.mine, **EXACT)
    assert plain.sent == kept.sent


@counted
def test_above_every_count_nothing_of_a_class_is_sent(case):
    """The run goes on; where models are weighed by class counts it is refused."""
    if case.name in NEEDS_ONE:
        with pytest.raises(ValueError, match="min_count: got 100, expected at most 9:"):
            played(case, 100)
        return
    method = withhold(registry.method(case.name), 100)
    last = played(case, 100)[-1]
    assert last.number == 2
    sent = {name.removeprefix("up/"): size for name, size in last.sent.items()}
    ctx = toy(case, 4)
    if method.survey is not None and method.finalise is not None:
        up = method.survey(ctx, last.server, last.mine, toy_shards(SIZES))
        sent |= sizes(up, 4)
        server = method.finalise(ctx, last.server, up)
        assert all(v.isfinite().all() for v in flatten(server).values())
    for name in method.per_class:
        assert sent[name] == (0, 0), name
    for value in flatten(last.server).values():
        assert torch.isfinite(value.float()).all()


@counted
def test_classes_of_enough_samples_are_sent_as_ever_and_others_are_empty(case):
    """Every leaf of the upload but the models: rows kept or 0, by the data's labels."""
    method, shards = registry.method(case.name), toy_shards(SIZES)
    ctx = replace(toy(case, 4), round=1)
    server, mine = method.init(ctx)
    down = method.broadcast(ctx, server)
    _, plain, _ = method.client(ctx, down, mine, shards)
    cautious = withhold(method, 5)
    _, up, _ = cautious.client(ctx, down, mine, shards)
    if method.survey is not None and cautious.survey is not None:
        plain = method.survey(ctx, server, mine, shards)
        up = cautious.survey(ctx, server, mine, shards)
    labels = torch.stack(
        [torch.bincount(shards.y[i], minlength=4) for i in shards.index]
    )
    assert 0 < (labels < 5).sum() < labels.numel()
    for name, value in flatten(plain).items():
        found = flatten(up)[name]
        if name.startswith("model") or value.shape[:2] != (4, 4):
            assert torch.equal(found, value), name
            continue
        record, _, leaf = name.rpartition("/")
        few = labels < 5
        if leaf != "seen" and f"{record}/count" in flatten(plain):
            few = few | (flatten(plain)[f"{record}/count"] < 5)
        assert not found[few].any(), name
        assert torch.equal(found[~few], value[~few]), name


def test_an_upload_by_hand():
    """Two clients, three classes, at least two samples."""
    mean = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]]])
    up = Protos(mean, torch.tensor([[1, 2, 9], [3, 0, 1]]))
    owned = torch.tensor([[1, 2, 2], [3, 0, 5]])
    found = withheld(up, owned, 2)
    assert found.mean[..., 0].tolist() == [[0, 2, 3], [4, 0, 0]]
    assert found.count.tolist() == [[0, 2, 9], [3, 0, 0]]
    # nine passes over one sample are one sample
    found = withheld(up, torch.tensor([[1, 2, 1], [3, 0, 5]]), 2)
    assert found.count.tolist() == [[0, 2, 0], [3, 0, 0]]


@pytest.mark.parametrize("name", ["fedproto", "fedhpro", "fedtgp", "fedgmkd", "ccvr"])
def test_a_client_sends_what_it_would_without_the_samples_of_small_classes(name):
    """Class means at fixed weights: take the samples away, or keep them back."""
    method, shards = registry.method(name), toy_shards(SIZES)
    training = Training(learning_rate=1e-12, drop_last=False)
    ctx = replace(toy_context(method, 4, training=training), round=1)
    server, mine = method.init(ctx)
    down = method.broadcast(ctx, server)
    least = 5
    thinned = []
    for rows in shards.index:
        count = torch.bincount(shards.y[rows], minlength=4)
        thinned.append(rows[count[shards.y[rows]] >= least])
    assert [len(i) for i in thinned] != SIZES
    assert any(len(i) > 0 for i in thinned)
    less = shards._replace(index=thinned)

    def sent(method, shards):
        if method.survey is not None:
            return method.survey(ctx, server, mine, shards)
        return method.client(ctx, down, mine, shards)[1]

    kept, without = sent(withhold(method, least), shards), sent(method, less)
    for field in method.per_class:
        assert_same(getattr(kept, field), getattr(without, field), rtol=1e-4, atol=1e-5)


def test_prototypes_of_no_class_leave_local_training():
    """FedProto whose clients keep all back is local training, bit for bit."""
    last = played(Case("fedproto", {}), 100, 3)[-1]
    alone = list(
        islice(
            rounds(
                registry.method("local"), toy(Case("local", {}), 4), toy_shards(SIZES)
            ),
            3,
        )
    )
    assert_same(last.mine.state, alone[-1].mine.state, **EXACT)


@pytest.mark.parametrize(
    "name", [m for m in registry.METHODS if not registry.method(m).per_class]
)
def test_methods_without_class_counts_refuse(name):
    settings = {"dataset": "digits", "net": "digits_linear", "method": name}
    with pytest.raises(SettingError, match=f"min_count: got 2 for {name}, which"):
        Spec.of(**settings, min_count=2)
    assert Spec.of(**settings).min_count == 1


def test_a_spec_sets_it_and_a_study_sweeps_it():
    p = {
        "dataset": "digits",
        "runs": ["fedproto", "fedproto:min_count:3"],
        "sweeps": {"min_count": [1, 4]},
        "seed": 0,
        "rounds": 1,
        "clients": 3,
    }
    specs = study.grid("fedmps", p).specs
    assert [s.min_count for s in specs] == [1, 3, 4, 3]
    with pytest.raises(SettingError, match="min_count: got 0"):
        study.grid("fedmps", p | {"sweeps": {"min_count": [0]}})
    for spec in specs[:1] + specs[2:3]:
        fed = federation(spec.model_copy(update={"min_count": spec.min_count}))
        count = next(fed.rounds()).up.protos.count
        owned = fed.train.label_counts(10)
        assert torch.equal(count > 0, owned >= spec.min_count)
