"""Kills, crash points and full disks: what ends a run changes no bit of it.

``make chaos`` sets ``CHAOS`` to the number of kills, and tries every crash point;
without it a few kills and every ninth point stand for all.
"""

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedlib.runs import address, checkpoints, runner
from fedlib.support.files import TEMPORARY
from fedlib.support.paths import ROOT
from tests.runs.test_many import gone
from tests.runs.test_runner import assert_same_log, elsewhere, small, spawn, zygote

__all__ = ["elsewhere", "zygote"]  # fixtures

CHAOS = int(os.environ.get("CHAOS", "0"))
KILLS = CHAOS or 6
long = pytest.mark.skipif(not CHAOS, reason="takes minutes: make chaos")

SPEC = small("fedproto", rounds=6, clients=3, partition={"shots": 8, "test_shots": 4})

# A name that has moved is an error here, not a new name that nothing reads
PUT = """
import os, time
from pathlib import Path
from fedlib.runs import checkpoints, on_disk

def put(where, name, value):
    getattr(where, name)
    setattr(where, name, value)

put(checkpoints, "SEGMENT", 2)
"""

# Every step of a write is counted, and the process ends at one of them as if it had
# been killed there: a file is half written then, or whole and not yet in its place.
CRASH = (
    PUT
    + """
done = 0

def step(begin=lambda: None):
    global done
    done += 1
    if done == int(at):
        begin()
        os._exit(9)

def counted(name):
    real = getattr(os, name)
    def call(*given, **named):
        step()
        return real(*given, **named)
    put(os, name, call)

def save(tensors, path, metadata, real=on_disk.save_file):
    real(tensors, path, metadata)
    step(lambda: os.truncate(path, os.path.getsize(path) // 2))

def write_text(path, text, real=Path.write_text, **named):
    step(lambda: real(path, text[: len(text) // 2], **named))
    return real(path, text, **named)

for name in ("fsync", "replace", "unlink"):
    counted(name)
put(on_disk, "save_file", save)
put(Path, "write_text", write_text)
runs.run(Spec.model_validate_json(text))
at = 0
Path(tally).write_text(str(done))
"""
)

# The same writes, slow enough that many a kill finds one under way
PLAIN = (
    PUT
    + """
def fsync(handle, real=os.fsync):
    time.sleep(0.05)
    real(handle)

put(os, "fsync", fsync)
runs.run(Spec.model_validate_json(text))
"""
)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Let a run of six rounds have segments of its log."""
    monkeypatch.setattr(checkpoints, "SEGMENT", 2)


def over(number: int) -> bool:
    """Return whether a process ends within minutes: the machine may be busy."""
    return any(gone(number) for _ in range(5))


def temporaries(home: Path) -> list[str]:
    names = os.listdir(home) if home.exists() else []
    return [name for name in names if TEMPORARY.fullmatch(name)]


def finished(home: Path) -> bool:
    return (home / "result.safetensors").exists()


def begins(process: int, home: Path) -> None:
    """Wait until a process is at work on a run, or has ended."""
    while not ((home / ".lock-holder").exists() or finished(home)):
        assert Path(f"/proc/{process}").exists()
        time.sleep(0.002)


def ended_well(home: Path) -> None:
    """Check that a finished run left nothing half done beside it."""
    names = {"final.safetensors", "result.safetensors", "spec.json", "timing.json"}
    assert {*os.listdir(home)} - {".lock"} == names


@pytest.mark.slow
def test_a_crash_at_every_step_of_a_write_loses_nothing(
    tmp_path, own_cache, zygote, elsewhere, record_property
):
    wanted, home, tally = elsewhere(SPEC), address.folder(SPEC), tmp_path / "tally"
    values = {"text": SPEC.model_dump_json(), "tally": str(tally)}
    assert over(spawn(zygote, own_cache, CRASH, **values, at="0"))
    count = int(tally.read_text())
    assert count > 40
    half, segments, points = 0, 0, range(1, count + 1, 1 if CHAOS else 9)
    for point in points:
        shutil.rmtree(home)
        assert over(spawn(zygote, own_cache, CRASH, **values, at=str(point)))
        half += bool(temporaries(home))
        segments += any(home.glob("log-*"))
        there = finished(home)
        assert_same_log(runner.run(SPEC), wanted)
        assert runner.pending([SPEC]) == [], point
        if not there:  # otherwise nobody opens the folder of a finished run again
            ended_well(home)
    told = f"{len(points)} of {count} crash points survived, {half} with half a file"
    record_property("chaos", f"{told}, {segments} behind a segment of the log")
    assert half > len(points) / 8
    assert segments > len(points) / 8


def test_kills_at_random_moments_lose_nothing(
    own_cache, zygote, elsewhere, record_property
):
    wanted, home = elsewhere(SPEC), address.folder(SPEC)
    values = {"text": SPEC.model_dump_json()}
    first = spawn(zygote, own_cache, PLAIN, **values)
    begins(first, home)
    begun = time.monotonic()
    assert over(first)
    whole = time.monotonic() - begun
    assert finished(home)
    shutil.rmtree(home)
    draw, kills, writing, runs = random.Random(time.time()), 0, 0, 0
    while kills < KILLS:
        (home / ".lock-holder").unlink(missing_ok=True)  # of the one before
        victim = spawn(zygote, own_cache, PLAIN, **values)
        if draw.random() < 0.8:  # the others may be killed before they begin
            begins(victim, home)
        time.sleep(draw.uniform(0, whole))
        if finished(home):
            assert over(victim)
        else:
            os.kill(victim, signal.SIGKILL)
            assert over(victim)
            kills, writing = kills + 1, writing + bool(temporaries(home))
        if finished(home) or kills == KILLS:
            assert_same_log(runner.run(SPEC), wanted)
            assert runner.pending([SPEC]) == []
            shutil.rmtree(home)
            runs += 1
    told = f"{kills} kills survived, {writing} inside a write, in {runs} runs"
    record_property("chaos", told)


def test_who_waits_for_a_run_goes_on_when_its_process_is_killed(
    own_cache, zygote, elsewhere
):
    wanted, home = elsewhere(SPEC), address.folder(SPEC)
    values = {"text": SPEC.model_dump_json()}
    for _ in range(max(1, KILLS // 10)):
        first, second = (spawn(zygote, own_cache, PLAIN, **values) for _ in "12")
        holder = home / ".lock-holder"
        while not ((home / "checkpoint.safetensors").exists() and holder.exists()):
            assert not finished(home)
            time.sleep(0.002)
        at_work = int(holder.read_text().split()[1])
        assert at_work in (first, second)
        os.kill(at_work, signal.SIGKILL)
        assert over(first)
        assert over(second)
        assert finished(home)
        ended_well(home)
        assert_same_log(runner.run(SPEC), wanted)
        shutil.rmtree(home)


PARENT = """
import sys
from fedlib.runs.many import run_many
from fedlib.runs.spec import Spec

