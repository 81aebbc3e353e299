"""Download data sets: mirrors, size, hash, progress, resume; whole or absent."""

import os
from pathlib import Path

from fedlib.data.catalogue import entry_of
from fedlib.data.types import DataError
from fedlib.paths import cache_dir


def fetch(name: str) -> Path:
    """Download a data set and return the folder that holds it."""
    entry = entry_of(name)
    if not entry.downloads:
        raise DataError(f"{entry.title} {entry.place}; there is nothing to fetch")
    raise DataError(f"{entry.title}: not yet {os.sep} {cache_dir()}")
