"""Finding a source on disk, and naming it when it is damaged."""

import gzip
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from fedlib.data.types import DataError

DAMAGE = (  # what readers raise on a file that is cut off or something else
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    zlib.error,
)


@contextmanager
def reading(path: Path, *also: type[Exception]) -> Iterator[None]:
    """Turn what a reader raises on a damaged file into a message that names it.

    Parameters
    ----------
    path : Path
    *also : exceptions
        What this reader raises besides ``DAMAGE``.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError):  # a DataError is the first, too
        raise
    except (*DAMAGE, *also) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{path} is damaged ({reason}); replace it, or remove it and fetch again"
        ) from error


def plain_or_gz(root: Path, name: str) -> list[Path]:
    """Return the file of that name, or its gzipped form, or nothing."""
    return [p for p in (root / name, root / f"{name}.gz") if p.exists()][:1]


def all_of(names: tuple[str, ...]) -> Callable[[Path], list[Path]]:
    """Return a finder of files that are all needed, each plain or with .gz."""

    def find(root: Path) -> list[Path]:
        found = [plain_or_gz(root, name) for name in names]
        return [path for paths in found for path in paths] if all(found) else []

    return find


def first_of(*names: str) -> Callable[[Path], list[Path]]:
    """Return a finder of the first file or folder that exists."""

    def find(root: Path) -> list[Path]:
        return [root / name for name in names if (root / name).exists()][:1]

    return find


def either(*finders: Callable[[Path], list[Path]]) -> Callable[[Path], list[Path]]:
    """Return a finder of the first form that is there."""

    def find(root: Path) -> list[Path]:
        return next((found for f in finders if (found := f(root))), [])

    return find


def together(
    folders: tuple[str, ...], names: tuple[str, ...]
) -> Callable[[Path], list[Path]]:
    """Return a finder of files that lie together in one of the folders."""

    def find(root: Path) -> list[Path]:
        for folder in folders:
            found = [root / folder / name for name in names]
            if all(path.exists() for path in found):
                return found
        return []

    return find


def members(archive: Path) -> dict[str, str]:
    """Return the members of a zip by file name, wherever they lie in it."""
    with reading(archive), zipfile.ZipFile(archive) as opened:
        return {PurePosixPath(name).name: name for name in opened.namelist()}


def member(archive: Path, name: str) -> IO[bytes]:
    """Open a member of a zip; it stays open when the archive is closed."""
    with zipfile.ZipFile(archive) as opened:
        return opened.open(name)


def always(root: Path) -> list[Path]:
    """Find what needs no file: this one stands for it."""
    return [Path(__file__)]
