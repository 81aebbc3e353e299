"""A client-step of several methods: fedlib's cohort against an ordinary PyTorch loop.

A method's third round is caught where its clients start to train, so that prototypes
and generators are there; then the same clients train on the same batches in two ways,
alternately: side by side (``train_local``), and one after another with torch's own
layers and an optimiser for each. The loss is the method's own in both; in the ordinary
loop its forward passes go through ``functional_call``, some 5 % of a small net's step.
Medians; the share of the device's matrix rate counts convolutions and linear layers.
Both compute where ``FEDLIB_DEVICE`` says; on a GPU batching saves launches, on the CPU
it brings kernels of our own.

    [FEDLIB_DEVICE=cuda] python benchmarks/training.py [--passes 5] [--only NAME ...]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedlib import papers
from fedlib.core import method
from fedlib.core.local import Batch, Cohort, Task, train_local
from fedlib.core.net import Net, State
from fedlib.core.shards import Random, plan_of
from fedlib.core.training import Training
from fedlib.core.training import optimiser as optimiser_of
from fedlib.core.tree import take
from fedlib.draw import looks, plot, saving
from fedlib.runs import device
from fedlib.runs.federation import federation
from fedlib.runs.spec import Spec

OUT = Path(__file__).parent.parent / "figures" / "bench"
STEPS = 37  # of each client at most: an epoch of few-shot Fashion-MNIST
SIDE = {"cpu": 512, "cuda": 8192}  # of the matrices whose product tells a device's rate
WORKLOADS: dict[str, Callable[[], Spec]] = {
    "FedAvg, Fashion-MNIST": lambda: papers.fedmps(
        "fashion", "fedavg", net="mnist_cnn_plain"
    ),
    "FedProto, Fashion-MNIST": lambda: papers.fedmps(
        "fashion", "fedproto", net="mnist_cnn_plain"
    ),
    "FedAvg, Dirichlet": lambda: papers.fedpa(
        "fashion", "fedavg", net="mnist_cnn_plain"
    ),
    "FedMPS, CIFAR-10": lambda: papers.fedmps("cifar10", "fedmps"),
    "FedMPS, Fashion-MNIST": lambda: papers.fedmps("fashion", "fedmps"),
    "GFPL, MNIST": lambda: papers.gfpl("mnist", "gfpl"),
    "FedPA, Fashion-MNIST": lambda: papers.fedpa("fashion", "fedpa"),
    "FedAvg, ResNet-10": lambda: papers.fedhpro(
        "cifar10", "fedavg", training={"local_steps": 2}
    ),
}


class Caught(Exception):
    """Ends a round where its clients begin to train."""


def caught(spec: Spec) -> dict[str, Any]:
    """Return what the third round's clients are trained with."""
    given: dict[str, Any] = {}

    def catch(cohort, task, training, net, random, **how):
        given.update(cohort=cohort, task=task, training=training, net=net)
        given.update(random=random, how=how)
        raise Caught

    fed = device.moved(federation(spec), device.chosen())
    stepping = fed.rounds()
    quick = {"local_steps": 2, "local_epochs": 1}
    short = train_local

    def briefly(cohort, task, training, *others, **how):
        return short(cohort, task, training.model_copy(update=quick), *others, **how)

    with mock.patch.object(method, "train_local", briefly):
        next(islice(stepping, 1, None))
    with mock.patch.object(method, "train_local", catch):
        try:
            next(stepping)
        except Caught:
            return given
    raise RuntimeError(f"{spec.method}: its clients do not train by train_local")


def ordinary(
    cohort: Cohort, task: Task, training: Training, net: Net, random: Random
) -> list[State]:
    """Train the clients one after another; return their weights."""
    state, shards, buffers = cohort.state, cohort.shards, net.buffers
    trained = []
    for client, number in enumerate(shards.ids):
        one = {k: v[client].clone() for k, v in state.items()}
        weights = {k: v.requires_grad_() for k, v in one.items() if k not in buffers}
        kept = {k: v for k, v in one.items() if k in buffers}
        optimiser = optimiser_of([{"params": list(weights.values())}], training)
        plan = plan_of(shards, client, training, random)
        keys = net.dropout_keys
        drawn = torch.randint(
            2**62,
            (len(plan.spans), len(keys)),
            generator=random("dropout", number),
        )
        extra = take(cohort.extra, client)
        for step, (start, end) in enumerate(plan.spans):
            rows = plan.order[start:end]
            x, y = shards.inputs(rows, plan.draws[start:end]), shards.y[rows]
            anew = task.draw(number, step) if task.draw else {}
            masks = dict(zip(keys, drawn[step], strict=True))
            batch = Batch(x, y, extra | anew)
            total = task.loss(weights | kept | masks, batch).total
            optimiser.zero_grad()
            total.backward()
            optimiser.step()
        trained.append({k: v.detach() for k, v in (weights | kept).items()})
    return trained


