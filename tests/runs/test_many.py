"""Many runs: each stands alone, on every engine with the same bits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

from fedlib import papers
from fedlib.core.method import NonFiniteError
from fedlib.data import DataError
from fedlib.runs import address, device, many, runner, worker
from fedlib.runs.many import Ended, Task, Worker
from fedlib.runs.spec import Spec
from fedlib.support import progress
from fedlib.support.paths import ROOT
from tests.runs import faults, light
from tests.runs.test_runner import assert_same_log


def short(seed: int = 1, **changes) -> Spec:
    toy = {"clients": 4, "rounds": 4, "net": "digits_linear"}
    return papers.fedmps("digits", "local", seed=seed, **(toy | changes))


def diverging(seed: int) -> Spec:
    return short(seed, training={"learning_rate": 1e30})


def missing(spec: Spec) -> bool:
    return not (address.folder(spec) / worker.RESULT).exists()


@pytest.fixture
def pool(monkeypatch):
    """Give processes that start in no time, and end them with the test."""
    monkeypatch.setattr(worker, "here", light.here)
    # what it leaves is no result that a run could read
    monkeypatch.setattr(runner, "pending", lambda specs: [*filter(missing, specs)])
    many.POOL.stop()
    yield many.POOL
    many.POOL.stop()


def tries(spec: Spec) -> list[list[str]]:
    text = (address.folder(spec) / "tries").read_text()
    return [line.split() for line in text.splitlines()]


# one that fails


def test_in_one_process_a_run_that_raises_ends_no_other():
    specs = [short(1, rounds=1), diverging(2), short(3, rounds=1)]
    done = []
    with pytest.raises(ExceptionGroup) as caught:
        many.run_many(specs, 1, done.append)
    (error,) = caught.value.exceptions
    assert isinstance(error, NonFiniteError)
    assert caught.value.message.splitlines() == [
        "1 of 3 runs failed, the others are done",
        f"- local on digits, seed 2, key {address.key(specs[1])}: "
        f"NonFiniteError: {error}",
    ]
    assert done == [specs[0], specs[2]]
    assert runner.pending(specs) == [specs[1]]


def test_specs_may_come_from_a_generator():
    found = many.run_many((short(seed) for seed in (1, 2)), jobs=1)
    assert [result.spec.seed for result in found] == [1, 2]


def test_a_run_without_data_ends_no_other(monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", "nowhere")
    away = papers.fedmps("flowers", "local", seed=5, rounds=2)
    with pytest.raises(
        ExceptionGroup, match="local on flowers, seed 5, no key"
    ) as told:
        many.run_many([away, short(rounds=1), away], 1)
    (error,) = told.value.exceptions
    assert isinstance(error, DataError)
    assert runner.pending([short(rounds=1)]) == []


def test_of_twenty_runs_one_raises_and_one_kills_its_process(pool):
    specs = [short(100 + number) for number in range(18)]
    specs.insert(3, short(light.RAISES))
    specs.insert(7, short(light.KILLS))
    with (
        pytest.warns(UserWarning, match=r"seed 13, .* died \(SIGKILL.*tried once more"),
        pytest.raises(ExceptionGroup) as caught,
    ):
        many.run_many(specs, 2)
    raised, killed = sorted(caught.value.exceptions, key=lambda e: type(e).__name__)
    assert (type(raised), str(raised)) == (ArithmeticError, "the loss is nan")
    assert type(killed) is ChildProcessError
    assert "its worker died twice: SIGKILL" in str(killed)
    head, *lines = caught.value.message.splitlines()
    assert head == "2 of 20 runs failed, the others are done"
    assert sorted(line.split(": ")[0] for line in lines) == sorted(
        f"- local on digits, seed {s.seed}, key {address.key(s)}"
        for s in (specs[3], specs[7])
    )
    assert runner.pending(specs) == [specs[3], specs[7]]
    assert [len(tries(s)) for s in specs] == [1] * 7 + [2] + [1] * 12


@pytest.mark.slow  # two processes import the library
def test_a_killed_workers_run_goes_on_from_its_checkpoint(pool, monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "here", faults.here)
    spec = short(rounds=4)
    with pytest.warns(UserWarning, match="tried once more"):
        (there,) = many.run_many([spec], 2)
    assert (address.folder(spec) / ".played").read_text() == "1 2 3 "
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    assert_same_log(there, runner.run(spec))


@pytest.mark.slow  # two processes import the library
def test_jobs_do_not_change_the_bits_or_the_order(pool, monkeypatch, tmp_path):
    monkeypatch.setattr(worker, "here", faults.HERE)
    specs = [short(seed, rounds=2) for seed in (1, 2, 3)]
    runner.run(specs[2])
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_compute", lambda *_: pytest.fail("computed here"))
        there = many.run_many(specs, jobs=2)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "elsewhere"))
    for spec, other in zip(specs, there, strict=True):
        assert other.spec == spec
        assert_same_log(runner.run(spec), other)


# stopped


def gone(number: int) -> bool:
    """Return whether a process has ended, within some seconds."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            threads = os.listdir(f"/proc/{number}/task")
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state[0] == "Z" and len(threads) == 1:  # others would still hold its locks
            return True
        time.sleep(0.02)
    return False


