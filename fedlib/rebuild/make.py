"""Rebuild tables and figures: missing runs first, then the notebooks that are stale."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

from fedlib.data import DataError
from fedlib.rebuild import artefacts, staleness
from fedlib.rebuild.artefacts import Artefact, prepare, select
from fedlib.rebuild.costs import Speeds, distinct, duration
from fedlib.rebuild.execute import Execute, Executed, executing, message
from fedlib.rebuild.kernels import own_kernel
from fedlib.rebuild.progress import Progress
from fedlib.runs import address, many, processes, published, runner
from fedlib.runs.compare import largest_difference
from fedlib.runs.spec import Spec
from fedlib.support.sources import where

# What an artefact uses that draws the models of a run
MODELS = str(where(runner.final))
# In place of a count, where an artefact has no runs of its own
NONE_KEPT = "; no run is kept, its notebook computes what it shows"


class Outcome(NamedTuple):
    """What happened to one artefact."""

    name: str
    status: Literal["built", "current", "failed", "planned"]
    reasons: list[str]  # why it was stale, in words
    seconds: float
    error: str = ""


def _silent(line: str) -> None:
    """Take a line and show nothing."""


def why_stale(
    name: str, preset: str, overrides: Mapping[str, Any] | None = None
) -> list[str]:
    """Return in words what changed since an artefact was built; empty when current.

    Raises
    ------
    SettingError
        Unknown artefact, preset or parameter.
    DataError
        A data set is missing.
    """
    (only,) = select([name])
    return staleness.why_stale(prepare(only, preset, overrides))


def rebuild(
    names: Sequence[str],
    preset: str,
    jobs: int | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
    recompute: bool = False,
    overrides: Mapping[str, Any] | None = None,
    cluster: str | None = None,
    echo: Callable[[str], None] = _silent,
) -> list[Outcome]:
    """Bring artefacts up to date; one that fails does not stop the others.

    Parameters
    ----------
    names : sequence of str
        Artefacts (``fedmps/table3``), papers (``fedmps``) or short names that only one
        artefact has; none for all.
    preset : str
        ``quick``, ``cpu`` or ``paper``.
    jobs : int >= 1, optional
        Processes for missing runs, and as many for notebooks; default
        ``many.jobs_of_machine()``.
    dry_run : bool
        Say why each is stale and what it would cost, and build nothing.
    force : bool
        Build also what is current.
    recompute : bool
        Build everything as if no run were published, then compare each published run
        with what was computed here; an artefact whose numbers differ has failed.
    overrides : mapping, optional
        Parameters on top of the preset's; every selected artefact must know them.
    cluster : str, optional
        Address of a Dask scheduler whose workers compute the missing runs; default
        ``FEDLIB_CLUSTER``. Notebooks are executed here.
    echo : callable
        Takes each line of progress.

    Raises
    ------
    SettingError
        Anything wrong with a name or parameter; nothing was built.
    """
    if recompute:
        with published.unread():
            outcomes = rebuild(
                names,
                preset,
                jobs,
                dry_run=dry_run,
                force=True,
                overrides=overrides,
                cluster=cluster,
                echo=echo,
            )
        return [_proven(outcome, preset, overrides, echo) for outcome in outcomes]
    jobs = many.jobs_of_machine() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, expected at least 1")
    chosen = [prepare(name, preset, overrides) for name in select(names)]
    chosen.sort(key=lambda artefact: bool(artefacts.reads(artefact)))  # those at last
    speeds = Speeds(chosen) if dry_run else None
    by_name: dict[str, Outcome] = {}
    due = [] if dry_run else _due(chosen, force)
    progress = Progress(due, jobs, echo)
    count = min(jobs, len(chosen))
    with own_kernel(notebooks=len(due)), progress, executing(count) as execute:
        started: list[_Started] = []
        for artefact in chosen:
            if artefacts.reads(artefact):
                _collect(started, by_name, progress, wait_for=True)
            begun = _begin(artefact, jobs, cluster, force, speeds, progress, execute)
            if isinstance(begun, Outcome):
                by_name[artefact.name] = begun
            else:
                started.append(begun)
            _collect(started, by_name, progress, wait_for=False)
        _collect(started, by_name, progress, wait_for=True)
    return [by_name[artefact.name] for artefact in chosen]


def _proven(
    outcome: Outcome,
    preset: str,
    overrides: Mapping[str, Any] | None,
    echo: Callable[[str], None],
) -> Outcome:
    """Compare what an artefact's runs gave here with what is published."""
    if outcome.status != "built":
        return outcome
    same, other = 0, []
    for spec in distinct(prepare(outcome.name, preset, overrides).specs):
        there = published.find(spec, address.key(spec))
        if there is None:
            continue
        here = published.compact(runner.run(spec).log)  # the cache comes first
        if largest_difference(there.log, here):
            other.append(there.key)
        else:
            same += 1
    if other:
        error = f"other numbers than published: {', '.join(other)}"
        echo(f"{outcome.name}: failed: {error}")
        return outcome._replace(status="failed", error=error)
    echo(f"{outcome.name}: {same} published runs have the same bits here")
    return outcome


