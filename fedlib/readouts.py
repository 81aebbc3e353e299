"""Readouts: how a model's embeddings and logits become a prediction.

An accuracy has a name with two parts, ``model/rule``. The model is ``personal`` (the
client's own, after local training) or ``global`` (the server's, after merging). The
rule is one of ``RULES``. Test data are each client's own shard; the average over
clients gives every client the same weight.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedlib.embed import class_means, forward, padded
from fedlib.local import Shards
from fedlib.nets import Net, Out, State
from fedlib.protos import Protos, merge, nearest

# rule -> what it does, as tables and figures print it
RULES = {
    "head_all": "head over all classes",
    "head_own": "head over the client's own classes",
    "nearest_own": "nearest prototype over the client's own classes",
    "nearest_all": "nearest prototype over all classes",
}


class Rule(NamedTuple):
    """The accuracy a paper reports: which model, read out how."""

    model: str  # "personal" or "global"
    readout: str  # a key of RULES


class Models(NamedTuple):
    """What exists after a round, for evaluation."""

    personal: State  # [K, ...]
    shared: State | None  # the global model, if the method has one
    protos: Protos | None  # global prototypes of the high embedding, if it has them


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
        ``model/rule`` -> int64 ``[K]``, and ``samples`` -> test samples per client.
    """
    found: dict[str, Tensor] = {}
    label_index, _ = padded(test.index)
    labels = test.y[label_index]
    states = {"personal": models.personal, "global": models.shared}
    for name, state in states.items():
        if state is None:
            continue
        stacked = name == "personal"
        protos = models.protos
        if protos is None:
            protos = merge(class_means(net, state, train, "high", stacked=stacked))
        out, real = forward(net, state, test, stacked=stacked)
        by_rule = vmap(scores, in_dims=(0, 0, None))(out, owns, protos)
        for rule, score in by_rule.items():
            right = (score.argmax(-1) == labels) & real
            found[f"{name}/{rule}"] = right.sum(1)
    samples = torch.tensor([len(i) for i in test.index])
    return found | {"samples": samples}
