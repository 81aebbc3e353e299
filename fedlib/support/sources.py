"""Which code a result depends on: the definitions that it uses, hashed by content.

A definition is what a module binds at its top level: a function, a class, a constant.
``code`` begins with some and follows the names in them, through every form of import,
to all that they use. What counts is a definition's syntax without comments and
docstrings, and which definitions it refers to; in which file those stand does not. A
table of which one entry is chosen counts with that entry.

It errs on the side of too much: a module used as a value (``getattr(module, name)``) or
imported with ``*`` counts as a whole, and so does what imports do besides defining
names. What cannot be followed is refused by name. Code of others (the standard library
and what is installed) is not followed.

The code is that which this process imported: ``remember`` keeps it, and a file that has
changed since is refused, because nobody knows which of the two computes.
"""

import ast
import functools
import hashlib
import json
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

# What decides no number by its code: names, places on disk, this file, the check of
# settings and all papers at once (what they set is hashed), and the readers of data
# (their output is hashed).
NOT_FOLLOWED = (
    "fedlib.support.sources",
    "fedlib.registry",
    "fedlib.papers.BUILDERS",
    "fedlib.papers.TABLES",
    "fedlib.papers.special",
    "fedlib.runs.spec",
    "fedlib.data",
    "fedlib.support.paths",
    "fedlib.support.files",
    "fedlib.support.progress",
)
# What reaches code without naming it
HIDES = ("eval", "exec", "globals", "__import__", "sys.modules", "importlib", "runpy")
PACKAGE = __name__.split(".")[0]  # its own __init__ only hands names on
DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)  # bodies run when called
ACTS = "(import)"  # what importing a module does besides binding names


class SourceError(RuntimeError):
    """Nobody can tell which code computes; the message names the file or definition."""


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


# Files, as this process imported them

_BEGUN = time.time_ns()
_texts: dict[Path, bytes] = {}
_marks: dict[Path, tuple[int, ...]] = {}


def _mark(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _keep(path: Path) -> None:
    _marks[path] = _mark(path)
    _texts[path] = path.read_bytes()


def remember(module: str) -> None:
    """Keep the code of a module, and of those that it imports, before its import.

    Of a package that is one file with all others, such as this one, keep all files.
    """
    found = home(module)
    if found is None:
        return
    if module == PACKAGE:
        for path in found.parent.rglob("*.py"):
            _keep(path)
    else:
        _loaded((module,))


@functools.cache
def _top(name: str) -> tuple[Path, bool] | None:
    """Return the folder of a package, or of a module's file; None where not ours."""
    try:
        found = None if name in sys.stdlib_module_names else find_spec(name)
    except ValueError:  # a module that was made without a file, such as __main__
        return None
    if found is None:
        return None
    inside = list(found.submodule_search_locations or ())
    place = Path(inside[0] if inside else found.origin or "")
    installed = {"site-packages", "dist-packages"} & set(place.parts)
    if installed and name != PACKAGE:
        return None
    return place, bool(inside)


@functools.cache
def home(module: str) -> Path | None:
    """Return the file of a module of ours; None for others' and where there is none."""
    top, *rest = module.split(".")
    found = _top(top)
    if found is None:
        return None
    place, is_package = found
    if not is_package:
        return None if rest else place
    inner = place.joinpath(*rest)
    for path in (inner / "__init__.py", inner.with_suffix(".py")):
        if path in _texts or path.is_file():
            return path
    return inner if inner.is_dir() else None  # a package without __init__.py


def _text(module: str, path: Path) -> bytes:
    if path.is_dir():
        return b""
    if path.suffix != ".py":
        raise SourceError(f"{module}: got {path.name}, expected Python code to hash")
    if path not in _texts:
        _keep(path)
        if module in sys.modules and max(_marks[path][:2]) > _BEGUN:
            raise SourceError(_changed(path))
    return _texts[path]


def _changed(path: Path) -> str:
    return f"{path}: changed since this process imported it: restart the kernel"


def _is_text(node: Any) -> bool:
    """Return whether a statement is a text that stands alone, such as a docstring."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)


def _bare(text: bytes) -> str:
    """Return the syntax of a file without docstrings and comments."""
    tree = ast.parse(text)
    nested: Iterator[Any] = _nested(tree)
    for node in nested:
        if isinstance(getattr(node, "body", None), list):
            node.body = [part for part in node.body if not _is_text(part)]
    return ast.dump(tree)


@functools.lru_cache(maxsize=1024)
def _is_same(path: Path, mark: tuple[int, ...]) -> bool:
    """Return whether a file still says what was kept, but for comments."""
    try:
        text = path.read_bytes()
        return text == _texts[path] or _bare(text) == _bare(_texts[path])
    except SyntaxError:
        return False


def refuse_changed(files: Sequence[Path]) -> None:
    """Refuse files that are not what this process imported.

    Raises
    ------
    SourceError
        Naming the first file that was changed or removed.
    """
    for path in files:
        try:
            mark = _mark(path)
        except FileNotFoundError:
            raise SourceError(_changed(path)) from None
        if mark != _marks[path] and not _is_same(path, mark):
            raise SourceError(_changed(path))


# Modules


class _Module(NamedTuple):
    """A module's top level."""

    binds: dict[str, list[ast.stmt]]  # name -> the statements that bind it
    imports: dict[str, list[Place]]  # name -> what it may be; "*": all of these
    body: list[ast.stmt]  # all statements but docstrings
    loads: set[str]  # what its imports name, modules and others


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, Place]]:
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


