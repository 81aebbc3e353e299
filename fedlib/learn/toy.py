"""A toy federation whose embeddings can be looked at: three clients, a plane.

Four digits, three clients with two or three classes each, and a small net with
embeddings of two numbers, so that what a method does to them can be drawn as it is.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from fedlib import registry
from fedlib.core.layers import Conv2d, Linear, MaxPool2d
from fedlib.core.log import Log
from fedlib.core.messages import Size
from fedlib.core.method import Context, Round
from fedlib.core.net import Net, TwoLevel
from fedlib.core.readouts import Models, Rule
from fedlib.core.shards import Shards
from fedlib.core.training import Training
from fedlib.core.tree import flatten
from fedlib.data import load
from fedlib.partitions import Partition
from fedlib.runs.federation import Federation
from fedlib.runs.spec import Spec

CLASSES = 4  # the digits 0 to 3
OWNED = ((0, 1), (1, 2), (0, 2, 3))  # classes of each client; class 3 has one owner
PER_CLASS = 30  # training samples of each class of a client
TRAINING = Training(optimiser="adam", learning_rate=0.01, batch_size=10)

# method -> settings for so small a problem; what servers do many steps of, they do few
SMALL: dict[str, dict] = {
    "gfpl": {
        "first_exchange": 3,
        "exchange_every": 3,
        "components": 2,
        "projection_size": 8,
    },
    "fedpa": {"generator_steps": 10},
    "fedhpro": {"hyper_steps": 10},
    "fedpg": {
        "generator_steps": 10,
        "generator_batch_size": 16,
        "virtual_per_class": 8,
        "noise_size": 16,
    },
    "fedgen": {"generator_steps": 10},
    "vhl": {"virtual_per_class": 20, "v_batch_size": 16, "width": 8},
}


class Played(NamedTuple):
    """A method after some rounds on the toy federation."""

    federation: Federation
    last: Round
    sent: tuple[dict[str, Size], ...]  # of every round
    final: dict[str, Size]  # sent once more, to finalise the model
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


def federation(name: str, *, seed: int = 0, **hp: object) -> Federation:
    """Return a method's toy federation, ready to step.

    Parameters
    ----------
    name : str
        A registered method.
    seed : int
        Of the first weights, the batches and the noise; clients hold the same images.
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
        seed=seed,
    )
    owns = train.label_counts(CLASSES) > 0
    partition = Partition(train.index, test.index, owns, ())
    spec = Spec.of(dataset="digits", net="plane", method=name, clients=len(OWNED))
    return Federation(spec, method, ctx, load("digits"), partition, train, test, None)


def play(name: str, count: int = 12, *, seed: int = 0, **hp: object) -> Played:
    """Run a method for ``count`` rounds on the toy federation and evaluate it.

    Parameters
    ----------
    name : str
        A registered method.
    count : int >= 1
        Rounds.
    seed : int
        Of the first weights, the batches and the noise.
    **hp
        Hyper-parameters in place of those of ``SMALL`` and the method's defaults.
    """
    return film(name, [count], seed=seed, **hp)[0]


def film(
    name: str, shown: Sequence[int], *, seed: int = 0, **hp: object
) -> list[Played]:
    """Run a method once, and return it as it was after each of some rounds.

    Parameters
    ----------
    shown : sequence of int >= 1
        Numbers of rounds, ascending.
    name, seed, **hp
        As in ``play``.
    """
    if not shown or min(shown) < 1 or sorted({*shown}) != [*shown]:
        got = f"got {[*shown]}, expected ascending numbers from 1"
        raise ValueError(f"count, shown: {got}")
    fed = federation(name, seed=seed, **SMALL.get(name, {}) | hp)
    rounds = list(islice(fed.rounds(), shown[-1]))
    return [_evaluated(fed, rounds[:number]) for number in shown]


def _evaluated(fed: Federation, played: Sequence[Round]) -> Played:
    last, rule = played[-1], fed.method.rule(fed.ctx.hp)
    log = Log.of(fed.evaluate(last))
    right = log.accuracy["/".join(rule)] / log.samples
    models, final = fed.models(last)
    sent = tuple(after.sent for after in played)
    return Played(fed, last, sent, final, models, rule, float(right.mean()))


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _traffic(played: Played, direction: str) -> str:
    """Return what one client sends or receives, field by field."""
    clients, count = len(OWNED), len(played.sent)
    seen: dict[str, list[Size]] = defaultdict(list)
    for sent in played.sent:
        for name, size in sent.items():
            if name.startswith(f"{direction}/") and any(size):
                seen[name].append(size)
    parts = []
    for name, messages in seen.items():
        floats, ints = (
            sum(n) / len(messages) / clients for n in zip(*messages, strict=True)
        )
        text = f"{_number(floats)}" if floats else f"{_number(ints)} int"
        when = f" ({len(messages)} of {count})" if len(messages) < count else ""
        parts.append(f"{name.partition('/')[2]} {text}{when}")
    if direction == "up":
        for name, size in played.final.items():
            parts.append(f"{name} {_number(size.floats / clients)} (once)")
    return ", ".join(parts)


def kept(played: Played) -> dict[str, int]:
    """Return the weights of a client that no broadcast replaces, by part of the net."""
    sent, down = played.last.sent, played.last.down._asdict()
    names = {
        leaf.rpartition("/")[2]
        for field, value in down.items()
        if any(sent.get(f"down/{field}", ()))
        for leaf in flatten(value)
    }
    sizes: dict[str, int] = defaultdict(int)
    for name, weight in played.last.mine.state.items():
        if name not in names:
            sizes[name.partition(".")[0]] += weight[0].numel()
    return dict(sizes)


def travels(played: Mapping[str, Played]) -> pd.DataFrame:
    """Return one row per method, read off its messages.

    Returns
    -------
    DataFrame
        method (as printed); up, down (each field with its floats per client, or its
        integers where it has no others, and in how many rounds it travels where these
        are not all); stays (weights that no broadcast replaces, by part of the net);
        floats (per client and round, both directions, mean of all rounds).
    """
    rows = []
    for name, one in played.items():
        every = [size.floats for sent in one.sent for size in sent.values()]
        every += [size.floats for size in one.final.values()]
        rows.append(
            {
                "method": registry.title(name),
                "up": _traffic(one, "up"),
                "down": _traffic(one, "down"),
                "stays": ", ".join(f"{k} {v}" for k, v in kept(one).items()),
                "floats": sum(every) / len(OWNED) / len(one.sent),
            }
        )
    return pd.DataFrame(rows)
