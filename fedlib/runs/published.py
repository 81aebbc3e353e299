"""Published runs: logs that are kept in the repository, so that nobody computes them.

A run is two files in ``results/<data set>/<method>/``, named by its seed, its rounds
and the beginning of its key:

``seed1234-500rounds-e7e80a65.json``
    its record: settings, key, data, partition, code, versions, device, kernel, timing
    and who vouches for it after the code changed (``Voucher``);
``seed1234-500rounds-e7e80a65.safetensors.zst``
    its log, as on disk everywhere (``fedlib.core.log``), integers in as few bytes as
    they need. Loss terms are means over the cohort: no table or figure reads more.

``results/<data set>/dataset.json`` holds what is asked of a data set without images. A
run is found by its key, or by its settings where the data are not here. Models are not
published: what needs them computes the run.

What is read is checked, and a damaged file is refused by name.
"""

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedlib.core.log import Log
from fedlib.data import keep_facts
from fedlib.runs.checks import StoredError, checked_log
from fedlib.runs.results import Result, measured
from fedlib.runs.spec import Spec
from fedlib.support.files import atomic_write, write_text
from fedlib.support.paths import ROOT, SHIPPED, cache_dir, results_dir

FORMAT = 1  # of the two files; raise it when their meaning changes
LEVEL = 19  # of zstd: files are read often and written once
LARGEST = 2**28  # bytes of a log before compression
LOG = ".safetensors.zst"
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)


class PublishedError(ValueError):
    """A published file is damaged, or not of its run; the message names it."""


class Voucher(BaseModel):
    """One adoption: first rounds that today's code was found to give as well."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str  # ISO, of the day
    key_before: str
    code_before: str  # hashes of the code
    code_after: str
    rounds: int = Field(ge=1)  # that were played with the code after
    largest_difference: float = Field(ge=0)  # 0: the same bits
    tolerance: float = Field(ge=0)


class LogFile(BaseModel):
    """What the file with a run's log must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: str
    bytes: int = Field(ge=1)  # before compression


class Record(BaseModel):
    """What is told of a published run beside its numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    key: str = Field(pattern="^[0-9a-f]{20}$")
    spec: dict[str, Any]
    log_format: int  # ``on_disk.FORMAT``
    data: list[Any]  # fingerprint, mean, std, augment
    partition: list[str]
    code: str  # hash of the code that the key stands for
    deviations: list[str]
    device: str
    kernel: str
    kept_bytes: dict[str, int]
    versions: dict[str, str]
    timing: dict[str, float]
    accuracy: dict[str, Any] | None  # as ``results.measured``: for people to read
    log: LogFile
    vouchers: list[Voucher] = []

    def identity(self) -> dict[str, Any]:
        """Return what the key is a hash of, as ``address.identity`` does."""
        parts = {name: getattr(self, name) for name in ("spec", "data", "partition")}
        return parts | {"format": self.log_format, "code": self.code}


def key_of(identity: dict[str, Any]) -> str:
    """Return the content address of a run."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def folder_of(spec: Spec) -> Path | None:
    """Return the folder of a method's published runs; None where none are read."""
    root = results_dir()
    return None if root is None else root / spec.dataset / spec.method


def path_of(spec: Spec, key: str) -> Path | None:
    """Return where the record of a run is or would be; None where none are read."""
    folder = folder_of(spec)
    name = f"seed{spec.seed}-{spec.rounds}rounds-{key[:8]}.json"
    return None if folder is None else folder / name


def has(spec: Spec, key: str) -> bool:
    """Return whether a run is published; its log is not read.

    Raises
    ------
    PublishedError
        Its record is damaged.
    """
    path = path_of(spec, key)
    return path is not None and path.exists() and read_record(path).key == key


def find(spec: Spec, key: str) -> Result | None:
    """Return a published run, or None.

    Raises
    ------
    PublishedError
        One of its files is damaged.
    """
    path = path_of(spec, key)
    if path is None or not path.exists():
        return None
    record = read_record(path)
    return Result(spec, key, read_log(path, record)) if record.key == key else None


