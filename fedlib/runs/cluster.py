"""Dask's workers as those that compute: cores of several machines, or a GPU each.

Each worker has one run at a time, of its own choice of device and data, and needs no
disk that others see: what a finished run leaves travels back to this process. Dask's
own rules for tasks of killed workers are not used, since they try a run on worker after
worker, and blame those that wait beside it; nor is joblib's backend for Dask, which
gives up all runs when one is lost.
"""

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedlib.core import compiled
from fedlib.runs import worker
from fedlib.runs.many import GO_ON, Ended, Task, Worker

if TYPE_CHECKING:
    from distributed import Future

ANSWER = 10  # seconds in which a scheduler must answer
SEND = 600  # seconds in which a finished run must have come back
TICK = 1.0  # seconds between two looks at who is there


class Cluster:
    """The workers of a Dask scheduler.

    Parameters
    ----------
    address : str
        Of the scheduler, such as ``tcp://node1:8786``.

    Raises
    ------
    ModuleNotFoundError
        Dask is not installed.
    ValueError
        No scheduler answers there.
    """

    def __init__(self, address: str):
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "a cluster needs Dask: pip install 'fedlib[cluster]'"
            ) from error
        try:
            self._client = Client(address, timeout=ANSWER, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"cluster: got {address!r}, where no Dask scheduler answers ({error}); "
                "expected an address such as 'tcp://node1:8786'"
            ) from error
        self._address = address
        self._running: dict[Future, tuple[Task, Worker]] = {}
        self._news = threading.Event()

    def _there(self) -> dict[Worker, dict[str, Any]]:
        """Return the workers that are there now, with what the scheduler says of them.

        A worker that was killed and comes again at the same address has another folder.
        """
        scheduler: Any = self._client.scheduler
        try:
            # not scheduler_info(): it is filled, and emptied of workers, beside us
            identity: Any = self._client.sync(scheduler.identity)
        except OSError as error:
            raise ConnectionError(
                f"cluster: the scheduler at {self._address} is gone. {GO_ON}"
            ) from error
        return {
            Worker(address, about["host"], about["local_directory"]): about
            for address, about in identity["workers"].items()
        }

    def workers(self) -> list[Worker]:
        """Return the workers that are there now."""
        return list(self._there())

    def start(self, task: Task, who: Worker) -> None:
        """Give a task to a worker; no other takes it over."""
        given = task.spec.model_dump_json(), task.key, compiled.chosen()
        future = self._client.submit(
            worker.there, *given, workers=[who.name], pure=False
        )
        future.add_done_callback(lambda _: self._news.set())
        self._running[future] = task, who

    def ended(self) -> list[Ended]:
        """Wait for a task, or a moment."""
        self._news.wait(TICK)
        self._news.clear()
        there, tasks = self._there(), []
        for future, (task, who) in list(self._running.items()):
            if future.status == "pending" and who in there:
                continue
            del self._running[future]
            tasks.append(Ended(task, who, *_answer(future, alive=who in there)))
        return tasks

    def close(self) -> None:
        """Leave the cluster; workers that still have a task are started anew.

        Dask cannot stop what a worker computes. One without a nanny ends its run, which
        then waits in its own cache.
        """
        if self._running:
            with suppress(Exception):  # the scheduler may be gone
                self._client.cancel(list(self._running))
                there = self._there()
                busy = [who for _, who in self._running.values() if who in there]
                names = [who.name for who in busy if there[who]["nanny"]]
                self._client.restart_workers(names, ANSWER, raise_for_error=False)
        self._client.close()


def _answer(future: "Future", alive: bool) -> tuple[worker.Answer | None, str]:
    """Return what a worker said, or None and why it said nothing."""
    from distributed import KilledWorker

    if future.status == "finished" and alive:
        try:
            return future.result(timeout=SEND), ""
        except Exception as error:  # it died on the way
            return None, f"its answer was lost: {error}"
    if future.status == "error":
        error = future.exception()
        if not isinstance(error, KilledWorker):  # it cannot read what it is asked for
            return {"refused": {"error": f"{type(error).__name__}: {error}"}}, ""
    future.cancel()
    return None, "it left the cluster"
