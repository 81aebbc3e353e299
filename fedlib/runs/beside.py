"""Our numbers beside the paper's own, and methods beside each other."""

from collections.abc import Sequence

import pandas as pd

from fedlib.draw.tables import compare, mean_sd
from fedlib.support.paths import PARAMS

REFERENCE = PARAMS / "reference"


def reference(paper: str, name: str) -> pd.DataFrame:
    """Return a paper's table as tidy numbers, as printed there.

    ``params/reference/README.md`` says what each file holds and what its marks mean.
    """
    return pd.read_csv(REFERENCE / paper / f"{name}.csv")


def over_seeds(
    runs: pd.DataFrame, value: str, by: Sequence[str] = ("dataset", "method")
) -> pd.DataFrame:
    """Return mean, sd (ddof 1) and number of seeds of a column, in the order given."""
    rows = []
    for keys, part in runs.groupby(list(by), sort=False):
        over = mean_sd(part[value], ddof=1)
        row = dict(zip(by, keys, strict=True))
        rows.append(row | {"mean": over.mean, "sd": over.sd, "seeds": len(part)})
    return pd.DataFrame(rows)


def means_over_seeds(runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return mean and sd of all numbers over seeds, in the order given.

    Parameters
    ----------
    runs : DataFrame
        Columns ``by``, ``seed`` and numbers, of which some may be missing.
    by : list of str
        What is told apart; a missing value is one of its own.

    Returns
    -------
    DataFrame
        ``by``, then each number with its sd (``psnr``, ``psnr_sd``; ddof 1, NaN for one
        seed), seeds.
    """
    grouped = runs.groupby(list(by), sort=False, dropna=False)
    columns: dict[str, pd.Series] = {}
    for name in (c for c in runs if c not in {*by, "seed"}):
        columns[name] = grouped[name].mean()
        columns[f"{name}_sd"] = grouped[name].std()
    columns["seeds"] = grouped["seed"].nunique()
    return pd.DataFrame(columns).reset_index()


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
    tests = []
    for row in table.itertuples():
        mine = runs[(runs.dataset == row.dataset) & (runs.method == row.method)][value]
        best = runs[(runs.dataset == row.dataset) & (runs.method == method)][value]
        if row.method == method or min(len(mine), len(best)) < 2:
            tests.append({})
            continue
        c = compare(best, mine)
        tests.append(
            {"p": c.p, "star": c.star, "cliffs_delta": c.cliffs_delta, "size": c.size}
        )
    columns = ["p", "star", "cliffs_delta", "size"]
    return table.join(pd.DataFrame(tests, index=table.index, columns=columns))


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


def under_rules(rows: pd.DataFrame, value: str) -> pd.DataFrame:
    """Return every method under every rule.

    Parameters
    ----------
    rows : DataFrame
        As from ``accuracies``.
    value : str
        The column of numbers, such as ``"best"``.

    Returns
    -------
    DataFrame
        dataset, method, then for each model and rule the mean over seeds,
        ``personal/head_own``, and its sd, ``personal/head_own sd`` (ddof 1).
    """
    rows = rows.assign(readout=rows["model"] + "/" + rows["rule"])
    over = over_seeds(rows, value, ["dataset", "method", "readout"])
    columns = over["readout"].unique()
    wide = over.pivot(
        index=["dataset", "method"], columns="readout", values=["mean", "sd"]
    )
    # the order in which methods came
    wide = wide.reindex(over[["dataset", "method"]].drop_duplicates().apply(tuple, 1))
    numbers = {c: wide["mean"][c] for c in columns}
    numbers |= {f"{c} sd": wide["sd"][c] for c in columns}
    return pd.DataFrame(numbers).reset_index()


def leads_over(
    runs: pd.DataFrame, method: str, value: str, by: Sequence[str] = ("dataset",)
) -> pd.DataFrame:
    """Return the lead of every method over one, seed by seed.

    A seed draws the clients, and what is hard for one method is hard for all.

    Parameters
    ----------
    runs : DataFrame
        A row per run, as from ``Study.frame``: columns method, seed, ``by``, numbers.
    method : str
        Over which the others lead.
    value : str
        The column of numbers, such as ``"mean_last5"``.
    by : list of str
        Columns within which methods are compared.

    Returns
    -------
    DataFrame
        ``by``, method, mean and sd (ddof 1) of the lead over seeds, ahead (in how many
        seeds it is above zero), seeds (that both have).

    Raises
    ------
    ValueError
        Two rows of one method and seed.
    """
    rows = []
    for keys, part in runs.groupby(list(by), sort=False):
        twice = part[part.duplicated(["method", "seed"])]
        if len(twice):
            name, seed = twice[["method", "seed"]].iloc[0]
            raise ValueError(f"runs: got two rows of {name}, seed {seed}; expected one")
        by_seed = part.pivot(index="seed", columns="method", values=value)
        if method not in by_seed:
            continue
        for name in part["method"].unique():
            lead = (by_seed[name] - by_seed[method]).dropna()
            if name == method or lead.empty:
                continue
            over = mean_sd(lead, ddof=1)
            row = dict(zip(by, keys, strict=True)) | {"method": name}
            row |= {"mean": over.mean, "sd": over.sd, "ahead": int((lead > 0).sum())}
            rows.append(row | {"seeds": len(lead)})
    columns = [*by, "method", "mean", "sd", "ahead", "seeds"]
    return pd.DataFrame(rows, columns=columns)


def leads_of(
    runs: pd.DataFrame, method: str, value: str, by: Sequence[str] = ("dataset",)
) -> pd.DataFrame:
    """Return the lead of one method over every other one, seed by seed.

    Parameters
    ----------
    runs, value, by
        As for ``leads_over``.
    method : str
        Whose lead is returned.

    Returns
    -------
    DataFrame
        As from ``leads_over``; ``method`` is the other one.

    Raises
    ------
    ValueError
        Two rows of one method and seed.
    """
    return leads_over(runs.assign(**{value: -runs[value]}), method, value, by)
