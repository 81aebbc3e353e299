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
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.func import vmap
from torch.nn.utils.rnn import pad_sequence

from fedlib.core.augment import Augment, apply_augment, draw_augment, normalise
from fedlib.core.nets import State
from fedlib.core.protos import Protos, class_sums, from_sums
from fedlib.core.tree import Tree, concatenate, flatten, put, take, tree_map
from fedlib.core.tree import stack as stacked

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
    local_steps: int | None = Field(default=None, ge=1)  # batches, in place of epochs
    drop_last: bool = True  # never drops the only batch of a client
    drop_single: bool = False  # a last batch of one sample alone; neither the only one
    decay: float = Field(default=1.0, gt=0, le=1)  # of the learning rate, per round
    clip: float | None = Field(default=None, gt=0)  # largest norm of a gradient
    keep_moments: bool = False  # of the optimiser, from round to round


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
        x = self.x.index_select(0, index.flatten())  # copies rows; x[...] elements
        if self.augment is not None and draws is not None:
            x = apply_augment(x, draws.flatten(0, -2), self.augment.padding)
        if x.dtype == torch.uint8:
            x = normalise(x, self.mean, self.std)
        return x.unflatten(0, index.shape)

    def sizes(self) -> Tensor:
        """Return each client's number of samples ``[K]``."""
        return torch.tensor([len(i) for i in self.index])

    def label_counts(self, classes: int) -> Tensor:
        """Return each client's number of samples of each class, ``[K, C]``."""
        return torch.stack([self.y[i].bincount(minlength=classes) for i in self.index])

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


Loss = Callable[..., Losses]  # (state, x, y, extra) -> Losses, one client and batch


class Trained(NamedTuple):
    """A cohort after local training."""

    state: State  # [K, ...]
    terms: dict[str, Tensor]  # [K] mean of each loss term over the client's steps
    protos: dict[str, Protos]  # [K, C, d] class means over the last epoch, or all steps
    moments: Tree  # [K, ...] the optimiser's state, where it was asked for


class _Batches(NamedTuple):
    """The batches of one client, in order, over all its epochs."""

    order: Tensor  # indices into the shards' tensors, epoch after epoch
    draws: Tensor  # [order, 3] of the augmentation; [order, 0] without one
    spans: list[tuple[int, int]]  # start and end in order
    counted_from: int  # the first step whose embeddings count


class _Table(NamedTuple):
    """The batches of a chunk's clients, one client after another."""

    order: Tensor  # [n] indices into the shards' tensors
    draws: Tensor  # [n, 3] of the augmentation; [n, 0] without one
    begin: Tensor  # [steps, K] where in order each batch begins
    keys: Tensor  # [steps, K, D] of each dropout

    def rows(self, step: int, chosen: Tensor | slice, size: int) -> Tensor:
        """Return the places ``[K', size]`` of some clients' batches in ``order``."""
        return self.begin[step, chosen].unsqueeze(1) + torch.arange(size)


def _table(plans: list[_Batches], keys: list[Tensor]) -> _Table:
    """Return the batches of clients, whose dropout keys are ``[steps, D]``."""
    lengths = torch.tensor([0, *(len(plan.order) for plan in plans[:-1])])
    starts = [torch.tensor([start for start, _ in plan.spans]) for plan in plans]
    return _Table(
        torch.cat([plan.order for plan in plans]),
        torch.cat([plan.draws for plan in plans]),
        pad_sequence(starts) + lengths.cumsum(0),
        pad_sequence(keys),
    )


