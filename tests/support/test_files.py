"""Files of many users: whole or absent, readable as the umask says, locks that tell."""

import os
import platform
import threading
import time

import pytest

from fedlib.support import files
from fedlib.support.files import atomic_write, locked, opened_to_others, write_text


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_who_may_read_a_file_is_the_umasks_to_say(tmp_path, umask):
    write_text(tmp_path / "a.txt", "a")
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o666 & ~umask
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    (folder / "b").touch(mode=0o600)
    opened_to_others(folder)
    assert folder.stat().st_mode & 0o777 == 0o777 & ~umask
    assert (folder / "b").stat().st_mode & 0o777 == 0o666 & ~umask
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "own"]


def test_a_writer_that_makes_the_file_anew_keeps_its_rights(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "a.bin") as temporary:
            temporary.unlink()
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.umask(before)
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o644


def test_a_failed_write_leaves_what_was_there(tmp_path):
    write_text(tmp_path / "a.txt", "before")

    def fail() -> None:
        with atomic_write(tmp_path / "a.txt") as half:
            half.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [p.read_text() for p in tmp_path.iterdir()] == ["before"]


def test_what_killed_writers_left_is_swept(tmp_path):
    old, young = tmp_path / ".a[1]-0123abcd.txt", tmp_path / ".a[1]-0123abce.txt"
    theirs, new = tmp_path / ".tmpfEsXY0", tmp_path / ".tmpfEsXY1"  # of safetensors
    others = [tmp_path / ".b-0123abcd.txt", tmp_path / ".a[1]-mine.txt"]
    for path in (old, young, theirs, new, *others):
        path.touch()
    for path in (old, theirs, *others):
        os.utime(path, (1, 1))
    write_text(tmp_path / "a[1].txt", "a")
    assert not old.exists()
    assert all(path.exists() for path in (young, theirs, new, *others))
    write_text(tmp_path / "a.safetensors", "a")
    assert not theirs.exists()
    assert all(path.exists() for path in (young, new, *others))


def test_who_holds_a_folder_sweeps_what_any_killed_writer_left(tmp_path):
    """Young ones, too; what only looks like one stays."""
    kept = ["a.txt", ".lock", ".lock-holder", ".a-0123abcg.txt", ".tmpnote"]
    for name in kept:
        (tmp_path / name).touch()
    for path in (tmp_path / "a.txt", tmp_path / ".lock-holder", tmp_path / "b.c.json"):
        with atomic_write(path) as temporary:
            left = temporary.with_name(temporary.name)
            temporary.touch()
            os.link(temporary, tmp_path / "copy")
        os.rename(tmp_path / "copy", left)  # as if it had been killed there
    (tmp_path / ".tmpfEsXY0").touch()  # a name that safetensors writes under
    files.sweep(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([*kept, "b.c.json"])


@pytest.mark.parametrize("exists", [True, False])
def test_a_lock_follows_no_link(tmp_path, exists):
    """Someone else's link, where a lock will be, would empty or make a file of mine."""
    mine, lock = tmp_path / "mine", tmp_path / "shared" / ".lock"
    lock.parent.mkdir()
    if exists:
        mine.write_text("precious")
    lock.symlink_to(mine)
    with pytest.raises(OSError, match=r"\.lock"), locked(lock, "a run"):
        pass
    assert not exists or mine.read_text() == "precious"
    assert mine.exists() == exists


def test_who_waits_is_told_for_whom(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "WAIT", 0.1)
    lock, held = tmp_path / ".lock", threading.Event()

    def hold() -> None:
        with locked(lock, "a run"):
            held.set()
            time.sleep(0.6)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    told = (
        rf"fedavg, seed 3: waiting for process {os.getpid()} on {platform.node()} "
        rf"\(since {time.strftime('%Y')}-\d\d-\d\d \d\d:\d\d:\d\d .\d{{4}}\), which is"
    )
    with pytest.warns(UserWarning, match=told), locked(lock, "fedavg, seed 3"):
        pass
    holder.join()
    assert [p.name for p in tmp_path.iterdir() if "holder" in p.name] == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files.FileLock, "acquire", refused)
    told = f"a run: {tmp_path} cannot be written to .*FEDLIB_CACHE"
    with (
        pytest.raises(PermissionError, match=told),
        locked(tmp_path / ".lock", "a run"),
    ):
        pass


def test_a_cache_that_is_a_file_is_named(tmp_path):
    (tmp_path / "cache").write_text("")
    told = "a run: .* cannot be written to"
    path = tmp_path / "cache" / "runs" / ".lock"
    with pytest.raises(PermissionError, match=told), locked(path, "a run"):
        pass
