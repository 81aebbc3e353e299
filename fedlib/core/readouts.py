"""Readouts: how a model's embeddings and logits become a prediction.

An accuracy has a name with two parts, ``model/rule``. The model is ``personal`` (the
client's own, after local training), ``global`` (the server's, after merging),
``received`` (what each client holds once it has received the next broadcast: the
server's weights with whatever stays local, such as BatchNorm statistics, a head or a
cluster) or ``ensemble`` (several models that vote). The rule is one of ``RULES``. The
data are each client's own test shard, or the whole test set of the data set, at once or
by group. Scores of minus infinity alone are no prediction: where a rule has none, as
that of the nearest prototype where no class has one, it is ``NOT_EVALUATED``.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedlib.core.embed import Embedded, class_means, forward, outputs, padded
from fedlib.core.log import NOT_EVALUATED, Log
from fedlib.core.net import Net, Out, State
from fedlib.core.protos import Protos, merge, nearest
from fedlib.core.shards import Shards

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

    They are minus infinity where the rule asks for no class or the class has no
    prototype. A client whose own classes all lack one is read out by its head among
    them (FedMPS's Eq. 19 leaves it open).
    """
    by_nearest = nearest(out.high, protos)
    own_head = torch.where(owns, out.logits, float("-inf"))
    own_nearest = torch.where(owns, by_nearest, float("-inf"))
    usable = (owns & protos.known).any()
    return {
        "head_all": out.logits,
        "head_own": own_head,
        "nearest_own": torch.where(usable, own_nearest, own_head),
        "nearest_all": by_nearest,
    }


def _all_and_own(scores: dict[str, Tensor], owns: Tensor) -> dict[str, Tensor]:
    """Return scores over all classes and over those of ``owns`` ``[K, C]``."""
    own = torch.where(owns, 0.0, float("-inf")).unsqueeze(1)
    return {f"{name}_all": value for name, value in scores.items()} | {
        f"{name}_own": value + F.pad(own, (0, value.shape[-1] - own.shape[-1]))
        for name, value in scores.items()
    }


def votes(net: Net, ensemble: Ensemble, shards: Shards) -> Tensor:
    """Return the sum ``[K, n, C]`` of an ensemble's outputs on every sample."""
    total = torch.zeros(())
    for member in range(len(next(iter(ensemble.states.values())))):
        state = {k: v[member] for k, v in ensemble.states.items()}
        logits = forward(net, state, shards, stacked=False)[0].logits
        total = total + (logits if ensemble.vote == "logits" else logits.softmax(-1))
    return total


PIECE = 512  # samples of a client whose scores are held at once


def _pieces(shards: Shards) -> tuple[list[int], Shards]:
    """Return shards of at most ``PIECE`` samples, and of which client each is."""
    parts = [(k, part) for k, i in enumerate(shards.index) for part in i.split(PIECE)]
    owner = [k for k, _ in parts]
    return owner, shards.cohort(owner)._replace(index=[part for _, part in parts])


class _Right:
    """Right predictions ``[K]`` by the name of their rule, added up.

    Parameters
    ----------
    clients : int
        K.
    counted : Tensor
        Positions of those that have the model; the others are ``NOT_EVALUATED``.
    """

    def __init__(self, clients: int, counted: Tensor):
        self.none = torch.full((clients,), NOT_EVALUATED)
        self.none[counted] = 0
        self.counts: dict[str, Tensor] = {}
        self.unpredicted: dict[str, Tensor] = {}  # samples without a prediction

    def add(
        self, rows: Tensor, by_rule: dict[str, Tensor], labels: Tensor, real: Tensor
    ) -> None:
        """Count scores ``[G, n, ...]`` of samples of the clients ``rows``."""
        for rule, score in by_rule.items():
            right = ((score.argmax(-1) == labels) & real).sum(1)
            before = self.counts.get(rule, self.none)
            self.counts[rule] = before.index_add(0, rows, right)
            silent = ((score == float("-inf")).all(-1) & real).sum(1)
            before = self.unpredicted.get(rule, torch.zeros_like(self.none))
            self.unpredicted[rule] = before.index_add(0, rows, silent)

    def named(self, model: str) -> dict[str, Tensor]:
        """Return the counts as ``model/rule``."""
        return {
            f"{model}/{rule}": count.masked_fill(
                self.unpredicted[rule] > 0, NOT_EVALUATED
            )
            for rule, count in self.counts.items()
        }


