"""All numbers of the papers' tables against ours: what came out the same, what not.

An accuracy is looked for among the published runs, and among all those that artefacts
have written beside their files, by its setting: data, partition, method, net, budget.
Other numbers (gains, counts, ratios, distances) stand in the table of one notebook,
which has put the paper's number and ours into one row; the row is found by its
settings, and must hold that number.
"""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedlib import papers, registry
from fedlib.data import DATASETS
from fedlib.papers import TABLES, budget, study
from fedlib.papers.source import Accuracies, Kind, Origin, Source
from fedlib.partitions import SCHEMES
from fedlib.runs import published
from fedlib.runs.reports import reference
from fedlib.runs.spec import SettingError, Spec
from fedlib.support.paths import figures_dir

PUBLISHED = "results"  # where a run is from that no artefact has written
POINTS = 1.5  # of accuracy, where twice the paper's sd is less
SHARE = 0.1  # of other measured quantities
GAIN = 0.5  # of a printed gain: ours has its sign, and half to one and a half its size
JUDGED = ("reproduced", "off")  # by a run of the paper's reading and its whole budget
RAN = (*JUDGED, "reduced", "reference only")
STATES = (*RAN, "not run", "not implemented", "not available")
SETTINGS = (
    *("dataset", "domain", "partition", "alpha", "imbalance", "participation", "ways"),
    *("spread", "shot_spread", "virtual_per_class", "round"),
)
# Columns of a table of accuracies that a run is made of; ``partition`` is the scheme.
PLACED = (
    *("alpha", "imbalance", "participation", "ways", "spread", "shot_spread"),
    "virtual_per_class",
)
ROWS = ("method", "variant", "distance", "cost")  # what a row is named by
PREFIX = {
    **{"alpha": "α ", "ways": "n = ", "imbalance": "tail ", "round": "round "},
    **{"shot_spread": "spread ", "virtual_per_class": "images per class "},
    "participation": "participation ",
}
NAMES = {"paper": registry.title}  # how ``tables.render`` prints what CSVs hold by name
SHORT = {"nid1": "NID1", "nid2": "NID2", "lda": "LDA", "none": "without all"}

KINDS = {
    "points": "accuracies",
    "gain": "gains",
    "exact": "counts",
    "share": "other quantities",
}


SOURCES = tuple(source for paper in TABLES.values() for source in paper.sources)
PAPERS = tuple(dict.fromkeys(source.paper for source in SOURCES))


class Run(NamedTuple):
    """A published run, or one behind an artefact, as its provenance has it."""

    artefact: str  # "<paper>/<name>", or PUBLISHED
    spec: Spec
    accuracy: Mapping[str, Any]  # by the rule of the method's paper, in percent


class Found(NamedTuple):
    """The runs of one setting, over their seeds."""

    mean: float = float("nan")
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
        for each in record.get("runs", []):
            if "spec" in each:
                name = record["artefact"]
                told = each["spec"], each.get("accuracy")
                written.append((name, f"{preset}/{name}", *told))
    for path, record in published.records() if preset != "quick" else ():
        where = "/".join(path.parts[-3:])
        written.append((PUBLISHED, where, record.spec, record.accuracy))
    found: dict[str, list[Run]] = {}
    for name, where, settings, accuracy in written:
        if accuracy is None:
            continue
        try:
            spec = Spec.of(**settings)
        except SettingError as error:
            raise ValueError(f"{where}: {error}") from error
        found.setdefault(spec.dataset, []).append(Run(name, spec, accuracy))
    return found


def _text(source: Accuracies, wanted: Mapping[str, Any]) -> str | None:
    """Return the run of a printed row, as notebooks write it; None: not implemented."""
    variant = wanted.get("variant")
    if variant is None:
        return wanted["method"]
    return source.runs.get((wanted["method"], variant))


