"""Runs per hour against jobs: the same runs in one process, and in several.

FedAvg on few-shot Fashion-MNIST, runs that differ in their seed, in a cache of their
own. Processes are started before, and what that takes is said apart; ``run_many`` keeps
them for later calls. Only an idle machine shows the gain: the first number of jobs
leaves the other cores to whoever wants them.

    python benchmarks/jobs.py [--jobs 1 2] [--runs 8] [--rounds 25] [--write]
"""

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path

import pandas as pd

from fedlib import papers
from fedlib.draw import plot, saving
from fedlib.runs.many import jobs_of_machine, run_many
from fedlib.runs.spec import Spec

OUT = Path(__file__).parent.parent / "figures" / "bench"
SEEDS = itertools.count(1)


def specs(count: int, rounds: int) -> list[Spec]:
    """Return runs that nobody has computed."""
    return [
        papers.fedmps(
            "fashion",
            "fedavg",
            net="mnist_cnn_plain",
            rounds=rounds,
            seed=next(SEEDS),
        )
        for _ in range(count)
    ]


def seconds(jobs: int, count: int, rounds: int) -> float:
    """Return how long some runs take."""
    given = specs(count, rounds)
    begun = time.perf_counter()
    run_many(given, jobs=jobs, after=lambda _: None)
    return time.perf_counter() - begun


def measure(jobs: int, count: int, rounds: int) -> dict:
    """Start the processes with a short run each, and time the runs."""
    start = seconds(jobs, jobs, 1)
    taken = seconds(jobs, count, rounds)
    return {
        "jobs": jobs,
        "runs": count,
        "rounds": rounds,
        "start_s": round(start, 2),
        "seconds": round(taken, 2),
        "runs_per_hour": round(3600 * count / taken),
    }


def main() -> None:
    """Print a line for each number of jobs, with its gain over the first."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    jobs = sorted({1, jobs_of_machine()})
    options.add_argument("--jobs", nargs="+", type=int, default=jobs)
    options.add_argument("--runs", type=int, default=8)
    options.add_argument("--rounds", type=int, default=25)
    options.add_argument("--write", action="store_true", help="to figures/bench")
    chosen = options.parse_args()
    rows: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDLIB_CACHE"] = folder
        for count in chosen.jobs:
            row = measure(count, chosen.runs, chosen.rounds)
            gain = row["runs_per_hour"] / (rows or [row])[0]["runs_per_hour"]
            rows.append(row | {"gain": round(gain, 2)})
            print(*(f"{k} {v}" for k, v in rows[-1].items()), sep=", ", flush=True)
    if chosen.write:
        table = pd.DataFrame(rows)
        fig, _ = plot.bars(
            table.assign(jobs=table["jobs"].astype(str)),
            x="jobs",
            y="runs_per_hour",
            ylabel="Runs per hour",
            percent=False,
        )
        saving.save(fig, table, OUT / "jobs")


if __name__ == "__main__":
    main()
