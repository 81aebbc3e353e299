"""Unpack tar archives: nothing leaves the folder, nothing half stays, nothing grows.

Only regular files and folders are taken. A link inside the folder would be harmless by
itself, but a later member may go through it.
"""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from fedlib.data.download import CHUNK, full_disk_told, human
from fedlib.data.types import DataError

DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.TarError,
    zlib.error,
)
MOST_BYTES = 2**35  # of all members; the largest archive that is fetched has 2**28
MOST_MEMBERS = 10**6
MOST_NAME = 2**16  # bytes of a long name, or of what else stands before a member
BEFORE = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class _Header(tarfile.TarInfo):
    """A member's header; tarfile reads what stands before a member into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        found = super().frombuf(buf, encoding, errors)
        if found.type in BEFORE and found.size > MOST_NAME:
            raise tarfile.ReadError(f"a name of {found.size} bytes")
        return found


class _Refused(Exception):
    """An archive has what no data set has; the message says what."""


def _safe() -> Callable[[tarfile.TarInfo, str], tarfile.TarInfo]:
    """Return what looks at each member before it is extracted.

    It refuses absolute names, which tarfile would make relative, what tarfile refuses,
    and what is neither a regular file nor a folder; and counts.
    """
    count = size = 0

    def look(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        nonlocal count, size
        if PurePosixPath(member.name).is_absolute():
            raise tarfile.AbsolutePathError(member)
        if not (member.isdir() or member.isreg()):
            raise tarfile.SpecialFileError(member)
        count, size = count + 1, size + member.size
        if count > MOST_MEMBERS:
            raise _Refused(f"more than {MOST_MEMBERS} members")
        if size > MOST_BYTES:
            raise _Refused(f"more than {human(MOST_BYTES)} when unpacked")
        return tarfile.data_filter(member, folder)

    return look


def _read_on(archive: tarfile.TarFile) -> None:
    """Read what is left: the checksum of what was compressed is at the end."""
    left = MOST_BYTES
    while archive.fileobj and (part := archive.fileobj.read(CHUNK)):
        left -= len(part)
        if left < 0:
            raise _Refused(f"more than {human(MOST_BYTES)} behind its members")


def unpack(path: Path, folder: Path) -> None:
    """Extract a tar archive into a folder of its own.

    Raises
    ------
    DataError
        The archive is damaged or has more than any data set has; a member leaves it, or
        is neither a regular file nor a folder; or the disk is full.
    """
    folder.mkdir(parents=True)
    try:
        with (
            full_disk_told(path.name, None, folder),
            tarfile.open(path, tarinfo=_Header) as archive,
        ):
            archive.extractall(folder, filter=_safe())  # noqa: S202 - each is looked at
            _read_on(archive)
        if not any(folder.iterdir()):
            raise tarfile.ReadError("it is empty")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, tarfile.FilterError):
            raise DataError(
                f"{path.name}: member {error.tarinfo.name!r} leaves the archive or is "
                "no plain file; refused"
            ) from error
        if isinstance(error, _Refused):
            raise DataError(f"{path.name}: {error}; refused") from error
        if isinstance(error, DAMAGE):
            raise DataError(f"{path} is damaged ({error})") from error
        raise
