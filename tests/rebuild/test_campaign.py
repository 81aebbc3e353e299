"""The campaign: what comes first, what is done, and that it goes on."""

import json
import signal
import time

import pytest
from click.testing import CliRunner
from filelock import FileLock

from fedlib import papers
from fedlib.cli import main
from fedlib.rebuild import campaign
from fedlib.rebuild.campaign import CUT, RELEASED, Batch, Planned
from fedlib.rebuild.our_runs import printed_accuracies
from fedlib.runs import address, checkpoints, many, published, runner
from fedlib.runs.spec import SettingError, Spec
from fedlib.support import paths


def toy(seed: int = 1, **changes) -> Spec:
    own = {"clients": 4, "rounds": 4, "net": "digits_linear"}
    return papers.fedmps("digits", "local", seed=seed, **(own | changes))


def planned(
    seed: int = 1, cells=None, worth=0.0, state="missing", hours=1.0, **changes
):
    """Return a planned run of a printed number."""
    told = {("toy", "table1", 0): 1.0} if cells is None else cells
    spec = toy(seed, **changes)
    return Planned(spec, ["toy"], told, worth, state, 0, 3600 * hours)


@pytest.fixture
def toys(monkeypatch):
    """Give batches of given runs, and list what is published."""
    specs: dict[str, list[Spec]] = {}
    published_ones: list[str] = []
    monkeypatch.setattr(campaign, "specs_of", lambda batch: specs[batch.name])
    monkeypatch.setattr(published, "has", lambda spec, key: key in published_ones)
    monkeypatch.setattr(published, "publish", published_ones.append)
    monkeypatch.setattr(campaign.os, "nice", lambda more: more or campaign.NICE)

    def batches(**named: list[Spec]) -> list[Batch]:
        specs.update(named)
        return [Batch(name=name, artefact="toy/toy") for name in named]

    return batches, published_ones


# the list


def test_the_committed_batches_are_of_artefacts_and_name_each_run_once():
    found = campaign.batches()
    assert found[0].name == "fedpg/log"
    for batch in found:
        texts = [spec.model_dump_json() for spec in campaign.specs_of(batch)]
        assert texts
        assert len(set(texts)) == len(texts)


def test_fedmps_on_cifar10_has_the_papers_rounds_and_seeds():
    (batch,) = campaign.batches(["fedmps/table3, three seeds"])
    runs = campaign.specs_of(batch)
    assert {(spec.dataset, spec.rounds) for spec in runs} == {("cifar10", 500)}
    assert {spec.seed for spec in runs} == {1234, 1235, 1236}
    assert len(runs) == 30  # ten rows
    (kept,) = campaign.batches(["fedmps/table3"])  # its runs are of these
    texts = {spec.model_dump_json() for spec in runs}
    ours = [spec for spec in campaign.specs_of(kept) if spec.dataset == "cifar10"]
    assert {spec.model_dump_json() for spec in ours} <= texts


def test_an_unknown_batch_or_field_is_named(tmp_path, monkeypatch):
    with pytest.raises(SettingError, match=r"'fedmps/table33'.*fedmps/table3"):
        campaign.batches(["fedmps/table33"])
    monkeypatch.setattr(paths, "PARAMS", tmp_path)
    (tmp_path / "campaign.yaml").write_text("toy/a: {price: 1}\n")
    with pytest.raises(SettingError, match="toy/a: price: Extra inputs"):
        campaign.batches()
    (tmp_path / "campaign.yaml").write_text("toy/a: {worth: -1}\n")
    with pytest.raises(SettingError, match="toy/a: worth"):
        campaign.batches()


# whose number a run is


def test_a_whole_run_tells_more_than_a_cut_or_a_released_one():
    cells = [cell for cell in printed_accuracies() if cell.paper == "fedmps"]
    (cell,) = [
        c
        for c in cells
        if (c.table, c.own.dataset, c.own.method) == ("table3", "cifar10", "fedmps")
    ]
    at = ("fedmps", "table3", cell.row)

    def of(**changes):
        spec = papers.fedmps("cifar10", "fedmps", seed=5, **changes)
        return campaign._cells(spec, [cell])

    assert of() == {at: 1}
    assert of(rounds=500) == {at: 1}
    assert of(rounds=499) == {at: CUT}
    assert of(hp={"variant": "reference"}) == {at: RELEASED}
    assert of(hp={"variant": "reference"}, rounds=3) == {at: RELEASED * CUT}
    assert of(partition={"ways": 4}) == {}


