"""A method is a record of plain functions; a run steps through its rounds.

Read this first. A round is: broadcast -> client -> merge, and for some methods the
cohort then receives a reply and finishes. ``rounds`` is an iterator, so a notebook
steps a method with ``next()``. A method that works on a finished model (CCVR) has
``survey`` and ``finalise``: one more upload, and what the server makes of it before an
evaluation; the rounds do not see it.

A method's file imports from here whatever its functions' signatures name, wherever
that is defined.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import floor
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from pydantic import BaseModel
from torch import Tensor

from fedlib.core.local import (
    AfterStep,
    Batch,
    Cohort,
    Draw,
    Loss,
    Losses,
    Task,
    Trained,
    train_local,
)
from fedlib.core.messages import Model, Size, sizes
from fedlib.core.net import Net, State
from fedlib.core.readouts import Models, Rule
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.core.shares import share_of
from fedlib.core.training import Training, blank_moments
from fedlib.core.tree import Tree, flatten, put, take, tree_map

__all__ = [
    "Batch",
    "Context",
    "Counted",
    "Logged",
    "Loss",
    "Losses",
    "Memory",
    "Method",
    "Model",
    "Models",
    "NonFiniteError",
    "Round",
    "Rule",
    "Shards",
    "Trained",
    "Tree",
    "Turn",
    "cohort_size",
    "draw_cohort",
    "rounds",
]

Logged = dict[str, Tensor]  # numbers to log, by name

HP = TypeVar("HP", covariant=True)
Kept = TypeVar("Kept")
Sent = TypeVar("Sent")
# What a client's turn in a round returns: what it keeps, its upload, and the mean [K]
# of each loss term
Turn = tuple[Kept, Sent, Logged]


class Memory:
    """The moments of a cohort's optimisers, which a round's training continues from."""

    def __init__(self, moments: Tree):
        self.moments = moments  # [K, ...]
        self.trainings = 0  # that went on from them


@dataclass(frozen=True)
class Context(Generic[HP]):
    """What every function of a method may look at; ``Context[HP]`` in its file."""

    hp: HP  # the method's hyper-parameters
    net: Net
    training: Training
    classes: int  # C
    clients: int  # N, all clients of the federation
    seed: int
    round: int = 0  # t, from 1; 0 while initialising
    chunk: int | None = None  # clients trained side by side
    plain: bool = False  # trained one after another in plain Python, for a debugger
    held: tuple[int, ...] | None = None  # classes that any client holds; None: all
    memory: Memory | None = None  # where the run's training keeps moments
    drawn: tuple[int, ...] | None = None  # clients that init draws; None: all

    def random(self, purpose: str, client: int | str = "server") -> torch.Generator:
        """Return the generator of a purpose in this round, for a client."""
        return generator(self.seed, purpose, self.round, client)

    def train(
        self,
        state: State,
        shards: Shards,
        loss: Loss,
        extra: dict[str, Tensor] | None = None,
        *,
        draw: Draw | None = None,
        after_step: AfterStep | None = None,
        every_epoch: bool = False,
        training: Training | None = None,
        phase: str = "",
        moments: Tree | None = None,
        rate: Tensor | None = None,
    ) -> Trained:
        """Train a cohort of this net with the run's settings.

        Parameters
        ----------
        training : Training, optional
            Settings in place of the run's.
        phase : str
            Tells two trainings of one round apart: each shuffles in its own way.
        extra, moments, rate
            As in ``local.Cohort``.
        draw, after_step, every_epoch
            As in ``local.Task``.
        """
        settings = training or self.training
        faded = settings.learning_rate * settings.decay ** max(0, self.round - 1)
        memory = self.memory if moments is None else None
        if memory is not None:
            moments = memory.moments
        trained = train_local(
            Cohort(state, shards, extra or {}, moments or {}, rate),
            Task(loss, draw, after_step, every_epoch),
            settings.model_copy(update={"learning_rate": faded}),
            self.net,
            lambda purpose, client: self.random(phase + purpose, client),
            chunk=self.chunk,
            plain=self.plain,
        )
        if memory is not None:
            memory.moments = trained.moments
            memory.trainings += 1
        return trained

    def epochs(
        self,
        state: State,
        shards: Shards,
        loss: Loss,
        extra: Callable[[State], dict[str, Tensor]] | None = None,
        **options: Any,
    ) -> Iterator[Trained]:
        """Yield a cohort after each of its local epochs, for work between these.

        The optimiser continues from epoch to epoch; each shuffles in its own way, the
        first as ``train`` does. A run with ``local_steps`` is one epoch.

        Parameters
        ----------
        extra : callable, optional
            Maps the weights ``[K, ...]`` that an epoch begins with to the loss's
            further inputs.
        **options
            As in ``train``.
        """
        count = 1 if self.training.local_steps else self.training.local_epochs
        once = self.training.model_copy(update={"local_epochs": 1})
        stateful = once.optimiser == "adam" or once.momentum > 0
        moments = self.blank_moments(state) if stateful and count > 1 else None
        for epoch in range(count):
            trained = self.train(
                state,
                shards,
                loss,
                None if extra is None else extra(state),
                training=once,
                phase=f"epoch {epoch} " if epoch else "",
                moments=moments,
                **options,
            )
            state, moments = trained.state, trained.moments or None
            yield trained

    def blank_moments(self, state: State) -> Tree:
        """Return the moments of clients whose optimiser has not stepped."""
        return blank_moments(state, self.net.buffers, self.training)

    def init_clients(self, common: bool) -> State:
        """Draw the clients' first weights: one common draw, or one each.

        Of a common draw nothing is copied: rows share one memory.
        """
        own = range(self.clients) if self.drawn is None else self.drawn
        names = ["common"] if common else list(own)
        first = self.net.init(generator(self.seed, "init", names[0]))
        states = {k: v.expand(len(own), *v.shape) for k, v in first.items()}
        if common:
            return states
        states = {k: v.contiguous() for k, v in states.items()}
        for row, name in enumerate(names[1:], 1):
            for k, v in self.net.init(generator(self.seed, "init", name)).items():
                states[k][row] = v
        return states


class Counted(NamedTuple):
    """A message field that a paper's communication table counts."""

    direction: str  # "up" or "down"
    field: str
    once: bool = False  # a broadcast counted once, not for each receiver


