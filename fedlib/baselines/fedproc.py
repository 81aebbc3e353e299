r"""FedProc: embeddings are contrasted with the global prototypes of all classes.

Mu et al., FedProc: Prototypical Contrastive Federated Learning on Non-IID Data, Future
Generation Computer Systems 143, 2023.

Symbols
    w, w_i | server.model, up.model   | [...]            | global and local model
    z      | out.high, unit length    | [B, d]           | embedding of a sample
    c_k    | up.protos, server.protos | [K, C, d], [C, d]| local and global prototypes
    tau    | temperature              |                  | of the similarities
    a      | share                    |                  | weight of cross-entropy
    t      | ctx.round - 1            |                  | rounds played

Box
    1. broadcast: send w and the prototypes.
    2. client: from w, minimise a * cross-entropy + (1 - a) * l_con with
       l_con = -log softmax over all classes of <z, c_k / |c_k|> / tau, taken at the
       sample's own class. a = min(t / 100, 1): first mainly the embedding is trained,
       later the head. Before there are prototypes, cross-entropy alone (a = 1).
    3. client: send w_i and the class means of its embeddings.
    4. merge: average models by samples, prototypes by the samples of each class.

Readings
    Embeddings: the paper's net ends in a projection, which none of our nets has; z is
    the embedding that the head sees, scaled to length 1.
    Temperature: 0.5, which FedMPS's IV-A5 prints for its FedProc; the released code has
    none (``temperature=1``).
    Contrast: the released FedMPS takes the supervised contrastive loss over the batch
    and one prototype per class, times tau / 0.07: ``contrast="supcon"``. It expects
    nets with unit embeddings and leaves the prototypes as they are.
    Prototypes: averaged by samples and taken after training (released code), or
    ``proto_weighting="uniform"``, ``collection="train"`` (FedMPS's code).
    A class without a prototype is no negative, and its samples add nothing to l_con.
    A class that the cohort does not own keeps its prototype.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model, with_protos
from fedlib.blocks.hyperprotos import unit
from fedlib.blocks.with_protos import Client, Down, Server, Up
from fedlib.core import protos
from fedlib.core.embed import Collection
from fedlib.core.losses import RELEASED_BASE_TEMPERATURE, cross_entropy, supcon
from fedlib.core.method import Context, Logged, Losses, Shards, Turn
from fedlib.core.protos import Protos, Weighting


class HP(shared_model.HP):
    """Hyper-parameters of FedProc."""

    schedule_rounds: int = Field(default=100, ge=1)  # a reaches 1 after so many
    temperature: float = Field(default=0.5, gt=0)  # tau
    contrast: Literal["prototypes", "supcon"] = "prototypes"
    proto_weighting: Weighting = "samples"
    collection: Collection = "eval"


def contrast(z: Tensor, y: Tensor, means: Protos, hp: HP) -> Tensor:
    """Return l_con of a batch: z ``[B, d]`` against the prototypes ``[C, d]``."""
    z = unit(z)
    if hp.contrast == "supcon":
        classes = torch.arange(len(means.count))
        valid = torch.cat([torch.ones_like(y, dtype=torch.bool), means.known])
        both = torch.cat([z, means.mean]), torch.cat([y, classes])
        scale = hp.temperature / RELEASED_BASE_TEMPERATURE
        return scale * supcon(*both, hp.temperature, valid)
    similarity = z @ unit(means.mean).T / hp.temperature
    similarity = torch.where(means.known, similarity, -1e9)
    per_sample = F.cross_entropy(similarity, y, reduction="none")
    return torch.where(means.known[y], per_sample, 0.0).mean()


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    begun = bool(down.protos.known.any())
    share = min((ctx.round - 1) / hp.schedule_rounds, 1.0) if begun else 1.0

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "contrast": begun * contrast(out.high, batch.y, down.protos, hp),
        }
        total = share * terms["supervised"] + (1 - share) * terms["contrast"]
        return Losses(total, terms, {"high": out.high})

    return with_protos.client_with(ctx, down, mine, shards, loss, how=hp.collection)


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4."""
    means = protos.merge(up.protos, ctx.hp.proto_weighting)
    after, watched = shared_model.merge(ctx, server, up)
    return after._replace(protos=protos.fill(means, server.protos)), watched


METHOD = with_protos.BASE._replace(
    name="fedproc",
    source="Mu et al., FGCS 2023",
    hp=HP,
    client=client,
    merge=merge,
)
