r"""Local: every client trains alone; nothing travels.

Symbols
    w_i | mine.state | [K, ...] | client i's weights

Box
    1. client: one or more epochs of cross-entropy on the client's own data.

Readings
    FedMPS's Table VII, row 1 (all weights 0) is this method read out by the nearest
    global prototype; the control readouts of every run include that rule.
"""

from typing import NamedTuple

from fedlib.core.hyper import HyperParameters
from fedlib.core.losses import cross_entropy
from fedlib.core.method import (
    Context,
    Logged,
    Losses,
    Method,
    Models,
    Rule,
    Shards,
    Turn,
)
from fedlib.core.net import State


class HP(HyperParameters):
    """Hyper-parameters of Local."""

    common_init: bool = False  # all clients start from the same weights


class Nothing(NamedTuple):
    """An empty message, and an empty server."""


class Client(NamedTuple):
    """What a client keeps between rounds."""

    state: State  # [K, ...]


def init(ctx: Context[HP]) -> tuple[Nothing, Client]:
    """Draw the clients' weights."""
    return Nothing(), Client(ctx.init_clients(ctx.hp.common_init))


def broadcast(ctx: Context, server: Nothing) -> Nothing:
    """Send nothing."""
    return Nothing()


def client(
    ctx: Context, down: Nothing, mine: Client, shards: Shards
) -> Turn[Client, Nothing]:
    """Train on the client's own data."""

    def loss(state, batch):
        supervised = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        return Losses(supervised, {"supervised": supervised}, {})

    trained = ctx.train(mine.state, shards, loss)
    return Client(trained.state), Nothing(), trained.terms


def merge(ctx: Context, server: Nothing, up: Nothing) -> tuple[Nothing, Logged]:
    """Learn nothing."""
    return server, {}


def models(ctx: Context, server: Nothing, mine: Client) -> Models:
    """Return the clients' own models."""
    return Models(mine.state, None, None)


METHOD = Method(
    name="local",
    source="no communication",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("personal", "head_all"),
)