class InitFn(Protocol):
    """Before round 1."""

    def __call__(self, ctx: Context, /) -> tuple[Tree, Tree]:
        """Draw what the server keeps, and what each client keeps ``[N, ...]``."""
        ...


class BroadcastFn(Protocol):
    """What travels down; ``reply`` is a second broadcast, after merging."""

    def __call__(self, ctx: Context, server: Any, /) -> Any:
        """Return the method's ``Down``: what every client of the cohort receives."""
        ...


class ClientFn(Protocol):
    """A cohort's turn."""

    def __call__(
        self, ctx: Context, down: Any, mine: Any, shards: Shards, /
    ) -> Turn[Tree, Any]:
        """Train K clients; return what they keep, their ``Up``, and terms ``[K]``.

        ``down`` is the broadcast, ``mine`` the cohort's rows ``[K, ...]`` of what
        clients keep, ``shards`` their data.
        """
        ...


class MergeFn(Protocol):
    """The server's turn; it sees uploads and no data."""

    def __call__(self, ctx: Context, server: Any, up: Any, /) -> tuple[Tree, Logged]:
        """Return what the server keeps after a round, and numbers to log."""
        ...


class ModelsFn(Protocol):
    """What can be evaluated."""

    def __call__(self, ctx: Context, server: Any, mine: Any, /) -> Models:
        """Return personal and global models, prototypes, and scores of its own."""
        ...


class FinishFn(Protocol):
    """A cohort's second turn, on the reply."""

    def __call__(self, ctx: Context, down: Any, mine: Any, /) -> tuple[Tree, Logged]:
        """Return what K clients keep after the reply, and terms ``[K]`` to log."""
        ...


