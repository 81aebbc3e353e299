"""Dask's workers: the same bits from other caches, and nothing computed here."""

import os
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import pytest

from fedlib.core.method import NonFiniteError
from fedlib.runs import many, runner
from fedlib.support.paths import ROOT
from tests.runs.test_many import diverging, short
from tests.runs.test_runner import assert_same_log

pytest.importorskip("distributed")


@pytest.fixture
def nodes(tmp_path):
    """Return what starts a scheduler and workers, and what kills all of them."""
    started = []

    def start(*names: str) -> str:
        folder = tmp_path / "nodes"
        folder.mkdir()
        command = [sys.executable, "-m", "tests.runs.dask_nodes", str(folder), *names]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        deadline = time.monotonic() + 120
        while not (folder / "address").exists():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        return (folder / "address").read_text()

    def stop() -> None:
        while started:
            process = started.pop()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    yield SimpleNamespace(start=start, stop=stop)
    stop()


@pytest.mark.slow  # one process imports the library
def test_a_cluster_computes_what_this_machine_does(nodes, monkeypatch, tmp_path):
    """One worker dies, one has other code, one run diverges: the others are done."""
    address = nodes.start("good", "dies", "edited")
    specs = [short(seed, rounds=2) for seed in range(1, 7)]
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_compute", lambda *_: pytest.fail("computed here"))
        while len(there(address)) < 3:
            time.sleep(0.05)
        with (
            pytest.warns(UserWarning, match="worker|tcp") as told,
            pytest.raises(ExceptionGroup) as caught,
        ):
            many.run_many([*specs, diverging(66)], cluster=address)
        patch.setenv("FEDLIB_CLUSTER", address)
        found = many.run_many(specs)
    (error,) = caught.value.exceptions
    assert isinstance(error, NonFiniteError)
    assert "seed 66" in caught.value.message
    texts = [str(warning.message) for warning in told]
    (refusal,) = [text for text in texts if "refuses" in text]
    assert "a run of local: other code (fedlib.core.local.train_local)" in refusal
    (death,) = [text for text in texts if "tried once more" in text]
    assert "died (it left the cluster)" in death
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    for spec, other in zip(specs, found, strict=True):
        assert_same_log(runner.run(spec), other)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(ConnectionError, match="is gone. Finished runs are kept"),
    ):
        many.run_many(
            [short(seed, rounds=2) for seed in range(11, 16)],
            after=lambda _: nodes.stop(),
            cluster=address,
        )


def there(address: str) -> list[many.Worker]:
    from fedlib.runs.cluster import Cluster

    cluster = Cluster(address)
    try:
        return cluster.workers()
    finally:
        cluster.close()


def test_an_address_where_nobody_answers(monkeypatch):
    from fedlib.runs import cluster

    monkeypatch.setattr(cluster, "ANSWER", 0.2)
    monkeypatch.setenv("FEDLIB_CLUSTER", "tcp://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"cluster: got 'tcp://127.0.0.1:9', where no"):
        many.reach(None)
    with pytest.raises(ValueError, match="no Dask scheduler answers"):
        many.run_many([short()])


def test_without_dask_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedlib\[cluster\]'"):
        many.reach("tcp://127.0.0.1:9")
