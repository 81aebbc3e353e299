r"""FedHPro: hyper-prototypes, fitted on the server by gradient matching.

Wang et al., FedHPro: Federated Hyper-Prototype Learning via Gradient Matching, ICML
2026 (arXiv 2605.13475), by the authors' slides. Equation numbers are those that their
Algorithm 1 and captions name; (11) is where its formula stands between them.

Symbols
    symbol   | name here          | shape     | equation
    p_k^c    | local in client    | [K, C, d] | (4), class means
    P^c      | server.protos      | [C, d]    | (4), their mean over clients
    g_k^c    | up.gradients       | [K, C, d] | (5), a class's gradient for z
    g^c      | wanted in merge    | [C, d]    | (6)
    s_i^c    | server.hyper.points| [C, I, d] | hyper-prototypes
    g_HP^c   | hyper_gradients    | [C, d]    | (7)
    L_GM     | mismatch           | [C]       | (8)
    S_M      | match              | [C, I, d] | (9), after M steps
    d_k      | margins            | [K]       | (10)
    s(z, S^c)| in contrast        | [B, C]    | (11)
    L_HPCL   | contrast           | []        | (12)
    H^c      | hyper.centre       | [C, d]    | mean of a class's s_i^c
    L_HPAL   | align              | []        | (13)
    L        | loss in client     | []        | (14), with cross-entropy

Box
    1. broadcast: send the global model and the hyper-prototypes.
    2. client: minimise cross-entropy + L_HPCL + L_HPAL from the global model.
    3. client: send the model and each own class's mean gradient for the embedding.
    4. merge: average the models by samples, and each class's gradients over its owners.
    5. merge: M steps of SGD on the hyper-prototypes, so that their gradient at the new
       global head points where the class's does; they start from the last round's.

Readings
    The default is the paper's side, but for (13), where it is ours (L_HPAL below);
    ``variant="reference"`` takes the released one of all (``REFERENCE``). M, G and O
    are lines of main_run.py, utils/gradient_matching.py and options.py (SOURCES.md).

    term     | switch             | paper      | released          | released in
    Box 4    | aggregation        | fedavg     | alias_last_client | M 427
    Box 4    | classifier_retrain | none       | creff             | M 134-160, 177
    (5)      | grad_when          | post_local | pre_local         | M 301
    (5)      | grad_samples       | all        | 100               | M 317, O 19
    (5)      | grad_aug           | none       | dsa               | M 318-320
    (5), (7) | grad_reduction     | mean       | mean_twice        | M 343, G 6
    (8)      | gm_metric          | cosine     | coordwise_eps     | G 8-12, 86
    (10)     | margin             | l2_exp     | none              | O 32
    (12)     | hpcl_reduction     | mean       | mean_div_B        | M 391
    (13)     | hpal               | norm_sum   | norm_mean         | M 419-421

    Merging: by samples; the released loop's list of models holds one live state again
    and again, so that the server gets the model of the client that was visited last
    (here: last in a random order of the rows of the cohort). Merging then depends on
    the order of clients.
    Head: "creff" is a stage of the released code that the slides do not mention:
    clients also send each class's gradient for the head's weights, and the server
    trains a new head, which replaces the merged one (``creff.py``).
    Gradients of Eq. (5): all own samples, own model, after training; or before it (the
    received model and, under "creff", the last re-trained head) from at most so many
    samples per class, changed alike ("dsa"). Eval mode. With a linear head they are
    W' (softmax(W z + b) - e_c) in closed form, so Eq. (8) needs one differentiation.
    Other heads are refused. "mean_twice" divides by the number of samples, and in
    Eq. (7) by the number of vectors, once more.
    ``gm_metric``: "cosine" of whole vectors; "coordwise_eps" takes 1 - cosine of each
    pair of coordinates (0 for equal signs, 2 for unequal ones, 1 near zero); "mse".
    Matching runs in float64; a class whose gradient vanishes is left out.
    Margin: "l2_exp" is Eq. (10) inside the exponential; the algorithm box computes it
    for every batch, we once per epoch (default) or once per round (``margin_when``).
    "dot_additive" is the released code's other setting: inner products in place of
    distances, added outside the exponential; where their sum is negative, the released
    code takes its logarithm, we count it as 0.
    L_HPCL is the mean over a batch; "mean_div_B" divides by B again.
    L_HPAL: "norm_sum" (default, ours) is the sum of Eq. (13) over vectors scaled to
    length 1, as the released code scales them; it is 1 - cosine where no coordinate is
    more than 1 away. "raw_sum" is Eq. (13) to the letter, whose target cannot be met:
    H is a mean of draws from N(0, 1) (the released start), half of it negative, and an
    embedding ends in a ReLU; it outweighs the cross-entropy many times and needs a
    small learning rate or the run's ``clip``. "raw_mean" divides it by d; "norm_mean",
    the released code, divides "norm_sum" by d; "mse" is FedProto's mean square.
    Not printed on the slides (released code): tau, I, M, the rate 0.1 of Eq. (9), the
    first draw from N(0, 1), and the clients' rate, which is 0.1, too, beside losses
    that are next to nothing there; it clips no gradient.
    A term of weight 0 is not computed; with both at 0 this is FedAvg.
    A class that no cohort has held yet is still a negative, at a random direction;
    ``mask_unseen_classes`` keeps it out of both terms (then round 1 has neither).
    Controls: ``hyper="frozen"`` leaves the first random draw as it is;
    ``contrast_with``, ``align_with`` "prototypes" use P in place of S (Table 6).
    FedProto and FedTGP with hyper-prototypes in place of their own prototypes (Table 3)
    are ``contrast_weight=0, hpal="mse"`` with their weight of the pull, 1 for both in
    this setting, as ``align_weight``; FedTGP's prototype net is then not used.
    BatchNorm statistics are averaged, counters take the maximum.

Privacy
    Of a class with one sample the server learns that sample's softmax: W' is known and,
    in general, of rank C. A class's gradient is never more than C numbers.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedlib.blocks import creff, hyperprotos, siamese
from fedlib.blocks.descent import fit
from fedlib.blocks.hyperprotos import HyperProtos, unit
from fedlib.core import heads, protos
from fedlib.core.averaging import mean_model, start
from fedlib.core.embed import class_means, forward, padded
from fedlib.core.hyper import HyperParameters, Variant, fill_variant
from fedlib.core.losses import cross_entropy
from fedlib.core.messages import as_model
from fedlib.core.method import (
    Context,
    Counted,
    Logged,
    Losses,
    Method,
    Model,
    Models,
    Rule,
    Shards,
    Trained,
    Turn,
)
from fedlib.core.net import State
from fedlib.core.protos import Protos
from fedlib.core.rng import generator
from fedlib.core.tree import tree_map, tree_mean

# What the released code does, where it differs from the paper.
REFERENCE = {
    "aggregation": "alias_last_client",
    "classifier_retrain": "creff",
    "grad_when": "pre_local",
    "grad_samples": 100,
    "grad_aug": "dsa",
    "grad_reduction": "mean_twice",
    "gm_metric": "coordwise_eps",
    "margin": "none",
    "hpcl_reduction": "mean_div_B",
    "hpal": "norm_mean",
}

Metric = Literal["cosine", "coordwise_eps", "mse"]
Margin = Literal["l2_exp", "none", "dot_additive"]
Alignment = Literal["norm_sum", "raw_sum", "raw_mean", "norm_mean", "mse"]


class HP(HyperParameters):
    r"""Hyper-parameters of FedHPro."""

    variant: Variant = "paper"
    contrast_weight: float = Field(default=1.0, ge=0)  # of L_HPCL
    align_weight: float = Field(default=1.0, ge=0)  # of L_HPAL
    temperature: float = Field(default=0.05, gt=0)  # tau
    hyper_count: int = Field(default=5, ge=1)  # |I|
    hyper_steps: int = Field(default=30, ge=1)  # M
    hyper_learning_rate: float = Field(default=0.1, gt=0)
    hyper: Literal["matched", "frozen"] = "matched"
    aggregation: Literal["fedavg", "alias_last_client"] = "fedavg"
    classifier_retrain: Literal["none", "creff"] = "none"
    retrain_features: int = Field(default=50, ge=1)  # per class
    retrain_steps: int = Field(default=100, ge=1)  # of matching
    retrain_epochs: int = Field(default=100, ge=1)  # of the fresh head
    grad_when: Literal["post_local", "pre_local"] = "post_local"
    grad_samples: Literal["all"] | int = Field(default="all")  # per class
    grad_aug: Literal["none", "dsa"] = "none"
    grad_reduction: Literal["mean", "mean_twice"] = "mean"
    gm_metric: Metric = "cosine"
    margin: Margin = "l2_exp"
    margin_when: Literal["epoch", "round"] = "epoch"
    hpcl_reduction: Literal["mean", "mean_div_B"] = "mean"
    hpal: Alignment = "norm_sum"
    contrast_with: Literal["hyper", "prototypes"] = "hyper"
    align_with: Literal["hyper", "prototypes"] = "hyper"
    mask_unseen_classes: bool = False
    common_init: bool = True

    _variant = model_validator(mode="before")(fill_variant(REFERENCE))

    @model_validator(mode="after")
    def _legal(self) -> "HP":
        if self.grad_samples != "all" and self.grad_samples < 1:
            got = self.grad_samples
            raise ValueError(f"grad_samples: got {got}, expected 'all' or at least 1")
        return self

    @property
    def sends_prototypes(self) -> bool:
        """Whether a loss needs the class means of Eq. (4)."""
        return "prototypes" in (self.contrast_with, self.align_with)


class Down(NamedTuple):
    """To every client."""

    model: Model  # w*
    hyper: HyperProtos  # [C, I, d]
    protos: Protos  # [C, d], P; [C, 0] where no loss uses it
    meta_head: State  # the head trained last, under "creff"; else {}


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # w_k
    gradients: Protos  # [K, C, d], g_k^c: mean gradient and number of samples
    head_gradients: Protos  # [K, C, C * (d + 1)] under "creff"; else [K, C, 0]
    protos: Protos  # [K, C, d], p_k^c; [K, C, 0] where no loss uses them
    samples: Tensor  # [K] int64, n_k


class Server(NamedTuple):
    """What the server keeps."""

    model: Model
    hyper: HyperProtos
    protos: Protos
    kept: creff.Kept


class Client(NamedTuple):
    """What a client keeps between rounds; only evaluation reads it after round 1."""

    state: State  # [K, ...], w_k


def margins(local: Protos, kind: Margin) -> Tensor:
    """Return each client's margin ``[K]`` from its prototypes ``[K, C, d]``.

    Pairs of classes that a client holds; the divisor counts all classes, so that a
    client with one class has margin 0.
    """
    classes = local.mean.shape[1]
    pairs = local.known.unsqueeze(1) & local.known.unsqueeze(2)
    pairs = pairs & ~torch.eye(classes, dtype=torch.bool)
    if kind == "dot_additive":
        products = local.mean @ local.mean.transpose(1, 2)
    else:
        exact = "donot_use_mm_for_euclid_dist"
        products = torch.cdist(local.mean, local.mean, compute_mode=exact)
    total = torch.where(pairs, products, 0.0).sum((1, 2))
    return total / max(1, classes - 1) ** 2  # Eq. (10)


def contrast(
    z: Tensor, y: Tensor, hyper: HyperProtos, margin: Tensor, hp: HP
) -> Tensor:
    r"""Return :math:`L_{HPCL}` of a batch: z ``[B, d]``, margin ``[]``."""
    similarity = unit(z) @ hyper.direction.T / hp.temperature  # Eq. (11), over tau
    own = similarity.gather(1, y.unsqueeze(1)).squeeze(1)
    negative = (y.unsqueeze(1) != torch.arange(len(hyper.known))) & hyper.known
    if hp.margin == "l2_exp":
        similarity = similarity + margin / hp.temperature
    others = torch.where(negative, similarity, -1e9).logsumexp(1)
    if hp.margin == "dot_additive":
        others = torch.logaddexp(others, margin.clamp(min=0).log())
    per_sample = F.softplus(others - own)  # Eq. (12)
    per_sample = torch.where(hyper.known[y], per_sample, 0.0)
    return per_sample.mean() / (len(y) if hp.hpcl_reduction == "mean_div_B" else 1)


def align(z: Tensor, y: Tensor, hyper: HyperProtos, hp: HP) -> Tensor:
    r"""Return :math:`L_{HPAL}` of a batch: z ``[B, d]``."""
    target = hyper.centre[y]
    if hp.hpal in ("norm_sum", "norm_mean"):
        z, target = unit(z), unit(target)
    gap = F.huber_loss(z, target, reduction="none", delta=1.0)
    if hp.hpal == "mse":
        gap = (z - target).square()
    summed = hp.hpal in ("norm_sum", "raw_sum")
    total = gap.sum(1) if summed else gap.mean(1)  # Eq. (13)
    return torch.where(hyper.known[y], total, 0.0).mean()


def class_gradients(
    ctx: Context[HP], state: State, shards: Shards
) -> tuple[Protos, Protos]:
    """Return each client's mean gradients per class, for embeddings and for the head.

    Parameters
    ----------
    state : dict of Tensor
        The models ``[K, ...]`` at which gradients are taken.

    Returns
    -------
    Protos, Protos
        ``[K, C, d]``, and ``[K, C, C * (d + 1)]`` under "creff", else ``[K, C, 0]``.
    """
    hp = ctx.hp
    points = shards
    if hp.grad_samples != "all" or hp.grad_aug == "dsa":
        points = siamese.class_samples(
            shards,
            None if hp.grad_samples == "all" else hp.grad_samples,
            hp.grad_aug == "dsa",
            lambda client: ctx.random("gradient samples", client),
        )
    out, real = forward(ctx.net, state, points, stacked=True)
    label = torch.where(real, points.y[padded(points.index)[0]], -1)
    miss = heads.residual(out.logits.double(), label)  # softmax - e_c
    mean = protos.from_sums(*protos.class_sums(miss, label, ctx.classes))
    weight, _ = heads.linear(ctx.net, state)
    gradient = mean.mean @ weight.double()  # Eq. (5)
    if hp.grad_reduction == "mean_twice":
        gradient = gradient / mean.count.clamp(min=1).unsqueeze(-1)
    gradients = Protos(gradient.float(), mean.count)
    if hp.classifier_retrain == "none":
        return gradients, Protos(
            gradient.new_zeros(*mean.count.shape, 0), mean.count * 0
        )
    head = torch.zeros(*mean.count.shape, ctx.classes * (out.high.shape[-1] + 1))
    for k, c in mean.known.nonzero().tolist():
        rows = label[k] == c
        z = out.high[k, rows].double()
        head[k, c] = heads.weight_gradient(z, miss[k, rows]).flatten()
    return gradients, Protos(head, mean.count)


def hyper_gradients(points: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the mean gradient ``[C, d]`` of each class's vectors ``[C, I, d]``."""
    label = torch.arange(len(points)).unsqueeze(1)
    miss = heads.residual(points @ weight.T + bias, label)
    return miss.mean(1) @ weight  # Eq. (7)