def test_ctrl_c_ends_the_processes_and_says_how_to_go_on(pool, monkeypatch, own_cache):
    monkeypatch.setattr(worker, "here", light.slow)
    numbers: list[int] = []

    def interrupt():
        while len(found := list(own_cache.glob("slow/runs/*/tries"))) < 2:
            time.sleep(0.02)
        numbers.extend(int(path.read_text().split()[0]) for path in found)
        for number in numbers:  # as a scheduler does, to all processes of a job
            os.kill(number, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    watch = threading.Thread(target=interrupt)
    watch.start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody died before
        with pytest.raises(KeyboardInterrupt) as caught:
            many.run_many([short(seed) for seed in range(1, 6)], 2)
    watch.join()
    assert caught.value.__notes__ == [many.GO_ON]
    assert len(set(numbers)) == 2
    assert all(gone(number) for number in numbers)


ORPHANS = """
import os, time
from fedlib.runs.processes import Pool

def told():
    print(os.getpid(), flush=True)
    time.sleep(600)

Pool().call("", told)
"""


def test_processes_end_with_the_one_that_has_started_them():
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not Path(f"/proc/{child}/stat").read_text().split()[2] == "Z"
        parent.kill()
    assert gone(child)


# how many, and where


@pytest.mark.parametrize("given", ["abc", "-1", "0", "1.5", "99999999", "1e3", " "])
def test_jobs_of_the_environment_are_a_number(monkeypatch, given):
    monkeypatch.setenv("FEDLIB_JOBS", given)
    with pytest.raises(ValueError, match=f"FEDLIB_JOBS: got '{given}', expected 1, 2"):
        many.jobs_of_machine()


def test_jobs_out_of_range():
    with pytest.raises(ValueError, match="jobs: got 0, expected at least 1"):
        many.run_many([], jobs=0)


@pytest.mark.parametrize(
    ("cores", "gib", "jobs"),
    [(2, 16, 2), (16, 16, 8), (16, 256, 16), (4, 1, 1)],
)
def test_jobs_of_a_machine_are_its_cores_while_memory_lasts(
    cores, gib, jobs, monkeypatch
):
    monkeypatch.delenv("FEDLIB_JOBS")
    monkeypatch.setattr(many.joblib, "cpu_count", lambda: cores)
    sizes = {"SC_PHYS_PAGES": gib * 2**18, "SC_PAGE_SIZE": 2**12}
    monkeypatch.setattr(many.os, "sysconf", sizes.__getitem__)
    assert many.jobs_of_machine() == jobs
    monkeypatch.setenv("FEDLIB_JOBS", "3")
    assert many.jobs_of_machine() == 3


def test_gpus_are_taken_in_turn_unless_one_is_named(monkeypatch):
    monkeypatch.delenv("FEDLIB_JOBS")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for name in ("cuda", "auto"):
        monkeypatch.setenv("FEDLIB_DEVICE", name)
        found = [device.of_process(number) for number in range(4)]
        assert found == ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]
        assert many.jobs_of_machine() == 3
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda:2")
    assert [device.of_process(number) for number in range(2)] == ["cuda:2"] * 2
    assert many.jobs_of_machine() == 1
    monkeypatch.setenv("FEDLIB_DEVICE", "cpu")
    assert device.of_process(1) == "cpu"


