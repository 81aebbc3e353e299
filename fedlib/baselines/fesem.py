r"""FeSEM: several global models, and every client with the nearest.

Xie et al., Multi-Center Federated Learning, 2020 (arXiv 2005.01026).

Symbols
    W_i  | up.model       | [K, ...] | client i's weights after its training
    W_c  | server.centres | [C, ...] | centre of cluster c: a model
    r_i  | server.home    | [N]      | client i's cluster; -1 before it has one

Box
    1. broadcast: send each client its own cluster's centre.
    2. client: start from it, minimise cross-entropy, send the weights.
    3. merge, E-step: a client belongs to the centre nearest to its weights.
    4. merge, M-step: a centre is the mean of the weights of its clients.

Readings
    First centres: weights of clients of the first cohort, drawn by k-means++. A client
    without a centre yet starts from its own weights, the common first draw or, with
    ``common_init=False``, one of its own (distances then measure the draw).
    Distance: squared, over all trained weights; BatchNorm statistics do not count, but
    are averaged within a cluster (``buffers`` as in FedAvg).
    One E-step and one M-step per round. Absent clients keep their cluster, and a centre
    without a client of the cohort stays.
    An empty cluster takes the client farthest from its centre, of those that do not
    leave another empty; clusters beyond the number of clients stay empty. A client
    without samples joins none.
    Weights of the mean: ``weighting="uniform"`` (the paper), or by samples.
    Clusters: ``assign="class_count"`` is FedProto's released code, which looks at no
    distance: clients with fewer classes than the mean client, and the others.
    Prediction: the client's own centre.

Traffic
    A client receives one model. One that has no cluster yet receives none, but is
    counted like the others once there are clusters.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from sklearn.cluster import kmeans_plusplus
from torch import Tensor

from fedlib.averaging import client_weights, mean_model
from fedlib.baselines import fedavg
from fedlib.baselines.fedavg import Client
from fedlib.embed import owned
from fedlib.local import Shards
from fedlib.messages import Model, as_model
from fedlib.method import Context
from fedlib.nets import State
from fedlib.protos import Weighting
from fedlib.readouts import Models, Rule
from fedlib.rng import seed_of
from fedlib.tree import stack, take, tree_map


class HP(fedavg.HP):
    """Hyper-parameters of FeSEM."""

    weighting: Weighting = "uniform"
    clusters: int = Field(default=2, ge=1)  # C
    assign: Literal["nearest", "class_count"] = "nearest"

    @model_validator(mode="after")
    def _legal(self) -> "HP":
        if self.assign == "class_count" and self.clusters != 2:
            got = self.clusters
            raise ValueError(f"clusters: got {got}, expected 2 under 'class_count'")
        return self


PRESETS: dict[str, dict[str, dict]] = {}  # GFPL's table gives no setting


class Centres(NamedTuple):
    """Every cluster's model; a client gets its own of them."""

    state: State  # [C, ...]
    home: Tensor  # [N] int64, -1 for none

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of one centre, once there are any."""
        there = bool((self.home >= 0).any())
        each = [(v[0].numel(), v.is_floating_point()) for v in self.state.values()]
        floats = sum(size for size, real in each if real)
        return there * floats, there * (sum(size for size, _ in each) - floats)

    def own(self, clients: Tensor, mine: State) -> State:
        """Return clients' centres ``[K, ...]``, or of ``mine`` what they lack."""
        home = self.home[clients]
        return {
            k: torch.where(
                (home >= 0).view(-1, *[1] * (v.ndim - 1)), self.state[k][home], v
            )
            if k in self.state
            else v
            for k, v in mine.items()
        }


class Down(NamedTuple):
    """To every client."""

    centre: Centres


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # W_i
    samples: Tensor  # [K] int64
    client: Tensor  # [K] int64, the client's number
    classes: Any  # [K] int64, number of its classes; {} where nobody asks


class Server(NamedTuple):
    """What the server keeps."""

    centres: Model  # [C, ...]
    home: Tensor  # [N] int64


