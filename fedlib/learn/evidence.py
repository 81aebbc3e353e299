"""Conclusions over seeds: the sentences of a walkthrough, phrased from its numbers."""

from collections.abc import Callable, Iterable, Mapping
from math import sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from fedlib.draw.tables import mean_sd
from fedlib.registry import title
from fedlib.runs.federation import federation
from fedlib.runs.many import run_many
from fedlib.runs.results import Result
from fedlib.runs.spec import Spec


def runs(
    cases: Mapping[str, Callable[[int], Spec]], seeds: Iterable[int]
) -> dict[str, list[Result]]:
    """Return the results of each case, one for each seed, all in one ``run_many``.

    Parameters
    ----------
    cases : dict
        Name to a function that makes the spec of a seed.
    seeds : list of int
    """
    asked = [(name, build(seed)) for seed in seeds for name, build in cases.items()]
    by_case: dict[str, list[Result]] = {name: [] for name in cases}
    results = run_many([spec for _, spec in asked])
    for (name, _), result in zip(asked, results, strict=True):
        by_case[name].append(result)
    return by_case


def frame(
    results: Mapping[str, list[Result]], read: Callable[[Result], float]
) -> pd.DataFrame:
    """Return one number per run: a row for each seed, a column for each case."""
    seeds = [result.spec.seed for result in next(iter(results.values()))]
    columns = {
        name: [float(read(r)) for r in of_case] for name, of_case in results.items()
    }
    return pd.DataFrame(columns, index=pd.Index(seeds, name="seed"))


def spread(scores: pd.DataFrame) -> pd.DataFrame:
    """Return mean, sd (ddof 1), lowest and highest of each column over the seeds."""
    rows = {}
    for name in scores:
        mean, sd = mean_sd(scores[name], ddof=1)
        rows[name] = {"mean": mean, "sd": sd}
        rows[name] |= {"lowest": scores[name].min(), "highest": scores[name].max()}
    return pd.DataFrame(rows).T.rename_axis(index="case")


class Lead(NamedTuple):
    """How far one case is above another, by the differences on the same seeds."""

    mean: float
    sd: float  # ddof 1; NaN for a single seed
    won: int  # seeds on which it is above
    seeds: int

    @property
    def told_apart(self) -> bool:
        """Whether Student's interval of 95 % around the mean leaves 0 out."""
        if self.seeds < 2:
            return False
        wide = float(stats.t.ppf(0.975, self.seeds - 1))  # 4.3 of three, 2.8 of five
        return abs(self.mean) > wide * self.sd / sqrt(self.seeds)


def lead(scores: pd.DataFrame, one: str, other: str) -> Lead:
    """Return by how much ``one`` is above ``other``, seed by seed."""
    apart = scores[one] - scores[other]
    mean, sd = mean_sd(apart, ddof=1)
    return Lead(mean, sd, int(np.count_nonzero(apart > 0)), len(apart))


def say(scores: pd.DataFrame, one: str, other: str, where: str = "") -> Lead:
    """Print in one sentence which of two cases is ahead, or that neither is.

    Ahead is who leads by more than the seeds' spread explains: Student's interval of
    95 % around the mean of the differences, seed by seed, leaves 0 out.

    Parameters
    ----------
    scores : DataFrame
        In points, a row for each seed.
    where : str
        Begins the sentence, such as "in the last round".
    """
    margin = lead(scores, one, other)
    begin = f"{where}: " if where else ""
    numbers = f"sd {margin.sd:.1f}, above on {margin.won} of {margin.seeds} seeds"
    if margin.told_apart:
        side = "ahead of" if margin.mean > 0 else "behind"
        points = f"by {abs(margin.mean):.1f} points"
        print(f"{begin}{one} is {side} {other} {points} ({numbers})")
    else:
        points = f"{margin.mean:+.1f} points"
        print(f"{begin}{one} and {other} are not told apart, {points} ({numbers})")
    return margin


def holds(sentence: str, flags: Iterable[object]) -> int:
    """Print on how many seeds a sentence is true, and return their number."""
    known = [bool(flag) for flag in flags]
    print(f"{sentence}: on {sum(known)} of {len(known)} seeds")
    return sum(known)


def by_chance(spec: Spec) -> tuple[float, int]:
    """Return what is reached without having learned, and of how many test samples.

    That is a client that always answers the class of which it is tested most, in
    percent and as the mean over clients; where one model answers all of them over all
    classes, it is the one answer that serves them best.
    """
    fed = federation(spec)
    counts = fed.test.label_counts(fed.ctx.classes).double()
    tested = counts.sum(1) > 0
    shares = counts[tested] / counts[tested].sum(1, keepdim=True)
    rule = fed.method.rule(fed.ctx.hp)
    own = rule.model == "personal" or rule.readout.endswith("_own")
    best = shares.max(1).values.mean() if own else shares.mean(0).max()
    return 100 * float(best), int(counts.sum())


def learned(result: Result) -> bool:
    """Print what a run reached beside chance, and warn where it stays there.

    It stays there up to two standard errors of so many test samples above chance; what
    counts is the last round, under the rule of the method's paper.
    """
    spec, (chance, count) = result.spec, by_chance(result.spec)
    last = 100 * float(result.accuracy(*result.paper_rule)[-1].nanmean())
    error = sqrt(chance * (100 - chance) / count)
    name = f"{title(spec.method)}, seed {spec.seed}"
    numbers = f"{last:.1f} % in round {spec.rounds}, by chance {chance:.1f} %"
    if last > chance + 2 * error:
        print(f"{name}: {numbers}")
        return True
    print(
        f"WARNING: {name} stays at chance: {numbers}. Try more rounds, or another "
        f"learning rate than {spec.training.learning_rate:g}."
    )
    return False