# the order


def test_what_tells_most_per_hour_comes_first():
    slow = planned(hours=4.0)  # a quarter of a number per hour
    cut = planned(rounds=2, cells={("toy", "table1", 0): CUT}, hours=0.5)  # a half
    two = planned(rounds=3, cells={("a", "b", i): 1.0 for i in range(2)})  # two
    asked = planned(clients=5, cells={}, worth=1.0)  # one
    nothing = planned(clients=6, cells={})
    runs = [nothing, slow, cut, two, asked]
    assert campaign.ordered(runs) == [two, asked, cut, slow, nothing]


def test_every_second_seed_tells_half_and_those_at_hand_count_first():
    """Method a has a seed: its next tells 1/2, 1/3; those of b 1, 1/2 and 1/3."""
    done = planned(9, rounds=2, state="done")
    a = [planned(seed, rounds=2) for seed in (1, 2)]
    b = [planned(seed, rounds=3, hours=0.9) for seed in (1, 2, 3)]
    assert campaign.ordered([*a, *b, done]) == [b[0], b[1], a[0], b[2], a[1]]


def test_what_cannot_run_is_left_out_and_what_runs_elsewhere_comes_last():
    running = planned(1, state="running", hours=0.01)
    begun = planned(2, rounds=3, state="begun")
    away = planned(3, rounds=2, state="no data")
    assert campaign.ordered([running, away, begun]) == [begun, running]


# how far it is


def test_status_tells_what_is_done_begun_running_and_missing(toys, monkeypatch):
    batches, _ = toys
    specs = [toy(seed) for seed in (1, 2, 3, 4)]
    runner.run(specs[0])
    interrupted(specs[1], 3, monkeypatch)
    home = address.folder(specs[2])
    home.mkdir(parents=True)
    away = papers.fedmps("flowers", "local", seed=5, rounds=2)
    monkeypatch.setenv("FEDLIB_DATA", "nowhere")
    with FileLock(home / ".lock"):
        runs = campaign.plan(batches(some=[*specs, away], other=[specs[0]]))
    assert [run.state for run in runs] == [
        *("done", "begun", "running", "missing", "no data")
    ]
    assert [run.rounds for run in runs] == [4, 3, 0, 0, 0]
    each = runs[3].seconds
    assert each > 0
    assert [run.seconds for run in runs[:4]] == pytest.approx(
        [0, each / 4, each, each]  # three of four rounds are kept
    )
    table = campaign.status(runs, "batch").set_index("batch")
    assert list(table.index) == ["some", "other"]
    row = table.loc["some"]
    assert (row.runs, row.done, row.running, row.begun) == (5, 1, 1, 1)
    assert (row.missing, row["no data"]) == (1, 1)
    assert table.loc["other"].done == 1


def test_hours_are_at_the_pace_of_a_processor_and_not_of_the_clock(toys):
    batches, _ = toys
    runner.run(toy(1))
    timing = address.folder(toy(1)) / "timing.json"
    names = ("train_seconds_per_round", "evaluate_seconds_per_round")
    timing.write_text(
        json.dumps(dict.fromkeys(names, 900.0) | {"cpu_seconds_per_round": 90.0})
    )
    (row,) = campaign.status(
        campaign.plan(batches(toy=[toy(1), toy(2, rounds=20)])), "batch"
    ).to_dict("records")
    assert row["hours"] == 0.5  # 20 rounds of 90 s


def test_printed_numbers_count_once_and_by_their_best_budget():
    one, two = ("toy", "table1", 0), ("toy", "table1", 1)
    runs = [
        planned(1, cells={one: 1.0, two: CUT}, state="done"),
        planned(2, cells={one: CUT}, state="done"),
        planned(3, cells={("other", "table1", 0): 1.0}),
    ]
    (row,) = campaign.status(runs, "batch").to_dict("records")
    assert (row["printed"], row["full"], row["cut"]) == (3, 1, 1)


