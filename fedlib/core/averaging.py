"""Averaging models: what the server makes of weights, and of BatchNorm statistics."""

from typing import Literal

import torch
from torch import Tensor

from fedlib.core.messages import Model
from fedlib.core.net import State
from fedlib.core.protos import Weighting
from fedlib.core.tree import tree_map

# What happens to BatchNorm statistics: averaged like weights, kept by each client (and
# by the server as first drawn), or taken from the first client of the cohort.
Buffers = Literal["average", "local", "first"]
DOUBLES = 2**22  # of a cohort's weights, averaged at once in double precision


def client_weights(samples: Tensor, weighting: Weighting) -> Tensor:
    """Return the weights ``[K]`` of a mean over clients; 0 without a sample."""
    return samples.clamp(max=1) if weighting == "uniform" else samples


def mean_model(
    models: Model, weight: Tensor, before: Model, buffers: Buffers = "average"
) -> Model:
    """Average the models of a cohort.

    Parameters
    ----------
    models : Model
        Stacked over clients, ``[K, ...]``.
    weight : Tensor
        ``[K]`` >= 0, not all 0; a client of weight 0 counts nothing.
    before : Model
        The server's model, whose statistics stay under ``buffers="local"``.
    buffers : "average", "local" or "first"
        Policy for BatchNorm statistics. Integer counters take the maximum.
    """
    share = weight.to(torch.float64) / weight.sum()

    def average(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x.amax(0)
        columns = x.flatten(1) if x.ndim > 1 else x[:, None]
        parts = columns.split(max(1, DOUBLES // len(x)), 1)
        sums = [torch.einsum("k,kd->d", share, p.to(torch.float64)) for p in parts]
        return torch.cat(sums).to(x.dtype).view(x.shape[1:])

    statistics = before.buffers
    if buffers == "average":
        statistics = tree_map(average, models.buffers)
    if buffers == "first":
        first = int(torch.nonzero(weight)[0])
        statistics = tree_map(lambda x: x[first], models.buffers)
    return Model(tree_map(average, models.params), statistics, torch.tensor(True))


def start(model: Model, mine: State) -> State:
    """Return stacked weights to train from: the broadcast model, if there is one.

    What the message does not hold (statistics that stay local, a method's own weights)
    is taken from ``mine`` ``[K, ...]``. Nothing is copied: rows share one memory.
    """
    if not model.known:
        return dict(mine)
    sent = model.state
    return {k: sent[k].expand_as(v) if k in sent else v for k, v in mine.items()}
