"""Many runs: each stands alone, on the cores of this machine or on a cluster's.

A run that raises, or whose worker is killed, ends no other. A killed worker's run is
tried once more and continues from its checkpoint; what has failed is raised in the
end, all together. The longest runs begin first, so that none is waited for alone,
unless the caller knows better.
"""

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import joblib
import torch

from fedlib.runs import address, processes, runner, timings, worker
from fedlib.runs.cost import Costs, likeness
from fedlib.runs.device import chosen, of_process
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.runs.stored import names_of_others
from fedlib.support.paths import cache_dir, data_dirs, results_dir
from fedlib.support.progress import progress_bar

JOB_BYTES = 2 * 2**30  # a job's memory: a run, a notebook's kernel and what feeds it
TRIES = 2  # of a run whose worker is killed
GO_ON = (
    "Finished runs are kept, and checkpoints of the others: the same command or cell "
    "goes on from there."
)

POOL = processes.Pool()  # its processes are kept from one call to the next


def jobs_of_machine() -> int:
    """Return how many processes share this machine: ``FEDLIB_JOBS``, else its cores.

    That is those that this process may use, as long as memory has 2 GiB for each. On
    GPUs, which more would crowd, it is one for each; where ``FEDLIB_DEVICE`` names one
    GPU, it is 1.

    Raises
    ------
    ValueError
        ``FEDLIB_JOBS`` is no number of processes.
    """
    if given := os.environ.get("FEDLIB_JOBS"):
        if not (given.strip().isdecimal() and 0 < int(given[:6]) < 10_000):
            raise ValueError(f"FEDLIB_JOBS: got {given!r}, expected 1, 2, ...")
        return int(given)
    device = chosen()
    if device.type != "cpu":
        return max(1, torch.cuda.device_count()) if device.index is None else 1
    cores = joblib.cpu_count()
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):  # not on Windows
        return cores
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores, memory // JOB_BYTES))


class Worker(NamedTuple):
    """What computes one run at a time."""

    name: str
    host: str = ""  # those of one host find each other's checkpoints
    mark: str = ""  # another one after a restart


@dataclass(eq=False)
class Task:
    """A missing run, and what became of it so far."""

    spec: Spec
    key: str
    seconds: float  # expected
    died: list[Worker] = field(default_factory=list)  # while they computed it
    refused: dict[Worker, str] = field(default_factory=dict)  # why they do not take it

    def __str__(self) -> str:
        """Return what tells this run from others."""
        spec = self.spec
        return f"{spec.method} on {spec.dataset}, seed {spec.seed}, key {self.key}"


class Ended(NamedTuple):
    """What a worker said of a task; no answer where it died."""

    task: Task
    who: Worker
    answer: worker.Answer | None
    death: str = ""  # in words


class Engine(Protocol):
    """Workers: processes of this machine, or a cluster's."""

    def workers(self) -> list[Worker]:
        """Return all workers that are there now."""
        ...

    def start(self, task: Task, who: Worker) -> None:
        """Give a task to a worker that has none."""
        ...

    def ended(self) -> list[Ended]:
        """Return what has ended, after a second at most where nothing has."""
        ...

    def close(self) -> None:
        """Let workers go; those that have a task are stopped."""
        ...


class Processes:
    """Processes of this machine; they share the cache and, in turn, its GPUs."""

    def __init__(self, jobs: int):
        names = [f"process {number}" for number in range(1, jobs + 1)]
        self._devices = {Worker(n): of_process(i) for i, n in enumerate(names)}
        self._threads = ThreadPoolExecutor(jobs)
        self._running: dict[Future, tuple[Task, Worker]] = {}

    def workers(self) -> list[Worker]:
        """Return one worker for each job."""
        return list(self._devices)

    def start(self, task: Task, who: Worker) -> None:
        """Give a task to a process."""
        device = self._devices[who]
        given = (task.spec.model_dump_json(), task.key, variables(device))
        future = self._threads.submit(POOL.call, device, worker.here, *given)
        self._running[future] = task, who

    def ended(self) -> list[Ended]:
        """Wait for a task."""
        done, _ = wait(self._running, timeout=1, return_when=FIRST_COMPLETED)
        tasks = []
        for future in done:
            task, who = self._running.pop(future)
            error = future.exception()
            if isinstance(error, processes.GONE):
                tasks.append(Ended(task, who, None, processes.cause(error)))
            else:
                tasks.append(Ended(task, who, future.result()))
        return tasks

    def close(self) -> None:
        """Keep processes for the next call, or kill them where one has a task."""
        if self._running:
            POOL.stop()
        self._threads.shutdown()