class SurveyFn(Protocol):
    """One more upload, of a finished model."""

    def __call__(self, ctx: Context, server: Any, mine: Any, shards: Shards, /) -> Any:
        """Return what all N clients tell the server of their data."""
        ...


class FinaliseFn(Protocol):
    """What the server makes of a survey."""

    def __call__(self, ctx: Context, server: Any, up: Any, /) -> Tree:
        """Return the server that is evaluated; no round sees it."""
        ...


class Method(NamedTuple):
    """A federated method. ``server`` and ``mine`` are trees of tensors.

    Both are finite and keep the shapes of ``init``: a checkpoint is held to them.
    ``mine`` has a leading client axis; ``client`` sees the rows of the round's cohort.
    """

    name: str
    source: str  # paper and year
    hp: type[BaseModel]
    init: InitFn
    broadcast: BroadcastFn
    client: ClientFn
    merge: MergeFn
    models: ModelsFn
    predict: Rule | Callable[[Any], Rule]  # what the paper evaluates; by hp
    counted: tuple[Counted, ...] = ()  # what the paper's table counts
    per_class: tuple[str, ...] = ()  # uploads that are records with class counts
    reply: BroadcastFn | None = None
    finish: FinishFn | None = None
    survey: SurveyFn | None = None
    finalise: FinaliseFn | None = None
    # By hp: whether a round reads nothing of what clients have from rounds before, once
    # the server has a model
    forgets: Callable[[Any], bool] = lambda hp: False

    def rule(self, hp: BaseModel) -> Rule:
        """Return the accuracy that the paper reports under these hyper-parameters."""
        return self.predict if isinstance(self.predict, Rule) else self.predict(hp)


def complete(method: Method) -> Method:
    """Return a method whose optional functions come in pairs.

    Raises
    ------
    ValueError
        One of a pair without the other, which no round would call.
    """
    for pair in (("reply", "finish"), ("survey", "finalise")):
        there = [name for name in pair if getattr(method, name) is not None]
        if len(there) == 1:
            raise ValueError(
                f"{method.name}: got {there[0]} alone, expected both of "
                f"{' and '.join(pair)}, or neither"
            )
    return method


class NonFiniteError(ArithmeticError):
    """A client returned a number that is not finite; nothing was merged."""


class Round(NamedTuple):
    """The federation after a round."""

    number: int  # from 1
    server: Tree
    mine: Tree  # all clients; the cohort's alone where a method forgets
    cohort: list[int]
    down: Any
    up: Any
    terms: Logged  # [K] mean loss terms of the cohort's clients
    watched: Logged  # numbers that merging reports
    sent: dict[str, Size]  # "up/field" and "down/field", summed over the cohort


def _refuse_non_finite(
    method: str, number: int, cohort: list[int], up: Any, terms: Logged
) -> None:
    for label, value in {**terms, **flatten(up)}.items():
        if not value.is_floating_point():
            continue
        rows = value.flatten(1) if value.ndim > 1 else value[:, None]
        if not rows.numel():
            continue
        low, high = rows.aminmax(dim=1)  # a NaN is the extreme of any numbers
        bad = ~(low.isfinite() & high.isfinite())
        if bad.any():
            client = cohort[int(bad.nonzero()[0])]
            raise NonFiniteError(
                f"{method}, round {number}, client {client}: {label} is not finite; "
                "nothing of this round was merged. Lower the learning rate or the "
                "weight of that term."
            )


def _refuse_non_finite_server(method: str, number: int, server: Tree) -> None:
    for label, value in flatten(server).items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise NonFiniteError(
                f"{method}, round {number}: the server's {label} is not finite after "
                "merging; the rounds before are kept. Lower the server's learning rate "
                "or the weight of its terms."
            )


def _received(down: Any, clients: int) -> dict[str, Size]:
    return {
        f"down/{name}": Size(size.floats * clients, size.ints * clients)
        for name, size in sizes(down).items()
    }


