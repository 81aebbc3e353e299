"""Seconds per round and peak memory against clients, classes or the cohort.

A LeNet on noise of CIFAR-10's shape, 16 training and 4 test images per client, batch 8,
one epoch; FedAvg with 10 % of the clients in a round and with all, and FedMPS with all.
Every point is a process of its own that plays rounds, evaluates as runs do (the last
one under all rules) and says its peak of resident memory, beside what it had after its
imports and a round of 20 clients, which loads the compiled kernels. Prints the exponent
of time. Against classes it is 20 clients with three of them each, against the cohort
FedAvg with so many of 1,000 clients in a round. One thread, processor's seconds.

    python benchmarks/scaling.py [--against clients] [--at 20 100 300 1000] [--rounds 3]
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fedlib import papers
from fedlib.core import nets
from fedlib.core.rng import generator
from fedlib.core.shards import Shards
from fedlib.draw import layout, plot, saving
from fedlib.runs import runner
from fedlib.runs.federation import Federation, federation

TRAIN, TEST = 16, 4  # images of a client
RUNS = {
    "FedAvg, 10 % in a round": ("fedavg", 0.1),
    "FedAvg, all": ("fedavg", 1.0),
    "FedMPS, all": ("fedmps", 1.0),
}
FIRST = {"fedavg": {"common_init": True}}  # FedMPS's program draws one for each client
FEW, MANY, CLASSES = 20, 1000, 10
AGAINST = {  # at which numbers, and which runs
    "clients": ([20, 100, 300, 1000], [*RUNS]),
    "classes": ([10, 30, 100, 300], ["FedAvg, all", "FedMPS, all"]),
    "cohort": ([10, 30, 100, 300], ["FedAvg"]),
}
OUT = Path(__file__).parent.parent / "figures" / "bench"


def mib() -> float:
    """Return this process's peak of resident memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def noise(clients: int, each: int, classes: int, like: Shards) -> Shards:
    """Return images of noise, of three classes per client."""
    draw = generator(0, "noise", each)
    size = (clients * each, 3, 32, 32)
    x = torch.randint(0, 256, size, generator=draw, dtype=torch.uint8)
    of = torch.arange(clients).repeat_interleave(each)
    y = (of + torch.arange(clients * each) % 3) % classes
    blank = Shards(x, y, [], [], like.mean, like.std)
    x = blank.inputs(torch.arange(len(x)))
    index = list(torch.arange(clients * each).split(each))
    return like._replace(x=x, y=y, index=index, ids=list(range(clients)))


def made(method: str, clients: int, share: float, classes: int) -> Federation:
    """Return a federation of so many clients and classes."""
    fed = federation(
        papers.fedmps("noise", method, participation=share, hp=FIRST.get(method, {}))
    )
    train = noise(clients, TRAIN, classes, fed.train)
    test = noise(clients, TEST, classes, fed.test)
    owns = train.label_counts(classes) > 0
    net = nets.build(fed.spec.net, fed.ctx.net.shape, classes)
    held = tuple(owns.any(0).nonzero().flatten().tolist())
    sizes = {"clients": clients, "classes": classes, "held": held}
    return fed._replace(
        ctx=replace(fed.ctx, net=net, **sizes),
        train=train,
        test=test,
        partition=fed.partition._replace(owns=owns),
    )


def sizes_of(against: str, label: str, at: int) -> tuple[str, int, float, int]:
    """Return method, clients, participation and classes of a point."""
    if against == "cohort":
        return "fedavg", MANY, at / MANY, CLASSES
    method, share = RUNS[label]
    if against == "classes":
        return method, FEW, share, at
    return method, at, share, CLASSES


def measure(against: str, label: str, at: int, rounds: int) -> dict:
    """Play rounds, and return their seconds and what they took of memory."""
    method = sizes_of(against, label, at)[0]
    few = made(method, FEW, 1.0, CLASSES)
    with runner.one_thread():  # loads the compiled kernels, and torch's vmap
        few.evaluate(next(few.rounds()), every_rule=True)
    imports = mib()
    fed = made(*sizes_of(against, label, at))
    data = mib()
    stepping, times, evaluation = fed.rounds(), [], []
    with runner.one_thread():
        for number in range(1, rounds + 1):
            begun = time.process_time()
            after = next(stepping)
            trained = time.process_time()
            fed.evaluate(after, every_rule=number == rounds)
            del after
            times.append(trained - begun)
            evaluation.append(time.process_time() - trained)
    return {
        "run": label,
        against: at,
        "train": round(statistics.median(times[1:]), 4),
        "own_rule": round(statistics.median(evaluation[:-1]), 4),
        "all_rules": round(evaluation[-1], 4),
        "imports_mib": round(imports),
        "with_data_mib": round(data),
        "peak_mib": round(mib()),
    }


def main() -> None:
    """Measure every point, and write the numbers and a figure to ``figures/bench``."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--against", choices=AGAINST, default="clients")
    options.add_argument("--at", nargs="+", type=int)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.one:
        label, at = chosen.one
        print(json.dumps(measure(chosen.against, label, int(at), chosen.rounds)))
        return
    against, rows = chosen.against, []
    numbers, labels = AGAINST[against]
    for label in labels:
        for at in chosen.at or numbers:
            asked = ["--one", label, str(at), "--rounds", str(chosen.rounds)]
            asked += ["--against", against]
            done = subprocess.run(
                [sys.executable, __file__, *asked],
                capture_output=True,
                text=True,
                check=True,
            )
            rows.append(json.loads(done.stdout))
            print(*rows[-1].values(), flush=True)
    frame = pd.DataFrame(rows)
    for label, part in frame.groupby("run", sort=False):
        total = np.log(part["train"] + part["own_rule"])
        slope = np.polyfit(np.log(part[against]), total, 1)[0]
        print(
            f"{label}: seconds per round grow with {against} to the power {slope:.2f}"
        )
    write(frame, against)


def write(frame: pd.DataFrame, against: str) -> None:
    """Write the numbers and a figure of time and memory, all axes logarithmic."""
    beyond = frame["peak_mib"] - frame["imports_mib"]
    beyond = beyond.where(beyond > 0)  # a logarithmic axis has no place for nothing
    shown = pd.concat(
        [
            frame.assign(panel="Seconds per round", value=frame["train"]),
            frame.assign(panel="Peak memory beyond imports (MiB)", value=beyond),
        ]
    )
    fig, _ = plot.curves(
        shown,
        x=against,
        y="value",
        line="run",
        xlabel=against.capitalize(),
        percent=False,
        ylabel="",
    )
    for ax in fig.axes:
        ax.set(xscale="log", yscale="log")
        low, high = ax.get_ylim()
        wider = max(1, 10 / (high / low)) ** 0.5  # a decade, or noise looks large
        ax.set_ylim(low / wider, high * wider)
        layout.name_round_numbers(ax.xaxis)
        layout.name_round_numbers(ax.yaxis)
    name = "scaling" if against == "clients" else f"scaling_{against}"
    saving.save(fig, frame, OUT / name)


if __name__ == "__main__":
    main()
