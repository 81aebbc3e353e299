"""Clients keep back what few of their samples made: ``Spec.min_count``.

A class's record of a single sample is that sample: its embedding, or a gradient from
which its prediction follows (``leaks.py``). Of a class that it keeps back a client
sends what it would send had it never owned it. Its model is still trained on all its
samples. By what a server weighs that model depends on the method: a number of samples
counts all of them, but samples of each class (``labels`` of FedPA, FedGen and FedGMKD)
are 0 where a class is withheld, and the model weighs what is left.
"""

from typing import Any

import torch
from torch import Tensor

from fedlib.core.messages import Model
from fedlib.core.method import Context, Method, Shards, Turn
from fedlib.core.tree import Tree


def _is_counted(kind: Any) -> bool:
    return "count" in getattr(kind, "_fields", ())


def _emptied(leaf: Tensor, stays: Tensor) -> Tensor:
    """Return ``leaf`` ``[K, C, ...]`` with 0 where a class is not kept ``[K, C]``."""
    stays = stays.view(*stays.shape, *[1] * (leaf.ndim - 2))
    return torch.where(stays, leaf, torch.zeros((), dtype=leaf.dtype))


def withheld(up: Tree, owned: Tensor, min_count: int) -> Tree:
    """Return an upload without the classes that a client has few samples of.

    Parameters
    ----------
    up : tree
        Stacked over the cohort. Emptied are records with a ``count`` ``[K, C]``, and
        plain tensors ``[K, C]``, which hold the samples of each class.
    owned : Tensor
        ``[K, C]`` samples of each class. A record's own count may be smaller (rows of
        dropped batches) or larger (several passes over the data); a class is withheld
        where either is below ``min_count``.
    min_count : int
        Least number of samples behind what is sent of a class.

    Raises
    ------
    ValueError
        Nothing is left of counts by which a server weighs models.
    """
    if isinstance(up, Model):
        return up
    enough = owned >= min_count
    if _is_counted(up):
        stays = enough & (up.count >= min_count)
        return type(up)(*(_emptied(leaf, stays) for leaf in up))
    if isinstance(up, Tensor):
        if up.shape != owned.shape:
            return up
        if not enough.any():
            raise ValueError(
                f"min_count: got {min_count}, expected at most {int(owned.max())}: no "
                "client of this cohort has more samples of any class, and this method "
                "weighs models by the samples of the classes that are sent"
            )
        return _emptied(up, enough)
    fields = up if isinstance(up, dict) else up._asdict()
    inner = {k: withheld(v, owned, min_count) for k, v in fields.items()}
    return inner if isinstance(up, dict) else type(up)(**inner)


def withhold(method: Method, min_count: int) -> Method:
    """Return a method whose clients keep back classes of fewer samples.

    Parameters
    ----------
    min_count : int >= 1
        Least number of samples behind a record; 1 withholds nothing.

    Raises
    ------
    ValueError
        The method declares no record with class counts (``Method.per_class``).
    """
    if not method.per_class:
        raise ValueError(
            f"min_count: got {min_count} for {method.name}, which uploads nothing per "
            "class; expected 1"
        )
    survey = method.survey

    def client(ctx: Context, down: Any, mine: Tree, shards: Shards) -> Turn[Tree, Any]:
        mine, up, terms = method.client(ctx, down, mine, shards)
        return mine, withheld(up, shards.label_counts(ctx.classes), min_count), terms

    def surveyed(ctx: Context, server: Tree, mine: Tree, shards: Shards) -> Any:
        assert survey is not None
        up = survey(ctx, server, mine, shards)
        return withheld(up, shards.label_counts(ctx.classes), min_count)

    return method._replace(client=client, survey=None if survey is None else surveyed)
