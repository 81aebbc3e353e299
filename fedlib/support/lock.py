"""Whether the packages that are installed are those of ``uv.lock``."""

import hashlib
import importlib.metadata
import tomllib
from functools import cache
from pathlib import Path

from fedlib.support import paths


def _public(version: str) -> str:
    """Return a version without its build, as ``2.9.0`` for ``2.9.0+cpu``."""
    return version.partition("+")[0]


def other_versions(lock: Path) -> list[str]:
    """Return the installed packages that have another version than the lock says.

    Returns
    -------
    list of str
        Such as ``numpy 2.3.1 (2.4.0 in uv.lock)``. Packages that are not installed, or
        that the lock does not name, do not count, nor does a build behind ``+``.
    """
    return list(_differing(lock.read_text("utf-8"), lock.name))


@cache  # what a process has installed does not change, and half a second is long
def _differing(text: str, file: str) -> tuple[str, ...]:
    """Return the packages of `other_versions` for what is written in a lock."""
    locked: dict[str, list[str]] = {}
    for package in tomllib.loads(text)["package"]:
        if "version" in package:  # it may be dynamic
            locked.setdefault(package["name"], []).append(_public(package["version"]))
    differ = []
    for name, versions in sorted(locked.items()):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if _public(version) not in versions:
            differ.append(f"{name} {version} ({', '.join(versions)} in {file})")
    return tuple(differ)


def installed() -> str | None:
    """Return the hash of ``uv.lock`` where its versions are installed, else none."""
    lock = paths.ROOT / "uv.lock"
    if not lock.is_file() or other_versions(lock):
        return None
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
