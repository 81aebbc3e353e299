"""From finished runs to the rows of a table, beside the paper's own numbers."""

# pandas ships no types, and those that pyright infers for frames are wrong here.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportReturnType=false

import itertools
from collections.abc import Sequence

import pandas as pd

from fedlib import registry
from fedlib.data import facts
from fedlib.draw.tables import compare, mean_sd
from fedlib.runs.results import Result
from fedlib.support.paths import PARAMS

REFERENCE = PARAMS / "reference"
# What a readout says of a run, and the sd of each over seeds, in ``readouts``.
READOUTS = ["last", "best", "mean_last5"]
SDS = {name: f"{name}_sd" for name in READOUTS}
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


def reference(paper: str, name: str) -> pd.DataFrame:
    """Return a paper's table as tidy numbers, as printed there.

    ``params/reference/README.md`` says what each file holds and what its marks mean.
    """
    return pd.read_csv(REFERENCE / paper / f"{name}.csv")


def accuracies(results: Sequence[Result]) -> pd.DataFrame:
    """Return one row per run, model and rule, in percent.

    Columns: dataset, method (as ``label`` says it), seed, model, rule, last, best,
    best_round, mean_last5, is_paper_rule. ``best`` is the best round by mean test
    accuracy, a selection on the test set.
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        spec, summary = result.spec, result.summary()
        numbers = ["last", "best", "mean_last5"]
        summary[numbers] *= 100
        head = {"dataset": spec.dataset, "method": name, "seed": spec.seed}
        kept = ["model", "rule", "data", *numbers, "best_round", "is_paper_rule"]
        parts.append(summary[kept].assign(**head))
    frame = pd.concat(parts, ignore_index=True)
    first = ["dataset", "method", "seed"]
    return frame[[*first, *(c for c in frame if c not in first)]]


def over_seeds(
    runs: pd.DataFrame, value: str, by: Sequence[str] = ("dataset", "method")
) -> pd.DataFrame:
    """Return mean, sd (ddof 1) and number of seeds of a column, in the order given."""
    rows = []
    for keys, part in runs.groupby(list(by), sort=False):
        found = mean_sd(part[value], ddof=1)
        row = dict(zip(by, keys, strict=True))
        rows.append(row | {"mean": found.mean, "sd": found.sd, "seeds": len(part)})
    return pd.DataFrame(rows)


def against(runs: pd.DataFrame, method: str, value: str) -> pd.DataFrame:
    """Compare every method with one, per data set.

    Returns
    -------
    DataFrame
        dataset, method, mean, sd, seeds; with two seeds or more also p and star of the
        two-sided rank-sum test (normal approximation), and Cliff's delta of ``method``
        over the row's method with its size in words. With three seeds each, a star
        means complete separation and nothing else.
    """
    table = over_seeds(runs, value)
    found = []
    for row in table.itertuples():
        mine = runs[(runs.dataset == row.dataset) & (runs.method == row.method)][value]
        best = runs[(runs.dataset == row.dataset) & (runs.method == method)][value]
        if row.method == method or min(len(mine), len(best)) < 2:
            found.append({})
            continue
        c = compare(best, mine)
        found.append(
            {"p": c.p, "star": c.star, "cliffs_delta": c.cliffs_delta, "size": c.size}
        )
    columns = ["p", "star", "cliffs_delta", "size"]
    return table.join(pd.DataFrame(found, index=table.index, columns=columns))


def beside_paper(table: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Add the paper's mean and sd, and our mean minus the paper's.

    A data set or method that the paper does not have gets empty cells.
    """
    names = {"mean": "paper", "sd": "paper_sd", "star": "paper_star"}
    joined = table.merge(
        paper.rename(columns=names), "left", ["dataset", "method"], validate="1:1"
    )
    return joined.assign(gap=joined["mean"] - joined["paper"])


