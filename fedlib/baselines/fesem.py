r"""FeSEM: several global models, and every client with the nearest.

Xie et al., Multi-Center Federated Learning, 2020 (arXiv 2005.01026).

Symbols
    W_i  | up.model       | [K, ...] | client i's weights after its training
    W_c  | server.centres | [C, ...] | centre of cluster c: a model
    r_i  | server.home    | [N]      | client i's cluster; -1 before it has trained

Box
    1. broadcast: send each client its own cluster's centre.
    2. client: start from it, minimise cross-entropy, send the weights.
    3. merge, E-step: a client belongs to the centre nearest to its weights.
    4. merge, M-step: a centre is the mean of the weights of its clients.

Readings
    First centres: weights of clients of the first cohort, drawn by k-means++. In the
    first round, before there are centres, clients start from their own weights, the
    common first draw or, with ``common_init=False``, one of their own (distances then
    measure the draw).
    A client that is first sampled later starts from one of the centres that have
    clients, by a lot of its own, and is placed by distance once it has trained. The
    article's clients are all in every round; its program (a re-upload) gives every
    client a cluster at random at the start. First weights in their place would be
    averaged into a centre, and throw it back by as many rounds as it has behind it.
    Distance: squared, over all trained weights; BatchNorm statistics do not count, but
    are averaged within a cluster (``buffers`` as in FedAvg).
    One E-step and one M-step per round. Absent clients keep their cluster, and a centre
    without a client of the cohort stays.
    An empty cluster takes the client farthest from its centre, of those that do not
    leave another empty; clusters beyond the number of clients stay empty. A client
    without samples joins none.
    Weights of the mean: ``weighting="uniform"`` (the paper), or by samples.
    Clusters: ``assign="class_count"`` is FedProto's released code, which looks at no
    distance: clients with fewer classes than the mean of the cohort, and the others
    (further clusters stay empty).
    Prediction: the client's own centre.

Traffic
    A client receives one model, its own centre or that of its lot; none in round 1.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.blocks.shared_model import Client
from fedlib.core.averaging import client_weights, mean_model
from fedlib.core.embed import owned
from fedlib.core.messages import Model, sizes
from fedlib.core.method import Context, Logged, Models, Rule, Shards, Turn
from fedlib.core.net import State
from fedlib.core.protos import Weighting
from fedlib.core.rng import generator, seed_of
from fedlib.core.tree import put, stack, take, tree_map


class HP(shared_model.HP):
    """Hyper-parameters of FeSEM."""

    weighting: Weighting = "uniform"
    clusters: int = Field(default=2, ge=1)  # C
    assign: Literal["nearest", "class_count"] = "nearest"


class Server(NamedTuple):
    """What the server keeps; a client sees its own centre only."""

    centres: Model  # [C, ...]
    home: Tensor  # [N] int64, each client's cluster; -1 for none
    lot: Tensor  # [N] in [0, 1), says where a client without one begins

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of one centre, once there are any."""
        one = tree_map(lambda x: x[0], self.centres)
        known = (self.home >= 0).any()
        fields = sizes(shared_model.Down(one._replace(known=known))).values()
        return sum(s.floats for s in fields), sum(s.ints for s in fields)

    def start(self, clients: Tensor) -> Tensor:
        """Return the clusters ``[K]`` from whose centres clients start; -1 for none."""
        home, used = self.home[clients], self.home[self.home >= 0].unique()
        if not len(used):
            return home
        drawn = used[(self.lot[clients] * len(used)).long()]
        return torch.where(home < 0, drawn, home)

    def own(self, clients: Tensor, mine: State) -> State:
        """Return clients' centres ``[K, ...]``, or of ``mine`` what they lack."""
        begin = self.start(clients)
        rows = (begin >= 0).nonzero().squeeze(1)
        state = self.centres.state
        return mine | put({k: mine[k] for k in state}, rows, take(state, begin[rows]))


