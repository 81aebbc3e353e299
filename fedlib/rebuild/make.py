"""Rebuild tables and figures: missing runs first, then the notebooks that are stale."""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import pandas as pd
import papermill
from papermill.exceptions import PapermillExecutionError
from tqdm import tqdm

from fedlib.data import DataError
from fedlib.rebuild import artefacts, parameters
from fedlib.rebuild.artefacts import Artefact, prepare, select
from fedlib.rebuild.pace import Pace
from fedlib.runs import many, processes, runner
from fedlib.runs.cost import kind
from fedlib.runs.spec import Spec
from fedlib.support import paths
from fedlib.support.progress import progress_off

KERNEL = "fedlib-rebuild"
CELL_SECONDS = 3600  # longest time of one cell


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
    return artefacts.why_stale(prepare(only, preset, overrides))


def rebuild(
    names: Sequence[str],
    preset: str,
    jobs: int | None = None,
    *,
    dry_run: bool = False,
    force: bool = False,
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
    jobs = many.jobs_of_machine() if jobs is None else jobs
    if jobs < 1:
        raise ValueError(f"jobs: got {jobs}, expected at least 1")
    chosen = [prepare(name, preset, overrides) for name in select(names)]
    chosen.sort(key=lambda artefact: bool(artefacts.reads(artefact)))  # those at last
    speeds = _Speeds(chosen) if dry_run else None
    found: dict[str, Outcome] = {}
    progress = _Progress([] if dry_run else _due(chosen, force), jobs, echo)
    count = min(jobs, len(chosen))
    with own_kernel(), progress, _executing(count) as execute:
        started: list[_Started] = []
        for artefact in chosen:
            if artefacts.reads(artefact):
                _collect(started, found, progress, wait_for=True)
            begun = _begin(artefact, jobs, cluster, force, speeds, progress, execute)
            if isinstance(begun, Outcome):
                found[artefact.name] = begun
            else:
                started.append(begun)
            _collect(started, found, progress, wait_for=False)
        _collect(started, found, progress, wait_for=True)
    return [found[artefact.name] for artefact in chosen]


class _Executed(NamedTuple):
    """What became of a notebook."""

    written: list[Path]  # output files
    error: str  # in words, empty where there was none
    seconds: float


class _Started(NamedTuple):
    """An artefact whose runs are done and whose notebook is executed."""

    artefact: Artefact
    now: dict[str, Any]  # what it depends on
    reasons: list[str]
    seconds: float  # on its runs
    notebook: "Future[_Executed]"


Execute = Callable[[Artefact], "Future[_Executed]"]


@contextmanager
def _executing(jobs: int) -> Iterator[Execute]:
    """Yield what executes notebooks: with several jobs, beside the runs of the next.

    Starting a kernel takes longer than many a notebook's cells. Each has a process of
    its own, and all are ended with this one.
    """

    def here(artefact: Artefact) -> "Future[_Executed]":
        done: Future[_Executed] = Future()
        done.set_result(_executed(artefact))
        return done

    if jobs == 1:
        yield here
        return
    pool, threads = processes.Pool(), ThreadPoolExecutor(jobs)
    try:
        yield lambda artefact: threads.submit(pool.call, "", _executed, artefact)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.stop()
        threads.shutdown()


def _begin(
    artefact: Artefact,
    jobs: int,
    cluster: str | None,
    force: bool,
    speeds: "_Speeds | None",
    progress: "_Progress",
    execute: Execute,
) -> "Outcome | _Started":
    """Compute the runs of a stale artefact and start its notebook.

    With ``speeds`` only say what that costs.
    """
    name, reasons, begun = artefact.name, [], time.perf_counter()
    missing: list[Spec] = []
    echo = progress.say
    try:
        now = artefacts.state(artefact)
        reasons = artefacts.why_stale(artefact, now)
        reasons = ["forced"] if force and not reasons else reasons
        if not reasons:
            echo(f"{name}: current")
            progress.spare(artefact)
            return Outcome(name, "current", [], time.perf_counter() - begun)
        missing = runner.pending(_distinct(artefact.specs))
        cost = f"; {len(missing)} of {len(_distinct(artefact.specs))} runs missing"
        if speeds is not None:
            cost += speeds.told(missing)
            echo(f"{name}: {', '.join(reasons)}{cost}")
            return Outcome(name, "planned", reasons, time.perf_counter() - begun)
        echo(f"{name}: {', '.join(reasons)}{cost if missing else ''}")
        progress.begin(missing)
        every = _distinct(artefact.specs)  # finished ones tell which are the longest
        many.run_many(every, jobs, progress.count, cluster)
    except Exception as error:  # reported with the outcome, so that the others go on
        seconds, message = time.perf_counter() - begun, _message(artefact, error)
        if speeds is not None and isinstance(error, DataError):
            count = len(_distinct(artefact.specs))
            echo(f"{name}: {count} runs; data missing: {message}")
            return Outcome(name, "planned", ["data missing"], seconds)
        echo(f"{name}: failed: {message}")
        progress.give_up(artefact, missing)
        return Outcome(name, "failed", reasons, seconds, message)
    seconds = time.perf_counter() - begun
    progress.execute()
    notebook = execute(artefact)
    notebook.add_done_callback(progress.executed)
    return _Started(artefact, now, reasons, seconds, notebook)


def _executed(artefact: Artefact) -> _Executed:
    """Execute a notebook; an error is told in words, which pass between processes."""
    begun = time.perf_counter()
    try:
        written, error = _execute(artefact), ""
    except Exception as failure:
        written, error = [], _message(artefact, failure)
    return _Executed(written, error, time.perf_counter() - begun)


def _collect(
    started: list[_Started],
    found: dict[str, Outcome],
    progress: "_Progress",
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
            done = _Executed([], why, 0.0)
        seconds = one.seconds + done.seconds
        if done.error:
            progress.say(f"{name}: failed: {done.error}")
            found[name] = Outcome(name, "failed", one.reasons, seconds, done.error)
            continue
        artefacts.stamp(one.artefact, one.now, done.written)
        progress.say(f"{name}: built in {duration(seconds)}")
        found[name] = Outcome(name, "built", one.reasons, seconds)


def _due(chosen: Sequence[Artefact], force: bool) -> list[Artefact]:
    """Return the artefacts that will be built, as far as can be told now."""
    found = []
    for artefact in chosen:
        try:
            reads = found and artefacts.reads(artefact)
            if force or reads or artefacts.why_stale(artefact):
                found.append(artefact)
        except Exception:  # the artefact itself reports this
            continue
    return found


class _Progress:
    """How many of all missing runs are done, and how long everything may still take.

    A bar where somebody watches, else a line now and then; a thread of its own keeps
    both going while something long is computed.
    """

    EVERY = 30  # seconds between two lines
    TICK = 1.0  # seconds between two looks at the clock
    BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} rounds [{elapsed}]"

    def __init__(self, due: Sequence[Artefact], jobs: int, echo: Callable[[str], None]):
        self._echo = echo
        self._due = {artefact.name for artefact in due}
        every = _distinct([spec for artefact in due for spec in artefact.specs])
        missing = _missing(every)
        self.runs, self.done = len(missing), 0
        self.bar = tqdm(
            total=sum(spec.rounds for spec in missing),
            bar_format=self.BAR,
            leave=False,
            disable=progress_off(),
        )
        self.told = time.perf_counter()
        self.pace = Pace(missing, len(due), jobs, self.told)
        for spec, seconds in _timed(every, missing):
            self.pace.learn(spec, seconds)
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._watch = threading.Thread(target=self._watching, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()
        self.bar.close()

    def _watching(self) -> None:
        while not self._ended.wait(self.TICK):
            with self._lock:
                if self.pace.left(time.perf_counter()) is not None:
                    self._show()

    def say(self, line: str) -> None:
        """Show a line without damage to the bar."""
        with tqdm.external_write_mode():
            self._echo(line)

    def begin(self, specs: Sequence[Spec]) -> None:
        """Take runs as begun, one after the other in each process."""
        with self._lock:
            self.pace.run(len(specs), time.perf_counter())

    def count(self, spec: Spec) -> None:
        """Take a run as done."""
        seconds = (runner.seconds_per_round(spec) or 0.0) * spec.rounds
        with self._lock:
            self.pace.ran(spec, seconds, time.perf_counter())
            self.done += 1
            self.bar.update(spec.rounds)
            self._show()

    def give_up(self, artefact: Artefact, specs: Sequence[Spec]) -> None:
        """Take what has failed off the list: runs, and the artefact with them."""
        with self._lock:
            self.pace.give_up(specs)
        self.spare(artefact)

    def spare(self, artefact: Artefact) -> None:
        """Take the notebook of an artefact off the list."""
        with self._lock:
            if artefact.name in self._due:
                self.pace.spare()

    def execute(self) -> None:
        """Take a notebook as begun, or waiting for a process."""
        with self._lock:
            self.pace.execute(time.perf_counter())

    def executed(self, notebook: "Future[_Executed]") -> None:
        """Take a notebook as executed."""
        if notebook.cancelled():
            return
        seconds = 0.0 if notebook.exception() else notebook.result().seconds
        with self._lock:
            self.pace.executed(seconds, time.perf_counter())

    def _show(self) -> None:
        """Bring the bar up to date, or tell a line if the last one was long ago."""
        now = time.perf_counter()
        left = self.pace.left(now)
        text = f"run {self.done} of {self.runs}"
        if left:
            text += f", about {duration(left)} left"
        self.bar.set_description_str(text)
        if self.bar.disable and now - self.told > self.EVERY:
            self.told = now
            self._echo(f"  {text}")


def _missing(specs: Sequence[Spec]) -> list[Spec]:
    """Return the runs that are not on disk; those without data are left out."""
    found = []
    for spec in specs:
        try:
            found += runner.pending([spec])
        except DataError:
            continue  # the artefact itself reports this
    return found


def _timed(
    specs: Sequence[Spec], missing: Sequence[Spec]
) -> Iterator[tuple[Spec, float]]:
    """Yield the runs that are on disk, with their seconds."""
    absent = {_text(spec) for spec in missing}
    for spec in specs:
        if _text(spec) in absent:
            continue
        try:
            seconds = runner.seconds_per_round(spec)
        except DataError:
            continue
        if seconds is not None:
            yield spec, seconds * spec.rounds


def _text(spec: Spec) -> str:
    return spec.model_dump_json()


@contextmanager
def own_kernel() -> Iterator[None]:
    """Let Jupyter find a kernel of this interpreter and this fedlib, before any other.

    Folders given relative to the working directory are made absolute, because
    notebooks run in their own folder.
    """
    before = os.environ.get("JUPYTER_PATH")
    environment = {
        "PYTHONPATH": os.pathsep.join(
            [str(paths.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # as setup() says
        "FEDLIB_JOBS": os.environ.get("FEDLIB_JOBS", "1"),  # others run beside it
        "FEDLIB_CACHE": str(paths.cache_dir().resolve()),
        "FEDLIB_FIGURES": str(paths.figures_dir()),
    }
    if os.environ.get("FEDLIB_DATA"):
        environment["FEDLIB_DATA"] = str(paths.data_dirs()[0])
    spec = {
        "argv": [
            *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
            "--IPKernelApp.log_level=ERROR",
        ],
        "display_name": "fedlib",
        "language": "python",
        "env": environment,
    }
    with tempfile.TemporaryDirectory(prefix="fedlib-kernel-") as folder:
        home = Path(folder) / "kernels" / KERNEL
        home.mkdir(parents=True)
        (home / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            yield
        finally:
            if before is None:
                del os.environ["JUPYTER_PATH"]
            else:
                os.environ["JUPYTER_PATH"] = before


def _execute(artefact: Artefact) -> list[Path]:
    """Execute a notebook and return the output files that it wrote."""
    executed = paths.cache_dir().resolve() / "executed" / artefact.preset
    executed = executed / f"{artefact.name}.ipynb"
    executed.parent.mkdir(parents=True, exist_ok=True)
    before = _marks(artefact)
    papermill.execute_notebook(
        artefact.notebook,
        executed,
        parameters.plain(artefact.parameters),
        kernel_name=KERNEL,
        language="python",
        progress_bar=False,
        cwd=artefact.notebook.parent,
        execution_timeout=CELL_SECONDS,
    )
    after = _marks(artefact)
    written = [path for path, mark in after.items() if before.get(path) != mark]
    if not written:
        raise FileNotFoundError(
            f"the notebook wrote no {artefact.preset}/{artefact.name}.* figure or table"
        )
    return written


def _marks(artefact: Artefact) -> dict[Path, tuple[int, int]]:
    """Return what tells a rewritten output file from an untouched one."""
    files = artefacts.outputs(artefact.name, artefact.preset)
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def _message(artefact: Artefact, error: Exception) -> str:
    """Return one line; for an error in a cell, with the cell's number."""
    if isinstance(error, PapermillExecutionError):
        content = parameters.read(artefact.notebook)
        tagged = parameters.tagged_cell(artefact.notebook, content)
        place = error.cell_index - (error.cell_index > tagged)  # one cell was injected
        number = sum(c.cell_type == "code" for c in content.cells[: place + 1])
        text = f"code cell {number}: {error.ename}: {error.evalue}"
    elif isinstance(error, ExceptionGroup):  # of runs, each named
        text = error.message
    elif isinstance(error, DataError | ValueError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())


def _distinct(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs without repetitions."""
    return list({_text(spec): spec for spec in specs}.values())


class _Speeds:
    """Seconds per round of runs of a kind."""

    def __init__(self, chosen: Sequence[Artefact]):
        self.known: dict[str, float] = {}
        for artefact in chosen:
            for spec in _distinct(artefact.specs):
                try:
                    seconds = runner.seconds_per_round(spec)
                except DataError:
                    continue  # the artefact itself reports this
                if seconds is not None:
                    self.known[kind(spec)] = seconds

    def told(self, specs: Sequence[Spec]) -> str:
        """Return in words what runs cost, without measuring any."""
        timed = [spec for spec in specs if kind(spec) in self.known]
        words = f", about {duration(self.seconds(timed))}" if timed else ""
        if len(timed) < len(specs):
            words += f"; {len(specs) - len(timed)} of a kind never timed here"
            words += " (fedlib estimate times them)"
        return words

    def seconds(self, specs: Sequence[Spec]) -> float:
        """Return the seconds of whole runs; one of an unknown kind is measured."""
        total = 0.0
        for spec in specs:
            of = kind(spec)
            if of not in self.known:
                self.known[of] = runner.measure(spec)
            total += spec.rounds * self.known[of]
        return total


def estimate(
    names: Sequence[str], preset: str, overrides: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Return what the missing runs of artefacts cost in one process on this machine.

    Returns
    -------
    DataFrame
        ``name``, ``runs``, ``cached``, ``missing``, ``no_data`` (runs whose data set is
        not here, counted nowhere else), ``rounds`` and ``seconds`` of the missing runs.
        The speed is that of a finished run of the same kind, else of two rounds that
        are run for it.

    Raises
    ------
    SettingError
        Anything wrong with a name or parameter.
    """
    chosen = [prepare(name, preset, overrides) for name in select(names)]
    speeds, rows = _Speeds(chosen), []
    for artefact in chosen:
        specs = _distinct(artefact.specs)
        missing, no_data = [], 0
        for spec in specs:
            try:
                missing += runner.pending([spec])
            except DataError:
                no_data += 1
        counts = (len(specs) - len(missing) - no_data, len(missing), no_data)
        rounds = sum(spec.rounds for spec in missing)
        rows.append(
            (artefact.name, len(specs), *counts, rounds, speeds.seconds(missing))
        )
    columns = ["name", "runs", "cached", "missing", "no_data", "rounds", "seconds"]
    return pd.DataFrame(rows, columns=columns)


def duration(seconds: float) -> str:
    """Return seconds for people: ``8 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
