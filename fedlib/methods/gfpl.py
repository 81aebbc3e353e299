r"""GFPL: generative prototypes, and two classifiers on one embedding.

Lu et al., GFPL: Generative Federated Prototype Learning for Resource-Constrained and
Data-Imbalanced Vision Task. Equation and algorithm numbers are the paper's.

Symbols
    symbol          | name here              | shape       | equation
    A, Q            | in simplex             | [d_p, C]    | (9)
    Z               | server.simplex         | [d_p, C]    | (10), column c for class c
    f(x)            | out.high               | [B, d]      | 4.1, the embedding
    h               | projection             | [B, d_p]    | (11), unit vectors
    L_DR            | dot_regression         | []          | (12)
    L_train         | hybrid                 | []          | (13)
    mu, sigma, pi   | up.mixtures            | [K, C, n, d]| (5), (6), P_ij of client i
    D_B             | mixtures.bhattacharyya | [m, m]      | (8), of one class
    P_G             | server.mixtures        | [C, M, d]   | Algorithm 1, M = N n
    f_j             | pseudo_features        | [C r, d]    | (4)
    L_retrain       | in retrain             | []          | (14)

Box
    1. broadcast: send the simplex, once.
    2. client: minimise lambda L_DR + cross-entropy over embedding, head and projection.
    3. client, in an exchange round: fit a mixture of n Gaussians to the embeddings of
       each own class, and send it.
    4. merge, in an exchange round: per class, merge components nearer than S_C.
    5. reply, in an exchange round: send the merged mixtures of all classes.
    6. finish, in an exchange round: draw r pseudo-features of every class and retrain
       head and projection on them; the embedding stays as it is.

Readings
    We found no public code; every item below is ours where the paper is silent.
    Trained on pictures: embedding, head and projection (line 15 of Algorithm 2 does not
    name the last, which would leave it to retraining).
    Exchange: first in round t1, then every S_T rounds (``schedule="from_first"``,
    default), or in multiples of S_T from t1 on (``"multiples"``, as Algorithm 2 is
    printed); the same where S_T divides t1. Mixtures go up, merged ones come back and
    are used within one round (``order="after"``, default: Section 4.2 retrains "after
    acquiring global prototypes"). Algorithm 2 prints another order, ``"in_batches"``:
    in an exchange round, after every batch, a step on r fresh pseudo-features of every
    class, from the mixtures of the *previous* exchange; the first exchange has none.
    Both kinds of steps keep their momentum through the round. It prints the fit of
    mixtures inside the batch loop, too; the last one counts, and is the only one here.
    Rounds: Table 1's column "Comm. Round" is read as rounds of training, of which every
    S_T-th exchanges; ``papers.gfpl(rounds_of="exchanges")`` has as many exchanges.
    Retrained: head and projection (the text), or the projection only with
    ``retrain="projection"`` (Algorithm 2); ``retrain_epochs=1`` pass, dropout on.
    Embeddings for the mixtures: after training, in eval mode, without augmentation.
    Covariances are diagonal (the paper uploads standard deviations); ``variance_floor``
    is added to each. A class with fewer distinct samples than n has as many components.
    D_B sums over dimensions as Eq. (8) says, and so grows with d: at d = 50 (MNIST)
    S_C = 1 merges nothing, whatever the variance floor, so that this part of the method
    never acts. ``distance="mean"`` divides by d, and merges most.
    Algorithm 1 lets components join a cluster at once without comparing them with each
    other (default); ``linkage="strict"`` compares. The seed is the first component left
    in an order by content, so that the order of uploads means nothing.
    Weight of a component: pi N_ij (default), or ``component_weight="pi"``.
    Pseudo-features may be negative although embeddings are not; ``clamp=True`` cuts.
    Dimension d_p: ``projection_size``; None takes the embedding's. C <= d_p is needed.
    Table 3 gives 50, 128, 80, 80 as the projection's size, Section 5.1 50, 80, 128, 128
    as the extractor's output: ``papers.gfpl(size_of="extractor")`` has nets with such
    an embedding. By default it is the projection's: Table 1's payloads and
    Appendix B's 512 are of embeddings of 50 and 512.
    First weights: one draw for all (the paper), or each its own with
    ``common_init=False``.
    Prediction (silent): the head over all classes, as the ablation implies. Readouts
    ``etf`` and ``density`` are beside.
    A class that no client of the cohort owns keeps its mixture. A client without
    samples sends nothing and retrains like the others.
    Ablations: ``dual_classifier=False`` (w/o DCS: no projection, no simplex),
    ``pseudo=False`` (w/o PFG: no exchange); without both it is Local.
"""

