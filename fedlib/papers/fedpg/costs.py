"""What a round of FedPG costs: energy, seconds and floating-point operations (Table 3).

Energy is read from the processor's own counter where the machine has one (Linux's
powercap, RAPL), and estimated as seconds times stated watts elsewhere. Rounds are
computed on the processor, so that a GPU's counter would tell nothing of them. Clients
train one after another.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from torch.utils.flop_counter import FlopCounterMode

from fedlib import papers
from fedlib.core.compiled import computed_by
from fedlib.methods import fedpg
from fedlib.runs.federation import federation
from fedlib.runs.runner import one_thread
from fedlib.runs.spec import Spec

POWERCAP = Path("/sys/class/powercap")  # where Linux shows the energy counters
# Parts of a round, and what is measured as each: FedAvg's ``client`` and ``merge`` are
# local training and averaging, FedPG's ``merge`` also trains the generator.
PARTS = {"client": "local_training", "merge": "generator_training"}
ROUND = "round"
LAST = ["mean", "sd", "seconds", "times", "wh_per_run"]

Watch = Callable[[str], AbstractContextManager[Any]]  # told the part's name


class Counter(NamedTuple):
    """An energy counter of a processor, in microjoules."""

    file: Path
    size: int  # it begins anew behind this value

    def read(self) -> int:
        """Return what the counter shows."""
        return int(self.file.read_text())


def counters(root: Path = POWERCAP) -> list[Counter]:
    """Return the counters of all processor packages that may be read; often none."""
    available = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            if not (folder / "name").read_text().startswith("package"):
                continue  # a part of a package, which that one counts
            size = int((folder / "max_energy_range_uj").read_text())
            counter = Counter(folder / "energy_uj", size)
            counter.read()
        except OSError:  # the counter is the administrator's alone
            continue
        available.append(counter)
    return available


class Meter:
    """Seconds and joules of named pieces of work.

    Parameters
    ----------
    watts : float > 0
        Power above idle that is assumed where no counter can be read.
    idle_seconds : float >= 0
        How long to measure the idle machine, whose power is then subtracted; only
        where there is a counter.

    Attributes
    ----------
    source : "RAPL" or "estimated"
    rows : list of (name, seconds, joules)
    """

    def __init__(
        self, watts: float, idle_seconds: float = 0.0, root: Path = POWERCAP
    ) -> None:
        if not watts > 0:
            raise ValueError(f"watts: got {watts}, expected more than 0")
        self.watts, self.idle = watts, 0.0
        self.counters = counters(root)
        self.source = "RAPL" if self.counters else "estimated"
        self.rows: list[tuple[str, float, float]] = []
        if self.counters and idle_seconds:
            with self("idle"):
                time.sleep(idle_seconds)
            _, seconds, joules = self.rows.pop()
            self.idle = joules / seconds

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure what is done inside, as a row of ``name``."""
        before, begun = [c.read() for c in self.counters], time.perf_counter()
        yield
        seconds = time.perf_counter() - begun
        joules = seconds * self.watts
        if self.counters:
            spent = [
                (counter.read() - first) % counter.size
                for counter, first in zip(self.counters, before, strict=True)
            ]
            joules = sum(spent) / 1e6 - seconds * self.idle
        self.rows.append((name, seconds, joules))


