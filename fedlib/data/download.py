"""Download one file: mirrors, resume, size, hash, progress; whole or absent."""

import errno
import hashlib
import http.client
import logging
import os
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from urllib3.exceptions import HTTPError, ProtocolError, ReadTimeoutError

from fedlib.data.types import DataError, Remote
from fedlib.support.progress import progress_bar

TIMEOUT = 30.0  # seconds
CHUNK = 1 << 18  # bytes
MOST_BYTES = 2**36  # of a file whose size is not known
SLOWEST = 1000  # bytes per second on average, once a server has begun
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PAGE = "answers with a web page instead of the file; open it in a browser to see why"

log = logging.getLogger(__name__)


class DiskFullError(DataError):
    """The disk is full; the message says what is needed and free."""


class _Refused(Exception):
    """One mirror failed; the message says why."""


class _TooSlow(_Refused):
    """A mirror drips; what has arrived is kept."""


def human(size: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def fault(path: Path, remote: Remote) -> str:
    """Return why a file is not the remote one, or nothing."""
    size = path.stat().st_size
    if remote.size not in (None, size):
        return f"has {size} bytes instead of {remote.size}"
    if remote.hash:
        kind, _, expected = remote.hash.partition(":")
        with open(path, "rb") as file:
            found = hashlib.file_digest(
                file, lambda: hashlib.new(kind, usedforsecurity=False)
            ).hexdigest()
        if found != expected:
            return f"has {kind} {found} instead of {expected}"
    elif remote.path.endswith(".zip") and not zipfile.is_zipfile(path):
        return "is no whole zip file"
    return ""


def _room(needed: int | None, folder: Path) -> str:
    free = human(shutil.disk_usage(folder).free)
    if needed is None:
        return f"more is needed in {folder} than the {free} that are free"
    return f"{human(needed)} are needed in {folder}, {free} are free"


@contextmanager
def full_disk_told(what: str, needed: int | None, folder: Path) -> Iterator[None]:
    """Turn the error of a full disk into a message with what is needed and free."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise DiskFullError(
            f"{what}: {error.strerror}: {_room(needed, folder)}. Nothing of it was "
            "kept. Make room, or name another folder with FEDLIB_CACHE"
        ) from error


def download(remote: Remote, path: Path, *, timeout: float = TIMEOUT) -> str:
    """Download a file to ``path`` from the first mirror that has it; return its URL.

    What has arrived before an interruption is kept in ``<path>.part``, and a later
    call asks for the rest only. The file appears when it is whole.

    Parameters
    ----------
    timeout : float
        Seconds that a server may take to connect, and be silent; one that sends less
        than ``SLOWEST`` for longer is given up, too.

    Raises
    ------
    DataError
        No mirror delivers the file, or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    reasons = []
    for number, url in enumerate(remote.urls):
        try:
            _whole(url, part, remote, timeout)
        except _Refused as refused:
            reasons.append(f"{url}: {refused}")
            if remote.urls[number + 1 :]:
                log.warning("%s; trying %s", reasons[-1], remote.urls[number + 1])
            continue
        os.replace(part, path)
        _mark(part).unlink(missing_ok=True)
        return url
    kept = part.stat().st_size if part.exists() else 0
    more = f"; {human(kept)} are kept for the next try" if kept else "; nothing kept"
    raise DataError(f"{remote.path}: download failed: {'; '.join(reasons)}{more}")


def _mark(part: Path) -> Path:
    """Return the file with the server's name of the version that ``part`` is of."""
    return part.with_name(f"{part.name}.etag")


def _whole(url: str, part: Path, remote: Remote, timeout: float) -> None:
    """Complete ``part`` and check it; one that is wrong after a resume starts again."""
    resumed = part.exists()
    if not (resumed and part.stat().st_size == remote.size):
        resumed = _transfer(url, part, remote, timeout)
    wrong = fault(part, remote)
    if wrong and resumed:
        part.unlink()
        _transfer(url, part, remote, timeout)
        wrong = fault(part, remote)
    if wrong:
        part.unlink()
        raise _Refused(wrong)


def _transfer(url: str, part: Path, remote: Remote, timeout: float) -> bool:
    """Fetch what ``part`` lacks; return whether it was resumed."""
    size = part.stat().st_size if part.exists() else 0
    start = 0  # what is asked for begins here
    version = _mark(part).read_text() if _mark(part).exists() else ""
    headers = {"Accept-Encoding": "identity"}
    if size and (remote.hash or version):
        start = size
        headers["Range"] = f"bytes={start}-"
        if not remote.hash:  # nothing else tells when another version is served
            headers["If-Range"] = version
    try:
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
            total = _total(answer, start, remote)
            if total is None:  # the server has another file, or no such rest
                part.unlink()  # so that the whole is asked for
                return _transfer(url, part, remote, timeout)
            if answer.status_code != requests.codes.partial_content:
                start = 0
                _mark(part).write_text(answer.headers.get("ETag", ""))
            _receive(answer, part, start, total, remote.size, timeout)
            return start > 0
    except (requests.Timeout, ReadTimeoutError) as error:
        raise _Refused(f"no answer for {timeout:g} s") from error
    except (
        requests.RequestException,
        HTTPError,
        http.client.HTTPException,
        ValueError,  # addresses that are none
    ) as error:
        raise _Refused(f"connection failed or broken ({error})") from error


def _total(answer: requests.Response, start: int, remote: Remote) -> int | None:
    """Return the size of the whole file, -1 if unknown, None if it cannot be resumed.

    Raises
    ------
    _Refused
        The server answers with an error, a web page or a file of another size.
    """
    code = answer.status_code
    if start and code == requests.codes.requested_range_not_satisfiable:
        return None
    if code not in (requests.codes.ok, requests.codes.partial_content):
        raise _Refused(f"{code} {answer.reason}")
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        raise _Refused(PAGE)
    total = _length(answer.headers.get("Content-Length", "-1"))
    if code == requests.codes.partial_content:
        if not start:
            raise _Refused("answers with a part, which nobody has asked for")
        span = re.fullmatch(
            r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})",
            answer.headers.get("Content-Range", ""),
        )
        if not span or int(span[1]) != start:
            return None
        total = int(span[2])
        if remote.size not in (None, total):
            return None
    if total >= 0 and remote.size not in (None, total):
        raise _Refused(f"has {total} bytes instead of {remote.size}")
    return total


