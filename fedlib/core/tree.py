"""Trees of tensors: nested NamedTuples and dicts with tensors as leaves.

Server state, client state and messages are such trees, with fixed shapes, so that
they can be sliced over clients, concatenated and stored without knowing the method.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Tree = Any


def _children(tree: Tree) -> Iterator[tuple[str, Tree]]:
    return iter((tree if isinstance(tree, dict) else tree._asdict()).items())


def _rebuild(like: Tree, values: dict[str, Tree]) -> Tree:
    return values if isinstance(like, dict) else type(like)(**values)


def tree_map(function: Callable[..., Tensor], *trees: Tree) -> Tree:
    """Apply ``function`` to the matching leaves of trees of one structure."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(*trees)
    columns = [dict(_children(tree)) for tree in trees]
    return _rebuild(
        first,
        {name: tree_map(function, *(c[name] for c in columns)) for name in columns[0]},
    )


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """Return the leaves by name, ``a/b/c`` for a nested one."""
    if isinstance(tree, Tensor):
        return {prefix: tree}
    leaves: dict[str, Tensor] = {}
    for name, child in _children(tree):
        leaves |= flatten(child, f"{prefix}/{name}" if prefix else name)
    return leaves


def restore(like: Tree, leaves: dict[str, Tensor], prefix: str = "") -> Tree:
    """Return a tree shaped as ``like`` with leaves from ``flatten``.

    Raises
    ------
    KeyError
        A leaf is missing.
    """
    if isinstance(like, Tensor):
        return leaves[prefix]
    return _rebuild(
        like,
        {
            name: restore(child, leaves, f"{prefix}/{name}" if prefix else name)
            for name, child in _children(like)
        },
    )


def take(tree: Tree, clients: Tensor | slice) -> Tree:
    """Return the rows ``clients`` of every leaf (the leading axis is the client)."""
    return tree_map(lambda leaf: leaf[clients], tree)


def put(tree: Tree, clients: Tensor, part: Tree) -> Tree:
    """Return ``tree`` with rows ``clients`` replaced by ``part``; inputs unchanged."""
    return tree_map(lambda old, new: old.index_copy(0, clients, new), tree, part)


def concatenate(trees: list[Tree]) -> Tree:
    """Join trees along the client axis."""
    return trees[0] if len(trees) == 1 else tree_map(lambda *x: torch.cat(x), *trees)


def tree_mean(trees: list[Tree]) -> Tree:
    """Return the mean of trees, leaf by leaf."""
    return tree_map(lambda *leaves: torch.stack(leaves).mean(0), *trees)


def stack(trees: list[Tree]) -> Tree:
    """Stack trees of single clients along a new leading client axis."""
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)
