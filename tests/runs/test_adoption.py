"""Adoption: no number may have moved, and what vouches for that is written down."""

import json

import pytest
import torch

from fedlib.runs import (
    address,
    adoption,
    compare,
    federation,
    published,
    runner,
    stored,
)
from fedlib.runs.spec import SettingError, Spec
from fedlib.support import paths
from tests.runs.test_published import refuse, small

ROUNDS = 5
PLACE = ("fedlib.baselines.local", "def client(", "def client_of(")  # changes keys


@pytest.fixture
def run(own_cache) -> stored.Stored:
    """Return a run that is published and in the cache."""
    published.publish(runner.run(small(rounds=ROUNDS)).key)
    return only()


def only(where: str = "cache, results") -> stored.Stored:
    (found,) = [each for each in stored.everything() if each.where == where]
    return found


def key_now(run: stored.Stored) -> str:
    return address.key(Spec.model_validate(run.told["spec"]))


@pytest.fixture
def act(monkeypatch):
    """Return a function that lets every loss be larger from a round on."""
    plain = federation.rounds

    def change(by: float, since: int = 1) -> None:
        def rounds(*given, **named):
            for after in plain(*given, **named):
                if after.number >= since:
                    moved = {name: v + by for name, v in after.terms.items()}
                    after = after._replace(terms=moved)
                yield after

        monkeypatch.setattr(federation, "rounds", rounds)

    return change


def adopt(run, *given, **named):
    ((same, outcome),) = adoption.adopt([run], *given, **named)
    assert same is run
    return outcome


def verify(run, rounds):
    ((_, outcome),) = adoption.verify([run], rounds)
    return outcome


def test_a_comment_changes_nothing(run, edit, monkeypatch):
    edit(PLACE[0], "def client(", "# Why clients do so\ndef client(")
    monkeypatch.setattr(runner, "first_rounds", refuse)
    assert stored.why_stale(run.told) == ""
    assert adopt(run) == ("current", run.key, "current")


def test_a_run_of_same_numbers_gets_the_new_key_everywhere(run, edit, monkeypatch):
    figure = paths.figures_dir() / "cpu" / "toy" / "a.json"
    figure.parent.mkdir(parents=True)
    figure.write_text(json.dumps({"runs": [{"key": run.key}, {"key": "0" * 20}]}))
    edit(*PLACE)
    after = key_now(run)
    assert after != run.key
    assert stored.why_stale(run.told) == "code"
    status, key, words = adopt(run)
    assert (status, key) == ("adopted", after)
    assert words == f"same numbers in 3 rounds, named in 1 figures; now {after}"
    monkeypatch.setattr(runner, "_compute", refuse)
    spec = Spec.model_validate(run.told["spec"])
    assert runner.pending([spec]) == []
    assert [r["key"] for r in json.loads(figure.read_text())["runs"]] == [
        after,
        "0" * 20,
    ]
    found = only()
    assert found.key == after
    assert only("cache").key == run.key  # another checkout may want it
    for told in (found.told, json.loads((found.cache / "spec.json").read_text())):
        (voucher,) = told["vouchers"]
        assert voucher["key_before"] == run.key
        assert voucher["code_before"] == run.told["code"]
        assert voucher["code_after"] == address.code_of(spec).hash == told["code"]
        assert (voucher["rounds"], voucher["largest_difference"]) == (3, 0.0)
    assert (found.cache / "final.safetensors").exists()
    with published.unread():
        cached = runner.run(spec)
    assert compare.largest_difference(published.compact(cached.log), found.log()) == 0
    assert adopt(found).status == "current"
    assert adopt(only("cache")).words == f"the cache has it as {after}"


def test_vouchers_chain(run, edit):
    edit(*PLACE)
    adopt(run)
    between = only()
    edit(PLACE[0], "def models(", "def models_of(")
    adopt(between, rounds=2)
    last = only()
    one, two = last.told["vouchers"]
    assert [one["key_before"], two["key_before"]] == [run.key, between.key]
    assert one["code_after"] == two["code_before"] != two["code_after"]
    assert [one["rounds"], two["rounds"]] == [3, 2]


def test_a_run_that_was_only_copied_to_its_key_is_vouched_for(own_cache, edit):
    """So did a tool before: the key was today's, and the record the old code's."""
    spec = small(rounds=ROUNDS)
    before = runner.run(spec).key
    edit(*PLACE)
    address.folder(spec).parent.joinpath(before).rename(address.folder(spec))
    run = only("cache")
    assert (run.key, stored.why_stale(run.told)) == (address.key(spec), "code")
    assert adopt(run).status == "adopted"
    found = only("cache")
    assert (found.key, stored.why_stale(found.told)) == (address.key(spec), "")
    assert found.told["vouchers"][0]["key_before"] == before
    published.publish(found.key)
    assert only().key == found.key


def test_a_changed_loss_is_found(run, edit, act):
    edit(*PLACE)
    act(1e-6)
    status, key, words = adopt(run)
    assert (status, key) == ("stale", run.key)
    assert "differs by" in words
    assert only().key == run.key
    assert runner.pending([Spec.model_validate(run.told["spec"])])


