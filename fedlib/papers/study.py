"""A table or figure as a grid of runs: data sets x values of a setting x runs x seeds.

A notebook's parameters say everything. ``runs`` names methods and their variants,
``sweeps`` the settings that are varied, one after the other. Any other parameter is a
setting that all runs share, and goes where a field of its name is: in the spec, in the
partition, in training, or among a method's hyper-parameters (``placing``). A parameter
that is none of these is refused; what only a picture uses stands in ``picture``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from fedlib import papers
from fedlib.data import Facts, facts
from fedlib.papers.placing import (
    SPANNING,
    labelled,
    of_dataset,
    parsed,
    placed,
    setting_names,
    several,
    switched,
)
from fedlib.runs.many import run_many
from fedlib.runs.notes import Note
from fedlib.runs.results import Result
from fedlib.runs.spec import SettingError, Spec, refuse_unknown


@dataclass(frozen=True)
class Grid:
    """The runs of a table or figure, before they are made."""

    cells: pd.DataFrame  # dataset, method (label), setting, value, seed: one per run
    specs: list[Spec] = field(repr=False)


def grid(paper: str, p: Mapping[str, Any], unseen: Iterable[str] = ()) -> Grid:
    """Return the grid that a notebook's parameters stand for.

    Parameters
    ----------
    paper : str
        Whose protocol holds where the parameters say nothing.
    p : mapping
        ``datasets`` or ``dataset``; ``runs``, a list of texts (``parsed``) or a mapping
        from label to text; ``seeds`` or ``seed``; optionally ``sweeps``, a mapping from
        a setting to its values; and any setting. A mapping in place of a value, or of a
        list of values, has one per data set.
    unseen : list of str
        Names in ``p`` that no run sees, beside ``picture``.

    Raises
    ------
    ValueError
        A value that is not legal; ``SettingError`` for an unknown name, with the
        closest known one, even if its value is None, and for no run or one twice.
    """
    outside = SPANNING | {*unseen}
    settings = setting_names(paper)
    refuse_unknown(p, settings | outside)
    refuse_unknown(p.get("sweeps") or (), settings)
    datasets, seeds = several(p, "dataset"), several(p, "seed")
    shared = {name: value for name, value in p.items() if name not in outside}
    sweeps: Mapping[str, Any] = p.get("sweeps") or {"": [None]}
    rows, specs = [], []
    for dataset in datasets:
        here = {
            name: of_dataset(name, value, dataset) for name, value in shared.items()
        }
        for setting, values in sweeps.items():
            for value in of_dataset(f"sweeps of {setting}", values, dataset):
                for label, text in labelled(p["runs"]).items():
                    method, switches = parsed(text)
                    general, hp = switched(paper, method, switches)
                    varied = {setting: value} if setting else {}
                    given = here | varied | general
                    changes = placed(paper, dataset, method, given)
                    changes["hp"] = changes.get("hp", {}) | hp
                    for seed in seeds:
                        build = papers.BUILDERS[paper]
                        specs.append(build(dataset, method, seed=seed, **changes))
                        rows.append((dataset, label, setting, value, seed))
    columns = ["dataset", "method", "setting", "value", "seed"]
    cells = pd.DataFrame(rows, columns=columns)
    if not specs:
        raise SettingError("runs, seeds, datasets: got no run, expected at least one")
    if cells.duplicated().any():  # its spread over seeds would be 0
        twice = cells[cells.duplicated()].iloc[0].dropna().to_dict()
        raise SettingError(f"runs: got {twice} twice, expected every run once")
    return Grid(cells, specs)


@dataclass(frozen=True)
class Study:
    """A grid with its results."""

    paper: str
    cells: pd.DataFrame = field(repr=False)
    results: list[Result] = field(repr=False)

    def frame(self) -> pd.DataFrame:
        """Return one row per run: its cell, and accuracies in percent.

        Columns ``last``, ``best``, ``best_round``, ``mean_last5`` by the method's
        own rule; ``client_sd`` is the sd over clients in the best round
        (ddof 0), NaN where the accuracy is of a test set that they share. All are NaN
        where that rule is not evaluated on the run's test data: a personal model on the
        whole test set.
        """
        rows = []
        for result in self.results:
            summary = result.summary()
            own = summary[summary.is_paper_rule].rename(
                columns={"std_best": "client_sd"}
            )
            own.loc[own["data"] != "clients", "client_sd"] = float("nan")
            rows.append(next(iter(own.to_dict("records")), {}))
        numbers = ["last", "best", "mean_last5", "client_sd"]
        frame = pd.DataFrame(rows, self.cells.index, [*numbers, "best_round"])
        frame[numbers] = 100 * frame[numbers].astype(float)
        return self.cells.join(frame)

    def table(
        self, value: str = "best", paper: pd.DataFrame | None = None
    ) -> pd.DataFrame:
        """Return mean and sd over seeds, beside the paper's numbers.

        Parameters
        ----------
        value : "best", "last" or "mean_last5"
            Which accuracy ``mean`` is of. ``last`` stands in a column of its own.
        paper : DataFrame, optional
            As ``reports.reference`` returns it; joined on all columns of settings that
            both have.

        Returns
        -------
        DataFrame
            dataset, the swept setting under its name (``setting`` and ``value`` where
            there are several), method, paper, paper_sd, mean, sd (ddof 1), gap, last,
            client_sd, seeds.
        """
        keys = self._keys()
        frame = self._named(self.frame())
        grouped = frame.groupby(keys, sort=False, dropna=False)
        over = grouped[value].agg(mean="mean", sd="std", seeds="count")
        means = grouped[["last", "client_sd"]].mean()
        table = over.join(means).reset_index()
        table["paper"], table["paper_sd"] = float("nan"), float("nan")
        if paper is not None:
            table = _beside(table.drop(columns=["paper", "paper_sd"]), paper, keys)
        table["gap"] = table["mean"] - table["paper"]
        order = ["paper", "paper_sd", "mean", "sd", "gap", "last", "client_sd", "seeds"]
        return table[[*keys, *order]]

    def like(self, paper: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
        """Return the paper's numbers of the settings that ran, for ``table``.

        Parameters
        ----------
        paper : DataFrame
            As ``reports.reference`` returns it.
        by : list of str
            Its columns that name a setting: ``partition``, the scheme, or a field of a
            scheme or of a spec. An empty cell goes with any value.
        """
        keys = self._keys()
        ran = [
            {"partition": r.spec.partition.scheme}
            | {**r.spec.model_dump(exclude={"partition"}), **dict(r.spec.partition)}
            for r in self.results
        ]
        here = {f"{name} here": [settings.get(name) for settings in ran] for name in by}
        mine = self._named(self.cells)[keys].assign(**here).drop_duplicates()
        there = paper.rename(columns={name: f"{name} there" for name in by})
        joined = mine.merge(there, on=["dataset", "method"])
        for name in by:
            wanted = joined[f"{name} there"]
            joined = joined[wanted.isna() | (wanted == joined[f"{name} here"])]
        return joined[[*keys, *(c for c in ("mean", "sd") if c in joined)]]

    def per_domain(self, paper: pd.DataFrame) -> pd.DataFrame:
        """Return a table with a block per domain, and one of the domains' average.

        Domains are read in the best round of their average, and the last one, of those
        in which the method's own rule was evaluated. A data set without domains has its
        average alone, which is what its accuracy is.

        Parameters
        ----------
        paper : DataFrame
            As ``reports.reference`` returns it, with columns dataset, domain, method.

        Returns
        -------
        DataFrame
            dataset, domain, method, paper, mean, sd (over seeds, ddof 1), gap, last,
            seeds.
        """
        rows = []
        for cell, result in zip(
            self.cells.to_dict("records"), self.results, strict=True
        ):
            test, groups = result.spec.test, facts(cell["dataset"]).groups
            per_client = 100 * result.evaluations(*result.paper_rule, test)[1]
            average = per_client.nanmean(1)
            by_domain = {"average": average}
            if test == "groups" and groups:
                by_domain = dict(zip(groups, per_client.T, strict=True)) | by_domain
            at = int(average.argmax())
            rows += [
                {**cell, "domain": name, "best": float(a[at]), "last": float(a[-1])}
                for name, a in by_domain.items()
            ]
        keys = ["dataset", "domain", "method"]
        grouped = pd.DataFrame(rows).groupby(keys, sort=False)
        best = grouped["best"].agg(mean="mean", sd="std", seeds="count")
        table = best.assign(last=grouped["last"].mean()).reset_index()
        table = _beside(table, paper, keys)
        table["gap"] = table["mean"] - table["paper"]
        order = table.groupby(keys[:2], sort=False).ngroup().argsort(kind="stable")
        return table.loc[
            order, [*keys, "paper", "mean", "sd", "gap", "last", "seeds"]
        ].reset_index(drop=True)

    def points(self, value: str = "best") -> pd.DataFrame:
        """Return what ``panels.lines`` draws: a panel per data set and setting."""
        frame = self.frame()
        grouped = frame.groupby(
            ["dataset", "setting", "value", "method"], sort=False, dropna=False
        )
        over = grouped[value].agg(accuracy="mean", sd="std").reset_index()
        return over.assign(accuracy=over.accuracy / 100, sd=over.sd / 100)

    def curves(self) -> pd.DataFrame:
        """Return what ``plot.curves`` draws: a panel per data set and value."""
        return self._per_round(self._accuracies(), "accuracy")

    def curve_of_each(self) -> pd.DataFrame:
        """Return the curves of single runs: as ``curves``, with ``seed`` and no sd."""
        return self._each(self._accuracies(), "accuracy")

    def watched(self, name: str) -> pd.DataFrame:
        """Return a number that runs log per round, in a column of its name.

        What servers report, or what is compared with centralised prototypes. Runs of
        methods that do not have it are left out.
        """
        frames = [
            pd.concat([result.watched(), result.beside_centralised()], axis=1)
            for result in self.results
        ]
        rows = []
        for frame in frames:
            value = frame[name].to_numpy() if name in frame else float("nan")
            rows.append({"round": frame.index.to_numpy(), name: value})
        return self._per_round(rows, name)

    def _accuracies(self) -> list[dict[str, Any]]:
        """Return each run's rounds and accuracies by its own paper's rule."""
        rows = []
        for result in self.results:
            accuracy = result.accuracy(*result.paper_rule, result.spec.test).nanmean(1)
            rows.append({"round": result.evaluated, "accuracy": accuracy.numpy()})
        return rows

    def _each(self, rows: Sequence[Mapping[str, Any]], y: str) -> pd.DataFrame:
        """Return column ``y`` per panel, method, seed and round."""
        parts = []
        for cell, row in zip(self.cells.to_dict("records"), rows, strict=True):
            title = facts(cell["dataset"]).title
            if cell["setting"] and not pd.isna(cell["value"]):
                title += f", {cell['setting']} {cell['value']}"
            of = {"panel": title, "method": cell["method"], "seed": cell["seed"]}
            parts.append(pd.DataFrame(row).assign(**of))
        # of frames without numbers older pandas warns, since their columns have no type
        measured = [part for part in parts if part[y].notna().any()]
        return pd.concat(measured or parts, ignore_index=True).dropna(subset=y)

    def _per_round(self, rows: Sequence[Mapping[str, Any]], y: str) -> pd.DataFrame:
        """Return mean and sd over seeds of column ``y`` per panel, method and round."""
        by_round = self._each(rows, y)
        grouped = by_round.groupby(["panel", "method", "round"], sort=False)
        frame = grouped[y].agg(**{y: "mean", "sd": "std"}).reset_index()
        return frame if frame["sd"].notna().all() else frame.drop(columns="sd")

    @property
    def marked(self) -> dict[str, Any]:
        """How ``table`` is printed: sd beside its mean, a clear best in bold."""
        return {
            "values": ["paper", "mean", "gap", "last", "client_sd"],
            "sd": {"paper": "paper_sd", "mean": "sd"},
            "best": ["mean"],
            "blocks": self._keys()[:-1],
        }

    @property
    def marked_per_domain(self) -> dict[str, Any]:
        """How ``per_domain`` is printed."""
        return {
            "values": ["paper", "mean", "gap", "last"],
            "sd": {"mean": "sd"},
            "best": ["mean"],
            "blocks": ["dataset", "domain"],
        }

    @property
    def data(self) -> list[Facts]:
        """What is known of the data sets, each once."""
        return [facts(name) for name in dict.fromkeys(self.cells["dataset"])]

    @property
    def notes(self) -> list[Note]:
        """What a reader of these numbers must know."""
        return papers.notes(self.results, self.paper)

    def _keys(self) -> list[str]:
        settings = [name for name in self.cells["setting"].unique() if name]
        swept = ["setting", "value"] if len(settings) > 1 else settings
        return ["dataset", *swept, "method"]

    def _named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Give a single swept setting the column of its name."""
        settings = [name for name in self.cells["setting"].unique() if name]
        if len(settings) > 1:
            return frame
        return frame.drop(columns="setting").rename(
            columns={"value": settings[0] if settings else "value"}
        )


