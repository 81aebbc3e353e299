"""A body that all clients share, under layers that never leave a client.

What FedPer and FedRep have in common: which layers are personal, what travels, and
which models can be evaluated. The body is averaged as in ``shared_model.py``.
"""

from typing import Literal

from torch import nn

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client, Server
from fedlib.core.averaging import start
from fedlib.core.method import Context, Model, Models, Rule
from fedlib.core.net import Net

Personal = Literal["head", "linear", "nothing"]


class HP(shared_model.HP):
    """FedAvg's hyper-parameters, and which layers are personal."""

    personal: Personal = "head"  # the layers that never leave a client


def own_names(net: Net, personal: Personal) -> frozenset[str]:
    """Return the names in a net's state that stay with each client."""
    layers = dict(net.module.named_modules())

    def stays(name: str) -> bool:
        linear = isinstance(layers[name.rpartition(".")[0]], nn.Linear)
        return name.startswith("head.") or (personal == "linear" and linear)

    if personal == "nothing":
        return frozenset()
    return frozenset(name for name in net.init_names() if stays(name))


def body(ctx: Context, model: Model) -> Model:
    """Return a message without the personal layers."""
    own = own_names(ctx.net, ctx.hp.personal)
    params, buffers = (
        {k: v for k, v in part.items() if k not in own} for part in model[:2]
    )
    return Model(params, buffers, model.known)


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the clients' weights; the server keeps a body."""
    server, mine = shared_model.init(ctx)
    return Server(body(ctx, server.model)), mine


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the clients' models after training, and under the next broadcast."""
    received = start(shared_model.sent(ctx, server.model), mine.state)
    return Models(mine.state, None, None, received=received)


# What a method replaces from: its name, source and client at least
BASE = shared_model.BASE._replace(
    hp=HP,
    init=init,
    models=models,
    predict=Rule("received", "head_all"),
    forgets=lambda hp: False,
)
