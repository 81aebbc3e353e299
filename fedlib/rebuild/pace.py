"""How long what is left will take, at the pace of what is done.

A run is expected to take what ``fedlib.runs.cost`` says, a notebook as long as those
before it. Both are seconds of one process; how many seconds of the clock they make is
measured as well, since processes work beside each other and share processors.
"""

from collections.abc import Iterable
from statistics import median

from fedlib.runs.cost import Costs, likeness
from fedlib.runs.spec import Spec

ENOUGH = 0.05  # share of the work after which a prediction is told
LATE = 0.1  # what is left of what takes longer than expected, as a share of its time
NOTEBOOK = 10.0  # seconds, until one is measured: most of it is its kernel's start


class _Lane:
    """When what is being computed began, in processes that take one after the other."""

    def __init__(self, jobs: int):
        self.jobs, self.waiting = jobs, 0
        self.starts: list[float] = []
        self.worked = 0.0  # seconds of processes on what has left
        self.beside: list[float] = []  # of them: to begin with it, such as imports

    def enter(self, count: int, now: float) -> None:
        """Let more wait for a process."""
        self.waiting += count
        self._fill(now)

    def leave(self, seconds: float, now: float) -> None:
        """Take away the one that began so long ago; the next one begins."""
        took = seconds
        if self.starts:
            start = min(self.starts, key=lambda s: abs(now - seconds - s))
            self.starts.remove(start)
            took = max(seconds, now - start)
        self.worked += took
        self.beside.append(took - seconds)
        self._fill(now)

    def overhead(self) -> float:
        """Return what comes to the seconds of one; a process starts only once."""
        return median(self.beside) if self.beside else 0.0

    def clear(self) -> None:
        """Take away all."""
        self.waiting, self.starts = 0, []

    def _fill(self, now: float) -> None:
        begin = min(self.waiting, self.jobs - len(self.starts))
        self.starts += [now] * begin
        self.waiting -= begin


class Pace:
    """What is left of a rebuild, and when it ends.

    Parameters
    ----------
    specs : iterable of Spec
        The missing runs in the order in which they are computed, each once.
    notebooks : int
        How many will be executed.
    jobs : int
        Processes for runs, and as many for notebooks.
    now : float
        Seconds on the clock that all other times are read from.
    """

    def __init__(self, specs: Iterable[Spec], notebooks: int, jobs: int, now: float):
        self.runs = {spec.model_dump_json(): spec for spec in specs}
        self.notebooks = notebooks
        self._begun = now
        self._likeness = {name: likeness(spec) for name, spec in self.runs.items()}
        self._costs = Costs()
        self._executed: list[float] = []  # seconds of notebooks
        self._running, self._executing = _Lane(jobs), _Lane(jobs)

    def learn(self, spec: Spec, seconds: float) -> None:
        """Take into account how long a run takes its process, or took it long ago."""
        self._costs.learn(spec, seconds)

    def run(self, count: int, now: float) -> None:
        """Begin with some of the runs, the next ones."""
        self._running.enter(count, now)

    def ran(self, spec: Spec, seconds: float, now: float) -> None:
        """Take a run as done, which took its process so long."""
        self._running.leave(seconds, now)
        self.runs.pop(spec.model_dump_json(), None)
        self.learn(spec, seconds)

    def give_up(self, specs: Iterable[Spec]) -> None:
        """Take runs off the list that were begun, when one of them has failed."""
        self._running.clear()
        for spec in specs:
            self.runs.pop(spec.model_dump_json(), None)

    def spare(self) -> None:
        """Take a notebook off the list."""
        self.notebooks = max(0, self.notebooks - 1)

    def execute(self, now: float) -> None:
        """Begin with a notebook."""
        self._executing.enter(1, now)

    def executed(self, seconds: float, now: float) -> None:
        """Take a notebook as executed, which took its process so long."""
        self._executing.leave(seconds, now)
        self._executed.append(seconds)
        self.spare()

    def _expected(self, name: str) -> float:
        """Return the seconds that a run will take its process."""
        return self._costs.expected(self._likeness[name])

    def _notebook(self, now: float) -> float:
        """Return the seconds of a notebook; those that take longer tell it as well."""
        known = self._executed
        mean = sum(known) / len(known) if known else NOTEBOOK
        under_way = [(1 + LATE) * (now - start) for start in self._executing.starts]
        seconds_of_all = [*known, *(max(mean, seconds) for seconds in under_way)]
        return sum(seconds_of_all) / len(seconds_of_all) if seconds_of_all else mean

    def left(self, now: float) -> float | None:
        """Return the seconds until the end; None before enough is done to tell.

        What is being computed counts as far as it is, so that the end comes nearer
        between two events; what takes longer than expected is nearly done.
        """
        done = self._running.worked + self._executing.worked
        of_notebook = self._notebook(now)
        todo = 0.0
        for lane, expected in (
            (self._running, [self._expected(name) for name in self.runs]),
            (self._executing, [of_notebook] * self.notebooks),
        ):
            extra = lane.overhead()
            expected = [seconds + extra for seconds in expected]
            spent = sorted(now - start for start in lane.starts)[::-1]
            todo += sum(expected[len(spent) :]) + sum(
                max(total - so_far, LATE * so_far)
                for total, so_far in zip(expected, spent, strict=False)
            )
            done += sum(spent)
        measured = self._costs or self._executed
        if not measured or not done or done < ENOUGH * (done + todo):
            return None
        return (now - self._begun) * todo / done
