r"""FedPA: a feature generator that keeps away from the prototypes.

Jiang et al., FedPA: Generator-Based Heterogeneous Federated Prototype Adversarial
Learning, IEEE TDSC 2024. Equation numbers are the article's.

Symbols
    symbol        | name here            | shape     | equation
    phi_i^m       | up.protos            | [K, C, d] | (2), local prototypes
    phi^m         | server.protos        | [C, d]    | (3), global prototypes
    h             | generator(...)       | [B, d]    | (4), generated embeddings
    L_fid         | fidelity             | []        | (5)
    L_ad          | adversarial          | []        | (6)
    L_div         | diversity            | []        | (7)
    L_G           | train_generator.loss | []        | (8)
    L_pre         | in client.loss       | []        | (9)
    L_po          | align                | []        | (10)
    L_ge          | synthetic            | []        | (11)
    L             | client.loss          | []        | (12)
    omega, omega_i| server.model, mine.state |       | the global model, client i's
    theta         | server.generator     |           | the generator's weights
    \tilde p(y)   | down.labels          | [C]       | label distribution
    p_{k,j}       | owner_share          | [K, C]    | in (5), share of a class
    t             | ctx.round - 1        |           | the paper counts from 0

Box
    1. broadcast: send the model; from the second round on also the generator, the
       prototypes and the label distribution.
    2. client: from the model, minimise cross-entropy on its own samples
       + lambda_po * distance of each embedding to its class's prototype
       + lambda_ge * cross-entropy of its head on generated embeddings.
    3. client: send the model, the class means and the label counts.
    4. merge: prototypes and label distribution from the counts; average the models.
    5. merge: train the generator: right under the clients' heads (L_fid), spread within
       a class (L_div), far from the new prototypes (L_ad).

Readings
    Each difference between paper and released code is a switch. The default is the
    paper's side; ``variant="reference"`` takes the released one of all (``REFERENCE``).
    S, U, V and G are lines of serverFedPA.py, userFedPA.py, userbase.py and
    generator.py (SOURCES.md).

    term     | switch          | paper           | released          | released in
    (2)      | proto           | post_full_eval  | online_train      | U 59, 102
    (3)      | missing_proto   | carry_and_mask  | zero              | S 232
    (3)      | proto_zero_bug  | False           | True              | S 240-244
    (4)      | noise           | normal          | uniform           | G 55
    (5)      | fid_weight      | per_sample      | outer_mean        | S 160-166
    (5)      | fid_norm        | paper           | sum               | S 167
    (5)      | pj_counts       | dataset         | seen_plus1        | S 207, U 41
    (6)      | ad_dist         | l2              | mse               | S 175, G 32
    (6)      | ad_proto        | new             | prev              | S 117, 122
    (7)      | div_pairs       | same            | diff              | G 174-177
    (7)      | div_metric      | l2_l2           | l1mean_msemean    | G 148-151
    (8)      | gen_labels      | global          | uniform_qualified | S 144, 208
    (8)      | generator_rows  | generator_batch | batch_size        | S 114
    (8)      | fidelity_floor  | 0.0             | 0.0001            | S 169, U 24
    (10)     | po_dist         | l2              | mse               | U 80, V 67
    (11)     | client_labels   | global          | uniform_all       | U 68
    (11)     | synthetic_scale | mean            | batch_ratio       | U 83
    (12)     | generator_floor | 0.0             | 0.0001            | U 65, 24
    omega    | bn              | average         | local             | V 73

    Further values, of neither side: ``div_pairs="all"`` (FedGen's);
    ``client_labels="uniform_available"``, the classes that were reported so far;
    ``ptilde="cumulative"``, a label distribution of all clients that ever reported;
    ``lr_sched="by_round"``; ``moments="reset"``.
    Eq. (3): a class that the cohort lacks keeps its prototype, or is reset to the
    origin, where it pulls. A class without prototype adds nothing to Eq. (6) and (10),
    which are means over the others.
    L_ad has no bound: generated features run away once the fidelity weight has decayed,
    soonest under ``fid_norm="paper"``. ``ad_cap`` bounds the distance (off by default);
    the terms ``norm`` and ``distance`` show it.
    Labels that no client of the cohort owns are not generated. Labels that clients draw
    in the released code are all that any client of the federation holds, participant or
    not, from the second round on. ``batch_ratio`` is 1 where both batches are 32.
    First round: cross-entropy only, since there is no prototype yet (released code);
    the generator is trained in it.
    Learning rate: decays by 0.99 per round, at the round of the client's last
    participation (released code). A client's Adam moments persist although its weights
    are replaced. Other methods start anew in each round, FedAvg too; training's
    ``keep_moments`` has them continue, as all clients of the released code do.
    BatchNorm statistics under ``bn="local"`` are neither sent nor merged, so that the
    global model keeps the first ones, and each client evaluates with its own.
    Generator: 50 Adam steps per round (released code), each on 32 embeddings. Its
    hidden width is 256 in print, on CelebA 128 in the code: ``papers.fedpa`` sets it
    with ``variant="reference"``.
    Not printed, and in both variants (released code): weight decay 0.01 of the
    generator's Adam (``generator_weight_decay``) and of the clients' (``weight_decay``
    of training), the generator's rate times 0.98 per round (``generator_lr_decay``).
    0, 0 and 1 switch them off.
    Local epochs: Section V-A3 prints E = 20 epochs of batch 32; Algorithm 1 and the
    released code take one step per e, so 20 batches (default). ``papers.fedpa(...,
    local_unit="epochs")`` passes 20 times over each client's data, some twenty times
    the work; ``online_train`` and ``seen_plus1`` then are over the steps of all epochs.
    Not covered: the released loader continues in the next round where it stopped; here
    each round shuffles again.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.linalg import vector_norm

from fedlib.blocks import generators, with_generator
from fedlib.blocks.descent import Fitted, Moments
from fedlib.blocks.generators import Noise
from fedlib.blocks.with_generator import Down, Server, Up, generator_of, schedule
from fedlib.core import averaging, protos
from fedlib.core.embed import class_means
from fedlib.core.hyper import HyperParameters, Variant, fill_variant
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import as_model
from fedlib.core.method import (
    Context,
    Counted,
    Logged,
    Losses,
    Method,
    Models,
    Rule,
    Shards,
    Trained,
    Turn,
)
from fedlib.core.net import State
from fedlib.core.protos import Protos

Distance = Literal["l2", "mse"]

# What the released code does where the paper says something else.
REFERENCE: dict[str, Any] = {
    "po_dist": "mse",
    "ad_dist": "mse",
    "div_pairs": "diff",
    "div_metric": "l1mean_msemean",
    "noise": "uniform",
    "fid_weight": "outer_mean",
    "fid_norm": "sum",
    "pj_counts": "seen_plus1",
    "gen_labels": "uniform_qualified",
    "client_labels": "uniform_all",
    "synthetic_scale": "batch_ratio",
    "generator_rows": "batch_size",
    "ad_proto": "prev",
    "proto": "online_train",
    "proto_zero_bug": True,
    "missing_proto": "zero",
    "bn": "local",
    "generator_floor": 1e-4,
    "fidelity_floor": 1e-4,
}


class HP(HyperParameters):
    r"""Hyper-parameters of FedPA."""

    variant: Variant = "paper"
    generator_weight: float = Field(default=25.0, ge=0)  # lambda_ge at t = 0
    generator_floor: float = Field(default=0.0, ge=0)
    proto_weight: float = Field(default=5.0, ge=0)  # lambda_po at t = 0
    proto_floor: float = Field(default=0.15, ge=0)
    fidelity_weight: float = Field(default=25.0, ge=0)  # gamma_fid at t = 0
    fidelity_floor: float = Field(default=0.0, ge=0)
    diversity_weight: float = Field(default=1.0, ge=0)  # gamma_div
    adversarial_weight: float = Field(default=0.15, ge=0)  # gamma_ad
    schedule_decay: float = Field(default=0.98, gt=0, le=1)  # of weights, per round
    po_dist: Distance = "l2"
    ad_dist: Distance = "l2"
    ad_cap: float | None = Field(default=None, gt=0)  # bound on ||h - phi||
    div_pairs: Literal["same", "diff", "all"] = "same"
    div_metric: Literal["l2_l2", "l1mean_msemean"] = "l2_l2"
    noise: Noise = "normal"
    fid_weight: Literal["per_sample", "outer_mean"] = "per_sample"
    fid_norm: Literal["paper", "sum"] = "paper"
    pj_counts: Literal["dataset", "seen_plus1"] = "dataset"
    gen_labels: Literal["global", "uniform_qualified"] = "global"
    client_labels: Literal["global", "uniform_available", "uniform_all"] = "global"
    ptilde: Literal["selected", "cumulative"] = "selected"
    ad_proto: Literal["new", "prev"] = "new"
    proto: Literal["post_full_eval", "online_train"] = "post_full_eval"
    proto_zero_bug: bool = False  # an owned class that was not seen sends a zero
    missing_proto: Literal["carry_and_mask", "zero"] = "carry_and_mask"
    bn: Literal["average", "local"] = "average"
    moments: Literal["persist", "reset"] = "persist"
    lr_sched: Literal["last_trained", "by_round"] = "last_trained"
    lr_decay: float = Field(default=0.99, gt=0, le=1)  # of the clients, per round
    synthetic_batch: int = Field(default=32, ge=1)  # generated per client step
    synthetic_scale: Literal["mean", "batch_ratio"] = "mean"  # of Eq. (11)
    noise_size: int = Field(default=32, ge=1)
    hidden: int = Field(default=256, ge=1)
    generator_steps: int = Field(default=50, ge=1)
    generator_batch: int = Field(default=32, ge=2)  # BatchNorm needs two
    generator_rows: Literal["generator_batch", "batch_size"] = "generator_batch"
    generator_lr: float = Field(default=3e-4, gt=0)
    generator_lr_decay: float = Field(default=0.98, gt=0, le=1)  # per round
    generator_weight_decay: float = Field(default=0.01, ge=0)

    _variant = model_validator(mode="before")(fill_variant(REFERENCE))


class Client(NamedTuple):
    """What a client keeps between rounds."""

    state: State  # [K, ...]; only evaluation and local statistics read it
    last: Tensor  # [K] the t at which it trained last, -1 before
    moments: Moments  # [K, ...] of its optimiser; {} unless they persist


# What a term is by each side of the card's table; the paper's comes first.

DISTANCE = {  # Eq. (6), (10): of the lengths of vectors of d numbers
    "l2": lambda length, d: length,
    "mse": lambda length, d: length.square() / d,
}
PAIRS = {  # Eq. (7): which pairs count, from the mask [B, B] of pairs of one class
    "same": lambda same: same,
    "diff": lambda same: ~same,
    "all": torch.ones_like,
}
APART = {  # Eq. (7): how far two are apart, of differences [B, B, d] and [B, B, n]
    "l2_l2": lambda dh, dz: vector_norm(dh, dim=-1) * vector_norm(dz, dim=-1),
    "l1mean_msemean": lambda dh, dz: dh.abs().mean(-1) * dz.square().mean(-1),
}
CLIENTS = {  # Eq. (5): what the sum over the cohort's clients is divided by
    "paper": lambda clients: clients,
    "sum": lambda clients: 1,
}
OWNED = {  # Eq. (5): the counts [K, C] whose shares are p_kj
    "dataset": lambda up: up.labels,
    "seen_plus1": lambda up: 1 + up.counters["seen"],
}
LOCAL_MEANS = {  # Eq. (2): the class means [K, C, d] of a cohort
    "post_full_eval": lambda ctx, trained, shards: class_means(
        ctx.net, trained.state, shards, "high"
    ),
    "online_train": lambda ctx, trained, shards: trained.protos["high"],
}
ABSENT = {  # Eq. (3): the prototypes, of which a cohort may lack a class
    "carry_and_mask": lambda new, before: protos.fill(new, before),
    "zero": lambda new, before: new,
}
FAR = {  # Eq. (6): the prototypes that generated embeddings keep away from
    "new": lambda new, before: new,
    "prev": lambda new, before: before,
}
LABELS = {  # the counts [C] behind p~(y), after a round
    "selected": lambda server, up: up.labels.sum(0),
    "cumulative": lambda server, up: (
        server.labels + (up.labels * up.counters["first"].unsqueeze(1)).sum(0)
    ),
}
SERVER_DRAWS = {  # Eq. (8): what the server draws labels from [C]; counts: of p~(y)
    "global": lambda up, counts: counts * up.labels.any(0),
    "uniform_qualified": lambda up, counts: up.counters["seen"].any(0).float(),
}
CLIENT_DRAWS = {  # Eq. (11): what clients draw labels from [C]
    "global": lambda ctx, server: server.labels,
    "uniform_available": lambda ctx, server: server.available.float(),
    "uniform_all": with_generator.held_by_any,
}
ROWS = {  # Eq. (8): embeddings in a step of the generator
    "generator_batch": lambda ctx: ctx.hp.generator_batch,
    "batch_size": lambda ctx: with_generator.rows_of_a_batch(
        ctx, "generator_rows='batch_size'"
    ),
}
SYNTHETIC_SCALE = {  # Eq. (11): what it is multiplied by, beside its weight
    "mean": lambda ctx: 1.0,
    "batch_ratio": lambda ctx: ctx.hp.synthetic_batch / ctx.training.batch_size,
}
AGE = {  # the rounds by which a client's learning rate has decayed [K]; t: today's
    "last_trained": lambda last, t: last.clamp(min=0),
    "by_round": lambda last, t: torch.full_like(last, t),
}


def usable(phi: Protos, hp: HP) -> Tensor:
    """Return the mask ``[C]`` of the classes with a prototype to measure against."""
    known = phi.known
    return known.any() & (known | (hp.missing_proto == "zero"))


def distance(a: Tensor, b: Tensor, kind: Distance, cap: float | None = None) -> Tensor:
    """Return each row's distance ``[B]``: its length, or its mean square over d."""
    length = vector_norm(a - b, dim=-1)
    length = length if cap is None else length.clamp(max=cap)
    return DISTANCE[kind](length, a.shape[-1])


