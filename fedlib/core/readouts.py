"""Readouts: how a model's embeddings and logits become a prediction.

An accuracy has a name with two parts, ``model/rule``. The model is ``personal`` (the
client's own, after local training), ``global`` (the server's, after merging),
``received`` (what each client holds once it has received the next broadcast: the
server's weights with whatever stays local, such as BatchNorm statistics, a head or a
cluster) or ``ensemble`` (several models that vote). The rule is one of ``RULES``. The
data are each client's own test shard, or the whole test set of the data set, at once or
by group.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlib.core.embed import class_means, forward, padded
from fedlib.core.local import Shards
from fedlib.core.log import Log
from fedlib.core.nets import Net, Out, State
from fedlib.core.protos import Protos, merge, nearest

# rule -> what it does, as tables and figures print it
RULES = {
    "head_all": "head over all classes",
    "head_own": "head over the client's own classes",
    "nearest_own": "nearest prototype over the client's own classes",
    "nearest_all": "nearest prototype over all classes",
    "etf_all": "nearest vertex of the simplex ETF over all classes",
    "etf_own": "nearest vertex of the simplex ETF over the client's own classes",
    "density_all": "densest mixture over all classes",
    "density_own": "densest mixture over the client's own classes",
    "outputs_all": "head over all classes and all virtual ones",
    "outputs_own": "head over the client's own classes and all virtual ones",
}


class Rule(NamedTuple):
    """The accuracy a paper reports: which model, read out how."""

    model: str  # "personal", "global", "received" or "ensemble"
    readout: str  # a key of RULES


class Ensemble(NamedTuple):
    """Several models whose outputs are added."""

    states: State  # [M, ...]
    vote: Literal["logits", "softmax"]  # what is added


class Models(NamedTuple):
    """What exists after a round, for evaluation."""

    personal: State  # [K, ...]
    shared: State | None  # the global model, if the method has one
    protos: Protos | None  # global prototypes of the high embedding, if it has them
    received: State | None = None  # [K, ...] after the next broadcast
    # A method's own rules: one client's state and outputs -> scores [B, C] by name;
    # beyond C stand what no sample is, so that it is a mistake
    scores: Callable[[State, Out], dict[str, Tensor]] | None = None
    # Numbers to log beside centralised prototypes: class means of all training data
    # under the global model, made for evaluation only
    watch: Callable[[Protos], dict[str, Tensor]] | None = None
    ensemble: Ensemble | None = None


def scores(out: Out, owns: Tensor, protos: Protos) -> dict[str, Tensor]:
    """Return scores ``[B, C]`` under every rule for one client.

    A client whose own classes all lack a prototype is read out by its head.
    """
    by_nearest = nearest(out.high, protos)
    own_nearest = torch.where(owns, by_nearest, float("-inf"))
    own_head = torch.where(owns, out.logits, float("-inf"))
    usable = (owns & protos.known).any()
    return {
        "head_all": out.logits,
        "head_own": own_head,
        "nearest_own": torch.where(usable, own_nearest, own_head),
        "nearest_all": torch.where(protos.known.any(), by_nearest, out.logits),
    }


def _all_and_own(each: dict[str, Tensor], owns: Tensor) -> dict[str, Tensor]:
    """Return scores over all classes and over those of ``owns`` ``[K, C]``."""
    own = torch.where(owns, 0.0, float("-inf")).unsqueeze(1)
    return {f"{name}_all": value for name, value in each.items()} | {
        f"{name}_own": value + F.pad(own, (0, value.shape[-1] - own.shape[-1]))
        for name, value in each.items()
    }


def votes(net: Net, ensemble: Ensemble, shards: Shards) -> Tensor:
    """Return the sum ``[K, n, C]`` of an ensemble's outputs on every sample."""
    total = torch.zeros(())
    for member in range(len(next(iter(ensemble.states.values())))):
        state = {k: v[member] for k, v in ensemble.states.items()}
        logits = forward(net, state, shards, stacked=False)[0].logits
        total = total + (logits if ensemble.vote == "logits" else logits.softmax(-1))
    return total


def evaluate(
    net: Net, models: Models, owns: Tensor, train: Shards, test: Shards
) -> dict[str, Tensor]:
    """Return the number of right predictions ``[K]`` under every model and rule.

    A method without prototypes of its own is read out against class means of the
    evaluated model over the clients' training data, merged like FedProto's; these are
    for evaluation only and are not counted as communication.

    Returns
    -------
    dict
        ``accuracy/model/rule`` -> int64 ``[K]``; ``samples`` -> test samples per
        client; ``watch/name`` -> numbers that the method compares with centralised
        prototypes.
    """
    accuracy: dict[str, Tensor] = {}
    watch: dict[str, Tensor] = {}
    label_index, _ = padded(test.index)
    labels = test.y[label_index]
    states = {
        "personal": models.personal,
        "global": models.shared,
        "received": models.received,
    }
    for name, state in states.items():
        if state is None:
            continue
        stacked = name != "global"
        protos = models.protos
        if protos is None:
            protos = merge(class_means(net, state, train, "high", stacked=stacked))
        out, real = forward(net, state, test, stacked=stacked)
        by_rule = vmap(scores, in_dims=(0, 0, None))(out, owns, protos)
        if models.scores is not None:
            rules = vmap(models.scores, in_dims=(0 if stacked else None, 0))
            by_rule |= _all_and_own(rules(state, out), owns)
        for rule, score in by_rule.items():
            right = (score.argmax(-1) == labels) & real
            accuracy[f"{name}/{rule}"] = right.sum(1)
    if models.ensemble is not None:
        real = padded(test.index)[1]
        voted = _all_and_own({"head": votes(net, models.ensemble, test)}, owns)
        for rule, score in voted.items():
            right = (score.argmax(-1) == labels) & real
            accuracy[f"ensemble/{rule}"] = right.sum(1)
    if models.watch is not None and models.shared is not None:
        means = class_means(net, models.shared, train, "high", stacked=False)
        watch = models.watch(merge(means, "samples"))
    return Log(accuracy=accuracy, samples=test.sizes(), watch=watch).flat()


def evaluate_full(net: Net, models: Models, full: Shards) -> dict[str, Tensor]:
    """Return right predictions of the server's models on a whole test set.

    They and the numbers of samples are ``[1]``, or ``[G]`` for a test set in G groups.
    Only rules over all classes apply; ``nearest_all`` where the method has prototypes.
    """
    labels = full.y[padded(full.index)[0]]
    real = padded(full.index)[1]
    by_name: dict[str, Tensor] = {}
    if models.shared is not None:
        out, _ = forward(net, models.shared, full, stacked=False)
        by_name["global/head_all"] = out.logits
        if models.scores is not None:
            each = vmap(models.scores, in_dims=(None, 0))(models.shared, out)
            by_name |= {f"global/{name}_all": score for name, score in each.items()}
        if models.protos is not None:
            by_name["global/nearest_all"] = nearest(
                out.high.flatten(0, 1), models.protos
            ).view_as(out.logits)
    if models.ensemble is not None:
        by_name["ensemble/head_all"] = votes(net, models.ensemble, full)
    right = {
        name: ((score.argmax(-1) == labels) & real).sum(1)
        for name, score in by_name.items()
    }
    return Log(full=right, full_samples=full.sizes()).flat()