def interrupted(spec: Spec, rounds: int, monkeypatch) -> None:
    """Compute some rounds of a run and stop."""
    keep, kept = checkpoints.save, []

    def checkpoint(*arguments):
        keep(*arguments)
        kept.append(1)
        if len(kept) == rounds:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", checkpoint)
        with pytest.raises(KeyboardInterrupt):
            runner.run(spec)


# running it


def test_a_failing_run_ends_no_other_and_all_that_are_done_are_published(toys):
    batches, published_ones = toys
    broken = toy(2, training={"learning_rate": 1e30})
    specs = [toy(1), broken, toy(3)]
    runner.run(specs[0])
    told = []
    assert not campaign.run(batches(toy=specs), 1, echo=told.append)
    assert published_ones == [address.key(specs[0]), address.key(specs[2])]
    assert told[0] == "2 runs, at the lowest priority (nice 19)"
    assert "local on digits, seed 3: done, 1 left" in told
    assert "NonFiniteError" in told[-1]
    assert not campaign.run(batches(toy=specs), 1, echo=told.append)
    assert campaign.run(batches(toy=[specs[0], specs[2]]), 1, echo=told.append)
    assert told[-1] == "nothing is missing"


def test_a_published_run_is_done_for_whoever_has_it(monkeypatch, tmp_path):
    monkeypatch.setattr(campaign.os, "nice", lambda more: more)
    monkeypatch.setattr(campaign, "specs_of", lambda batch: [toy(1)])
    batch = Batch(name="toy", artefact="toy/toy")
    assert campaign.run([batch], 1, echo=lambda line: None)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "another"))
    (run,) = campaign.plan([batch])
    assert (run.state, run.seconds) == ("done", 0)
    ((_, record),) = published.records()
    assert record.spec == toy(1).model_dump(mode="json")


def test_a_run_that_cannot_be_published_ends_no_other(toys, monkeypatch):
    def refuse(key):
        raise ValueError("other data of that name")

    batches, _ = toys
    monkeypatch.setattr(published, "publish", refuse)
    told = []
    assert campaign.run(batches(toy=[toy(1), toy(2)]), 1, echo=told.append)
    assert sum("other data of that name" in line for line in told) == 2
    assert runner.pending([toy(1), toy(2)]) == []


def test_it_ends_after_some_hours_and_goes_on_the_next_time(toys, monkeypatch):
    batches, _ = toys
    keep = checkpoints.save

    def slow(*arguments):
        keep(*arguments)
        for _ in range(600):  # the timer's interrupt is seen between sleeps only
            time.sleep(0.1)

    told = []
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "save", slow)
        assert not campaign.run(batches(toy=[toy(1)]), 1, 2 / 3600, told.append)
    assert told[-1].startswith("0.000555556 h are over, 1 runs left. Finished runs")
    assert checkpoints.under_way(toy(1)) == (1, False)
    assert campaign.run(batches(toy=[toy(1)]), 1, echo=told.append)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_what_stops_it_has_a_status_of_its_own(toys, monkeypatch, number, status):
    def stopped(*_, **__):
        signal.raise_signal(number)

    batches, _ = toys
    monkeypatch.setattr(campaign, "batches", lambda names: batches(toy=[toy(1)]))
    monkeypatch.setattr(many, "run_many", stopped)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    result = CliRunner().invoke(main, ["campaign", "run", "--jobs", "1"])
    signal.signal(signal.SIGTERM, before)
    assert result.exit_code == status
    assert "goes on from there" in result.output


def test_the_command_prints_both_tables(toys, monkeypatch):
    batches, _ = toys
    monkeypatch.setattr(campaign, "batches", lambda names: batches(toy=[toy(1)]))
    result = CliRunner().invoke(main, ["campaign", "status"])
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith("1 runs, 1 to do, 0.0 hours")
    done = CliRunner().invoke(main, ["campaign", "run", "--jobs", "1"])
    assert (done.exit_code, runner.pending([toy(1)])) == (0, [])