run_many([Spec.model_validate_json(text) for text in sys.argv[1:]], 2)
"""


def told_at_work(parent: subprocess.Popen, homes: list[Path]) -> list[int]:
    """Return the processes that compute runs, once each is past its first round."""
    deadline = time.monotonic() + 300
    while not all((home / "checkpoint.safetensors").exists() for home in homes):
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [int((home / ".lock-holder").read_text().split()[1]) for home in homes]


@pytest.mark.slow
@pytest.mark.parametrize(
    "victim",
    [pytest.param("parent", marks=long), pytest.param("worker", marks=long), "ctrl-c"],
)
def test_two_jobs_that_are_ended_leave_nobody_behind(
    own_cache, elsewhere, record_property, victim
):
    specs = [SPEC.model_copy(update={"rounds": 120, "seed": seed}) for seed in (1, 2)]
    homes = [address.folder(spec) for spec in specs]
    command = [sys.executable, "-c", PARENT, *(s.model_dump_json() for s in specs)]
    with subprocess.Popen(command, cwd=ROOT, env=dict(os.environ)) as parent:
        workers = told_at_work(parent, homes)
        if victim == "worker":
            os.kill(workers[0], signal.SIGKILL)
            assert parent.wait(600) == 0  # its run is tried once more
        else:
            ending = signal.SIGKILL if victim == "parent" else signal.SIGINT
            parent.send_signal(ending)
            assert parent.wait(60) != 0
    for number in workers:
        assert over(number)
    for spec, home in zip(specs, homes, strict=True):
        assert finished(home) == (victim == "worker")
        assert not checkpoints.under_way(spec)[1]
        assert_same_log(runner.run(spec), elsewhere(spec))
        ended_well(home)
    record_property("chaos", f"two jobs survived, {victim} ended")


# what cannot be written


@contextmanager
def full_disk():
    """Let no file grow beyond 2 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def read_only_disk():
    """Refuse to put files in their places."""

    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", refused)
        yield


@pytest.mark.parametrize("disk", [full_disk, read_only_disk])
def test_a_file_that_cannot_be_written_names_itself_its_run_and_its_folder(
    disk, elsewhere
):
    wanted, home = elsewhere(SPEC), address.folder(SPEC)
    told = rf"safetensors of run {home.name} cannot be written into {home} \("
    with disk(), pytest.raises(OSError, match=told):
        runner.run(SPEC)
    assert temporaries(home) == []
    assert_same_log(runner.run(SPEC), wanted)
    ended_well(home)