def _batches(
    shards: Shards, client: int, training: Training, random: Random
) -> _Batches:
    rows = shards.index[client]
    count, size = len(rows), training.batch_size
    full = training.drop_last and count >= size
    single = training.drop_single and count > size and count % size == 1
    stop = count - count % size if full or single else count
    starts = range(0, stop, size)
    steps = training.local_steps or training.local_epochs * len(starts)
    epochs = range(-(-steps // len(starts)))
    shuffle = random("batches", shards.ids[client])
    order = torch.cat([rows[torch.randperm(count, generator=shuffle)] for _ in epochs])
    spans = [
        (e * count + s, e * count + min(s + size, stop)) for e in epochs for s in starts
    ][:steps]
    draws = torch.zeros(len(order), 0)
    if shards.augment is not None:
        pick = random("augment", shards.ids[client])
        draws = draw_augment(shards.augment, len(order), pick)
        if shards.augment.per_batch:
            for start, end in spans:
                draws[start:end] = draws[start]
    counted_from = 0 if training.local_steps else steps - len(starts)
    return _Batches(order, draws, spans, counted_from)


def _optimiser(groups: list[dict], training: Training) -> torch.optim.Optimizer:
    rate, decay = training.learning_rate, training.weight_decay
    if training.optimiser == "adam":
        return torch.optim.Adam(groups, lr=rate, weight_decay=decay)
    return torch.optim.SGD(
        groups, lr=rate, momentum=training.momentum, weight_decay=decay, fused=True
    )


def blank_moments(
    state: State, buffers: frozenset[str], training: Training
) -> dict[str, dict[str, Tensor]]:
    """Return the state of an optimiser that has not stepped, for K stacked clients."""
    momentum = ("momentum_buffer",) if training.momentum else ()
    adam = training.optimiser == "adam"
    blank = {}
    for name, value in state.items():
        if name not in buffers:
            fields = ("exp_avg", "exp_avg_sq") if adam else momentum
            blank[name] = {field: torch.zeros_like(value) for field in fields}
            blank[name] |= {"step": torch.zeros(len(value))} if adam else {}
    return blank


class _Stack:
    """Stacked weights of the clients still training, with their optimiser.

    Without ``moments`` and ``rate`` one optimiser step moves all clients as one block.
    With them every client is a parameter group of its own: a view of its row.
    """

    def __init__(
        self,
        state: State,
        buffers: frozenset[str],
        training: Training,
        moments: Tree,
        rate: Tensor | None,
    ):
        self.training = training
        self.rate = rate
        self.params = {
            k: v.clone().requires_grad_() for k, v in state.items() if k not in buffers
        }
        self.buffers = {k: v.clone() for k, v in state.items() if k in buffers}
        self.apart = rate is not None or bool(moments)
        rows = range(len(next(iter(state.values())))) if self.apart else [slice(None)]
        self.blocks = [
            {k: v.detach()[i] if self.apart else v for k, v in self.params.items()}
            for i in rows
        ]
        groups: list[dict] = [{"params": list(b.values())} for b in self.blocks]
        if rate is not None:
            for group, factor in zip(groups, rate.tolist(), strict=True):
                group["lr"] = training.learning_rate * factor
        self.optimiser = _optimiser(groups, training)
        for i, block in zip(rows, self.blocks, strict=True):
            for name, param in block.items():
                if name in moments:
                    fields = {k: v[i].clone() for k, v in moments[name].items()}
                    self.optimiser.state[param] = fields

    def step(self) -> None:
        """Move the weights along their gradients."""
        if self.training.clip is not None:
            self._clip(self.training.clip)
        if self.apart:
            for i, block in enumerate(self.blocks):
                for name, param in block.items():
                    grad = self.params[name].grad
                    param.grad = None if grad is None else grad[i]
        self.optimiser.step()

    def _clip(self, largest: float) -> None:
        """Scale each client's gradient to a norm of at most ``largest``."""
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        square = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0)
        factor = (largest / (square.sqrt() + 1e-6)).clamp(max=1)
        for grad in grads:
            grad.mul_(factor.view(-1, *[1] * (grad.ndim - 1)))

    def detached(self) -> State:
        """Return the weights and buffers as they are now."""
        return {k: v.detach() for k, v in (self.params | self.buffers).items()}

    def write(self, values: State) -> None:
        """Replace some weights of all clients, which the optimiser does not notice."""
        for name, value in values.items():
            self.params[name].detach().copy_(value)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for param in self.params.values():
            param.grad = None

    def moments(self) -> Tree:
        """Return the optimiser's state, stacked over clients; {} for one block."""
        if not self.apart:
            return {}
        states = [
            {name: dict(self.optimiser.state[p]) for name, p in block.items()}
            for block in self.blocks
        ]
        return {
            name: {
                field: torch.stack(
                    [torch.as_tensor(one[name][field]) for one in states]
                )
                for field in fields
            }
            for name, fields in states[0].items()
        }

    def state(self, rows: slice) -> State:
        """Return a copy of some clients' weights and buffers."""
        merged = self.params | self.buffers
        return {k: v.detach()[rows].clone() for k, v in merged.items()}

    def keep(self, count: int) -> "_Stack":
        """Return the stack of the first ``count`` clients, with their moments."""
        rows = slice(0, count)
        rate = None if self.rate is None else self.rate[rows]
        rest = _Stack(
            self.state(rows),
            frozenset(self.buffers),
            self.training,
            take(self.moments(), rows),
            rate,
        )
        if not self.apart:
            for name, after in rest.params.items():
                before = self.params[name]
                rest.optimiser.state[after] = {
                    k: v[rows].clone()
                    if isinstance(v, Tensor) and v.shape == before.shape
                    else v
                    for k, v in self.optimiser.state[before].items()
                }
        return rest


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

    loss: Loss
    training: Training
    random: Random
    classes: int
    draw: Callable[[int, int], dict[str, Tensor]] | None
    after_step: Callable[[State, dict[str, Tensor]], State] | None
    buffers: frozenset[str]
    dropout_keys: list[str]
    plain: bool


class _Cohort(NamedTuple):
    """What each client of a cohort begins with, K of all."""

    shards: Shards
    state: State
    extra: dict[str, Tensor]
    moments: Tree
    rate: Tensor | None

    def at(self, rows: list[int]) -> "_Cohort":
        """Return some of the clients, in this order."""
        place = torch.tensor(rows)
        return _Cohort(
            self.shards.cohort(rows),
            take(self.state, place),
            take(self.extra, place),
            take(self.moments, place),
            None if self.rate is None else self.rate[place],
        )


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

    def __init__(self, job: _Job, cohort: _Cohort):
        clients = range(len(cohort.shards.ids))
        plans = [_batches(cohort.shards, i, job.training, job.random) for i in clients]
        self.order = sorted(clients, key=lambda i: -len(plans[i].spans))
        cohort = cohort.at(self.order)
        self.job = job
        self.plans = [plans[i] for i in self.order]
        self.shards = cohort.shards
        self.extra = cohort.extra
        self.table = _table(self.plans, [self._dropout(row) for row in clients])
        self.tally = _Tally(len(plans), job.classes)
        self.stack = _Stack(
            cohort.state, job.buffers, job.training, cohort.moments, cohort.rate
        )
        self.live = len(plans)
        self.finished: list[
            tuple[State, Tree]
        ] = []  # from the last client to the first

    def _dropout(self, row: int) -> Tensor:
        """Return the dropout keys ``[steps, D]`` of a client."""
        return torch.randint(
            2**62,
            (len(self.plans[row].spans), len(self.job.dropout_keys)),
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
            if self.job.after_step is not None:
                mapped = self._mapped(self.job.after_step, [*range(self.live)], step)
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
        job, stack = self.job, self.stack
        everyone = len(rows) == self.live
        chosen = slice(0, self.live) if everyone else torch.tensor(rows)
        start, end = self.plans[rows[0]].spans[step]
        places = self.table.rows(step, chosen, end - start)
        batch, draws = self.table.order[places], self.table.draws[places]
        held = take(stack.buffers, chosen)
        weights = stack.params if everyone else take(stack.params, chosen)
        weights = weights | held
        if job.dropout_keys:
            now = self.table.keys[step, chosen].unbind(1)
            weights |= dict(zip(job.dropout_keys, now, strict=True))
        given = take(self.extra, chosen)
        if job.draw is not None:
            ids = [self.shards.ids[row] for row in rows]
            given = given | stacked([job.draw(client, step) for client in ids])
        x, y = self.shards.inputs(batch, draws), self.shards.y[batch]
        losses = self._mapped(job.loss, rows, step)(weights, x, y, given)
        if not everyone:  # BatchNorm wrote into copies
            for name, value in held.items():
                stack.buffers[name][chosen] = value
        counted = [step >= self.plans[row].counted_from for row in rows]
        self.tally.add(chosen, losses, y, counted)
        return losses.total

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
    state: State,
    shards: Shards,
    loss: Loss,
    training: Training,
    random: Random,
    *,
    classes: int,
    extra: dict[str, Tensor] | None = None,
    draw: Callable[[int, int], dict[str, Tensor]] | None = None,
    after_step: Callable[[State, dict[str, Tensor]], State] | None = None,
    moments: Tree | None = None,
    rate: Tensor | None = None,
    buffers: frozenset[str] = frozenset(),
    dropout_keys: list[str] | None = None,
    chunk: int | None = None,
    plain: bool = False,
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
        Optimiser, batch size, epochs or steps.
    random : callable
        ``random(purpose, client)`` returns that client's generator.
    extra : dict of Tensor, optional
        Further inputs of the loss with a leading client axis.
    draw : callable, optional
        ``draw(client, step)`` returns what a client's loss needs anew in a step
        (random labels, noise ...); called in the order of steps.
    after_step : callable, optional
        ``after_step(state, extra)`` returns, for one client, the weights that replace
        its own after an optimiser step.
    moments : tree of Tensor, optional
        The optimiser's state to continue from, ``[K, ...]`` (first ``blank_moments``).
        Without it the optimiser is fresh in every call.
    rate : Tensor, optional
        ``[K]`` factors on the learning rate.
    chunk : int, optional
        Clients trained side by side; a matter of speed and memory only.
    plain : bool
        Train them one after another in plain Python, to look into a loss.

    Returns
    -------
    Trained
        New weights, mean loss terms, the class means of the embeddings seen in the
        last epoch (each taken before its step's update), and the optimiser's state.
    """
    filled = [i for i, index in enumerate(shards.index) if len(index)]
    if not filled:
        raise ValueError("shards: no client of this cohort has a sample")
    cohort = _Cohort(shards, state, extra or {}, moments or {}, rate)
    job = _Job(
        loss,
        training,
        random,
        classes,
        draw,
        after_step,
        buffers,
        dropout_keys or [],
        plain,
    )
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
    if len(filled) == len(shards.index):
        return trained
    blank = _blank(trained, len(shards.index))
    unchanged = blank._replace(state=state, moments=cohort.moments)
    return put(unchanged, torch.tensor(filled), trained)
