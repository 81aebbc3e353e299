r"""CCVR: FedAvg, and in the end a head trained anew on features drawn from Gaussians.

Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with
Non-IID Data, NeurIPS 2021.

Symbols
    n_{k,c}     | up.gaussians.count      | [N, C]       | samples of class c
    mu_{k,c}    | up.gaussians.mean       | [N, C, d]    | mean of their embeddings
    Sigma_{k,c} | up.gaussians.covariance | [N, C, d, d] | their covariance (n - 1)
    mu_c, Sigma_c, N_c | pooled(...)      | [C, ...]     | the same of all samples
    M_c         | samples_per_class       | []           | features drawn per class
    beta        | tukey_power             | []           | power of the transform

Box
    1. Rounds are FedAvg's. What follows happens once, on a finished model.
    2. survey: every client sends n, mu and Sigma of each of its classes, of embeddings
       under the global model in eval mode.
    3. finalise: pool them: mu_c = sum_k n mu / N_c and
       Sigma_c = sum_k [(n - 1) Sigma + n (mu - mu_c)(mu - mu_c)^T] / (N_c - 1).
    4. finalise: draw M_c features from N(mu_c, Sigma_c) for each class, and train the
       head on them by cross-entropy, from the global one; the body stays.

Readings
    Box 3 is the article's formula with its two large terms n mu mu^T - N_c mu_c mu_c^T
    merged, so that they do not cancel in rounding. It gives the mean and the covariance
    of the union of all samples exactly.
    Classes of fewer than two samples in all have no covariance: they take the pooled
    one within classes. ``jitter`` is added to every diagonal, since d samples and fewer
    span no d dimensions; above a mean variance of 1 it is that many times of it, since
    the rounding of what was sent grows so. Nothing is drawn for a class of nobody.
    The head trains for one epoch of batches of the clients' size (FL-bench); the
    article's schedule is not given. Dropout is off. Optimiser and rate: the clients',
    with their momentum and weight decay (None), or the server's own by
    ``server_optimiser`` and ``server_learning_rate``; FL-bench has plain SGD at the
    clients' rate, which is too small for it where they use Adam.
    Power transform: statistics are of sign(z) |z|^beta, and what is drawn goes through
    the inverse, since the head reads plain embeddings; ``tukey_power=0.5`` is the
    article's for embeddings that end in a ReLU. Off by default.
    All clients are asked, whether or not they took part in the last round.
    A run calibrates on the side whenever it is evaluated; the rounds do not see it.
    Numbers sent once: d + d^2 + 1 for each class that a client has (d = 512: 1.05 MB);
    the stacked upload holds N C d^2 in memory.
"""

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedlib.blocks import descent, shared_model
from fedlib.blocks.shared_model import Client, Server
from fedlib.core import heads, protos
from fedlib.core.embed import forward, padded
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Context, Losses, Shards
from fedlib.core.protos import Protos


class HP(shared_model.HP):
    """Hyper-parameters of CCVR: FedAvg's, and those of the calibration."""

    samples_per_class: int = Field(default=100, ge=0)  # M_c
    epochs: int = Field(default=1, ge=0)  # over the features drawn
    server_optimiser: Literal["adam", "sgd"] | None = None  # None: the clients'
    server_learning_rate: float | None = Field(default=None, gt=0)  # None: the clients'
    jitter: float = Field(default=1e-4, gt=0)
    tukey_power: float = Field(default=1.0, gt=0, le=1)  # beta


class Gaussians(NamedTuple):
    """A normal distribution per class, and how many samples stand behind it."""

    mean: Tensor  # [..., C, d]; 0 where a class is absent
    covariance: Tensor  # [..., C, d, d]; 0 where it has fewer than two samples
    count: Tensor  # [..., C] int64

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of a message: present classes only."""
        present, size = int((self.count > 0).sum()), self.mean.shape[-1]
        return present * (size + size**2), present


class Up(NamedTuple):
    """From each client, once."""

    gaussians: Gaussians  # [N, ...] in float32


def power(z: Tensor, exponent: float) -> Tensor:
    """Return z with every number's size raised to a power; the signs stay."""
    return z.sign() * z.abs() ** exponent