def _beside(table: pd.DataFrame, paper: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Add the paper's numbers to the rows of the same settings."""
    names = {"mean": "paper", "sd": "paper_sd", "variant": "method"}
    paper = paper.rename(columns={k: v for k, v in names.items() if k in paper})
    if "paper_sd" not in paper:
        paper = paper.assign(paper_sd=float("nan"))
    on = [name for name in keys if name in paper]
    return table.merge(
        paper[[*on, "paper", "paper_sd"]], "left", on, validate="many_to_one"
    )


def study(paper: str, p: Mapping[str, Any], jobs: int | None = None) -> Study:
    """Make the runs of a grid, or take them from the cache.

    Each is called as its cell, so that tables and curves of the results tell runs apart
    that only their training, or another setting of their text, sets apart.
    """
    cells = grid(paper, p)
    made = run_many(cells.specs, jobs)
    pairs = zip(made, cells.cells["method"], strict=True)
    called = [replace(result, called=name) for result, name in pairs]
    return Study(paper, cells.cells, called)


def pooled(paper: str, p: Mapping[str, Any]) -> list[Spec]:
    """Return FedAvg on one client with the whole training set, at a grid's settings.

    It is centralised training, with the batches and the length of one client's.
    """
    alone = {"runs": ["fedavg"], "scheme": "lda", "clients": 1, "participation": 1.0}
    return grid(paper, {**p, **alone}).specs


def specs_for(artefact: str, p: Mapping[str, Any]) -> list[Spec]:
    """Return the runs that an artefact needs; none where it names no ``runs``."""
    own = papers.special(artefact)
    if own is not None:
        return own(p)
    return grid(artefact.split("/")[0], p).specs if "runs" in p else []
