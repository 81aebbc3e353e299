"""FedAvg with one more field in each message: class means beside the model.

What FedProc, FedHKD, FedGMKD, FedTGP and FedSA have in common. Models are sent,
averaged and read out as in ``shared_model.py``; a method says what is in its
prototypes, what its loss does with them and how the server merges them. Rows that hold
more than a mean embedding, as in FedHKD and FedGMKD, are in ``with_knowledge.py``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client
from fedlib.core import protos
from fedlib.core.averaging import start
from fedlib.core.embed import Collection, collect
from fedlib.core.messages import Model
from fedlib.core.method import Context, Counted, Loss, Models, Shards, Tree, Turn
from fedlib.core.net import Out
from fedlib.core.protos import Protos


class Down(NamedTuple):
    """To every client."""

    model: Model
    protos: Protos  # [C, d]


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model
    protos: Protos  # [K, C, d]
    samples: Tensor  # [K] int64, n_i


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    protos: Protos  # [C, d]


def init(ctx: Context, extra: int = 0) -> tuple[Server, Client]:
    """Draw the first weights as FedAvg; no row of d + ``extra`` numbers is known."""
    first, mine = shared_model.init(ctx)
    _, size = ctx.net.embedding_sizes()
    return Server(first.model, protos.empty(ctx.classes, size + extra)), mine


def broadcast(ctx: Context, server: Tree) -> Down:
    """Send the model, as FedAvg, and the prototypes of a server that has both."""
    return Down(shared_model.sent(ctx, server.model), server.protos)


def client_with(
    ctx: Context,
    down: Tree,
    mine: Client,
    shards: Shards,
    loss: Loss,
    *,
    level: str = "high",
    how: Collection = "eval",
    of: Callable[[Out], Tensor] | None = None,
    **options: Any,
) -> Turn[Client, Up]:
    """Train from the broadcast model by any loss; send the model and the class means.

    Parameters
    ----------
    down : tree
        A record with ``model``.
    level, how, of
        What the class means are of, and when they are taken: as in ``embed.collect``.
    **options
        As in ``Context.train``.
    """
    trained = ctx.train(start(down.model, mine.state), shards, loss, **options)
    local = collect(ctx.net, trained, shards, level, how, of=of)
    up = Up(shared_model.uploaded(ctx, trained.state), local, shards.sizes())
    return Client(trained.state), up, trained.terms


def models(
    ctx: Context, server: Tree, mine: Client, means: Protos | None = None
) -> Models:
    """Return FedAvg's models, and what the nearest-prototype rules take.

    Parameters
    ----------
    server : tree
        A record with ``model`` and ``protos``.
    means : Protos, optional
        In place of the server's prototypes.
    """
    shared = shared_model.models(ctx, server, mine)
    return shared._replace(protos=server.protos if means is None else means)


# What a method replaces from: its name, source, hp, client and merge at least
BASE = shared_model.BASE._replace(
    init=init,
    broadcast=broadcast,
    models=models,
    counted=(Counted("up", "model"), Counted("up", "protos")),
    per_class=("protos",),
)
