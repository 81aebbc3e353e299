"""Data sets: found on disk, decoded once, loaded as tensors.

``load`` never downloads; ``fetch`` does. Folders are searched in the order of
``fedlib.support.paths.data_dirs``. What is found is decoded once into the cache and
memory-mapped afterwards. ``catalogue`` lists all entries; ``sets`` holds them, with
their readers.
"""

from typing import TYPE_CHECKING, Any

from fedlib.data.access import (
    check,
    facts,
    keep_facts,
    load,
    locate,
    obtained,
    status,
)
from fedlib.data.catalogue import DATASETS
from fedlib.data.fetch import fetch
from fedlib.data.folder import add_folder
from fedlib.data.guide import guide
from fedlib.data.labels import map_labels
from fedlib.data.types import DataError, Dataset, Facts, Groups

if TYPE_CHECKING:
    from fedlib.data.transform import Transform

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Facts",
    "Groups",
    "Transform",
    "add_folder",
    "check",
    "facts",
    "fetch",
    "guide",
    "keep_facts",
    "load",
    "locate",
    "map_labels",
    "obtained",
    "status",
]


def __getattr__(name: str) -> Any:
    """Import ``Transform`` when it is asked for: a list needs no pydantic."""
    if name != "Transform":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedlib.data.transform import Transform

    globals()[name] = Transform
    return Transform
