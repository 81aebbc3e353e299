"""What a module binds and imports at its top level."""

import ast
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from fedlib.support.sources.files import PACKAGE, SourceError, home, keep, text_of
from fedlib.support.sources.syntax import is_text, leaves_of, nested_in, stored_names

# What decides no number by its code: names, places on disk, this file, the check of
# settings and parameters and all papers at once (what they set is hashed), the readers
# of data (their output is hashed), and what imports methods from outside (which are).
NOT_FOLLOWED = (
    "fedlib.support.sources",
    "fedlib.registry",
    "fedlib.rebuild.artefacts.resolved",
    "fedlib.rebuild.parameters",
    "fedlib.papers.BUILDERS",
    "fedlib.papers.TABLES",
    "fedlib.papers.special",
    "fedlib.runs.own",
    "fedlib.runs.spec",
    "fedlib.data",
    "fedlib.support.paths",
    "fedlib.support.files",
    "fedlib.support.progress",
)


class Place(NamedTuple):
    """Where a definition stands; without a name, the whole module."""

    module: str
    name: str = ""  # also "NETS[lenet]", one entry of a table

    def __str__(self) -> str:
        """Return the dotted name."""
        return f"{self.module}.{self.name}" if self.name else self.module


def where(definition: Any) -> Place:
    """Return the place of a function or class."""
    return Place(definition.__module__, definition.__qualname__)


class Module(NamedTuple):
    """A module's top level."""

    binds: dict[str, list[ast.stmt]]  # name -> the statements that bind it
    imports: dict[str, list[Place]]  # name -> what it may be; "*": all of these
    body: list[ast.stmt]  # all statements but docstrings
    loads: set[str]  # what its imports name, modules and others


def imports_of(node: ast.AST, package: str) -> Iterator[tuple[str, Place]]:
    """Yield the names that an import binds, and what they stand for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            yield alias.asname or top, Place(alias.name if alias.asname else top)
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")
        base = above[: len(above) + 1 - node.level] if node.level else []
        module = ".".join([*base, *filter(None, [node.module])])
        for alias in node.names:
            yield alias.asname or alias.name, Place(module, alias.name)


def package_of(module: str) -> str:
    """Return what relative imports in a module are relative to."""
    path = home(module)
    inside = path is not None and (path.is_dir() or path.name == "__init__.py")
    return module if inside else module.rpartition(".")[0]


@functools.cache
def module_of(name: str) -> Module:
    """Return the top level of a module of ours."""
    path = home(name)
    if path is None:
        raise SourceError(f"{name}: no such module, and a key depends on it")
    tree = ast.parse(text_of(name, path))
    package = package_of(name)
    found = Module({}, {}, [], {name.rpartition(".")[0]} - {""})
    for node in nested_in(tree):
        for _, origin in imports_of(node, package):
            found.loads.update((origin.module, str(origin)))
        if isinstance(node, ast.Import):
            found.loads.update(alias.name for alias in node.names)
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            continue  # not run by an import
        if is_text(statement):
            continue
        found.body.append(statement)
        for leaf in leaves_of(statement):
            for bound, origin in imports_of(leaf, package):
                found.imports.setdefault(bound, []).append(origin)
            for bound in sorted(stored_names([leaf])):
                found.binds.setdefault(bound, []).append(statement)
    return found


@functools.cache
def is_within(dotted: str, names: tuple[str, ...]) -> bool:
    """Return whether a dotted name is one of some, or stands in one."""
    return any(f"{dotted}.".startswith(f"{name}.") for name in names)


@functools.cache
def loaded(modules: tuple[str, ...]) -> frozenset[str]:
    """Return the modules of ours that importing some may import, with these."""
    waiting, found = list(modules), set()
    while waiting:
        module = waiting.pop()
        if module not in {*found, PACKAGE} and not is_within(module, NOT_FOLLOWED):
            if home(module) is not None:
                found.add(module)
                waiting.extend(module_of(module).loads)
    return frozenset(found)


def remember(module: str) -> None:
    """Keep the code of a module, and of those that it imports, before its import.

    Of a package that is one file with all others, such as this one, keep all files.
    """
    found = home(module)
    if found is None:
        return
    if module == PACKAGE:
        for path in found.parent.rglob("*.py"):
            keep(path)
    else:
        loaded((module,))