class _Started(NamedTuple):
    """An artefact whose runs are done and whose notebook is executed."""

    artefact: Artefact
    now: dict[str, Any]  # what it depends on
    reasons: list[str]
    seconds: float  # on its runs
    notebook: "Future[Executed]"


def _begin(
    artefact: Artefact,
    jobs: int,
    cluster: str | None,
    force: bool,
    speeds: Speeds | None,
    progress: Progress,
    execute: Execute,
) -> "Outcome | _Started":
    """Compute the runs of a stale artefact and start its notebook.

    With ``speeds`` only say what that costs.
    """
    name, reasons, begun = artefact.name, [], time.perf_counter()
    missing: list[Spec] = []
    echo = progress.say
    try:
        now = staleness.state(artefact)
        reasons = staleness.why_stale(artefact, now)
        reasons = ["forced"] if force and not reasons else reasons
        if not reasons:
            echo(f"{name}: current")
            progress.spare(artefact)
            return Outcome(name, "current", [], time.perf_counter() - begun)
        # A published run has no models: what needs them is computed
        models = MODELS in now["sources"]
        with published.unread() if models else nullcontext():
            missing = runner.pending(distinct(artefact.specs))
        if models and len(missing) > len(runner.pending(missing)):
            echo(f"{name}: needs models, which are not published")
        count = len(distinct(artefact.specs))
        cost = f"; {len(missing)} of {count} runs missing" if count else NONE_KEPT
        if speeds is not None:
            cost += speeds.told(missing)
            echo(f"{name}: {', '.join(reasons)}{cost}")
            return Outcome(name, "planned", reasons, time.perf_counter() - begun)
        echo(f"{name}: {', '.join(reasons)}{cost if missing else ''}")
        progress.begin(missing)
        every = distinct(artefact.specs)  # finished ones tell which are the longest
        with published.unread() if models else nullcontext():
            many.run_many(every, jobs, progress.count, cluster)
    except Exception as error:  # reported with the outcome, so that the others go on
        seconds, words = time.perf_counter() - begun, message(artefact, error)
        if speeds is not None and isinstance(error, DataError):
            count = len(distinct(artefact.specs))
            echo(f"{name}: {count} runs; data missing: {words}")
            return Outcome(name, "planned", ["data missing"], seconds)
        echo(f"{name}: failed: {words}")
        progress.give_up(artefact, missing)
        return Outcome(name, "failed", reasons, seconds, words)
    seconds = time.perf_counter() - begun
    progress.execute()
    notebook = execute(artefact)
    notebook.add_done_callback(progress.executed)
    return _Started(artefact, now, reasons, seconds, notebook)


def _collect(
    started: list[_Started],
    outcomes: dict[str, Outcome],
    progress: Progress,
    *,
    wait_for: bool,
) -> None:
    """Take the outcomes of notebooks that are done, or of all when they are."""
    for one in list(started):
        if not wait_for and not one.notebook.done():
            continue
        started.remove(one)
        name = one.artefact.name
        try:
            done = one.notebook.result()
        except BrokenExecutor as error:  # a process of ours was killed
            why = f"the notebook's process died: {processes.cause(error)}"
            done = Executed([], why, 0.0)
        seconds = one.seconds + done.seconds
        if done.error:
            progress.say(f"{name}: failed: {done.error}")
            outcomes[name] = Outcome(name, "failed", one.reasons, seconds, done.error)
            continue
        staleness.stamp(one.artefact, one.now, done.written)
        folder, preset = one.artefact.folder, one.artefact.preset
        place = "" if folder == preset else f", in {artefacts.place(name, folder)}"
        progress.say(f"{name}: built in {duration(seconds)}{place}")
        outcomes[name] = Outcome(name, "built", one.reasons, seconds)


def _due(chosen: Sequence[Artefact], force: bool) -> list[Artefact]:
    """Return the artefacts that will be built, as far as can be told now."""
    due = []
    for artefact in chosen:
        try:
            reads = due and artefacts.reads(artefact)
            if force or reads or staleness.why_stale(artefact):
                due.append(artefact)
        except Exception:  # noqa: S112 - the artefact itself reports this
            continue
    return due
