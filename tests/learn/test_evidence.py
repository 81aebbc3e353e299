"""Sentences of walkthroughs follow their numbers."""

import math
from collections import Counter

import pandas as pd
import pytest

import fedlib
from fedlib import federation, papers
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


@pytest.mark.parametrize(("seeds", "bound"), [(2, 8.985), (3, 2.4842), (5, 1.2417)])
def test_students_interval_tells_two_cases_apart(seeds, bound):
    """From the printed table: t of 97.5 % is 12.706, 4.303, 2.776 for 1, 2, 4."""
    above, below = bound * 1.001, bound * 0.999
    assert evidence.Lead(above, 1.0, seeds, seeds).told_apart
    assert evidence.Lead(-above, 1.0, 0, seeds).told_apart
    assert not evidence.Lead(below, 1.0, seeds, seeds).told_apart


def test_one_seed_and_level_cases_are_not_told_apart():
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


def test_chance_is_the_best_answer_without_looking():
    """By loops over the test shards: one answer a client, or one for all."""
    shares: list[Counter] = []
    fed = federation(papers.fedmps("digits", "local"))
    for index in fed.test.index:
        labels = fed.test.y[index].tolist()
        shares.append(Counter({c: n / len(labels) for c, n in Counter(labels).items()}))
    each = sum(max(share.values()) for share in shares) / len(shares)
    joint = max(sum(share[c] for share in shares) / len(shares) for c in range(10))
    count = sum(len(index) for index in fed.test.index)
    assert joint < each
    for method, wanted in (("local", each), ("fedavg", joint), ("fedproto", each)):
        found = evidence.by_chance(papers.fedmps("digits", method))
        assert found == (pytest.approx(100 * wanted), count)


def test_a_run_that_stays_at_chance_is_told(capsys):
    done = fedlib.run(papers.fedmps("digits", "local", rounds=12))
    assert evidence.learned(done)
    assert capsys.readouterr().out.startswith("Local, seed 1234: ")
    rates = {"learning_rate": 1e-7}
    stays = fedlib.run(papers.fedmps("digits", "local", rounds=1, training=rates))
    assert not evidence.learned(stays)
    told = capsys.readouterr().out
    assert told.startswith("WARNING: Local, seed 1234 stays at chance: ")
    assert "another learning rate than 1e-07." in told
