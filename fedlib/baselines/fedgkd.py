r"""FedGKD: FedAvg whose clients learn from the mean of the last global models.

Yao et al., FedGKD: Toward Heterogeneous Federated Learning via Global Knowledge
Distillation, IEEE Transactions on Computers vol. 73, 2024.

Symbols
    w      | server.model   | [...]    | the global model
    w_1..M | server.past    | [M, ...] | the last M global models, the newest first
    w_bar  | down.teacher   | [...]    | their mean
    p_bar  | soft           | [B, C]   | the teacher's softmax
    M      | history        | []       | models that the server keeps
    gamma  | distill_weight | []       | weight of the distillation

Box
    1. broadcast: send w and w_bar; in the first round there is no w_bar.
    2. client: start from w, minimise cross-entropy + gamma * the mean over the batch of
       KL(p_bar || p), at temperature 1 and with the teacher in eval mode.
    3. merge: w as FedAvg; it joins the last M.

Readings
    Of what the mean is taken: of models that a merge made, at most M and with equal
    weights; the first draw is not one of them. In the second round w_bar = w.
    gamma: 0.1 (official). FedMPS's released code multiplies the term by the square of
    its contrastive temperature, 0.25, which makes it 0.025: ``distill_weight=0.025``.
    FedMPS trains this method at a learning rate of 0.05 on RealWaste, CIFAR-10, Fashion
    and Femnist (its presets).
    Under ``buffers="local"`` the teacher runs with the client's own statistics,
    otherwise with the mean of the past models'.
    The server could send w alone and let clients keep the past; FedMPS's table counts
    two models down.
"""

from typing import NamedTuple

import torch
from pydantic import Field

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client, Up
from fedlib.core.averaging import mean_model, start
from fedlib.core.losses import cross_entropy, kl_to_teacher
from fedlib.core.method import Context, Counted, Logged, Losses, Model, Shards, Turn
from fedlib.core.tree import tree_map


class HP(shared_model.HP):
    """Hyper-parameters of FedGKD."""

    distill_weight: float = Field(default=0.1, ge=0)  # gamma
    history: int = Field(default=5, ge=1)  # M


class Down(NamedTuple):
    """To every client."""

    model: Model  # w
    teacher: Model  # w_bar


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    past: Model  # [M, ...]; known [M]


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the clients' weights; no merged model is known."""
    server, mine = shared_model.init(ctx)
    past = tree_map(lambda x: torch.stack([x] * ctx.hp.history), server.model)
    return Server(server.model, past._replace(known=torch.zeros_like(past.known))), mine


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1; an unknown teacher is not sent."""
    known = server.past.known
    mean = mean_model(server.past, known | ~known.any(), server.model)
    teacher = mean._replace(known=known.any())
    return Down(shared_model.sent(ctx, server.model), shared_model.sent(ctx, teacher))


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2."""
    begun = down.teacher.known.to(torch.float32)  # 0 in the first round

    def loss(state, batch):
        logits = ctx.net(state, batch.x, train=True).logits
        soft = torch.softmax(ctx.net(batch.extra, batch.x).logits.detach(), -1)
        terms = {
            "supervised": cross_entropy(logits, batch.y),
            "distill": begun * kl_to_teacher(soft, logits, 1.0).mean(),
        }
        total = terms["supervised"] + ctx.hp.distill_weight * terms["distill"]
        return Losses(total, terms, {})

    teacher = start(down.teacher, mine.state)
    return shared_model.client_with(ctx, down, mine, shards, loss, extra=teacher)


def merge(ctx: Context, server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 3."""

    def joined(new, past):
        return torch.cat([new.unsqueeze(0), past[:-1]])

    after, watched = shared_model.merge(ctx, server, up)
    past = tree_map(joined, after.model, server.past)
    return after._replace(past=past), watched


METHOD = shared_model.BASE._replace(
    name="fedgkd",
    source="Yao et al., IEEE Transactions on Computers 2024",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    counted=(Counted("down", "model"), Counted("down", "teacher")),
)