def setting(
    source: Accuracies, wanted: Mapping[str, Any], variant: str | None = None
) -> Spec | None:
    """Return the run that a printed number is of; None where none is implemented.

    Where the paper says nothing the paper's protocol holds, and of a method the
    defaults of its hyper-parameters, which are the paper's own reading of it.

    Parameters
    ----------
    source : Accuracies
    wanted : mapping
        The row of the paper's table, without empty cells.
    variant : str, optional
        ``"reference"`` for the released reading of the same row.

    Returns
    -------
    Spec or None
        None, too, for a variant of a method that has none.
    """
    text = _text(source, wanted)
    if text is None:
        return None
    method, switches = study.parsed(text)
    if variant is not None:
        if "variant" not in registry.method(method).hp.model_fields:
            return None
        switches = {"variant": variant} | switches
    dataset = wanted["dataset"]
    given = {name: wanted[name] for name in PLACED if name in wanted}
    given |= source.settings.get(dataset, {})
    if wanted.get("partition") in SCHEMES:  # else the protocol's own
        given["scheme"] = wanted["partition"]
    if wanted.get("rounds"):  # until which it ran; 0 where nothing is sent
        given["rounds"] = int(wanted["rounds"])
    general, hp = study.told(source.paper, method, switches)
    changes = study.placed(source.paper, dataset, method, given | general)
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
    found = []
    for source in SOURCES:
        if not isinstance(source, Accuracies):
            continue
        table = reference(source.paper, source.table)
        for number, row in enumerate(table.to_dict("records")):
            told = {name: value for name, value in row.items() if not pd.isna(value)}
            own = setting(source, told) if "mean" in told else None
            if own is not None:
                released = setting(source, told, "reference")
                found.append(Printed(source.paper, source.table, number, own, released))
    return found


def _number(run: Run, source: Accuracies, domain: str | None) -> float | None:
    """Return a run's accuracy as a table prints it, of a domain or of all."""
    if domain is None or domain == "average":
        return run.accuracy[source.value]
    return run.accuracy.get("groups", {}).get(domain)


def _found(
    source: Accuracies, wanted: Mapping[str, Any], full: Spec | None, there: list[Run]
) -> Found:
    """Return what runs of a setting reached, the mean over their seeds.

    Of runs that differ in their budget those count that cut nothing, the shortest of
    them; else those with the most rounds. A seed counts once: the published run, else,
    where artefacts have several, that of the table's own, else of the first by name.
    """
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
    numbers = groups[best].values()
    return Found(sum(numbers) / len(numbers), len(numbers), words[best])


def _reduced(path: Path) -> bool:
    """Return whether a table's provenance says that its budget was cut."""
    if not path.exists():
        return False
    notes = json.loads(path.read_text(encoding="utf-8"))["notes"]
    return any(note["kind"] == "reduced" for note in notes)


def _equal(column: pd.Series, value: Any) -> pd.Series:
    """Return where a column has a value; an empty cell goes with any."""
    if isinstance(value, str):
        return column.isna() | (column.astype(str) == value)
    return column.isna() | np.isclose(pd.to_numeric(column, "coerce"), value)


def _label(source: Source, wanted: pd.Series) -> str:
    """Return by what name a notebook's table has the row of a method or a variant."""
    variant = wanted.get("variant")
    if pd.isna(variant):
        return wanted["method"]
    label = source.labels.get(variant, variant)
    return label.format(method=registry.title(wanted["method"]))


def _row(source: Source, wanted: pd.Series, there: pd.DataFrame) -> pd.Series | None:
    """Return the row of a notebook's table with the settings of a paper's number.

    The notebook has put that number into it; a row without one is beside no number.

    Raises
    ------
    ValueError
        Several rows could be meant, or the row's own number of the paper is another.
    """
    shared = [name for name in (*SETTINGS, "cost") if name in wanted and name in there]
    equal = {name: wanted[name] for name in shared}
    if "method" in wanted and "method" in there:
        equal["method"] = _label(source, wanted)
    same = pd.Series(True, there.index)
    for name, value in equal.items():
        if not pd.isna(value):
            same = same & _equal(there[name], value)
    found = there[same].dropna(subset=[source.theirs, source.ours])
    if "value" in there:
        protocol = _protocol(source.paper, wanted["dataset"])
        rows = found[["setting", "value"]].to_dict("records")
        swept = [_swept(row, wanted, protocol) for row in rows]
        found = found.loc[np.array(swept, bool)]
    where = f"{source.paper}/{source.table}: {source.column} {wanted['number']}"
    if found[source.ours].nunique() > 1:
        raise ValueError(
            f"{where} has the settings of {len(found)} rows of what its notebook wrote"
        )
    told = pd.to_numeric(found[source.theirs], "coerce")
    if not np.isclose(told, wanted["number"]).all():
        raise ValueError(
            f"{where}: its notebook wrote {told.iloc[0]} beside these settings"
        )
    return found.iloc[0] if len(found) else None


def _protocol(paper: str, dataset: str) -> dict[str, Any]:
    """Return the settings that a paper's protocol has where a table tells none."""
    spec = papers.BUILDERS[paper](dataset, "fedavg")
    rest = {"imbalance": spec.imbalance, "participation": spec.participation}
    return rest | dict(spec.partition) | {"partition": spec.partition.scheme}


