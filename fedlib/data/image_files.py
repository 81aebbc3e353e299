"""Files of a folder or a zip, listed safely and read one by one.

Nothing is unpacked to disk. Names are sorted as torchvision's ``ImageFolder`` sorts
them, links to folders are followed, and what would leave an archive is refused.
"""

import os
import re
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedlib.data.sources import reading
from fedlib.data.types import DataError

# what torchvision's ``ImageFolder`` takes for an image
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff")
IMG_EXTENSIONS += (".webp",)
MOST_BYTES = 2**28  # of one file
MOST_MEMBERS = 2 * 10**7  # of a zip


class Files(NamedTuple):
    """The files of a folder or a zip."""

    names: list[str]  # sorted by folder, then by name; hidden files are left out
    read: Callable[[str], bytes]


def _ordered(names: Iterable[str]) -> list[str]:
    """Return names sorted by folder, then by file, without what is hidden."""

    def key(name: str) -> str:  # as if names of folders were compared one by one
        folder, _, file = name.rpartition("/")
        return folder.replace("/", "\0") + "\0\0" + file

    return sorted((name for name in names if not _hidden(name)), key=key)


def _hidden(name: str) -> bool:
    """Return whether a system left a file, such as ``__MACOSX/._a.jpg``."""
    return any(p[:1] == "." != p or p == "__MACOSX" for p in name.split("/"))


def _walk(folder: Path, prefix: str, above: tuple[tuple[int, int], ...]) -> Iterator:
    """Yield the names of all files beneath a folder; links are followed.

    Raises
    ------
    DataError
        A link to a folder that it lies in.
    """
    about = folder.stat()
    here = (about.st_dev, about.st_ino)
    if here in above:
        raise DataError(f"{folder} is a link to a folder that it lies in")
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                inner = f"{prefix}{entry.name}/"
                yield from _walk(Path(entry.path), inner, (*above, here))
            elif entry.is_file() or entry.is_symlink():  # a dead link is unreadable
                yield prefix + entry.name


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"{size} bytes, expected at most {MOST_BYTES}")


def _check_member(archive: Path, member: zipfile.ZipInfo) -> None:
    """Refuse a member that would lie, or point, outside of its archive."""
    name = member.orig_filename
    wrong = ""
    if name.startswith("/") or ".." in name.split("/") or re.match("[A-Za-z]:", name):
        wrong = "leaves the archive"
    elif "\\" in name:
        wrong = "has a backslash"
    elif stat.S_ISLNK(member.external_attr >> 16):
        wrong = "is a link"
    if wrong:
        raise DataError(f"{archive.name}: member {name!r} {wrong}; refused")


@contextmanager
def _opened(path: Path) -> Iterator[Files]:
    if path.is_dir():

        def read(name: str) -> bytes:
            _check_size((path / name).stat().st_size)
            return (path / name).read_bytes()

        yield Files(_ordered(_walk(path, "", ())), read)
        return
    with reading(path):
        archive = zipfile.ZipFile(path)
    with archive:
        if len(archive.infolist()) > MOST_MEMBERS:
            raise DataError(f"{path.name}: more than {MOST_MEMBERS} members; refused")
        for member in archive.infolist():
            _check_member(path, member)

        def unzip(name: str) -> bytes:
            _check_size(archive.getinfo(name).file_size)  # no more will be unpacked
            return archive.read(name)

        names = dict.fromkeys(n for n in archive.namelist() if not n.endswith("/"))
        yield Files(_ordered(names), unzip)


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[Files]:
    """Yield the files of a folder or a zip, or of several as if they were one.

    Names of several start with that of their folder or zip.

    Raises
    ------
    DataError
        A zip that is damaged, or whose members leave it, or a circle of links.
    """
    with ExitStack() as stack:
        parts = [stack.enter_context(_opened(path)) for path in paths]
        if len(parts) == 1:
            yield parts[0]
            return
        of = {path.name: part for path, part in zip(paths, parts, strict=True)}

        def read(name: str) -> bytes:
            first, rest = name.split("/", 1)
            return of[first].read(rest)

        yield Files(
            [f"{key}/{n}" for key, part in of.items() for n in part.names], read
        )


def images_of(names: Iterable[str]) -> list[str]:
    """Return the names that end like an image's."""
    return [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]


def listing(paths: Sequence[Path]) -> list[str]:
    """Return the names of all images of folders or zips, sorted."""
    with opened(paths) as files:
        return images_of(files.names)
