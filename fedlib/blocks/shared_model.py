"""One model that all clients share: drawn, sent, trained and averaged as in FedAvg.

A method that is FedAvg with another loss is ``BASE._replace(...)`` whose client calls
``client_with``. Of a method's hyper-parameters those of ``HP`` are read here.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlib.core.averaging import Buffers, client_weights, mean_model, start
from fedlib.core.hyper import HyperParameters
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import Model, as_model
from fedlib.core.method import (
    Context,
    Counted,
    Logged,
    Loss,
    Losses,
    Method,
    Shards,
    Turn,
)
from fedlib.core.net import State
from fedlib.core.protos import Weighting
from fedlib.core.readouts import Models, Rule
from fedlib.core.tree import Tree, tree_map


class Sharing(HyperParameters):
    """How one model is drawn and sent, for methods that weigh its mean themselves."""

    common_init: bool = True
    buffers: Buffers = "average"


class HP(Sharing):
    """Hyper-parameters of FedAvg, for methods that weigh as it does."""

    weighting: Weighting = "samples"


class Down(NamedTuple):
    """To every client."""

    model: Model


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model
    samples: Tensor  # [K] int64, of training


class Server(NamedTuple):
    """What the server keeps."""

    model: Model


class Client(NamedTuple):
    """A client's model after its training; no later round reads it (``forgets``)."""

    state: State  # [K, ...]


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the clients' weights; the server has a model once clients share one draw."""
    mine = Client(ctx.init_clients(ctx.hp.common_init))
    first = tree_map(lambda x: x[0], as_model(ctx.net, mine.state))
    return Server(first._replace(known=torch.tensor(ctx.hp.common_init))), mine


def sent(ctx: Context, model: Model) -> Model:
    """Return what the server sends of a model: statistics unless they stay local."""
    return model._replace(buffers={}) if ctx.hp.buffers == "local" else model


def uploaded(ctx: Context, state: State) -> Model:
    """Return what clients send of their states ``[K, ...]``, the same way."""
    return as_model(ctx.net, state, buffers=ctx.hp.buffers != "local")


def broadcast(ctx: Context, server: Server) -> Down:
    """Send the model."""
    return Down(sent(ctx, server.model))


def client_with(
    ctx: Context, down: Tree, mine: Tree, shards: Shards, loss: Loss, **options: Any
) -> Turn[Client, Up]:
    """Train from the model by any loss, with the options of ``ctx.train``; send it.

    Of ``down`` and ``mine``, which may hold more, ``model`` and ``state`` are read.
    """
    trained = ctx.train(start(down.model, mine.state), shards, loss, **options)
    up = Up(uploaded(ctx, trained.state), shards.sizes())
    return Client(trained.state), up, trained.terms


def client(ctx: Context, down: Down, mine: Client, shards: Shards) -> Turn[Client, Up]:
    """Train by cross-entropy."""

    def loss(state, batch):
        supervised = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        return Losses(supervised, {"supervised": supervised}, {})

    return client_with(ctx, down, mine, shards, loss)


def merge(ctx: Context, server: Tree, up: Tree) -> tuple[Tree, Logged]:
    """Average the models; a client without samples has weight 0.

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


def forgets(hp: Any) -> bool:
    """Say whether clients keep nothing: neither statistics nor what a method adds."""
    return hp.buffers != "local"


def predict(hp: HP) -> Rule:
    """Return the paper's rule; local statistics go with the model that is received."""
    return Rule("received" if hp.buffers == "local" else "global", "head_all")


# What a method replaces from: its name and source at least
BASE = Method(
    name="",
    source="",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=predict,
    counted=(Counted("up", "model"),),
    forgets=forgets,
)
