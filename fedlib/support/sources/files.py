"""Files of modules, as this process imported them."""

import functools
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedlib.support.sources.syntax import bare

PACKAGE = __name__.split(".")[0]  # its own __init__ only hands names on
_BEGUN = time.time_ns()
texts: dict[Path, bytes] = {}
_marks: dict[Path, tuple[int, ...]] = {}


class SourceError(RuntimeError):
    """Nobody can tell which code computes; the message names the file or definition."""


def _mark(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def keep(path: Path) -> None:
    """Take what a file says now as what is imported."""
    _marks[path] = _mark(path)
    texts[path] = path.read_bytes()


@functools.cache
def top_of(name: str) -> tuple[Path, bool] | None:
    """Return the folder of a package, or of a module's file; None where not ours."""
    try:
        found = None if name in sys.stdlib_module_names else find_spec(name)
    except ValueError:  # a module that was made without a file, such as __main__
        return None
    if found is None:
        return None
    inside = list(found.submodule_search_locations or ())
    place = Path(inside[0] if inside else found.origin or "")
    installed = {"site-packages", "dist-packages"} & set(place.parts)
    if installed and name != PACKAGE:
        return None
    return place, bool(inside)


@functools.cache
def home(module: str) -> Path | None:
    """Return the file of a module of ours; None for others' and where there is none."""
    top, *rest = module.split(".")
    found = top_of(top)
    if found is None:
        return None
    place, is_package = found
    if not is_package:
        return None if rest else place
    inner = place.joinpath(*rest)
    for path in (inner / "__init__.py", inner.with_suffix(".py")):
        if path in texts or path.is_file():
            return path
    return inner if inner.is_dir() else None  # a package without __init__.py


def text_of(module: str, path: Path) -> bytes:
    """Return what the file of a module says, as it was imported.

    Raises
    ------
    SourceError
        No Python code, or changed since.
    """
    if path.is_dir():
        return b""
    if path.suffix != ".py":
        raise SourceError(f"{module}: got {path.name}, expected Python code to hash")
    if path not in texts:
        keep(path)
        if module in sys.modules and max(_marks[path][:2]) > _BEGUN:
            raise SourceError(_changed(path))
    return texts[path]


def _changed(path: Path) -> str:
    return f"{path}: changed since this process imported it: restart the kernel"


@functools.lru_cache(maxsize=1024)
def _is_same(path: Path, mark: tuple[int, ...]) -> bool:
    """Return whether a file still says what was kept, but for comments."""
    try:
        text = path.read_bytes()
        return text == texts[path] or bare(text) == bare(texts[path])
    except SyntaxError:
        return False


def refuse_changed(files: Sequence[Path]) -> None:
    """Refuse files that are not what this process imported.

    Raises
    ------
    SourceError
        Naming the first file that was changed or removed.
    """
    for path in files:
        try:
            mark = _mark(path)
        except FileNotFoundError:
            raise SourceError(_changed(path)) from None
        if mark != _marks[path] and not _is_same(path, mark):
            raise SourceError(_changed(path))
