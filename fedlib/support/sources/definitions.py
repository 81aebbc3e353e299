"""What a definition says, and which others it uses."""

import ast
import functools
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedlib.support.sources.files import home
from fedlib.support.sources.modules import NOT_FOLLOWED, Module, Place, module_of
from fedlib.support.sources.names import Names, follow
from fedlib.support.sources.syntax import (
    DEFINED,
    LATER,
    at_import,
    dotted_name,
    is_definition,
    is_text,
    leaves_of,
    own_names,
    stored_names,
)

ACTS = "(import)"  # what importing a module does besides binding names


def _written(
    node: Any, names: Names, own: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield a definition's syntax, with names that do not depend on where things stand.

    Imports are left out: what they bind is written where it is used. ``own`` are the
    names of arguments and local variables around it.
    """
    if isinstance(node, list):
        yield "["
        for part in node:
            yield from _written(part, names, own)
        yield "]"
    elif dotted := dotted_name(node):
        name, rest = dotted
        yield ".".join((name, *rest)) if name in own else names.follow(name, rest)
    elif isinstance(node, ast.Constant) or not isinstance(node, ast.AST):
        yield repr(getattr(node, "value", node))
    elif module := _named_module(node, names):
        names.uses[Place(module)] = None
    elif not (isinstance(node, ast.Import | ast.ImportFrom) or is_text(node)):
        inner = own
        if isinstance(node, LATER):
            inner = own | own_names(node) - names.imported
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns") and isinstance(value, ast.Constant):
                value = ast.parse(str(value.value), mode="eval").body
            if field not in ("ctx", "type_comment") and value not in (None, []):
                yield field
                yield from _written(value, names, inner if field == "body" else own)


def _named_module(node: ast.AST, names: Names) -> str | None:
    """Return the module of ours in ``import_module("a.b")``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    called, text = dotted_name(node.func), getattr(node.args[0], "value", None)
    if called is None or not isinstance(text, str) or text.startswith("."):
        return None
    imports = names.found(*called)[0].text in ("importlib.import_module", "__import__")
    return text if imports and home(text) is not None else None


class Definition(NamedTuple):
    """What a definition says, and what it refers to."""

    hash: str
    uses: tuple[Place, ...]  # in order of first use


def _defined(place: Place, nodes: Sequence[ast.AST]) -> Definition:
    texts: list[str] = []
    uses: dict[Place, None] = {}
    for node in nodes:
        names = Names(place, node)
        texts += [*_written(node, names), "\n"]
        uses |= names.uses
    digest = hashlib.sha256(" ".join(texts).encode()).hexdigest()[:16]
    return Definition(digest if nodes else "", tuple(uses))


@functools.cache
def definition_of(place: Place) -> Definition:
    """Return what stands at a place."""
    there = module_of(place.module)
    if place.name == ACTS:
        return _defined(place, [node for node in there.body if _acts(place, node)])
    if place.name.endswith("]"):
        name, _, entry = place.name[:-1].partition("[")
        return _defined(place, [entries_of(Place(place.module, name))[entry]])
    if place.name:
        return _defined(place, there.binds[place.name])
    names = [name for name in there.imports if name != "*"]
    imported = [one.place for name in names for one in follow(place.module, (name,))]
    stars = [Place(o.module) for o in there.imports.get("*", []) if home(o.module)]
    inside = [Place(place.module, name) for name in (*there.binds, ACTS)]
    return Definition("", (*inside, *filter(None, imported), *stars))


@functools.cache
def entries_of(place: Place) -> dict[str, ast.expr]:
    """Return the entries of a table that is written out, by their names."""
    statements = module_of(place.module).binds.get(place.name, [])
    if len(statements) != 1 or not isinstance(statements[0], ast.Assign):
        return {}
    value = statements[0].value
    if not isinstance(value, ast.Dict):
        return {}
    names = [getattr(key, "value", None) for key in value.keys]
    found = zip(names, value.values, strict=True)
    return {str(name): entry for name, entry in found} if all(names) else {}


def _acts(place: Place, statement: ast.stmt) -> bool:
    """Return whether a statement may do more than bind names.

    It is no definition, or it hands values to functions of ours, as decorators do, or
    to a base class that watches for new ones.
    """
    leaves = list(leaves_of(statement))
    if not all(is_definition(leaf) for leaf in leaves):
        return True
    bound = {
        f"{place.module}.{name}" for leaf in leaves for name in stored_names([leaf])
    }
    if bound & set(NOT_FOLLOWED):
        return False
    given: list[ast.expr] = []
    for node in at_import(statement):
        if isinstance(node, ast.Call):
            given.append(node.func)
        if isinstance(node, DEFINED):
            given += node.decorator_list
        if isinstance(node, ast.ClassDef):
            given += node.bases
    names = Names(place, ast.Pass())
    for dotted in filter(None, map(dotted_name, given)):
        names.follow(*dotted)
    called = [node for use in names.uses for node in _statements(use)]
    return any(
        not isinstance(node, ast.ClassDef)
        or node.keywords
        or "__init_subclass__" in ast.unparse(node)
        for node in called
    )


def _statements(place: Place) -> list[ast.stmt]:
    return module_of(place.module).binds.get(place.name, [])


def used_by(text: str) -> list[Place]:
    """Return the definitions that code outside of all modules uses, as a notebook's."""
    tree = ast.parse(text)
    names = Names(Place("the notebook"), tree, Module({}, {}, [], set()))
    deque(_written(tree, names), maxlen=0)
    return list(names.uses)
