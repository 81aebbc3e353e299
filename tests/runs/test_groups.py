"""Domains and users through the federation; what images become before they are used."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from fedlib import data
from fedlib.core.augment import Augment, apply_augment, draw_augment
from fedlib.core.rng import generator
from fedlib.data.sources import always
from fedlib.data.types import Block, Entry, Notes, Raw
from fedlib.papers.study import Study
from fedlib.runs import runner
from fedlib.runs.federation import federation
from fedlib.runs.spec import SettingError, Spec
from tests.on_disk import pixels

DOMAINS = ("ink", "neon", "paper")
SIZES = {"train": (60, 36, 90), "test": (20, 12, 30)}


def _blocks(split: str):
    for name, size in zip(DOMAINS, SIZES[split], strict=True):
        x = torch.from_numpy(pixels(size, 1, 8, 8, name=f"{split} {name}"))
        yield Block(x, [i % 3 for i in range(size)], [name] * size)


def _read(paths: list, notes: Notes) -> Raw:
    return Raw(_blocks("train"), _blocks("test"))


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Register a data set with three domains."""
    entry = Entry(
        title="places",
        shape=(1, 8, 8),
        find=always,
        read=_read,
        mean=(0.5,),
        std=(0.25,),
        place="is generated",
        licence="MIT, like this project",
    )
    monkeypatch.setitem(data.DATASETS, "places", entry)


def spec(**changes) -> Spec:
    settings = {
        "dataset": "places",
        "net": "digits_linear",
        "method": "fedavg",
        "clients": 4,
        "rounds": 2,
        "partition": {
            "scheme": "domain_skew",
            "per_domain": [1, 2, 1],
            "share": 0.25,
            "every_class": False,
        },
    }
    return Spec.of(**(settings | changes))


def test_clients_of_domains():
    fed = federation(spec())
    groups = fed.dataset.groups
    assert groups is not None
    assert groups.names == DOMAINS
    held = [groups.train[i].unique().tolist() for i in fed.partition.train]
    tested = [groups.test[i].unique().tolist() for i in fed.partition.test]
    assert held == tested == [[0], [1], [1], [2]]
    assert fed.train.sizes().tolist() == [15, 9, 9, 22]


def test_clients_of_users():
    scheme = {"scheme": "users", "users_per_client": 1}
    fed = federation(spec(clients=3, partition=scheme))
    assert sorted(fed.train.sizes().tolist()) == [36, 60, 90]
    assert sorted(fed.test.sizes().tolist()) == [12, 20, 30]


@pytest.mark.parametrize("scheme", ["domain_skew", "users"])
def test_a_data_set_without_groups_is_refused(scheme):
    with pytest.raises(ValueError, match=f"partition: {scheme} needs the domain or"):
        federation(spec(dataset="digits", partition={"scheme": scheme}, clients=10))
    with pytest.raises(ValueError, match="test: got 'groups', which digits does not"):
        federation(spec(dataset="digits", partition={"scheme": "lda"}, test="groups"))


def test_a_long_tail_keeps_the_groups_of_its_samples():
    fed = federation(spec(imbalance=4.0))
    groups = fed.dataset.groups
    assert groups is not None
    held = [groups.train[i].unique().tolist() for i in fed.partition.train]
    assert held == [[0], [1], [1], [2]]


def test_the_accuracy_of_every_domain_by_hand():
    fed = federation(spec(test="groups"))
    after = next(fed.rounds())
    found = fed.evaluate(after)
    whole, net = fed.dataset, fed.ctx.net
    x = (whole.test_x / 255 - 0.5) / 0.25
    right = net(after.server.model.state, x).logits.argmax(1) == whole.test_y
    counts = [int(part.sum()) for part in right.split(SIZES["test"])]
    assert found["full/global/head_all"].tolist() == counts
    assert found["full_samples"].tolist() == list(SIZES["test"])


