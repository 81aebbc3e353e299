"""Many runs, clients and rounds: seconds and memory at a tenth and at the whole.

A cache of 5,000 runs that is listed, stale or not, 500 runs that are queued, the log of
a run of 10,000 rounds on its way to disk and back, a partition among 1,000 clients, and
20 notebooks' runs that are looked for. Nothing may be quadratic: the exponent of time
is 1 where ten times as much takes ten times as long. Every point is a process of its
own, forked before the first. Rounds of 1,000 clients are in ``scaling.py``.

    python benchmarks/load.py [--only LOAD ...] [--write]
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
import torch

from fedlib import papers
from fedlib.core.log import Log
from fedlib.core.rng import generator
from fedlib.partitions import SCHEMES, draw
from fedlib.rebuild.artefacts import prepare
from fedlib.runs import address, checkpoints, many, runner, stored
from fedlib.support.paths import cache_dir

OUT = Path(__file__).parent.parent / "figures" / "bench"


def listed(count: int) -> Callable[[], object]:
    """Fill the cache with runs that differ in their seeds; list them, stale or not."""
    told = address.identity(papers.fedmps("digits", "local"))
    for seed in range(count):
        told["spec"]["seed"] = seed
        home = cache_dir() / "runs" / f"{seed:020x}"
        home.mkdir(parents=True)
        (home / "spec.json").write_text(json.dumps(told), "utf-8")
        (home / "result.safetensors").touch()
    return lambda: [stored.why_stale(run.told) for run in stored.everything()]


def queued(count: int) -> Callable[[], object]:
    """Look for runs that are missing, and order them."""
    specs = [papers.fedmps("digits", "local", seed=seed) for seed in range(count)]
    return lambda: many._tasks(specs)


def logged(count: int) -> Callable[[], object]:
    """Log rounds of 20 clients, write what checkpoints do, and read all of it."""
    home = cache_dir() / "run"
    home.mkdir()
    row = Log(torch.arange(20), {"supervised": torch.rand(20)})

    def work() -> object:
        journal = checkpoints.Journal(home)
        for _ in range(count):
            journal.rows.add(row)
            since = journal.since()
        return checkpoints.Journal(home).restore(journal.segments, since)

    return work


def parted(count: int) -> Callable[[], object]:
    """Draw a Dirichlet partition among so many clients, of 60 images each."""
    y = torch.randint(10, (60 * count,), generator=generator(0, "labels"))
    scheme = SCHEMES["lda"].model_validate({"alpha": 0.5, "min_size": 1})
    return lambda: draw(scheme, y, y[::6], clients=count, seed=0)


def opened(count: int) -> Callable[[], object]:
    """Make the runs of notebooks' parameters, and look which are there."""

    def work() -> None:
        for number in range(count):
            notebook = prepare("fedmps/table3", "quick", {"seeds": [number]})
            runner.pending(notebook.specs)

    return work


# name -> work and its size
LOADS: dict[str, tuple[Callable[[int], Callable[[], object]], int]] = {
    "runs in a cache, listed": (listed, 5_000),
    "runs queued": (queued, 500),
    "rounds logged": (logged, 10_000),
    "clients, a partition": (parted, 1_000),
    "notebooks' runs looked for": (opened, 20),
}


def _point(name: str, count: int, out: Connection) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FEDLIB_CACHE": folder, "FEDLIB_RESULTS": "none"}
        work = LOADS[name][0](count)
        begun, before = time.process_time(), _peak()
        work()
        taken = time.process_time() - begun
    out.send((taken, _peak() - before))


def _peak() -> float:
    """Return the peak of this process's memory, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, count: int) -> tuple[float, float]:
    """Return the processor's seconds of a load and the MiB that it adds."""
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_point, args=(name, count, there))
    process.start()
    there.close()
    seconds, memory = here.recv()
    process.join()
    return seconds, memory


def main() -> None:
    """Print a row for each load."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--only", nargs="+", choices=LOADS, default=[*LOADS])
    options.add_argument("--write", action="store_true", help="to figures/bench")
    chosen, rows = options.parse_args(), []
    torch.set_num_threads(1)
    for name in chosen.only:
        count = LOADS[name][1]
        (few, _), (all_of_it, memory) = (measure(name, n) for n in (count // 10, count))
        rows.append(
            {
                "load": name,
                "count": count,
                "tenth_s": round(few, 3),
                "whole_s": round(all_of_it, 3),
                "exponent": round(math.log10(all_of_it / few), 2),
                "added_mib": round(memory),
            }
        )
        print(*(f"{k} {v}" for k, v in rows[-1].items()), sep=", ", flush=True)
    if chosen.write:
        pd.DataFrame(rows).to_csv(OUT / "load.csv", index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
