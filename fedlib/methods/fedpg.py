r"""FedPG: virtual images that share the prototypes' classes.

Xue et al., FedPG: A Privacy-friendly and Universal Method for Solving non-IID Data in
Federated Learning. Equation numbers are the article's.

Symbols
    symbol    | name here              | shape           | equation
    P_{k,c}   | up.protos              | [K, C, d]       | (4), local prototypes
    P_c       | server.protos          | [C, d]          | (5), global prototypes
    P'_c      | server.anchors         | [C, d]          | 4.2, virtual prototypes
    d(P', P)  | anchor_distance        | []              | (6), (7)
    l_dce     | anchor_entropy         | [B]             | (8)
    l_p       | proto_loss             | [B]             | (9)
    L_G       | train_generator.loss   | []              | (10)
    G_w       | server.generator       |                 | 4.2, label -> image
    D'        | server.images          | [C n_v, c, h, w]| 4.2, virtual data
    l_fa      | align                  | []              | (11)
    l_ct      | tuning                 | []              | (12)
    L_k       | client.with_virtual    | []              | (13)
    M, M_k    | server.model, mine.state |               | (2), global, client k's
    f         | net(...).high          | [B, d]          | 3.1, the embedding

Box
    1. broadcast: send the model and, once there are some, the virtual images.
    2. client: from the model, minimise cross-entropy on its own and on virtual images
       + lambda_c * l_fa, which draws own samples to virtual ones of their class.
    3. client: send the model and, per class, the mean embedding of up to m samples.
    4. merge: average the models by samples and the prototypes over their owners.
    5. merge: train the generator and the virtual prototypes under the new model: the
       embeddings of virtual images near the virtual prototype of their class, and
       virtual prototypes near the global ones.
    6. merge: make n_v virtual images per class, for the next round.

Readings
    A difference between paper and released code is a switch, unless it is said to be
    none; the default is the paper's side, ``variant="reference"`` takes the released
    one of all (``REFERENCE``) at the paper's numbers of images and weights, which
    nobody released so. N, T, W and H are lines of gan.py, FedPG_trainer.py,
    FedPG_workers.py and utils.py (SOURCES.md).

    term | switch                      | paper           | released     | released in
    (4)  | with_replacement            | False           | True         | W 464
    (6)  | proto_term                  | sum             | mean         | H 28
    (7)  | absent                      | mask            | zeros        | N 111
    (8)  | gan_dist                    | l2              | sq_l2_scale2 | W 326, H 21
    (8)  | dce_denominator             | exclude_true    | all          | W 346
    (10) | freeze_f                    | True            | False        | W 329-332
    (11) | fa                          | eq11_normalised | supcon_union | T 95-107
    (13) | separate_virtual_bn_forward | False           | True         | T 121, 140
    D'   | virtual_until               | None            | 30           | T 82, W 167

    Further values, of neither side: ``fa="eq11_raw"`` takes embeddings as they are;
    ``v_batch_balanced``: every virtual batch holds all classes alike;
    ``keep_virtual_statistics=False`` forgets the statistics of the virtual pass.
    The two released configurations (XueBaolu/FedPG, commit 73ce01e) are variants of
    their own, ``CONFIGURATIONS``: ``"notebook"``, of ``run_fedpg.ipynb``, whose log is
    the only one, and ``"script"``, of ``run_fedpg.py``, which the authors' README names
    and which imports files under older names, so that it does not run as it is. Both
    leave settings to a file that was not released: the weight of l_ct (notebook; 1 as
    in a comment there), size of virtual batches and bound (script; 64 and none).
    Virtual data in every round; the notebook stops for good: images are made in rounds
    1 to 30 and used in rounds 2 to 31, later rounds are FedAvg. Its clients send
    prototypes in round 31, too, which nobody reads; ours not.
    Distances of Eq. (7), (8): Euclidean divided by tau = 2; the released code
    multiplies squares by 2, which saturates the softmax.
    Eq. (8) leaves the true class out of the denominator, so that it has no lower bound;
    with all classes it is the usual cross-entropy.
    Eq. (7): prototypes of absent classes are left out of the denominator; released:
    zero vectors in their place.
    f is frozen; the released optimiser also trains its copy. Its BatchNorm uses running
    statistics in both.
    P' are "generated randomly" and trained with the generator, for which the paper
    prints 300 epochs and 2e-5, but no optimiser. Released, and ours: drawn from N(0, 1)
    anew in each round, trained by the generator's Adam at its rate, which is multiplied
    by 0.95 after every 20 of 300 steps. So a coordinate moves by some 0.004, and P'
    never come near P. ``STUDY`` starts at P where a class has one and lets P' move:
    ``proto_init``, ``proto_lr``; ``proto_persist`` begins where the last round ended.
    Noise is uniform on [0, 1) (released code). Generator weights continue from round to
    round, its optimiser starts anew (released code). 300 "epochs" are 300 steps.
    Eq. (11) states no normalisation and has no lower bound; embeddings are of unit
    length with the released temperature 0.07; the released loss is SupCon over own and
    detached virtual embeddings + 0.1 SupCon over virtual ones. An own sample without a
    virtual image of its class, or without one of another, is left out of the mean.
    Virtual batches follow one shuffled order per client and round, again and again
    (released code).
    BatchNorm sees own and virtual images as one batch; the released code passes them
    apart, virtual last, each twice; ours once (no switch).
    Prototypes: m = 20 samples without replacement, in eval mode, all where a class has
    fewer. P holds this round's classes only.
    The released server sends D' to all clients; here the cohort receives it (no switch;
    it changes bytes alone).
    The paper does not say what becomes of an epoch's last, smaller batch. The released
    runs train on it, and so does FedPG's setting of all methods (``drop_last=False``).
    Before there are virtual images l_ct and l_fa are 0 and training is FedAvg's.
"""

