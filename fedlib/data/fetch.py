"""Fetch data sets: downloaded, checked, unpacked, moved into place when complete."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from fedlib.data.access import absent
from fedlib.data.catalogue import entry_of
from fedlib.data.download import TIMEOUT, DiskFullError, download, fault
from fedlib.data.guide import page_of
from fedlib.data.sources import always
from fedlib.data.types import DataError, Entry, Remote
from fedlib.data.unpack import unpack
from fedlib.support.files import locked, write_text
from fedlib.support.paths import cache_dir, data_dirs

log = logging.getLogger(__name__)


def fetch(
    name: str,
    *,
    offline: bool | None = None,
    timeout: float = TIMEOUT,
    echo: Callable[[str], object] = log.info,
) -> Path:
    """Download a data set that is not here yet; return the folder that holds it.

    Files arrive in a hidden folder and are moved in when all of them are there and
    whole. A file that lies in one of the data folders already, also an archive that is
    not unpacked, is not downloaded again. After an interruption, the next call goes on.

    Parameters
    ----------
    name : str
        One of ``DATASETS``.
    offline : bool, optional
        Download nothing; by default, whether ``FEDLIB_OFFLINE`` is set (and not 0).
    timeout : float
        Seconds that a server may be silent before the next mirror is tried.
    echo : callable
        Takes a line that says what was found or done.

    Raises
    ------
    DataError
        Says what failed, or what to download by hand, from where, to where.
    """
    entry = entry_of(name)
    if entry.find is always:
        echo(f"{entry.title} {entry.place}; there is nothing to fetch")
        return data_dirs()[0]
    found = _present(entry)
    if found is None:
        if not entry.downloads:
            raise DataError(absent(name))
        if offline is None:
            offline = os.environ.get("FEDLIB_OFFLINE", "0") not in ("", "0")
        home = cache_dir() / "data"
        scratch = home / ".partial" / page_of(name)  # variants share their files
        with locked(scratch.with_name(f"{scratch.name}.lock"), entry.title):
            found = _present(entry)  # another process may have fetched it meanwhile
            if found is None:
                scratch.mkdir(exist_ok=True)
                _complete(name, entry, home, scratch, offline, timeout)
                for remote in entry.downloads:
                    if not remote.hash:
                        echo(f"{remote.path}: no hash is published; taken as it came")
                echo(f"{entry.title} is in {home}")
                return home
    echo(f"{entry.title} is in {found} already; nothing was downloaded")
    return found


def _present(entry: Entry) -> Path | None:
    """Return the folder that holds a data set, whole as far as can be told.

    In a person's folder, other files than the published ones are reported and left
    alone: they may be packed anew.
    """
    for root in data_dirs():
        if not entry.find(root):
            continue
        faults = [f for remote in entry.downloads if (f := _fault(root, remote))]
        if faults and root == cache_dir() / "data":
            return None
        if faults:
            log.warning(
                "%s: other files than the published ones, packed anew or damaged: %s",
                entry.title,
                "; ".join(faults),
            )
        return root
    return None


def _record(root: Path, remote: Remote) -> Path:
    """Return the file that lists what an archive was unpacked to."""
    return root / ".unpacked" / f"{remote.path}.json"


def _fault(root: Path, remote: Remote) -> str:
    """Return what is wrong with a file or an unpacked archive, or nothing.

    What is absent is not wrong, nor what did not come by ``fetch`` (unzipped files).
    """
    if not remote.unpack:
        path = root / remote.path
        wrong = fault(path, remote) if path.exists() else ""
        return f"{path} {wrong}" if wrong else ""
    if not _record(root, remote).exists():
        return ""
    for name, size in json.loads(_record(root, remote).read_text()).items():
        path = root / name
        if not path.exists():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} has {path.stat().st_size} bytes instead of {size}"
    return ""


def _in_place(home: Path, remote: Remote) -> bool:
    """Return whether a file is where it belongs, unpacked where that is needed."""
    if remote.unpack:
        return _record(home, remote).exists() and not _fault(home, remote)
    path, unzipped = home / remote.path, home / remote.path.removesuffix(".gz")
    return not fault(path, remote) if path.exists() else unzipped.exists()


def _found(remote: Remote, home: Path, scratch: Path) -> Path | None:
    """Return where a whole file lies; a damaged one of the cache will be replaced."""
    for path in [root / remote.path for root in (scratch, *data_dirs())]:
        if not path.exists():
            continue
        wrong = fault(path, remote)
        if not wrong:
            return path
        fate = "it is fetched again" if path.is_relative_to(home) else "not used"
        log.warning("%s %s; %s", path, wrong, fate)
        if path.is_relative_to(scratch):
            path.unlink()
    return None


def _complete(
    name: str, entry: Entry, home: Path, scratch: Path, offline: bool, timeout: float
) -> None:
    """Bring all files of a data set into ``home``."""
    needed = [r for r in entry.downloads if not _in_place(home, r)]
    files = {remote: _found(remote, home, scratch) for remote in needed}
    if offline and None in files.values():
        raise DataError(absent(name, ", and offline nothing is downloaded"))
    mirror = 0  # the one that worked last is asked first
    for remote in needed:
        if files[remote] is None:
            turned = remote._replace(urls=remote.urls[mirror:] + remote.urls[:mirror])
            used = download(turned, scratch / remote.path, timeout=timeout)
            mirror = remote.urls.index(used)
    for remote, path in files.items():
        path = path or scratch / remote.path
        if remote.unpack:
            _move_unpacked(path, remote, home, scratch / "unpacked")
        else:
            _move(path, home / remote.path, copy=not path.is_relative_to(scratch))
    shutil.rmtree(scratch)
    if not entry.find(home):
        raise DataError(absent(name, " completely, though all downloads are"))


def _move(path: Path, target: Path, *, copy: bool = False) -> None:
    """Put a file or folder in place, at once; a copy is made beside it first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if copy:
        beside = target.with_name(f".{target.name}.copy")
        path = shutil.copyfile(path, beside)
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(path, target)


def _move_unpacked(path: Path, remote: Remote, home: Path, scratch: Path) -> None:
    """Unpack an archive and put in place what came out."""
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed process
    try:
        unpack(path, scratch)
    except DiskFullError:
        raise
    except DataError:
        if path.is_relative_to(home):
            path.unlink()
        raise
    folder = (home / remote.path).parent
    files = [p for p in sorted(scratch.rglob("*")) if p.is_file()]
    inside = folder.relative_to(home)
    sizes = {
        (inside / p.relative_to(scratch)).as_posix(): p.stat().st_size for p in files
    }
    for item in scratch.iterdir():
        _move(item, folder / item.name)
    if path != home / remote.path:
        (home / remote.path).unlink(missing_ok=True)  # a damaged one
    write_text(_record(home, remote), json.dumps(sizes, indent=1) + "\n")
