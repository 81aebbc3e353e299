"""Published runs: the same tables as from the cache, without data, and none damaged."""

import hashlib
import json

import pandas as pd
import pytest
import torch

from fedlib import data, papers
from fedlib.core.log import Log
from fedlib.data import DataError, access
from fedlib.runs import address, published, runner, timings
from fedlib.runs.published import PublishedError
from fedlib.runs.results import measured
from fedlib.runs.spec import Spec
from fedlib.support import paths

TABLES = ("summary", "payload", "terms", "watched", "beside_centralised")


def small(method: str = "local", **changes) -> Spec:
    """Return a run of the digits that takes a moment."""
    toy = {"clients": 4, "rounds": 3, "net": "digits_linear"}
    return papers.fedmps("digits", method, **(toy | changes))


@pytest.fixture
def stored(own_cache):
    """Return a run that is published, and no longer in the cache."""
    spec = small("fedproto")
    result = runner.run(spec)
    path = published.publish(result.key)
    own_cache.rename(own_cache.with_name("elsewhere"))
    return spec, result, path


@pytest.fixture
def no_data(monkeypatch):
    """Take all data away, also those that are built in."""
    monkeypatch.setattr(access, "locate", lambda name: [])
    monkeypatch.setattr(address, "locate", lambda name: [])


def refuse(*_, **__):
    raise AssertionError("a run is computed")


def test_a_published_run_gives_the_tables_that_the_computed_one_gave(
    stored, monkeypatch
):
    spec, result, path = stored
    monkeypatch.setattr(runner, "_compute", refuse)
    assert runner.pending([spec]) == []
    found = runner.run(spec)
    for table in TABLES:
        ours, theirs = getattr(found, table)(), getattr(result, table)()
        pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert (found.key, found.paper_rule) == (result.key, result.paper_rule)
    counted = ("cohort", "sent", "evaluated", "accuracy", "samples")
    for name, value in result.log.flat().items():
        if name.partition("/")[0] in counted:
            assert torch.equal(found.log.flat()[name], value)
            assert found.log.flat()[name].dtype == value.dtype
    assert timings.seconds_per_round(spec) > 0
    record = published.read_record(path)
    assert record.accuracy == measured(result)
    assert path.name == f"seed1234-3rounds-{result.key[:8]}.json"
    assert path.parent == paths.results_dir() / "digits" / "fedproto"


def test_a_published_run_is_found_without_data(stored, no_data, monkeypatch):
    spec, result, path = stored
    monkeypatch.setattr(runner, "_compute", refuse)
    assert address.key(spec) == result.key
    assert runner.run(spec).key == result.key
    known = data.facts("digits")
    assert (len(known.classes), known.groups) == (10, ())
    other = small("fedproto", seed=5)
    with pytest.raises(DataError, match="no run of these settings is published"):
        runner.run(other)
    published.remove(path)
    with pytest.raises(DataError, match="no run of these settings is published"):
        runner.run(spec)


def test_without_data_other_code_is_not_taken_for_the_published(stored, no_data, edit):
    spec, result, _ = stored
    edit("fedlib.baselines.fedproto", "def client(", "def client_of(")
    assert address.key(spec) != result.key
    assert runner.pending([spec]) == [spec]


def test_unread_published_runs_are_computed(stored, monkeypatch):
    spec, _, _ = stored
    with published.unread():
        assert runner.pending([spec]) == [spec]
    assert runner.pending([spec]) == []
    monkeypatch.setenv("FEDLIB_RESULTS", "none")
    with pytest.raises(ValueError, match="FEDLIB_RESULTS: got 'none'"):
        published.publish(runner.run(spec).key)


def test_an_installed_fedlib_is_not_written_to(stored, monkeypatch, tmp_path):
    """Its own published runs are a package's, which the next install replaces."""
    spec, _, _ = stored
    shipped = tmp_path / "site-packages" / "fedlib" / "shipped"
    monkeypatch.setattr(published, "SHIPPED", shipped)
    monkeypatch.setenv("FEDLIB_RESULTS", str(shipped / "results"))
    key = runner.run(spec).key
    with pytest.raises(ValueError, match="FEDLIB_RESULTS: expected a folder to write"):
        published.publish(key)
    assert not shipped.exists()