def mismatch(wanted: Tensor, made: Tensor, metric: Metric) -> Tensor:
    """Return how far gradients ``[C, d]`` are from those wanted, ``[C]``."""
    if metric == "mse":
        return (wanted - made).square().sum(-1)
    if metric == "coordwise_eps":
        scale = wanted.abs() * made.abs() + 1e-6
        return (1 - wanted * made / scale).sum(-1)
    return 1 - (unit(wanted) * unit(made)).sum(-1)  # Eq. (8)


def match(
    hyper: HyperProtos, wanted: Protos, weight: Tensor, bias: Tensor, hp: HP
) -> tuple[HyperProtos, dict[str, Tensor]]:
    """Move hyper-prototypes until their gradients match those of the data.

    Parameters
    ----------
    wanted : Protos
        Mean gradients ``[C, d]``; a class nobody holds, or with gradient 0, stays.
    weight, bias : Tensor
        The global head, ``[C, d]`` and ``[C]``.

    Returns
    -------
    HyperProtos, dict
        The hyper-prototypes, and the mean mismatch per class before and after; NaN
        where no class was matched.
    """
    weight, bias, real = weight.double(), bias.double(), wanted.mean.double()
    usable = wanted.known & (real.norm(dim=-1) >= 1e-12)
    scale = hyper.points.shape[1] if hp.grad_reduction == "mean_twice" else 1

    def apart(points: Tensor) -> Tensor:
        made = hyper_gradients(points, weight, bias) / scale
        return torch.where(usable, mismatch(real, made, hp.gm_metric), 0.0).sum()

    def loss(state, step):
        return Losses(apart(state["points"]), {}, {})

    points = begun = hyper.points.double()
    if hp.hyper == "matched":
        points = fit(  # Eq. (9)
            {"points": begun},
            loss,
            hp.hyper_steps,
            optimiser="sgd",
            learning_rate=hp.hyper_learning_rate,
        ).state["points"]
    terms = {"mismatch_before": apart(begun), "mismatch": apart(points)}
    points = points.to(hyper.points.dtype)
    moved = torch.where(usable[:, None, None], points, hyper.points)
    return (
        HyperProtos(moved, hyper.known | wanted.known),
        {name: value / usable.sum() for name, value in terms.items()},  # 0/0 is NaN
    )