def watched(spec: Spec, watch: Watch, warm: int, rounds: int) -> Iterator[int]:
    """Step through ``warm`` rounds, then through ``rounds`` that ``watch`` sees.

    Yields after each watched round. Nothing is evaluated or kept.

    Raises
    ------
    ValueError
        No warm round (FedPG's first one has no virtual data), or none to watch.
    """
    for name, value in (("warm", warm), ("rounds", rounds)):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected at least 1")
    looking = False

    def seen(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            if not looking:
                return work(*inputs)
            with watch(part):
                return work(*inputs)

        return run

    fed = federation(spec, chunk=1)
    parts = {
        name: seen(part, getattr(fed.method, name)) for name, part in PARTS.items()
    }
    stepping = fed._replace(method=fed.method._replace(**parts)).rounds()
    for _ in range(warm):
        next(stepping)
    looking = True
    for number in range(rounds):
        with watch(ROUND):
            next(stepping)
        yield number


def measure(
    runs: Mapping[str, Spec], meter: Meter, warm: int, rounds: int
) -> pd.DataFrame:
    """Return seconds and joules per watched round and part, on one thread.

    Returns
    -------
    DataFrame
        method (the mapping's names), cost (a part, or ``round``), seconds, joules.
    """
    parts = []
    with one_thread():
        for name, spec in runs.items():
            meter.rows.clear()
            for _ in watched(spec, meter, warm, rounds):
                pass
            frame = pd.DataFrame(meter.rows, columns=["cost", "seconds", "joules"])
            parts.append(frame.assign(method=name))
    table = pd.concat(parts, ignore_index=True)
    return table[["method", "cost", "seconds", "joules"]]


def costs(
    measured: pd.DataFrame, runs: Mapping[str, Spec], paper: pd.DataFrame
) -> pd.DataFrame:
    """Return Table 3: energy of each part and duration of the round.

    Parameters
    ----------
    measured : DataFrame
        As from ``measure``.
    paper : DataFrame
        Table 3 as ``reports.reference`` returns it; its generator is the ``variant``.

    Returns
    -------
    DataFrame
        method, cost, unit of one round (J, or s of the whole round), paper, mean and sd
        over rounds (ddof 1), seconds (mean), times (mean over the first method's, not
        of the server's part), and wh_per_run, watt-hours over all rounds of the spec.
        The paper prints Wh where we read joules per round; a data set that is not of
        the paper has no such cell.
    """
    theirs = {
        (_label(row["method"], row["variant"]), row["cost"]): row["mean"]
        for row in paper.to_dict("records")
    }
    rows, first = [], next(iter(runs))
    for name, spec in runs.items():
        for cost in (*reversed(PARTS.values()), ROUND):
            mine = measured[measured["cost"] == cost].groupby("method")
            value = "seconds" if cost == ROUND else "joules"
            mean = mine[["seconds", "joules"]].mean()
            row = {"method": name, "cost": cost}
            row |= {"unit": "s" if cost == ROUND else "J"}
            row |= {"paper": float("nan"), "times": float("nan")}
            if spec.dataset not in papers.OURS:
                row["paper"] = theirs.get((name, cost), float("nan"))
            row |= {"mean": mean.loc[name, value], "sd": mine[value].std()[name]}
            row |= {"seconds": mean.loc[name, "seconds"]}
            if cost != PARTS["merge"]:
                row["times"] = mean.loc[name, value] / mean.loc[first, value]
            row |= {"wh_per_run": mean.loc[name, "joules"] * spec.rounds / 3600}
            rows.append(row)
    frame = pd.DataFrame(rows)
    return frame[[*(c for c in frame if c not in LAST), *LAST]]


def _label(method: str, variant: Any) -> str:
    """Return the paper's name of a row, ``FedPG+fc``; FedAvg has no generator."""
    return method if pd.isna(variant) else f"FedPG+{variant}"


def operations(runs: Mapping[str, Spec], warm: int = 1) -> pd.DataFrame:
    """Return floating-point operations of one round, in millions, part by part.

    Of convolutions and matrix products alone, forwards and backwards, a multiplication
    and an addition as two; from their shapes, whatever the machine. The round behind
    the ``warm`` ones is counted.

    Returns
    -------
    DataFrame
        method, generator (its trained weights, empty without one), local_training,
        generator_training, times (local training over the first method's).
    """
    rows = []
    for name, spec in runs.items():
        counted = {}

        @contextmanager
        def count(part: str, counted: dict[str, float] = counted) -> Iterator[None]:
            if part == ROUND:  # the parts are counted one by one
                yield
                return
            # It counts torch's operations, and knows none of our kernels
            with computed_by("torch"), FlopCounterMode(display=False) as counter:
                yield
            counted[part] = counter.get_total_flops() / 1e6

        for _ in watched(spec, count, warm, 1):
            pass
        rows.append({"method": name, "generator": _weights(spec)} | counted)
    frame = pd.DataFrame(rows).astype({"generator": "Int64"})
    local = frame["local_training"]
    order = ["method", "generator", "local_training", "generator_training"]
    return frame[order].assign(times=local / local.iloc[0])


def _weights(spec: Spec) -> int | None:
    """Return the number of trained weights of FedPG's generator, None without one."""
    if spec.method != "fedpg":
        return None
    module = fedpg.build_generator(federation(spec).ctx).module
    return sum(p.numel() for p in module.parameters())
