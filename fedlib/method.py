"""A method is a record of plain functions; a run steps through its rounds.

Read this first. A round is: broadcast -> client -> merge. ``rounds`` is an iterator,
so a notebook steps a method with ``next()``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from torch import Tensor

from fedlib.local import Losses, Shards, Trained, Training, train_local
from fedlib.messages import Size, sizes
from fedlib.nets import Net, State
from fedlib.readouts import Models, Rule
from fedlib.rng import generator
from fedlib.tree import Tree, flatten, put, take


@dataclass(frozen=True)
class Context:
    """What every function of a method may look at."""

    hp: Any  # the method's hyper-parameters
    net: Net
    training: Training
    classes: int  # C
    clients: int  # N, all clients of the federation
    seed: int
    round: int = 0  # t, from 1; 0 while initialising
    chunk: int | None = None  # clients trained side by side

    def random(self, purpose: str, client: int | str = "server") -> torch.Generator:
        """Return the generator of a purpose in this round, for a client."""
        return generator(self.seed, purpose, self.round, client)

    def train(
        self,
        state: State,
        shards: Shards,
        loss: Callable[..., Losses],
        extra: Tree | None = None,
    ) -> Trained:
        """Train a cohort of this net with the run's settings."""
        return train_local(
            state,
            shards,
            loss,
            self.training,
            self.random,
            classes=self.classes,
            extra=extra,
            buffers=self.net.buffers,
            dropout_keys=self.net.dropout_keys,
            chunk=self.chunk,
        )

    def init_clients(self, common: bool) -> State:
        """Draw the clients' first weights: one common draw, or one each."""
        names = ["common"] * self.clients if common else list(range(self.clients))
        states = [self.net.init(generator(self.seed, "init", n)) for n in names]
        return {k: torch.stack([s[k] for s in states]) for k in states[0]}


class Counted(NamedTuple):
    """A message field that a paper's communication table counts."""

    direction: str  # "up" or "down"
    field: str
    once: bool = False  # a broadcast counted once, not for each receiver


class Method(NamedTuple):
    """A federated method. ``server`` and ``mine`` are trees of tensors.

    ``mine`` has a leading client axis; ``client`` sees the rows of the round's cohort.
    """

    name: str
    source: str  # paper and year
    hp: type[BaseModel]
    init: Callable[[Context], tuple[Tree, Tree]]  # -> server, mine
    broadcast: Callable[[Context, Tree], Any]  # server -> Down
    client: Callable[[Context, Any, Tree, Shards], tuple[Tree, Any, dict[str, Tensor]]]
    merge: Callable[[Context, Tree, Any], Tree]  # server, Up -> server
    models: Callable[[Context, Tree, Tree], Models]  # what can be evaluated
    predict: Rule  # what the paper evaluates
    counted: tuple[Counted, ...] = ()  # what the paper's table counts


class NonFiniteError(ArithmeticError):
    """A client returned a number that is not finite; nothing was merged."""


class Round(NamedTuple):
    """The federation after a round."""

    number: int  # from 1
    server: Tree
    mine: Tree  # all clients
    cohort: list[int]
    down: Any
    up: Any
    terms: dict[str, Tensor]  # [K] mean loss terms of the cohort's clients
    sent: dict[str, Size]  # "up/field" and "down/field", summed over the cohort


def _refuse_non_finite(
    method: str, number: int, cohort: list[int], up: Any, terms: dict[str, Tensor]
) -> None:
    for label, value in {**terms, **flatten(up)}.items():
        if not value.is_floating_point():
            continue
        bad = ~torch.isfinite(value.flatten(1) if value.ndim > 1 else value[:, None])
        if bad.any():
            client = cohort[int(bad.any(1).nonzero()[0])]
            raise NonFiniteError(
                f"{method}, round {number}, client {client}: {label} is not finite; "
                "nothing of this round was merged. Lower the learning rate or the "
                "weight of that term."
            )


def draw_cohort(ctx: Context, participation: float) -> list[int]:
    """Return the clients of this round, in order; at least one."""
    size = max(1, round(participation * ctx.clients))
    if size == ctx.clients:
        return list(range(ctx.clients))
    order = torch.randperm(ctx.clients, generator=ctx.random("cohort"))
    return sorted(order[:size].tolist())


def rounds(
    method: Method,
    ctx: Context,
    shards: Shards,
    *,
    participation: float = 1.0,
    start: tuple[int, Tree, Tree] | None = None,
) -> Iterator[Round]:
    """Yield the federation after each round, without end.

    Parameters
    ----------
    shards : Shards
        Training data of all clients.
    participation : float in (0, 1]
        Share of clients in each round's cohort.
    start : tuple, optional
        ``(round, server, mine)`` to go on from, as after a resume.

    Raises
    ------
    NonFiniteError
        Before anything non-finite is merged.
    """
    number, server, mine = start or (0, *method.init(ctx))
    while True:
        number += 1
        ctx = replace(ctx, round=number)
        cohort = draw_cohort(ctx, participation)
        rows = torch.tensor(cohort)
        down = method.broadcast(ctx, server)
        part, up, terms = method.client(
            ctx, down, take(mine, rows), shards.cohort(cohort)
        )
        _refuse_non_finite(method.name, number, cohort, up, terms)
        server = method.merge(ctx, server, up)
        mine = put(mine, rows, part)
        received = {
            f"down/{k}": Size(v.floats * len(cohort), v.ints * len(cohort))
            for k, v in sizes(down).items()
        }
        uploaded = {f"up/{k}": v for k, v in sizes(up, len(cohort)).items()}
        yield Round(number, server, mine, cohort, down, up, terms, uploaded | received)