def variables(device: str) -> dict[str, str]:
    """Return the settings that processes of this machine share, with absolute paths."""
    own = {k: v for k, v in os.environ.items() if k.startswith("FEDLIB_")}
    if own.get("FEDLIB_DATA"):
        own["FEDLIB_DATA"] = str(data_dirs()[0])
    return own | {
        "FEDLIB_CACHE": str(cache_dir().resolve()),
        "FEDLIB_RESULTS": str(results_dir() or "none"),
        "FEDLIB_DEVICE": device,
        "FEDLIB_PROGRESS": "none",  # the caller tells
    }


def run_many(
    specs: Iterable[Spec],
    jobs: int | None = None,
    after: Callable[[Spec], None] | None = None,
    cluster: str | None = None,
    *,
    in_order: bool = False,
) -> list[Result]:
    """Return the results of many specs, computing the missing ones, longest first.

    Parameters
    ----------
    jobs : int >= 1, optional
        Processes on this machine, one thread each; default ``jobs_of_machine()``. With
        one, runs are computed in this process. The results do not depend on it.
    after : callable, optional
        Takes the spec of each missing run when it is done, in place of a progress bar.
    cluster : str, optional
        Address of a Dask scheduler whose workers compute in place of this machine's
        cores; default ``FEDLIB_CLUSTER``. What they send back is stored here.
    in_order : bool
        Begin the runs in the order of ``specs``.

    Raises
    ------
    ExceptionGroup
        Runs have failed; all others are done. The message names each failed one.
    ValueError
        ``jobs`` is out of range, or no scheduler answers at ``cluster``.
    """
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: got {jobs}, expected at least 1")
    specs = list(specs)  # read twice, which an iterator can be but once
    tasks, failed = _tasks(specs, in_order)
    count = len(tasks) + len(failed)
    bar = progress_bar(after is not None or not tasks, total=len(tasks), unit="run")
    try:
        with bar, closing(_computed(tasks, jobs, cluster)) as computed:
            for task, error in computed:
                bar.update()
                if error is not None:
                    failed.append((str(task), error))
                elif after is not None:
                    after(task.spec)
    except KeyboardInterrupt as stop:
        stop.add_note(GO_ON)
        raise
    if failed:
        message = [f"{len(failed)} of {count} runs failed, the others are done"]
        for name, error in failed:
            message.append(f"{name}: {type(error).__name__}: {error}")
        raise ExceptionGroup("\n- ".join(message), [error for _, error in failed])
    return [runner.run(spec) for spec in specs]


def _tasks(
    specs: Sequence[Spec], in_order: bool = False
) -> tuple[list[Task], list[tuple[str, Exception]]]:
    """Return the missing runs, longest first, and those that cannot be looked for."""
    waiting: dict[str, Task] = {}
    failed: dict[str, tuple[str, Exception]] = {}
    costs, done = Costs(), set()
    for spec in specs:
        text = spec.model_dump_json()
        if text in failed or text in done or text in waiting:
            continue
        try:
            if runner.pending([spec]):
                waiting[text] = Task(spec, address.key(spec), 0.0)
                continue
        except Exception as error:  # such as data that are not here
            name = f"{spec.method} on {spec.dataset}, seed {spec.seed}, no key"
            failed[text] = name, error
            continue
        done.add(text)
        seconds = timings.seconds_per_round(spec)
        if seconds is not None:
            costs.learn(spec, seconds * spec.rounds)
    tasks = list(waiting.values())
    for task in tasks:
        task.seconds = costs.expected(likeness(task.spec))
    if not in_order:
        tasks.sort(key=lambda task: -task.seconds)
    return tasks, list(failed.values())


Outcomes = Generator[tuple[Task, Exception | None], None, None]