def test_a_process_keeps_its_gpu(pool, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("FEDLIB_DEVICE", "cuda")
    specs = [short(seed) for seed in range(1, 9)]
    with pytest.raises(ExceptionGroup):
        many.run_many([*specs, short(light.RAISES)], 2)
    pairs = {tuple(tries(spec)[0]) for spec in specs}
    assert {place for _, place in pairs} == {"cuda:0", "cuda:1"}
    assert len(pairs) == 2


# who does what


class Fake:
    """Workers that answer at once what a function says."""

    def __init__(self, names, answer):
        self.there = [Worker(name, host) for name, host in names]
        self.answer, self.running = answer, []
        self.began: list[tuple[int, str]] = []

    def workers(self):
        return self.there

    def start(self, task, who):
        assert who not in [other for _, other in self.running]
        self.began.append((task.spec.seed, who.name))
        self.running.append((task, who))

    def ended(self):
        running, self.running = self.running, []
        return [Ended(t, w, self.answer(t.spec, w.name), "gone") for t, w in running]


def spread(engine, tasks, monkeypatch) -> dict[int, Exception | None]:
    monkeypatch.setattr(many, "_kept", lambda task, files: None)
    return {task.spec.seed: error for task, error in many._spread(tasks, engine)}


def task(seed: int, **changes) -> Task:
    return Task(short(seed, **changes), f"key{seed}", 1.0)


def test_the_longest_runs_come_first():
    """Those on disk tell that a round of FedProto takes a hundred of Local's."""
    known = papers.fedmps("digits", "fedproto", seed=1, rounds=1, clients=4)
    slow = papers.fedmps("digits", "fedproto", seed=2, rounds=3, clients=4)
    done = [short(7, rounds=1), known]
    for spec, seconds in zip(done, (1, 100), strict=True):
        runner.run(spec)
        timing = {"train_seconds_per_round": seconds, "evaluate_seconds_per_round": 0}
        (address.folder(spec) / "timing.json").write_text(json.dumps(timing))
    specs = [short(1, rounds=4), short(2, rounds=9), slow, short(3, rounds=6)]
    tasks, failed = many._tasks([*specs, *done, *specs])
    assert failed == []
    assert [t.spec for t in tasks] == [slow, specs[1], specs[3], specs[0]]
    assert [t.seconds for t in tasks] == pytest.approx([300, 9, 6, 4])
    told, _ = many._tasks([*specs, *done, *specs], in_order=True)
    assert [t.spec for t in told] == specs


def test_a_run_that_is_given_back_takes_its_place_again(monkeypatch):
    """Its expected seconds, all the same here, say nothing of the order asked for."""
    died = []

    def answer(spec, who):
        if spec.seed == 0 and not died:
            died.append(who)
            return None
        return {"files": {}}

    engine = Fake([("a", "x")], answer)
    with pytest.warns(UserWarning, match="tried once more"):
        spread(engine, [task(seed) for seed in (2, 0, 1)], monkeypatch)
    assert [seed for seed, _ in engine.began] == [2, 0, 0, 1]


def test_a_refused_run_goes_to_another_worker(monkeypatch):
    def answer(spec, who):
        return {"refused": {"error": "no data"}} if who == "b" else {"files": {}}

    engine = Fake([("a", "x"), ("b", "y")], answer)
    with pytest.warns(UserWarning, match="b refuses a run of local: no data") as told:
        found = spread(engine, [task(seed) for seed in range(4)], monkeypatch)
    assert found == dict.fromkeys(range(4))
    assert len(told) == 1
    assert sorted(seed for seed, who in engine.began if who == "a") == [0, 1, 2, 3]
    begun = [seed for seed, who in engine.began if who == "b"]
    assert len(begun) == len(set(begun))  # none is offered twice


def test_a_run_that_all_refuse_is_named_with_their_reasons(monkeypatch):
    engine = Fake(
        [("a", ""), ("b", "")], lambda s, w: {"refused": {"error": f"no {w}"}}
    )
    with pytest.warns(UserWarning, match="refuses"):
        found = spread(engine, [task(1)], monkeypatch)
    assert str(found[1]) == "refused by every worker: a: no a; b: no b"


def test_a_lost_run_goes_on_where_its_checkpoint_is(monkeypatch):
    """Another host takes it when it has nothing else to do."""
    lost = []

    def answer(spec, who):
        if spec.seed == 1 and not lost:
            lost.append(who)
            return None
        return {"files": {}}

    engine = Fake([("a", "x"), ("b", "y")], answer)
    with pytest.warns(
        UserWarning, match="a died \\(gone\\); the run is tried once more"
    ):
        found = spread(engine, [task(seed) for seed in range(1, 6)], monkeypatch)
    assert found == dict.fromkeys(range(1, 6))
    assert [pair for pair in engine.began if pair[0] == 1] == [(1, "a"), (1, "a")]
    lone = task(9)
    assert many._next([lone], Worker("b")) is lone
    lone.died.append(Worker("a", "x"))
    fresh = task(8)
    assert many._next([lone, fresh], Worker("b", "y")) is fresh
    assert many._next([fresh, lone], Worker("c", "x")) is lone
    assert many._next([lone], Worker("b", "y")) is lone


def test_what_differs_is_named():
    spec = short()
    own = worker.what_it_has(spec)
    assert (
        many.difference(spec, {"error": "DataError: no data"}) == "DataError: no data"
    )
    parts = own["parts"] | {f"fedlib.new.f{i}": "0" for i in range(4)}
    other = own | {"code": "0", "parts": parts}
    told = "other code (fedlib.new.f0, fedlib.new.f1, fedlib.new.f2 and 1 more)"
    assert many.difference(spec, other) == told
    data = {"data": ["0"], "partition": ["0"]}
    assert many.difference(spec, own | data) == "other data of digits"
    assert many.difference(spec, other | data) == f"{told}, other data of digits"


# what travels


def test_a_worker_refuses_another_key_and_computes_nothing(monkeypatch):
    spec = short()
    monkeypatch.setattr(runner, "run", lambda _: pytest.fail("computed"))
    answer = worker.there(spec.model_dump_json(), "0" * 20, "numba")
    assert answer["refused"]["code"] == address.identity(spec)["code"]
    text = spec.model_dump_json().replace('"local"', '"unknown"')
    assert "unknown" in worker.there(text, "0" * 20, "numba")["refused"]["error"]
    answer = worker.there(spec.model_dump_json(), address.key(spec), "torch")
    told = many.difference(spec, answer["refused"])
    assert told == "another kernel (FEDLIB_KERNEL is 'numba', expected 'torch')"


def test_a_finished_run_travels_and_its_result_is_written_last(tmp_path, monkeypatch):
    spec = short(rounds=2)
    with monkeypatch.context() as patch:
        patch.setenv("FEDLIB_CACHE", str(tmp_path / "there"))
        there = runner.run(spec)
        answer = worker.there(spec.model_dump_json(), address.key(spec), "numba")
    assert runner.pending([spec]) == [spec]
    home = address.folder(spec)
    home.mkdir(parents=True)
    (home / "checkpoint.safetensors").touch()
    written, real = [], worker.atomic_write
    monkeypatch.setattr(
        worker, "atomic_write", lambda path: written.append(path.name) or real(path)
    )
    worker.unpack(spec, answer["files"])
    names = ["final.safetensors", "result.safetensors", "spec.json", "timing.json"]
    assert sorted(written) == sorted(answer["files"]) == names
    assert written[-1] == "result.safetensors"
    assert not (home / "checkpoint.safetensors").exists()
    assert_same_log(runner.run(spec), there)


class Stubborn(Exception):
    def __init__(self, one):
        super().__init__(one)
        self.held = lambda: one  # nothing pickles it


def test_an_error_that_cannot_travel_is_told_in_words():
    (found,) = [worker._portable(error) for error in (Stubborn("no"),)]
    assert str(found) == "Stubborn: no"
    assert "Stubborn: no" in found.__notes__[0]


def test_nothing_to_compute_shows_no_bar(monkeypatch, capsys):
    """A page whose runs are all there has no line of 0 runs."""
    monkeypatch.setattr(progress, "progress_off", lambda: False)
    many.run_many([short(rounds=1)])
    assert "1/1" in "".join(capsys.readouterr())
    many.run_many([short(rounds=1)])
    assert "".join(capsys.readouterr()) == ""
