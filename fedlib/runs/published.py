"""Published runs: logs that are kept in the repository, so that nobody computes them.

A run is two files in ``results/<data set>/<method>/``, named by its seed, its rounds
and the beginning of its key:

``seed1234-500rounds-e7e80a65.json``
    its record: settings, key, data, partition, code, versions, device, kernel, timing
    and who vouches for it after the code changed (``Voucher``);
``seed1234-500rounds-e7e80a65.safetensors.zst``
    its log, as on disk everywhere (``fedlib.core.log``), integers in as few bytes as
    they need. Loss terms are means over the cohort: no table or figure reads more.

``results/<data set>/dataset.json`` holds what is asked of a data set without its images.
A run is found by its key, or by its settings where the data are not here. Models are
not published: what needs them computes the run.

What is read is checked, and a damaged file is refused by name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedlib.core.log import Log
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec

FORMAT = 1  # of the two files; raise it when their meaning changes


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
    log_format: int  # ``runner.FORMAT``
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


def path_of(spec: Spec, key: str) -> Path | None:
    """Return where the record of a run is or would be; None where none is read."""
    raise NotImplementedError


def has(spec: Spec, key: str) -> bool:
    """Return whether a run is published; its files are not read."""
    raise NotImplementedError


def find(spec: Spec, key: str) -> Result | None:
    """Return a published run, or None.

    Raises
    ------
    PublishedError
        One of its files is damaged.
    """
    raise NotImplementedError


def alike(spec: Spec) -> list[Record]:
    """Return the records of the runs of these settings, whatever their code and data.

    Raises
    ------
    PublishedError
        A record is damaged.
    """
    raise NotImplementedError


def records() -> Iterator[tuple[Path, Record]]:
    """Yield all published runs, by data set, method, seed.

    Raises
    ------
    PublishedError
        A record is damaged.
    """
    raise NotImplementedError


def read_record(path: Path) -> Record:
    """Return a record.

    Raises
    ------
    PublishedError
        It is damaged, or not the one that its name says.
    """
    raise NotImplementedError


def read_log(path: Path, record: Record) -> Log:
    """Return the log beside a record, checked against the run's settings.

    Raises
    ------
    PublishedError
        It is missing, damaged, or cannot be the log of such a run.
    """
    raise NotImplementedError


def write(record: Record, log: Log) -> Path:
    """Write a record and its log, and return the record's path."""
    raise NotImplementedError


def publish(key: str) -> Path:
    """Copy a finished run of the cache into the published ones; return its record.

    A run that is there already is left as it is.

    Raises
    ------
    ValueError
        The cache has no such finished run, or ``results/`` holds runs on other data of
        that name.
    """
    raise NotImplementedError
