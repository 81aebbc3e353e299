"""Runs: from a spec to a result on disk, computed once.

``run`` returns a finished result from the cache, goes on from the last checkpoint of
one that was cut off, or computes it. A result is found by a hash of the spec, the data
and the code it depends on. All writes are atomic.
"""

import hashlib
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from fedlib import partitions, registry
from fedlib.core import nets
from fedlib.core.log import Log, Rows
from fedlib.core.method import Round, draw_cohort
from fedlib.core.nets import State
from fedlib.core.tree import Tree, flatten, restore, take, tree_map
from fedlib.data import DataError, facts, load, locate
from fedlib.data.access import absent
from fedlib.runs import published
from fedlib.runs.checks import (
    StoredError,
    checked_log,
    checked_record,
    is_timing,
    sealed,
    unsealed,
)
from fedlib.runs.device import chosen, computing, describe, kernel, moved
from fedlib.runs.federation import Federation, federation, partition_of
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.runs.watching import Watch, by_round, runs_away
from fedlib.support.files import atomic_write, locked, sweep, write_text
from fedlib.support.paths import cache_dir
from fedlib.support.progress import progress_off, silent
from fedlib.support.sources import NOT_FOLLOWED, Code, Place, code, where

FORMAT = 1  # of the stored logs; raise it when their meaning changes
SEGMENT = 100  # rounds whose log is written once, and no longer with each checkpoint
TOLD = ("format", "round", "segments")  # names of metadata
KEPT_BYTES = 32 * 2**20  # of a run's last models; larger ones are made again if asked


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


_drawn: dict[str, list[str]] = {}


def _partition(spec: Spec, fingerprint: str) -> list[str]:
    """Return what tells a spec's partition from others, drawn once in a process.

    Where the data are not here, it is that of a published run of these settings.
    """
    if not locate(spec.dataset):
        found = [r for r in published.alike(spec) if r.data[0] == fingerprint]
        if not found:
            why = ", and no run of these settings is published"
            raise DataError(absent(spec.dataset, why))
        return found[0].partition
    fields = {"dataset", "partition", "clients", "seed", "partition_seed", "imbalance"}
    asked = fingerprint + spec.model_dump_json(include=fields)
    if asked not in _drawn:
        try:
            found = partition_of(spec, load(spec.dataset))
            owns = hashlib.sha256(found.owns.numpy().tobytes()).hexdigest()[:16]
            _drawn[asked] = [found.fingerprint, owns]
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


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return tensors and metadata of a file, or None when absent or damaged.

    Tensors are copies: Windows replaces no file that is mapped into memory.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}
            return tensors, unsealed(tensors, file.metadata() or {}, TOLD)
    except (SafetensorError, StoredError, OSError) as error:
        _ignored(path, error)
        return None


def _ignored(path: Path, error: Exception) -> None:
    """Say that a file is taken for absent, and why."""
    why = " ".join(str(error).split())
    told = f"{path.name} of run {path.parent.name} is damaged; ignored ({why})"
    warnings.warn(told, stacklevel=3)


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    whole = {k: v.contiguous().clone() for k, v in tensors.items()}
    with _naming(path), atomic_write(path) as temporary:
        save_file(whole, temporary, sealed(whole, metadata))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name file, run and folder where a file of a run cannot be written.

    Raises
    ------
    OSError
        The disk is full, or a folder is not to be written to any more.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise OSError(
            f"{path.name} of run {path.parent.name} cannot be written into "
            f"{path.parent} ({why}); the files before it are whole, and the run goes "
            "on from there when there is room"
        ) from error


def _write_table(path: Path, table: dict) -> None:
    with _naming(path):
        write_text(path, json.dumps(table, indent=1, sort_keys=True) + "\n")


def _result(spec: Spec, log: dict[str, Tensor]) -> Result:
    """Return a result whose log has one order, whether computed or read."""
    return Result(spec, key(spec), Log.of(dict(sorted(log.items()))))


def _stored(spec: Spec) -> Result | None:
    path = folder(spec) / "result.safetensors"
    found = _read(path)
    if found is not None:
        try:
            _check_beside(spec, path.with_name("spec.json"))
            if found[1] != {"format": str(FORMAT)}:
                raise StoredError(f"format: got {found[1]}, expected {FORMAT}")
            checked_log(spec, found[0])
            return _result(spec, found[0])
        except StoredError as error:
            _ignored(path, error)
    return published.find(spec, key(spec))


def _check_beside(spec: Spec, path: Path) -> None:
    """Refuse a record of another run beside a result; it may be missing."""
    if not path.exists():
        return
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoredError(f"{path.name}: {error}") from None
    checked_record(spec, record, FORMAT)


