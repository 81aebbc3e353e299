"""What a worker does: compute a run that it is told, and say what became of it.

The two ends may be different checkouts on different machines, so that only plain texts
and tables travel, and the worker computes the run's key anew: one that has other code
or other data refuses the run, and says what it has. So does one that has another
kernel (``FEDLIB_KERNEL``), which no key names and which rounds otherwise.

An answer is a table with one entry: ``refused`` (what the worker has), ``raised`` (the
run's error), or ``files`` (the finished run's, by name; none where the cache is
shared).
"""

import os
import pickle
import traceback
from pathlib import Path
from typing import Any

from fedlib.core import compiled
from fedlib.runs import address, published, runner
from fedlib.runs.own import use_named
from fedlib.runs.spec import Spec
from fedlib.support.files import atomic_write, locked

Answer = dict[str, Any]
RESULT = "result.safetensors"  # what says that a run is finished: it is written last


def here(text: str, key: str, variables: dict[str, str]) -> Answer:
    """Compute a run in a process of the machine that asks, with its settings.

    Parameters
    ----------
    text : str
        The run's spec as JSON.
    key : str
        The run's key where it is asked for.
    variables : dict of str
        All ``FEDLIB_*`` of the environment: a process may be older than they are.
    """
    for name in [name for name in os.environ if name.startswith("FEDLIB_")]:
        del os.environ[name]
    os.environ.update(variables)
    return _computed(text, key) or {"files": {}}


def there(text: str, key: str, kernel: str) -> Answer:
    """Compute a run on another machine, with its own settings, and send the files.

    Parameters
    ----------
    kernel : str
        Who computes convolutions where the run is asked for.
    """
    mine = compiled.chosen()
    if mine != kernel:
        reason = f"another kernel (FEDLIB_KERNEL is {mine!r}, expected {kernel!r})"
        return {"refused": {"error": reason}}
    answer = _computed(text, key)
    if answer:
        return answer
    return {"files": packed(address.folder(Spec.model_validate_json(text)))}


def _computed(text: str, key: str) -> Answer:
    """Compute a run, and return why there is none."""
    try:
        use_named()
        spec = Spec.model_validate_json(text)
        if address.key(spec) != key:
            return {"refused": what_it_has(spec)}
    except Exception as error:  # no data, or a method that is not known here
        return {"refused": {"error": f"{type(error).__name__}: {error}"}}
    try:
        with published.unread():  # the one that asks has it neither way
            runner.run(spec)
    except Exception as error:
        return {"raised": _portable(error)}
    return {}


def what_it_has(spec: Spec) -> dict[str, Any]:
    """Return what a key is made of, and the definitions behind its code."""
    return address.identity(spec) | {"parts": address.code_of(spec).parts}


def _portable(error: Exception) -> Exception:
    """Return an error that can travel, with the place where it was raised as a note."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - its own bytes, a moment old
    except Exception:  # pickling may raise anything; the run's error continues in words
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(text)
    return error


def packed(home: Path) -> dict[str, bytes]:
    """Return the files of a finished run."""
    files = [path for path in home.iterdir() if path.is_file()]
    return {path.name: path.read_bytes() for path in files if path.name[0] != "."}


def unpack(spec: Spec, files: dict[str, bytes]) -> None:
    """Write a finished run that came from elsewhere into the cache.

    Each file is whole or absent, and the result comes last: a run that is cut off while
    it is written is not finished.
    """
    home = address.folder(spec)
    with locked(home / ".lock", f"run {home.name}"):
        if (home / RESULT).exists():  # a shared disk, or another process was faster
            return
        for name in sorted(files, key=lambda name: name == RESULT):
            with atomic_write(home / Path(name).name) as temporary:
                temporary.write_bytes(files[name])
        for checkpoint in home.glob("checkpoint*"):
            checkpoint.unlink()