from functools import partial
from typing import Any, Literal, NamedTuple, Self

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedlib.blocks import descent, image_generators, virtual_data
from fedlib.blocks.descent import Fitted
from fedlib.blocks.generators import Generator, Noise, draw_noise
from fedlib.blocks.image_generators import Architecture
from fedlib.core import averaging, protos
from fedlib.core.embed import class_means
from fedlib.core.hyper import HyperParameters, Variant, fill_variant
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import as_model
from fedlib.core.method import (
    Batch,
    Context,
    Counted,
    Logged,
    Losses,
    Method,
    Model,
    Models,
    Rule,
    Shards,
    Turn,
)
from fedlib.core.net import Out, State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator as named_generator
from fedlib.core.tree import tree_map

RELEASED_SCALE = 2.0  # the released code multiplies squared distances by it

# What the released code does where the paper says something else.
REFERENCE: dict[str, Any] = {
    "virtual_until": 30,
    "gan_dist": "sq_l2_scale2",
    "dce_denominator": "all",
    "absent": "zeros",
    "proto_term": "mean",
    "freeze_f": False,
    "fa": "supcon_union",
    "with_replacement": True,
    "separate_virtual_bn_forward": True,
}

# What the two released programs that call this code set. Their clients' training stands
# with the paper's settings.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "notebook": {"virtual_per_class": 256, "align_weight": 20.0},
    "script": {
        "virtual_per_class": 50,
        "tuning_weight": 0.5,
        "align_weight": 0.1,
        "virtual_until": None,
    },
}

# Virtual prototypes that do come near the real ones; ours.
STUDY: dict[str, Any] = {
    "proto_init": "real_or_randn",
    "proto_lr": 1e-2,
    "proto_persist": True,
}

# Table 2.
ABLATIONS: dict[str, dict[str, float]] = {
    "GT-d": {"anchor_weight": 0.0},
    "GT-p": {"proto_weight": 0.0},
    "LT-fa": {"align_weight": 0.0},
    "LT-ct": {"tuning_weight": 0.0},
}


