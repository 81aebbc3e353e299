"""Notebooks that are executed, here or in processes beside each other.

papermill takes seconds to import, so it is where a notebook is executed, not where all
are found to be current.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fedlib.data import DataError
from fedlib.rebuild import artefacts, parameters
from fedlib.rebuild.artefacts import Artefact
from fedlib.rebuild.kernels import KERNEL
from fedlib.runs.processes import Pool
from fedlib.support import paths

CELL_SECONDS = 3600  # longest time of one cell


class Executed(NamedTuple):
    """What became of a notebook."""

    written: list[Path]  # output files
    error: str  # in words, empty where there was none
    seconds: float


Execute = Callable[[Artefact], Future[Executed]]


@contextmanager
def executing(jobs: int) -> Iterator[Execute]:
    """Yield what executes notebooks: with several jobs, beside the runs of the next.

    Starting a kernel takes longer than many a notebook's cells. Each has a process of
    its own, and all are ended with this one.
    """

    def here(artefact: Artefact) -> Future[Executed]:
        done: Future[Executed] = Future()
        done.set_result(executed(artefact))
        return done

    if jobs == 1:
        yield here
        return
    pool, threads = Pool(), ThreadPoolExecutor(jobs)
    try:
        yield lambda artefact: threads.submit(pool.call, "", executed, artefact)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.stop()
        threads.shutdown()


def executed(artefact: Artefact) -> Executed:
    """Execute a notebook; an error is told in words, which pass between processes."""
    begun = time.perf_counter()
    try:
        written, error = _execute(artefact), ""
    except Exception as failure:
        written, error = [], message(artefact, failure)
    return Executed(written, error, time.perf_counter() - begun)


def _execute(artefact: Artefact) -> list[Path]:
    """Execute a notebook and return the output files that it wrote."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    executed = paths.cache_dir().resolve() / "executed" / artefact.folder
    executed = executed / f"{artefact.name}.ipynb"
    executed.parent.mkdir(parents=True, exist_ok=True)
    before = _marks(artefact)
    given = parameters.plain(artefact.parameters)
    executed.unlink(missing_ok=True)  # what is there afterwards is of this time
    try:
        papermill.execute_notebook(
            artefact.notebook,
            executed,
            given,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            cwd=artefact.notebook.parent,
            execution_timeout=CELL_SECONDS,
        )
    except (PapermillExecutionError, DeadKernelError, CellTimeoutError) as error:
        raise _named(executed, error) from error
    after = _marks(artefact)
    written = [path for path, mark in after.items() if before.get(path) != mark]
    if not written:
        raise FileNotFoundError(
            f"the notebook wrote no {artefact.folder}/{artefact.name}.* figure or table"
        )
    return written


def _named(executed: Path, error: Exception) -> Exception:
    """Return an error that names its cell and the reason; mark that cell as failed.

    papermill calls the cell in which a kernel ended, or that took too long, and those
    behind it "completed"; of what IPython only prints, such as an unknown magic, it has
    no words.
    """
    import nbformat
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError) and error.evalue:
        return error
    content = nbformat.read(executed, as_version=4)
    marks = [cell.metadata.get("papermill", {}) for cell in content.cells]
    begun = [index for index, mark in enumerate(marks) if mark.get("start_time")]
    if not begun:
        return error
    index = begun[-1]
    cell = content.cells[index]
    if isinstance(error, PapermillExecutionError):
        said = [out.text for out in cell.outputs if out.get("name") == "stderr"]
        error.ename, error.evalue = "UsageError", "".join(said).strip()
        error.evalue = error.evalue.removeprefix("UsageError: ")
        return error
    died = isinstance(error, DeadKernelError)
    name = "DeadKernelError" if died else "CellTimeoutError"
    why = "the kernel died, killed or out of memory" if died else _too_long()
    cell.outputs.append(nbformat.v4.new_output("error", ename=name, evalue=why))
    content.metadata.setdefault("papermill", {})["exception"] = True
    marks[index] |= {"status": "failed", "exception": True}
    for mark in marks[index + 1 :]:
        mark["status"] = "pending"
    nbformat.write(content, executed)
    count, source = cell.execution_count, cell.source
    return PapermillExecutionError(index, count, source, name, why, [])


def _too_long() -> str:
    return f"took longer than {CELL_SECONDS} s"


def _marks(artefact: Artefact) -> dict[Path, tuple[int, int]]:
    """Return what tells a rewritten output file from an untouched one."""
    files = artefacts.outputs(artefact.name, artefact.folder)
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def message(artefact: Artefact, error: Exception) -> str:
    """Return one line; for an error in a cell, with the cell's number."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        cells = parameters.read(artefact.notebook)
        tagged = parameters.tagged_cell(artefact.notebook, cells)
        place = error.cell_index - (error.cell_index > tagged)  # one cell was injected
        number = sum(c.cell_type == "code" for c in cells[: place + 1])
        text = f"code cell {number}: {error.ename}: {error.evalue}"
    elif isinstance(error, ExceptionGroup):  # of runs, each named
        text = error.message
    elif isinstance(error, DataError | ValueError):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())
