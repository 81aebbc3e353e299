"""Finished runs, wherever they are: in the cache, published, or both."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedlib import registry
from fedlib.core import nets
from fedlib.core.log import Log
from fedlib.data import DATASETS, DataError, facts
from fedlib.runs import address, on_disk, published
from fedlib.runs.spec import SettingError, Spec
from fedlib.support.paths import cache_dir

SHOWN = 3  # definitions that are named where code differs


class Stored(NamedTuple):
    """A finished run and what is told of it."""

    key: str
    told: dict[str, Any]  # as ``address.identity``, with device, versions, vouchers
    cache: Path | None  # its folder
    results: Path | None  # its published record

    @property
    def where(self) -> str:
        """The places that have it."""
        places = {"cache": self.cache, "results": self.results}
        return ", ".join(name for name, path in places.items() if path)

    @property
    def bytes(self) -> int:
        """Size of all its files."""
        files = list(self.cache.iterdir()) if self.cache else []
        if self.results:
            files += [self.results, published.log_path(self.results)]
        return sum(path.stat().st_size for path in files)

    def __str__(self) -> str:
        """Return what tells this run from others."""
        spec = self.told["spec"]
        text = f"{spec['method']} on {spec['dataset']}, seed {spec['seed']}"
        return f"{text}, {spec['rounds']} rounds, key {self.key}"

    def log(self) -> Log:
        """Return its log, in the form in which logs are published.

        Raises
        ------
        PublishedError
            A file is damaged.
        ValueError
            The cache has lost it.
        """
        if self.results:
            record = published.read_record(self.results)
            return published.read_log(self.results, record)
        return published.compact(published.cached(self.key)[1])


def _of_cache() -> Iterator[Stored]:
    for path in sorted((cache_dir() / "runs").glob("*/spec.json")):
        if (path.parent / "result.safetensors").exists():
            record = json.loads(path.read_text(encoding="utf-8"))
            record.pop("sources", None)
            yield Stored(path.parent.name, record, path.parent, None)


def everything() -> list[Stored]:
    """Return all finished runs, by data set, method, rounds, seed, key.

    Raises
    ------
    PublishedError
        A record is damaged.
    """
    by_key = {run.key: run for run in _of_cache()}
    for path, record in published.records():
        there = by_key.get(record.key)
        content = record.model_dump(mode="json") | record.identity()
        by_key[record.key] = Stored(record.key, content, there and there.cache, path)
    order = ("dataset", "method", "rounds", "seed")

    def place(run: Stored) -> tuple:
        return (*(run.told["spec"][name] for name in order), run.key)

    return sorted(by_key.values(), key=place)


def of(specs: Sequence[Spec]) -> list[Stored]:
    """Return the runs of some settings, whatever their code."""
    asked = {spec.model_dump_json() for spec in specs}
    return [run for run in everything() if _settings(run) in asked]


def _settings(run: Stored) -> str:
    """Return a run's settings with those that have come since; nothing if refused."""
    try:
        return Spec.model_validate(run.told["spec"]).model_dump_json()
    except ValueError:
        return ""


def select(names: Sequence[str]) -> list[Stored]:
    """Return the runs that beginnings of keys stand for; all where none is given.

    Raises
    ------
    SettingError
        No run's key begins so, or those of several.
    """
    every, chosen = everything(), {}
    for name in names:
        hits = [run for run in every if run.key.startswith(name)]
        if len(hits) != 1:
            what = f"which begins {len(hits)} keys" if hits else "which begins no key"
            raise SettingError(f"run: got {name!r}, {what}; see fedlib runs list")
        chosen[hits[0].key] = hits[0]
    return list(chosen.values()) if names else every


@functools.lru_cache(maxsize=64)
def _fingerprint(dataset: str) -> str:
    """Return that of the data here, or of the published runs; empty where unknown."""
    try:
        return facts(dataset).fingerprint
    except DataError:
        return ""


def spec_of(record: dict[str, Any]) -> Spec:
    """Return the spec of a run's record.

    Raises
    ------
    ValueError
        In words: a setting of it is none today, or its data set, method or net is one
        that only another process knows.
    """
    settings = record["spec"]
    own = {  # what another process has registered is not known here
        "data set": (settings.get("dataset"), DATASETS),
        "method": (settings.get("method"), registry.METHODS),
        "net": (settings.get("net"), nets.NETS),
    }
    for what, (name, known) in own.items():
        if name not in known:
            raise ValueError(f"{what} {name!r} is not known here (FEDLIB_OWN)")
    try:
        return Spec.model_validate(settings)
    except ValueError as error:
        raise ValueError("settings: " + " ".join(str(error).split())) from error


def state(run: Stored) -> str:
    """Return ``current``, or in words why today's code would not find a run.

    Of a run in the cache the definitions that are others now are told; published
    records hold their hash alone.
    """
    stale = why_stale(run.told)
    if stale == "code" and run.cache:
        record = json.loads((run.cache / "spec.json").read_text(encoding="utf-8"))
        parts = address.code_of(spec_of(run.told)).parts
        names = names_of_others(record.get("sources", {}), parts)
        stale += f" ({names})" if names else ""
    return f"stale: {stale}" if stale else "current"


def names_of_others(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the definitions that two codes do not have alike, the first few."""
    names = sorted(n for n in {*one, *other} if one.get(n) != other.get(n))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def why_stale(record: dict[str, Any]) -> str:
    """Return in words why today's code would not find a run; empty when current.

    Partitions are not drawn for it: where a scheme draws another one, the run is found
    to be stale when it is looked for.
    """
    try:
        spec = spec_of(record)
    except ValueError as error:
        return str(error)
    if spec.model_dump(mode="json") != record["spec"]:
        return "settings have come since"
    if record["format"] != on_disk.FORMAT:
        return f"format {record['format']}"
    if _fingerprint(spec.dataset) not in ("", record["data"][0]):
        return "other data"
    return "" if address.code_of(spec).hash == record["code"] else "code"
