"""Whether somebody watches, and what is shown then."""

import os
import sys
from typing import Any

from tqdm import tqdm


def silent() -> bool:
    """Return whether runs say nothing: ``FEDLIB_PROGRESS=none``, and CI mode."""
    return os.environ.get("FEDLIB_PROGRESS") == "none" or "FEDLIB_CI" in os.environ


def progress_off() -> bool:
    """Return whether progress bars are off.

    They are under ``FEDLIB_PROGRESS=none``, in CI mode, and where nobody watches:
    neither a terminal nor a notebook.
    """
    return silent() or not (sys.stderr.isatty() or _in_notebook())


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def progress_bar(off: bool = False, **options: Any) -> tqdm:
    """Return a bar of tqdm, off where ``progress_off`` says so.

    A notebook has it on standard output: JupyterLab draws standard error in red, as
    what went wrong.
    """
    stream = sys.stdout if _in_notebook() else sys.stderr
    return tqdm(disable=off or progress_off(), file=stream, **options)
