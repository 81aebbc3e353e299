"""Load, list and check data sets; nothing here downloads."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedlib.data.catalogue import DATASETS, entry_of
from fedlib.data.sources import always, plain_or_gz
from fedlib.data.types import SPLITS, DataError, Dataset, Entry, Facts
from fedlib.support.files import write_text
from fedlib.support.paths import data_dirs, results_dir

if TYPE_CHECKING:  # a list of what is here needs neither torch nor pandas
    import pandas as pd

    from fedlib.data.store import Policy


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


def _downloads(entry: Entry) -> str:
    """Return each file to download, with its hash and where it is."""
    lines = []
    for remote in entry.downloads:
        known = [remote.hash or "no hash is published"]
        known += [f"{remote.size} bytes"] if remote.size else []
        facts, urls = ", ".join(known), " or ".join(remote.urls)
        lines.append(f"\n  {remote.path} ({facts}): {urls}")
    if any(remote.unpack for remote in entry.downloads):
        lines.append("\nIt also unpacks an archive that lies in one of the folders.")
    return "".join(lines)


def absent(name: str, why: str = "") -> str:
    """Return the message of a data set that is not here: what, where, and from where.

    Parameters
    ----------
    why : str
        Goes on after "is not here".
    """
    entry = entry_of(name)
    looked = ", ".join(str(root) for root in data_dirs())
    how = f"follow the steps of: fedlib data guide {name}."
    if entry.downloads:
        how = f"run: fedlib data fetch {name}, which downloads{_downloads(entry)}"
    return (
        f"{entry.title} is not here{why}. Looked in: {looked}.{_gaps(entry)} "
        f"Put {entry.place} into one of them (FEDLIB_DATA names the first), or "
        f"{how}\nOrigin and licence: {entry.page}"
    )


def load(name: str, *, unreadable: "Policy" = "refuse") -> Dataset:
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
    from fedlib.data.store import stored

    sources = locate(name)
    if not sources:
        raise DataError(absent(name))
    return stored(name, sources, unreadable)


def facts(name: str) -> Facts:
    """Return what is known of a data set without its images, which need not be here.

    Of one that is not here it is what stands beside its published runs.

    Raises
    ------
    DataError
        Not here, and no run of it is published.
    """
    path = _facts_file(name)
    if locate(name) or path is None or not path.exists():
        return _facts_of(load(name))
    entry, told = entry_of(name), json.loads(path.read_text(encoding="utf-8"))
    return Facts(
        name,
        told["title"],
        tuple(told["classes"]),
        entry.mean,
        entry.std,
        entry.augment,
        told["fingerprint"],
        tuple(told["groups"]),
    )


def _facts_file(name: str) -> Path | None:
    root = results_dir()
    return None if root is None else root / name / "dataset.json"


def _facts_of(data: Dataset) -> Facts:
    groups = () if data.groups is None else data.groups.names
    about = (data.mean, data.std, data.augment, data.fingerprint)
    return Facts(data.name, data.title, data.classes, *about, groups)


def keep_facts(name: str, fingerprint: str) -> None:
    """Write what is known of a data set beside its published runs.

    Parameters
    ----------
    fingerprint : str
        Of the data that a run is of.

    Raises
    ------
    ValueError
        The data here, or those of the other published runs, are others.
    """
    path = _facts_file(name)
    if path is None:
        return
    if path.exists():
        there, whose = json.loads(path.read_text(encoding="utf-8")), "published runs of"
    else:
        known = _facts_of(load(name))._asdict()
        there = {k: known[k] for k in ("title", "fingerprint", "classes", "groups")}
        whose = "data here as"
    if there["fingerprint"] != fingerprint:
        raise ValueError(
            f"{name}: got a run on other data ({fingerprint}) than the {whose} {name} "
            f"are ({there['fingerprint']})"
        )
    if not path.exists():
        write_text(path, json.dumps(there, indent=1, ensure_ascii=False) + "\n")


def _decoded(name: str, sources: list[Path]) -> tuple[bool, int]:
    """Return whether a data set is decoded, and how many images were left out."""
    from safetensors import SafetensorError, safe_open

    from fedlib.data.store import decoded_folder

    file = decoded_folder(name, sources) / "labels.safetensors"
    try:
        with safe_open(file, "pt") as opened:
            return True, len(json.loads(opened.metadata()["skipped"]))
    except (OSError, SafetensorError):  # absent, or damaged: decoded by the next load
        return False, 0


def obtained(name: str) -> Literal["built in", "fetch", "guide"]:
    """Return how a data set comes here: it needs no file, or by which command."""
    entry = entry_of(name)
    if entry.find is always:
        return "built in"
    return "fetch" if entry.downloads else "guide"


def status() -> "pd.DataFrame":
    """Return which data sets are here and from where, else how to get them.

    Columns are name, title, present, source (where it is, or what to put where), bytes,
    decoded, skipped (unreadable images that were left out) and get: "built in",
    "fetch" or "guide".
    """
    import pandas as pd

    rows = []
    for name, entry in DATASETS.items():
        get = obtained(name)
        built_in = get == "built in"
        sources = locate(name)
        files = [p for source in sources for p in (source, *source.rglob("*"))]
        size = 0 if built_in else sum(p.stat().st_size for p in files if p.is_file())
        where = str(sources[0]) if sources and not built_in else entry.place
        ready = _decoded(name, sources) if sources else (False, 0)
        rows.append((name, entry.title, bool(sources), where, size, *ready, get))
    columns = ["name", "title", "present", "source", "bytes"]
    return pd.DataFrame(rows, columns=[*columns, "decoded", "skipped", "get"])


def check(name: str, *, unreadable: "Policy" = "refuse") -> "pd.DataFrame":
    """Return images per class and split, compared with the official counts.

    A decoded file whose content is not what was written is decoded again first.

    Raises
    ------
    DataError
        A count differs by more than the images that were left out as unreadable; all
        differences are listed, and these images.
    """
    import pandas as pd

    from fedlib.data.store import content, decoded_folder, fingerprint, forget

    data, entry = load(name, unreadable=unreadable), entry_of(name)
    if fingerprint(content(data)) != data.fingerprint:
        forget(decoded_folder(name, locate(name)))
        data = load(name, unreadable=unreadable)
    if entry.classes is not None and len(data.classes) != entry.classes:
        raise DataError(
            f"{data.title}: {len(data.classes)} classes ({', '.join(data.classes)}) "
            f"instead of {entry.classes}{_sums(data, entry)}"
        )
    rows, wrong, gaps = [], [], []
    for s, split in enumerate(SPLITS):
        y = (data.train_y, data.test_y)[s]
        if entry.per_split and len(y) != entry.per_split[s]:
            wrong.append(f"{split}: {len(y)} images instead of {entry.per_split[s]}")
            gaps.append(entry.per_split[s] - len(y))
        found = Counter(y.tolist())
        for c, label in enumerate(data.classes):
            official = None if entry.per_class is None else entry.per_class[s][c]
            rows.append((split, label, found[c], official))
            if official is not None and found[c] != official:
                wrong.append(f"{split} {label}: {found[c]} instead of {official}")
                gaps.append(official - found[c])
    left_out = len(data.skipped)
    if wrong and not (min(gaps) > 0 and sum(gaps) == left_out):
        if left_out:
            wrong.append(f"{left_out} unreadable left out: {', '.join(data.skipped)}")
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
