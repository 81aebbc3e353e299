"""Atomic writes: a file is either whole or absent."""

import errno
import glob
import hashlib
import os
import platform
import re
import secrets
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

OLD = 3600.0  # seconds; no writer takes so long
# names of ``atomic_write``, and those under which safetensors writes
TEMPORARY = re.compile(r"\..+-[0-9a-f]{8}(\.\w+)?|\.tmp\w{6}")


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to ``path`` on success.

    The temporary file keeps the suffix of ``path``, since writers look at it. It is
    removed when the body raises.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    # what others may do with it is the umask's to say; a link is not followed
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    os.close(handle)
    try:
        yield temporary
        with open(temporary, "r+b") as written:  # Windows syncs what may be written
            os.fsync(written.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove what processes that were killed have left while they wrote this file."""
    stem, suffix = glob.escape(path.stem), glob.escape(path.suffix)
    names = [f".{stem}-{'[0-9a-f]' * 8}{suffix}"]
    if path.suffix == ".safetensors":  # elsewhere such a name may be anybody's
        names.append(f".tmp{'[0-9A-Za-z]' * 6}")
    for left in (file for name in names for file in path.parent.glob(name)):
        with suppress(OSError):  # another process was faster, or it is not ours
            if time.time() - left.stat().st_mtime > OLD:
                left.unlink()


def sweep(folder: Path) -> None:
    """Remove every temporary file of a write in a folder, whatever its age.

    For who holds the folder's lock: whoever began to write them is dead.
    """
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def opened_to_others(folder: Path) -> None:
    """Give a folder of ``mkdtemp``, which is its owner's alone, the usual rights.

    So are files that some libraries write.
    """
    beside = folder.with_name(f"{folder.name}-rights")
    beside.mkdir()
    mode = stat.S_IMODE(beside.stat().st_mode)
    beside.rmdir()
    for path in folder.iterdir():
        path.chmod(mode & 0o666)
    folder.chmod(mode)


NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
WAIT = 2.0  # seconds without a word


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold a lock; who waits for it is told who has it.

    Parameters
    ----------
    what : str
        What is locked, as messages name it.

    Raises
    ------
    PermissionError
        The folder cannot be written to; the message says so.
    """
    lock, holder = FileLock(path), path.with_name(f"{path.name}-holder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=WAIT)
        except Timeout:
            told = f"{what}: waiting for {_told(holder)}, which is at work on it"
            warnings.warn(f"{told} and holds {path}", stacklevel=3)
            lock.acquire()
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise PermissionError(
            f"{what}: {path.parent} cannot be written to ({error.strerror}). What is "
            "finished there can be read; for the rest name a folder of your own with "
            "FEDLIB_CACHE",
        ) from error
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        who = f"process {os.getpid()} on {platform.node()} (since {since})"
        with suppress(OSError):  # a full disk: what is done under the lock will say so
            write_text(holder, who)
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _told(holder: Path) -> str:
    """Return who holds a lock, as it has written."""
    try:
        return holder.read_text(encoding="utf-8")[:200]
    except OSError:
        return "another process"


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, with the same bytes on every system."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
