"""A toy federation whose embeddings can be looked at: three clients, a plane.

Four digits, three clients with two or three classes each, and a small net with
embeddings of two numbers, so that what a method does to them can be drawn as it is.
"""

from itertools import islice
from typing import NamedTuple

import torch
from torch import nn

from fedlib import registry
from fedlib.data import load
from fedlib.federation import Federation
from fedlib.layers import Conv2d, Linear, MaxPool2d
from fedlib.local import Shards, Training
from fedlib.method import Context, Round
from fedlib.nets import Net, TwoLevel
from fedlib.partition import Partition
from fedlib.readouts import Models, Rule
from fedlib.spec import Spec

CLASSES = 4  # the digits 0 to 3
OWNED = ((0, 1), (1, 2), (0, 2, 3))  # classes of each client; class 3 has one owner
PER_CLASS = 30  # training samples of each class of a client
TRAINING = Training(optimiser="adam", learning_rate=0.01, batch_size=10)


class Played(NamedTuple):
    """A method after some rounds on the toy federation."""

    federation: Federation
    last: Round
    models: Models  # what is evaluated
    rule: Rule
    accuracy: float  # by the method's own rule, mean over clients' own test samples


def net(*, unit: bool = False) -> Net:
    """Return the net: two convolutions, two embedding numbers, one linear head."""
    low = nn.Sequential(
        *(Conv2d(1, 8, 3, padding=1), nn.ReLU(), MaxPool2d()),
        *(Conv2d(8, 16, 3, padding=1), nn.ReLU(), MaxPool2d()),
    )
    high = nn.Sequential(nn.Flatten(), Linear(64, 2))
    head = nn.Sequential(Linear(2, CLASSES))
    return Net("plane", TwoLevel(low, high, head, unit=unit), (1, 8, 8), CLASSES)


def shards() -> tuple[Shards, Shards]:
    """Return training and test samples of the three clients, all disjoint."""
    data = load("digits")
    index, tests = [], []
    used = [0] * CLASSES
    for mine in OWNED:
        train, test = [], []
        for c in mine:
            pool = torch.nonzero(data.train_y == c).flatten()
            train.append(pool[used[c] : used[c] + PER_CLASS])
            used[c] += PER_CLASS
            test.append(torch.nonzero(data.test_y == c).flatten())
        index.append(torch.cat(train))
        tests.append(torch.cat(test))
    ids = list(range(len(OWNED)))
    return (
        Shards(data.train_x, data.train_y, index, ids, data.mean, data.std),
        Shards(data.test_x, data.test_y, tests, ids, data.mean, data.std),
    )


def federation(name: str, **hp: object) -> Federation:
    """Return a method's toy federation, ready to step.

    Parameters
    ----------
    name : str
        A registered method.
    **hp
        Hyper-parameters in place of the method's defaults.
    """
    method = registry.method(name)
    train, test = shards()
    ctx = Context(
        hp=method.hp(**hp),
        net=net(unit=name == "fedmps"),  # made for unit embeddings
        training=TRAINING,
        classes=CLASSES,
        clients=len(OWNED),
        seed=0,
    )
    owns = train.label_counts(CLASSES) > 0
    partition = Partition(train.index, test.index, owns, ())
    spec = Spec.of(dataset="digits", net="plane", method=name, clients=len(OWNED))
    return Federation(spec, method, ctx, load("digits"), partition, train, test, None)


def play(name: str, count: int = 12, **hp: object) -> Played:
    """Run a method for ``count`` rounds on the toy federation and evaluate it."""
    fed = federation(name, **hp)
    last = next(islice(fed.rounds(), count - 1, None))
    rule = fed.method.rule(fed.ctx.hp)
    found = fed.evaluate(last)
    right = found["accuracy/" + "/".join(rule)] / found["samples"]
    return Played(fed, last, fed.models(last)[0], rule, float(right.mean()))