from functools import partial
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedlib.blocks import mixtures
from fedlib.blocks.descent import of_module
from fedlib.blocks.mixtures import Mixtures
from fedlib.core.embed import forward
from fedlib.core.hyper import HyperParameters
from fedlib.core.layers import linear
from fedlib.core.losses import cross_entropy
from fedlib.core.method import (
    Context,
    Counted,
    Logged,
    Loss,
    Losses,
    Method,
    Models,
    Rule,
    Shards,
    Trained,
    Turn,
)
from fedlib.core.net import Out, State
from fedlib.core.rng import generator
from fedlib.core.shards import plan_of
from fedlib.core.tree import stack

PROJECTION = "own.projection"  # of the layer's weights, beside the net's
RETRAINED = ("head.", PROJECTION)
# Logged of the distances; their mean is that of the few whose variances are the floor.
QUANTILES = {"low": 0.1, "median": 0.5, "high": 0.9}


class HP(HyperParameters):
    """Hyper-parameters of GFPL."""

    align_weight: float = Field(default=2.0, ge=0)  # lambda
    components: int = Field(default=4, ge=1)  # n
    pseudo_features: int = Field(default=16, ge=1)  # r, per class
    first_exchange: int = Field(default=10, ge=1)  # t1
    exchange_every: int = Field(default=10, ge=1)  # S_T
    schedule: Literal["from_first", "multiples"] = "from_first"
    order: Literal["after", "in_batches"] = "after"  # of training and retraining
    merge_threshold: float = Field(default=1.0, ge=0)  # S_C
    distance: mixtures.Distance = "sum"
    linkage: mixtures.Linkage = "batch"
    component_weight: mixtures.Weighting = "counted"
    variance_floor: float = Field(default=1e-6, gt=0)
    projection_size: int | None = Field(default=None, ge=2)  # d_p; None: d
    retrain: Literal["both", "projection"] = "both"
    retrain_epochs: int = Field(default=1, ge=1)
    clamp: bool = False
    dual_classifier: bool = True
    pseudo: bool = True
    common_init: bool = True

    @model_validator(mode="after")
    def _something_to_retrain(self) -> "HP":
        if self.retrain == "projection" and not self.dual_classifier and self.pseudo:
            raise ValueError(
                "retrain: got 'projection' with dual_classifier=False, which has none; "
                "expected 'both'"
            )
        return self


class Simplex(NamedTuple):
    """The vertices that embeddings are drawn to; sent in the first round only."""

    vertices: Tensor  # [d_p, C]
    first: Tensor  # [] bool, whether this is the first round

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of a message: none after the first round."""
        return self.vertices.numel() * int(self.first), 0


class Down(NamedTuple):
    """To every client, before it trains."""

    simplex: Simplex
    previous: Mixtures  # [C, M, d]; none is known unless ``order`` is "in_batches"


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    mixtures: Mixtures  # [K, C, n, d]; no class is known between exchanges


class Reply(NamedTuple):
    """To every client of the cohort, after merging."""

    mixtures: Mixtures  # [C, M, d]; no class is known between exchanges


class Server(NamedTuple):
    """What the server keeps."""

    simplex: Tensor  # [d_p, C]
    mixtures: Mixtures  # [C, M, d]


class Client(NamedTuple):
    """What a client keeps between rounds: a personal model, never sent."""

    state: State  # [K, ...] the net's weights and the projection's
    simplex: Tensor  # [K, d_p, C], as received in the first round
    number: Tensor  # [K] which client this is; names its random generators


def simplex(classes: int, size: int, draw: torch.Generator) -> Tensor:
    """Return the vertices ``[size, classes]`` of a simplex of equal angles.

    Columns are unit vectors; two of them have the product -1 / (classes - 1).

    Raises
    ------
    ValueError
        Fewer than 2 classes, or fewer dimensions than classes.
    """
    if not 2 <= classes <= size:
        raise ValueError(
            f"projection_size: got {size} for {classes} classes, expected at least as "
            "many as there are classes, and those at least 2"
        )
    a = torch.randn(size, classes, generator=draw, dtype=torch.float64)
    q, _ = torch.linalg.qr(a)  # Eq. (9)
    centred = q - q.mean(1, keepdim=True)  # Q (I - 1 1^T / C)
    return ((classes / (classes - 1)) ** 0.5 * centred).float()  # Eq. (10)


def projection(state: State, high: Tensor) -> Tensor:
    """Return the projections h ``[B, d_p]`` of embeddings ``[B, d]``, unit vectors."""
    weight, bias = state[f"{PROJECTION}.weight"], state[f"{PROJECTION}.bias"]
    return F.normalize(linear(high, weight, bias), dim=-1, eps=1e-12)  # Eq. (11)


def dot_regression(h: Tensor, y: Tensor, vertices: Tensor) -> Tensor:
    """Return half the squared gap of h ``[B, d_p]`` to its class's vertex."""
    product = (h * vertices.T[y]).sum(-1)
    return (product - 1).square().mean() / 2  # Eq. (12)