def _nested(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and the statements in it, at any depth."""
    yield node
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, field, None)
        for part in inner if isinstance(inner, list) else []:
            yield from _nested(part)


def _leaves(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield a statement, or what stands in the branches of an ``if`` or ``try``."""
    if not isinstance(statement, ast.If | ast.Try):
        yield statement
        return
    parts = [statement.body, statement.orelse, getattr(statement, "finalbody", [])]
    parts += [handler.body for handler in getattr(statement, "handlers", [])]
    for part in parts:
        for inner in part:
            yield from _leaves(inner)


def _bound(leaf: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level binds, imports aside."""
    return _stored([leaf])


def _stored(waiting: list[Any]) -> set[str]:
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


def _own(function: Any) -> set[str]:
    """Return the names that stand for values of a function's own."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    named += filter(None, [given.vararg, given.kwarg])
    body = function.body if isinstance(function.body, list) else [function.body]
    return {argument.arg for argument in named} | _stored(body)


def _is_definition(leaf: ast.stmt) -> bool:
    if isinstance(leaf, ast.Assign):
        return all(isinstance(target, ast.Name | ast.Tuple) for target in leaf.targets)
    if isinstance(leaf, ast.AnnAssign | ast.AugAssign):
        return isinstance(leaf.target, ast.Name)
    return isinstance(leaf, (*DEFINED, ast.Import, ast.ImportFrom, ast.Pass))


def _package(module: str) -> str:
    path = home(module)
    inside = path is not None and (path.is_dir() or path.name == "__init__.py")
    return module if inside else module.rpartition(".")[0]


@functools.cache
def _module(name: str) -> _Module:
    path = home(name)
    if path is None:
        raise SourceError(f"{name}: no such module, and a key depends on it")
    tree = ast.parse(_text(name, path))
    package = _package(name)
    found = _Module({}, {}, [], {name.rpartition(".")[0]} - {""})
    for node in _nested(tree):
        for _, origin in _imports(node, package):
            found.loads.update((origin.module, str(origin)))
        if isinstance(node, ast.Import):
            found.loads.update(alias.name for alias in node.names)
    for statement in tree.body:
        if isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test):
            continue  # not run by an import
        if _is_text(statement):
            continue
        found.body.append(statement)
        for leaf in _leaves(statement):
            for bound, origin in _imports(leaf, package):
                found.imports.setdefault(bound, []).append(origin)
            for bound in sorted(_stored([leaf])):
                found.binds.setdefault(bound, []).append(statement)
    return found


@functools.cache
def _loaded(modules: tuple[str, ...]) -> frozenset[str]:
    """Return the modules of ours that importing some may import, with these."""
    waiting, found = list(modules), set()
    while waiting:
        module = waiting.pop()
        if module not in {*found, PACKAGE} and not _is_within(module, NOT_FOLLOWED):
            if home(module) is not None:
                found.add(module)
                waiting.extend(_module(module).loads)
    return frozenset(found)


def _is_within(dotted: str, names: Sequence[str]) -> bool:
    return any(f"{dotted}.".startswith(f"{name}.") for name in names)


# Definitions


class _Found(NamedTuple):
    """What a dotted name stands for."""

    place: Place | None  # None: code of others
    text: str  # how its use is written, wherever it stands
    rest: tuple[str, ...]  # attributes of it


def _follow(module: str, names: tuple[str, ...], depth: int = 0) -> list[_Found]:
    """Return what ``module.names`` may be: a definition and what is asked of it."""
    if home(module) is None:
        if _top(module.split(".")[0]) is not None:
            raise SourceError(f"{module}: no such module, and a key depends on it")
        return [_Found(None, ".".join((module, *names)), ())]
    for i, name in enumerate(names):
        there, rest = _module(module), names[i + 1 :]
        if name in there.binds:
            return [_Found(Place(module, name), name, rest)]
        origins = [o for o in there.imports.get(name, []) if o != (module, name)]
        if origins and depth < 20:
            inner = [(o.module, (*filter(None, [o.name]), *rest)) for o in origins]
            return [one for i in inner for one in _follow(*i, depth + 1)]
        if home(f"{module}.{name}") is not None:
            module = f"{module}.{name}"
            continue
        stars = [o.module for o in there.imports.get("*", []) if home(o.module)]
        names_it = [m for m in stars if name in _module(m).binds]
        if names_it:
            return [_Found(Place(names_it[0], name), name, rest)]
        if name in ("__name__", "__file__", "__doc__"):
            return [_Found(None, name, rest)]
        if module == PACKAGE:
            raise SourceError(f"{module}.{name}: no such name, and a key depends on it")
        return [_Found(Place(module), "(module)", names[i:])]
    return [_Found(Place(module), "(module)", ())]


class _Names:
    """The names in a definition: what they stand for, and which of ours they use."""

    def __init__(self, place: Place, node: ast.AST, there: _Module | None = None):
        self.place, self.there = place, there or _module(place.module)
        package = _package(place.module)
        self.imports = defaultdict(list)
        for name, origins in self.there.imports.items():
            self.imports[name].extend(origins)
        inside = [pair for part in _nested(node) for pair in _imports(part, package)]
        for name, origin in inside:
            self.imports[name].append(origin)
        self.imported = {name for name, _ in inside}
        stars = [o.module for o in self.imports["*"] if home(o.module) is not None]
        self.uses = {Place(module): None for module in stars}  # in order of first use

    def found(self, name: str, names: tuple[str, ...]) -> list[_Found]:
        """Return what ``name.names`` may be; of a builtin nothing is known."""
        place, found = Place(self.place.module, name), []
        if name in self.there.binds:
            found.append(_Found(place, name, names))
        for origin in self.imports.get(name, ()):
            asked = (*filter(None, [origin.name]), *names)
            found += _follow(origin.module, asked)
        return found or [_Found(None, ".".join((name, *names)), ())]

    def follow(self, name: str, names: tuple[str, ...]) -> str:
        """Note what ``name.names`` uses; return its text, wherever things stand."""
        found = self.found(name, names)
        for one in found:
            if one.place is not None:
                self.uses[one.place] = None
            elif _is_within(one.text, HIDES):
                raise SourceError(
                    f"{self.place}: uses {one.text}; what that reaches cannot be "
                    "followed, and a key depends on it"
                )
        return "|".join(".".join((one.text, *one.rest)) for one in found)


def _dotted(node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
    """Return ``("a", ("b", "c"))`` of ``a.b.c``; None for what is no dotted name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, tuple(names)) if isinstance(node, ast.Name) else None


def _written(
    node: Any, names: _Names, own: frozenset[str] = frozenset()
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
    elif dotted := _dotted(node):
        name, rest = dotted
        yield ".".join((name, *rest)) if name in own else names.follow(name, rest)
    elif isinstance(node, ast.Constant) or not isinstance(node, ast.AST):
        yield repr(getattr(node, "value", node))
    elif module := _named_module(node, names):
        names.uses[Place(module)] = None
    elif not (isinstance(node, ast.Import | ast.ImportFrom) or _is_text(node)):
        inner = own
        if isinstance(node, LATER):
            inner = own | _own(node) - names.imported
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns") and isinstance(value, ast.Constant):
                value = ast.parse(str(value.value), mode="eval").body
            if field not in ("ctx", "type_comment") and value not in (None, []):
                yield field
                yield from _written(value, names, inner if field == "body" else own)


def _named_module(node: ast.AST, names: _Names) -> str | None:
    """Return the module of ours in ``import_module("a.b")``."""
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return None
    called, text = _dotted(node.func), getattr(node.args[0], "value", None)
    if called is None or not isinstance(text, str) or text.startswith("."):
        return None
    imports = names.found(*called)[0].text in ("importlib.import_module", "__import__")
    return text if imports and home(text) is not None else None


class _Definition(NamedTuple):
    """What a definition says, and what it refers to."""

    hash: str
    uses: tuple[Place, ...]  # in order of first use


def _defined(place: Place, nodes: Sequence[ast.AST]) -> _Definition:
    texts: list[str] = []
    uses: dict[Place, None] = {}
    for node in nodes:
        names = _Names(place, node)
        texts += [*_written(node, names), "\n"]
        uses |= names.uses
    digest = hashlib.sha256(" ".join(texts).encode()).hexdigest()[:16]
    return _Definition(digest if nodes else "", tuple(uses))


@functools.cache
def _definition(place: Place) -> _Definition:
    there = _module(place.module)
    if place.name == ACTS:
        return _defined(place, [node for node in there.body if _acts(place, node)])
    if place.name.endswith("]"):
        name, _, entry = place.name[:-1].partition("[")
        return _defined(place, [_table(Place(place.module, name))[entry]])
    if place.name:
        return _defined(place, there.binds[place.name])
    names = [name for name in there.imports if name != "*"]
    imported = [one.place for name in names for one in _follow(place.module, (name,))]
    stars = [Place(o.module) for o in there.imports.get("*", []) if home(o.module)]
    inside = [Place(place.module, name) for name in (*there.binds, ACTS)]
    return _Definition("", (*inside, *filter(None, imported), *stars))


@functools.cache
def _table(place: Place) -> dict[str, ast.expr]:
    """Return the entries of a table that is written out, by their names."""
    statements = _module(place.module).binds.get(place.name, [])
    if len(statements) != 1 or not isinstance(statements[0], ast.Assign):
        return {}
    value = statements[0].value
    if not isinstance(value, ast.Dict):
        return {}
    names = [getattr(key, "value", None) for key in value.keys]
    found = zip(names, value.values, strict=True)
    return {str(name): entry for name, entry in found} if all(names) else {}


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that an import runs: no bodies of functions."""
    yield node
    later = isinstance(node, LATER)
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not (later and field == "body"):
                yield from _at_import(part)


def _acts(place: Place, statement: ast.stmt) -> bool:
    """Return whether a statement may do more than bind names.

    It is no definition, or it hands values to functions of ours, as decorators do, or
    to a base class that watches for new ones.
    """
    leaves = list(_leaves(statement))
    if not all(_is_definition(leaf) for leaf in leaves):
        return True
    bound = {f"{place.module}.{name}" for leaf in leaves for name in _stored([leaf])}
    if bound & set(NOT_FOLLOWED):
        return False
    given: list[ast.expr] = []
    for node in _at_import(statement):
        if isinstance(node, ast.Call):
            given.append(node.func)
        if isinstance(node, DEFINED):
            given += node.decorator_list
        if isinstance(node, ast.ClassDef):
            given += node.bases
    names = _Names(place, ast.Pass())
    for dotted in filter(None, map(_dotted, given)):
        names.follow(*dotted)
    called = [node for use in names.uses for node in _statements(use)]
    return any(
        not isinstance(node, ast.ClassDef)
        or node.keywords
        or "__init_subclass__" in ast.unparse(node)
        for node in called
    )


def _statements(place: Place) -> list[ast.stmt]:
    return _module(place.module).binds.get(place.name, [])


def used_by(text: str) -> list[Place]:
    """Return the definitions that code outside of all modules uses, as a notebook's."""
    tree = ast.parse(text)
    names = _Names(Place("the notebook"), tree, _Module({}, {}, [], set()))
    deque(_written(tree, names), maxlen=0)
    return list(names.uses)


class Code(NamedTuple):
    """The code that something depends on."""

    hash: str  # of all definitions, and of how they refer to each other
    parts: dict[str, str]  # dotted name of a definition -> hash of what it says
    files: tuple[Path, ...]


def code(
    roots: Sequence[Place],
    chosen: Mapping[Place, str] = MappingProxyType({}),
    without: Sequence[str] = NOT_FOLLOWED,
) -> Code:
    """Return the code that definitions depend on.

    Parameters
    ----------
    roots : sequence of Place
    chosen : mapping, optional
        Table -> the one entry that is read of it.
    without : sequence of str, optional
        Dotted names of modules or definitions that are not followed.

    Raises
    ------
    SourceError
        Code that cannot be followed, or that has changed since it was imported.
    """
    found = _walk(tuple(roots), tuple(chosen.items()), tuple(without))
    refuse_changed(found.files)
    return found


@functools.lru_cache(maxsize=4096)
def _walk(
    roots: tuple[Place, ...],
    chosen: tuple[tuple[Place, str], ...],
    without: tuple[str, ...],
) -> Code:
    edges: dict[Place, list[Place]] = {}  # in order of first use
    asked = [(root.module, (*filter(None, [root.name]),)) for root in roots]
    begun = [one.place for each in asked for one in _follow(*each) if one.place]
    begun = [place for place in begun if not _is_within(str(place), without)]
    _visit(begun, dict(chosen), without, edges)
    modules: frozenset[str] = frozenset()
    while modules != (modules := _loaded(tuple(sorted({p.module for p in edges})))):
        acts = [Place(module, ACTS) for module in modules]
        acts = [(_definition(act).hash, act) for act in acts if _definition(act).hash]
        _visit([act for _, act in sorted(acts)], dict(chosen), without, edges)
    numbers = {place: number for number, place in enumerate(edges)}
    parts = {place: _definition(place).hash for place in edges}
    text = [[parts[p], [numbers[used] for used in uses]] for p, uses in edges.items()]
    digest = hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]
    homes = {path for path in map(home, modules) if path in _texts}
    said = {str(place): part for place, part in parts.items() if part}
    return Code(digest, said, tuple(sorted(filter(None, homes))))


def _visit(
    places: Sequence[Place],
    chosen: Mapping[Place, str],
    without: Sequence[str],
    edges: dict[Place, list[Place]],
) -> None:
    """Add definitions and all that they use, breadth first."""

    def counted(place: Place) -> Place:
        entry = chosen.get(place)
        if entry is None or entry not in _table(place):
            return place
        return place._replace(name=f"{place.name}[{entry}]")

    waiting = deque(counted(place) for place in places)
    while waiting:
        place = waiting.popleft()
        if place in edges:
            continue
        used = [p for p in _definition(place).uses if not _is_within(str(p), without)]
        edges[place] = [counted(p) for p in used]
        waiting.extend(edges[place])
