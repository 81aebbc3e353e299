"""Absolute locations; no other module spells a path."""

import os
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"
# An installed fedlib has no notebooks: what its user draws goes to the working folder.
FIGURES = (ROOT if NOTEBOOKS.is_dir() else Path.cwd()) / "figures"
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
