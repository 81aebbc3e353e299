"""All that definitions depend on, and its hash."""

import functools
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from fedlib.support.sources.definitions import ACTS, definition_of, entries_of
from fedlib.support.sources.files import home, refuse_changed, texts
from fedlib.support.sources.modules import NOT_FOLLOWED, Place, is_within, loaded
from fedlib.support.sources.names import follow


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
    begun = [one.place for each in asked for one in follow(*each) if one.place]
    begun = [place for place in begun if not is_within(str(place), without)]
    _visit(begun, dict(chosen), without, edges)
    modules: frozenset[str] = frozenset()
    while modules != (modules := loaded(tuple(sorted({p.module for p in edges})))):
        acts = [Place(module, ACTS) for module in modules]
        hashed = sorted((definition_of(act).hash, act) for act in acts)
        acts = [act for digest, act in hashed if digest]
        _visit(acts, dict(chosen), without, edges)
    numbers = {place: number for number, place in enumerate(edges)}
    parts = {place: definition_of(place).hash for place in edges}
    text = [[parts[p], [numbers[used] for used in uses]] for p, uses in edges.items()]
    digest = hashlib.sha256(json.dumps(text).encode()).hexdigest()[:16]
    homes = {path for path in map(home, modules) if path in texts}
    said = {str(place): part for place, part in parts.items() if part}
    return Code(digest, said, tuple(sorted(filter(None, homes))))


@functools.cache
def _uses(place: Place, without: tuple[str, ...]) -> list[Place]:
    """Return what a definition refers to, but for what is not followed."""
    uses = definition_of(place).uses
    return [used for used in uses if not is_within(str(used), without)]


def _visit(
    places: Sequence[Place],
    chosen: Mapping[Place, str],
    without: tuple[str, ...],
    edges: dict[Place, list[Place]],
) -> None:
    """Add definitions and all that they use, breadth first."""

    def counted(place: Place) -> Place:
        entry = chosen.get(place)
        if entry is None or entry not in entries_of(place):
            return place
        return place._replace(name=f"{place.name}[{entry}]")

    waiting = deque(counted(place) for place in places)
    while waiting:
        place = waiting.popleft()
        if place in edges:
            continue
        edges[place] = [counted(used) for used in _uses(place, without)]
        waiting.extend(edges[place])
