"""Which of the papers' numbers meet which run, at ``paper``: each its own, once.

The notebooks' own cells are executed, with runs whose accuracy says which run it is.
What they write, tables and runs, is read as the scoreboard reads it. The oracle are the
settings of a number's row in ``params/reference``, put into the paper's protocol here a
second time.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

import json
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from IPython.core.inputtransformer2 import TransformerManager

import fedlib
from fedlib import data, papers, registry
from fedlib.core.log import Log
from fedlib.data import DATASETS
from fedlib.draw import panels, planes, plot
from fedlib.methods import fedmps
from fedlib.papers import study
from fedlib.papers.fedmps import tables
from fedlib.papers.fedpa import generated
from fedlib.papers.source import Accuracies, Origin, Source
from fedlib.rebuild import artefacts, notebook, our_runs, parameters, scoreboard
from fedlib.runs import beside, reports, titles
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.support import paths

PAPERS = ("fedmps", "gfpl", "fedpa", "fedhpro")
SOURCES = [source for source in scoreboard.SOURCES if source.paper in PAPERS]
STEP = 100  # codes of two runs are so far apart; a domain's place is added
SAMPLES = 1_000_000  # of a test set: accuracy in percent times 10,000 is the code

# What the row of a variant has on, in the method's own switches.
OFF = {"low_weight": 0.0, "high_weight": 0.0, "soft_weight": 0.0}
FEDPA_OFF = {"generator_weight": 0.0, "proto_weight": 0.0, "adversarial_weight": 0.0}
PROTO = "prototypes"
VARIANTS: dict[tuple[str, str], dict[str, tuple[str, dict[str, Any]]]] = {
    ("fedmps", "table7"): {
        "none": ("fedmps", OFF),
        "low": ("fedmps", {k: v for k, v in OFF.items() if k != "low_weight"}),
        "high": ("fedmps", {k: v for k, v in OFF.items() if k != "high_weight"}),
        "soft": ("fedmps", {k: v for k, v in OFF.items() if k != "soft_weight"}),
        "low+high": ("fedmps", {"soft_weight": 0.0}),
        "low+high+soft": ("fedmps", {}),
    },
    ("gfpl", "table2"): {
        "none": ("local", {}),
        "pseudo": ("gfpl", {"dual_classifier": False}),
        "dual_classifier": ("gfpl", {"pseudo": False}),
        "dual_classifier+pseudo": ("gfpl", {}),
    },
    ("fedpa", "table4"): {
        "none": ("fedpa", FEDPA_OFF),
        "prototype": ("fedpa", FEDPA_OFF | {"proto_weight": None}),
        "generator": ("fedpa", FEDPA_OFF | {"generator_weight": None}),
        "adversarial+generator": ("fedpa", {"proto_weight": 0.0}),
        "generator+prototype": ("fedpa", {"adversarial_weight": 0.0}),
        "adversarial+generator+prototype": ("fedpa", {}),
    },
    ("fedhpro", "table5"): {
        "none": ("fedhpro", {"contrast_weight": 0.0, "align_weight": 0.0}),
        "contrast": ("fedhpro", {"align_weight": 0.0}),
        "align": ("fedhpro", {"contrast_weight": 0.0}),
        "contrast+align": ("fedhpro", {}),
    },
    ("fedhpro", "table6"): {
        "hyper": ("fedhpro", {}),
        "prototypes_in_contrast": ("fedhpro", {"contrast_with": PROTO}),
        "prototypes_in_align": ("fedhpro", {"align_with": PROTO}),
        "prototypes_in_both": (
            "fedhpro",
            {"contrast_with": PROTO, "align_with": PROTO},
        ),
    },
}
# Hyper-prototypes in place of a method's own prototypes; by method.
HYPER = {
    "fedproto": {"contrast_weight": 0.0, "hpal": "mse"},
    "fedtgp": {"contrast_weight": 0.0, "hpal": "mse"},  # its pull is 1, too
}
# Rows of our own that stand beside a number of the paper that knows no such switch.
CONTROLS = {
    ("fedmps", "table3"): {"variant": "reference", **fedmps.REFERENCE},
    ("fedmps", "table7"): {"variant": "reference", **fedmps.REFERENCE},
    ("fedpa", "table4"): {"po_dist": "mse"},
    ("fedhpro", "table5"): {"hpal": "raw_sum"},
    ("fedhpro", "table6"): {"hpal": "raw_sum"},
}
# Tables whose numbers stand in another's notebook, too.
BORROWED = {
    ("fedhpro", "table3"): [
        s for s in SOURCES if (s.paper, s.table) == (PAPERS[3], "table2")
    ]
}
# What a table's protocol has besides the settings of a row: the seed and length of its
# runs, and of GFPL's ablation a block that its wider spread of shots fits into.
BESIDE = {"seed", "rounds", "eval_every", "partition.block"}

# (paper, table, column) -> rows without a run, and why.
ABSENT: dict[tuple[str, str, str], dict[str, list[dict[str, Any]]]] = {
    ("fedmps", "table6", "mean"): {
        "lost in our copy of the paper": [{"ways": 5}],
    },
    ("fedhpro", "table2", "mean"): {
        "not on the slides": [{"mark": "unavailable"}],
    },
    ("fedhpro", "table3", "mean"): {
        "the slides do not say which of their parts hyper-prototypes replace": [
            {"method": "fedgmkd"},
            {"method": "fedsa"},
        ],
    },
    ("fedhpro", "table3", "gain"): {
        "as for the means": [{"method": "fedgmkd"}, {"method": "fedsa"}],
    },
}


class Runs:
    """Hands out results whose every number is a code of its run."""

    def __init__(self):
        self.specs: list[Spec] = []
        self.codes: dict[str, int] = {}

    def code(self, spec: Spec) -> int:
        """Return the code of a run; runs that differ in their seed share it."""
        told = spec.model_dump_json(exclude={"seed"})
        if told not in self.codes:
            self.codes[told] = len(self.specs) + 1
            self.specs.append(spec)
        return self.codes[told]

    def of(self, code: float) -> Spec:
        """Return the run of a code."""
        assert code == round(code)
        return self.specs[round(code) - 1]

    def results(self, specs: list[Spec], *_: Any, **__: Any) -> list[Result]:
        return [self.result(spec) for spec in specs]

    def result(self, spec: Spec) -> Result:
        """Return a run that was evaluated once, in the round of its code."""
        code, method = self.code(spec), registry.method(spec.method)
        model, rule = method.rule(method.hp(**spec.hp))
        groups = len(DATASETS[spec.dataset].groups) if spec.test == "groups" else 1
        each = torch.full((1, spec.clients), SAMPLES)
        whole = torch.full((1, groups), SAMPLES)
        right = STEP * code
        log = {
            "evaluated": torch.tensor([code]),
            "cohort": torch.zeros(2, spec.clients, dtype=torch.int64),
            "samples": each,
            "full_samples": whole,
            f"accuracy/{model}/{rule}": torch.full_like(each, right),
            f"full/{model}/{rule}": right + torch.arange(groups)[None],
        }
        if spec.test in ("clients", "pooled"):
            del log[f"full/{model}/{rule}"]
        for part in method.counted:
            log[f"sent/{part.direction}/{part.field}"] = torch.zeros(2, 2)
        for part in method.counted[:1]:  # in thousands, over all clients
            name = f"sent/{part.direction}/{part.field}"
            log[name][:, 0] = 1000.0 * code
        return Result(spec, "", Log.of(log))


def stand_in(name: str) -> SimpleNamespace:
    """Return what tables print of a data set, without its images."""
    entry = DATASETS[name]
    groups = SimpleNamespace(names=entry.groups) if entry.groups else None
    title = entry.title + (" (JPEG)" if name == "cifar10" else "")
    classes = tuple(str(c) for c in range(entry.classes or 0))
    return SimpleNamespace(
        name=name, title=title, classes=classes, groups=groups, fingerprint=""
    )


def known(name: str) -> SimpleNamespace:
    """Return the same as facts, of which groups are names."""
    return SimpleNamespace(**vars(stand_in(name)) | {"groups": DATASETS[name].groups})


def drawn(frame: pd.DataFrame, *_: Any, **__: Any):
    return plt.subplots()[0], frame


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def written(runs, monkeypatch):
    """Return a function that lets a notebook write its tables at ``paper``."""
    for module in (study, fedlib):
        monkeypatch.setattr(module, "run_many", runs.results)
    for module in (data, tables):
        monkeypatch.setattr(module, "load", stand_in)
    for module in (data, study, reports, titles):
        monkeypatch.setattr(module, "facts", known)
    for module, name in (
        (plot, "curves"),
        (plot, "bars"),
        (panels, "lines"),
        (planes, "grid"),
    ):
        monkeypatch.setattr(module, name, drawn)
    none = pd.DataFrame({"dataset": []})
    monkeypatch.setattr(tables, "draws", lambda *_: (none, {}))
    monkeypatch.setattr(generated, "survey", surveyed(runs))
    monkeypatch.setattr(notebook, "table", lambda *_, **__: None)
    monkeypatch.setattr(notebook.Written, "figure", lambda *_, **__: None)

    def write(paper: str, name: str, **changed: Any) -> None:
        artefact = artefacts.prepare(f"{paper}/{name}", "paper", changed)
        if seeds := artefact.parameters.get("seeds"):  # one, to be quick
            changed["seeds"] = seeds[:1]
            artefact = artefacts.prepare(f"{paper}/{name}", "paper", changed)
        cells = parameters.read(artefact.notebook)
        tagged = parameters.tagged_cell(artefact.notebook, cells)
        executed = ["", cells[tagged].source]  # as a kernel keeps them
        space = {**artefact.parameters, "In": executed}
        kernel = SimpleNamespace(user_ns=space)
        monkeypatch.setattr(notebook, "get_ipython", lambda: kernel)
        for at, cell in enumerate(cells):
            if cell.cell_type == "code" and at != tagged:
                source = TransformerManager().transform_cell(cell.source)
                exec(compile(source, name, "exec"), space)
        plt.close("all")

    return write


def surveyed(runs: Runs):
    """Return a survey of generators whose distances are codes of run and round."""

    def survey(grid: study.Grid, rounds: list[int], *_: Any):
        cells = zip(grid.cells.to_dict("records"), grid.specs, strict=True)
        rows = [
            {**cell, "round": number, "space": space}
            | {"intra": STEP * runs.code(spec) + number, "ratio": 1.0}
            | {"inter": STEP * runs.code(spec) + number, "noise_r": 0.0}
            for cell, spec in cells
            for number in rounds
            for space in ("plane", "embedding")
        ]
        points = pd.DataFrame(rows)[["method", "value", "round"]]
        return points.assign(x=0.0, y=0.0, label=0), pd.DataFrame(rows)

    return survey


def told(spec: Spec, control: dict[str, Any] | None = None) -> str:
    """Return a spec as text, without what every row of a table may have of its own."""
    found = spec.model_dump(mode="json")
    plain = registry.method(spec.method).hp().model_dump(mode="json")
    for name, value in (control or {}).items():
        if found["hp"].get(name) == value:
            found["hp"][name] = plain[name]
    for name in BESIDE:
        *parts, last = name.split(".")
        part = found
        for each in parts:
            part = part[each]
        part.pop(last, None)
    return json.dumps(found, sort_keys=True)


def wanted(source: Origin, row: dict[str, Any]) -> Spec:
    """Return the run that a row of a paper's table stands for, by its settings."""
    row = {name: value for name, value in row.items() if not pd.isna(value)}
    method, hp = row.get("method", source.paper), {}
    if row.get("variant") == "hyper" and source.table == "table3":
        method, hp = "fedhpro", HYPER[method]
    elif "variant" in row:
        method, hp = VARIANTS[source.paper, source.table][row["variant"]]
        hp = {name: value for name, value in hp.items() if value is not None}
    names = ("alpha", "spread", "shot_spread")
    drawn = {name: row[name] for name in names if name in row}
    if row.get("partition", "iid") != "iid":  # without a scheme of its own: by user
        drawn["scheme"] = row["partition"]
    rest = {name: row[name] for name in ("imbalance", "participation") if name in row}
    if "ways" in row:
        drawn["ways"] = int(row["ways"])
    dataset = row.get("dataset", "cifar10")  # FedMPS's Table V does not tell it
    if dataset == "imagenet":
        rest["embedding"] = "unit"
    build = papers.BUILDERS[source.paper]
    return build(dataset, method, hp=hp, partition=drawn, seed=0, **rest)


