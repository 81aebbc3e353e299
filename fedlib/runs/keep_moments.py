"""Optimisers that continue from round to round: ``Training.keep_moments``.

A method's clients begin with a new optimiser in each round, since their weights are
replaced by what they receive. Here each keeps its moments (Adam's, or momentum) beside
what the method has it keep, and continues with them in the next round that it is in.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from fedlib.core.method import Context, Memory, Method, Shards, Turn
from fedlib.core.net import State
from fedlib.core.tree import Tree, flatten


class Kept(NamedTuple):
    """What a client keeps between rounds."""

    mine: Tree  # the method's own
    moments: Tree  # [K, ...] of its optimiser


def trained_by(ctx: Context, mine: Tree) -> State:
    """Return first weights ``[N, ...]`` of all that clients train.

    That is the net, and what a method has beside it in ``mine``: ``own.*``, as the
    projection of GFPL.
    """
    leaves = {path.rpartition("/")[2]: leaf for path, leaf in flatten(mine).items()}
    own = {name: leaf for name, leaf in leaves.items() if name.startswith("own.")}
    return ctx.init_clients(True) | own


def keep_moments(method: Method) -> Method:
    """Return a method whose clients' optimisers continue from round to round.

    Raises
    ------
    ValueError
        In a round: the method does not train its clients by one call of ``ctx.train``,
        so that there is no one optimiser whose moments could be kept, or it has moments
        of its own.
    """
    survey, finish = method.survey, method.finish

    def init(ctx: Context) -> tuple[Tree, Kept]:
        server, mine = method.init(ctx)
        return server, Kept(mine, ctx.blank_moments(trained_by(ctx, mine)))

    def client(ctx: Context, down: Any, mine: Kept, shards: Shards) -> Turn[Kept, Any]:
        memory = Memory(mine.moments)
        part, up, terms = method.client(
            replace(ctx, memory=memory), down, mine.mine, shards
        )
        if memory.trainings != 1:
            raise ValueError(
                f"keep_moments: got True for {method.name}, expected a method that "
                "trains its clients once in a round and keeps no moments itself; this "
                f"one has {memory.trainings} trainings that could go on from them"
            )
        return Kept(part, memory.moments), up, terms

    def finished(ctx: Context, answer: Any, mine: Kept) -> tuple[Kept, Any]:
        assert finish is not None
        part, terms = finish(ctx, answer, mine.mine)
        return mine._replace(mine=part), terms

    def surveyed(ctx: Context, server: Tree, mine: Kept, shards: Shards) -> Any:
        assert survey is not None
        return survey(ctx, server, mine.mine, shards)

    return method._replace(
        init=init,
        client=client,
        forgets=lambda hp: False,
        models=lambda ctx, server, mine: method.models(ctx, server, mine.mine),
        finish=None if finish is None else finished,
        survey=None if survey is None else surveyed,
    )