def nearest_rule(rules: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return, per data set and method, the readout nearest the paper's number."""
    joined = rules.merge(
        paper[["dataset", "method", "mean"]].rename(columns={"mean": "paper"}),
        on=["dataset", "method"],
    )
    joined = joined.assign(gap=joined["mean"] - joined["paper"])
    order = joined["gap"].abs().sort_values().index
    first = joined.loc[order].drop_duplicates(["dataset", "method"])
    return first.sort_index().reset_index(drop=True)


def leads(
    table: pd.DataFrame, methods: Sequence[str], by: Sequence[str]
) -> pd.DataFrame:
    """Return by how many points methods are ahead of the best of all others.

    Parameters
    ----------
    table : DataFrame
        As from ``Study.table``: columns of settings, method, paper, mean, last.
    methods : list of str
        Whose leads are returned; none of them counts among the others.
    by : list of str
        Columns of settings within which methods are compared.

    Returns
    -------
    DataFrame
        ``by``, method, then the lead in each of paper, mean and last: NaN where the
        method or all others have no number.
    """
    rows = []
    for keys, part in table.groupby(list(by), sort=False, dropna=False):
        numbers = part.set_index("method")[["paper", "mean", "last"]]
        best = numbers.drop(index=list(methods), errors="ignore").max()
        for name in (m for m in methods if m in numbers.index):
            row = dict(zip(by, keys, strict=True)) | {"method": name}
            rows.append(row | (numbers.loc[name] - best).to_dict())
    return pd.DataFrame(rows)


def pace(curves: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return how soon curves reach another's best, and how much they go up and down.

    Parameters
    ----------
    curves : DataFrame
        Columns panel, method, round, accuracy, as from ``Study.curves``.
    method : str
        The method whose best accuracy in a panel is to be reached.

    Returns
    -------
    DataFrame
        panel, method, best and last in percent, best_round; ``reached``, the first
        evaluated round with at least the other's best, empty if none; ``largest_drop``
        in points from one evaluation to the next, 0 for a curve that never falls.
    """
    rows = []
    for panel, part in curves.groupby("panel", sort=False):
        goal = part.loc[part["method"] == method, "accuracy"].max()
        for name, mine in part.groupby("method", sort=False):
            line = mine.set_index("round")["accuracy"].sort_index()
            there = line.index[line >= goal]
            row = {"panel": panel, "method": name, "best": 100 * line.max()}
            row |= {"last": 100 * line.iloc[-1], "best_round": int(line.idxmax())}
            row["reached"] = int(there[0]) if len(there) else None
            row["largest_drop"] = max(0.0, -100 * line.diff().min())
            rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.assign(reached=frame["reached"].astype("Int64"))


def ratios(
    curves: pd.DataFrame,
    method: str,
    shares: Sequence[float] = (0.95,),
    window: int = 3,
) -> pd.DataFrame:
    """Return how many times sooner than another each curve reaches target accuracies.

    Rounds to a target: the first evaluated round in which the mean of the last
    ``window`` evaluations is at least the target. All curves and the target itself are
    such moving averages, so that ``method`` reaches every target.

    Parameters
    ----------
    curves : DataFrame
        Columns panel, method, round, accuracy (fractions), as from ``Study.curves``.
    method : str
        Whose rounds are divided by each other's; a target is a share of its best.
    shares : list of float in (0, 1]
    window : int >= 1
        Evaluations that are averaged.

    Returns
    -------
    DataFrame
        panel, method, share, target in percent; rounds and ratio (above 1: sooner),
        both empty where the target is not reached.

    Raises
    ------
    ValueError
        A share that is none, a panel without ``method``, or fewer evaluations than
        ``window``.

    Notes
    -----
    FedPG, Table 1, gives such ratios and no targets.
    """
    if wrong := [share for share in shares if not 0 < share <= 1]:
        raise ValueError(f"shares: got {wrong}, expected numbers in (0, 1]")
    rows = []
    for panel, part in curves.groupby("panel", sort=False):
        lines = {
            name: mine.set_index("round")["accuracy"].sort_index()
            for name, mine in part.groupby("method", sort=False)
        }
        if method not in lines:
            raise ValueError(f"method: got {method!r}, {panel} has {list(lines)}")
        shortest = min(len(line) for line in lines.values())
        if shortest < window:
            raise ValueError(
                f"window: got {window}, expected at most the {shortest} evaluations "
                f"of {panel}"
            )
        smooth = {name: line.rolling(window).mean() for name, line in lines.items()}
        for name, share in itertools.product(lines, shares):
            target = share * smooth[method].max()
            reached = {m: smooth[m].index[smooth[m] >= target] for m in (method, name)}
            row = {"panel": panel, "method": name, "share": share}
            row |= {"target": 100 * target, "rounds": None, "ratio": float("nan")}
            if len(reached[name]):
                row["rounds"] = int(reached[name][0])
                row["ratio"] = reached[method][0] / reached[name][0]
            rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.assign(rounds=frame["rounds"].astype("Int64"))


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
    told = [] if variant == "paper" else [variant]
    told += [
        f"{switch}={value}"
        for switch, value in hp.items()
        if isinstance(value, str) and value != plain[switch]
    ]
    return f"{registry.title(name)} ({', '.join(told)})" if told else name


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


def readouts(results: Sequence[Result]) -> pd.DataFrame:
    """Return last, best and mean of the last five for every readout, in percent.

    On the test data that the spec reports; ``reported`` marks the paper's readout.

    Returns
    -------
    DataFrame
        run, model, rule, data, reported; each number as the mean over seeds, with its
        sd (``last_sd``, ddof 1; missing for one seed); seeds.
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        summary = result.summary().assign(run=name)
        parts.append(summary[summary.data == result.spec.test])
    whole = pd.concat(parts, ignore_index=True)
    whole[READOUTS] *= 100
    marked = whole.assign(reported=whole["is_paper_rule"].map({True: "*", False: ""}))
    keys = ["run", "model", "rule", "data", "reported"]
    named = {name: (name, "mean") for name in READOUTS}
    named |= {sd: (name, "std") for name, sd in SDS.items()}
    seeds = marked.groupby(keys, sort=False).agg(**named, seeds=("last", "size"))
    return seeds.reset_index()


def per_client(results: Sequence[Result]) -> pd.DataFrame:
    """Return each client's accuracy of the last round by the paper's rule, in percent.

    Columns: run, client, accuracy.
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        last = 100 * result.accuracy(*result.paper_rule)[-1]
        rows = {"client": range(len(last)), "accuracy": last.numpy()}
        parts.append(pd.DataFrame(rows).assign(run=name))
    return pd.concat(parts, ignore_index=True)[["run", "client", "accuracy"]]


def logs(results: Sequence[Result]) -> pd.DataFrame:
    """Return what runs log per round, averaged over seeds.

    Columns: run, source, name, round, value.

    ``source`` is ``client`` (loss terms, averaged over the cohort), ``server`` (what
    merging reports) or ``centralised`` (beside class means of all data). Rounds in
    which a method does not have a number are left out.
    """
    parts = []
    for result, run in zip(results, labels(results), strict=True):
        frames = {
            "client": result.terms(),
            "server": result.watched(),
            "centralised": result.beside_centralised(),
        }
        for source, frame in frames.items():
            long = frame.reset_index().melt("round", var_name="name").dropna()
            parts.append(long.assign(run=run, source=source))
    whole = pd.concat(parts, ignore_index=True)
    keys = ["run", "source", "name", "round"]
    return whole.groupby(keys, sort=False)["value"].mean().reset_index()


def logged_title(name: str) -> str:
    """Return the title in words of something that runs log."""
    return TITLES.get(name, name.replace("_", " ").capitalize())


def log_panels(
    logged: pd.DataFrame, source: str, names: Sequence[str] | None = None
) -> pd.DataFrame:
    """Return what ``plot.curves`` draws of one source of ``logs``.

    A panel per name, with words for its title; what was logged is ``value``.
    """
    chosen = logged[logged.source == source]
    if names is not None:
        chosen = chosen[chosen.name.isin(names)]
    columns = {"run": "method", "name": "panel"}
    chosen = chosen.assign(name=chosen["name"].map(logged_title))
    return chosen.rename(columns=columns).drop(columns="source")


def curves(
    results: Sequence[Result], rule: tuple[str, str] | None = None
) -> pd.DataFrame:
    """Return accuracy per round, as fractions, averaged over clients and then seeds.

    Parameters
    ----------
    rule : (model, rule), optional
        One readout for all; methods without that model are left out. By default each
        method's own, as its paper evaluates it.

    Returns
    -------
    DataFrame
        panel (title of the data set), method, round, accuracy and, with several
        seeds, sd over them (ddof 1).
    """
    parts = []
    for result, name in zip(results, labels(results), strict=True):
        model, how = rule or result.paper_rule
        if (model, how) not in result.readouts:
            continue
        data = result.spec.test if rule is None else "clients"
        accuracy = result.accuracy(model, how, data).nanmean(1)
        rows = {"round": result.evaluated, "accuracy": accuracy.numpy()}
        head = {"panel": facts(result.spec.dataset).title, "method": name}
        parts.append(pd.DataFrame(rows).assign(**head))
    whole = pd.concat(parts).dropna(subset="accuracy")  # of rounds with this rule
    grouped = whole.groupby(["panel", "method", "round"], sort=False)["accuracy"]
    frame = grouped.agg(accuracy="mean", sd="std").reset_index()
    return frame if frame["sd"].notna().all() else frame.drop(columns="sd")


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """Return how curves of accuracy end, and how unsteady they are, in percent.

    Parameters
    ----------
    curves : DataFrame
        As from ``curves``, in the order of rounds.

    Returns
    -------
    DataFrame
        panel, method, rounds, last, best, best_round, mean_last5, mean_last10, and
        change_sd, the sd (ddof 1) of the change from one evaluation to the next over
        the second half of them.
    """
    rows = []
    for (panel, method), part in curves.groupby(["panel", "method"], sort=False):
        accuracy = 100 * part["accuracy"].reset_index(drop=True)
        best, late = accuracy.idxmax(), accuracy[len(accuracy) // 2 - 1 :]
        row = {"panel": panel, "method": method, "rounds": part["round"].iloc[-1]}
        row |= {"last": accuracy.iloc[-1], "best": accuracy[best]}
        row |= {"best_round": part["round"].iloc[best]}
        row |= {f"mean_last{n}": accuracy[-n:].mean() for n in (5, 10)}
        rows.append(row | {"change_sd": late.diff().std()})
    return pd.DataFrame(rows)


def data_title(name: str) -> str:
    """Return how a data set is printed, with what is told of the copy at hand."""
    return facts(name).title


# How ``tables.render`` prints what CSVs hold by name.
NAMES = {"dataset": data_title, "method": registry.title}


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with data sets and methods named as printed, for display."""
    there = {column: NAMES[column] for column in NAMES if column in table}
    return table.assign(**{name: table[name].map(told) for name, told in there.items()})


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with methods named as printed."""
    return table.assign(method=table["method"].map(registry.title))


def message_fields(results: Sequence[Result], number: int = 2) -> pd.DataFrame:
    """Return what each method sends in a round, over all clients, field by field."""
    parts = []
    for result in results:
        sent = result.payload().query("round == @number").drop(columns="round")
        parts.append(sent.assign(method=result.spec.method))
    frame = pd.concat(parts, ignore_index=True).astype({"floats": int, "ints": int})
    return frame[["method", "direction", "field", "floats", "ints"]]


def communication(results: Sequence[Result], number: int = 2) -> pd.DataFrame:
    """Return floats per round by each paper's way of counting, and in both directions.

    Columns: method, counted (the fields in ``Method.counted``; a broadcast counted
    once stands for one receiver), both_directions (all floats, every receiver).
    """
    rows = []
    for result in results:
        name = result.spec.method
        receivers = result.log.cohort.shape[1]
        sent = result.payload().query("round == @number")
        floats = sent.set_index(["direction", "field"])["floats"]
        counted = 0
        for part in registry.method(name).counted:
            value = int(floats[part.direction, part.field])
            counted += value // receivers if part.once else value
        rows.append((name, counted, int(floats.sum())))
    return pd.DataFrame(rows, columns=["method", "counted", "both_directions"])


def leaders(rules: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return who leads under each rule of the personal model, and by how much.

    Parameters
    ----------
    rules : DataFrame
        Columns dataset, method, model, rule, mean.
    method : str
        Whose lead over every other method is returned, in columns ``over_<other>``.
    """
    personal = rules[rules.model == "personal"]
    rows = []
    for (dataset, rule), part in personal.groupby(["dataset", "rule"], sort=False):
        mean = part.set_index("method")["mean"]
        if method not in mean:
            continue
        row = {"dataset": dataset, "method": mean.idxmax(), "rule": rule}
        others = {
            f"over_{name}": mean[method] - value
            for name, value in mean.items()
            if name != method
        }
        rows.append(row | {"best": mean.max()} | others)
    return pd.DataFrame(rows)