def first_hyper(ctx: Context[HP]) -> HyperProtos:
    """Draw the hyper-prototypes that a run begins with; the same in every call."""
    size = ctx.net.embedding_sizes()[1]
    draw = generator(ctx.seed, "init", "hyper-prototypes")
    return hyperprotos.draw(ctx.classes, ctx.hp.hyper_count, size, draw)


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the model, the hyper-prototypes and what re-training needs."""
    hp = ctx.hp
    mine = Client(ctx.init_clients(hp.common_init))
    heads.name_in(ctx.net)  # refuses other heads
    first = tree_map(lambda x: x[0], as_model(ctx.net, mine.state))
    size = ctx.net.embedding_sizes()[1]
    retrained = creff.Kept(torch.zeros(ctx.classes, 0, size), {})
    if hp.classifier_retrain == "creff":
        retrained = creff.begin(ctx, hp.retrain_features)
    server = Server(
        first._replace(known=torch.tensor(hp.common_init)),
        first_hyper(ctx),
        protos.empty(ctx.classes, size if hp.sends_prototypes else 0),
        retrained,
    )
    return server, mine


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    return Down(server.model, server.hyper, server.protos, server.kept.head)


def anchors(down: Down, which: Literal["hyper", "prototypes"], hp: HP) -> HyperProtos:
    """Return what a loss compares embeddings with."""
    if which == "prototypes":
        return hyperprotos.of_prototypes(down.protos)
    if hp.mask_unseen_classes:
        return down.hyper
    return down.hyper._replace(known=torch.ones_like(down.hyper.known))


def train(ctx: Context[HP], state: State, shards: Shards, loss) -> Trained:
    """Box 2: train epoch by epoch where the margin is taken anew in each.

    The first epoch has FedAvg's batches, and all have where one call trains them.
    """
    hp = ctx.hp

    def extra(state: State) -> dict[str, Tensor]:
        off = hp.margin == "none" or not hp.contrast_weight
        if off or not any(len(mine) for mine in shards.index):
            return {"margin": torch.zeros(len(shards.index))}
        local = class_means(ctx.net, state, shards, "high")  # Eq. (4), one client
        return {"margin": margins(local, hp.margin)}

    wanted = (
        hp.contrast_weight > 0 and hp.margin != "none" and hp.margin_when == "epoch"
    )
    if not wanted:
        return ctx.train(state, shards, loss, extra(state))
    terms = []
    for trained in ctx.epochs(state, shards, loss, extra):
        terms.append(trained.terms)
    return trained._replace(terms=tree_mean(terms))


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    near = anchors(down, hp.contrast_with, hp)
    home = anchors(down, hp.align_with, hp)

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        terms = {"supervised": cross_entropy(out.logits, batch.y)}
        total = terms["supervised"]
        if hp.contrast_weight:
            terms["contrast"] = contrast(
                out.high, batch.y, near, batch.extra["margin"], hp
            )
            total = total + hp.contrast_weight * terms["contrast"]
        if hp.align_weight:
            terms["align"] = align(out.high, batch.y, home, hp)
            total = total + hp.align_weight * terms["align"]  # Eq. (14)
        return Losses(total, terms | batch.extra, {})

    begun = start(down.model, mine.state)
    trained = train(ctx, begun, shards, loss)
    at = trained.state
    if hp.grad_when == "pre_local":
        head = heads.within(down.meta_head)
        at = begun | {k: v.expand_as(begun[k]) for k, v in head.items()}
    gradients, head_gradients = class_gradients(ctx, at, shards)
    local = protos.empty(ctx.classes, 0)
    local = tree_map(lambda x: x.expand(len(shards.index), *x.shape), local)
    if hp.sends_prototypes:
        local = class_means(ctx.net, trained.state, shards, "high")
    samples = shards.sizes()
    model = as_model(ctx.net, trained.state)
    up = Up(model, gradients, head_gradients, local, samples)
    return Client(trained.state), up, trained.terms


def last_client(ctx: Context, models: Model, samples: Tensor) -> Model:
    """Return the model of the client visited last, of those with samples."""
    order = torch.randperm(len(samples), generator=ctx.random("visits"))
    last = order[samples[order] > 0][-1]
    return tree_map(lambda x: x[last], models)


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4 and 5."""
    hp = ctx.hp
    if hp.aggregation == "alias_last_client":
        model = last_client(ctx, up.model, up.samples)
    else:
        model = mean_model(up.model, up.samples, server.model)
    retrained = server.kept
    if hp.classifier_retrain == "creff":
        retrained = creff.retrain(
            ctx, retrained, up.head_gradients, hp.retrain_steps, hp.retrain_epochs
        )
        model = model._replace(params=model.params | heads.within(retrained.head))
    wanted = protos.merge(up.gradients)  # Eq. (6)
    weight, bias = heads.linear(ctx.net, model.params)
    hyper, terms = match(server.hyper, wanted, weight, bias, hp)
    first = first_hyper(ctx).points
    terms["moved"] = (hyper.points - first).norm() / first.norm()
    means = protos.fill(protos.merge(up.protos), server.protos)  # Eq. (4), global
    return Server(model, hyper, means, retrained), terms


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the models, and H as the prototypes of the nearest-prototype rules."""
    centre, known = server.hyper.centre, server.hyper.known

    def watch(central: Protos) -> dict[str, Tensor]:
        both = known & central.known
        cosine = (unit(centre) * unit(central.mean)).sum(-1)
        distance = (centre - central.mean).norm(dim=-1)
        values = {"hyper_cosine": cosine, "hyper_distance": distance}
        return {name: value[both].mean() for name, value in values.items()}

    return Models(
        mine.state,
        server.model.state,
        Protos(centre, known.to(torch.int64)),
        watch=watch,
    )


METHOD = Method(
    name="fedhpro",
    source="Wang et al., ICML 2026",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("global", "head_all"),
    counted=(Counted("up", "model"), Counted("up", "gradients")),
    per_class=("gradients", "head_gradients", "protos"),
    forgets=lambda hp: True,
)
