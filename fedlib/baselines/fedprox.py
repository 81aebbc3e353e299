r"""FedProx: FedAvg whose clients are held near the weights that they received.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.

Symbols
    w      | state        | [...]    | the client's weights during its training
    w^t    | extra        | [K, ...] | the anchor: the weights that it started from
    mu     | prox_weight  | []       | weight of the proximal term
    mu'    | extra_decay  | []       | FedPA's decay beside it; 0 in FedProx

Box
    1. broadcast: send w^t.
    2. client: start from w^t, minimise cross-entropy + mu / 2 * ||w - w^t||^2 (the sum
       over all trained weights), send w.
    3. merge: as FedAvg.

Readings
    Anchor: the broadcast model. Where none is known yet (round 1 under
    ``common_init=False``) it is the client's own start. BatchNorm statistics are not
    weights and are left free.
    Inexact local solutions (the paper's gamma) are those of the run's fixed epochs.
    Gradient: FedProto's released code computes the term between detached tensors, so
    that it is logged and never pulls: ``term="detached"``.
    Decay: FedPA's released code adds an L2 decay of 0.001 to the step and always trains
    by plain SGD: ``extra_decay=0.001``. The default has none, and the run's optimiser;
    under Adam both gradients are added before the step.
    FedPA and GFPL give no mu: 1 is FedPA's code, 0.01 the usual choice. FedPG tried
    three unpublished values; its preset is 0.01. The article tunes mu by data set under
    SGD, from 0.001 to 1. Adam divides by the size of the gradient, pull included: at
    the same mu its pull is another one, and no source has a mu for it.
    Code of FPL's lineage weighs the square by 0.01 mu / 2 in place of mu / 2: its
    number means ``prox_weight`` = 0.01 mu here.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client, Down, Up
from fedlib.core.averaging import start
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Shards, Turn


class HP(shared_model.HP):
    """Hyper-parameters of FedProx."""

    prox_weight: float = Field(default=0.01, ge=0)  # mu
    extra_decay: float = Field(default=0.0, ge=0)  # mu' (0.001 in FedPA's code)
    term: Literal["live", "detached"] = "live"


def half_square(parts: Iterable[Tensor]) -> Tensor:
    """Return half the sum ``[]`` of all squares, whose gradient is the parts."""
    return 0.5 * torch.stack([part.square().sum() for part in parts]).sum()


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2."""
    hp, buffers = ctx.hp, ctx.net.buffers
    anchor = start(down.model, mine.state)
    trained = [name for name in anchor if name not in buffers]

    def loss(state, batch):
        supervised = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
        near = half_square(state[name] - batch.extra[name] for name in trained)
        pull = near.detach() if hp.term == "detached" else near
        total = supervised + hp.prox_weight * pull
        if hp.extra_decay:
            total = total + hp.extra_decay * half_square(state[k] for k in trained)
        return Losses(total, {"supervised": supervised, "prox": near}, {})

    return shared_model.client_with(ctx, down, mine, shards, loss, extra=anchor)


METHOD = shared_model.BASE._replace(
    name="fedprox", source="Li et al., MLSys 2020", hp=HP, client=client
)
