"""The one training loop: a cohort of clients as stacked tensors.

A method writes its loss for one client and one batch, as in the paper. Here it is
mapped over K clients, the K losses are added, and one backward and one torch optimiser
step serve all of them. The losses are independent, so the gradient of their sum is each
client's own gradient.

A batch is a batch: clients with fewer batches retire when theirs are done, and a short
batch runs at its own size. Nothing is padded, so losses need no masks.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.func import vmap

from fedlib.augment import Augment, apply_augment, draw_augment, normalise
from fedlib.nets import State
from fedlib.protos import Protos, class_sums, from_sums
from fedlib.tree import Tree, concatenate, put, take, tree_map

Random = Callable[..., torch.Generator]  # (purpose, client) -> generator


class Training(BaseModel):
    """How a client trains in one round."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.5, ge=0, lt=1)  # SGD only
    weight_decay: float = Field(default=0.0, ge=0)
    batch_size: int = Field(default=8, ge=1)
    local_epochs: int = Field(default=1, ge=1)
    drop_last: bool = True  # never drops the only batch of a client


class Shards(NamedTuple):
    """The data of a cohort: index lists into shared tensors."""

    x: Tensor  # [M, ...] uint8 images, or float inputs that need no transform
    y: Tensor  # [M] int64
    index: list[Tensor]  # K index lists into x and y
    ids: list[int]  # the clients' numbers, which name their random generators
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    augment: Augment | None = None

    def inputs(self, index: Tensor, draws: Tensor | None = None) -> Tensor:
        """Return model inputs for indices of any shape, augmented by ``draws``."""
        x = self.x[index.flatten()]
        if self.augment is not None and draws is not None:
            x = apply_augment(x, draws.flatten(0, -2), self.augment.padding)
        if x.dtype == torch.uint8:
            x = normalise(x, self.mean, self.std)
        return x.unflatten(0, index.shape)

    def cohort(self, clients: list[int]) -> "Shards":
        """Return the shards of some positions."""
        return self._replace(
            index=[self.index[i] for i in clients], ids=[self.ids[i] for i in clients]
        )


class Losses(NamedTuple):
    """What a loss returns for one client and one batch."""

    total: Tensor  # [] the term that is minimised
    terms: dict[str, Tensor]  # [] each, logged
    embeddings: dict[str, Tensor]  # [B, d] each, averaged per class


class Trained(NamedTuple):
    """A cohort after local training."""

    state: State  # [K, ...]
    terms: dict[str, Tensor]  # [K] mean of each loss term over the client's steps
    protos: dict[str, Protos]  # [K, C, d] class means over the last local epoch


class _Batches(NamedTuple):
    """The batches of one client, in order, over all its epochs."""

    order: Tensor  # [n * epochs] indices into the shards' tensors
    draws: Tensor  # [n * epochs, 3] of the augmentation; [n * epochs, 0] without one
    spans: list[tuple[int, int]]  # start and end in order
    last_epoch: int  # the first step of the last epoch


def _batches(
    shards: Shards, client: int, training: Training, random: Random
) -> _Batches:
    mine = shards.index[client]
    count, size = len(mine), training.batch_size
    shuffle = random("batches", shards.ids[client])
    epochs = range(training.local_epochs)
    order = torch.cat([mine[torch.randperm(count, generator=shuffle)] for _ in epochs])
    draws = torch.zeros(len(order), 0)
    if shards.augment is not None:
        pick = random("augment", shards.ids[client])
        draws = draw_augment(shards.augment, len(order), pick)
    whole = training.drop_last and count >= size
    stop = count - count % size if whole else count
    starts = range(0, stop, size)
    spans = [
        (e * count + s, e * count + min(s + size, stop)) for e in epochs for s in starts
    ]
    return _Batches(order, draws, spans, len(spans) - len(starts))


def _optimiser(params: list[Tensor], training: Training) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "adam":
        return torch.optim.Adam(params, lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        params, lr=rate, momentum=training.momentum, weight_decay=decay, fused=True
    )


class _Stack:
    """Stacked weights of the clients still training, with their optimiser."""

    def __init__(self, state: State, buffers: frozenset[str], training: Training):
        self.training = training
        self.params = {
            k: v.clone().requires_grad_() for k, v in state.items() if k not in buffers
        }
        self.buffers = {k: v.clone() for k, v in state.items() if k in buffers}
        self.optimiser = _optimiser(list(self.params.values()), training)

    def state(self, rows: slice) -> State:
        """Return a copy of some clients' weights and buffers."""
        merged = self.params | self.buffers
        return {k: v.detach()[rows].clone() for k, v in merged.items()}

    def keep(self, count: int) -> None:
        """Drop all clients but the first ``count``, and their optimiser state."""
        old = self.optimiser.state
        kept = {
            k: v.detach()[:count].clone().requires_grad_()
            for k, v in self.params.items()
        }
        optimiser = _optimiser(list(kept.values()), self.training)
        for before, after in zip(self.params.values(), kept.values(), strict=True):
            optimiser.state[after] = {
                k: v[:count].clone()
                if isinstance(v, Tensor) and v.shape == before.shape
                else v
                for k, v in old[before].items()
            }
        self.params, self.optimiser = kept, optimiser
        self.buffers = {k: v[:count].clone() for k, v in self.buffers.items()}


