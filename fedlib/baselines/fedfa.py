r"""FedFA: feature anchors that embeddings and classifiers of all clients share.

Zhou, Zhang and Tsang, FedFA: Federated Learning with Feature Anchors to Align Features
and Classifiers for Heterogeneous Data, IEEE Transactions on Mobile Computing, 2023
(arXiv 2211.09299).

Symbols
    w       | server.model   | [...]    | the global model
    a_c     | server.anchors | [C, d]   | feature anchor of class c
    a_i_c   | up.anchors     | [K, C, d]| client i's anchors after its training
    f       | out.high       | [B, d]   | embeddings of a batch
    n_c     | mates          | [B]      | samples of a sample's class in its batch
    lambda  | anchor_weight  | []       | weight of the pull
    n_i     | up.samples     | [K]      | client i's number of training samples

Box
    1. broadcast: send the global model and the anchors.
    2. client: minimise cross-entropy + lambda / C * (sum over the batch of the squared
       distance of an embedding to its class's anchor, divided by n_c).
    3. client, after each batch: calibrate the head by one step of Adam on the
       cross-entropy of all C anchors, anchor c having label c.
    4. client, after each epoch: its anchor of a class that it saw becomes half of
       itself (``anchor_momentum``) and half of the mean over batches of the class's
       mean embedding.
    5. client: send the model and its anchors; the anchor of a class that it lacks is
       the one that it received.
    6. merge: average the models, and the anchors, by samples.

Readings
    First anchors: unit vectors along different axes, or at random where there are more
    classes than dimensions.
    The pull and the calibration use the anchors as received until the round ends.
    Mean over batches: over those that hold the class. ``batch_means="all"`` is the
    released code: the sum is divided by the number of all batches, which draws the
    anchor of a class that few batches hold towards 0. Embeddings are those of the
    training steps, before each update.
    Calibration: one Adam from the first batch to the end of the round (released code),
    or, ``calibration_moments="step"``, a fresh one for each step, which moves every
    weight by the rate against the sign of its gradient. Dropout in the head is off. A
    rate of 0 calibrates nothing.
    A run with ``local_steps`` is one epoch. Learning rate, its decay and weight decay
    are the run's. Weights of the mean and BatchNorm statistics as in FedAvg.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client
from fedlib.core import heads
from fedlib.core.averaging import client_weights, mean_model, start
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import Model
from fedlib.core.method import Context, Counted, Logged, Losses, Models, Shards, Turn
from fedlib.core.net import State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.tree import tree_mean

# Of the calibration's Adam, beside a client's weights until the round ends.
MOMENTS = "own.calibration"
BETAS = (0.9, 0.999)


class HP(shared_model.HP):
    """Hyper-parameters of FedFA."""

    anchor_weight: float = Field(default=0.1, ge=0)  # lambda
    anchor_momentum: float = Field(default=0.5, ge=0, le=1)
    batch_means: Literal["held", "all"] = "held"
    calibration_rate: float = Field(default=1e-3, ge=0)
    calibration_moments: Literal["round", "step"] = "round"  # how long Adam's live


class Server(NamedTuple):
    """What the server keeps, and sends to every client."""

    model: Model
    anchors: Tensor  # [C, d]


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model
    anchors: Tensor  # [K, C, d]
    samples: Tensor  # [K] int64


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the model; anchors are unit vectors, at right angles where there is room."""
    server, mine = shared_model.init(ctx)
    size = ctx.net.embedding_sizes()[1]
    draw = generator(ctx.seed, "init", "anchors")
    anchors = F.normalize(torch.randn(ctx.classes, size, generator=draw))
    if size >= ctx.classes:
        anchors = torch.eye(ctx.classes, size)
    return Server(server.model, anchors), mine


def broadcast(ctx: Context, server: Server) -> Server:
    """Box 1."""
    return server._replace(model=shared_model.sent(ctx, server.model))


def mates(y: Tensor) -> Tensor:
    """Return for each sample how many of its batch have its class, ``[B]``."""
    return (y.unsqueeze(1) == y).sum(1)


def pull(z: Tensor, y: Tensor, anchors: Tensor) -> Tensor:
    """Return the mean over classes of the mean squared distance to their anchors."""
    return ((z - anchors[y]).square().sum(1) / mates(y)).sum() / len(anchors)


