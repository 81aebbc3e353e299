"""What stands below a picture: data, budget, seeds, and who has not trained."""

import re
from collections.abc import Mapping
from typing import Any

from fedlib import registry

REDUCED = "reduced budget: "  # how a note of a cut budget begins
NETS = {
    "digits_bn": "a small net with BatchNorm",
    "fedpa_cnn": "FedPA's CNN",
    "lenet": "LeNet",
    "resnet10": "ResNet-10",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
}  # what they are called in print; others lose their underscores
OTHER_DATA = " is not a data set of the paper"  # how one of other data ends


def budget(about: Mapping[str, Any], spread: bool = False) -> str:
    """Return one line of an artefact's provenance, to stand in its pictures.

    Parameters
    ----------
    about : mapping
        What the JSON beside an artefact holds.
    spread : bool
        Whether the picture shows a standard deviation over seeds.
    """
    titles = {part["name"]: part["title"] for part in about["data"]}
    cuts: dict[str, list[str]] = {name: [] for name in titles}
    others, own = [], []
    for note in about["notes"]:
        text = note["text"]
        name, _, cut = text.removeprefix(REDUCED).partition(", ")
        if note["kind"] == "not_paper_data":
            name = text.removesuffix(OTHER_DATA)
            others.append(f"{titles.get(name, name)} is no data of the paper")
        elif note["kind"] == "reduced":
            cuts[name].append(cut) if name in cuts else own.append(
                text.removeprefix(REDUCED)
            )
    said = []
    for name, title in titles.items():
        rounds = {run["rounds"] for run in about["runs"] if run["dataset"] == name}
        words = cuts[name]
        if rounds and not any(" rounds" in part for part in [*words, *own]):
            words = [f"{max(rounds)} rounds", *words]
        said.append(": ".join(filter(None, [title, ", ".join(words)])))
    said += own
    seeds = len(about["seeds"])
    if seeds:
        shown = "mean and one sd" if spread and seeds > 1 else ""
        number = "one seed" if seeds == 1 else f"{seeds} seeds"
        said.append(f"{shown} of {number}" if shown else number)
    said += others
    if alike := untrained(about["runs"]):
        said.append(f"not trained enough to differ in any digit: {', '.join(alike)}")
    text = "; ".join(said) + "." if said else ""
    return re.sub(r"\w+", lambda match: _net(match[0]), text)


def _net(word: str) -> str:
    return NETS.get(word, word.replace("_", " "))


def untrained(runs: list[dict[str, Any]]) -> list[str]:
    """Return methods that reach the same accuracy as another one, to the last digit.

    So do methods whose models still predict one class: they cannot be compared yet. It
    is said of methods that do so in all their runs.
    """
    groups: dict[tuple, dict[str, bool]] = {}
    by_method: dict[str, list[bool]] = {}
    for run in runs:
        if not run.get("accuracy"):
            return []
        spec = run.get("spec", {})
        reached = tuple(run["accuracy"].get(k) for k in ("last", "best", "mean_last5"))
        same = (run["dataset"], run["seed"], str(spec.get("partition")), *reached)
        groups.setdefault(same, {})[run["method"]] = True
    for methods in groups.values():
        for method in methods:
            by_method.setdefault(method, []).append(len(methods) > 1)
    return [registry.title(method) for method, alike in by_method.items() if all(alike)]