def _swept(row: Mapping[str, Any], wanted: pd.Series, protocol: dict) -> bool:
    """Return whether a row of a sweep has the settings of a paper's row.

    Parameters
    ----------
    row : mapping
        Its ``setting`` and ``value``.
    wanted : Series
        Settings; an empty one goes with any.
    protocol : dict
        Values of the settings that this row does not sweep.
    """
    name = {"scheme": "partition"}.get(row["setting"], row["setting"])
    own = {} if pd.isna(row["value"]) else {name: row["value"]}
    for name, value in (protocol | own).items():
        told = wanted.get(name)
        if pd.isna(told):
            continue
        same = (
            value == told if isinstance(told, str) else np.isclose(float(value), told)
        )
        if not same:
            return False
    return True


def _near(kind: Kind, number: float, sd: float) -> float:
    """Return how far ours may be from a paper's number."""
    if kind == "exact":
        return 1e-9
    if kind in ("share", "gain"):
        return {"share": SHARE, "gain": GAIN}[kind] * abs(number)
    return POINTS if np.isnan(sd) else max(2 * sd, POINTS)


def _labels(table: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the name of a row and of a column of the printed table.

    A setting that a data set has throughout is not told.
    """
    named = [name for name in SETTINGS if name in table]
    within = table.groupby("dataset" if "dataset" in table else [0] * len(table))
    settings = [
        name
        for name in named
        if table[name].nunique(dropna=False) > 1
        and (name == "dataset" or (within[name].nunique(dropna=False) > 1).any())
    ]
    rows = [table[name].map(_told(name)) for name in ROWS if name in table]
    columns = [table[name].map(_told(name)) for name in settings]
    return _joined(rows, table), _joined(columns, table)


def _joined(texts: list[pd.Series], table: pd.DataFrame) -> pd.Series:
    rows = zip(*texts, strict=True) if texts else [()] * len(table)
    return pd.Series([", ".join(filter(None, row)) for row in rows], index=table.index)


def _told(name: str) -> Callable[[Any], str]:
    """Return how a setting's value is told."""

    def told(value: Any) -> str:
        if pd.isna(value):
            return ""
        if name == "method":
            return registry.title(value)
        if name == "dataset":
            return DATASETS[value].title
        text = value.replace("_", " ") if isinstance(value, str) else f"{value:g}"
        return PREFIX.get(name, "") + SHORT.get(text, text)

    return told


def cells(preset: str) -> pd.DataFrame:
    """Return every number of the papers' tables with ours, where it ran at a preset.

    Parameters
    ----------
    preset : str
        Whose folder of figures is read.

    Returns
    -------
    DataFrame
        paper, table, column (of its reference file), dataset, kind, row and setting (as
        a table is printed), number and sd (the paper's), ours (of the paper's own
        reading of its method), seeds, gap, near (how far ours may be off: twice the
        paper's sd over runs, at least 1.5 points of accuracy; half of a gain; nothing
        for counts; a tenth of other quantities), reference (of the released reading),
        budget (``full``, or what of it was cut), reduced and reference_reduced (whether
        it was), state (of ``STATES``), mark (of the reference file). Seeds and budget
        are of ours, where there is none of the reference; where the two budgets differ,
        both are told.

    Raises
    ------
    ValueError
        The settings of a paper's number are those of several rows of a table that a
        notebook wrote, or of a row with another number of the paper; a run that was
        written has a setting that no longer exists.
    """
    ran = runs(preset)
    parts = [_cells(source, figures_dir() / preset, ran) for source in SOURCES]
    return pd.concat(parts, ignore_index=True)


def _cells(source: Origin, figures: Path, ran: Mapping[str, list[Run]]) -> pd.DataFrame:
    table = reference(source.paper, source.table)
    runs_of_it = isinstance(source, Accuracies)
    column, kind = ("mean", "points") if runs_of_it else (source.column, source.kind)
    for name, value in ({} if runs_of_it else source.where).items():
        table = table[table[name] == value]
    row, setting = _labels(table)
    numbers = pd.to_numeric(table[column])
    sd = table["sd"] if "sd" in table and column == "mean" else float("nan")
    mark = table["mark"] if "mark" in table else pd.Series(pd.NA, table.index)
    found = pd.DataFrame(
        {
            **{"paper": source.paper, "table": source.table, "column": column},
            "dataset": table["dataset"] if "dataset" in table else "",
            **{"kind": kind, "row": row, "setting": setting},
            **{"number": numbers, "sd": sd},
        },
    )
    ours = (
        _by_runs(source, table, ran) if runs_of_it else _by_rows(source, table, figures)
    )
    found = found.join(pd.DataFrame(ours, table.index))
    found.insert(11, "gap", found["ours"] - found["number"])
    told = runs_of_it and source.sd_over == "runs"
    wide = found["sd"] if told else [float("nan")] * len(found)
    pairs = zip(found["number"], wide, strict=True)
    found.insert(12, "near", [_near(kind, number, sd) for number, sd in pairs])
    found["state"] = np.select(
        [
            mark.eq("unavailable").fillna(False).astype(bool),
            found.pop("absent"),
            found["ours"].isna() & found["reference"].notna(),
            found["ours"].isna(),
            found["reduced"] & (kind != "exact"),
            found["gap"].abs() <= found["near"] + 1e-9,
        ],
        [
            *("not available", "not implemented", "reference only", "not run"),
            *("reduced", "reproduced"),
        ],
        "off",
    )
    kept = found["number"].notna() | (found["state"] == "not available")
    return found.assign(mark=mark.astype("string"))[kept]


def _words(found: Found) -> str:
    """Return a budget in words: what was cut, or ``full``; empty without a run."""
    return ", ".join(found.cut) or ("full" if found.seeds else "")


def _by_runs(
    source: Accuracies, table: pd.DataFrame, ran: Mapping[str, list[Run]]
) -> list[dict[str, Any]]:
    """Return what runs of each row's setting reached, whatever artefact made them."""
    rows = []
    for wanted in table.to_dict("records"):
        told = {name: value for name, value in wanted.items() if not pd.isna(value)}
        text = _text(source, told)
        method = None if text is None else study.parsed(text)[0]
        there = ran.get(told["dataset"], [])
        there = [run for run in there if run.spec.method == method]
        own = released = Found()
        if there and "mean" in told:
            own = _found(source, told, setting(source, told), there)
            other = setting(source, told, "reference")
            released = _found(source, told, other, there)
        shown = own if own.seeds else released
        words = _words(shown)
        if own.seeds and released.seeds and own.cut != released.cut:
            words += f"; reference: {_words(released)}"
        rows.append(
            {
                **{"ours": own.mean, "seeds": shown.seeds},
                **{"reference": released.mean, "budget": words},
                **{"reduced": bool(shown.cut), "reference_reduced": bool(released.cut)},
                "absent": text is None,
            }
        )
    return rows


def _by_rows(
    source: Source, table: pd.DataFrame, figures: Path
) -> list[dict[str, Any]]:
    """Return what a notebook's table has beside each number of the paper."""
    folder = figures / source.paper
    path = folder / f"{source.file or source.table}.csv"
    there = pd.read_csv(path) if path.exists() else None
    cut = _reduced(folder / f"{source.table}.json")
    rows = []
    for wanted in table.to_dict("records"):
        series = pd.Series({**wanted, "number": float(wanted[source.column])})
        known = there is not None and not pd.isna(series["number"])
        hit = _row(source, series, there) if known else None
        seeds = hit["seeds"] if hit is not None and "seeds" in hit else 1
        row = {"ours": float("nan"), "seeds": 0, "reference": float("nan")}
        row |= {"reference_reduced": False}
        if hit is not None:
            row |= {"ours": float(hit[source.ours]), "seeds": int(seeds)}
        budget = ("reduced" if cut else "full") if hit is not None else ""
        absent = (wanted.get("method"), wanted.get("variant")) in source.missing
        row |= {"budget": budget, "reduced": budget == "reduced", "absent": absent}
        rows.append(row)
    return rows


def summary(board: pd.DataFrame) -> pd.DataFrame:
    """Return how many numbers of each paper and kind are in which state.

    Accuracies, gains, counts, and other measured quantities stand apart: that a count
    is the printed one says nothing of how well a method does.
    """
    kinds = board["kind"].map(KINDS)
    counts = pd.crosstab([board["paper"], kinds], board["state"])
    counts = counts.reindex(columns=list(STATES), fill_value=0)
    table = counts.assign(numbers=counts.sum(axis=1))
    table = table.rename_axis(columns=None).reset_index()
    places = [list(dict.fromkeys(board["paper"])), list(KINDS.values())]
    place = table.apply(
        lambda row: (places[0].index(row["paper"]), places[1].index(row["kind"])),
        axis=1,
    )
    order = ["paper", "kind", "numbers", *STATES]
    return printed(table.loc[place.sort_values().index, order].reset_index(drop=True))


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table for readers, headers in words."""
    named = table.copy()
    if "table" in named:
        named["table"] = named["table"].str.removeprefix("table")
    return named.rename(columns=lambda name: name.replace("_", " "))


def ran(board: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that ran, for printing: the paper's and ours."""
    found = board[board["state"].isin(RAN)]
    columns = ["paper", "table", "column", "row", "setting", "number", "sd"]
    ours = ["ours", "seeds", "gap", "near", "reference", "state", "budget"]
    return printed(found[[*columns, *ours]])


def tables(board: pd.DataFrame) -> pd.DataFrame:
    """Return what became of each printed table of accuracies, a row per data set.

    Returns
    -------
    DataFrame
        As ``printed``: paper, table, dataset (its title); numbers that the paper prints
        and our copy has; of these run (with the whole budget), within (near enough),
        cut (at less); orderings, settings in which two methods or more ran, and of
        these hold and open, as ``orderings`` has them; seeds, fewest to most; budget,
        in words, each once.
    """
    accuracy = board[(board.kind == "points") & (board.column == "mean")]
    accuracy = accuracy[accuracy.state != "not available"]
    rows = []
    for (paper, table, dataset), part in accuracy.groupby(
        ["paper", "table", "dataset"], sort=False
    ):
        ran = part[part.state.isin(RAN)]
        order = orderings(part)["ordering"]
        least, most = ran["seeds"].min(), ran["seeds"].max()
        span = [f"{n:.0f}" for n in dict.fromkeys([least, most]) if not pd.isna(n)]
        rows.append(
            {
                **{"paper": paper, "table": table},
                "dataset": DATASETS[dataset].title,
                "numbers": len(part),
                "run": int(part.state.isin(JUDGED).sum()),
                "within": int((part.state == "reproduced").sum()),
                "cut": int((part.state == "reduced").sum()),
                "orderings": len(order),
                "hold": int((order == "holds").sum()),
                "open": int((order == "open").sum()),
                **{"seeds": " to ".join(span), "budget": _budgets(ran)},
            }
        )
    columns = ["paper", "table", "dataset", "numbers", "run", "within", "cut"]
    columns += ["orderings", "hold", "open", "seeds", "budget"]
    return printed(pd.DataFrame(rows, columns=columns))


def orderings(board: pd.DataFrame) -> pd.DataFrame:
    """Return whether methods come in the paper's order where two or more of them ran.

    Two methods are level where our numbers are within ``POINTS`` of each other, as near
    as a number may be off.

    Returns
    -------
    DataFrame
        As ``printed``: paper, table, setting, methods (how many ran), leads and leads
        here (the best of those, by the paper's numbers and by ours), pairs (with
        different numbers in the paper), in order (those with the same sign here) and
        level; ordering: ``holds`` (all pairs), ``open`` (no pair is turned, some are
        level), ``leader holds`` or ``differs``; seeds (the fewest) and budget.
    """
    accuracy = board[(board.kind == "points") & (board.column == "mean")]
    ran = accuracy.dropna(subset="ours")
    rows = []
    for (paper, table, setting), part in ran.groupby(
        ["paper", "table", "setting"], sort=False
    ):
        theirs, ours = part["number"].to_numpy(), part["ours"].to_numpy()
        pairs = [
            (ours[i] - ours[j]) * np.sign(theirs[i] - theirs[j])
            for i, j in combinations(range(len(part)), 2)
            if theirs[i] != theirs[j]
        ]
        if not pairs:
            continue
        level = sum(abs(p) < POINTS for p in pairs)
        in_order = sum(p >= POINTS for p in pairs)
        here = part["row"].iloc[int(ours.argmax())]
        best = part["row"].iloc[int(theirs.argmax())]
        ahead = ours[theirs.argmax()] > ours.max() - POINTS
        turned = "leader holds" if ahead else "differs"
        kept = "open" if level else "holds"
        rows.append(
            {
                **{"paper": paper, "table": table, "setting": setting},
                **{"methods": len(part), "leads": best, "leads_here": here},
                **{"in_order": in_order, "level": level, "pairs": len(pairs)},
                "ordering": kept if in_order + level == len(pairs) else turned,
                **{"seeds": int(part["seeds"].min()), "budget": _budgets(part)},
            }
        )
    columns = ["paper", "table", "setting", "methods", "leads", "leads_here"]
    columns += ["in_order", "level", "pairs", "ordering", "seeds", "budget"]
    return printed(pd.DataFrame(rows, columns=columns))


def _budgets(part: pd.DataFrame) -> str:
    """Return the budgets of a setting's runs, each once."""
    return "; ".join(dict.fromkeys(part["budget"]))
