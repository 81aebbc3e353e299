"""Files as Windows would have them: what it refuses, and its line ends."""

import os
import sys
from pathlib import Path

import pytest
import torch

from fedlib.runs import on_disk
from fedlib.support.files import write_text

if sys.platform == "linux":
    import fcntl
else:
    pytest.skip("the stand-in reads Linux' lists", allow_module_level=True)


def _in_use(path: os.PathLike) -> bool:
    """Return whether this process has a file open, or mapped into memory."""
    real = os.path.realpath(path)
    if real in Path("/proc/self/maps").read_text():
        return True
    folder = Path("/proc/self/fd")
    return real in [os.path.realpath(link) for link in folder.iterdir()]


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sync, replace and write text by the rules of Windows."""
    sync, replace, write = os.fsync, os.replace, Path.write_text

    def fsync(handle: int) -> None:
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(9, "Bad file descriptor")
        sync(handle)

    def rename(source, target) -> None:
        if _in_use(source) or _in_use(target):
            raise PermissionError(13, "Access is denied", str(target))
        replace(source, target)

    def write_lines(path, data, encoding=None, errors=None, newline=None):
        told = data if newline is not None else data.replace("\n", "\r\n")
        return write(path, told, encoding, errors, newline or "")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(Path, "write_text", write_lines)


def test_the_stand_in_refuses_what_windows_does(windows, tmp_path):
    file = tmp_path / "a"
    file.write_text("x\n")
    assert file.read_bytes() == b"x\r\n"
    with open(file, "rb") as opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fsync(opened.fileno())
        with pytest.raises(PermissionError):
            os.replace(file, tmp_path / "b")
    os.replace(file, tmp_path / "b")


def test_text_is_written_over_with_the_same_bytes(windows, tmp_path):
    for text in ("a\nb\n", "é\n"):
        write_text(tmp_path / "text", text)
        assert (tmp_path / "text").read_bytes() == text.encode()


def test_what_was_read_of_a_run_can_be_replaced(windows, tmp_path):
    file = tmp_path / "checkpoint.safetensors"
    on_disk.write(file, {"a": torch.ones(5000)}, {"round": "1"})
    found = on_disk.read(file)
    assert found is not None
    on_disk.write(file, {"a": torch.zeros(5000)}, {"round": "2"})
    assert found[0]["a"].sum() == 5000  # and what was read stays as it was
    again = on_disk.read(file)
    assert again is not None
    assert again[1] == {"round": "2"}