def over_valid(values: Tensor, valid: Tensor) -> Tensor:
    """Return the mean of the valid entries of ``[B]``, 0 if there is none."""
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def fidelity(entropy: Tensor, share: Tensor, hp: HP) -> Tensor:
    r"""Return :math:`L_{fid}` from cross-entropies and class shares ``[K, B]``."""
    total = with_generator.fidelity(entropy, share, hp.fid_weight)
    return total / CLIENTS[hp.fid_norm](len(entropy))  # Eq. (5)


def adversarial(h: Tensor, y: Tensor, phi: Protos, hp: HP) -> Tensor:
    r"""Return :math:`L_{ad}`: how far h ``[B, d]`` is from the prototypes."""
    lengths = distance(h, phi.mean[y], hp.ad_dist, hp.ad_cap)
    return over_valid(lengths, usable(phi, hp)[y])  # Eq. (6)


def diversity(h: Tensor, z: Tensor, y: Tensor, hp: HP) -> Tensor:
    r"""Return :math:`L_{div}` in (0, 1] of h ``[B, d]`` made from noise ``[B, n]``."""
    dh, dz = h.unsqueeze(1) - h, z.unsqueeze(1) - z
    pairs = PAIRS[hp.div_pairs](y.unsqueeze(1) == y)
    return torch.exp(-(pairs * APART[hp.div_metric](dh, dz)).mean())  # Eq. (7)


