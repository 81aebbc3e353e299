"""Unpack tar archives: nothing leaves the folder, nothing half stays."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from fedlib.data.download import CHUNK, full_disk_told
from fedlib.data.types import DataError

DAMAGE = (
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.TarError,
    zlib.error,
)


def _safe(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Refuse absolute names, which tarfile would make relative, and what it refuses."""
    if PurePosixPath(member.name).is_absolute():
        raise tarfile.AbsolutePathError(member)
    return tarfile.data_filter(member, folder)


def unpack(path: Path, folder: Path) -> None:
    """Extract a tar archive into a folder of its own.

    Raises
    ------
    DataError
        The archive is damaged, a member leaves it, or the disk is full.
    """
    folder.mkdir(parents=True)
    try:
        with full_disk_told(path.name, None, folder), tarfile.open(path) as archive:
            archive.extractall(folder, filter=_safe)
            while archive.fileobj and archive.fileobj.read(CHUNK):
                pass  # the checksum of what was compressed is at the end
        if not any(folder.iterdir()):
            raise tarfile.ReadError("it is empty")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, tarfile.FilterError):
            raise DataError(
                f"{path.name}: member {error.tarinfo.name!r} leaves the archive or is "
                "no plain file; refused"
            ) from error
        if isinstance(error, DAMAGE):
            raise DataError(f"{path} is damaged ({error})") from error
        raise
