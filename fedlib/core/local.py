"""The one training loop: a cohort of clients as stacked tensors.

A method writes its loss for one client and one batch, as in the paper. Here it is
mapped over K clients, the K losses are added, and one backward and one torch optimiser
step serve all of them. The losses are independent, so the gradient of their sum is each
client's own gradient.

Clients with fewer batches retire when theirs are done, and a short batch runs at its
own size. The settings stand in ``training``, data and batches in ``shards``, weights
and optimiser in ``stacked``.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from fedlib.core.net import Net, State
from fedlib.core.protos import Protos, class_sums, from_sums
from fedlib.core.shards import Random, Shards, plan_of, table_of
from fedlib.core.stacked import Stack
from fedlib.core.training import Training
from fedlib.core.tree import Tree, concatenate, flatten, put, take, tree_map
from fedlib.core.tree import stack as stacked


class Batch(NamedTuple):
    """What a loss sees of one client in one step, beside its weights."""

    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    extra: dict[str, Tensor]  # the client's further inputs, and what was drawn


class Losses(NamedTuple):
    """What a loss returns for one client and one batch."""

    total: Tensor  # [] the term that is minimised
    terms: dict[str, Tensor]  # [] each, logged
    embeddings: dict[str, Tensor]  # [B, d] each, averaged per class


class Loss(Protocol):
    """What is minimised, for one client and one batch."""

    def __call__(self, state: State, batch: Batch, /) -> Losses:
        """Return the total, the terms to log, and embeddings to average."""
        ...


class Draw(Protocol):
    """What a client's loss needs anew in a step: random labels, noise ..."""

    def __call__(self, client: int, step: int, /) -> dict[str, Tensor]:
        """Return entries of the batch's ``extra``; called in the order of steps."""
        ...


class AfterStep(Protocol):
    """What follows an optimiser step of one client."""

    def __call__(self, state: State, extra: dict[str, Tensor], /) -> State:
        """Return the weights that replace its own."""
        ...


class Task(NamedTuple):
    """What the clients of a cohort do in each step."""

    loss: Loss
    draw: Draw | None = None
    after_step: AfterStep | None = None
    every_epoch: bool = False  # embeddings of all epochs count, not the last one's


class Cohort(NamedTuple):
    """What each of K clients begins with."""

    state: State  # [K, ...] weights
    shards: Shards
    extra: Mapping[str, Tensor] = {}  # [K, ...] further inputs of the loss
    moments: Mapping[str, Tree] = {}  # [K, ...] to continue from; {}: none
    rate: Tensor | None = None  # [K] factors on the learning rate

    def at(self, rows: list[int]) -> "Cohort":
        """Return some of the clients, in this order."""
        place = torch.tensor(rows)
        return Cohort(
            take(self.state, place),
            self.shards.cohort(rows),
            take(self.extra, place),
            take(self.moments, place),
            None if self.rate is None else self.rate[place],
        )


class Trained(NamedTuple):
    """A cohort after local training."""

    state: State  # [K, ...]
    terms: dict[str, Tensor]  # [K] mean of each loss term over the client's steps
    # [K, C, d] class means over the last epoch; over all steps where they are counted
    # by ``local_steps`` or the task asks for every epoch
    protos: dict[str, Protos]
    moments: Tree  # [K, ...] the optimiser's state, where it was asked for


class _Tally:
    """Loss terms and class sums of the clients of a chunk, over their steps."""

    def __init__(self, clients: int, classes: int):
        self.clients = clients
        self.classes = classes
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}

    def add(
        self, rows: Tensor | slice, losses: Losses, y: Tensor, counted: list[bool]
    ) -> None:
        """Add one step of some clients; embeddings where ``counted`` ``[rows]``."""
        for name, value in losses.terms.items():
            if name not in self.terms:
                self.terms[name] = torch.zeros(self.clients)
            self.terms[name][rows] += value.detach()
        if not any(counted):
            return
        if not all(counted):
            y = torch.where(torch.tensor(counted).unsqueeze(1), y, -1)
        for name, z in losses.embeddings.items():
            sums, members = class_sums(z.detach(), y, self.classes)
            if name not in self.sums:
                self.sums[name] = torch.zeros(self.clients, self.classes, z.shape[-1])
                self.counts[name] = torch.zeros(self.clients, self.classes).long()
            self.sums[name][rows] += sums
            self.counts[name][rows] += members


