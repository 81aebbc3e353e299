"""Share of evaluation in a round, for every method: at Table III's settings, or digits.

Each method plays two rounds, so that the second has everything that is exchanged, and
that one's training is timed beside its two evaluations: under all rules, and of what
the paper reads out alone (``Spec.all_rules_every``). The share is that of a whole run,
in which one of ``all_rules_every`` rounds has all rules; ``before`` is the share if
every round had. One thread, processor's seconds, the least of several evaluations.

    python benchmarks/evaluation.py [--datasets cifar10 fashion] [--methods ...]
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch

from fedlib import papers, registry
from fedlib.data import facts
from fedlib.draw import plot, saving
from fedlib.runs.federation import federation

TABLE3 = ["local", "fedavg", "fedprox", "fedproto", "moon", "fedntd", "fedgkd"]
TABLE3 += ["fedproc", "fedmps"]
OUT = Path(__file__).parent.parent / "figures" / "bench"


def seconds(work: Callable[[], object], times: int) -> float:
    """Return the least of the processor's seconds that some work takes."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def measure(dataset: str, method: str) -> dict:
    """Return the seconds of a round's parts, and the share of evaluation."""
    small = dataset == "digits" and method != "fedmps"  # FedHPro's head is one layer
    changes = {"net": "digits_linear"} if small else {}
    spec = papers.fedmps(dataset, method, **changes)
    fed, every = federation(spec), spec.all_rules_every
    stepping = fed.rounds()
    next(stepping)
    begun = time.process_time()
    after = next(stepping)
    train = time.process_time() - begun
    whole = seconds(lambda: fed.evaluate(after), 2)
    own = seconds(lambda: fed.evaluate(after, every_rule=False), 3)
    mean = own + (whole - own) / every
    return {
        "dataset": dataset,
        "method": method,
        "train": round(train, 4),
        "all_rules": round(whole, 4),
        "own_rule": round(own, 4),
        "share": round(mean / (train + mean), 3),
        "before": round(whole / (train + whole), 3),
    }


def write(frame: pd.DataFrame, name: str) -> None:
    """Write the numbers and a figure of the shares."""
    titles = {name: facts(name).title for name in frame["dataset"].unique()}
    fig, _ = plot.bars(
        frame.replace({"dataset": titles}),
        x="method",
        y="share",
        group="dataset" if len(titles) > 1 else None,
        ylabel="Evaluation (% of a round)",
        wide=True,
    )
    saving.save(fig, frame, OUT / name)


def main() -> None:
    """Print the shares, and write them with a figure to ``figures/bench``."""
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--datasets", nargs="+", default=["cifar10", "fashion"])
    options.add_argument("--methods", nargs="+", help="default: Table III's; 'all'")
    options.add_argument("--name", default="evaluation", help="of the files")
    chosen = options.parse_args()
    methods = chosen.methods or TABLE3
    torch.set_num_threads(1)
    rows = []
    for dataset in chosen.datasets:
        for method in [*registry.METHODS] if methods == ["all"] else methods:
            rows.append(measure(dataset, method))
            print(*rows[-1].values(), flush=True)
    write(pd.DataFrame(rows), chosen.name)


if __name__ == "__main__":
    main()