def clock() -> float:
    """Return the time when the device has done what it was told."""
    if device.chosen().type == "cuda":
        torch.cuda.synchronize(device.chosen())
    return time.perf_counter()


def matrix_rate() -> float:
    """Return the device's rate in products of square matrices, in GFLOP/s."""
    side = SIDE[device.chosen().type]
    a = torch.randn(side, side)
    times = []
    for _ in range(30):
        begun = clock()
        a @ a
        times.append(clock() - begun)
    return 2 * side**3 / min(times) / 1e9


def compare(name: str, spec: Spec, passes: int, rate: float) -> dict:
    """Time both loops alternately."""
    given = caught(spec)
    training, how = given.pop("training"), given.pop("how")
    size = training.local_steps or STEPS
    training = training.model_copy(update={"local_steps": min(size, STEPS)})
    cohort = given["cohort"]._replace(moments={})  # both begin afresh
    main = (given["task"], training, given["net"], given["random"])
    work = {
        "plain": lambda: ordinary(cohort, *main),
        "cohort": lambda: train_local(cohort, *main, **how),
    }
    times: dict[str, list[float]] = {k: [] for k in work}
    found: dict[str, Any] = {}
    for _ in range(passes + 1):
        for kind, run in work.items():
            begun = clock()
            found[kind] = run()
            times[kind].append(clock() - begun)
    clients = len(cohort.shards.ids)
    steps = clients * training.local_steps
    with FlopCounterMode(display=False) as counter:
        once = training.model_copy(update={"local_steps": 1})
        ordinary(cohort.at([0]), given["task"], once, given["net"], given["random"])
    milliseconds = {k: statistics.median(v[1:]) * 1e3 / steps for k, v in times.items()}
    stacked = found["cohort"].state
    gap = max(
        float((one[k] - stacked[k][i]).abs().max())
        for i, one in enumerate(found["plain"])
        for k in one
        if one[k].is_floating_point()
    )
    useful = counter.get_total_flops() / milliseconds["cohort"] / 1e6
    return {
        "workload": name,
        "device": str(device.chosen()),
        "clients": clients,
        "batch": training.batch_size,
        "plain_ms": round(milliseconds["plain"], 3),
        "cohort_ms": round(milliseconds["cohort"], 3),
        "ratio": round(milliseconds["plain"] / milliseconds["cohort"], 2),
        "gflops": round(useful, 1),
        "of_matrix_rate": round(useful / rate, 2),
        "largest_gap": gap,
    }


def main() -> None:
    """Print a line for every workload, and write the table and its picture."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--passes", type=int, default=5)
    options.add_argument("--only", nargs="*", default=list(WORKLOADS))
    options.add_argument("--write", action="store_true", help="to figures/bench")
    chosen = options.parse_args()
    try:
        where = device.chosen()
    except ValueError as error:
        options.error(str(error))
    torch.set_num_threads(1)
    rows = []
    with device.computing(where):
        rate = matrix_rate()
        print(f"torch {torch.__version__}, {device.kernel()}, {device.describe(where)}")
        print(f"{rate:.0f} GFLOP/s in products of {SIDE[where.type]} x as many")
        for name in chosen.only:
            rows.append(compare(name, WORKLOADS[name](), chosen.passes, rate))
            print(rows[-1], flush=True)
    if chosen.write:
        name = "training" if where.type == "cpu" else f"training_{where.type}"
        table = pd.DataFrame(rows)
        if (before := OUT / f"{name}.csv").exists():  # other rows stay
            kept = pd.read_csv(before)
            kept = kept[~kept["workload"].isin(chosen.only)]
            table = pd.concat([table, kept])
            place = {name: i for i, name in enumerate(WORKLOADS)}
            table = table.sort_values("workload", key=lambda names: names.map(place))
        write(table, name)


def write(table: pd.DataFrame, name: str) -> None:
    """Write the numbers and a figure of the ratios, the ordinary loop as a line."""
    shown = table.assign(workload=table["workload"].str.replace(", ", "\n"))
    fig, _ = plot.bars(
        shown,
        x="workload",
        y="ratio",
        ylabel="Speed (ordinary loop = 1)",
        percent=False,
        wide=True,
    )
    fig.axes[0].axhline(1, color=looks.GREY, linewidth=1, linestyle="--", zorder=3)
    OUT.mkdir(parents=True, exist_ok=True)
    saving.save(fig, table, OUT / name)


if __name__ == "__main__":
    main()