def spoil_log(path):
    file = published.log_path(path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def lose_log(path):
    published.log_path(path).unlink()


def edited(path, **changes):
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | changes))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_log, "zst: damaged: another checksum"),
        (lose_log, "zst: damaged: missing"),
        (lambda p: p.write_text(p.read_text()[:-9]), "json: damaged: .*JSON"),
        (lambda p: edited(p, format=2), "json: damaged: format"),
        (lambda p: edited(p, partition=["x", "y"]), "json: damaged: its key is not"),
        (lambda p: edited(p, more=1), "json: damaged: more"),
    ],
)
def test_damaged_files_are_refused_by_name(stored, spoil, words):
    spec, _, path = stored
    spoil(path)
    with pytest.raises(PublishedError, match=f"^results/digits/fedproto/.*{words}"):
        runner.run(spec)


def test_a_record_under_the_name_of_another_run_is_refused(stored):
    _, _, path = stored
    other = small("fedproto", eval_every=2)
    path.rename(published.path_of(other, address.key(other)))
    with pytest.raises(PublishedError, match="damaged: holds the run"):
        runner.run(other)


def test_a_log_that_cannot_be_of_its_run_is_not_written(stored):
    """What cannot be is listed and tested in ``test_checks``."""
    _, result, path = stored
    record = published.read_record(path)
    with pytest.raises(ValueError, match=f"run {record.key}: cohort"):
        published.write(record, result.log._replace(cohort=result.log.cohort + 1))


def test_a_checked_log_is_checked_when_read_not_only_when_written(stored, monkeypatch):
    spec, result, path = stored
    record = published.read_record(path)
    bad = result.log._replace(cohort=result.log.cohort + 10)
    with monkeypatch.context() as patch:
        patch.setattr(published, "checked_log", lambda *_, **__: None)
        published.write(record, bad)
    digest = hashlib.sha256(published.log_path(path).read_bytes()).hexdigest()
    assert published.read_record(path).log.sha256 == digest
    with pytest.raises(PublishedError, match="cohort: got 10 to 13"):
        runner.run(spec)


def test_other_data_of_a_name_are_not_published_beside(stored, own_cache):
    _, result, path = stored
    own_cache.with_name("elsewhere").rename(own_cache)
    published.remove(path)
    file = own_cache / "runs" / result.key / "spec.json"
    told = json.loads(file.read_text())
    told["data"][0] = "0" * 16
    file.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="digits: got a run on other data"):
        published.publish(result.key)


def test_a_long_run_takes_tens_of_kilobytes():
    """Here 500 rounds of 20 clients under 7 rules; counts move as in training."""
    draw = torch.Generator().manual_seed(0)

    def walk(*shape: int) -> torch.Tensor:
        steps = torch.randint(-2, 3, shape, generator=draw)
        return (60 + steps.cumsum(0)).clamp(0, 120)

    right, paper = walk(50, 7, 20), walk(500, 20)
    every = {f"accuracy/global/r{i}": torch.full((500, 20), -1) for i in range(7)}
    for i, value in enumerate(every.values()):
        value[9::10] = right[:, i]
    every["accuracy/global/r0"] = paper
    flat = every | {
        "cohort": torch.arange(20).expand(500, 20).clone(),
        "evaluated": torch.arange(1, 501),
        "samples": torch.full((500, 20), 120),
    }
    for name in ("supervised", "contrast", "high", "low", "soft"):
        flat[f"term/{name}"] = torch.rand(500, 20, generator=draw)
    spec = small(clients=20, rounds=500)
    identity = {"spec": spec.model_dump(mode="json"), "partition": [], "code": "c"}
    identity |= {"data": ["d", [0.5], [0.5], None], "format": 1}
    record = published.Record(
        key=published.key_of(identity),
        spec=identity["spec"],
        log_format=1,
        data=identity["data"],
        partition=[],
        code="c",
        deviations=[],
        device="cpu",
        kernel="",
        kept_bytes={},
        versions={},
        timing={},
        accuracy=None,
        log=published.LogFile(sha256="", bytes=1),
    )
    path = published.write(record, Log.of(flat))
    size = path.stat().st_size + published.log_path(path).stat().st_size
    assert size < 40_000, size
    found = published.read_log(path, published.read_record(path))
    assert torch.equal(found.accuracy["global/r0"], paper)


def test_means_over_a_cohort_do_not_depend_on_how_many_rounds_there_are():
    """An adoption compares means of three rounds with those of five hundred."""
    for clients in (1, 3, 10, 20, 33, 100):
        rows = torch.rand(500, clients)
        whole = published.compact(Log(term={"a": rows})).term["a"]
        for count in (1, 2, 3, 10):
            part = published.compact(Log(term={"a": rows[:count]})).term["a"]
            assert torch.equal(part, whole[:count])
        assert torch.equal(whole[:, 0], rows.mean(1))