def column(source: Origin) -> str:
    return source.column if isinstance(source, Source) else "mean"


def as_source(source: Origin) -> Source:
    """Return where a notebook writes a table's numbers, accuracies too."""
    if isinstance(source, Source):
        return source
    return Source(source.paper, source.table, "mean", "exact")


def rows_of(source: Origin) -> dict[int, dict[str, Any]]:
    """Return the rows of a paper's table, by their place in its file."""
    table = beside.reference(source.paper, source.table)
    for name, value in as_source(source).where.items():
        table = table[table[name] == value]
    return table.to_dict("index")


def absent(source: Origin, row: dict[str, Any]) -> bool:
    reasons = ABSENT.get((source.paper, source.table, column(source)), {})
    wheres = [where for each in reasons.values() for where in each]
    return any(all(row[k] == v for k, v in where.items()) for where in wheres)


class Written:
    """What a notebook wrote, beside what its runs would have it write."""

    def __init__(self, runs: Runs):
        self.codes = {told(spec): runs.code(spec) for spec in runs.specs}

    def code(self, spec: Spec) -> int:
        assert told(spec) in self.codes, f"no run has these settings: {spec}"
        return self.codes[told(spec)]

    def accuracy(self, spec: Spec, domain: Any = "average") -> float:
        place = 0.0
        if spec.test == "groups":
            groups = DATASETS[spec.dataset].groups
            middle = (len(groups) - 1) / 2
            place = middle if domain == "average" else groups.index(domain)
        return 100 * (STEP * self.code(spec) + place) / SAMPLES

    def ours(self, source: Origin, row: dict[str, Any]) -> float:
        """Return the number of ours that belongs beside a number of the paper."""
        spec = wanted(source, row)
        match column(source):
            case "mean" if "distance" in row:
                return STEP * self.code(spec) + row["round"]
            case "rounds" | "parameters_k" if spec.method == "local":
                return 0.0
            case "rounds" | "parameters_k":
                return self.code(spec)
            case "parameters":
                return 1000.0 * self.code(spec)
            case "gain" if source.table == "table3":
                own = {k: v for k, v in row.items() if k != "variant"}
            case "gain":
                own = row | {"variant": "hyper"}
            case _:
                return self.accuracy(spec, row.get("domain", "average"))
        before = self.accuracy(wanted(source, own), row["domain"])
        return self.accuracy(spec, row["domain"]) - before

    def control(self, source: Origin, row: dict[str, Any]) -> list[float]:
        """Return the number of our own variant that stands beside the same number."""
        spec, switch = wanted(source, row), CONTROLS.get((source.paper, source.table))
        if switch is None:
            return []
        spec = spec.model_copy(update={"hp": spec.hp | switch})
        made = told(spec) in self.codes
        return [self.accuracy(spec, row.get("domain", "average"))] if made else []


