"""What a rebuild tells while it computes: runs that are done, and its end."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Self

from tqdm import tqdm

from fedlib.data import DataError
from fedlib.rebuild.artefacts import Artefact
from fedlib.rebuild.costs import distinct, duration, text_of
from fedlib.rebuild.execute import Executed
from fedlib.rebuild.pace import Pace
from fedlib.runs import runner, timings
from fedlib.runs.spec import Spec
from fedlib.support.progress import progress_bar


class Progress:
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
        every = distinct([spec for artefact in due for spec in artefact.specs])
        missing = _missing(every)
        self.runs, self.done = len(missing), 0
        self.bar = progress_bar(
            total=sum(spec.rounds for spec in missing),
            bar_format=self.BAR,
            leave=False,
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
        seconds = (timings.seconds_per_round(spec) or 0.0) * spec.rounds
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

    def executed(self, notebook: Future[Executed]) -> None:
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
        text = f"run {self.done} of {self.runs}" if self.runs else "notebooks"
        if left:
            text += f", about {duration(left)} left"
        self.bar.set_description_str(text)
        if self.bar.disable and now - self.told > self.EVERY:
            self.told = now
            self._echo(f"  {text}")


def _missing(specs: Sequence[Spec]) -> list[Spec]:
    """Return the runs that are not on disk; those without data are left out."""
    missing = []
    for spec in specs:
        try:
            missing += runner.pending([spec])
        except DataError:
            continue  # the artefact itself reports this
    return missing


def _timed(
    specs: Sequence[Spec], missing: Sequence[Spec]
) -> Iterator[tuple[Spec, float]]:
    """Yield the runs that are on disk, with their seconds."""
    absent = {text_of(spec) for spec in missing}
    for spec in specs:
        if text_of(spec) in absent:
            continue
        try:
            seconds = timings.seconds_per_round(spec)
        except DataError:
            continue
        if seconds is not None:
            yield spec, seconds * spec.rounds
