"""Data sets: found on disk, decoded once, loaded as tensors.

``load`` never downloads; ``fetch`` does. Folders are searched in the order of
``fedlib.paths.data_dirs``. What is found is decoded once into the cache and
memory-mapped afterwards. ``catalogue`` lists all entries; ``sets`` holds them, with
their readers.
"""

from fedlib.data.access import check, load, locate, status
from fedlib.data.catalogue import DATASETS
from fedlib.data.fetch import fetch
from fedlib.data.guide import guide
from fedlib.data.labels import map_labels
from fedlib.data.transform import Transform
from fedlib.data.types import DataError, Dataset, Groups

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Groups",
    "Transform",
    "check",
    "fetch",
    "guide",
    "load",
    "locate",
    "map_labels",
    "status",
]
