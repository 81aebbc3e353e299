"""The files of a run: written as one or not at all, taken for absent when damaged."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedlib.runs.checks import (
    StoredError,
    sealed,
    unsealed,
)
from fedlib.support.files import atomic_write, write_text

FORMAT = 1  # of the stored logs; raise it when their meaning changes
TOLD = ("format", "round", "segments")  # names of metadata


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]] | None:
    """Return tensors and metadata of a file, or None when absent or damaged.

    Tensors are copies: Windows replaces no file that is mapped into memory.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}
            return tensors, unsealed(tensors, file.metadata() or {}, TOLD)
    except (SafetensorError, StoredError, OSError) as error:
        ignored(path, error)
        return None


def ignored(path: Path, error: Exception) -> None:
    """Say that a file is taken for absent, and why."""
    why = " ".join(str(error).split())
    warning = f"{path.name} of run {path.parent.name} is damaged; ignored ({why})"
    warnings.warn(warning, stacklevel=3)


def write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and metadata; raises ``OSError`` that names run and folder."""
    own = {k: v.contiguous().clone() for k, v in tensors.items()}
    with _naming(path), atomic_write(path) as temporary:
        save_file(own, temporary, sealed(own, metadata))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name file, run and folder where a file of a run cannot be written.

    Raises
    ------
    OSError
        The disk is full, or a folder is not to be written to any more.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise OSError(
            f"{path.name} of run {path.parent.name} cannot be written into "
            f"{path.parent} ({why}); the files before it are whole, and the run goes "
            "on from there when there is room"
        ) from error


def write_table(path: Path, table: dict) -> None:
    """Write a table as JSON; raises ``OSError`` that names run and folder."""
    with _naming(path):
        write_text(path, json.dumps(table, indent=1, sort_keys=True) + "\n")
