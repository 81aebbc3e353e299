"""Sentences of walkthroughs follow their numbers."""

import math

import pandas as pd
import pytest

from fedlib import papers
from fedlib.learn import evidence

SCORES = pd.DataFrame(
    {"a": [80.0, 82, 84], "b": [70.0, 71, 75], "c": [79.0, 84, 83]},
    index=pd.Index([1, 2, 3], name="seed"),
)


def test_a_lead_is_the_mean_of_the_differences_seed_by_seed():
    found = evidence.lead(SCORES, "a", "b")  # differences 10, 11, 9
    assert found == evidence.Lead(10.0, 1.0, 3, 3)
    assert found.told_apart
    none = evidence.lead(SCORES, "a", "c")  # differences 1, -2, 1
    assert none.mean == 0
    assert none.sd == pytest.approx(math.sqrt(3))
    assert none.won == 2


def test_two_standard_errors_tell_two_cases_apart():
    # sd 1 of four seeds: the standard error is a half
    assert evidence.Lead(1.01, 1.0, 4, 4).told_apart
    assert evidence.Lead(-1.01, 1.0, 0, 4).told_apart
    assert not evidence.Lead(0.99, 1.0, 4, 4).told_apart
    assert not evidence.Lead(0.0, 0.0, 0, 4).told_apart
    assert not evidence.Lead(9.0, math.nan, 1, 1).told_apart  # one seed says nothing


def test_the_sentence_turns_with_the_numbers(capsys):
    evidence.say(SCORES, "a", "b", "at the end")
    evidence.say(SCORES, "b", "a")
    evidence.say(SCORES, "a", "c")
    assert capsys.readouterr().out.splitlines() == [
        "at the end: a is ahead of b by 10.0 points (sd 1.0, above on 3 of 3 seeds)",
        "b is behind a by 10.0 points (sd 1.0, above on 0 of 3 seeds)",
        "a and c are not told apart, +0.0 points (sd 1.7, above on 2 of 3 seeds)",
    ]
    assert evidence.holds("it rains", [True, False, 1.0]) == 2
    assert capsys.readouterr().out == "it rains: on 2 of 3 seeds\n"


def test_spread_has_a_row_for_each_case():
    table = evidence.spread(SCORES)
    assert table.loc["b"].tolist() == [72.0, pytest.approx(math.sqrt(7)), 70, 75]
    assert table.index.tolist() == ["a", "b", "c"]
    assert math.isnan(evidence.spread(SCORES.iloc[:1]).loc["a", "sd"])


def test_runs_come_by_case_in_the_order_of_the_seeds():
    def build(seed):
        return papers.fedmps("digits", "local", seed=seed, rounds=1)

    def longer(seed):
        return papers.fedmps("digits", "local", seed=seed, rounds=2)

    found = evidence.runs({"short": build, "long": longer}, [4, 2])
    specs = {name: [r.spec for r in each] for name, each in found.items()}
    assert specs == {
        "short": [build(4), build(2)],
        "long": [longer(4), longer(2)],
    }
    rounds = evidence.frame(found, lambda r: r.spec.rounds)
    assert rounds.index.tolist() == [4, 2]
    assert rounds.to_dict("list") == {"short": [1.0, 1.0], "long": [2.0, 2.0]}
