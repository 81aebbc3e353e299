"""The commands ``fedlib runs``: what they print, and how they exit."""

import pytest

from fedlib.papers.ours import special
from fedlib.runs import address, published, runner
from fedlib.runs.spec import Spec
from tests.rebuild.test_cli import fedlib, last
from tests.rebuild.test_make import (  # noqa: F401
    project,
    write_notebook,
)
from tests.runs.test_published import small

PLACE = ("fedlib.baselines.local", "def client(", "def client_of(")  # changes keys


@pytest.fixture
def runs(project, monkeypatch) -> list[Spec]:  # noqa: F811
    """Compute two runs, of which the artefact ``toy/a`` needs one."""
    specs = [small(seed=1), small(seed=2)]
    monkeypatch.setitem(special.SPECIAL, "toy/a", lambda p: specs[:1])
    write_notebook("toy/a")
    for spec in specs:
        runner.run(spec)
    return specs


def test_runs_are_listed_published_shown_and_verified(runs):
    first, second = map(address.key, runs)
    assert last(fedlib("runs", "publish", "toy/a", "--preset", "quick")) == (
        "published 1, there already 0, stale 0"
    )
    listed = fedlib("runs", "list").output.splitlines()
    assert [line.split()[0] for line in listed[1:-1]] == [first, second]
    assert "cache, results" in listed[1]
    assert "results" not in listed[2]
    assert listed[-1].startswith("2 runs, 2 current, ")
    assert last(fedlib("runs", "publish", second[:8], first[:8])) == (
        "published 1, there already 1, stale 0"
    )
    assert published.has(runs[1], second)
    shown = fedlib("runs", "show", second[:8])
    assert shown.output.startswith(f"local on digits, seed 2, 3 rounds, key {second}")
    assert "personal" in shown.output
    assert "device: cpu" in shown.output
    verified = fedlib("runs", "verify", "--sample", "1", "--rounds", "2")
    assert (verified.exit_code, last(verified)) == (0, "same 1, stale 0")
    assert "same numbers in 2 rounds" in verified.output


def test_adopt_takes_what_is_the_same_and_exits_1_where_a_run_stays_stale(
    runs, edit, monkeypatch
):
    fedlib("runs", "publish")
    edit(*PLACE)
    listed = fedlib("runs", "list").output.splitlines()
    why = "stale: code (fedlib.baselines.local.client)"
    assert [line.endswith(why) for line in listed[1:-1]] == [True, True]
    assert why in fedlib("runs", "show", listed[1].split()[0]).output
    verified = fedlib("runs", "verify").output.splitlines()
    assert verified[-2:] == ["2 stale runs are left out", "same 0, stale 0"]
    plain = runner.first_rounds

    def other(spec: Spec, count: int):
        log = plain(spec, count)
        return log._replace(cohort=log.cohort.flip(1)) if spec.seed == 2 else log

    monkeypatch.setattr(runner, "first_rounds", other)
    done = fedlib("runs", "adopt", "--rounds", "1")
    assert (done.exit_code, last(done)) == (1, "adopted 1, current 0, stale 1")
    assert "seed 2, 3 rounds" in done.output
    assert "stale: other numbers in 1 rounds" in done.output
    shown = fedlib("runs", "show", address.key(runs[0]))
    assert "1 rounds played, largest difference 0, tolerance 0" in shown.output


def test_what_is_no_run_is_refused(runs):
    wrong = fedlib("runs", "show", "abcdef01")
    assert (wrong.exit_code, wrong.output) == (
        2,
        "Error: run: got 'abcdef01', which begins no key; see fedlib runs list\n",
    )
