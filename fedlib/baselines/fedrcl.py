r"""FedRCL: a relaxed contrast of the samples of a batch, at every level of the net.

Seo, Kim, Kim and Han, Relaxed Contrastive Learning for Federated Learning, CVPR 2024.

Symbols
    v_i    | in contrast     | [B, d_l]| sample i's embedding at a level, scaled to
                                         length 1
    s_ij   | similarity      | [B, B]  | cosine of samples i and j
    tau    | temperature     | []      | divides every similarity
    L_scl  | in contrast     | []      | draws a class together
    L_pen  | in contrast     | []      | keeps it from collapsing

Box
    1. broadcast, merge: as FedAvg.
    2. client: minimise cross-entropy + L_scl + L_pen, each the mean over levels and
       over the samples of a batch, of its own model alone.
    3. L_scl of sample i: cross-entropy that names its positive, the least similar of
       its class (itself among them), out of this and its negatives, the two most
       similar samples of other classes.
    4. L_pen of sample i: the same with itself (similarity 1) as the positive, and as
       the negative the least similar other sample of its class. It pushes away only
       those that are nearer than a threshold: a similarity below it counts as -1.

Readings
    Levels end with a ReLU and are taken before it, as means of their channels (the
    released code): the stem and four stages of a ResNet, every layer of a plain net.
    The high embedding is the last level.
    A sample without another of its class has no L_pen, one without another class no
    L_scl; both stay in the mean, as 0.
    Clipping of gradients at 10, weight decay and the decay of the learning rate of the
    released code are settings of a run.
"""

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client, Down, Up
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Shards, Turn


class HP(shared_model.HP):
    """Hyper-parameters of FedRCL."""

    contrast_weight: float = Field(default=1.0, ge=0)  # of L_scl
    penalty_weight: float = Field(default=1.0, ge=0)  # of L_pen
    temperature: float = Field(default=0.05, gt=0)  # tau
    negatives: int = Field(default=2, ge=1)  # of a sample, the nearest ones
    threshold: float = Field(default=0.7, ge=-1, le=1)  # of the similarity of a class


def contrast(z: Tensor, y: Tensor, hp: HP) -> tuple[Tensor, Tensor]:
    """Return L_scl and L_pen of one level's embeddings ``[B, d_l]``."""
    v = F.normalize(z)
    similarity = v @ v.T
    same = y.unsqueeze(1) == y
    positive = torch.where(same, similarity, 1.0).amin(1, keepdim=True)
    others = torch.where(same, -1e9, similarity)
    negatives = others.topk(min(hp.negatives, len(y))).values
    scores = torch.cat([positive, negatives], 1) / hp.temperature
    together = scores.logsumexp(1) - scores[:, 0]
    mates = same & ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    least = torch.where(mates, similarity, 1.0).amin(1)
    least = torch.where(least >= hp.threshold, least, -1.0)
    apart = F.softplus((least - 1) / hp.temperature)
    return together.mean(), torch.where(mates.any(1), apart, 0.0).mean()


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2."""
    hp = ctx.hp

    def loss(state, batch):
        out, levels = ctx.net.levels(state, batch.x, train=True)
        by_level = [torch.stack(contrast(z, batch.y, hp)) for z in levels]
        together, apart = torch.stack(by_level).mean(0)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "contrast": together,
            "penalty": apart,
        }
        total = terms["supervised"] + hp.contrast_weight * together
        return Losses(total + hp.penalty_weight * apart, terms, {})

    return shared_model.client_with(ctx, down, mine, shards, loss)


METHOD = shared_model.BASE._replace(
    name="fedrcl", source="Seo et al., CVPR 2024", hp=HP, client=client
)