class HP(HyperParameters):
    r"""Hyper-parameters of FedPG."""

    variant: Literal[Variant, "notebook", "script"] = "paper"
    # the client's side
    align_weight: float = Field(default=1.0, ge=0)  # lambda_c
    tuning_weight: float = Field(default=1.0, ge=0)  # of l_ct; 1 in Eq. (13)
    fa: Literal["eq11_normalised", "eq11_raw", "supcon_union"] = "eq11_normalised"
    align_temperature: float = Field(default=0.07, gt=0)  # tau of Eq. (11)
    v_batch_size: int = Field(default=64, ge=1)
    v_batch_balanced: bool = False
    separate_virtual_bn_forward: bool = False
    keep_virtual_statistics: bool = True
    support: int = Field(default=20, ge=1)  # m
    with_replacement: bool = False
    virtual_until: int | None = Field(default=None, ge=0)  # last round that makes D'
    # the server's side
    virtual_per_class: int = Field(default=64, ge=1)  # n_v
    generator: Architecture = "fc"
    noise: Noise = "uniform"
    noise_size: int = Field(default=512, ge=1)
    generator_steps: int = Field(default=300, ge=1)
    generator_batch_size: int = Field(default=128, ge=2)
    generator_learning_rate: float = Field(default=2e-5, gt=0)
    generator_decay_every: int = Field(default=20, ge=1)
    generator_decay: float = Field(default=0.95, gt=0, le=1)
    anchor_weight: float = Field(default=1.0, ge=0)  # of d(P', P); 1 in Eq. (10)
    proto_weight: float = Field(default=0.001, ge=0)  # lambda_s
    gan_dist: Literal["l2", "sq_l2_scale2"] = "l2"
    gan_tau: float = Field(default=2.0, gt=0)  # tau of Eq. (7) and (8)
    dce_denominator: Literal["exclude_true", "all"] = "exclude_true"
    absent: Literal["mask", "zeros"] = "mask"
    proto_term: Literal["sum", "mean"] = "sum"
    freeze_f: bool = True
    proto_init: Literal["randn", "real_or_randn"] = "randn"
    proto_lr: float = Field(default=2e-5, ge=0)
    proto_persist: bool = False

    _variant = model_validator(mode="before")(
        fill_variant(REFERENCE, **{k: REFERENCE | v for k, v in CONFIGURATIONS.items()})
    )

    @model_validator(mode="after")
    def _statistics(self) -> Self:
        if not (self.keep_virtual_statistics or self.separate_virtual_bn_forward):
            raise ValueError(
                "keep_virtual_statistics=False needs separate_virtual_bn_forward=True"
            )
        return self


class Virtual(NamedTuple):
    """Labelled virtual images; ``known`` is False before there are any to send."""

    images: Tensor  # [C n_v, c, h, w] in [-1, 1]; a net takes them as they are
    labels: Tensor  # [C n_v] int64
    known: Tensor  # [] bool

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of the message."""
        if not bool(self.known):
            return 0, 0
        return self.images.numel(), self.labels.numel()


class Down(NamedTuple):
    """To every client of the cohort."""

    model: Model  # M
    virtual: Virtual  # D'


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # M_k
    protos: Protos  # [K, C, d], P_k
    samples: Tensor  # [K] int64, |D_k|


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    generator: State  # w, continues from round to round
    protos: Protos  # [C, d], P
    anchors: Tensor  # [C, d], P'
    images: Tensor  # [C n_v, c, h, w], D'; its labels are 0, ..., 0, 1, ...
    known: Tensor  # [] bool, whether P' and D' exist


class Client(NamedTuple):
    """What a client keeps between rounds; only evaluation reads it."""

    state: State  # [K, ...], M_k


# What a term is by each side of the card's table; the paper's comes first.

CLOSENESS = {  # Eq. (7), (8): the logits of distances [A, B]
    "l2": lambda distance, tau: -distance / tau,
    "sq_l2_scale2": lambda distance, tau: -RELEASED_SCALE * distance.square(),
}
ABSENT = {  # Eq. (7): the logits [C, C] of its denominator; known [C]: classes of P
    "mask": lambda logits, known: logits.masked_fill(~known, float("-inf")),
    "zeros": lambda logits, known: logits,
}
OVER_CLASSES = {  # Eq. (6): of a class's terms [C], which are 0 where P lacks it
    "sum": lambda per_class, known: per_class.sum(),
    "mean": lambda per_class, known: per_class.sum() / known.sum().clamp(min=1),
}
DENOMINATOR = {  # Eq. (8): its logits [B, C]; true [B, C]: where the own class stands
    "exclude_true": lambda logits, true: logits.masked_fill(true, float("-inf")),
    "all": lambda logits, true: logits,
}
LENGTH = {  # Eq. (11): the embeddings [B, d] that it compares
    "eq11_normalised": lambda v: F.normalize(v, eps=1e-12),
    "eq11_raw": lambda v: v,
}


def closeness(a: Tensor, b: Tensor, hp: HP) -> Tensor:
    r"""Return the logits ``[A, B]`` of Eq. (7) and (8): minus distance over tau."""
    distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    return CLOSENESS[hp.gan_dist](distance, hp.gan_tau)


def anchor_distance(anchors: Tensor, real: Protos, hp: HP) -> Tensor:
    r"""Return :math:`d(P', P)` of virtual and global prototypes, both ``[C, d]``."""
    logits = closeness(anchors, real.mean, hp)
    below = ABSENT[hp.absent](logits, real.known).logsumexp(1)
    per_class = torch.where(real.known, below - logits.diagonal(), 0.0)  # Eq. (7)
    return OVER_CLASSES[hp.proto_term](per_class, real.known)  # Eq. (6)


def anchor_entropy(z: Tensor, y: Tensor, anchors: Tensor, hp: HP) -> Tensor:
    r"""Return :math:`\ell_{dce}` ``[B]`` of embeddings ``[B, d]`` and anchors."""
    logits = closeness(z, anchors, hp)
    true = F.one_hot(y, len(anchors)).bool()
    below = DENOMINATOR[hp.dce_denominator](logits, true).logsumexp(1)
    return below - logits[true]  # Eq. (8)


def proto_loss(z: Tensor, y: Tensor, anchors: Tensor) -> Tensor:
    r"""Return :math:`\ell_p` ``[B]``: squared length from each embedding to P'_y."""
    return (z - anchors[y]).square().sum(1)  # Eq. (9)