@torch.no_grad()
def evaluate(
    net: Net,
    models: Models,
    owns: Tensor,
    train: Shards,
    test: Shards,
    *,
    only: str | None = None,
    cohort: list[int] | None = None,
) -> dict[str, Tensor]:
    """Return the number of right predictions ``[K]`` under every model and rule.

    A method without prototypes of its own is read out against class means of the
    evaluated model over the clients' training data, merged like FedProto's; these are
    for evaluation only and are not counted as communication.

    Parameters
    ----------
    only : str, optional
        Evaluate this model alone, under the rules that one pass over the test data
        gives: no class means are taken for it.
    cohort : list of int, optional
        Whose the rows of ``models.personal`` are; by default all clients'. The others
        have no personal model, and ``NOT_EVALUATED`` in place of a number.

    Returns
    -------
    dict
        ``accuracy/model/rule`` -> int64 ``[K]``; ``samples`` -> test samples per
        client; ``watch/name`` -> numbers that the method compares with centralised
        prototypes.
    """
    everyone = list(range(len(test.index)))
    accuracy: dict[str, Tensor] = {}
    watch: dict[str, Tensor] = {}
    states = {
        "personal": models.personal,
        "global": models.shared,
        "received": models.received,
    }
    for name, state in states.items():
        if state is None or only not in (None, name):
            continue
        stacked = name != "global"
        who = cohort if cohort is not None and name == "personal" else everyone
        protos = models.protos
        if protos is None and only is None:
            means = class_means(net, state, train.cohort(who), "high", stacked=stacked)
            protos = merge(means)
        owner, shards = list(range(len(who))), test.cohort(who)
        if not stacked:
            owner, shards = _pieces(shards)
        places = torch.tensor(who)
        right = _Right(len(everyone), places)
        for group in outputs(net, state, shards, stacked=stacked):
            rows = places[torch.tensor(owner)[group.clients]]
            labels = test.y[group.index]
            by_rule = _by_rule(models, state, owns[rows], protos, group, stacked)
            right.add(rows, by_rule, labels, group.real)
        accuracy |= right.named(name)
    if models.ensemble is not None and only in (None, "ensemble"):
        index, real = padded(test.index)
        voted = _all_and_own({"head": votes(net, models.ensemble, test)}, owns)
        places = torch.tensor(everyone)
        right = _Right(len(everyone), places)
        right.add(places, voted, test.y[index], real)
        accuracy |= right.named("ensemble")
    if models.watch is not None and models.shared is not None and only is None:
        means = class_means(net, models.shared, train, "high", stacked=False)
        watch = models.watch(merge(means, "samples"))
    return Log(accuracy=accuracy, samples=test.sizes(), watch=watch).flat()


def _by_rule(
    models: Models,
    state: State,
    owns: Tensor,
    protos: Protos | None,
    group: Embedded,
    stacked: bool,
) -> dict[str, Tensor]:
    """Return scores ``[G, n, ...]`` under every rule that needs no more than these.

    Without prototypes those are the head's and the method's own.
    """
    if protos is None:
        by_rule = _all_and_own({"head": group.out.logits}, owns)
    else:
        by_rule = vmap(scores, in_dims=(0, 0, None))(group.out, owns, protos)
    if models.scores is not None:
        own = {k: v[group.clients] for k, v in state.items()} if stacked else state
        rules = vmap(models.scores, in_dims=(0 if stacked else None, 0))
        by_rule |= _all_and_own(rules(own, group.out), owns)
    return by_rule


@torch.no_grad()
def evaluate_full(net: Net, models: Models, full: Shards) -> dict[str, Tensor]:
    """Return right predictions of the server's models on a whole test set.

    They and the numbers of samples are ``[1]``, or ``[G]`` for a test set in G groups.
    Only rules over all classes apply; ``nearest_all`` where the method has prototypes.
    """
    places = torch.arange(len(full.index))
    shared, voted = _Right(len(places), places), _Right(len(places), places)
    if models.shared is not None:
        owner, shards = _pieces(full)
        for group in outputs(net, models.shared, shards, stacked=False):
            out, by_rule = group.out, {"head_all": group.out.logits}
            if models.scores is not None:
                by_name = vmap(models.scores, in_dims=(None, 0))(models.shared, out)
                by_rule |= {f"{name}_all": score for name, score in by_name.items()}
            if models.protos is not None:
                by_rule["nearest_all"] = nearest(
                    out.high.flatten(0, 1), models.protos
                ).view_as(out.logits)
            rows = torch.tensor(owner)[group.clients]
            shared.add(rows, by_rule, full.y[group.index], group.real)
    if models.ensemble is not None:
        index, real = padded(full.index)
        summed = {"head_all": votes(net, models.ensemble, full)}
        voted.add(places, summed, full.y[index], real)
    right = shared.named("global") | voted.named("ensemble")
    return Log(full=right, full_samples=full.sizes()).flat()
