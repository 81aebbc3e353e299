"""What a name in a definition stands for, through every form of import."""

import ast
from collections import defaultdict
from typing import NamedTuple

from fedlib.support.sources.files import PACKAGE, SourceError, home, top_of
from fedlib.support.sources.modules import (
    Module,
    Place,
    imports_of,
    is_within,
    module_of,
    package_of,
)
from fedlib.support.sources.syntax import nested_in

# What reaches code without naming it
HIDES = ("eval", "exec", "globals", "__import__", "sys.modules", "importlib", "runpy")
SHOWS = ("importlib.metadata",)  # of what is hidden: it reads packages' versions


class Found(NamedTuple):
    """What a dotted name stands for."""

    place: Place | None  # None: code of others
    text: str  # how its use is written, wherever it stands
    rest: tuple[str, ...]  # attributes of it


def follow(module: str, names: tuple[str, ...], depth: int = 0) -> list[Found]:
    """Return what ``module.names`` may be: a definition and what is asked of it."""
    if home(module) is None:
        if top_of(module.split(".")[0]) is not None:
            raise SourceError(f"{module}: no such module, and a key depends on it")
        return [Found(None, ".".join((module, *names)), ())]
    for i, name in enumerate(names):
        there, rest = module_of(module), names[i + 1 :]
        if name in there.binds:
            return [Found(Place(module, name), name, rest)]
        origins = [o for o in there.imports.get(name, []) if o != (module, name)]
        if origins and depth < 20:
            inner = [(o.module, (*filter(None, [o.name]), *rest)) for o in origins]
            return [one for i in inner for one in follow(*i, depth + 1)]
        if home(f"{module}.{name}") is not None:
            module = f"{module}.{name}"
            continue
        stars = [o.module for o in there.imports.get("*", []) if home(o.module)]
        names_it = [m for m in stars if name in module_of(m).binds]
        if names_it:
            return [Found(Place(names_it[0], name), name, rest)]
        if name in ("__name__", "__file__", "__doc__"):
            return [Found(None, name, rest)]
        if module == PACKAGE:
            raise SourceError(f"{module}.{name}: no such name, and a key depends on it")
        return [Found(Place(module), "(module)", names[i:])]
    return [Found(Place(module), "(module)", ())]


class Names:
    """The names in a definition: what they stand for, and which of ours they use."""

    def __init__(self, place: Place, node: ast.AST, there: Module | None = None):
        self.place, self.there = place, there or module_of(place.module)
        package = package_of(place.module)
        self.imports = defaultdict(list)
        for name, origins in self.there.imports.items():
            self.imports[name].extend(origins)
        inside = [
            pair for part in nested_in(node) for pair in imports_of(part, package)
        ]
        for name, origin in inside:
            self.imports[name].append(origin)
        self.imported = {name for name, _ in inside}
        stars = [o.module for o in self.imports["*"] if home(o.module) is not None]
        self.uses = {Place(module): None for module in stars}  # in order of first use

    def found(self, name: str, names: tuple[str, ...]) -> list[Found]:
        """Return what ``name.names`` may be; of a builtin nothing is known."""
        place, found = Place(self.place.module, name), []
        if name in self.there.binds:
            found.append(Found(place, name, names))
        for origin in self.imports.get(name, ()):
            asked = (*filter(None, [origin.name]), *names)
            found += follow(origin.module, asked)
        return found or [Found(None, ".".join((name, *names)), ())]

    def follow(self, name: str, names: tuple[str, ...]) -> str:
        """Note what ``name.names`` uses; return its text, wherever things stand."""
        found = self.found(name, names)
        for one in found:
            if one.place is not None:
                self.uses[one.place] = None
            elif is_within(one.text, HIDES) and not is_within(one.text, SHOWS):
                raise SourceError(
                    f"{self.place}: uses {one.text}; what that reaches cannot be "
                    "followed, and a key depends on it"
                )
        return "|".join(".".join((one.text, *one.rest)) for one in found)