def gaussians(z: Tensor, y: Tensor, classes: int) -> Gaussians:
    """Return the statistics of embeddings ``[K, n, d]``; labels below 0 are padding."""
    z = z.double()
    local = protos.from_sums(*protos.class_sums(z, y, classes))
    scatter = []
    for c, mean in enumerate(local.mean.unbind(1)):
        gap = torch.where((y == c).unsqueeze(-1), z - mean.unsqueeze(1), 0.0)
        scatter.append(gap.mT @ gap)
    freedom = (local.count - 1).clamp(min=1)[..., None, None]
    return Gaussians(local.mean, torch.stack(scatter, 1) / freedom, local.count)


def survey(ctx: Context[HP], server: Server, mine: Client, shards: Shards) -> Up:
    """Box 2; a client uses its own BatchNorm statistics where those stay local."""
    held = shared_model.models(ctx, server, mine)
    state, stacked = held.received or server.model.state, held.received is not None
    plain = shards._replace(augment=None)
    out, real = forward(ctx.net, state, plain, stacked=stacked)
    y = torch.where(real, shards.y[padded(shards.index)[0]], -1)
    fitted = gaussians(power(out.high, ctx.hp.tukey_power), y, ctx.classes)
    return Up(Gaussians(fitted.mean.float(), fitted.covariance.float(), fitted.count))


def pooled(local: Gaussians) -> Gaussians:
    """Return the statistics ``[C, ...]`` of the union of K clients' samples: box 3."""
    union = protos.merge(Protos(local.mean.double(), local.count), "samples")
    count = local.count.double()
    gap = local.mean.double() - union.mean
    scatter = torch.einsum(
        "kc,kcde->cde", (count - 1).clamp(min=0), local.covariance.double()
    ) + torch.einsum("kc,kcd,kce->cde", count, gap, gap)
    freedom = (union.count - 1).clamp(min=1)[:, None, None]
    return Gaussians(union.mean, scatter / freedom, union.count)


def draw(
    of: Gaussians, per_class: int, jitter: float, pick: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return ``per_class`` features of every known class ``[M, d]`` and their labels.

    Raises
    ------
    ValueError
        A covariance is not positive definite, even so.
    """
    known, freedom = of.count > 0, (of.count - 1).clamp(min=0).double()
    within = torch.einsum("c,cde->de", freedom, of.covariance)
    within = within / freedom.sum().clamp(min=1)
    covariance = torch.where((of.count < 2)[:, None, None], within, of.covariance)
    size = of.mean.shape[-1]
    scale = covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1)
    added = scale[:, None, None] * (jitter * torch.eye(size))
    root, failed = torch.linalg.cholesky_ex(covariance + added)
    failed = (failed > 0) & known
    if failed.any():
        c = int(failed.nonzero()[0])
        raise ValueError(
            f"ccvr: the covariance of class {c} is not positive definite with jitter "
            f"{jitter:g} times {scale[c]:g}; give a larger jitter"
        )
    noise = torch.randn(len(known), per_class, size, generator=pick, dtype=root.dtype)
    z = of.mean.unsqueeze(1) + noise @ root.mT
    return z[known].flatten(0, 1), known.nonzero()[:, 0].repeat_interleave(per_class)


def finalise(ctx: Context[HP], server: Server, up: Up) -> Server:
    """Box 3 and 4; the model stays as it is where nothing is drawn."""
    hp = ctx.hp
    pick, training = ctx.random("calibration"), ctx.training
    z, y = draw(pooled(up.gaussians), hp.samples_per_class, hp.jitter, pick)
    z = power(z, 1 / hp.tukey_power).float()
    epochs = hp.epochs if len(z) else 0
    batches = descent.batches(len(z), training.batch_size, epochs, pick)

    def loss(head, step):
        rows = batches[step]
        return Losses(cross_entropy(ctx.net.head(head, z[rows]), y[rows]), {}, {})

    fitted = descent.fit(
        ctx.net.head_state(server.model.params),
        loss,
        len(batches),
        learning_rate=hp.server_learning_rate or training.learning_rate,
        optimiser=hp.server_optimiser or training.optimiser,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
    )
    params = server.model.params | heads.within(fitted.state)
    return server._replace(model=server.model._replace(params=params))


METHOD = shared_model.BASE._replace(
    name="ccvr",
    source="Luo et al., NeurIPS 2021",
    hp=HP,
    survey=survey,
    finalise=finalise,
    per_class=("gaussians",),
)