TABLES = list(dict.fromkeys((s.paper, s.table) for s in SOURCES))


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_each_number_meets_the_run_with_its_settings_and_no_other(
    paper, table, runs, written
):
    written(paper, table)
    found = Written(runs)
    ran = our_runs.runs("paper")
    for each in (s for s in SOURCES if (s.paper, s.table) == (paper, table)):
        figures = paths.figures_dir() / "paper"
        cells = scoreboard._cells(each, figures, ran)
        board, source = cells["ours"], as_source(each)
        # at ``paper`` an accuracy's run cuts nothing of what the paper's cell takes
        assert not isinstance(each, Accuracies) or not cells["reduced"].any()
        name = f"{source.file or table}.csv"
        there = pd.read_csv(figures / paper / name)
        for name in {*source.where} & {*there}:
            there = there[there[name] == source.where[name]]
        pairs = there[[source.theirs, source.ours]].dropna().to_numpy().tolist()
        allowed = []
        for at, row in rows_of(source).items():
            if absent(source, row):
                assert at not in board or pd.isna(board[at]), row
            elif not pd.isna(row[source.column]):
                pair = pytest.approx([row[source.column], found.ours(source, row)])
                assert [row[source.column], board[at]] == pair, row
                assert pairs.count(pair) == 1 or row[source.column] == 0, row
                beside = found.control(source, row)
                allowed += [
                    pair,
                    *(pytest.approx([row[source.column], c]) for c in beside),
                ]
        if source.column == "gain":
            continue
        for other in BORROWED.get((paper, table), []):
            allowed += [
                pytest.approx([row[source.column], found.ours(other, row)])
                for row in rows_of(other).values()
                if column(other) == "mean" and told(wanted(other, row)) in found.codes
            ]
        assert [pair for pair in pairs if pair not in allowed] == []


