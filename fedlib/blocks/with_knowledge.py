"""Soft predictions beside the class means, as FedHKD and FedGMKD exchange them.

A client's knowledge of a class is a row of d + C numbers: its mean embedding and its
mean soft prediction. Clients pull embeddings to the server's mean embeddings, and what
the head says of these towards the soft predictions; a method says how the second is
measured. Everything else is as in ``with_protos.py``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlib.blocks import with_protos
from fedlib.blocks.with_protos import Client, Down, Server, Up
from fedlib.core import protos
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Models, Shards, Turn
from fedlib.core.net import Out
from fedlib.core.protos import Distance, Protos


def knowledge(out: Out, temperature: float) -> Tensor:
    """Return embeddings and soft predictions side by side, ``[..., d + C]``."""
    return torch.cat([out.high, torch.softmax(out.logits / temperature, -1)], -1)


def parts(known: Protos) -> tuple[Protos, Protos]:
    """Split knowledge ``[C, d + C]`` into mean embeddings and mean soft predictions."""
    classes = known.count.shape[-1]
    embedding, soft = known.mean.split([known.mean.shape[-1] - classes, classes], -1)
    return Protos(embedding, known.count), Protos(soft, known.count)


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the first weights as FedAvg; nothing is known of any class."""
    return with_protos.init(ctx, extra=ctx.classes)


def client_with(
    ctx: Context,
    down: Down,
    mine: Client,
    shards: Shards,
    soft_term: Callable[[Tensor], Tensor],
    distance: Distance = "mse",
    **options: Any,
) -> Turn[Client, Up]:
    """Train on what is known of the classes; send the model and the own knowledge.

    Reads ``temperature``, ``soft_weight`` and ``proto_weight`` of the hyper-parameters.

    Parameters
    ----------
    soft_term : callable
        From what the head says of the mean embeddings, logits ``[C, C]``, to its term.
    distance : "mse" or "l2"
        Of embeddings to their class's mean.
    **options
        As in ``with_protos.client_with``.
    """
    hp, (means, _) = ctx.hp, parts(down.protos)
    row = partial(knowledge, temperature=hp.temperature)

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        logits = ctx.net.head(ctx.net.head_state(state), means.mean, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "soft": soft_term(logits),
            "pull": protos.pull(out.high, batch.y, means, distance),
        }
        total = terms["supervised"] + hp.soft_weight * terms["soft"]
        total = total + hp.proto_weight * terms["pull"]
        return Losses(total, terms, {"knowledge": row(out)})

    options = {"level": "knowledge", "of": row} | options
    return with_protos.client_with(ctx, down, mine, shards, loss, **options)


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return FedAvg's models, and the mean embeddings as prototypes."""
    return with_protos.models(ctx, server, mine, parts(server.protos)[0])


# What a method replaces from: its name, source, hp, client and merge at least
BASE = with_protos.BASE._replace(init=init, models=models)