def align(f: Tensor, y: Tensor, phi: Protos, hp: HP) -> Tensor:
    r"""Return :math:`L_{po}`: the pull of embeddings ``[B, d]`` to the prototypes."""
    lengths = distance(f, phi.mean[y], hp.po_dist)
    return over_valid(lengths, usable(phi, hp)[y])  # Eq. (10)


def synthetic(ctx: Context, state: State, h: Tensor, y: Tensor) -> Tensor:
    r"""Return :math:`L_{ge}`: the head's cross-entropy on generated h ``[B, d]``."""
    logits = ctx.net.head(ctx.net.head_state(state), h, train=True)
    return cross_entropy(logits, y)  # Eq. (11)


def rows(ctx: Context[HP]) -> int:
    """Return the embeddings of a generator's step; at least two, for its BatchNorm."""
    return ROWS[ctx.hp.generator_rows](ctx)


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw one model for all and a generator; no prototype is known."""
    rows(ctx)  # refuses batches of one
    state = ctx.init_clients(True)
    server = with_generator.first_server(ctx, generator_of(ctx), state)
    moments = ctx.blank_moments(state) if ctx.hp.moments == "persist" else {}
    return server, Client(state, torch.full((ctx.clients,), -1), moments)


def broadcast(ctx: Context[HP], server: Server) -> Down:
    """Box 1; clients run the generator in eval mode, so its statistics travel too."""
    hp = ctx.hp
    counts = CLIENT_DRAWS[hp.client_labels](ctx, server)
    return with_generator.sent(generator_of(ctx), server, counts, hp.bn)


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    t = ctx.round - 1
    begun = bool(down.generator.known)  # from the second round on
    generator = generator_of(ctx)
    lambda_ge = schedule(hp.generator_weight, hp.schedule_decay, hp.generator_floor, t)
    lambda_ge *= SYNTHETIC_SCALE[hp.synthetic_scale](ctx)
    lambda_po = schedule(hp.proto_weight, hp.schedule_decay, hp.proto_floor, t)

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        terms = {
            "supervised": cross_entropy(out.logits, batch.y),  # Eq. (9)
            "align": align(out.high, batch.y, down.protos, hp),
            "synthetic": torch.zeros(()),
        }
        if begun:
            h = generator(
                down.generator.state, batch.extra["noise"], batch.extra["labels"]
            )
            terms["synthetic"] = synthetic(ctx, state, h, batch.extra["labels"])
        total = (  # Eq. (12)
            terms["supervised"]
            + lambda_ge * terms["synthetic"]
            + lambda_po * terms["align"]
        )
        return Losses(total, terms, {"high": out.high})

    trained = ctx.train(
        averaging.start(down.model, mine.state),
        shards,
        loss,
        draw=partial(generated, ctx, down) if begun else None,
        every_epoch=True,  # as the released counts and means, which a round clears once
        moments=mine.moments or None,
        rate=hp.lr_decay ** AGE[hp.lr_sched](mine.last, t).to(torch.float64),
    )
    labels = shards.label_counts(ctx.classes)
    up = Up(
        as_model(ctx.net, trained.state, buffers=hp.bn == "average"),
        local_protos(ctx, trained, shards, labels),
        labels.to(torch.float32),
        counters(trained, mine, hp),
    )
    last = torch.where(labels.any(1), t, mine.last)
    moments = trained.moments if mine.moments else {}
    return Client(trained.state, last, moments), up, trained.terms


def generated(
    ctx: Context[HP], down: Down, client: int, step: int
) -> dict[str, Tensor]:
    """Draw the labels and the noise of a client's step, for Eq. (11)."""
    hp = ctx.hp
    pick = ctx.random(f"synthetic {step}", client)
    y = generators.draw_labels(down.labels.share, hp.synthetic_batch, pick)
    noise = generators.draw_noise(hp.noise, len(y), hp.noise_size, pick)
    return {"labels": y, "noise": noise}