class Down(NamedTuple):
    """To every client."""

    centre: Server  # of which its own centre travels


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # W_i
    samples: Tensor  # [K] int64
    client: Tensor  # [K] int64, the client's number
    classes: Any  # [K] int64, number of its classes; {} where nobody asks


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the clients' weights; no client has a cluster, so the centres are idle."""
    mine = Client(ctx.init_clients(ctx.hp.common_init))
    model = shared_model.uploaded(ctx, mine.state)
    idle = tree_map(lambda x: torch.stack([x[0]] * ctx.hp.clusters), model)
    lot = torch.rand(ctx.clients, generator=generator(ctx.seed, "init", "cluster"))
    return Server(idle, torch.full((ctx.clients,), -1), lot), mine


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    return Down(server)


def client(
    ctx: Context[HP], down: Down, mine: Client, shards: Shards
) -> Turn[Client, Up]:
    """Box 2: FedAvg's training, from where each client stands."""
    clients = torch.tensor(shards.ids)
    begin = Client(down.centre.own(clients, mine.state))
    nothing = shared_model.Down(Model({}, {}, torch.tensor(False)))
    mine, up, terms = shared_model.client(ctx, nothing, begin, shards)
    asked = ctx.hp.assign == "class_count"
    classes = owned(shards, ctx.classes).sum(1) if asked else {}
    return mine, Up(up.model, up.samples, clients, classes), terms


def flat(model: Model) -> Tensor:
    """Return stacked models as rows of weights ``[K, P]``."""
    return torch.cat([v.flatten(1) for v in model.params.values()], 1)


def first_centres(ctx: Context[HP], models: Model) -> Model:
    """Draw centres ``[C, ...]`` from models ``[K, ...]``; again where K < C."""
    rows, count = flat(models).numpy(), ctx.hp.clusters
    seed = seed_of(ctx.seed, "k-means++") % 2**32
    _, drawn = kmeans_plusplus(rows, min(count, len(rows)), random_state=seed)
    return take(
        models, torch.tensor([int(drawn[c % len(drawn)]) for c in range(count)])
    )


def fill_empty(home: Tensor, clients: Tensor, distance: Tensor) -> Tensor:
    """Return homes ``[N]`` where no cluster is empty that a client of K can fill."""
    home, count = home.clone(), distance.shape[1]
    far = distance.gather(1, home[clients].unsqueeze(1)).squeeze(1)
    for cluster in range(count):
        size = home[home >= 0].bincount(minlength=count)
        spare = size[home[clients]] > 1
        if not size[cluster] and spare.any():
            home[clients[torch.where(spare, far, -1.0).argmax()]] = cluster
    return home


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 3 and 4; in the order of the clients' numbers."""
    order = up.client.argsort()
    up = take(up, order[up.samples[order] > 0])
    centres, before, lot = server
    if ctx.hp.assign == "class_count":
        more = (up.classes >= up.classes.double().mean()).long()
        home = before.index_copy(0, up.client, more.clamp(max=ctx.hp.clusters - 1))
    else:
        if (before < 0).all():
            centres = first_centres(ctx, up.model)
        exact = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(flat(up.model), flat(centres), compute_mode=exact)
        home = before.index_copy(0, up.client, distance.argmin(1))
        home = fill_empty(home, up.client, distance)
    weight = client_weights(up.samples, ctx.hp.weighting)
    moved = []
    for cluster in range(ctx.hp.clusters):
        share = weight * (home[up.client] == cluster)
        centre = take(centres, torch.tensor(cluster))
        if share.any():
            centre = mean_model(up.model, share, centre, ctx.hp.buffers)
        moved.append(centre)
    return Server(stack(moved), home, lot), {"changed": (home != before).sum().float()}


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the clients' models after training, and each one's own centre."""
    received = server.own(torch.arange(ctx.clients), mine.state)
    return Models(mine.state, None, None, received=received)


METHOD = shared_model.BASE._replace(
    name="fesem",
    source="Xie et al., 2020",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("received", "head_all"),
    forgets=lambda hp: False,
)