def hybrid(alignment: Tensor, supervised: Tensor, hp: HP) -> Tensor:
    """Return the loss of both classifiers, on embeddings or pseudo-features."""
    return hp.align_weight * alignment + supervised  # Eq. (13), Eq. (14)


def exchanges(hp: HP, number: int) -> bool:
    """Return whether prototypes travel in round ``number``, counted from 1."""
    begun = number - hp.first_exchange
    since = begun if hp.schedule == "from_first" else number
    return hp.pseudo and begun >= 0 and since % hp.exchange_every == 0


def losses(
    state: State, z: Tensor, logits: Tensor, y: Tensor, vertices: Tensor, hp: HP
) -> Losses:
    """Return the loss of both classifiers on a batch of embeddings z ``[B, d]``."""
    supervised = cross_entropy(logits, y)
    if not hp.dual_classifier:
        return Losses(supervised, {"supervised": supervised}, {})
    alignment = dot_regression(projection(state, z), y, vertices)
    total = hybrid(alignment, supervised, hp)
    return Losses(total, {"supervised": supervised, "alignment": alignment}, {})


def first_projections(ctx: Context[HP], inputs: int, outputs: int) -> State:
    """Draw the projection's weights ``[N, ...]``: one common draw, or one each."""
    layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
    names = ["common"] * ctx.clients if ctx.hp.common_init else range(ctx.clients)
    drawn = [of_module(layer, generator(ctx.seed, "init projection", n)) for n in names]
    return {f"{PROJECTION}.{name}": value for name, value in stack(drawn).items()}


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the simplex and the clients' weights; no mixture is known."""
    hp = ctx.hp
    _, d = ctx.net.embedding_sizes()
    nothing = mixtures.empty(ctx.classes, ctx.clients * hp.components, d)
    state, vertices = ctx.init_clients(hp.common_init), torch.zeros(0, ctx.classes)
    if hp.dual_classifier:
        size = hp.projection_size or d
        vertices = simplex(ctx.classes, size, generator(ctx.seed, "init", "simplex"))
        state |= first_projections(ctx, d, size)
    rows = vertices.expand(ctx.clients, *vertices.shape)
    mine = Client(state, rows, torch.arange(ctx.clients))
    return Server(vertices, nothing), mine


def broadcast(ctx: Context[HP], server: Server) -> Down:
    """Box 1; in the printed order also the mixtures of the exchange before."""
    previous = mixtures.empty(*server.mixtures.mean.shape)
    if ctx.hp.order == "in_batches" and exchanges(ctx.hp, ctx.round):
        previous = server.mixtures
    return Down(Simplex(server.simplex, torch.tensor(ctx.round == 1)), previous)


