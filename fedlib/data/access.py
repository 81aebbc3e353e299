"""Load, list and check data sets; nothing here downloads."""

from collections import Counter
from pathlib import Path

import pandas as pd

from fedlib.data.catalogue import DATASETS, entry_of
from fedlib.data.sources import always, plain_or_gz
from fedlib.data.store import (
    Policy,
    content,
    decoded_folder,
    fingerprint,
    forget,
    stored,
)
from fedlib.data.types import SPLITS, DataError, Dataset, Entry
from fedlib.paths import data_dirs


def locate(name: str) -> list[Path]:
    """Return the files of a data set in the first folder that has them, or nothing."""
    for root in data_dirs():
        found = entry_of(name).find(root)
        if found:
            return found
    return []


def _gaps(entry: Entry) -> str:
    """Return which files are missing where some of them are."""
    told = ""
    for root in data_dirs():
        gaps = [name for name in entry.files if not plain_or_gz(root, name)]
        if 0 < len(gaps) < len(entry.files):
            told += f" {root} lacks {', '.join(gaps)}."
    return told


def load(name: str, *, unreadable: Policy = "refuse") -> Dataset:
    """Return a data set, decoding it into the cache when it is new.

    Parameters
    ----------
    name : str
        One of ``DATASETS``.
    unreadable : {"refuse", "skip"}
        What becomes of a data set with unreadable images when it is decoded: all of
        them are named, or they are left out and counted (``Dataset.skipped``).

    Raises
    ------
    DataError
        Not found: says what is missing, where it was looked for and how to get it.
        Damaged: names the files.
    ValueError
        Unknown name.
    """
    entry = entry_of(name)
    sources = locate(name)
    if not sources:
        looked = ", ".join(str(root) for root in data_dirs())
        how = "run: fedlib data fetch" if entry.downloads else "see: fedlib data guide"
        raise DataError(
            f"{entry.title} is not here. Looked in: {looked}.{_gaps(entry)} "
            f"Put {entry.place} into one of them (FEDLIB_DATA names the first), or "
            f"{how} {name}. Origin and licence: {entry.page}"
        )
    return stored(name, sources, unreadable)


def status() -> pd.DataFrame:
    """Return which data sets are here, and from where; else where they should be."""
    rows = []
    for name, entry in DATASETS.items():
        sources = locate(name)
        files = [p for source in sources for p in (source, *source.rglob("*"))]
        size = sum(p.stat().st_size for p in files if p.is_file())
        here = sources and entry.find is not always
        where = str(sources[0]) if here else entry.place
        rows.append((name, entry.title, bool(sources), where, size))
    return pd.DataFrame(rows, columns=["name", "title", "present", "source", "bytes"])


def check(name: str, *, unreadable: Policy = "refuse") -> pd.DataFrame:
    """Return images per class and split, compared with the official counts.

    A decoded file whose content is not what was written is decoded again first.

    Raises
    ------
    DataError
        A count differs; all differences are listed.
    """
    data, entry = load(name, unreadable=unreadable), entry_of(name)
    if fingerprint(content(data)) != data.fingerprint:
        forget(decoded_folder(name, locate(name)))
        data = load(name, unreadable=unreadable)
    if entry.classes is not None and len(data.classes) != entry.classes:
        raise DataError(
            f"{data.title}: {len(data.classes)} classes ({', '.join(data.classes)}) "
            f"instead of {entry.classes}{_sums(data, entry)}"
        )
    rows, wrong = [], []
    for s, split in enumerate(SPLITS):
        y = (data.train_y, data.test_y)[s]
        if entry.per_split and len(y) != entry.per_split[s]:
            wrong.append(f"{split}: {len(y)} images instead of {entry.per_split[s]}")
        found = Counter(y.tolist())
        for c, label in enumerate(data.classes):
            official = None if entry.per_class is None else entry.per_class[s][c]
            rows.append((split, label, found[c], official))
            if official is not None and found[c] != official:
                wrong.append(f"{split} {label}: {found[c]} instead of {official}")
    total = len(data.train_y) + len(data.test_y)
    if entry.total not in (None, total):
        wrong.append(f"{total} images instead of {entry.total}")
    if wrong:
        raise DataError(f"{data.title}: " + "; ".join(wrong))
    return pd.DataFrame(rows, columns=["split", "class", "images", "official"])


def _sums(data: Dataset, entry: Entry) -> str:
    if entry.per_class is None:
        return ""
    train, test = map(sum, entry.per_class)
    return (
        f"; {len(data.train_y)} training images instead of {train}, "
        f"{len(data.test_y)} test images instead of {test}"
    )