class _Job(NamedTuple):
    """What the clients of a cohort have in common."""

    task: Task
    training: Training
    net: Net
    random: Random
    plain: bool


def one_by_one(
    function: Callable[..., Any], clients: list[int], step: int
) -> Callable[..., Any]:
    """Return what ``vmap(function)`` is, as a loop over clients in plain Python.

    There ``print(float(x))`` and a debugger work, and an error says at which client,
    step and shapes it came.
    """

    def over_clients(weights: State, *inputs: Tree) -> Any:
        results = []
        for row, client in enumerate(clients):
            one = slice(row, row + 1)
            state, *own = (
                tree_map(lambda leaf: leaf.squeeze(0), take(tree, one))
                for tree in (weights, *inputs)
            )
            try:
                results.append(function(state, *own))
            except Exception as error:
                shapes = [
                    f"{[*v.shape]}" for tree in own for v in flatten(tree).values()
                ]
                error.add_note(
                    f"client {client}, step {step}: inputs {', '.join(shapes)}"
                )
                raise
        return stacked(results)

    return over_clients


class _Chunk:
    """Clients trained side by side, longest first: the live ones are a prefix."""

    def __init__(self, job: _Job, cohort: Cohort):
        clients = range(len(cohort.shards.ids))
        plans = [plan_of(cohort.shards, i, job.training, job.random) for i in clients]
        self.order = sorted(clients, key=lambda i: -len(plans[i].spans))
        cohort = cohort.at(self.order)
        self.job = job
        self.plans = [plans[i] for i in self.order]
        self.shards = cohort.shards
        self.extra = cohort.extra
        self.dropout = job.net.dropout_keys
        keys = [self._keys(row) for row in clients]
        self.table = table_of(self.plans, keys)
        self.tally = _Tally(len(plans), job.net.classes)
        self.stack = Stack(
            cohort.state, job.net.buffers, job.training, cohort.moments, cohort.rate
        )
        self.live = len(plans)
        # weights and moments, from the last client to the first
        self.finished: list[tuple[State, Tree]] = []

    def _keys(self, row: int) -> Tensor:
        """Return the dropout keys ``[steps, D]`` of a client."""
        return torch.randint(
            2**62,
            (len(self.plans[row].spans), len(self.dropout)),
            generator=self.job.random("dropout", self.shards.ids[row]),
        )

    def train(self) -> Trained:
        """Take the steps of all clients."""
        for step in range(len(self.plans[0].spans)):
            self._retire(sum(step < len(plan.spans) for plan in self.plans))
            self.stack.zero_grad()
            losses = [self._losses(rows, step) for rows in self._alike(step)]
            torch.cat(losses).sum().backward()
            self.stack.step()
            if self.job.task.after_step is not None:
                mapped = self._mapped(
                    self.job.task.after_step, [*range(self.live)], step
                )
                given = take(self.extra, slice(self.live))
                self.stack.write(mapped(self.stack.detached(), given))
        self._retire(0)
        return self._trained()

    def _retire(self, remaining: int) -> None:
        """Set the clients aside whose batches are done."""
        if remaining < self.live:
            gone = slice(remaining, self.live)
            outcome = (self.stack.state(gone), take(self.stack.moments(), gone))
            self.finished.append(outcome)
            self.live = remaining
            if remaining:
                self.stack = self.stack.keep(remaining)

    def _alike(self, step: int) -> list[list[int]]:
        """Return the live clients, those together whose batches have one size."""
        by_size: dict[int, list[int]] = defaultdict(list)
        for row in range(self.live):
            start, end = self.plans[row].spans[step]
            by_size[end - start].append(row)
        return list(by_size.values())

    def _mapped(
        self, function: Callable[..., Any], rows: list[int], step: int
    ) -> Callable[..., Any]:
        """Return a function of one client as one of several."""
        if self.job.plain:
            return one_by_one(function, [self.shards.ids[row] for row in rows], step)
        return vmap(function)

    def _losses(self, rows: list[int], step: int) -> Tensor:
        """Return the losses ``[rows]`` of clients whose batches have one size."""
        stack = self.stack
        everyone = len(rows) == self.live
        chosen = slice(0, self.live) if everyone else torch.tensor(rows)
        buffers = take(stack.buffers, chosen)
        weights = stack.params if everyone else take(stack.params, chosen)
        weights = weights | buffers
        if self.dropout:
            keys = self.table.keys[step, chosen].unbind(1)
            weights |= dict(zip(self.dropout, keys, strict=True))
        batch = self._batch(rows, chosen, step)
        losses = self._mapped(self.job.task.loss, rows, step)(weights, batch)
        if not everyone:  # BatchNorm wrote into copies
            for name, value in buffers.items():
                stack.buffers[name][chosen] = value
        all_count = self.job.task.every_epoch
        counted = [all_count or step >= self.plans[row].counted_from for row in rows]
        self.tally.add(chosen, losses, batch.y, counted)
        return losses.total

    def _batch(self, rows: list[int], chosen: Tensor | slice, step: int) -> Batch:
        """Return the batches of clients whose batches have one size, stacked."""
        start, end = self.plans[rows[0]].spans[step]
        places = self.table.rows(step, chosen, end - start)
        index, draws = self.table.order[places], self.table.draws[places]
        extra = take(self.extra, chosen)
        if self.job.task.draw is not None:
            ids = [self.shards.ids[row] for row in rows]
            drawn = [self.job.task.draw(client, step) for client in ids]
            extra = extra | stacked(drawn)
        return Batch(self.shards.inputs(index, draws), self.shards.y[index], extra)

    def _trained(self) -> Trained:
        """Return the clients in the order in which they came."""
        back = torch.argsort(torch.tensor(self.order))
        steps = torch.tensor([len(plan.spans) for plan in self.plans])
        states, moments = zip(*self.finished[::-1], strict=True)
        tally = self.tally
        return Trained(
            take(concatenate(list(states)), back),
            {name: (value / steps)[back] for name, value in tally.terms.items()},
            {
                name: from_sums(total[back], tally.counts[name][back])
                for name, total in tally.sums.items()
            },
            take(concatenate(list(moments)), back),
        )