def test_a_result_has_domains_and_their_mean():
    result = runner.run(spec(test="groups"))
    each = result.accuracy("global", "head_all", "groups")
    assert each.shape == (2, 3)
    sizes = torch.tensor(SIZES["test"], dtype=torch.float64)
    total = result.accuracy("global", "head_all", "full")
    torch.testing.assert_close(total[:, 0], (each * sizes).sum(1) / sizes.sum())
    rows = result.summary()
    assert set(rows.data) == {"clients", "full", "groups"}
    marked = rows[rows.is_paper_rule].iloc[0]
    assert (marked.data, marked["last"]) == ("groups", float(each[-1].mean()))
    assert marked["std_last"] == float(each[-1].std(correction=0))


def test_a_table_has_a_block_per_domain_in_the_best_round_of_their_average():
    result = runner.run(spec(test="groups"))
    cell = {"dataset": "places", "method": "fedavg", "setting": "", "value": None}
    found = Study("fedhpro", pd.DataFrame([cell | {"seed": 0}]), [result])
    paper = pd.DataFrame(
        {"dataset": "places", "domain": ["average"], "method": "fedavg"}
    )
    table = found.per_domain(paper.assign(mean=40.0))
    each = 100 * result.accuracy("global", "head_all", "groups")
    best = int(each.mean(1).argmax())
    names = [*DOMAINS, "average"]
    assert table["domain"].tolist() == names
    wanted = [*each[best].tolist(), float(each[best].mean())]
    assert table["mean"].tolist() == pytest.approx(wanted)
    last = [*each[-1].tolist(), float(each[-1].mean())]
    assert table["last"].tolist() == pytest.approx(last)
    assert table["gap"].notna().tolist() == [False] * 3 + [True]


def test_a_result_without_groups_says_what_it_has():
    result = runner.run(spec(test="full", rounds=1))
    assert result.accuracy("global", "head_all", "full").shape == (1, 1)
    with pytest.raises(ValueError, match="no global/head_all on groups, recorded are"):
        result.accuracy("global", "head_all", "groups")


# Size and crop


def test_images_are_resized_once():
    transform = {"side": 24, "padding": 1, "flip": True}
    fed = federation(spec(transform=transform, net="mnist_cnn_plain", test="full"))
    assert fed.ctx.net.shape == (1, 24, 24)
    assert fed.train.x.shape[1:] == fed.test.x.shape[1:] == (1, 24, 24)
    assert fed.train.x.dtype == torch.uint8  # it is cropped and flipped later
    assert fed.full is not None
    assert fed.full.x.shape == (62, 1, 24, 24)
    assert fed.dataset.train_x.shape[1:] == (1, 8, 8)
    next(fed.rounds())


def test_resizing_is_bilinear_and_antialiased():
    fed = federation(spec(transform={"side": 5}, net="fashion_cnn"))
    x = fed.dataset.test_x[fed.partition.test[2]].float()
    wanted = F.interpolate(x, (5, 5), mode="bilinear", antialias=True)
    found = fed.test.x[fed.test.index[2]] * (0.25 * 255) + 0.5 * 255
    assert (found - wanted).abs().max() <= 1.51  # rounded, and so are torch's weights


def test_test_images_are_cropped_once_at_random():
    transform = {"padding": 2, "flip": True, "crop_test": True}
    fed, again = (federation(spec(transform=transform, test="full")) for _ in "ab")
    draws = draw_augment(Augment(2, False), 62, generator(1234, "test crop"))
    x = apply_augment(fed.dataset.test_x, draws, 2)
    assert fed.full is not None
    torch.testing.assert_close(fed.full.x, (x / 255 - 0.5) / 0.25)
    mine = fed.partition.test[3]
    torch.testing.assert_close(fed.test.x[fed.test.index[3]], fed.full.x[mine])
    assert torch.equal(fed.test.x, again.test.x)
    assert len(draws.unique(dim=0)) > 15
    assert draws[:, 2].unique().tolist() == [0]  # never flipped
    plain = federation(spec(transform=transform | {"crop_test": False}))
    assert not torch.equal(plain.test.x, fed.test.x)
    other = federation(spec(transform=transform, seed=5, partition_seed=1234))
    assert not torch.equal(other.test.x, fed.test.x)


def test_a_crop_needs_padding():
    with pytest.raises(SettingError, match="crop_test: got True with padding 0"):
        spec(transform={"crop_test": True})