def timing(spec: Spec, key: str) -> dict[str, float] | None:
    """Return what a published run took, None where there is none or it is not known."""
    path = path_of(spec, key)
    if path is None or not has(spec, key):
        return None
    return read_record(path).timing or None


def alike(spec: Spec) -> list[Record]:
    """Return the records of the runs of these settings, whatever their code and data.

    Raises
    ------
    PublishedError
        A record is damaged.
    """
    folder, asked = folder_of(spec), spec.model_dump(mode="json")
    if folder is None:
        return []
    paths = sorted(folder.glob(f"seed{spec.seed}-{spec.rounds}rounds-*.json"))
    return [record for record in map(read_record, paths) if record.spec == asked]


def records() -> Iterator[tuple[Path, Record]]:
    """Yield all published runs, by data set, method, seed.

    Raises
    ------
    PublishedError
        A record is damaged.
    """
    root = results_dir()
    for path in sorted(root.glob("*/*/*.json")) if root is not None else ():
        yield path, read_record(path)


def read_record(path: Path) -> Record:
    """Return a record.

    Raises
    ------
    PublishedError
        It is damaged, or not the one that its name says.
    """
    about = path.stat()
    return _record(path, (about.st_mtime_ns, about.st_size, about.st_ino))


@functools.lru_cache(maxsize=8192)
def _record(path: Path, mark: tuple[int, ...]) -> Record:
    """Read a record once; another mark is another file."""
    try:
        record = Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise _refused(path, f"{name} {first['msg']}".strip()) from error
    if key_of(record.identity()) != record.key:
        raise _refused(path, "its key is not that of its settings, data and code")
    if not path.stem.endswith(record.key[:8]):
        raise _refused(path, f"holds the run {record.key}")
    return record


def _refused(path: Path, why: str) -> PublishedError:
    return PublishedError(f"{_shown(path)}: damaged: {why}")


def _shown(path: Path) -> str:
    """Return a published file's place inside the folder of all."""
    return "/".join(("results", *path.parts[-3:]))


def log_path(path: Path) -> Path:
    """Return the log beside a record."""
    return path.with_suffix(LOG)


