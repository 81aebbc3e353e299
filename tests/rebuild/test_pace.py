"""When a rebuild ends: predicted within 25 % from a tenth on, and never at a stand.

``recorded/quick_rebuild.csv`` is one whole quick rebuild: seconds of each run with what
its cost depends on, and of each notebook. A simulated clock plays it back with several
processes that share cores, as ``rebuild`` orders the work.
"""

import csv
import random
from collections import defaultdict
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from fedlib import papers
from fedlib.papers import PAPERS
from fedlib.rebuild.costs import duration
from fedlib.rebuild.pace import ENOUGH, NOTEBOOK, Pace
from fedlib.runs.spec import Spec

RECORD = Path(__file__).parent / "recorded" / "quick_rebuild.csv"
TICK = 5.0  # seconds between two predictions
PLANNING = 0.2  # seconds of the clock before the runs of each artefact


class Artefact(NamedTuple):
    """What one artefact costs."""

    name: str
    runs: list[tuple[Spec, float]]  # each with its seconds
    notebook: float  # seconds


def spec_of(row: dict[str, str], seed: int) -> Spec:
    partition = {k: row[k] for k in ("scheme", "ways", "shots") if row[k]}
    training = {
        k: row[k] for k in ("batch_size", "local_epochs", "local_steps") if row[k]
    }
    fields = ("method", "dataset", "net", "clients", "participation", "rounds")
    settings = {name: row[name] for name in fields}
    return Spec.of(partition=partition, training=training, seed=seed, **settings)


@pytest.fixture(scope="module")
def recorded() -> list[Artefact]:
    with RECORD.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for name, of in groupby(enumerate(rows), lambda pair: pair[1]["artefact"]):
        *each, (_, last) = of
        runs = [(spec_of(row, seed), float(row["seconds"])) for seed, row in each]
        found.append(Artefact(name, runs, float(last["seconds"])))
    return found


class Task:
    """Something that a process computes."""

    def __init__(self, spec: Spec | None, seconds: float, now: float):
        self.spec, self.left, self.begun = spec, seconds, now


class Machine:
    """Cores on a simulated clock: tasks share them, predictions are made at ticks."""

    def __init__(self, work: list[Artefact], jobs: int, cores: int):
        specs = [spec for artefact in work for spec, _ in artefact.runs]
        self.now, self.jobs, self.cores = 0.0, jobs, cores
        self.pace = Pace(specs, len(work), jobs, 0.0)
        self.predictions: list[tuple[float, float | None]] = []
        self.active: list[Task] = []
        self.notebooks: list[float] = []  # waiting

    def busy(self, runs: bool) -> int:
        return sum((task.spec is not None) == runs for task in self.active)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (len(self.predictions) + 1) * TICK <= until:
            tick = (len(self.predictions) + 1) * TICK
            self.predictions.append((tick, self.pace.left(tick)))
        self.now = until

    def step(self) -> None:
        """Go on until something is done."""
        speed = min(1.0, self.cores / len(self.active))
        seconds = min(task.left for task in self.active)
        self.wait(seconds / speed)
        for task in self.active:
            task.left -= seconds
        for task in [task for task in self.active if task.left <= 1e-9]:
            self.active.remove(task)
            took = self.now - task.begun
            if task.spec is None:
                self.pace.executed(took, self.now)
            else:
                self.pace.ran(task.spec, took, self.now)
        self.begin_notebooks()

    def begin_notebooks(self) -> None:
        while self.notebooks and self.busy(runs=False) < self.jobs:
            self.active.append(Task(None, self.notebooks.pop(0), self.now))

    def build(self, artefact: Artefact) -> None:
        """Compute the runs, and start the notebook beside those of the next."""
        self.wait(PLANNING)
        waiting = list(artefact.runs)
        self.pace.run(len(waiting), self.now)
        while waiting or self.busy(runs=True):
            while waiting and self.busy(runs=True) < self.jobs:
                self.active.append(Task(*waiting.pop(0), self.now))
            self.step()
        self.pace.execute(self.now)
        self.notebooks.append(artefact.notebook)
        self.begin_notebooks()
        if self.jobs == 1:
            self.step()

    def finish(self) -> None:
        while self.active:
            self.step()


def predictions(
    work: list[Artefact], jobs: int, cores: int
) -> tuple[list[tuple[float, float | None]], float]:
    """Return what was predicted when, and when the end was; the last waits for all."""
    machine = Machine(work, jobs, cores)
    for artefact in work[:-1]:
        machine.build(artefact)
    machine.finish()
    machine.build(work[-1])
    machine.finish()
    return machine.predictions, machine.now


def worst(work: list[Artefact], jobs: int, cores: int) -> float:
    """Return by how much the predicted end was off at most, from a tenth on."""
    told, end = predictions(work, jobs, cores)
    late = [(now, left) for now, left in told if now >= end / 10]
    assert len(late) > 30
    assert all(left is not None for _, left in late)
    return max(abs(now + (left or 0) - end) / end for now, left in late)


@pytest.mark.parametrize("jobs_cores", [(1, 2), (2, 2), (4, 2), (4, 4), (8, 8)])
def test_the_end_of_a_recorded_rebuild_is_predicted_within_a_quarter(
    recorded, jobs_cores
):
    assert worst(recorded, *jobs_cores) < 0.25