def _length(text: str) -> int:
    """Return a number of bytes; a proxy may have said it twice."""
    found = {part.strip() for part in text.split(",")}
    if len(found) != 1 or not re.fullmatch(r"-1|[0-9]{1,18}", number := found.pop()):
        raise _Refused(f"says that it has {text[:40]!r} bytes")
    return int(number)


def _chunks(answer: requests.Response, *, until_it_breaks: bool) -> Iterator[bytes]:
    """Yield what arrives; a broken connection is an end where the size is known."""
    try:
        while chunk := answer.raw.read1(CHUNK, decode_content=False):
            yield chunk
    except ProtocolError:
        if not until_it_breaks:
            raise


def _is_page(first: bytes) -> bool:
    """Return whether what begins so is a page that says something, and no data."""
    return first.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))


def _receive(
    answer: requests.Response,
    part: Path,
    start: int,
    total: int,
    known: int | None,
    timeout: float,
) -> None:
    """Write a file, or the rest of it from byte ``start``, as it comes."""
    needed = total - start if total >= 0 else None
    name = part.name.removesuffix(".part")
    if needed is not None and needed > shutil.disk_usage(part.parent).free:
        room = f"{_room(needed, part.parent)}. Make room, or name another folder"
        if known is None:  # so says this mirror
            raise _Refused(f"{room} with FEDLIB_CACHE")
        raise DiskFullError(f"{name}: {room} with FEDLIB_CACHE")
    most = total if total >= 0 else MOST_BYTES if known is None else known
    bar = progress_bar(
        total=total if total >= 0 else None,
        initial=start,
        desc=name,
        unit="B",
        unit_scale=True,
    )
    done, begun = start, time.monotonic()
    try:
        with full_disk_told(name, needed, part.parent), bar:
            with open(part, "ab" if start else "wb") as file:
                for chunk in _chunks(answer, until_it_breaks=total >= 0):
                    if not done and _is_page(chunk):
                        raise _Refused(PAGE)
                    file.write(chunk)
                    done += len(chunk)
                    bar.update(len(chunk))
                    if done > most:
                        raise _Refused(f"sends more than {most} bytes")
                    late = time.monotonic() - begun - timeout
                    if late > (done - start) / SLOWEST:
                        raise _TooSlow(f"sends less than {SLOWEST} bytes per second")
    except _TooSlow:
        raise
    except (_Refused, DiskFullError):
        part.unlink()
        raise
    if total >= 0 and done != total:
        raise _Refused(f"connection cut off after {done} of {total} bytes")
