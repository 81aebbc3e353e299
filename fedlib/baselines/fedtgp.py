r"""FedTGP: the server trains the global prototypes, so that they keep apart.

Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning, AAAI 2024.

Symbols
    p_k^c  | up.protos         | [K, C, d] | client k's prototype of class c
    Q^c    | in merge          | [C, d]    | their plain mean
    theta  | server.net        | [...]     | weights of the prototype net
    P^c    | server.protos     | [C, d]    | global prototype: the net's output for c
    D_c    | in margin_contrast| [M, C]    | distance of an uploaded prototype to P^c
    delta  | margin            |           | margin
    lambda | proto_weight      |           | weight of the pull
    S      | server_epochs     |           | epochs over the uploaded prototypes
           | server_learning_rate |        | rate of its SGD

Box
    1. broadcast: send the global model and the P^c of all classes uploaded so far.
    2. client: from the model, minimise cross-entropy + lambda * mean squared distance
       of embeddings to their class's P^c.
    3. client: send the model and each own class's mean embedding after training.
    4. merge: average the models by samples.
    5. merge: delta = the largest of the distances from a Q^c to the nearest other one,
       at most 100.
    6. merge: train theta, S epochs of mini-batches of uploaded prototypes, by
       cross-entropy of minus the D_c, with delta added to the own class's distance.

Readings
    Prototype net: an embedding table, linear, ReLU, linear, all d wide. It is trained
    on from round to round; the optimiser is fresh: SGD without momentum, on batches of
    the clients' size.
    Its rate: 0.01. The released program takes that of its clients, which is SGD 0.01 in
    the released command. Where clients step by Adam their rate says nothing to an SGD,
    so it has a field of its own; presets name the clients' where these use SGD.
    Weight of the pull: the released command has 10, for *personal* models under SGD
    0.01 (the option's default: 1). An average of models that were pulled so hard has a
    head that does not follow, so that the default, with shared models, is 1. At
    FedHPro's rate of 0.1 it makes the steps that 10 makes at 0.01. What the command
    runs is ``share_model=False, common_init=False, proto_weight=10``.
    S: 100 as in that command (the option's default: 1000).
    The net has prototypes of all C classes and step 6 compares with all of them; those
    of classes that nobody has uploaded yet are not sent. Q^c is of this round's
    uploads; with a single class there is no distance, and delta = 0.
    Models: FedHPro runs this baseline with shared models and the global head. The
    original's are personal and never sent, and the nearest prototype over all classes
    predicts: ``share_model=False`` (with ``common_init=False`` for own first weights).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedlib.blocks import descent, shared_model, with_protos
from fedlib.blocks.with_protos import Client, Down, Up
from fedlib.core import protos
from fedlib.core.losses import cross_entropy, margin_contrast
from fedlib.core.method import (
    Context,
    Logged,
    Losses,
    Model,
    Models,
    Rule,
    Shards,
    Turn,
)
from fedlib.core.net import State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator


class HP(shared_model.HP):
    """Hyper-parameters of FedTGP."""

    proto_weight: float = Field(default=1.0, ge=0)  # lambda
    server_epochs: int = Field(default=100, ge=1)  # S
    server_learning_rate: float = Field(default=0.01, gt=0)
    largest_margin: float = Field(default=100.0, ge=0)
    share_model: bool = True


class Server(NamedTuple):
    """What the server keeps."""

    model: Model  # not known unless models are shared
    protos: Protos  # [C, d], P^c of the classes uploaded so far
    net: State  # theta


def prototypes(net: State) -> Tensor:
    """Return the prototypes ``[C, d]`` of all classes under a state of the net."""
    hidden = F.linear(net["table"], net["0.weight"], net["0.bias"]).relu()
    return F.linear(hidden, net["2.weight"], net["2.bias"])


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the first weights as FedAvg, and the prototype net."""
    first, mine = with_protos.init(ctx)
    classes, size = first.protos.mean.shape
    draw = generator(ctx.seed, "init", "prototype net")
    net = {"table": torch.randn(classes, size, generator=draw)}
    layers = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))
    net |= descent.of_module(layers, draw)
    known = first.model.known & ctx.hp.share_model
    return Server(first.model._replace(known=known), first.protos, net), mine


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "pull": protos.pull(out.high, batch.y, down.protos),
        }
        total = terms["supervised"] + ctx.hp.proto_weight * terms["pull"]
        return Losses(total, terms, {})

    mine, up, terms = with_protos.client_with(ctx, down, mine, shards, loss)
    known = up.model.known & ctx.hp.share_model
    return mine, up._replace(model=up.model._replace(known=known)), terms


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4, 5 and 6."""
    hp = ctx.hp
    after = shared_model.merge(ctx, server, up)[0] if hp.share_model else server
    means = protos.merge(up.protos)
    margin = protos.gaps(means).amax().clamp(max=hp.largest_margin)
    p, label = protos.points(up.protos)
    draw, size = ctx.random("server batches"), ctx.training.batch_size
    batches = descent.batches(len(p), size, hp.server_epochs, draw)

    def loss(net: State, step: int) -> Losses:
        rows = batches[step]
        contrast = margin_contrast(p[rows], label[rows], prototypes(net), margin)
        return Losses(contrast, {"contrast": contrast}, {})

    rate = hp.server_learning_rate
    fitted = descent.fit(
        server.net, loss, len(batches), optimiser="sgd", learning_rate=rate
    )
    count = protos.fill(means, server.protos).count
    made = torch.where((count > 0).unsqueeze(1), prototypes(fitted.state), 0.0)
    after = after._replace(protos=Protos(made, count), net=fitted.state)
    return after, fitted.terms | {"margin": margin}


def models(ctx: Context[HP], server: Server, mine: Client) -> Models:
    """Return FedAvg's models, or the personal ones, and the prototypes."""
    shared = with_protos.models(ctx, server, mine)
    return shared if ctx.hp.share_model else shared._replace(shared=None)


def predict(hp: HP) -> Rule:
    """Return the rule: the head of a shared model, or the nearest prototype."""
    if hp.share_model:
        return Rule("global", "head_all")
    return Rule("personal", "nearest_all")


METHOD = with_protos.BASE._replace(
    name="fedtgp",
    source="Zhang et al., AAAI 2024",
    hp=HP,
    init=init,
    client=client,
    merge=merge,
    models=models,
    predict=predict,
    forgets=lambda hp: hp.share_model and shared_model.forgets(hp),
)