def blank(ctx: Context[HP], state: State) -> State:
    """Return the moments of clients whose calibration has not stepped, ``[K, ...]``."""
    if not ctx.hp.calibration_rate or ctx.hp.calibration_moments == "step":
        return {}
    head = ctx.net.head_state(state)
    fields = ("exp_avg", "exp_avg_sq")
    clients = len(next(iter(head.values())))
    return {f"{MOMENTS}.step": torch.zeros(clients)} | {
        f"{MOMENTS}.{field}.{name}": torch.zeros_like(value)
        for field in fields
        for name, value in head.items()
    }


def without(state: State) -> State:
    """Return a state without the moments of the calibration."""
    return {k: v for k, v in state.items() if not k.startswith(MOMENTS)}


def calibrate(ctx: Context[HP], state: State, anchors: Tensor) -> State:
    """Box 3: return the head, and the moments, after a step of Adam.

    Without moments in ``state`` it is the first step.
    """

    def loss(head):
        logits = ctx.net.head(head, anchors)
        return cross_entropy(logits, torch.arange(len(anchors)))

    head = ctx.net.head_state(state)
    gradient = torch.func.grad(loss)(head)
    rate = ctx.hp.calibration_rate
    if f"{MOMENTS}.step" not in state:
        return heads.within(
            {k: head[k] - rate * g / (g.abs() + 1e-8) for k, g in gradient.items()}
        )
    step = state[f"{MOMENTS}.step"] + 1
    after = {f"{MOMENTS}.step": step}
    for k, g in gradient.items():
        names = f"{MOMENTS}.exp_avg.{k}", f"{MOMENTS}.exp_avg_sq.{k}"
        first = torch.lerp(g, state[names[0]], BETAS[0])
        second = torch.lerp(g.square(), state[names[1]], BETAS[1])
        size = (second / (1 - BETAS[1] ** step)).sqrt() + 1e-8
        moved_by = rate / (1 - BETAS[0] ** step) * first / size
        after |= heads.within({k: head[k] - moved_by})
        after |= dict(zip(names, (first, second), strict=True))
    return after


def moved(anchors: Tensor, seen: Protos, hp: HP) -> Tensor:
    """Box 4: anchors ``[K, C, d]`` after an epoch of which ``seen`` is the tally."""
    total = seen.mean * seen.count.unsqueeze(-1)
    batches = total[..., -2:-1]  # [K, C, 1] those that hold the class
    if hp.batch_means == "all":
        batches = total[..., -1:].sum(1, keepdim=True)  # [K, 1, 1]
    mean = total[..., :-2] / batches.clamp(min=1)
    mixed = hp.anchor_momentum * anchors + (1 - hp.anchor_momentum) * mean
    return torch.where(seen.known.unsqueeze(-1), mixed, anchors)


def client(
    ctx: Context[HP], down: Server, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 to 5, an epoch at a time, through which the optimiser continues."""
    hp = ctx.hp

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),
            "pull": pull(out.high, batch.y, down.anchors),
        }
        total = terms["supervised"] + hp.anchor_weight * terms["pull"]
        # Summed over samples of a class: batch means, and batches that hold the class;
        # over all samples: batches
        own = mates(batch.y).unsqueeze(1)
        tally = torch.cat(
            [out.high / own, 1 / own, 1 / torch.full_like(own, len(batch.y))], 1
        )
        return Losses(total, terms, {"batches": tally})

    def calibrated(state, extra):
        return calibrate(ctx, state, down.anchors)

    anchors = down.anchors.expand(len(shards.index), *down.anchors.shape)
    state, terms = start(down.model, mine.state), []
    state = state | blank(ctx, state)
    after_step = calibrated if hp.calibration_rate else None
    for trained in ctx.epochs(state, shards, loss, after_step=after_step):
        state = trained.state
        anchors = moved(anchors, trained.protos["batches"], hp)
        terms.append(trained.terms)
    state = without(state)
    up = Up(shared_model.uploaded(ctx, state), anchors, shards.sizes())
    return Client(state), up, tree_mean(terms)


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 6."""
    weight = client_weights(up.samples, ctx.hp.weighting)
    share = (weight / weight.sum()).to(up.anchors.dtype)
    anchors = torch.einsum("k,kcd->cd", share, up.anchors)
    return Server(
        mean_model(up.model, weight, server.model, ctx.hp.buffers), anchors
    ), {}


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return FedAvg's models, with the anchors as prototypes of all classes."""
    shared = shared_model.models(ctx, server, mine)
    every = torch.ones(ctx.classes, dtype=torch.int64)
    return shared._replace(protos=Protos(server.anchors, every))


METHOD = shared_model.BASE._replace(
    name="fedfa",
    source="Zhou et al., TMC 2023",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    counted=(Counted("up", "model"), Counted("up", "anchors")),
)
