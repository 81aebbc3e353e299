"""How soon curves of accuracy reach what another reaches, and how they end."""

import itertools
from collections.abc import Sequence

import pandas as pd


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


def ends(curves: pd.DataFrame) -> pd.DataFrame:
    """Return how curves of accuracy end, and how unsteady they are, in percent.

    Parameters
    ----------
    curves : DataFrame
        panel, method, round, accuracy (fractions), in the order of rounds. With a
        column ``seed``, as from ``Study.curve_of_each``, a curve is a seed's, and what
        is returned are means over seeds.

    Returns
    -------
    DataFrame
        panel, method, rounds, last, best, mean_last5, mean_last10; change_sd, the sd
        (ddof 1) of the change from one evaluation to the next over the second half of a
        curve; mean_last5_sd over seeds (ddof 1, missing for one); seeds.
    """
    rows = []
    keys = ["panel", "method"]
    own = [*keys, *(["seed"] if "seed" in curves else [])]
    for of, part in curves.groupby(own, sort=False, dropna=False):
        accuracy = 100 * part["accuracy"].reset_index(drop=True)
        late = accuracy[len(accuracy) // 2 - 1 :]
        row = dict(zip(own, of, strict=True)) | {"rounds": part["round"].iloc[-1]}
        row |= {"last": accuracy.iloc[-1], "best": accuracy.max()}
        row |= {f"mean_last{n}": accuracy[-n:].mean() for n in (5, 10)}
        rows.append(row | {"change_sd": late.diff().std()})
    grouped = pd.DataFrame(rows).groupby([*keys, "rounds"], sort=False)
    numbers = ["last", "best", "mean_last5", "mean_last10", "change_sd"]
    spread = {"mean_last5_sd": ("mean_last5", "std"), "seeds": ("last", "size")}
    means = {name: (name, "mean") for name in numbers}
    return grouped.agg(**means, **spread).reset_index()