def align(z: Tensor, y: Tensor, virtual: Tensor, labels: Tensor, hp: HP) -> Tensor:
    r"""Return :math:`\ell_{fa}`, the mean over a batch.

    Parameters
    ----------
    z, y : Tensor
        ``[B, d]`` embeddings of the client's samples and their classes ``[B]``.
    virtual, labels : Tensor
        ``[V, d]`` embeddings of virtual images and their classes ``[V]``.
    """
    tau = hp.align_temperature
    if hp.fa == "supcon_union":
        return virtual_data.supcon_union(z, y, virtual, labels, tau)
    similarity = LENGTH[hp.fa](z) @ LENGTH[hp.fa](virtual).T / tau
    same = y.unsqueeze(1) == labels
    of_class = similarity.masked_fill(~same, -1e9).logsumexp(1)
    of_others = similarity.masked_fill(same, -1e9).logsumexp(1)
    usable = same.any(1) & ~same.all(1)
    per_sample = torch.where(usable, of_others - of_class, 0.0)  # Eq. (11)
    return per_sample.sum() / usable.sum().clamp(min=1)


def makes_images(ctx: Context[HP], number: int) -> bool:
    """Return whether a round's prototypes are sent, and images made of them."""
    return ctx.hp.virtual_until is None or number <= ctx.hp.virtual_until


def build_generator(ctx: Context[HP]) -> Generator:
    r"""Return :math:`G_w` for this net's images."""
    hp = ctx.hp
    return image_generators.build(
        hp.generator, ctx.classes, ctx.net.shape, noise=hp.noise_size
    )


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw one model for all and the generator; there is no virtual image yet."""
    hp = ctx.hp
    if ctx.classes < 2 and hp.dce_denominator == "exclude_true":
        raise ValueError("fedpg: Eq. (8) without the true class needs two classes")
    mine = Client(ctx.init_clients(common=True))
    size = ctx.net.embedding_sizes()[1]
    server = Server(
        model=tree_map(lambda x: x[0], as_model(ctx.net, mine.state)),
        generator=build_generator(ctx).init(
            named_generator(ctx.seed, "init", "image generator")
        ),
        protos=protos.empty(ctx.classes, size),
        anchors=torch.zeros(ctx.classes, size),
        images=torch.zeros(ctx.classes * hp.virtual_per_class, *ctx.net.shape),
        known=torch.tensor(False),
    )
    return server, mine


def virtual_labels(ctx: Context[HP]) -> Tensor:
    """Return the labels of D' ``[C n_v]``: each class n_v times."""
    return virtual_data.labels(ctx.classes, ctx.hp.virtual_per_class)


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    known = server.known & makes_images(ctx, ctx.round - 1)  # of the round before
    return Down(server.model, Virtual(server.images, virtual_labels(ctx), known))


def forward(
    ctx: Context[HP], state: State, x: Tensor, virtual: Tensor
) -> tuple[Out, Out]:
    """Return outputs of own and of virtual images in train mode."""
    hp = ctx.hp
    if not hp.separate_virtual_bn_forward:
        out = ctx.net(state, torch.cat([x, virtual]), train=True)
        return Out(*(p[: len(x)] for p in out)), Out(*(p[len(x) :] for p in out))
    own = ctx.net(state, x, train=True)
    if not hp.keep_virtual_statistics:
        held = ctx.net.buffers
        state = {k: v.clone() if k in held else v for k, v in state.items()}
    return own, ctx.net(state, virtual, train=True)