def _blank(like: Tree, clients: int) -> Tree:
    """Return zeros for so many clients."""
    return tree_map(lambda leaf: leaf.new_zeros(clients, *leaf.shape[1:]), like)


def train_local(
    cohort: Cohort,
    task: Task,
    training: Training,
    net: Net,
    random: Random,
    *,
    chunk: int | None = None,
    plain: bool = False,
) -> Trained:
    """Train every client of a cohort on its own data.

    Parameters
    ----------
    cohort : Cohort
        The K clients; unchanged by the call. One without samples keeps its weights
        and returns prototypes with count 0.
    task : Task
        The loss for one client and one batch, and what comes before and after a step.
    training : Training
        Optimiser, batch size, epochs or steps.
    net : Net
        Whose weights are trained: says which are buffers, and where dropout is.
    random : callable
        ``random(purpose, client)`` returns that client's generator.
    chunk : int, optional
        Clients trained side by side; a matter of speed and memory only.
    plain : bool
        Train them one after another in plain Python, to look into a loss.

    Returns
    -------
    Trained
        New weights, mean loss terms, the class means of the embeddings seen in the
        last epoch, or in every one (each taken before its step's update), and the
        optimiser's state.
    """
    index = cohort.shards.index
    filled = [i for i, samples in enumerate(index) if len(samples)]
    if not filled:
        raise ValueError("shards: no client of this cohort has a sample")
    job = _Job(task, training, net, random, plain)
    size = 1 if plain else chunk or len(filled)
    trained = None
    for start in range(0, len(filled), size):
        rows = filled[start : start + size]
        part = _Chunk(job, cohort.at(rows)).train()
        if len(rows) == len(filled):
            trained = part
            break
        if trained is None:  # written in place: many clients' models once, not twice
            trained = _blank(part, len(filled))
        into = slice(start, start + len(rows))
        tree_map(lambda leaf, new, at=into: leaf[at].copy_(new), trained, part)
    assert trained is not None  # somebody has samples
    if len(filled) == len(index):
        return trained
    blank = _blank(trained, len(index))
    unchanged = blank._replace(state=cohort.state, moments=cohort.moments)
    return put(unchanged, torch.tensor(filled), trained)
