r"""Classifier re-training with federated features (CReFF).

Shang et al., Federated Learning on Heterogeneous and Long-Tailed Data via Classifier
Re-Training with Federated Features, IJCAI 2022. The released code of FedHPro contains
this stage. The server keeps n features per class, fits them so that their gradient for
the head's weights matches that of the clients' data, and trains a fresh linear head on
them, which replaces the head of the global model.

A gradient of a linear head is stored as ``[C, d + 1]``, the last column for the bias.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.blocks.descent import batches, fit, of_module
from fedlib.core import heads, protos
from fedlib.core.local import Losses
from fedlib.core.method import Context
from fedlib.core.net import State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator

MATCH_RATE, HEAD_RATE = 0.1, 0.01  # learning rates of the released code
HEAD_BATCH = 50
EPS = 1e-6


class Kept(NamedTuple):
    """What the server keeps from round to round."""

    features: Tensor  # [C, n, d] federated features; n is 0 where the stage is off
    head: State  # the head trained last, sent to the clients; {} where off


def begin(ctx: Context, count: int) -> Kept:
    """Draw ``count`` features per class from N(0, 1) and a first head."""
    size = ctx.net.embedding_sizes()[1]
    draw = generator(ctx.seed, "init", "federated features")
    features = torch.randn(ctx.classes, count, size, generator=draw)
    draw = generator(ctx.seed, "init", "federated head")
    return Kept(features, of_module(ctx.net.module.head, draw))


def _away(a: Tensor, b: Tensor) -> Tensor:
    """Return 1 - cosine over the last axis."""
    product = (a * b).sum(-1)
    return 1 - product / (a.norm(dim=-1) * b.norm(dim=-1) + EPS)


def mismatch(a: Tensor, b: Tensor) -> Tensor:
    """Return how far gradients ``[..., C, d + 1]`` point apart, ``[...]``.

    One minus cosine, for each row of the weights and once for the bias, summed.
    """
    rows = _away(a[..., :-1], b[..., :-1]).sum(-1)
    return rows + _away(a[..., -1], b[..., -1])


def match(
    features: Tensor, wanted: Protos, weight: Tensor, bias: Tensor, steps: int
) -> Tensor:
    """Fit features ``[C, n, d]`` to the mean gradients ``[C, C * (d + 1)]``.

    Classes that nobody holds keep their features.
    """
    classes, _, size = features.shape
    real = wanted.mean.view(classes, classes, size + 1)
    label = torch.arange(classes).unsqueeze(1)

    def loss(state, step):
        z = state["features"]
        miss = heads.residual(z @ weight.T + bias, label)
        made = heads.weight_gradient(z, miss)
        apart = torch.where(wanted.known, mismatch(made, real), 0.0).sum()
        return Losses(apart, {}, {})

    fitted = fit(
        {"features": features}, loss, steps, optimiser="sgd", learning_rate=MATCH_RATE
    )
    return fitted.state["features"]


def train_head(ctx: Context, features: Tensor, epochs: int) -> State:
    """Train a fresh linear head on features ``[C, n, d]``."""
    points = features.flatten(0, 1)
    label = torch.arange(ctx.classes).repeat_interleave(features.shape[1])
    shuffle = ctx.random("federated batches")
    plan = batches(len(label), HEAD_BATCH, epochs, shuffle)

    def loss(state, step):
        rows = plan[step]
        logits = F.linear(points[rows], *heads.linear(ctx.net, heads.within(state)))
        return Losses(F.cross_entropy(logits, label[rows]), {}, {})

    first = of_module(ctx.net.module.head, ctx.random("federated head"))
    fitted = fit(first, loss, len(plan), optimiser="sgd", learning_rate=HEAD_RATE)
    return fitted.state


def retrain(
    ctx: Context, before: Kept, uploads: Protos, steps: int, epochs: int
) -> Kept:
    """Fit the features to the uploads ``[K, C, C * (d + 1)]``, then train a head.

    The uploaded gradients are taken to belong to the head that was sent.
    """
    weight, bias = heads.linear(ctx.net, heads.within(before.head))
    wanted = protos.merge(uploads)
    features = match(before.features, wanted, weight, bias, steps)
    return Kept(features, train_head(ctx, features, epochs))
