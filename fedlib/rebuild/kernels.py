"""The kernel that notebooks are executed by."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from fedlib.rebuild import launch
from fedlib.support import paths

KERNEL = "fedlib-rebuild"
FEW = 3  # notebooks whose kernels import for themselves what they need
# A kernel that is ended calls that an error; what is wrong in a cell is a message.
QUIET = "--IPKernelApp.log_level=CRITICAL"
ALONE = [sys.executable, "-m", "ipykernel_launcher", QUIET, "-f"]


@contextmanager
def own_kernel(notebooks: int = 1) -> Iterator[None]:
    """Let Jupyter find a kernel of this interpreter and this fedlib, before any other.

    Folders given relative to the working directory are made absolute, because
    notebooks run in their own folder.

    Parameters
    ----------
    notebooks : int
        How many will be executed; of more than ``FEW``, kernels are forked from a
        process that has done their imports.
    """
    before = os.environ.get("JUPYTER_PATH")
    environment = {
        "PYTHONPATH": os.pathsep.join(
            [str(paths.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # as setup() says
        "FEDLIB_JOBS": os.environ.get("FEDLIB_JOBS", "1"),  # others run beside it
        "FEDLIB_CACHE": str(paths.cache_dir().resolve()),
        "FEDLIB_FIGURES": str(paths.figures_dir()),
        "FEDLIB_RESULTS": str(paths.results_dir() or "none"),
    }
    if os.environ.get("FEDLIB_DATA"):
        environment["FEDLIB_DATA"] = str(paths.data_dirs()[0])
    spec = {"display_name": "fedlib", "language": "python", "env": environment}
    with tempfile.TemporaryDirectory(prefix="fedlib-kernel-") as folder:
        home = Path(folder) / "kernels" / KERNEL
        home.mkdir(parents=True)
        warm = notebooks > FEW and sys.platform == "linux"
        socket = str(Path(folder) / "forks")
        forked = [sys.executable, "-I", "-S", launch.__file__, socket]
        spec["argv"] = [*(forked if warm else ALONE), "{connection_file}"]
        (home / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            with _forks(socket, environment) if warm else nullcontext():
                yield
        finally:
            if before is None:
                del os.environ["JUPYTER_PATH"]
            else:
                os.environ["JUPYTER_PATH"] = before


@contextmanager
def _forks(place: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Have kernels forked on demand; those that are left end with this."""
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "fedlib.rebuild.forks", place],
        env=os.environ | variables | inline,
        stdin=subprocess.PIPE,  # it ends when this is closed
        start_new_session=True,
    ) as begun:
        while not Path(place).exists() and begun.poll() is None:
            time.sleep(0.01)
        yield
