"""Absolute locations; no other module spells a path."""

import os
import re
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "fedlib" / "shipped"  # what a wheel brings along (setup.py)
HOME = SHIPPED if SHIPPED.is_dir() else ROOT
NOTEBOOKS = HOME / "notebooks"
PARAMS = HOME / "params"
RESULTS = HOME / "results"
# What the user of an installed fedlib draws goes to the working folder.
FIGURES = (ROOT if HOME == ROOT else Path.cwd()) / "figures"
PRESETS = ("quick", "cpu", "paper")  # folders of PARAMS


def notebooks() -> Path:
    """Return the folder of notebooks.

    Raises
    ------
    ValueError
        There is none: this fedlib was installed without its repository.
    """
    if not NOTEBOOKS.is_dir():
        raise ValueError(
            f"no notebooks here: {NOTEBOOKS.parent} holds the library alone; clone the "
            "repository and install it from there (pip install -e .)"
        )
    return NOTEBOOKS


def artefact_names() -> list[str]:
    """Return the names of all artefacts, ``<paper>/<notebook>``."""
    found = notebooks().glob("papers/*/*.ipynb")
    pairs = [(path.parent.name, path.stem) for path in found]
    return sorted(f"{a}/{b}" for a, b in pairs if not (a + "/" + b).startswith("."))


def cache_dir() -> Path:
    """Return the folder of finished runs and decoded data (``FEDLIB_CACHE``)."""
    given = os.environ.get("FEDLIB_CACHE")
    return Path(given).expanduser() if given else user_cache_path("fedlib")


def data_dirs() -> list[Path]:
    """Return the folders searched for data sets, in order (``FEDLIB_DATA`` first)."""
    given = os.environ.get("FEDLIB_DATA")
    own = [Path(given).expanduser().resolve()] if given else []
    return [*own, cache_dir() / "data"]


def figures_dir() -> Path:
    """Return the folder that figures are written to (``FEDLIB_FIGURES``)."""
    given = os.environ.get("FEDLIB_FIGURES")
    return Path(given).expanduser().resolve() if given else FIGURES


def results_dir() -> Path | None:
    """Return the folder of published runs (``FEDLIB_RESULTS``; ``none``: no folder)."""
    given = os.environ.get("FEDLIB_RESULTS")
    if given == "none":
        return None
    return Path(given).expanduser().resolve() if given else RESULTS


# What names a person or a machine: others' homes, drives, shares
PRIVATE = re.compile(
    r"""(?<![\w.])(/(home|Users|root|private|Volumes|mnt|media)/[^\s"']+
    |~\w*/[^\s"']+|(?<!\w)[A-Za-z]:[\\/][^\s"'/][^\s"']*|\\\\[^\s"'\\]+\\[^\s"']+
    |file:/[^\s"']+)""",
    re.VERBOSE,
)


def private_path(text: str) -> str:
    """Return a path in a text that is of this machine or of anyone's home, or nothing.

    It is one below the repository, the cache, the data, the figures or a home, with
    Unix's slashes or Windows'.
    """
    places = [ROOT, cache_dir(), figures_dir(), Path.home(), *data_dirs()]
    leads = {each for given in places for each in (given, given.resolve())}
    found = _below(frozenset(leads)).search(text) or PRIVATE.search(text)
    return found[0] if found else ""


@cache
def _below(places: frozenset[Path]) -> re.Pattern[str]:
    """Return what finds one of the places; the root of all is none."""
    ends = sorted(re.escape(str(each)) for each in places if len(each.parts) > 1)
    return re.compile(rf"(?<![\w.])({'|'.join(ends)})(?![\w.-])")
