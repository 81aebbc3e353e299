"""Which runs a printed accuracy is of, and what they reached.

A run is looked for by its setting, data, partition, method, net and budget, among the
published ones and among all that artefacts have written beside their files.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from fedlib import papers, registry
from fedlib.papers import TABLES, budget, placing
from fedlib.papers.source import Accuracies
from fedlib.partitions import SCHEMES
from fedlib.runs import published
from fedlib.runs.beside import reference
from fedlib.runs.spec import SettingError, Spec
from fedlib.support.paths import figures_dir

SOURCES = tuple(source for paper in TABLES.values() for source in paper.sources)
PUBLISHED = "results"  # where a run is from that no artefact has written
RELEASED = MappingProxyType({"variant": "reference"})
# Columns of a table of accuracies that a run is made of; ``partition`` is the scheme.
PLACED = (
    *("alpha", "imbalance", "participation", "ways", "spread", "shot_spread"),
    "virtual_per_class",
)


class Run(NamedTuple):
    """A published run, or one behind an artefact, as its provenance has it."""

    artefact: str  # "<paper>/<name>", or PUBLISHED
    spec: Spec
    accuracy: Mapping[str, Any]  # by the rule of the method's paper, in percent


class Found(NamedTuple):
    """The runs of one setting, over their seeds."""

    mean: float = float("nan")
    sd: float = float("nan")  # over seeds (ddof 1), where there are several
    seeds: int = 0
    cut: Sequence[str] = ()  # in words, what of the budget


def runs(preset: str) -> dict[str, list[Run]]:
    """Return every run that any artefact of a preset has written with its accuracy.

    Published runs are of all presets but ``quick``. All stand under the name of their
    data set. A setting that did not exist when a run was written has today's default.

    Raises
    ------
    ValueError
        A run has a setting that no longer exists.
    """
    written: list[tuple[str, str, dict, Mapping[str, Any] | None]] = []
    for path in sorted((figures_dir() / preset).glob("*/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for run in record.get("runs", []):
            if "spec" in run:
                name = record["artefact"]
                fields = run["spec"], run.get("accuracy")
                written.append((name, f"{preset}/{name}", *fields))
    for path, record in published.records() if preset != "quick" else ():
        where = "/".join(path.parts[-3:])
        written.append((PUBLISHED, where, record.spec, record.accuracy))
    by_dataset: dict[str, list[Run]] = {}
    for name, where, settings, accuracy in written:
        if accuracy is None:
            continue
        try:
            spec = Spec.of(**settings)
        except SettingError as error:
            raise ValueError(f"{where}: {error}") from error
        by_dataset.setdefault(spec.dataset, []).append(Run(name, spec, accuracy))
    return by_dataset


def text_of(source: Accuracies, wanted: Mapping[str, Any]) -> str | None:
    """Return the run of a printed row, as notebooks write it; None: not implemented."""
    variant = wanted.get("variant")
    if variant is None:
        return wanted["method"]
    return source.runs.get((wanted["method"], variant))


def setting(
    source: Accuracies,
    wanted: Mapping[str, Any],
    reading: Mapping[str, str] = MappingProxyType({}),
) -> Spec | None:
    """Return the run that a printed number is of; None where none is implemented.

    Where the paper says nothing the paper's protocol holds, and of a method the
    defaults of its hyper-parameters, which are the paper's own reading of it.

    Parameters
    ----------
    source : Accuracies
    wanted : mapping
        The row of the paper's table, without empty cells.
    reading : mapping
        Switches of another reading of the same row, such as ``RELEASED``, as in
        notebooks. Those of the row itself come first.

    Returns
    -------
    Spec or None
        None, too, for a variant of a method that has none.
    """
    text = text_of(source, wanted)
    if text is None:
        return None
    method, switches = placing.parsed(text)
    fields = registry.method(method).hp.model_fields
    if "variant" in reading and "variant" not in fields:
        return None
    switches = dict(reading) | switches
    dataset = wanted["dataset"]
    given = {name: wanted[name] for name in PLACED if name in wanted}
    given |= source.settings.get(dataset, {})
    if wanted.get("partition") in SCHEMES:  # else the protocol's own
        given["scheme"] = wanted["partition"]
    if wanted.get("rounds"):  # until which it ran; 0 where nothing is sent
        given["rounds"] = int(wanted["rounds"])
    general, hp = placing.switched(source.paper, method, switches)
    changes = placing.placed(source.paper, dataset, method, given | general)
    changes["hp"] = changes.get("hp", {}) | hp
    return papers.BUILDERS[source.paper](dataset, method, **changes)


class Printed(NamedTuple):
    """A printed accuracy, by the runs that it is of."""

    paper: str
    table: str
    row: int  # of the reference file
    own: Spec  # by the paper's own reading of its method
    released: Spec | None  # by the released one; None where the method has none


def printed_accuracies() -> list[Printed]:
    """Return every accuracy that a paper prints and that a run can be of."""
    numbers = []
    for source in SOURCES:
        if not isinstance(source, Accuracies):
            continue
        table = reference(source.paper, source.table)
        for number, row in enumerate(table.to_dict("records")):
            settings = {
                name: value for name, value in row.items() if not pd.isna(value)
            }
            own = setting(source, settings) if "mean" in settings else None
            if own is not None:
                released = setting(source, settings, RELEASED)
                numbers.append(
                    Printed(source.paper, source.table, number, own, released)
                )
    return numbers


def _number(run: Run, source: Accuracies, domain: str | None) -> float | None:
    """Return a run's accuracy as a table prints it, of a domain or of all."""
    if domain is None or domain == "average":
        return run.accuracy[source.value]
    return run.accuracy.get("groups", {}).get(domain)


def reached(
    source: Accuracies, wanted: Mapping[str, Any], full: Spec | None, there: list[Run]
) -> Found:
    """Return what runs of a setting reached, mean and sd over their seeds.

    Of runs that differ in their budget those count that cut nothing, the shortest of
    them; else those with the most rounds. A seed counts once: the published run, else,
    where artefacts have several, that of the table's own, else of the first by name.
    Of a table that is of one seed (``Accuracies.seed``) no other counts.
    """
    if source.seed is not None:
        there = [run for run in there if run.spec.seed == source.seed]
    groups: dict[tuple, dict[int, float]] = {}
    words: dict[tuple, list[str]] = {}
    own = f"{source.paper}/{source.table}"
    places = [PUBLISHED, own]
    for run in sorted(
        there,
        key=lambda run: (*(run.artefact != name for name in places), run.artefact),
    ):
        cut = None if full is None else budget.cut(run.spec, full)
        number = _number(run, source, wanted.get("domain"))
        if cut is None or number is None:
            continue
        rounds = run.spec.rounds if cut == [] else -run.spec.rounds
        key = (bool(cut), rounds, len(cut), *cut)
        groups.setdefault(key, {}).setdefault(run.spec.seed, number)
        words[key] = cut
    if not groups:
        return Found()
    best = min(groups)
    numbers = pd.Series(groups[best])
    return Found(numbers.mean(), numbers.std(), len(numbers), words[best])
