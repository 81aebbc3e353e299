"""The campaign: many artefacts' runs, in the order of what they tell per hour.

``params/campaign.yaml`` lists batches; a batch is an artefact's runs at the preset
``cpu``, with parameters on top. What a run tells is counted in printed numbers: whole
ones that it has the whole budget of, parts of those of which it cuts the budget or that
it has in the released reading, and what its batch says a run is worth beyond them. The
first seed of a setting tells most, the second half of that.
"""

import os
import threading
from _thread import interrupt_main
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedlib.data import DataError
from fedlib.papers import TABLES, budget
from fedlib.rebuild.artefacts import prepare
from fedlib.rebuild.costs import text_of
from fedlib.rebuild.our_runs import Printed, printed_accuracies
from fedlib.runs import address, checkpoints, many, published, runner, timings
from fedlib.runs.cost import Costs, likeness
from fedlib.runs.device import chosen
from fedlib.runs.spec import SettingError, Spec, suggestion
from fedlib.support import paths

PRESET = "cpu"
CUT = 0.25  # of a printed number, where a run cuts its budget
RELEASED = 0.5  # where it is of the released reading
NICE = 19  # the least urgent

Cell = tuple[str, str, int]  # paper, table, row of its reference file
State = Literal["done", "running", "begun", "missing", "no data"]


class Batch(BaseModel):
    """Runs of an artefact at the preset ``cpu``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    artefact: str
    parameters: dict[str, Any] = {}
    worth: float = Field(0.0, ge=0)  # of a run, in printed numbers, beyond its own


class Planned(NamedTuple):
    """A run of the campaign."""

    spec: Spec
    batches: list[str]
    cells: Mapping[Cell, float]  # the printed numbers it is of, and how much of each
    worth: float
    state: State
    rounds: int  # that are done
    seconds: float  # that one process still needs for it


def batches(names: Sequence[str] = ()) -> list[Batch]:
    """Return the campaign's batches, or those of some names.

    Raises
    ------
    SettingError
        An unknown name (the closest is suggested), or a batch that is not as ``Batch``.
    """
    content = yaml.safe_load((paths.PARAMS / "campaign.yaml").read_text("utf-8"))
    by_name = {}
    for name, fields in content.items():
        try:
            by_name[name] = Batch(**{"name": name, "artefact": name, **(fields or {})})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise SettingError(f"{name}: {where}: {first['msg']}") from error
    for name in names:
        if name not in by_name:
            hint = suggestion(name, list(by_name))
            raise SettingError(f"batch: got {name!r}; {hint}")
    return [by_name[name] for name in names or by_name]


def specs_of(batch: Batch) -> list[Spec]:
    """Return a batch's runs, each once."""
    specs = prepare(batch.artefact, PRESET, batch.parameters).specs
    return list({text_of(spec): spec for spec in specs}.values())


def _cells(spec: Spec, cells: Sequence[Printed]) -> dict[Cell, float]:
    """Return whose printed numbers a run is, and how much of each it tells."""
    worth = {}
    for cell in cells:
        for full, share in ((cell.own, 1.0), (cell.released, RELEASED)):
            cut = None if full is None else budget.cut(spec, full)
            if cut is not None:
                at = cell.paper, cell.table, cell.row
                worth[at] = max(worth.get(at, 0.0), share * (CUT if cut else 1))
    return worth


def _state(spec: Spec) -> tuple[State, int]:
    """Return what became of a run, and how many of its rounds are kept."""
    try:
        if not runner.pending([spec]):
            return "done", spec.rounds
        rounds, running = checkpoints.under_way(spec)
    except DataError:
        return "no data", 0
    return "running" if running else "begun" if rounds else "missing", rounds


def _pace(spec: Spec) -> float | None:
    """Return the seconds of a round of a finished run, whatever else ran beside it.

    A processor's seconds say that; a GPU's work is not in them.
    """
    if chosen().type == "cpu":
        return timings.cpu_seconds_per_round(spec)
    return timings.seconds_per_round(spec)


def plan(asked: Sequence[Batch]) -> list[Planned]:
    """Return the runs of batches, each once, in the order of the batches."""
    members: dict[str, list[Batch]] = {}
    specs: dict[str, Spec] = {}
    for batch in asked:
        for spec in specs_of(batch):
            members.setdefault(text_of(spec), []).append(batch)
            specs[text_of(spec)] = spec
    states = {text: _state(spec) for text, spec in specs.items()}
    costs = Costs()
    for text, spec in specs.items():
        pace = _pace(spec) if states[text][0] == "done" else None
        if pace is not None:
            costs.learn(spec, pace * spec.rounds)
    by_method: dict[tuple[str, str], list[Printed]] = {}
    for cell in printed_accuracies():
        by_method.setdefault((cell.own.dataset, cell.own.method), []).append(cell)
    known: dict[str, dict[Cell, float]] = {}  # of runs that differ in their seeds
    planned = []
    for text, spec in specs.items():
        setting = spec.model_dump_json(exclude=budget.FREE)
        if setting not in known:
            near = by_method.get((spec.dataset, spec.method), [])
            known[setting] = _cells(spec, near)
        state, rounds = states[text]
        left = 1 - rounds / spec.rounds
        planned.append(
            Planned(
                spec,
                [batch.name for batch in members[text]],
                known[setting],
                max(batch.worth for batch in members[text]),
                state,
                rounds,
                left * costs.expected(likeness(spec)),
            )
        )
    return planned


