"""What a run can continue from: its models and its log, written after every round."""

import os
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedlib.core.log import Log, Rows
from fedlib.core.method import Round
from fedlib.core.tree import Tree, flatten, restore, take
from fedlib.runs import on_disk
from fedlib.runs.address import folder
from fedlib.runs.checks import (
    StoredError,
    checked_log,
)
from fedlib.runs.federation import Federation
from fedlib.runs.spec import Spec

SEGMENT = 100  # rounds whose log is written once, and no longer with each checkpoint
KEPT_BYTES = 32 * 2**20  # of a run's last models; larger ones are made again if asked


def state_of(server: Tree, mine: Tree) -> dict[str, Tensor]:
    """Return what server and clients keep as tensors by name, on the CPU."""
    state = flatten({"server": server, "mine": mine})
    return {name: value.cpu() for name, value in state.items()}


def restored(fed: Federation, tensors: dict[str, Tensor]) -> tuple[Tree, Tree]:
    """Return server and clients of what ``state_of`` gave; one client tells the shapes.

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


class Journal:
    """What a run logs, on disk: full segments, written once, and what came since.

    So a checkpoint is as long after 10,000 rounds as after one segment. What came since
    is in the checkpoint, which also says how many segments it continues: one that is
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
        contents = [on_disk.read(path) for path in takewhile(Path.exists, paths)]
        logs = [Log.of(content[0]) for content in contents if content is not None]
        self.segments, self.sealed = segments, Rows(*logs).counts()
        self.rows = Rows(*logs, Log.of(since))
        return len(logs) == segments

    def since(self) -> dict[str, Tensor]:
        """Return what is in no segment; a full segment is written first."""
        if self.rows.counts()[0] - self.sealed[0] >= SEGMENT:
            full = self.rows.stacked(self.sealed).flat()
            on_disk.write(self._segment(self.segments), full, {})
            self.segments, self.sealed = self.segments + 1, self.rows.counts()
        return self.rows.stacked(self.sealed).flat()

    def _segment(self, number: int) -> Path:
        return self.home / f"log-{number:06d}.safetensors"


def save(home: Path, fed: Federation, after: Round, journal: Journal) -> None:
    """Write a checkpoint and keep the one before it."""
    now, before = (
        home / "checkpoint.safetensors",
        home / "checkpoint-before.safetensors",
    )
    logged = {f"log/{k}": v for k, v in journal.since().items()}
    if now.exists():
        os.replace(now, before)
    metadata = {"round": str(after.number), "segments": str(journal.segments)}
    mine = take(after.mine, slice(0, 1)) if fed.forgets else after.mine
    on_disk.write(now, state_of(after.server, mine) | logged, metadata)


def keep(home: Path, after: Round) -> None:
    """Keep the last round's models where they are small; ``final`` makes the others."""
    state = state_of(after.server, after.mine)
    if sum(v.numel() * v.element_size() for v in state.values()) <= KEPT_BYTES:
        on_disk.write(home / "final.safetensors", state, {"round": str(after.number)})


def resume(
    home: Path, fed: Federation
) -> tuple[tuple[int, Tree, Tree] | None, Journal]:
    """Return where to continue, from the newest readable checkpoint."""
    for name in ("checkpoint.safetensors", "checkpoint-before.safetensors"):
        content, journal = on_disk.read(home / name), Journal(home)
        if content is not None:
            try:
                return _continued(fed, journal, *content), journal
            except StoredError as error:
                on_disk.ignored(home / name, error)
        # a damaged one must not take the place of the one before
        (home / name).unlink(missing_ok=True)
    return None, Journal(home)


def _continued(
    fed: Federation,
    journal: Journal,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
) -> tuple[int, Tree, Tree]:
    """Return where a checkpoint continues from, and fill the journal so far.

    Raises
    ------
    StoredError
        It, or a segment of the log before it, is none of this run.
    """
    if not metadata.get("round", "").isdecimal():
        raise StoredError(f"round: got {metadata.get('round')!r}, expected a number")
    number = int(metadata["round"])
    if not 1 <= number < fed.spec.rounds:
        raise StoredError(f"round: got {number}, expected 1 to {fed.spec.rounds - 1}")
    since = {k[4:]: v for k, v in tensors.items() if k.startswith("log/")}
    segments = metadata.get("segments", "0")
    try:
        if not (segments.isdecimal() and journal.restore(int(segments), since)):
            raise StoredError(f"segments: got fewer than {segments}")
        checked_log(fed.spec, journal.rows.stacked().flat(), number)
    except (IndexError, RuntimeError):  # torch's, of no use to anyone
        raise StoredError("log: got tensors that are no rows of one log") from None
    except ValueError as error:
        raise StoredError(str(error)) from None
    return number, *restored(fed, tensors)


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
