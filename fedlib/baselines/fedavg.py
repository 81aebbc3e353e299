r"""FedAvg: the mean of the clients' weights.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017.

Symbols
    w   | server.model | [...]    | the global model
    w_i | mine.state   | [K, ...] | client i's model after its local training
    n_i | up.samples   | [K]      | client i's number of training samples

Box
    1. broadcast: send w.
    2. client: start from w, train by cross-entropy, send w_i.
    3. merge: w = weighted mean of the w_i.

Readings
    Weights: by samples (McMahan et al., Algorithm 1) or ``weighting="uniform"``
    (FedMPS's released code).
    First weights: FedMPS's released code draws each client's own, so that in round 1
    nothing is sent and models of different draws are averaged; ``common_init=True``
    gives all clients one draw.
    BatchNorm statistics are averaged like weights; ``buffers="local"`` neither sends
    nor averages them (FedPA's released code), "first" takes the first client's.
    Integer counters take the maximum.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlib.averaging import Buffers, client_weights, mean_model, start
from fedlib.hyper import HyperParameters
from fedlib.losses import cross_entropy
from fedlib.messages import Model, as_model
from fedlib.method import Context, Counted, Logged, Loss, Losses, Method, Shards, Turn
from fedlib.nets import State
from fedlib.protos import Weighting
from fedlib.readouts import Models, Rule
from fedlib.tree import Tree, tree_map


class Sharing(HyperParameters):
    """How one model is drawn and sent, for methods that weigh its mean themselves."""

    common_init: bool = True
    buffers: Buffers = "average"


class HP(Sharing):
    """Hyper-parameters of FedAvg."""

    weighting: Weighting = "samples"


class Down(NamedTuple):
    """To every client."""

    model: Model  # w


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # w_i
    samples: Tensor  # [K] int64, n_i


class Server(NamedTuple):
    """What the server keeps."""

    model: Model


class Client(NamedTuple):
    """What a client keeps between rounds; only evaluation reads it after round 1."""

    state: State  # [K, ...], w_i


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the clients' weights; the server has a model once clients share one draw."""
    mine = Client(ctx.init_clients(ctx.hp.common_init))
    first = tree_map(lambda x: x[0], as_model(ctx.net, mine.state))
    return Server(first._replace(known=torch.tensor(ctx.hp.common_init))), mine


def sent(ctx: Context, model: Model) -> Model:
    """Return what the server sends of a model: statistics unless they stay local."""
    return model._replace(buffers={}) if ctx.hp.buffers == "local" else model


def uploaded(ctx: Context, state: State) -> Model:
    """Return what clients send of their states ``[K, ...]``, likewise."""
    return as_model(ctx.net, state, buffers=ctx.hp.buffers != "local")


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    return Down(sent(ctx, server.model))


def client_with(
    ctx: Context, down: Tree, mine: Tree, shards: Shards, loss: Loss, **options: Any
) -> Turn[Client, Up]:
    """Box 2 with any loss and the options of ``ctx.train``; baselines build on it.

    Of ``down`` and ``mine``, which may hold more, ``model`` and ``state`` are read.
    """
    trained = ctx.train(start(down.model, mine.state), shards, loss, **options)
    up = Up(uploaded(ctx, trained.state), shards.sizes())
    return Client(trained.state), up, trained.terms


def client(ctx: Context, down: Down, mine: Client, shards: Shards) -> Turn[Client, Up]:
    """Box 2."""

    def loss(state, x, y, extra):
        supervised = cross_entropy(ctx.net(state, x, train=True).logits, y)
        return Losses(supervised, {"supervised": supervised}, {})

    return client_with(ctx, down, mine, shards, loss)


def merge(ctx: Context, server: Tree, up: Tree) -> tuple[Tree, Logged]:
    """Box 3; a client without samples has weight 0 under either weighting.

    What a server has beside its ``model`` stays.
    """
    weight = client_weights(up.samples, ctx.hp.weighting)
    model = mean_model(up.model, weight, server.model, ctx.hp.buffers)
    return server._replace(model=model), {}


def models(ctx: Context, server: Tree, mine: Tree) -> Models:
    """Return the clients' models after training and the average after merging."""
    local = ctx.hp.buffers == "local"
    received = start(sent(ctx, server.model), mine.state) if local else None
    return Models(mine.state, server.model.state, None, received=received)


def predict(hp: HP) -> Rule:
    """Return the paper's rule; local statistics go with the model that is received."""
    return Rule("received" if hp.buffers == "local" else "global", "head_all")


METHOD = Method(
    name="fedavg",
    source="McMahan et al., AISTATS 2017",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=predict,
    counted=(Counted("up", "model"),),
)
