"""Runs: from a spec to a result on disk, computed once.

``run`` returns a finished result from the cache, continues from the last checkpoint
of one that was cut off, or computes it. A result is found by a hash of the spec, the
data and the code it depends on. All writes are atomic.
"""

import json
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fedlib.core.log import Log, Rows
from fedlib.core.method import Round, draw_cohort
from fedlib.core.net import State
from fedlib.core.tree import Tree, tree_map
from fedlib.runs import checkpoints, on_disk, own, published
from fedlib.runs.address import code_of, folder, identity, key
from fedlib.runs.checks import (
    StoredError,
    checked_log,
    checked_record,
)
from fedlib.runs.device import chosen, computing, describe, kernel, moved
from fedlib.runs.federation import Federation, federation
from fedlib.runs.on_disk import FORMAT
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.runs.watching import Watch, by_round, runs_away
from fedlib.support.files import locked, sweep
from fedlib.support.progress import progress_bar, silent


def _result(spec: Spec, log: dict[str, Tensor]) -> Result:
    """Return a result whose log has one order, whether computed or read."""
    return Result(spec, key(spec), Log.of(dict(sorted(log.items()))))


def _stored(spec: Spec) -> Result | None:
    path = folder(spec) / "result.safetensors"
    content = on_disk.read(path)
    if content is not None:
        try:
            _check_beside(spec, path.with_name("spec.json"))
            if content[1] != {"format": str(FORMAT)}:
                raise StoredError(f"format: got {content[1]}, expected {FORMAT}")
            checked_log(spec, content[0])
            return _result(spec, content[0])
        except StoredError as error:
            on_disk.ignored(path, error)
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


def _to(device: torch.device, *trees: Tree) -> list[Tree]:
    return [tree_map(lambda leaf: leaf.to(device), tree) for tree in trees]


def _note(rows: Rows, fed: Federation, after: Round) -> None:
    """Log a round, and its evaluation where it has one."""
    spec, number = fed.spec, after.number
    sent = {name: torch.tensor(size) for name, size in after.sent.items()}
    rows.add(Log(torch.tensor(after.cohort), after.terms, after.watched, sent))
    if number % spec.eval_every == 0 or number == spec.rounds:
        every_rule = number % spec.all_rules_every == 0 or number == spec.rounds
        evaluation = Log.of(fed.evaluate(after, every_rule=every_rule))
        rows.add(evaluation._replace(evaluated=torch.tensor(number)))


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
        for number, numbers in by_round(Result(spec, "", log), first):
            watch(number, numbers)


def _compute(
    spec: Spec, home: Path, device: torch.device, watch: Watch | None
) -> dict[str, Tensor]:
    fed = federation(spec)
    own.check_net(fed.ctx.net)
    if not fed.test.sizes().any():
        raise ValueError(
            f"clients: got {spec.clients}, of whom none gets a test sample "
            f"({len(fed.test.y)} in all); expected fewer"
        )
    start, journal = checkpoints.resume(home, fed)
    rows, done = journal.rows, start[0] if start else 0
    if start:
        _tell(watch, spec, rows.stacked())
    if start:
        start = (done, *_to(device, *start[1:]))
    fed = moved(fed, device)
    seconds, kept_bytes, away = {"train": 0.0, "evaluate": 0.0}, {}, False
    worked = time.process_time()
    stepping = fed.rounds(start)
    del start  # the clients' models of then
    bar = progress_bar(
        total=spec.rounds,
        initial=done,
        desc=f"{spec.method} {spec.dataset} {spec.seed}",
        unit="round",
        mininterval=1.0,
        leave=False,
    )
    with computing(device), bar:
        for number in range(done + 1, spec.rounds + 1):
            begun = time.perf_counter()
            after = next(stepping)
            trained = time.perf_counter()
            before = rows.counts()
            _note(rows, fed, after)
            warning = "" if away or silent() else runs_away(after)
            if warning:
                away = True
                tqdm.write(f"{_called(spec)}: {warning}", file=sys.stderr)
            seconds["train"] += trained - begun
            seconds["evaluate"] += time.perf_counter() - trained
            if number < spec.rounds:
                checkpoints.save(home, fed, after, journal)
            else:
                checkpoints.keep(home, after)
                kept_bytes = fed.kept_bytes(after)
            del after  # before the next round makes the models anew
            if watch is not None:
                _tell(watch, spec, rows.stacked(before), number)
            bar.update()
    count = max(1, spec.rounds - done)
    timing = {f"{k}_seconds_per_round": v / count for k, v in seconds.items()}
    timing["cpu_seconds_per_round"] = (time.process_time() - worked) / count
    on_disk.write_table(home / "timing.json", timing)
    record = identity(spec) | {
        "sources": code_of(spec).parts,
        "deviations": fed.partition.deviations,
        "device": describe(device),
        "kernel": kernel(),
        "kept_bytes": kept_bytes,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    on_disk.write_table(home / "spec.json", record)
    return rows.stacked().flat()


def run(spec: Spec, watch: Watch | None = None) -> Result:
    """Return the result of a spec: from the cache, as published, or computed.

    A run that was cut off continues from its last round, with the same bits as an
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
        on_disk.write(home / "result.safetensors", log, {"format": str(FORMAT)})
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
    content = on_disk.read(folder(spec) / "final.safetensors")
    try:
        if content is not None:
            return Final(ended, *checkpoints.restored(fed, content[0]))
    except StoredError as error:
        on_disk.ignored(folder(spec) / "final.safetensors", error)
    with one_thread(), computing(device):
        after = next(islice(moved(fed, device).rounds(), spec.rounds - 1, None))
    return Final(ended, *_to(torch.device("cpu"), after.server, after.mine))


def measure(spec: Spec, count: int = 2) -> float:
    """Run the first rounds of a spec, keep nothing, and return seconds per round."""
    device = chosen()
    fed = moved(federation(spec), device)
    with one_thread(), computing(device):
        begun = time.perf_counter()
        for _, after in zip(range(count), fed.rounds(), strict=False):
            fed.evaluate(after, every_rule=after.number == 1)
        return (time.perf_counter() - begun) / count
