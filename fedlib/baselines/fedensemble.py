r"""FedEnsemble: clients train as in FedAvg, and several models vote on a prediction.

The baseline of FedGen's and FedPA's released codes, where the clients' models vote; or,
with ``global_models`` > 1, the method of that name, where the server has several models
and these vote: Shi, Lai, Al Kontar and Chowdhury, Fed-ensemble: Improving
Generalization through Model Ensembling in Federated Learning, arXiv 2107.10663, 2021.

Symbols
    w_m | server.models   | [M, ...] | the global models; one for FedPA's baseline
    w_k | mine.state      | [K, ...] | client k's model after its local training
    M   | global_models   | []       | number of global models
    m_k | down.model.deal | [N]      | which of them client k is sent in this round

Box
    1. broadcast: send each client one model, w_m with m = m_k.
    2. client: as FedAvg, from that model.
    3. merge: each w_m becomes the mean of the models that were trained from it; one
       that nobody trained stays.
    4. predict, M = 1: the sum of the logits of all N clients' models.
       M > 1: the sum of the softmax outputs of the M global models.

Readings
    Who votes (M = 1): the clients of the last cohort with the models that they just
    trained, all others with the global model as broadcast at the start of that round
    (FedPA's code sends it to everyone before it trains the cohort). The server has all
    of these. BatchNorm statistics are each client's own under ``buffers="local"``.
    FedPA's code measures this vote at the end of a round and its other methods at the
    start of one, so that its curves are a round apart; here all are at the end.
    FedPA cites Shi et al. for this baseline, but its released code runs the clients'
    vote, from which the table's numbers presumably come: the default.
    Deal (M > 1): clients are put into M groups of near equal size by a permutation that
    is drawn anew every M rounds; group g is sent model (g + t) mod M, so that in M
    rounds each client is sent every model once. The groups are our reading of the
    original's strata. First weights: each model has its own, the server's draw, so
    that all are known from the first round, whatever ``common_init`` says.
    Message: a client is sent one model, whatever M is.
"""

from typing import Any, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedlib.blocks import shared_model
from fedlib.core.averaging import client_weights, mean_model, start
from fedlib.core.messages import Model, as_model
from fedlib.core.method import Context, Logged, Models, Rule, Shards, Turn
from fedlib.core.net import State
from fedlib.core.readouts import Ensemble
from fedlib.core.rng import generator
from fedlib.core.tree import put, stack, take, tree_map


class HP(shared_model.HP):
    """Hyper-parameters of FedEnsemble."""

    global_models: int = Field(default=1, ge=1)  # M; 1: the clients' models vote

    @model_validator(mode="after")
    def _global_models_need_statistics(self) -> Self:
        if self.global_models > 1 and self.buffers == "local":
            raise ValueError(
                f"buffers: got 'local' with global_models={self.global_models}, "
                "expected 'average' or 'first': the server's models vote"
            )
        return self


class Dealt(NamedTuple):
    """Models of which each client is sent one; it counts as one."""

    each: State  # [M, ...]
    deal: Tensor  # [N] int64, which one client k is sent
    known: Tensor  # [] bool

    def sent(self) -> tuple[int, int]:
        """Return the floats and integers of one model; none before it is known."""
        numbers = [v[0] for v in self.each.values()] if self.known else []
        floats = sum(v.numel() for v in numbers if v.is_floating_point())
        return floats, sum(v.numel() for v in numbers) - floats


class Down(NamedTuple):
    """To each client one of the models."""

    model: Dealt
    model_buffers: Any  # Dealt; {} where there are none or they stay local


class Up(NamedTuple):
    """From each client, stacked over the cohort."""

    model: Model  # w_k
    samples: Tensor  # [K] int64, n_k
    origin: Tensor  # [K] int64, m_k


class Server(NamedTuple):
    """What the server keeps."""

    models: Model  # [M, ...], known [M]
    sent: Model  # [M, ...], as broadcast in the last round


class Client(NamedTuple):
    """What a client keeps between rounds."""

    state: State  # [K, ...], w_k
    last: Tensor  # [K] int64, the last round in which it trained; 0: none


def one(models: Model, m: int) -> Model:
    """Return the m-th of stacked models."""
    return tree_map(lambda x: x[m], models)


def init(ctx: Context[HP]) -> tuple[Server, Client]:
    """Draw the clients' weights and the global models."""
    server, mine = shared_model.init(ctx)
    count = ctx.hp.global_models
    more = [generator(ctx.seed, "init", f"model {m}") for m in range(1, count)]
    states = stack([server.model.state, *map(ctx.net.init, more)])
    known = torch.full((count,), ctx.hp.common_init or count > 1)
    models = as_model(ctx.net, states)._replace(known=known)
    return Server(models, models), Client(mine.state, torch.zeros(ctx.clients).long())


def deal(ctx: Context[HP]) -> Tensor:
    """Return the model ``[N]`` that each client is sent in this round."""
    count = ctx.hp.global_models
    drawn = generator(ctx.seed, "deal", (ctx.round - 1) // count)
    group = torch.randperm(ctx.clients, generator=drawn)
    return (group + ctx.round) % count


def broadcast(ctx: Context, server: Server) -> Down:
    """Box 1."""
    model = shared_model.sent(ctx, server.models)
    dealt, known = deal(ctx), model.known.all()
    buffers = Dealt(model.buffers, dealt, known) if model.buffers else {}
    return Down(Dealt(model.params, dealt, known), buffers)


def client(ctx: Context, down: Down, mine: Client, shards: Shards) -> Turn[Client, Up]:
    """Box 2."""
    origin = down.model.deal[torch.tensor(shards.ids)]
    buffers = take(down.model_buffers.each, origin) if down.model_buffers else {}
    received = Model(take(down.model.each, origin), buffers, down.model.known)
    after, up, terms = shared_model.client(
        ctx, shared_model.Down(received), shared_model.Client(mine.state), shards
    )
    last = torch.where(shards.sizes() > 0, ctx.round, mine.last)
    return Client(after.state, last), Up(up.model, up.samples, origin), terms


def merge(ctx: Context[HP], server: Server, up: Up) -> tuple[Server, Logged]:
    """Box 3."""
    weight, how = client_weights(up.samples, ctx.hp.weighting), ctx.hp.buffers
    merged = []
    for m in range(ctx.hp.global_models):
        share, old = weight * (up.origin == m), one(server.models, m)
        merged.append(mean_model(up.model, share, old, how) if share.any() else old)
    return Server(stack(merged), server.models), {}


def models(ctx: Context[HP], server: Server, mine: Client) -> Models:
    """Return the models that vote beside those of FedAvg (Box 4)."""
    if ctx.hp.global_models > 1:
        voters = Ensemble(server.models.state, "softmax")
        return Models(mine.state, None, None, ensemble=voters)
    now = shared_model.Server(one(server.models, 0))
    sent = shared_model.sent(ctx, one(server.sent, 0))
    cohort = (mine.last == mine.last.max()).nonzero().flatten()
    held = put(start(sent, mine.state), cohort, take(mine.state, cohort))
    plain = shared_model.models(ctx, now, mine)
    return plain._replace(ensemble=Ensemble(held, "logits"))


METHOD = shared_model.BASE._replace(
    name="fedensemble",
    source="FedPA's released code; Shi et al., arXiv 2107.10663",
    hp=HP,
    init=init,
    broadcast=broadcast,
    client=client,
    merge=merge,
    models=models,
    predict=Rule("ensemble", "head_all"),
    forgets=lambda hp: False,
)