def pending(specs: list[Spec]) -> list[Spec]:
    """Return the specs without a sound result, neither in the cache nor published."""
    return [spec for spec in specs if _stored(spec) is None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: the nets are small, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Final(NamedTuple):
    """A federation after its last round: what a picture of its models needs."""

    federation: Federation
    server: Tree
    mine: Tree

    @property
    def clients(self) -> list[int]:
        """Whose rows ``mine`` holds: the last cohort's where the method forgets."""
        fed = self.federation
        cohort = draw_cohort(fed.ctx, fed.spec.participation)
        return cohort if fed.forgets else list(range(fed.ctx.clients))

    @property
    def shared(self) -> State:
        """The global model's state; ``ValueError`` where a method has none."""
        fed = self.federation
        state = fed.method.models(fed.ctx, self.server, self.mine).shared
        if state is None:
            raise ValueError(f"final: got {fed.method.name}, expected a global model")
        return state


def _state(server: Tree, mine: Tree) -> dict[str, Tensor]:
    state = flatten({"server": server, "mine": mine})
    return {name: value.cpu() for name, value in state.items()}


def _restored(fed: Federation, tensors: dict[str, Tensor]) -> tuple[Tree, Tree]:
    """Return server and clients of what ``_state`` gave; one client tells the shapes.

    Raises
    ------
    StoredError
        A tensor is missing, or of another type or shape, or not finite.
    """
    server, mine = fed.method.init(replace(fed.ctx, drawn=(0,)))
    like = {"server": server, "mine": mine}
    for name, leaf in flatten(like).items():
        skip = 1 if name.startswith("mine") else 0  # the clients
        wanted = (leaf.dtype, leaf.shape[skip:])
        there = tensors.get(name)
        got = None if there is None else (there.dtype, there.shape[skip:])
        if got != wanted:
            raise StoredError(f"{name}: got {got}, expected {wanted}")
        if leaf.is_floating_point() and not torch.isfinite(tensors[name]).all():
            raise StoredError(f"{name}: got numbers that are not finite")
    tree = restore(like, tensors)
    return tree["server"], tree["mine"]


class _Journal:
    """What a run logs, on disk: full segments, written once, and what came since.

    So a checkpoint is as long after 10,000 rounds as after one segment. What came since
    is in the checkpoint, which also says how many segments it goes on from: one that is
    cut off between the two is written again, with the same bits.
    """

    def __init__(self, home: Path):
        self.home = home
        self.rows = Rows()
        self.segments = 0
        self.sealed = (0, 0)  # rounds and evaluations in the segments

    def restore(self, segments: int, since: dict[str, Tensor]) -> bool:
        """Read segments and add what came since; say whether all are there."""
        paths = map(self._segment, range(segments))  # none after one that is missing
        found = [_read(path) for path in takewhile(Path.exists, paths)]
        logs = [Log.of(each[0]) for each in found if each is not None]
        self.segments, self.sealed = segments, Rows(*logs).counts()
        self.rows = Rows(*logs, Log.of(since))
        return len(logs) == segments

    def since(self) -> dict[str, Tensor]:
        """Return what is in no segment; a full segment is written first."""
        if self.rows.counts()[0] - self.sealed[0] >= SEGMENT:
            full = self.rows.stacked(self.sealed).flat()
            _write(self._segment(self.segments), full, {})
            self.segments, self.sealed = self.segments + 1, self.rows.counts()
        return self.rows.stacked(self.sealed).flat()

    def _segment(self, number: int) -> Path:
        return self.home / f"log-{number:06d}.safetensors"


def _checkpoint(home: Path, fed: Federation, after: Round, journal: _Journal) -> None:
    """Write a checkpoint and keep the one before it."""
    now, before = (
        home / "checkpoint.safetensors",
        home / "checkpoint-before.safetensors",
    )
    logged = {f"log/{k}": v for k, v in journal.since().items()}
    if now.exists():
        os.replace(now, before)
    told = {"round": str(after.number), "segments": str(journal.segments)}
    mine = take(after.mine, slice(0, 1)) if fed.forgets else after.mine
    _write(now, _state(after.server, mine) | logged, told)


def _keep(home: Path, after: Round) -> None:
    """Keep the last round's models where they are small; ``final`` makes the others."""
    state = _state(after.server, after.mine)
    if sum(v.numel() * v.element_size() for v in state.values()) <= KEPT_BYTES:
        _write(home / "final.safetensors", state, {"round": str(after.number)})


def _resume(
    home: Path, fed: Federation
) -> tuple[tuple[int, Tree, Tree] | None, _Journal]:
    """Return where to go on, from the newest readable checkpoint."""
    for name in ("checkpoint.safetensors", "checkpoint-before.safetensors"):
        found, journal = _read(home / name), _Journal(home)
        if found is not None:
            try:
                return _gone_on(fed, journal, *found), journal
            except StoredError as error:
                _ignored(home / name, error)
        # a damaged one must not take the place of the one before
        (home / name).unlink(missing_ok=True)
    return None, _Journal(home)


def _gone_on(
    fed: Federation, journal: _Journal, tensors: dict[str, Tensor], told: dict[str, str]
) -> tuple[int, Tree, Tree]:
    """Return where a checkpoint goes on from, and fill the journal so far.

    Raises
    ------
    StoredError
        It, or a segment of the log before it, is none of this run.
    """
    if not told.get("round", "").isdecimal():
        raise StoredError(f"round: got {told.get('round')!r}, expected a number")
    number = int(told["round"])
    if not 1 <= number < fed.spec.rounds:
        raise StoredError(f"round: got {number}, expected 1 to {fed.spec.rounds - 1}")
    since = {k[4:]: v for k, v in tensors.items() if k.startswith("log/")}
    segments = told.get("segments", "0")
    try:
        if not (segments.isdecimal() and journal.restore(int(segments), since)):
            raise StoredError(f"segments: got fewer than {segments}")
        checked_log(fed.spec, journal.rows.stacked().flat(), number)
    except (IndexError, RuntimeError):  # torch's, of no use to anyone
        raise StoredError("log: got tensors that are no rows of one log") from None
    except ValueError as error:
        raise StoredError(str(error)) from None
    return number, *_restored(fed, tensors)


def _to(device: torch.device, *trees: Tree) -> list[Tree]:
    return [tree_map(lambda leaf: leaf.to(device), tree) for tree in trees]


def _note(rows: Rows, fed: Federation, after: Round) -> None:
    """Log a round, and its evaluation where it has one."""
    spec, number = fed.spec, after.number
    sent = {name: torch.tensor(size) for name, size in after.sent.items()}
    rows.add(Log(torch.tensor(after.cohort), after.terms, after.watched, sent))
    if number % spec.eval_every == 0 or number == spec.rounds:
        every_rule = number % spec.all_rules_every == 0 or number == spec.rounds
        found = Log.of(fed.evaluate(after, every_rule=every_rule))
        rows.add(found._replace(evaluated=torch.tensor(number)))


def first_rounds(spec: Spec, count: int) -> Log:
    """Play the first rounds of a spec, keep nothing, and return what they log.

    Raises
    ------
    DataError
        The data set is missing.
    NonFiniteError
        Training diverged.
    """
    device, rows = chosen(), Rows()
    fed = moved(federation(spec), device)
    with one_thread(), computing(device):
        for after in islice(fed.rounds(), min(count, spec.rounds)):
            _note(rows, fed, after)
    return rows.stacked()


def _tell(watch: Watch | None, spec: Spec, log: Log, first: int = 1) -> None:
    """Hand the rounds of a log to who watches the run."""
    if watch is not None:
        for number, told in by_round(Result(spec, "", log), first):
            watch(number, told)


def _compute(
    spec: Spec, home: Path, device: torch.device, watch: Watch | None
) -> dict[str, Tensor]:
    fed = federation(spec)
    start, journal = _resume(home, fed)
    rows, done = journal.rows, start[0] if start else 0
    if start:
        _tell(watch, spec, rows.stacked())
    if start:
        start = (done, *_to(device, *start[1:]))
    fed = moved(fed, device)
    seconds, kept, away = {"train": 0.0, "evaluate": 0.0}, {}, False
    worked = time.process_time()
    stepping = fed.rounds(start)
    del start  # the clients' models of then
    bar = tqdm(
        total=spec.rounds,
        initial=done,
        desc=f"{spec.method} {spec.dataset} {spec.seed}",
        unit="round",
        mininterval=1.0,
        disable=progress_off(),
        leave=False,
    )
    with computing(device), bar:
        for number in range(done + 1, spec.rounds + 1):
            begun = time.perf_counter()
            after = next(stepping)
            trained = time.perf_counter()
            before = rows.counts()
            _note(rows, fed, after)
            told = "" if away or silent() else runs_away(after)
            if told:
                away = True
                tqdm.write(f"{_called(spec)}: {told}", file=sys.stderr)
            seconds["train"] += trained - begun
            seconds["evaluate"] += time.perf_counter() - trained
            if number < spec.rounds:
                _checkpoint(home, fed, after, journal)
            else:
                _keep(home, after)
                kept = fed.kept_bytes(after)
            del after  # before the next round makes the models anew
            if watch is not None:
                _tell(watch, spec, rows.stacked(before), number)
            bar.update()
    count = max(1, spec.rounds - done)
    timing = {f"{k}_seconds_per_round": v / count for k, v in seconds.items()}
    timing["cpu_seconds_per_round"] = (time.process_time() - worked) / count
    _write_table(home / "timing.json", timing)
    record = identity(spec) | {
        "sources": code_of(spec).parts,
        "deviations": fed.partition.deviations,
        "device": describe(device),
        "kernel": kernel(),
        "kept_bytes": kept,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    _write_table(home / "spec.json", record)
    return rows.stacked().flat()


def run(spec: Spec, watch: Watch | None = None) -> Result:
    """Return the result of a spec: from the cache, as published, or computed.

    A run that was cut off goes on from its last round, with the same bits as an
    uninterrupted one. Two processes that ask for the same run compute it once.
    ``FEDLIB_DEVICE`` says where and ``FEDLIB_KERNEL`` with which convolutions; a result
    has the same key from all of them, and its record names them.

    Parameters
    ----------
    watch : callable, optional
        Called after each round with its number, from 1, and a dict of plain numbers
        (``watching.by_round``). Rounds that are stored are told first, so that it sees
        all of them, once each. What it raises ends the run, which keeps its rounds.

    Raises
    ------
    ValueError
        ``FEDLIB_DEVICE`` names no device of this machine, ``FEDLIB_KERNEL`` no kernel.
    DataError
        The data set is missing; the message says where it should be.
    NonFiniteError
        Training diverged; the rounds before are kept.
    """
    device, stored = chosen(), _stored(spec)
    if stored is not None:
        _tell(watch, spec, stored.log)
        return stored
    home = folder(spec)
    with locked(home / ".lock", _called(spec)), one_thread():
        stored = _stored(spec)  # another process may have finished it meanwhile
        if stored is not None:
            _tell(watch, spec, stored.log)
            return stored
        sweep(home)
        log = _compute(spec, home, device, watch)
        _write(home / "result.safetensors", log, {"format": str(FORMAT)})
        for part in [*home.glob("checkpoint*"), *home.glob("log-*")]:
            part.unlink(missing_ok=True)
    return _result(spec, log)


def _called(spec: Spec) -> str:
    return f"{spec.method} on {spec.dataset}, seed {spec.seed}, run {key(spec)}"


def final(spec: Spec) -> Final:
    """Return the federation of a spec after its last round.

    From the cache, where small models are kept; else by stepping through all rounds,
    which gives the same bits as the run on the same device. In the end all of it is on
    the CPU.
    """
    device, fed = chosen(), federation(spec)
    ended = fed._replace(ctx=replace(fed.ctx, round=spec.rounds))
    found = _read(folder(spec) / "final.safetensors")
    try:
        if found is not None:
            return Final(ended, *_restored(fed, found[0]))
    except StoredError as error:
        _ignored(folder(spec) / "final.safetensors", error)
    with one_thread(), computing(device):
        after = next(islice(moved(fed, device).rounds(), spec.rounds - 1, None))
    return Final(ended, *_to(torch.device("cpu"), after.server, after.mine))


def _timing(spec: Spec) -> dict[str, float] | None:
    path = folder(spec) / "timing.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (ValueError, RecursionError):  # damaged; only a forecast needs it
        found = None
    return found if is_timing(found) else published.timing(spec, key(spec))


def seconds_per_round(spec: Spec) -> float | None:
    """Return the measured seconds of one round of a finished run, else None."""
    timing = _timing(spec)
    if timing is None:
        return None
    return timing["train_seconds_per_round"] + timing["evaluate_seconds_per_round"]


def cpu_seconds_per_round(spec: Spec) -> float | None:
    """Return the processor's seconds of one round of a finished run, else None.

    They do not depend on what else the machine did, and leave out a GPU's work. Runs of
    earlier versions have not recorded them; seconds on the clock stand in.
    """
    timing = _timing(spec) or {}
    return timing.get("cpu_seconds_per_round", seconds_per_round(spec))


def measure(spec: Spec, count: int = 2) -> float:
    """Run the first rounds of a spec, keep nothing, and return seconds per round."""
    device = chosen()
    fed = moved(federation(spec), device)
    with one_thread(), computing(device):
        begun = time.perf_counter()
        for _, after in zip(range(count), fed.rounds(), strict=False):
            fed.evaluate(after, every_rule=after.number == 1)
        return (time.perf_counter() - begun) / count


def under_way(spec: Spec) -> tuple[int, bool]:
    """Return how many rounds of a run are kept, and whether a process computes it now.

    Of a finished run, whose checkpoint is gone, that is ``(0, False)``.
    """
    home, rounds = folder(spec), 0
    try:
        with safe_open(home / "checkpoint.safetensors", "pt") as file:
            rounds = int(file.metadata()["round"])
    except (OSError, SafetensorError):  # none, or one that is being replaced
        pass
    if not (home / ".lock").exists():
        return rounds, False
    try:
        with FileLock(home / ".lock", timeout=0):
            return rounds, False
    except Timeout:
        return rounds, True
