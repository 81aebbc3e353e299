r"""FedNTD: FedAvg whose clients keep the global model's view of all wrong classes.

Lee, Jeong, Shin, Bae and Yun, Preservation of the Global Knowledge by Not-True
Distillation in Federated Learning, NeurIPS 2022.

Symbols
    q_l  | softmax of not_true(logits) | [B, C-1] | the client's, without the true class
    q_g  | teacher                     | [B, C-1] | the same of the model received
    tau  | temperature                 | []       | of both softmaxes
    beta | distill_weight              | []       | weight of the distillation

Box
    1. broadcast: send the global model.
    2. client: start from it, minimise cross-entropy + beta * tau^2 * the mean over the
       batch of KL(q_g || q_l), the received model in eval mode as the fixed teacher.
    3. merge: as FedAvg.

Readings
    Not-true: the true class's logit is taken out before the softmax, so that the term
    says nothing about it; with two classes nothing is left and the term is 0.
    The factor tau^2 keeps the size of the gradient (official code).
    tau: 1 in the official settings, 3 as the default of the official loss.
    Teacher: where no model is known yet (round 1 under ``common_init=False``) the
    client's own start. Under ``buffers="local"`` with the client's own statistics.
    FedMPS trains this method for 5 local epochs on RealWaste, CIFAR-10 and Fashion
    (its presets).
    FedPG tried three unpublished values of beta or tau; its preset is the default.
"""

import torch
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client, Down, Up
from fedlib.core.averaging import start
from fedlib.core.losses import cross_entropy, kl_to_teacher
from fedlib.core.method import Context, Losses, Shards, Turn


class HP(shared_model.HP):
    """Hyper-parameters of FedNTD."""

    distill_weight: float = Field(default=1.0, ge=0)  # beta
    temperature: float = Field(default=1.0, gt=0)  # tau


def not_true(logits: Tensor, y: Tensor) -> Tensor:
    """Return logits ``[B, C-1]`` without the true class's of ``[B, C]``."""
    place = torch.arange(logits.shape[-1] - 1, device=y.device)
    return logits.gather(1, place + (place >= y.unsqueeze(1)).long())


def distill(logits: Tensor, teacher: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return tau^2 KL(q_g || q_l) ``[]`` of logits ``[B, C]``, a mean over the batch.

    Parameters
    ----------
    teacher : Tensor
        Logits ``[B, C]`` of the received model.
    y : Tensor
        True classes ``[B]``; their logits have no influence.
    """
    soft = torch.softmax(not_true(teacher, y) / temperature, -1)
    per_sample = kl_to_teacher(soft, not_true(logits, y), temperature)
    return temperature**2 * per_sample.mean()


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2."""
    hp = ctx.hp

    def loss(state, batch):
        logits = ctx.net(state, batch.x, train=True).logits
        teacher = ctx.net(batch.extra, batch.x).logits.detach()
        terms = {
            "supervised": cross_entropy(logits, batch.y),
            "distill": distill(logits, teacher, batch.y, hp.temperature),
        }
        total = terms["supervised"] + hp.distill_weight * terms["distill"]
        return Losses(total, terms, {})

    received = start(down.model, mine.state)
    return shared_model.client_with(ctx, down, mine, shards, loss, extra=received)


METHOD = shared_model.BASE._replace(
    name="fedntd", source="Lee et al., NeurIPS 2022", hp=HP, client=client
)
