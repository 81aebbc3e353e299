"""A generator of embeddings beside the model, learnt from the clients' heads.

What FedPA and FedGen have in common: messages, the server's state, and the course of a
round on the server. A method says what is minimised over the generator and over a
client's model, from which classes labels are drawn, and how prototypes are merged where
it has them.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlib.blocks import descent, generators
from fedlib.blocks.descent import Fitted, Moments
from fedlib.blocks.generators import Generator, Noise
from fedlib.core import averaging, protos
from fedlib.core.local import Losses
from fedlib.core.messages import Model, as_model
from fedlib.core.method import Context
from fedlib.core.net import Net, State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator as named_generator
from fedlib.core.tree import tree_map


class Labels(NamedTuple):
    """A label distribution; all 0 before there is one, and then not sent."""

    share: Tensor  # [C]

    def sent(self) -> tuple[int, int]:
        """Return how many floats and integers travel."""
        return (self.share.numel() if bool(self.share.any()) else 0), 0


class Down(NamedTuple):
    """To every client."""

    model: Model  # with BatchNorm statistics unless they are local
    generator: Model  # with running statistics; not known in round 1
    protos: Protos  # [C, d]; none is known where a method has none
    labels: Labels  # [C], what the client draws labels from


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model
    protos: Protos  # [K, C, d]; none is known where a method has none
    labels: Tensor  # [K, C] label counts as floats, by which models are weighed
    # What else a method counts, such as "seen": [K, C] samples processed this round
    counters: dict[str, Tensor]


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    generator: State
    moments: Moments  # of the generator's Adam
    protos: Protos  # [C, d]
    labels: Tensor  # [C] label counts behind the distribution
    available: Tensor  # [C] bool, classes that any client has reported


def schedule(start: float, decay: float, floor: float, t: int) -> float:
    """Return a weight in round t (from 0); a weight of 0 stays off."""
    return max(floor, start * decay**t) if start else 0.0


def fidelity(
    entropy: Tensor, share: Tensor, weight: Literal["per_sample", "outer_mean"]
) -> Tensor:
    """Return the clients' cross-entropies, each a mean over a batch, in their shares.

    Parameters
    ----------
    entropy, share : Tensor
        ``[K, B]`` cross-entropy of each client's head on generated embeddings, and the
        client's share of their classes.
    weight : "per_sample" or "outer_mean"
        Each sample by the share of its class, or the mean of a batch by the mean share.
    """
    if weight == "outer_mean":
        return (share.mean(1) * entropy.mean(1)).sum()
    return (share * entropy).mean(1).sum()


def entropies(net: Net, heads: State, h: Tensor, y: Tensor) -> Tensor:
    """Return each head's cross-entropy ``[K, B]`` on embeddings ``[B, d]``.

    Parameters
    ----------
    heads : dict of Tensor
        ``[K, ...]``, which stay as they are.
    """
    logits = vmap(net.head, in_dims=(0, None))(heads, h)
    return F.cross_entropy(
        logits.flatten(0, 1), y.repeat(len(logits)), reduction="none"
    ).unflatten(0, logits.shape[:2])


def owner_share(counts: Tensor) -> Tensor:
    """Return the share ``[K, C]`` of each class that a client owns; sums to 1."""
    return counts / counts.sum(0).clamp(min=1)


def held_by_any(ctx: Context, server: Server) -> Tensor:
    """Return 1 for each class that any client holds ``[C]``; all 0 before a report."""
    held = range(ctx.classes) if ctx.held is None else ctx.held
    everyone = torch.tensor([float(c in held) for c in range(ctx.classes)])
    return everyone * server.available.any()


def rows_of_a_batch(ctx: Context, why: str) -> int:
    """Return the clients' batch size for the generator, whose BatchNorm needs two.

    Raises
    ------
    ValueError
        Batches of one; ``why`` is the setting that asks for their size.
    """
    if ctx.training.batch_size < 2:
        raise ValueError(
            f"batch_size: got {ctx.training.batch_size} with {why}, expected at least "
            "2: the generator's BatchNorm divides by a spread"
        )
    return ctx.training.batch_size


def generator_of(ctx: Context) -> Generator:
    """Return the generator of the net's high embedding, of the method's sizes."""
    _, size = ctx.net.embedding_sizes()
    hp = ctx.hp
    return generators.build(ctx.classes, size, hidden=hp.hidden, noise=hp.noise_size)


def first_server(ctx: Context, generator: Generator, state: State) -> Server:
    """Return the server before round 1: a generator is drawn, nothing is known.

    Parameters
    ----------
    state : dict of Tensor
        First weights of the clients ``[N, ...]``; the first client's are the model.
    """
    theta = generator.init(named_generator(ctx.seed, "init", "generator"))
    return Server(
        model=tree_map(lambda x: x[0], as_model(ctx.net, state)),
        generator=theta,
        moments=descent.blank(theta, generator.buffers),
        protos=protos.empty(ctx.classes, ctx.net.embedding_sizes()[1]),
        labels=torch.zeros(ctx.classes),
        available=torch.zeros(ctx.classes, dtype=torch.bool),
    )


def sent(generator: Generator, server: Server, counts: Tensor, buffers: str) -> Down:
    """Return the broadcast; the generator's statistics travel, as for eval mode.

    Parameters
    ----------
    counts : Tensor
        ``[C]`` what clients draw labels from, any sum.
    buffers : "average" or "local"
        Whether the model's BatchNorm statistics are sent.
    """
    held = generator.buffers
    theta = {k: v for k, v in server.generator.items() if v.is_floating_point()}
    return Down(
        server.model if buffers == "average" else server.model._replace(buffers={}),
        Model(
            {k: v for k, v in theta.items() if k not in held},
            {k: v for k, v in theta.items() if k in held},
            server.available.any(),
        ),
        server.protos,
        Labels(counts / counts.sum().clamp(min=1)),
    )


def train(
    generator: Generator,
    server: Server,
    loss: Callable[[State, Tensor, Tensor], Losses],
    counts: Tensor,
    draws: Callable[[int], torch.Generator],
    *,
    noise: Noise,
    batch: int,
    steps: int,
    **settings: Any,
) -> Fitted:
    """Train the server's generator by Adam, continuing from its moments.

    Parameters
    ----------
    loss : callable
        From the generator's state, noise ``[B, n]`` and labels ``[B]`` to the losses.
    counts : Tensor
        ``[C]`` what labels are drawn from, any positive sum.
    draws : callable
        From a step to the random numbers of its labels and noise.
    noise, batch, steps
        Distribution of the noise; embeddings per step; number of steps.
    **settings
        ``learning_rate`` and others, as in ``descent.fit``.
    """

    def drawn(state: State, step: int) -> Losses:
        pick = draws(step)
        y = generators.draw_labels(counts, batch, pick)
        z = generators.draw_noise(noise, len(y), generator.noise_size, pick)
        return loss(state, z, y)

    return descent.fit(
        server.generator,
        drawn,
        steps,
        moments=server.moments,
        buffers=generator.buffers,
        **settings,
    )


def merged(
    server: Server,
    up: Up,
    fitted: Fitted,
    means: Protos,
    labels: Tensor,
    buffers: averaging.Buffers,
) -> Server:
    """Return the server after a round: the mean of the models, and what is new.

    Parameters
    ----------
    fitted : Fitted
        The generator after its training.
    means, labels
        The server's new prototypes and label counts.
    buffers
        As in ``averaging.mean_model``.
    """
    return Server(
        averaging.mean_model(up.model, up.labels.sum(1), server.model, buffers),
        fitted.state,
        fitted.moments,
        means,
        labels,
        server.available | up.labels.any(0),
    )
