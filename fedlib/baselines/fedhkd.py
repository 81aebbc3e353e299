r"""FedHKD: clients exchange each class's mean embedding and mean soft prediction.

Chen et al., The Best of Both Worlds: Accurate Global and Personalized Models through
Federated Learning with Data-Free Hyper-Knowledge Distillation, ICLR 2023.

Symbols
    w, w_i | server.model, up.model | [...]        | global and local model
    H      | parts(down.protos)[0]  | [C, d]       | mean embedding of each class
    Q      | parts(down.protos)[1]  | [C, C]       | mean soft prediction of each class
    H_i,Q_i| up.protos              | [K, C, d + C]| client i's, side by side in a row
    T      | temperature            |              | of the soft predictions
    lambda | soft_weight            |              | weight of the head's term
    gamma  | proto_weight           |              | weight of the embedding's term
    nu     | threshold              |              | least share of a class to report it
    sigma  | noise                  |              | of the noise on mean embeddings

Box
    1. broadcast: send w, H and Q.
    2. client: from w, minimise cross-entropy + gamma * mean distance of embeddings to
       their class's H + lambda * mean over classes of the distance between
       softmax(head(H) / T) and Q.
    3. client: send w_i and, of each class with a share of at least nu of its samples,
       the mean embedding plus Gaussian noise, the mean softmax(logits / T) and the
       number of samples.
    4. merge: average models by samples, knowledge by the samples of each class.

Readings
    Distances: Euclidean (paper), or ``distance="mse"``, mean squares over the entries
    (FedPA's code of this baseline).
    Classes that no client reports: the last known row stays, and a class that never had
    one adds 0 to both means, which divide by all samples and all classes
    (``missing="mask"``). FedPA's code puts rows of zeros in their place, which pull
    from the second round on: ``missing="zero"``. With many classes or even data nobody
    reaches nu, and embeddings are then pulled to the origin.
    Noise: standard deviation 0.02 on each number (FedPA's code); the paper scales it by
    the sensitivity of a mean for differential privacy, which 0.02 does not give.
    Knowledge is taken after training in eval mode (paper), or, ``collection="train"``
    (FedPA's code), during the last local epoch: all steps of a round counted in steps.
    Number of samples: all the client's samples of the class, under either collection.
    Not followed from the official code: no threshold, the last client's knowledge in
    place of the mean, KL in place of distances.
"""

from typing import Literal

import torch
from pydantic import Field

from fedlib.blocks import shared_model, with_knowledge
from fedlib.blocks.with_knowledge import Client, Down, Server, Up, parts
from fedlib.core import protos
from fedlib.core.embed import Collection
from fedlib.core.method import Context, Logged, Shards, Turn
from fedlib.core.protos import Distance, Protos


class HP(shared_model.HP):
    """Hyper-parameters of FedHKD."""

    soft_weight: float = Field(default=0.05, ge=0)  # lambda
    proto_weight: float = Field(default=0.05, ge=0)  # gamma
    temperature: float = Field(default=0.5, gt=0)  # T
    threshold: float = Field(default=0.25, ge=0, le=1)  # nu
    noise: float = Field(default=0.02, ge=0)  # sigma
    distance: Distance = "l2"
    missing: Literal["mask", "zero"] = "mask"
    collection: Collection = "eval"


def reported(ctx: Context[HP], local: Protos, shards: Shards) -> Protos:
    """Return what clients send of their knowledge ``[K, C, d + C]``: Box 3."""
    counts = shards.label_counts(ctx.classes)
    share = counts / shards.sizes().clamp(min=1).unsqueeze(1)
    uploaded = (counts > 0) & (share >= ctx.hp.threshold)
    size = local.mean.shape[-1] - ctx.classes
    noise = torch.zeros_like(local.mean)
    for k, client in enumerate(shards.ids):
        drawn = torch.randn(
            ctx.classes, size, generator=ctx.random("knowledge noise", client)
        )
        noise[k, :, :size] = ctx.hp.noise * drawn
    mean = torch.where(uploaded.unsqueeze(-1), local.mean + noise, 0.0)
    return Protos(mean, torch.where(uploaded, counts, 0))


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    if hp.missing == "zero" and ctx.round > 1:
        every = torch.ones_like(down.protos.count)
        down = down._replace(protos=down.protos._replace(count=every))
    soft, classes = parts(down.protos)[1], torch.arange(ctx.classes)

    def soft_term(logits):
        guess = torch.softmax(logits / hp.temperature, -1)
        return protos.pull(guess, classes, soft, hp.distance)

    mine, up, terms = with_knowledge.client_with(
        ctx, down, mine, shards, soft_term, hp.distance, how=hp.collection
    )
    return mine, up._replace(protos=reported(ctx, up.protos, shards)), terms


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4."""
    means = protos.merge(up.protos, "samples")
    if ctx.hp.missing == "mask":
        means = protos.fill(means, server.protos)
    after, watched = shared_model.merge(ctx, server, up)
    return after._replace(protos=means), watched


METHOD = with_knowledge.BASE._replace(
    name="fedhkd", source="Chen et al., ICLR 2023", hp=HP, client=client, merge=merge
)
