"""Syntax: what stands in a file, whatever the names in it mean."""

import ast
from collections.abc import Iterator
from typing import Any

DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # bodies run when called


def is_text(node: Any) -> bool:
    """Return whether a statement is a text that stands alone, such as a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def bare(text: bytes) -> str:
    """Return the syntax of a file without docstrings and comments."""
    tree = ast.parse(text)
    nested: Iterator[Any] = nested_in(tree)
    for node in nested:
        if isinstance(getattr(node, "body", None), list):
            node.body = [part for part in node.body if not is_text(part)]
    return ast.dump(tree)


def nested_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it, at any depth."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        for part in inner if isinstance(inner, list) else []:
            yield from nested_in(part)


def leaves_of(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement, or what stands in the branches of an ``if`` or ``try``."""
    if not isinstance(statement, ast.If | ast.Try):
        yield statement
        return
    parts = [statement.body, statement.orelse, getattr(statement, "finalbody", [])]
    parts += [handler.body for handler in getattr(statement, "handlers", [])]
    for part in parts:
        for inner in part:
            yield from leaves_of(inner)


def stored_names(waiting: list[Any]) -> set[str]:
    """Return the names that code binds in its own scope, imports aside."""
    waiting, found, of_others = [*waiting], set(), set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, DEFINED):
            found.add(node.name)
        elif isinstance(node, ast.Global):
            of_others.update(node.names)
        elif isinstance(node, ast.Name):
            found |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif not isinstance(node, INNER):
            waiting.extend(ast.iter_child_nodes(node))
    return found - of_others


def own_names(function: Any) -> set[str]:
    """Return the names that stand for values of a function's own."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    named += filter(None, [given.vararg, given.kwarg])
    body = function.body if isinstance(function.body, list) else [function.body]
    return {argument.arg for argument in named} | stored_names(body)


def is_definition(leaf: ast.stmt) -> bool:
    """Return whether a statement does nothing but bind names."""
    if isinstance(leaf, ast.Assign):
        return all(isinstance(target, ast.Name | ast.Tuple) for target in leaf.targets)
    if isinstance(leaf, ast.AnnAssign | ast.AugAssign):
        return isinstance(leaf.target, ast.Name)
    return isinstance(leaf, (*DEFINED, ast.Import, ast.ImportFrom, ast.Pass))


def dotted_name(node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
    """Return ``("a", ("b", "c"))`` of ``a.b.c``; None for what is no dotted name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, tuple(names)) if isinstance(node, ast.Name) else None


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that an import runs: no bodies of functions."""
    yield node
    later = isinstance(node, LATER)
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not (later and field == "body"):
                yield from at_import(part)