def local_protos(ctx: Context[HP], state: State, shards: Shards) -> Protos:
    """Return the prototypes ``[K, C, d]`` of m random samples per client and class.

    None is known in a round that makes no images, where nobody would read them.
    """
    if not makes_images(ctx, ctx.round):
        size = ctx.net.embedding_sizes()[1]
        unknown = protos.empty(ctx.classes, size)
        return tree_map(lambda x: x.expand(len(shards.ids), *x.shape), unknown)
    support = []
    for client, index in zip(shards.ids, shards.index, strict=True):
        draw = ctx.random("support", client)
        rows = [index[shards.y[index] == c] for c in range(ctx.classes)]
        support.append(torch.cat([_choose(r, ctx.hp, draw) for r in rows]))
    chosen = shards._replace(index=support)
    return class_means(ctx.net, state, chosen, "high")  # Eq. (4)


def _choose(rows: Tensor, hp: HP, draw: torch.Generator) -> Tensor:
    """Return m of the rows, or all where there are not more than m."""
    if len(rows) <= hp.support:
        return rows
    if hp.with_replacement:
        return rows[torch.randint(len(rows), (hp.support,), generator=draw)]
    return rows[torch.randperm(len(rows), generator=draw)[: hp.support]]


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    virtual = down.virtual

    def with_virtual(state, batch):
        chosen = batch.extra["virtual"]
        labels = virtual.labels[chosen]
        own, made = forward(ctx, state, batch.x, virtual.images[chosen])
        terms = {
            "supervised": cross_entropy(own.logits, batch.y),
            "tuning": cross_entropy(made.logits, labels),  # Eq. (12)
            "align": align(own.high, batch.y, made.high, labels, hp),
        }
        total = (  # Eq. (13)
            terms["supervised"]
            + hp.tuning_weight * terms["tuning"]
            + hp.align_weight * terms["align"]
        )
        return Losses(total, terms, {})

    start = averaging.start(down.model, mine.state)
    if bool(virtual.known) and (hp.tuning_weight or hp.align_weight):
        draw = virtual_data.cycled(virtual_data.plans(ctx, shards.ids))
        trained = ctx.train(start, shards, with_virtual, draw=draw)
    else:
        trained = ctx.train(start, shards, partial(without_virtual, ctx))
    local = local_protos(ctx, trained.state, shards)
    up = Up(as_model(ctx.net, trained.state), local, shards.sizes())
    # A prototype of a single sample is that sample's embedding: count them.
    single = {"single_sample_protos": (local.count == 1).sum(1).to(torch.float32)}
    return Client(trained.state), up, trained.terms | single


def without_virtual(ctx: Context, state: State, batch: Batch) -> Losses:
    """Return FedAvg's loss, beside the terms that are 0 without virtual images."""
    supervised = cross_entropy(ctx.net(state, batch.x, train=True).logits, batch.y)
    none = torch.zeros_like(supervised)
    terms = {"supervised": supervised, "tuning": none, "align": none}
    return Losses(supervised, terms, {})


def first_anchors(ctx: Context[HP], server: Server, real: Protos) -> Tensor:
    """Return the virtual prototypes ``[C, d]`` that a round's training begins with."""
    hp = ctx.hp
    fresh = torch.randn(real.mean.shape, generator=ctx.random("anchors"))
    if hp.proto_persist:
        fresh = torch.where(server.known, server.anchors, fresh)
    if hp.proto_init == "real_or_randn":
        return torch.where(real.known.unsqueeze(-1), real.mean, fresh)
    return fresh


