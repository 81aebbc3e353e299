r"""FedSA: embeddings and head adapt to anchors, which follow the prototypes slowly.

Zhou et al., FedSA: A Unified Representation Learning via Semantic Anchors for
Prototype-Based Federated Learning, AAAI 2025.

Symbols
    w, w_i | server.model, up.model   | [...]             | global and local model
    A      | server.anchors           | [C, d]            | an anchor for each class
    P_i, P | up.protos, server.protos | [K, C, d], [C, d] | local and global class means
    D      | in margin_contrast       | [B, C]            | distances to the anchors
    delta  | extra["margin"]          | [K]               | a client's margin
    h      | net.head                 |                   | the model's head
    alpha  | anchor_momentum          |                   | of the anchors
    lambda | anchor_weight            |                   | weight of the pull
    mu_mcl | margin_weight            |                   | weight of the contrast
    mu_cc  | calibration_weight       |                   | weight of the calibration

Box
    1. broadcast: send w, the anchors and the global gap: the mean, over classes, of the
       distance from a global class mean to the nearest other one.
    2. client: delta = the larger of the global gap and its own class means' gap.
    3. client: from w, minimise cross-entropy
       + lambda * mean squared distance of embeddings to their class's anchor
       + mu_mcl * cross-entropy of minus the D, with delta added to the own class's
       + mu_cc * cross-entropy of h on all anchors, each in its class.
    4. client: send w_i and the mean embedding of each own class after training.
    5. merge: average models by samples and class means over their owners; A becomes
       alpha A + (1 - alpha) P for the classes of this round's uploads.

Readings
    The weights are not known from a source: 1 for all three and alpha = 0.9 are ours,
    from the grids {0.1, 1, 10} and {0.9, 0.99}, chosen for no rate and no optimiser.
    First anchors: drawn from N(0, 1) and used at once (the paper draws them through an
    embedding layer). A class that no cohort owns keeps its drawn anchor, which is a
    negative and is calibrated on.
    Own class means for delta: of the received model, in eval mode, at the start of the
    round. A gap is 0 where fewer than two classes have a mean.
    The global gap is of the class means, not of the anchors; a class that the cohort
    does not own keeps its mean.
"""

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model, with_protos
from fedlib.blocks.with_protos import Client, Up
from fedlib.core import protos
from fedlib.core.averaging import start
from fedlib.core.embed import class_means
from fedlib.core.losses import cross_entropy, margin_contrast
from fedlib.core.method import Context, Logged, Losses, Model, Models, Shards, Turn
from fedlib.core.protos import Protos
from fedlib.core.rng import generator


class HP(shared_model.HP):
    """Hyper-parameters of FedSA."""

    anchor_weight: float = Field(default=1.0, ge=0)  # lambda
    margin_weight: float = Field(default=1.0, ge=0)  # mu_mcl
    calibration_weight: float = Field(default=1.0, ge=0)  # mu_cc
    anchor_momentum: float = Field(default=0.9, ge=0, le=1)  # alpha


class Down(NamedTuple):
    """To every client."""

    model: Model  # w
    anchors: Tensor  # [C, d], A
    gap: Tensor  # [] of the global class means


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    protos: Protos  # [C, d], P
    anchors: Tensor  # [C, d], A


def mean_gap(means: Protos) -> Tensor:
    """Return the mean distance ``[...]`` to the nearest other class, over classes."""
    return protos.gaps(means).sum(-1) / means.known.sum(-1).clamp(min=1)


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the first weights as FedAvg, and the anchors."""
    first, mine = with_protos.init(ctx)
    draw = generator(ctx.seed, "init", "anchors")
    anchors = torch.randn(first.protos.mean.shape, generator=draw)
    return Server(first.model, first.protos, anchors), mine


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    model = shared_model.sent(ctx, server.model)
    return Down(model, server.anchors, mean_gap(server.protos))


def margins(ctx: Context, down: Down, mine: Client, shards: Shards) -> Tensor:
    """Return the margin ``[K]`` of each client: Box 2."""
    begin = start(down.model, mine.state)
    own = mean_gap(class_means(ctx.net, begin, shards, "high"))
    return torch.maximum(own, down.gap)


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2, 3 and 4."""
    hp = ctx.hp
    anchors, classes = down.anchors, torch.arange(ctx.classes)
    everyone = Protos(anchors, torch.ones_like(classes))

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        on_anchors = ctx.net.head(ctx.net.head_state(state), anchors, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "pull": protos.pull(out.high, batch.y, everyone),
            "contrast": margin_contrast(
                out.high, batch.y, anchors, batch.extra["margin"]
            ),
            "calibration": cross_entropy(on_anchors, classes),
        }
        total = terms["supervised"] + hp.anchor_weight * terms["pull"]
        total = total + hp.margin_weight * terms["contrast"]
        total = total + hp.calibration_weight * terms["calibration"]
        return Losses(total, terms | batch.extra, {})

    samples = bool(shards.sizes().any())  # without any, training says so
    extra = {"margin": margins(ctx, down, mine, shards)} if samples else {}
    return with_protos.client_with(ctx, down, mine, shards, loss, extra=extra)


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 5."""
    after, watched = shared_model.merge(ctx, server, up)
    means = protos.merge(up.protos)
    moved = torch.lerp(means.mean, server.anchors, ctx.hp.anchor_momentum)
    anchors = torch.where(means.known.unsqueeze(1), moved, server.anchors)
    means = protos.fill(means, server.protos)
    return after._replace(protos=means, anchors=anchors), watched


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return FedAvg's models, and the anchors of the classes seen as prototypes."""
    anchors = Protos(server.anchors, server.protos.count)
    return with_protos.models(ctx, server, mine, anchors)


METHOD = with_protos.BASE._replace(
    name="fedsa",
    source="Zhou et al., AAAI 2025",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
)