@pytest.mark.parametrize("seed", range(4))
def test_the_end_is_predicted_in_any_order_of_the_papers_artefacts(recorded, seed):
    *papers_own, board, counts, cells, score = recorded
    shuffled = random.Random(seed).sample(papers_own, len(papers_own))
    assert worst([*shuffled, board, counts, cells, score], 2, 2) < 0.25


@pytest.mark.parametrize("paper", PAPERS)
def test_the_end_is_predicted_whichever_paper_is_first(recorded, paper):
    """Its own method, which is slow, tells the pace of all others."""
    *work, score = recorded
    work.sort(key=lambda artefact: not artefact.name.startswith(f"{paper}/"))
    assert worst([*work, score], 2, 2) < 0.25


@pytest.mark.parametrize("seed", range(4))
def test_the_end_is_predicted_where_methods_cost_something_else(recorded, seed):
    """Each method takes up to half as much more or less; so does each notebook."""
    draw = random.Random(seed)
    times = defaultdict(lambda: 1.5 ** draw.uniform(-1, 1))
    other = [
        Artefact(
            artefact.name,
            [(spec, seconds * times[spec.method]) for spec, seconds in artefact.runs],
            artefact.notebook * 1.5 ** draw.uniform(-1, 1),
        )
        for artefact in recorded
    ]
    assert worst(other, 2, 2) < 0.25


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_left_does_not_stand_still(recorded, jobs):
    told, _ = predictions(recorded, jobs, 2)
    known = [left for _, left in told if left is not None]
    assert all(a != b for a, b in pairwise(known))
    printed = [duration(left) for left in known]
    assert max(len(list(same)) for _, same in groupby(printed)) * TICK <= 150


# what a prediction is made of


def local(**changes) -> Spec:
    return papers.fedmps("digits", "local", **{"rounds": 10, "seed": 1} | changes)


def test_rounds_left_at_the_pace_of_their_kind_and_notebooks_at_their_mean():
    same, other = local(seed=2), local(seed=3, rounds=30)
    pace = Pace([local(), same, other], 2, 1, 100.0)
    assert pace.left(100.0) is None
    pace.run(3, 100.0)
    pace.ran(local(), 20.0, 120.0)  # 2 seconds a round
    assert pace.left(120.0) == pytest.approx(2 * (10 + 30) + 2 * NOTEBOOK)
    assert pace.left(125.0) == pytest.approx(2 * (10 + 30) + 2 * NOTEBOOK - 5)
    pace.ran(same, 20.0, 140.0)
    pace.ran(other, 60.0, 200.0)
    pace.execute(200.0)
    pace.executed(4.0, 204.0)
    assert pace.left(204.0) == pytest.approx(4)
    pace.execute(204.0)
    assert pace.left(207.0) == pytest.approx(1)
    assert 0 < pace.left(214.0) < 2  # late: it is nearly done
    pace.executed(12.0, 216.0)
    assert pace.left(216.0) == 0


def test_processes_beside_each_other_shorten_the_rest():
    specs = [local(seed=seed) for seed in range(8)]
    pace = Pace(specs, 0, 4, 0.0)
    pace.run(8, 0.0)
    for spec in specs[:4]:
        pace.ran(spec, 20.0, 20.0)
    assert pace.left(20.0) == pytest.approx(20)  # 80 seconds in four processes
    assert pace.left(30.0) == pytest.approx(10)


def test_a_process_starts_once_and_its_time_is_no_runs():
    specs = [local(seed=seed) for seed in range(11)]
    pace = Pace(specs, 0, 1, 0.0)
    pace.run(11, 0.0)
    pace.ran(specs[0], 10.0, 50.0)  # 40 seconds of imports
    for number in range(1, 6):
        pace.ran(specs[number], 10.0, 50.0 + 12 * number)  # 2 seconds of data
    assert pace.left(110.0) == pytest.approx(5 * 12)


def test_a_prediction_waits_until_enough_is_done():
    pace = Pace([local(seed=seed) for seed in range(100)], 0, 1, 0.0)
    pace.run(100, 0.0)
    for seed in range(100):
        told = pace.left(10.0 * seed) is not None
        assert told == (seed >= 100 * ENOUGH)
        pace.ran(local(seed=seed), 10.0, 10.0 * (seed + 1))


def test_a_pace_known_from_earlier_runs_is_told_within_the_first_one():
    long = [local(seed=seed, rounds=100) for seed in (1, 2)]
    pace = Pace(long, 0, 1, 0.0)
    pace.learn(local(seed=3), 30.0)  # 3 seconds a round
    pace.run(2, 0.0)
    assert pace.left(10.0) is None  # 3 % are done
    assert pace.left(60.0) == pytest.approx(540)


def test_what_has_failed_is_not_waited_for():
    pace = Pace([local(), local(seed=2), local(seed=3)], 3, 1, 0.0)
    pace.run(2, 0.0)
    pace.ran(local(), 10.0, 10.0)
    pace.give_up([local(seed=2)])
    pace.spare()
    assert pace.left(10.0) == pytest.approx(10 + 2 * NOTEBOOK)


def test_nothing_to_do_has_no_end():
    assert Pace([], 0, 2, 5.0).left(5.0) is None