class _Tally:
    """Loss terms and class sums of the clients of a chunk, over their steps."""

    def __init__(self, clients: int, classes: int):
        self.clients = clients
        self.classes = classes
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(
        self, rows: Tensor | slice, losses: Losses, y: Tensor, last_epoch: Tensor
    ) -> None:
        """Add one step of some clients; embeddings count in the last epoch only."""
        for name, value in losses.terms.items():
            if name not in self.terms:
                self.terms[name] = torch.zeros(self.clients)
            self.terms[name][rows] += value.detach()
        if not last_epoch.any():
            return
        labels = torch.where(last_epoch.unsqueeze(1), y, -1)
        for name, z in losses.embeddings.items():
            sums, members = class_sums(z.detach(), labels, self.classes)
            if name not in self.sums:
                self.sums[name] = torch.zeros(self.clients, self.classes, z.shape[-1])
                self.counts[name] = torch.zeros(self.clients, self.classes).long()
            self.sums[name][rows] += sums
            self.counts[name][rows] += members


def _train_chunk(
    state: State,
    shards: Shards,
    loss: Callable[..., Losses],
    training: Training,
    random: Random,
    extra: Tree,
    classes: int,
    buffers: frozenset[str],
    dropout_keys: list[str],
) -> Trained:
    """Train clients side by side, longest first, so that the live ones are a prefix."""
    plans = [_batches(shards, i, training, random) for i in range(len(shards.ids))]
    order = sorted(range(len(plans)), key=lambda i: -len(plans[i].spans))
    place = torch.tensor(order)
    plans = [plans[i] for i in order]
    keys = [
        torch.randint(
            2**62,
            (len(plan.spans), len(dropout_keys)),
            generator=random("dropout", shards.ids[i]),
        )
        for plan, i in zip(plans, order, strict=True)
    ]
    extra = take(extra, place)
    stack = _Stack(take(state, place), buffers, training)
    tally = _Tally(len(plans), classes)
    finished: list[State] = []  # from the last client to the first

    def losses_of(rows: list[int], step: int) -> Tensor:
        """Return the losses of clients whose batches have one size."""
        everyone = len(rows) == live
        chosen = slice(0, live) if everyone else torch.tensor(rows)
        spans = [slice(*plans[i].spans[step]) for i in rows]
        batch = torch.stack(
            [plans[i].order[s] for i, s in zip(rows, spans, strict=True)]
        )
        draws = torch.stack(
            [plans[i].draws[s] for i, s in zip(rows, spans, strict=True)]
        )
        held = take(stack.buffers, chosen)
        weights = stack.params if everyone else take(stack.params, chosen)
        weights = weights | held
        for number, name in enumerate(dropout_keys):
            weights[name] = torch.stack([keys[i][step, number] for i in rows])
        x, y = shards.inputs(batch, draws), shards.y[batch]
        losses = vmap(loss)(weights, x, y, take(extra, chosen))
        if not everyone:  # BatchNorm wrote into copies
            for name, value in held.items():
                stack.buffers[name][chosen] = value
        last = torch.tensor([step >= plans[i].last_epoch for i in rows])
        tally.add(chosen, losses, y, last)
        return losses.total

    live = len(plans)
    for step in range(len(plans[0].spans)):
        remaining = sum(step < len(plan.spans) for plan in plans)
        if remaining < live:
            finished.append(stack.state(slice(remaining, live)))
            live = remaining
            stack.keep(live)
        by_size: dict[int, list[int]] = defaultdict(list)
        for i in range(live):
            start, end = plans[i].spans[step]
            by_size[end - start].append(i)
        stack.optimiser.zero_grad()
        torch.cat([losses_of(rows, step) for rows in by_size.values()]).sum().backward()
        stack.optimiser.step()
    finished.append(stack.state(slice(0, live)))

    back = torch.argsort(place)
    steps = torch.tensor([len(plan.spans) for plan in plans])
    return Trained(
        take(concatenate(finished[::-1]), back),
        {name: (value / steps)[back] for name, value in tally.terms.items()},
        {
            name: from_sums(total[back], tally.counts[name][back])
            for name, total in tally.sums.items()
        },
    )


def train_local(
    state: State,
    shards: Shards,
    loss: Callable[..., Losses],
    training: Training,
    random: Random,
    *,
    classes: int,
    extra: Tree | None = None,
    buffers: frozenset[str] = frozenset(),
    dropout_keys: list[str] | None = None,
    chunk: int | None = None,
) -> Trained:
    """Train every client of a cohort on its own data.

    Parameters
    ----------
    state : dict of Tensor
        Weights stacked over clients, ``[K, ...]``; unchanged by the call.
    shards : Shards
        The K clients' data. A client without samples keeps its weights
        and returns prototypes with count 0.
    loss : callable
        ``loss(state, x, y, extra) -> Losses`` for one client and one batch.
    training : Training
        Optimiser, batch size, epochs. The optimiser is fresh in every call.
    random : callable
        ``random(purpose, client)`` returns that client's generator.
    extra : tree of Tensor, optional
        Further inputs of the loss with a leading client axis.
    chunk : int, optional
        Clients trained side by side; a matter of speed and memory only.

    Returns
    -------
    Trained
        New weights, mean loss terms, and the class means of the embeddings seen in the
        last epoch (each taken before its step's update).
    """
    filled = [i for i, index in enumerate(shards.index) if len(index)]
    if not filled:
        raise ValueError("shards: no client of this cohort has a sample")
    extra = {} if extra is None else extra
    parts = []
    for start in range(0, len(filled), chunk or len(filled)):
        rows = filled[start : start + (chunk or len(filled))]
        parts.append(
            _train_chunk(
                take(state, torch.tensor(rows)),
                shards.cohort(rows),
                loss,
                training,
                random,
                take(extra, torch.tensor(rows)),
                classes,
                buffers,
                dropout_keys or [],
            )
        )
    trained = concatenate(parts)
    if len(filled) == len(shards.index):
        return trained
    blank = tree_map(
        lambda leaf: leaf.new_zeros(len(shards.index), *leaf.shape[1:]), trained
    )
    return put(blank._replace(state=state), torch.tensor(filled), trained)