def ordered(runs: Sequence[Planned]) -> list[Planned]:
    """Return the runs that can be computed, what tells most per hour first.

    A run tells ``1 / n`` of what it would tell alone, where it is the nth seed of its
    setting, those that are done or under way before all others.
    """
    seen: Counter[str] = Counter()
    gains = []
    first = sorted(runs, key=lambda run: run.state not in ("done", "running", "begun"))
    for run in first:
        setting = run.spec.model_dump_json(exclude=budget.FREE)
        seen[setting] += 1
        if run.state in ("running", "begun", "missing"):
            alone = sum(run.cells.values()) + run.worth
            gains.append((alone / seen[setting] / max(run.seconds, 1e-9), run))
    # what another process computes comes last, when it may be done
    gains.sort(key=lambda pair: (pair[1].state == "running", -pair[0]))
    return [run for _, run in gains]


def status(runs: Sequence[Planned], by: Literal["batch", "paper"]) -> pd.DataFrame:
    """Return how far the campaign is.

    Parameters
    ----------
    runs : sequence of Planned
    by : "batch" or "paper"
        A row for each; a batch's runs that another batch has as well count in both.

    Returns
    -------
    DataFrame
        ``batch`` or ``paper``; ``printed``, the printed accuracies that its runs are
        of, and ``full``, ``cut``, those that a finished run has at the whole budget,
        or at less; ``runs`` and how many of them are ``done``, ``running``, ``begun``
        (with a checkpoint), ``missing``, or have ``no data`` here; ``hours``, which one
        process of its own core still needs at the pace of finished runs.
    """
    first = (run.batches[0] for run in runs) if by == "batch" else TABLES
    groups: dict[str, list[Planned]] = {name: [] for name in first}
    for run in runs:
        of = {paper for paper, _, _ in run.cells} or {"none"}
        for name in run.batches if by == "batch" else sorted(of):
            groups.setdefault(name, []).append(run)
    rows = []
    for name, part in ((name, part) for name, part in groups.items() if part):
        cells = _counted(part, name if by == "paper" else None)
        counts = Counter(run.state for run in part)
        words = ("done", "running", "begun", "missing", "no data")
        hours = sum(run.seconds for run in part if run.state != "no data") / 3600
        rows.append(
            {by: name, **cells, "runs": len(part)}
            | {word: counts[word] for word in words}
            | {"hours": round(hours, 2)}
        )
    return pd.DataFrame(rows)


def _counted(runs: Sequence[Planned], paper: str | None) -> dict[str, int]:
    """Return how many printed numbers runs are of, and how many are had."""
    cells, full, cut = set(), set(), set()
    for run in runs:
        for cell, share in run.cells.items():
            if paper in (None, cell[0]):
                cells.add(cell)
                if run.state == "done":
                    (full if share in (1.0, RELEASED) else cut).add(cell)
    return {"printed": len(cells), "full": len(full), "cut": len(cut - full)}


@contextmanager
def _within(hours: float | None) -> Iterator[Callable[[], bool]]:
    """Interrupt this process as Ctrl-C does after some hours; say whether it did."""
    over = threading.Event()

    def stop() -> None:
        over.set()
        interrupt_main()

    timer = None if hours is None else threading.Timer(3600 * hours, stop)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield over.is_set
    finally:
        if timer is not None:
            timer.cancel()


def run(
    asked: Sequence[Batch],
    jobs: int | None = None,
    hours: float | None = None,
    echo: Callable[[str], None] = print,
) -> bool:
    """Compute the missing runs of batches, and publish each when it is done.

    This process and those it starts take the lowest priority. Runs that are cut off
    keep their checkpoints, and the next call continues from there.

    Parameters
    ----------
    asked : sequence of Batch
    jobs : int >= 1, optional
        Processes; default ``many.jobs_of_machine()``.
    hours : float > 0, optional
        After which it ends; default when all is done.
    echo : callable
        Takes each line of progress.

    Returns
    -------
    bool
        Whether every run that was asked for is done.

    Raises
    ------
    KeyboardInterrupt
        By the user.
    """
    runs = plan(asked)
    for done in runs:
        if done.state == "done":
            _publish(done.spec, echo)
    waiting = ordered(runs)
    if not waiting:
        echo("nothing is missing")
        return True
    os.nice(NICE)
    echo(f"{len(waiting)} runs, at the lowest priority (nice {os.nice(0)})")
    left = len(waiting)

    def after(spec: Spec) -> None:
        nonlocal left
        left -= 1
        echo(f"{spec.method} on {spec.dataset}, seed {spec.seed}: done, {left} left")
        _publish(spec, echo)

    specs = [planned.spec for planned in waiting]
    with _within(hours) as over:
        try:
            many.run_many(specs, jobs, after, in_order=True)
        except ExceptionGroup as failed:
            echo(failed.message)
            return False
        except KeyboardInterrupt:
            if not over():
                raise
            echo(f"{hours:g} h are over, {left} runs left. {many.GO_ON}")
            return False
    return True


def _publish(spec: Spec, echo: Callable[[str], None]) -> None:
    """Publish a finished run; one that cannot be ends no other."""
    try:
        key = address.key(spec)
        if not published.has(spec, key):
            published.publish(key)
    except Exception as error:
        echo(f"not published: {spec.method}, seed {spec.seed}: {error!r}")