def local_mixtures(ctx: Context[HP], state: State, shards: Shards) -> Mixtures:
    """Return the mixtures ``[K, C, n, d]`` of a cohort's embeddings in eval mode."""
    hp = ctx.hp
    out, _ = forward(ctx.net, state, shards, stacked=True)  # without augmentation
    return stack(
        [
            mixtures.fit_classes(  # Eq. (5), Eq. (6)
                z[: len(index)],
                shards.y[index],
                hp.components,
                classes=ctx.classes,
                floor=hp.variance_floor,
                generator=ctx.random("mixtures", client),
            )
            for z, index, client in zip(out.high, shards.index, shards.ids, strict=True)
        ]
    )


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2 and 3."""
    hp = ctx.hp
    _, d = ctx.net.embedding_sizes()

    def loss(state, batch):
        out = ctx.net(state, batch.x, train=True)
        return losses(state, out.high, out.logits, batch.y, down.simplex.vertices, hp)

    vertices = down.simplex.vertices.expand_as(mine.simplex)
    now = Client(mine.state, vertices, torch.tensor(shards.ids))
    if down.previous.known.any():
        state, terms = train_in_batches(ctx, down.previous, now, shards, loss)
    else:
        state, terms = ctx.train(mine.state, shards, loss)[:2]
    if exchanges(hp, ctx.round):
        local = local_mixtures(ctx, state, shards)
    else:
        local = mixtures.empty(len(shards.ids), ctx.classes, hp.components, d)
    return now._replace(state=state), Up(local), terms


def quantiles(apart: Tensor) -> Tensor:
    """Return ``QUANTILES`` of distances ``[pairs]``; NaN where there is no pair."""
    if not len(apart):
        return torch.full((len(QUANTILES),), float("nan"))
    q = torch.tensor([*QUANTILES.values()], dtype=apart.dtype)
    return apart.nanquantile(q, interpolation="lower")  # each the distance of a pair


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 4; a class that no client of the cohort owns keeps its mixture."""
    hp = ctx.hp
    names = ("received", "kept", "merged", *(f"distance_{q}" for q in QUANTILES))
    if not exchanges(hp, ctx.round):
        return server, dict.fromkeys(names, torch.tensor(float("nan")))
    fused = mixtures.fuse(
        mixtures.pool(up.mixtures, hp.component_weight),
        hp.merge_threshold,  # S_C
        reduce=hp.distance,  # Eq. (8)
        linkage=hp.linkage,
        size=server.mixtures.weight.shape[1],
    )
    counts = (fused.received, fused.kept, fused.received - fused.kept)
    numbers = [*counts, *quantiles(fused.apart).tolist()]
    watched = {n: torch.tensor(float(v)) for n, v in zip(names, numbers, strict=True)}
    known = mixtures.fill(fused.mixtures, server.mixtures)
    return server._replace(mixtures=known), watched


def reply(ctx: Context[HP], server: Server) -> Reply:
    """Box 5; in the printed order they are sent with the next exchange instead."""
    if ctx.hp.order == "after" and exchanges(ctx.hp, ctx.round):
        return Reply(server.mixtures)
    return Reply(mixtures.empty(*server.mixtures.mean.shape))


def pseudo_features(
    ctx: Context[HP], known: Mixtures, numbers: list[int], phase: str = ""
) -> Shards:
    """Draw r points of every known class for each client, as data to train on."""
    hp = ctx.hp
    drawn = [
        mixtures.sample(
            known, hp.pseudo_features, ctx.random(f"{phase}pseudo-features", n)
        )
        for n in numbers  # Eq. (4)
    ]
    x, y = (torch.cat(parts) for parts in zip(*drawn, strict=True))
    x = x.clamp(min=0) if hp.clamp else x
    index = torch.arange(len(y)).view(len(numbers), -1)
    return Shards(x, y, list(index), numbers)


def retrain_on(
    ctx: Context[HP], points: Shards, mine: Client, **options: Any
) -> Trained:
    """Train head and projection of K clients on points ``[M, d]``, nothing else."""
    hp = ctx.hp

    def loss(state, batch):
        head = ctx.net.head_state(state)
        if hp.retrain == "projection":
            head = {name: value.detach() for name, value in head.items()}
        logits = ctx.net.head(head, batch.x, train=True)
        return losses(state, batch.x, logits, batch.y, batch.extra["vertices"], hp)

    state = {k: v for k, v in mine.state.items() if k.startswith(RETRAINED)}
    return ctx.train(state, points, loss, {"vertices": mine.simplex}, **options)