def init(ctx: Context) -> tuple[Server, Client]:
    """Draw the clients' weights; no client has a cluster, so the centres are idle."""
    mine = Client(ctx.init_clients(ctx.hp.common_init))
    model = as_model(ctx.net, mine.state, buffers=ctx.hp.buffers != "local")
    idle = tree_map(lambda x: torch.stack([x[0]] * ctx.hp.clusters), model)
    return Server(idle, torch.full((ctx.clients,), -1)), mine


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    return Down(Centres(server.centres.state, server.home))


def client(
    ctx: Context, down: Down, mine: Client, shards: Shards
) -> tuple[Client, Up, dict[str, Tensor]]:
    """Box 2: FedAvg's training, from where each client stands."""
    clients = torch.tensor(shards.ids)
    begin = Client(down.centre.own(clients, mine.state))
    nothing = fedavg.Down(Model({}, {}, torch.tensor(False)))
    mine, up, terms = fedavg.client(ctx, nothing, begin, shards)
    count = ctx.hp.assign == "class_count"
    classes = owned(shards, ctx.classes).sum(1) if count else {}
    return mine, Up(up.model, up.samples, clients, classes), terms


def distances(params: State, centres: State) -> Tensor:
    """Return squared distances ``[K, C]`` of weights to centres."""

    def to(centre: State) -> Tensor:
        each = [(v - centre[k]).square().flatten(1).sum(1) for k, v in params.items()]
        return torch.stack(each).sum(0)

    count = len(next(iter(centres.values())))
    return torch.stack([to(take(centres, c)) for c in torch.arange(count)], 1)


def first_centres(ctx: Context, models: Model) -> Model:
    """Draw centres ``[C, ...]`` from models ``[K, ...]``; again where K < C."""
    flat = torch.cat([v.flatten(1) for v in models.params.values()], 1).numpy()
    seed = seed_of(ctx.seed, "k-means++") % 2**32
    count = ctx.hp.clusters
    _, drawn = kmeans_plusplus(flat, min(count, len(flat)), random_state=seed)
    return take(
        models, torch.tensor([int(drawn[c % len(drawn)]) for c in range(count)])
    )


def fill_empty(home: Tensor, clients: Tensor, distance: Tensor) -> Tensor:
    """Return homes ``[N]`` where no cluster is empty that a client of K can fill."""
    home = home.clone()
    far = distance.gather(1, home[clients].unsqueeze(1)).squeeze(1)
    for cluster in range(distance.shape[1]):
        size = home[home >= 0].bincount(minlength=distance.shape[1])
        spare = size[home[clients]] > 1
        if not size[cluster] and spare.any():
            home[clients[torch.where(spare, far, -1.0).argmax()]] = cluster
    return home


def merge(ctx: Context, server: Server, up: Up) -> tuple[Server, dict[str, Tensor]]:
    """Box 3 and 4; in the order of the clients' numbers."""
    hp: HP = ctx.hp
    order = up.client.argsort()
    up = take(up, order[up.samples[order] > 0])
    centres, before = server.centres, server.home
    if hp.assign == "class_count":
        nearest = (up.classes >= up.classes.double().mean()).long()
        home = before.index_copy(0, up.client, nearest)
    else:
        if (before < 0).all():
            centres = first_centres(ctx, up.model)
        distance = distances(up.model.params, centres.params)
        home = before.index_copy(0, up.client, distance.argmin(1))
        home = fill_empty(home, up.client, distance)
    weight = client_weights(up.samples, hp.weighting)
    moved = []
    for cluster in range(hp.clusters):
        share = weight * (home[up.client] == cluster)
        centre = take(centres, torch.tensor(cluster))
        moved.append(
            mean_model(up.model, share, centre, hp.buffers) if share.any() else centre
        )
    return Server(stack(moved), home), {"changed": (home != before).sum().float()}


def models(ctx: Context, server: Server, mine: Client) -> Models:
    """Return the clients' models after training, and each one's own centre."""
    received = broadcast(ctx, server).centre.own(torch.arange(ctx.clients), mine.state)
    return Models(mine.state, None, None, received=received)


METHOD = fedavg.METHOD._replace(
    name="fesem",
    source="Xie et al., 2020",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("received", "head_all"),
)