def read_log(path: Path, record: Record) -> Log:
    """Return the log beside a record, checked against the run's settings.

    Raises
    ------
    PublishedError
        It is missing, damaged, or cannot be the log of such a run.
    """
    file = log_path(path)
    try:
        packed = file.read_bytes()
    except FileNotFoundError:
        raise _refused(file, "missing") from None
    if hashlib.sha256(packed).hexdigest() != record.log.sha256:
        raise _refused(file, "another checksum than its record has")
    try:
        content = pyarrow.decompress(packed, record.log.bytes, "zstd", asbytes=True)
        flat = {name: _wide(value) for name, value in load_tensors(content).items()}
        spec = Spec.model_validate(record.spec)
        return checked_log(spec, dict(sorted(flat.items())), term_means=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise _refused(file, " ".join(str(error).split())) from error


def _wide(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.int64)


def _narrow(value: Tensor) -> Tensor:
    """Return integers in as few bytes as they need."""
    if value.is_floating_point():
        return value.contiguous()
    if value.dtype != torch.int64:
        raise ValueError(f"log: got {value.dtype}, expected integers of 64 bits")
    low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
    for kind in INTEGERS:
        if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max:
            return value.to(kind).contiguous()
    return value.contiguous()


def compact(log: Log) -> Log:
    """Return a log with loss terms as means over the cohort, as tables read them."""
    terms = {n: v.flatten(1).mean(1, keepdim=True) for n, v in log.term.items()}
    return log._replace(term=terms)


def _to_write(spec: Spec, key: str) -> Path:
    """Return the path of a record that may be written."""
    path = path_of(spec, key)
    if path is None:
        raise ValueError("FEDLIB_RESULTS: got 'none', expected a folder to write to")
    if path.is_relative_to(SHIPPED):  # the next install would take it away
        raise ValueError(
            f"FEDLIB_RESULTS: expected a folder to write to, not {SHIPPED}, which an "
            "installed fedlib came with"
        )
    return path


def write(record: Record, log: Log) -> Path:
    """Write a record and its log, and return the record's path.

    ``record.log`` is made here.

    Raises
    ------
    ValueError
        The log cannot be that of such a run, ``FEDLIB_RESULTS`` is ``none`` or names
        what an installed fedlib came with, or a text names a place of this machine.
    """
    spec = Spec.model_validate(record.spec)
    path = _to_write(spec, record.key)
    log = compact(log)
    wide = dict(sorted(log.flat().items()))
    try:
        checked_log(spec, wide, term_means=True)
    except StoredError as error:
        raise ValueError(f"run {record.key}: {error}") from error
    flat = {name: _narrow(value) for name, value in wide.items()}
    content = save_tensors(flat)
    packed = pyarrow.Codec("zstd", LEVEL).compress(content, asbytes=True)
    log_file = LogFile(sha256=hashlib.sha256(packed).hexdigest(), bytes=len(content))
    text = record.model_copy(update={"log": log_file}).model_dump_json(indent=1) + "\n"
    for place in (ROOT, cache_dir(), Path.home()):
        if len(place.parts) > 1 and f"{place}/" in text:
            raise ValueError(f"run {record.key}: its record names a path below {place}")
    with atomic_write(log_path(path)) as temporary:
        temporary.write_bytes(packed)
    write_text(path, text)
    return path


def remove(path: Path) -> None:
    """Remove a published run; its record first, so that none is without a log."""
    path.unlink()
    log_path(path).unlink(missing_ok=True)


def cached(key: str) -> tuple[dict[str, Any], Log]:
    """Return what the cache has of a finished run: its record as it is there, its log.

    Raises
    ------
    ValueError
        There is no such finished run.
    """
    home = cache_dir() / "runs" / key
    try:
        provenance = json.loads((home / "spec.json").read_text(encoding="utf-8"))
        log = Log.of(dict(sorted(load_file(home / "result.safetensors").items())))
    except (FileNotFoundError, json.JSONDecodeError, SafetensorError) as error:
        raise ValueError(f"run {key}: not in the cache, or not finished") from error
    timing = home / "timing.json"
    if timing.exists():
        provenance["timing"] = json.loads(timing.read_text(encoding="utf-8"))
    return provenance, log


def publish(key: str) -> Path:
    """Copy a finished run of the cache into the published ones; return its record.

    A run that is there already is left as it is; one of the same settings and data by
    other code makes room.

    Raises
    ------
    ValueError
        The cache has no such finished run, ``results/`` holds runs on other data of
        that name, or ``write`` refuses it.
    """
    provenance, log = cached(key)
    spec = Spec.model_validate(provenance["spec"])
    if has(spec, key):
        return path_of(spec, key)  # pyright: ignore[reportReturnType]
    _to_write(spec, key)
    keep_facts(spec.dataset, provenance["data"][0])
    record = Record(
        key=key,
        spec=spec.model_dump(mode="json"),
        log_format=provenance["format"],
        data=provenance["data"],
        partition=provenance["partition"],
        code=provenance["code"],
        deviations=provenance.get("deviations", []),
        device=provenance["device"],
        kernel=provenance.get("kernel", ""),
        kept_bytes=provenance.get("kept_bytes", {}),
        versions=provenance["versions"],
        timing=provenance.get("timing", {}),
        accuracy=measured(Result(spec, key, log)),
        log=LogFile(sha256="", bytes=1),
        vouchers=provenance.get("vouchers", []),
    )
    folder = folder_of(spec)
    before = folder.glob("*.json") if folder else ()
    path = write(record, log)
    for other in before:
        if other != path and _of_same(record, read_record(other)):
            remove(other)
    return path


def _of_same(one: Record, other: Record) -> bool:
    return (one.spec, one.data[0]) == (other.spec, other.data[0])


@contextmanager
def unread() -> Iterator[None]:
    """Compute as if nothing were published, in other processes of ours as well."""
    before = os.environ.get("FEDLIB_RESULTS")
    os.environ["FEDLIB_RESULTS"] = "none"
    try:
        yield
    finally:
        if before is None:
            del os.environ["FEDLIB_RESULTS"]
        else:
            os.environ["FEDLIB_RESULTS"] = before
