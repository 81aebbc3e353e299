"""Whether somebody watches."""

import os
import sys


def silent() -> bool:
    """Return whether runs say nothing: ``FEDLIB_PROGRESS=none``, and CI mode."""
    return os.environ.get("FEDLIB_PROGRESS") == "none" or "FEDLIB_CI" in os.environ


def progress_off() -> bool:
    """Return whether progress bars are off.

    They are under ``FEDLIB_PROGRESS=none``, in CI mode, and where nobody watches:
    neither a terminal nor a notebook.
    """
    watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    return silent() or not watched
