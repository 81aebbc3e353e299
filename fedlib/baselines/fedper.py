r"""FedPer: a body that all clients share, and a head of each client's own.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019
(arXiv 1912.00818).

Symbols
    w_B   | server.model | [...]    | base layers: the global body
    w_P_i | mine.state   | [K, ...] | client i's personal layers, its head; with what
                                      it made of the body
    n_i   | up.samples   | [K]      | client i's number of training samples

Box
    1. broadcast: send the body.
    2. client: put its own head on the body, train both together by cross-entropy, keep
       the head, send the body.
    3. merge: the body is the weighted mean of the clients' bodies.

Readings
    What is personal: ``personal="head"``, the net's head; ``"linear"``, every linear
    layer, as FedProto's released code keeps all layers that it calls "fc". In nets of a
    few convolutions that leaves only these to share, in a ResNet both are one. GFPL's
    printed traffic is that of "linear". ``"nothing"`` is FedAvg, as a control.
    BatchNorm statistics belong to the layer they stand in; ``buffers`` as in FedAvg.
    Prediction: the global body under the client's own head of its last training, that
    is before the client trains again.
    Weights, first weights: as in FedAvg; FedProto's released code, which GFPL's table
    builds on, weighs all clients alike.
"""

from typing import Literal

from torch import nn

from fedlib.averaging import start
from fedlib.baselines import fedavg
from fedlib.baselines.fedavg import Client, Down, Server, Up
from fedlib.method import Context, Model, Models, Rule, Shards, Turn
from fedlib.nets import Net

Personal = Literal["head", "linear", "nothing"]


class HP(fedavg.HP):
    """Hyper-parameters of FedPer."""

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
    server, mine = fedavg.init(ctx)
    return Server(body(ctx, server.model)), mine


def client(ctx: Context, down: Down, mine: Client, shards: Shards) -> Turn[Client, Up]:
    """Box 2; what the broadcast does not hold is the client's own."""
    mine, up, terms = fedavg.client(ctx, down, mine, shards)
    return mine, up._replace(model=body(ctx, up.model)), terms


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the clients' models after training, and under the next broadcast."""
    received = start(fedavg.sent(ctx, server.model), mine.state)
    return Models(mine.state, None, None, received=received)


METHOD = fedavg.METHOD._replace(
    name="fedper",
    source="Arivazhagan et al., 2019",
    hp=HP,
    init=init,
    client=client,
    models=models,
    predict=Rule("received", "head_all"),
)
