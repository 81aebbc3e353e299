"""What runs, data sets and logged numbers are called in tables and figures."""

from collections.abc import Sequence

import pandas as pd

from fedlib import registry
from fedlib.data import facts
from fedlib.runs.results import Result

# Titles of what runs log, where its name in words is not enough.
TITLES = {
    "align": "Alignment",
    "alignment": "Dot regression",
    "distance": "Distance to prototypes",
    "distance_high": "Distance of components, 90 %",
    "distance_low": "Distance of components, 10 %",
    "distance_median": "Distance of components, median",
    "entropy": "Cross-entropy to anchors",
    "gap": "Gap of anchors, after",
    "gap_before": "Gap of anchors, before",
    "hyper_cosine": "Cosine to centralised",
    "hyper_distance": "Distance to centralised",
    "mismatch": "Mismatch, after fitting",
    "mismatch_before": "Mismatch, before fitting",
    "moved": "Displacement",
    "norm": "Length of embeddings",
    "proto": "Prototype loss",
    "retrain_alignment": "Dot regression, retraining",
    "retrain_supervised": "Cross-entropy, retraining",
    "right": "Images classified right",
    "single_sample_protos": "Prototypes of one sample",
    "supervised": "Cross-entropy",
    "synthetic": "Cross-entropy, generated",
    "tuning": "Cross-entropy, virtual images",
}


def label(result: Result) -> str:
    """Return what a run is called, or its method.

    A method has its variant and switches behind it, where not the paper's. What else
    sets two runs apart, such as their training, a run does not know of itself:
    ``study.study`` calls its runs by what their texts say.
    """
    if result.called is not None:
        return result.called
    name, hp = result.spec.method, result.spec.hp
    if "variant" not in hp:
        return name
    variant = hp["variant"]
    plain = registry.method(name).hp(variant=variant).model_dump()
    switches = [] if variant == "paper" else [variant]
    switches += [
        f"{switch}={value}"
        for switch, value in hp.items()
        if isinstance(value, str) and value != plain[switch]
    ]
    return f"{registry.title(name)} ({', '.join(switches)})" if switches else name


def labels(results: Sequence[Result]) -> list[str]:
    """Return what each run is called in a table that has them all.

    Raises
    ------
    ValueError
        Two runs of one data set, name and seed: a mean would take them for two seeds.
    """
    names = [label(result) for result in results]
    seen: set[tuple[str, str, int]] = set()
    for name, spec in zip(names, (r.spec for r in results), strict=True):
        if (spec.dataset, name, spec.seed) in seen:
            raise ValueError(
                f"results: got two runs of {spec.dataset} called {name!r} with seed "
                f"{spec.seed}, expected one; dataclasses.replace(result, called=...) "
                "gives one another name"
            )
        seen.add((spec.dataset, name, spec.seed))
    return names


def logged_title(name: str) -> str:
    """Return the title in words of something that runs log."""
    return TITLES.get(name, name.replace("_", " ").capitalize())


def data_title(name: str) -> str:
    """Return how a data set is printed, with what is told of the copy at hand."""
    return facts(name).title


# How ``tables.render`` prints what CSVs hold by name.
NAMES = {"dataset": data_title, "method": registry.title}


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with data sets and methods named as printed, for display."""
    there = {column: NAMES[column] for column in NAMES if column in table}
    return table.assign(
        **{name: table[name].map(words) for name, words in there.items()}
    )


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with methods named as printed."""
    return table.assign(method=table["method"].map(registry.title))