def cohort_size(participation: float, clients: int) -> int:
    """Return the number of clients in a round: at least one, and half a client is one.

    (Python's ``round`` makes 2, 2 and 4 of 1.5, 2.5 and 3.5.)
    """
    return max(1, floor(share_of(clients, participation) + 0.5))


def draw_cohort(ctx: Context, participation: float) -> list[int]:
    """Return the clients of this round, in order; at least one."""
    size = cohort_size(participation, ctx.clients)
    if size == ctx.clients:
        return list(range(ctx.clients))
    order = torch.randperm(ctx.clients, generator=ctx.random("cohort"))
    return sorted(order[:size].tolist())


def _rows(method: Method, ctx: Context, mine: Tree, cohort: list[int]) -> Tree:
    """Return what the clients of a round's cohort begin with.

    Where the method forgets those are first weights, which are read in round 1 only:
    then they stand in the memory of one client.
    """
    if not method.forgets(ctx.hp):
        everyone = len(cohort) == ctx.clients
        return mine if everyone else take(mine, torch.tensor(cohort))
    if ctx.round == 1:
        return method.init(replace(ctx, round=0, drawn=tuple(cohort)))[1]
    return tree_map(lambda leaf: leaf[:1].expand(len(cohort), *leaf.shape[1:]), mine)


def rounds(
    method: Method,
    ctx: Context,
    shards: Shards,
    *,
    participation: float = 1.0,
    start: tuple[int, Tree, Tree] | None = None,
) -> Iterator[Round]:
    """Yield the federation after each round, without end.

    Of a method that ``forgets`` only the cohort's clients are held, and only until the
    next round begins, if the caller lets go of the round before.

    Parameters
    ----------
    shards : Shards
        Training data of all clients.
    participation : float in (0, 1]
        Share of clients in each round's cohort.
    start : tuple, optional
        ``(round, server, mine)`` to continue from, as in a resume; ``mine`` may be of
        one client where the method forgets.

    Raises
    ------
    NonFiniteError
        Before anything non-finite is merged.
    ValueError
        The method has one function of a pair without the other.
    """
    method = complete(method)
    forgets = method.forgets(ctx.hp)
    if start is None:
        some = replace(ctx, drawn=(0,)) if forgets else ctx
        start = (0, *method.init(some))
    number, server, mine = start
    if forgets:  # of one client, as a likeness
        mine = tree_map(lambda leaf: leaf[:1].clone(), mine)
    del start
    while True:
        number += 1
        ctx = replace(ctx, round=number)
        cohort = draw_cohort(ctx, participation)
        after = _round(method, ctx, server, mine, cohort, shards)
        server = after.server
        if not forgets:
            if len(cohort) < ctx.clients:
                everyone = put(mine, torch.tensor(cohort), after.mine)
                after = after._replace(mine=everyone)
            mine = after.mine
        yield after
        del after


def _round(
    method: Method,
    ctx: Context,
    server: Tree,
    mine: Tree,
    cohort: list[int],
    shards: Shards,
) -> Round:
    """Return the federation after a round, with the rows of its cohort as ``mine``."""
    number = ctx.round
    down = method.broadcast(ctx, server)
    part, up, terms = method.client(
        ctx, down, _rows(method, ctx, mine, cohort), shards.cohort(cohort)
    )
    _refuse_non_finite(method.name, number, cohort, up, terms)
    server, watched = method.merge(ctx, server, up)
    _refuse_non_finite_server(method.name, number, server)
    sent = {f"up/{k}": v for k, v in sizes(up, len(cohort)).items()}
    sent |= _received(down, len(cohort))
    if method.reply is not None and method.finish is not None:
        answer = method.reply(ctx, server)
        part, after = method.finish(ctx, answer, part)
        _refuse_non_finite(method.name, number, cohort, {}, after)
        terms = terms | after
        sent |= _received(answer, len(cohort))
    return Round(number, server, part, cohort, down, up, terms, watched, sent)
