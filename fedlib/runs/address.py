"""What a run is found by: a hash of spec, data, their partition, and code."""

import hashlib
from pathlib import Path
from types import FunctionType

from fedlib import partitions, registry
from fedlib.core import nets
from fedlib.core.log import Rows
from fedlib.data import DataError, facts, load, locate
from fedlib.data.access import absent
from fedlib.runs import published
from fedlib.runs.federation import federation, partition_of
from fedlib.runs.on_disk import FORMAT
from fedlib.runs.spec import Spec
from fedlib.support.paths import cache_dir
from fedlib.support.sources import NOT_FOLLOWED, Code, Place, code, where

# The definitions that compute any run and what is logged of it
ROOTS = (where(federation), where(Rows))


def code_of(spec: Spec) -> Code:
    """Return the code that decides a run's numbers.

    How they are stored is not of it (``FORMAT``), nor on which device they are made. Of
    all nets that of the spec counts, and of a scheme the partition that it draws.
    """
    build = nets.NETS[spec.net].build if spec.net in nets.NETS else None
    added = isinstance(build, FunctionType) and build.__module__ != nets.__name__
    return code(
        (
            *ROOTS,
            Place(registry.module(spec.method), "METHOD"),
            *([where(build)] if added else []),  # the table does not hold it
        ),
        {Place(nets.__name__, "NETS"): spec.net},
        (*NOT_FOLLOWED, str(where(partitions.draw))),
    )


_drawn: dict[str, list[str]] = {}  # what tells partitions apart, by what they are of


def _partition(spec: Spec, fingerprint: str) -> list[str]:
    """Return what tells a spec's partition from others, drawn once in a process.

    Where the data are not here, it is that of a published run of these settings.
    """
    if not locate(spec.dataset):
        drawn = [r for r in published.alike(spec) if r.data[0] == fingerprint]
        if not drawn:
            why = ", and no run of these settings is published"
            raise DataError(absent(spec.dataset, why))
        return drawn[0].partition
    fields = {"dataset", "partition", "clients", "seed", "partition_seed", "imbalance"}
    asked = fingerprint + spec.model_dump_json(include=fields)
    if asked not in _drawn:
        try:
            drawn = partition_of(spec, load(spec.dataset))
            owns = hashlib.sha256(drawn.owns.numpy().tobytes()).hexdigest()[:16]
            _drawn[asked] = [drawn.fingerprint, owns]
        except ValueError as error:  # a run raises it as well, and has no numbers
            _drawn[asked] = [str(error)]
    return _drawn[asked]


def identity(spec: Spec) -> dict:
    """Return what the key is a hash of: the spec, the data, their partition, the code.

    Raises
    ------
    DataError
        The data set is missing, and no run of these settings is published.
    SourceError
        Code has changed since this process imported it, or cannot be followed.
    """
    data = facts(spec.dataset)
    return {
        "format": FORMAT,
        "spec": spec.model_dump(mode="json"),
        "data": [data.fingerprint, data.mean, data.std, data.augment],
        "partition": _partition(spec, data.fingerprint),
        "code": code_of(spec).hash,
    }


def key(spec: Spec) -> str:
    """Return the content address of a run."""
    return published.key_of(identity(spec))


def folder(spec: Spec) -> Path:
    """Return the folder of a run in the cache."""
    return cache_dir() / "runs" / key(spec)