def train_generator(
    ctx: Context[HP], weights: State, model: State, real: Protos, anchors: Tensor
) -> Fitted:
    r"""Minimise :math:`\mathcal L_G` over the generator and the virtual prototypes.

    Parameters
    ----------
    weights : dict of Tensor
        The generator's state to begin with.
    model : dict of Tensor
        The new global model f, through which gradients reach the images.
    real : Protos
        ``[C, d]``, P; anchors, ``[C, d]``, the P' to begin with.

    Returns
    -------
    Fitted
        Its state holds ``generator.*``, ``anchors`` and, where f is trained too,
        ``f.*``.
    """
    hp = ctx.hp
    network, random = build_generator(ctx), ctx.random("generator")
    state = _prefixed("generator.", weights)
    state["anchors"] = anchors
    still = network.buffers | image_generators.idle(network)
    held = frozenset(_prefixed("generator.", dict.fromkeys(still)))
    if not hp.freeze_f:
        state |= _prefixed("f.", model)
        held |= frozenset(_prefixed("f.", dict.fromkeys(ctx.net.buffers)))

    def loss(state, step):
        y = torch.randint(ctx.classes, (hp.generator_batch_size,), generator=random)
        noise = draw_noise(hp.noise, len(y), hp.noise_size, random)
        images = network(part("generator.", state), noise, y, train=True)
        f = model if hp.freeze_f else part("f.", state)
        z, virtual = ctx.net(f, images).high, state["anchors"]
        terms = {
            "entropy": anchor_entropy(z, y, virtual, hp).mean(),
            "proto": proto_loss(z, y, virtual).mean(),
            "distance": anchor_distance(virtual, real, hp),
        }
        total = (  # Eq. (10)
            terms["entropy"]
            + hp.proto_weight * terms["proto"]
            + hp.anchor_weight * terms["distance"]
        )
        return Losses(total, terms, {})

    return descent.fit(
        state,
        loss,
        hp.generator_steps,
        learning_rate=hp.generator_learning_rate,
        rates={"anchors": hp.proto_lr},
        betas=(0.5, 0.999),
        decay=(hp.generator_decay_every, hp.generator_decay),
        buffers=held,
    )


def _prefixed(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    return {prefix + k: v for k, v in values.items()}


def part(prefix: str, state: State) -> State:
    """Return the entries of a state whose names begin so, without that beginning."""
    entries = {k: v for k, v in state.items() if k.startswith(prefix)}
    return {k.removeprefix(prefix): v for k, v in entries.items()}


@torch.no_grad()
def make_images(ctx: Context[HP], weights: State) -> Tensor:
    """Return D' ``[C n_v, c, h, w]``: the same for the same seed and round."""
    hp = ctx.hp
    labels = virtual_labels(ctx)
    noise = draw_noise(hp.noise, len(labels), hp.noise_size, ctx.random("virtual"))
    return build_generator(ctx)(weights, noise, labels)


@torch.no_grad()
def right_share(ctx: Context, model: State, images: Tensor) -> Tensor:
    """Return the share of virtual images that a model takes for their class."""
    logits = torch.cat([ctx.net(model, x).logits for x in images.split(256)])
    return (logits.argmax(1) == virtual_labels(ctx)).to(torch.float32).mean()


def gap(anchors: Tensor, real: Protos) -> Tensor:
    """Return the mean length from P'_c to P_c over the classes that P knows."""
    return torch.linalg.vector_norm(anchors - real.mean, dim=1)[real.known].mean()


def merge(ctx: Context, server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4, 5 and 6; without a prototype the virtual images stay."""
    model = averaging.mean_model(up.model, up.samples, server.model)  # Eq. (2)
    # In float64, so that the order of the clients leaves no trace.
    real = protos.merge(Protos(up.protos.mean.double(), up.protos.count))  # Eq. (5)
    real = Protos(real.mean.to(torch.float32), real.count)
    if not bool(real.known.any()):
        names = ("entropy", "proto", "distance", "gap_before", "gap", "right")
        return server._replace(model=model), {n: torch.tensor(torch.nan) for n in names}
    first = first_anchors(ctx, server, real)
    fitted = train_generator(ctx, server.generator, model.state, real, first)
    weights, anchors = part("generator.", fitted.state), fitted.state["anchors"]
    images = make_images(ctx, weights)
    terms = fitted.terms | {
        "gap_before": gap(first, real),
        "gap": gap(anchors, real),
        "right": right_share(ctx, model.state, images),
    }
    known = torch.tensor(True)
    return Server(model, weights, real, anchors, images, known), terms


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the clients' models after training and the average after merging."""
    return Models(mine.state, server.model.state, None)


METHOD = Method(
    name="fedpg",
    source="Xue et al., FedPG",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("global", "head_all"),
    counted=(
        *(Counted("down", "model"), Counted("down", "virtual")),
        *(Counted("up", "model"), Counted("up", "protos")),
    ),
    per_class=("protos",),
    forgets=lambda hp: True,
)
