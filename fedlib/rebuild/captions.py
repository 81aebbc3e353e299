"""What stands below a picture: data, budget, seeds, and who has not trained."""

import re
from collections.abc import Collection, Mapping, Sequence
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


def _seeds(seeds: Sequence[int], columns: Collection[str]) -> list[str]:
    """Return what a picture with these columns shows of several seeds, or of one."""
    if len(seeds) < 2:
        return ["one seed"] if seeds else []
    if "sd" in columns:
        return [f"mean and one sd of {len(seeds)} seeds"]
    if "channel" in columns:  # grey values
        return [f"images of seed {seeds[0]} alone, scores of {len(seeds)} seeds"]
    if "percent" in columns:  # of all values
        return [f"values of {len(seeds)} seeds together"]
    return [f"mean of {len(seeds)} seeds"]


def budget(about: Mapping[str, Any], columns: Collection[str] = ()) -> str:
    """Return one line of an artefact's provenance, to stand in its pictures.

    Parameters
    ----------
    about : mapping
        What the JSON beside an artefact holds.
    columns : list of str
        Those of the picture's numbers: they say what it shows of several seeds.
    """
    titles = {part["name"]: part["title"] for part in about["data"]}
    texts: dict[str, list[str]] = {"reduced": [], "not_paper_data": []}
    for note in about["notes"]:
        texts.setdefault(note["kind"], []).append(note["text"])
    said = _reduced(titles, about["runs"], texts["reduced"])
    said += _seeds(about["seeds"], columns)
    for name in (text.removesuffix(OTHER_DATA) for text in texts["not_paper_data"]):
        said.append(f"{titles.get(name, name)} is no data of the paper")
    if alike := untrained(about["runs"]):
        said.append(f"not trained enough to differ in any digit: {', '.join(alike)}")
    text = "; ".join(said) + "." if said else ""
    text = re.sub(r"\w+", lambda match: _net(match[0]), text)
    return text[:1].upper() + text[1:]


def _reduced(
    titles: Mapping[str, str], runs: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> list[str]:
    """Return each data set's title with its rounds and cuts, then the cuts of all."""
    cuts: dict[str, list[str]] = {name: [] for name in titles}
    of_all = []
    for text in (note.removeprefix(REDUCED) for note in notes):
        name, _, cut = text.partition(", ")
        if name in cuts:
            cuts[name].append(cut)
        else:
            of_all.append(text)
    said = []
    for name, title in titles.items():
        rounds = {run["rounds"] for run in runs if run["dataset"] == name}
        words = cuts[name]
        if rounds and not any(" rounds" in part for part in [*words, *of_all]):
            words = [f"{max(rounds)} rounds", *words]
        said.append(": ".join(filter(None, [title, ", ".join(words)])))
    return [*said, *of_all]


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
