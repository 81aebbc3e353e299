"""Processes that work for this one, one piece of work each at a time.

A process that dies takes its own piece of work along and no other. The pools of joblib
and of the standard library give up all that they hold when one of theirs is killed, so
each process here is a pool of its own (loky's, which needs no guarded ``__main__``).
"""

import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from joblib.externals.loky import ProcessPoolExecutor
from joblib.externals.loky.process_executor import (
    BrokenProcessPool,
    ShutdownExecutorError,
)
from tqdm import tqdm

IDLE = 300  # seconds after which a process without work ends
LOOK = 1.0  # seconds between two looks at whether the parent is still there
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
GONE = (BrokenProcessPool, ShutdownExecutorError)  # what a process ends with

Found = TypeVar("Found")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os._exit(1)


def _begin(parent: int) -> None:
    """Leave signals to the parent, which ends its processes; end when it is gone.

    A scheduler sends SIGTERM to all processes of a job. What a process starts does not
    inherit a function, as it would SIG_IGN.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    tqdm.set_lock(threading.RLock())  # its own is left behind by a killed process
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        1,
        timeout=IDLE,
        initializer=_begin,
        initargs=(os.getpid(),),
        env={name: os.environ.get(name, "1") for name in THREADS},
    )


def cause(error: BaseException) -> str:
    """Return the exit code of a process that died, else the error's first line."""
    codes = re.search(r"exit codes of the workers are \{(.*)\}", str(error))
    return codes[1] if codes else str(error).split("\n")[0]


class Pool:
    """As many processes as are called at once; they are kept for the next call."""

    def __init__(self) -> None:
        self._idle: dict[str, list[ProcessPoolExecutor]] = defaultdict(list)
        self._busy: set[ProcessPoolExecutor] = set()

    def call(self, kind: str, work: Callable[..., Found], *given: Any) -> Found:
        """Return what a function returns in a process of its own.

        Parameters
        ----------
        kind : str
            Calls of one kind share processes: on a GPU those of that GPU.

        Raises
        ------
        BrokenProcessPool, ShutdownExecutorError
            The process died, with its exit code in the message, or was stopped.
        """
        process, pending = self._begun(kind, work, given)
        error = pending.exception()
        self._busy.discard(process)
        if not isinstance(error, GONE):
            self._idle[kind].append(process)
        return pending.result()

    def _begun(
        self, kind: str, work: Callable[..., Found], given: tuple
    ) -> tuple[ProcessPoolExecutor, "Future[Found]"]:
        while True:
            try:
                process = self._idle[kind].pop()
            except IndexError:
                process = _process()
            self._busy.add(process)
            try:
                return process, process.submit(work, *given)
            except GONE:  # it died before, while it was idle
                self._busy.discard(process)

    def stop(self) -> None:
        """Kill all processes and theirs; whoever waits for one is told that it died."""
        idle = [process for group in self._idle.values() for process in group]
        self._idle.clear()
        for process in [*self._busy, *idle]:
            process.shutdown(wait=True, kill_workers=True)