def _computed(tasks: list[Task], jobs: int | None, cluster: str | None) -> Outcomes:
    """Compute runs, and yield each when it has ended, with its error if it failed."""
    if not tasks:
        return
    engine = _cluster(cluster)
    if engine is None:
        jobs = jobs_of_machine() if jobs is None else jobs
        if jobs == 1:
            yield from _in_this_process(tasks)
            return
        engine = Processes(min(jobs, len(tasks)))
    try:
        yield from _spread(tasks, engine)
    finally:
        engine.close()


def _cluster(address: str | None) -> Engine | None:
    """Return the workers of a scheduler; None where no address is given."""
    address = address or os.environ.get("FEDLIB_CLUSTER")
    if not address:
        return None
    from fedlib.runs.cluster import Cluster  # Dask takes a second to import

    return Cluster(address)


def reach(cluster: str | None) -> None:
    """Refuse an address of a cluster where no scheduler answers.

    Raises
    ------
    ValueError
        No scheduler answers at ``cluster``, by default ``FEDLIB_CLUSTER``.
    """
    engine = _cluster(cluster)
    if engine is not None:
        engine.close()


def _in_this_process(tasks: Iterable[Task]) -> Outcomes:
    for task in tasks:
        try:
            runner.run(task.spec)
        except Exception as error:
            yield task, error
        else:
            yield task, None


def _spread(tasks: Iterable[Task], engine: Engine) -> Outcomes:
    """Let workers compute, one task each at a time, as long as there are tasks."""
    waiting, busy, reported = list(tasks), set(), set()
    place = {task.key: number for number, task in enumerate(waiting)}
    while waiting or busy:
        there = engine.workers()
        for who in there:
            task = None if who in busy else _next(waiting, who)
            if task is not None:
                waiting.remove(task)
                busy.add(who)
                engine.start(task, who)
        for task in [t for t in waiting if there and t.refused.keys() >= {*there}]:
            waiting.remove(task)
            why = "; ".join(f"{w.name}: {text}" for w, text in task.refused.items())
            yield task, RuntimeError(f"refused by every worker: {why}")
        for task, who, answer, death in engine.ended():
            busy.discard(who)
            if answer is None:
                task.died.append(who)
                if len(task.died) == TRIES:
                    yield task, ChildProcessError(f"its worker died twice: {death}")
                    continue
                warn(f"{task}: {who.name} died ({death}); the run is tried once more")
                waiting.append(task)
            elif "refused" in answer:
                reason = difference(task.spec, answer["refused"])
                task.refused[who] = reason
                if (who, reason) not in reported:
                    reported.add((who, reason))
                    warn(f"{who.name} refuses a run of {task.spec.method}: {reason}")
                waiting.append(task)
            elif "raised" in answer:
                yield task, answer["raised"]
            else:
                yield task, _kept(task, answer["files"])
        waiting.sort(key=lambda task: place[task.key])


def _next(waiting: Sequence[Task], who: Worker) -> Task | None:
    """Return what a worker does next.

    That is a run whose checkpoint is on its host; else a new one, the longest; else one
    that has to begin anew.
    """
    open_to = [task for task in waiting if who not in task.refused]
    lost = [task for task in open_to if task.died]
    near = [task for task in lost if task.died[-1].host == who.host]
    new = [task for task in open_to if not task.died]
    return next(iter([*near, *new, *lost]), None)


def _kept(task: Task, files: dict[str, bytes]) -> Exception | None:
    """Store what came back; return an error where the run is not in the cache then."""
    if files:
        worker.unpack(task.spec, files)
    if runner.pending([task.spec]):
        return RuntimeError("its worker has finished it, but it is not in the cache")
    return None


def difference(spec: Spec, theirs: Mapping[str, Any]) -> str:
    """Return in words what a worker has in place of this process's code and data."""
    if "error" in theirs:
        return theirs["error"]
    own = worker.what_it_has(spec)
    words = []
    if theirs["code"] != own["code"]:
        names = names_of_others(theirs["parts"], own["parts"])
        words.append(f"other code ({names})")
    if theirs["data"] != own["data"]:
        words.append(f"other data of {spec.dataset}")
    if theirs["partition"] != own["partition"] and not words:
        words.append("another partition of the same data")
    return ", ".join(words) or "another format of results"


def warn(text: str) -> None:
    """Tell what happened while the other runs go on."""
    warnings.warn(text, stacklevel=5)