@pytest.mark.parametrize(
    ("name", "file"), [("table3", "table3"), ("fig4", "fig4_ends")]
)
def test_another_number_of_ways_meets_no_number_of_table_3(written, name, file):
    written("fedmps", name, ways=4)
    table = pd.read_csv(paths.figures_dir() / "paper" / "fedmps" / f"{file}.csv")
    assert table["mean"].notna().all()
    assert table[["paper", "gap"]].isna().all(axis=None)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_data_set_of_a_table_is_in_its_paper_preset(paper):
    for file in sorted((beside.REFERENCE / paper).glob("table*.csv")):
        table = pd.read_csv(file)
        artefact = artefacts.prepare(f"{paper}/{file.stem}", "paper")
        told = artefact.parameters
        ran = {s.dataset for s in artefact.specs} or {
            *told.get("datasets", [told.get("dataset")])
        }
        if "dataset" in table and (paper, file.stem) != ("gfpl", "table3"):  # no runs
            assert {*table["dataset"]} == ran, file.stem


@pytest.mark.parametrize(
    "name", [n for n in artefacts.names() if n.split("/")[0] in PAPERS]
)
def test_a_paper_preset_has_data_sets_of_its_paper_alone(name):
    paper = name.split("/")[0]
    ran = {spec.dataset for spec in artefacts.prepare(name, "paper").specs}
    assert ran <= {*DATASETS} & {*papers.PAPERS[paper]} - papers.OURS
