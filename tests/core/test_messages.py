"""Communication: sizes by hand, and FedMPS's Table V from real runs."""

from functools import cache
from typing import NamedTuple

import pytest
import torch

from fedlib import papers, registry
from fedlib.core import nets
from fedlib.core.messages import Model, Size, as_model, sizes
from fedlib.core.protos import Protos, empty
from fedlib.runs import runner
from fedlib.runs.results import Result


class Message(NamedTuple):
    first: object


def size(value: object, clients: int | None = None) -> dict[str, Size]:
    return sizes(Message(value), clients)


def test_prototypes_count_present_classes_only():
    # two clients with 2 and 1 of 4 classes, 5 dimensions
    count = torch.tensor([[3, 0, 1, 0], [0, 0, 0, 7]])
    assert size(Protos(torch.ones(2, 4, 5), count), 2) == {"first": Size(15, 3)}
    assert size(Protos(torch.ones(4, 5), count[0])) == {"first": Size(10, 2)}
    assert size(empty(4, 5)) == {"first": Size(0, 0)}


def stacked(known: list[bool]) -> Model:
    count = len(known)
    return Model(
        {"weight": torch.ones(count, 2, 3), "bias": torch.ones(count, 2)},
        {"mean": torch.ones(count, 2), "steps": torch.ones(count, dtype=torch.int64)},
        torch.tensor(known),
    )


@pytest.mark.parametrize(("known", "sent"), [([1, 1, 1], 3), ([1, 0, 1], 2), ([0], 0)])
def test_a_model_counts_where_known_with_its_buffers_apart(known, sent):
    found = size(stacked([bool(k) for k in known]), len(known))
    assert found == {
        "first": Size(8 * sent, 0),
        "first_buffers": Size(2 * sent, sent),
    }


@pytest.mark.parametrize("known", [True, False])
def test_a_broadcast_model_counts_for_one_receiver(known):
    model = Model({"weight": torch.ones(2, 3)}, {}, torch.tensor(known))
    assert size(model) == {"first": Size(6 * known, 0)}


def test_a_nets_batchnorm_statistics_are_its_buffers():
    net = nets.build("fashion_cnn", (1, 28, 28), 10)
    state = {k: v[None] for k, v in net.init(torch.Generator()).items()}
    found = size(as_model(net, state), 1)
    convolutions = (25 * 16 + 16) + (25 * 16 * 32 + 32)
    linear = 32 * 7 * 7 * 10 + 10
    assert found["first"] == Size(convolutions + 2 * (16 + 32) + linear, 0)
    assert found["first_buffers"].floats == 2 * (16 + 32)


def test_plain_tensors_and_trees_of_them():
    class Both(NamedTuple):
        rates: torch.Tensor
        samples: torch.Tensor
        nested: dict

    message = Both(
        torch.ones(4, 3),
        torch.ones(4, dtype=torch.int64),
        {"a": torch.ones(2), "b": torch.ones(5, dtype=torch.bool)},
    )
    assert sizes(message, 4) == {
        "rates": Size(12, 0),
        "samples": Size(0, 4),
        "nested": Size(2, 5),
    }


@cache
def ran(method: str) -> Result:
    """Return a run with the settings of Table V."""
    return runner.run(papers.fedmps("noise", method, seed=1234, eval_every=2))


def table_v(method: str, number: int) -> dict[tuple[str, str], int]:
    """Return what the method's paper counts in a round, from a real run."""
    found = ran(method).payload().query("round == @number")
    floats = found.set_index(["direction", "field"])["floats"]
    return {
        (entry.direction, entry.field): int(floats[entry.direction, entry.field])
        // (ran(method).spec.clients if entry.once else 1)
        for entry in registry.method(method).counted
    }


# 59 = classes owned, summed over the 20 clients; LeNet has 62,006 weights and levels
# of 400 and 120 dimensions
@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("fedavg", {("up", "model"): 20 * 62_006}),
        ("fedprox", {("up", "model"): 20 * 62_006}),
        ("moon", {("up", "model"): 20 * 62_006}),
        ("fedntd", {("up", "model"): 20 * 62_006}),
        (
            "fedgkd",
            {("down", "model"): 20 * 62_006, ("down", "teacher"): 20 * 62_006},
        ),
        ("fedproto", {("up", "protos"): 59 * 120}),
        (
            "fedmps",
            {("up", "low"): 59 * 400, ("up", "high"): 59 * 120, ("down", "soft"): 100},
        ),
        ("local", {}),
    ],
)
def test_table_v(method, wanted):
    assert table_v(method, 2) == wanted
    printed = {"fedgkd": 2_480_240, "fedproto": 7_080, "fedmps": 30_780, "local": 0}
    assert sum(wanted.values()) == printed.get(method, 1_240_120)


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fedgkd", "fedmps"])
def test_nothing_is_broadcast_in_round_1_and_everything_to_each_in_round_2(method):
    found = ran(method).payload().query("direction == 'down'")
    first, second = (found.query("round == @t") for t in (1, 2))
    assert len(first) == len(second) > 0
    assert (first[["floats", "ints"]] == 0).all(axis=None)
    each = {
        "fedavg": {"model": 62_006},
        "fedproto": {"protos": 10 * 120},
        "fedgkd": {"model": 62_006, "teacher": 62_006},
        "fedmps": {"low": 10 * 400, "high": 10 * 120, "soft": 10 * 10},
    }[method]
    sent = dict(zip(second["field"], second["floats"], strict=True))
    assert sent == {name: 20 * count for name, count in each.items()}


def test_a_common_model_is_broadcast_in_round_1():
    spec = papers.fedmps(
        "digits", "fedavg", clients=3, rounds=1, hp={"common_init": True}
    )
    found = runner.run(spec).payload().query("direction == 'down'")
    net = nets.build("digits_cnn", (1, 8, 8), 10)
    weights = sum(p.numel() for p in net.module.parameters())
    assert found["floats"].tolist() == [3 * weights]