def local_protos(
    ctx: Context[HP], trained: Trained, shards: Shards, labels: Tensor
) -> Protos:
    """Return the class means ``[K, C, d]`` that a cohort uploads."""
    local = LOCAL_MEANS[ctx.hp.proto](ctx, trained, shards)  # Eq. (2)
    return local._replace(count=labels) if ctx.hp.proto_zero_bug else local


def counters(trained: Trained, mine: Client, hp: HP) -> dict[str, Tensor]:
    """Return what clients count beside their labels, where a reading asks for it."""
    counted = {}
    if hp.pj_counts == "seen_plus1" or hp.gen_labels == "uniform_qualified":
        counted["seen"] = trained.protos["high"].count
    if hp.ptilde == "cumulative":
        counted["first"] = mine.last < 0
    return counted


def owner_share(up: Up, hp: HP) -> Tensor:
    """Return the share ``[K, C]`` of each class that a client owns; sums to 1."""
    return with_generator.owner_share(OWNED[hp.pj_counts](up))


def train_generator(
    ctx: Context[HP],
    server: Server,
    heads: State,
    owners: Tensor,
    counts: Tensor,
    far: Protos,
    near: Protos,
) -> Fitted:
    """Train the generator against the cohort's heads: box 5.

    Parameters
    ----------
    server : Server
        The generator and its moments to continue from.
    heads : dict of Tensor
        The clients' heads ``[K, ...]``, which stay as they are.
    owners : Tensor
        ``[K, C]``, ``owner_share``.
    counts : Tensor
        ``[C]`` what labels are drawn from, any positive sum.
    far, near : Protos
        Prototypes to keep away from, and those of this round for the monitor.
    """
    hp = ctx.hp
    t = ctx.round - 1
    generator = generator_of(ctx)
    gamma_fid = schedule(hp.fidelity_weight, hp.schedule_decay, hp.fidelity_floor, t)

    def loss(state: State, z: Tensor, y: Tensor) -> Losses:
        h = generator(state, z, y, train=True)  # Eq. (4)
        entropy = with_generator.entropies(ctx.net, heads, h, y)
        terms = {
            "fidelity": fidelity(entropy, owners[:, y], hp),
            "diversity": diversity(h, z, y, hp),
            "adversarial": adversarial(h, y, far, hp),
            "norm": h.norm(dim=1).mean(),
            "distance": over_valid(distance(h, near.mean[y], "l2"), near.known[y]),
        }
        total = (  # Eq. (8)
            gamma_fid * terms["fidelity"]
            + hp.diversity_weight * terms["diversity"]
            - hp.adversarial_weight * terms["adversarial"]
        )
        return Losses(total, terms, {})

    return with_generator.train(
        generator,
        server,
        loss,
        counts,
        lambda step: ctx.random(f"generator {step}"),
        noise=hp.noise,
        batch=rows(ctx),
        steps=hp.generator_steps,
        learning_rate=hp.generator_lr * hp.generator_lr_decay**t,
        weight_decay=hp.generator_weight_decay,
    )


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4 and 5."""
    hp = ctx.hp
    means = protos.merge(up.protos, "samples")  # Eq. (3)
    means = ABSENT[hp.missing_proto](means, server.protos)
    labels = LABELS[hp.ptilde](server, up)
    fitted = train_generator(
        ctx,
        server,
        ctx.net.head_state(up.model.params),
        owner_share(up, hp),
        SERVER_DRAWS[hp.gen_labels](up, labels),
        FAR[hp.ad_proto](means, server.protos),
        means,
    )
    merged = with_generator.merged(server, up, fitted, means, labels, hp.bn)
    return merged, fitted.terms


def models(ctx: Context[HP], server: Server, mine: Client) -> Models:
    """Return the clients' models, the global one, and the prototypes.

    With local BatchNorm statistics the global model has its first ones, and beside it
    stands the global model under each client's own.
    """
    received = None
    if ctx.hp.bn == "local":
        shared = server.model._replace(buffers={})
        received = averaging.start(shared, mine.state)
    return Models(mine.state, server.model.state, server.protos, received)


def predict(hp: HP) -> Rule:
    """Return the paper's rule; local statistics go with the model that is received."""
    return Rule("received" if hp.bn == "local" else "global", "head_all")


METHOD = Method(
    name="fedpa",
    source="Jiang et al., IEEE TDSC 2024",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=predict,
    counted=tuple(
        Counted(way, field)
        for way, fields in {
            "up": ("model", "protos", "labels"),
            "down": ("model", "generator", "generator_buffers", "protos", "labels"),
        }.items()
        for field in fields
    ),
    per_class=("protos",),
)