def test_what_acts_after_the_rounds_that_are_played_is_not_seen(run, edit, act):
    """A named limit: play as many rounds as a change needs."""
    edit(*PLACE)
    act(1.0, since=ROUNDS)
    assert adopt(run, rounds=ROUNDS).status == "stale"
    assert adopt(run, rounds=ROUNDS - 1).status == "adopted"


def test_a_tolerance_takes_a_change_of_arithmetic_and_is_written_down(run, edit, act):
    edit(*PLACE)
    act(1e-4)
    assert adopt(run, tolerance=1e-5).status == "stale"
    assert adopt(run, tolerance=1e-3).status == "adopted"
    found = only()
    (voucher,) = found.told["vouchers"]
    assert voucher["tolerance"] == 1e-3
    assert 0.5e-4 < voucher["largest_difference"] < 2e-4
    assert not (found.cache / "final.safetensors").exists()  # models of the old code


def test_verify_plays_again_and_finds_what_is_wrong(run, act):
    assert verify(run, 99).status == "same"
    act(1e-6, since=4)
    assert verify(run, 3).status == "same"
    assert verify(run, 4).status == "stale"


def test_where_a_run_was_computed_is_said_where_it_is_not_here(run):
    assert adoption.difference(run, 1) == (0, "")
    there = run._replace(told=run.told | {"device": "a gpu", "kernel": "torch"})
    largest, words = adoption.difference(there, 1)
    assert largest == 0
    assert words.startswith("computed on a gpu with torch, here ")


@pytest.mark.slow
def test_processes_play_side_by_side_and_answer_in_order(run):
    other = runner.run(small(rounds=ROUNDS, seed=1)).key
    first, third = stored.select([run.key, other])
    data = third.told | {"data": ["x"]}
    second = third._replace(key="f" * 20, told=data)
    outcomes = list(adoption.verify([first, second, third], 3, jobs=2))
    assert [run for run, _ in outcomes] == [first, second, third]
    statuses = [outcome.status for _, outcome in outcomes]
    assert statuses == ["same", "stale", "same"]


def test_a_run_on_other_data_or_of_another_partition_is_not_played(run, monkeypatch):
    monkeypatch.setattr(runner, "first_rounds", refuse)
    for name, words in (("data", "other data"), ("partition", "another partition")):
        other = run._replace(key="f" * 20, told=run.told | {name: ["x"]}, results=None)
        other = other._replace(cache=None)
        assert adoption.difference(other, 3) == (float("inf"), words)


def test_a_data_set_that_another_process_has_registered_is_named(run):
    """Walkthrough 40 leaves such runs; the commands tell them and go on."""
    own = run._replace(told=run.told | {"spec": run.told["spec"] | {"dataset": "mine"}})
    assert stored.why_stale(own.told).startswith("data set 'mine' is not known here")
    outcomes = [outcome for _, outcome in adoption.adopt([own, run])]
    assert [outcome.status for outcome in outcomes] == ["stale", "current"]
    assert "'mine' is not known here" in outcomes[0].words


@pytest.mark.parametrize("what", ["method", "net"])
def test_a_method_or_net_of_ones_own_is_named_in_words(run, what):
    own = run._replace(told=run.told | {"spec": run.told["spec"] | {what: "mine"}})
    words = f"{what} 'mine' is not known here (FEDLIB_OWN)"
    assert stored.why_stale(own.told) == words


def test_settings_that_no_longer_exist_are_named(run):
    gone = run.told | {"spec": run.told["spec"] | {"warmth": 1}}
    assert "warmth" in stored.why_stale(gone)
    status, _, words = adopt(run._replace(told=gone))
    assert status == "stale"
    assert "warmth" in words


def test_runs_are_selected_by_the_beginning_of_their_keys(run):
    assert stored.select([run.key[:6]]) == [run]
    assert stored.of([Spec.model_validate(run.told["spec"])]) == [run]
    assert stored.of([small(seed=3)]) == []
    with pytest.raises(SettingError, match="got 'xyz', which begins no key"):
        stored.select(["xyz"])


def test_differences_are_relative_shares_or_infinite():
    log = runner.run(small()).log
    name = next(iter(log.accuracy))
    assert compare.largest_difference(log, log) == 0

    def apart(**changes) -> float:
        return compare.largest_difference(log, log._replace(**changes))

    one_more = log.accuracy[name].clone()
    one_more[0, 0] += 1
    share = 1 / float(log.samples[0].sum())
    accuracy = {**log.accuracy, name: one_more}
    assert apart(accuracy=accuracy) == pytest.approx(share)
    term = log.term["supervised"]
    assert apart(term={"supervised": term + 0.5}) == pytest.approx(
        float((0.5 / term.abs().clamp(min=1)).max()), rel=1e-6
    )
    missing = term.clone()
    missing[0] = float("nan")
    for change in (
        {"term": {"supervised": missing}},
        {"term": {}},
        {"cohort": log.cohort.flip(1)},
        {"term": {"supervised": term.to(torch.float64)}},
    ):
        assert apart(**change) == float("inf")