def retrain(ctx: Context[HP], known: Mixtures, mine: Client) -> tuple[Client, Logged]:
    """Retrain K clients on pseudo-features of the merged mixtures."""
    points = pseudo_features(ctx, known, mine.number.tolist())
    settings = {"local_epochs": ctx.hp.retrain_epochs, "local_steps": None}
    trained = retrain_on(
        ctx,
        points,
        mine,
        training=ctx.training.model_copy(update=settings | {"drop_last": False}),
        phase="retrain ",
    )
    terms = {f"retrain_{name}": value for name, value in trained.terms.items()}
    return mine._replace(state=mine.state | trained.state), terms


def batches(ctx: Context, shards: Shards) -> list[list[Tensor]]:
    """Return the batches of each client, in the order in which ``ctx.train`` has them.

    Each is a list of indices; a client without samples has none.
    """
    per_client = []
    for position, index in enumerate(shards.index):
        cuts = []
        if len(index):
            plan = plan_of(shards, position, ctx.training, ctx.random)
            cuts = [plan.order[start:end] for start, end in plan.spans]
        per_client.append(cuts)
    return per_client


def train_in_batches(
    ctx: Context, known: Mixtures, mine: Client, shards: Shards, loss: Loss
) -> tuple[State, dict[str, Tensor]]:
    """Box 2 in the printed order: after every batch, a step on pseudo-features."""
    cuts = batches(ctx, shards)
    count = torch.tensor([max(1, len(one)) for one in cuts])
    once = ctx.training.model_copy(
        update={"local_epochs": 1, "local_steps": None, "drop_last": False}
    )
    fit, total = ctx.blank_moments(mine.state), {}
    again = {k: v for k, v in fit.items() if k.startswith(RETRAINED)}
    for step in range(max(len(one) for one in cuts)):
        phase, nothing = f"step {step} ", torch.zeros(0, dtype=torch.int64)
        now = [one[step] if step < len(one) else nothing for one in cuts]
        data = shards._replace(index=now)
        trained = ctx.train(
            mine.state, data, loss, training=once, phase=phase, moments=fit
        )
        mine, fit = mine._replace(state=trained.state), trained.moments
        points = pseudo_features(ctx, known, mine.number.tolist(), phase)
        in_one = once.model_copy(update={"batch_size": len(points.index[0])})
        busy = [
            i if len(j) else nothing for i, j in zip(points.index, now, strict=True)
        ]
        retrained = retrain_on(
            ctx,
            points._replace(index=busy),
            mine,
            training=in_one,
            phase=f"{phase}retrain ",
            moments=again,
        )
        mine = mine._replace(state=mine.state | retrained.state)
        again = retrained.moments
        terms = trained.terms | {f"retrain_{k}": v for k, v in retrained.terms.items()}
        total = {k: total.get(k, 0) + v / count for k, v in terms.items()}
    return mine.state, total


def finish(ctx: Context, down: Reply, mine: Client) -> tuple[Client, Logged]:
    """Box 6."""
    if not down.mixtures.known.any():
        return mine, {}
    return retrain(ctx, down.mixtures, mine)


def scores(server: Server, state: State, out: Out) -> dict[str, Tensor]:
    """Return the readouts beside the head ``[B, C]``: by the simplex, by density.

    A class without a mixture has no density: minus infinity.
    """
    density = mixtures.log_density(out.high, server.mixtures)
    known = server.mixtures.known
    readouts = {"density": torch.where(known, density, float("-inf"))}
    if f"{PROJECTION}.weight" in state:
        readouts["etf"] = projection(state, out.high) @ server.simplex
    return readouts


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the personal models and two readouts of the method's own."""
    return Models(mine.state, None, None, scores=partial(scores, server))


METHOD = Method(
    name="gfpl",
    source="Lu et al., GFPL",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("personal", "head_all"),
    counted=(Counted("up", "mixtures"),),
    per_class=("mixtures",),
    reply=reply,
    finish=finish,
)
