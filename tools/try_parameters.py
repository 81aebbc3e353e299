"""Run walkthroughs with changed parameters, and say which pages stay whole.

    python tools/try_parameters.py [page ...]

Three changes a page, each in a run of its own from top to bottom, as a teacher would
make them: outside CI mode, where a check that does not hold is told and goes on. Two
seeds in place of five keep it short. A page that stops is named with its cell, and the
exit status is 1.
"""

import os
import sys
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from fedlib.rebuild.kernels import own_kernel
from fedlib.support.paths import NOTEBOOKS

TRIES: dict[str, list[dict[str, Any]]] = {
    "00_start_here": [{"ways": 5}, {"rounds": 3}, {"seed": 7, "ways": 2}],
    "01_one_round": [{"ways": 6}, {"rounds": 2}, {"seed": 5}],
    "02_partitions": [{"alpha": 1.0}, {"clients": 6, "seed": 3}, {"imbalance": 5.0}],
    "20_baselines": [
        {"toy_rounds": 2, "rounds": 2},
        {"clients": 6, "toy_rounds": 2, "rounds": 2},
        {"partition": "two_class", "toy_rounds": 1, "rounds": 1},
    ],
    "30_privacy": [
        {"steps": 20, "sizes": [1, 3]},
        {"seed": 4, "steps": 20},
        {"limits": [1, 10], "steps": 20},
    ],
    "40_your_own": [
        {"step": 0.0, "rounds": 4},
        {"clients": 6, "rounds": 4},
        {"momentum": 0.9, "seed": 2, "rounds": 4},
    ],
    "fedhpro": [{"tau": 0.5}, {"vectors": 2, "rounds": 3}, {"steps": 3, "rounds": 3}],
    "fedmps": [{"tau_1": 0.2}, {"clients": 6, "rounds": 8}, {"tau_2": 1.0}],
    "fedpa": [
        {"alpha": 5.0, "rounds": 4},
        {"generator_steps": 2, "calls": 3, "rounds": 4},
        {"seed": 9, "rounds": 4},
    ],
    "fedpg": [{"rate": 1e-4}, {"steps": 5, "rounds": 3}, {"seed": 3, "rounds": 3}],
    "gfpl": [
        {"merge_threshold": 1000.0},
        {"components": 1, "clients": 6},
        {"first_exchange": 2, "exchange_every": 1, "rounds": 8},
    ],
}
FEWER = {"seeds": [1, 2], "asked_seeds": [0, 1]}


def with_changes(page: str, changes: dict[str, Any]) -> nbformat.NotebookNode:
    """Return a walkthrough with a cell of changes behind its parameters.

    Raises
    ------
    KeyError
        A change of what is no parameter of the page.
    """
    book = nbformat.read(NOTEBOOKS / "learn" / f"{page}.ipynb", as_version=4)
    tagged = ["parameters" in cell.metadata.get("tags", []) for cell in book.cells]
    place = tagged.index(True)
    names = {line.partition(" = ")[0] for line in book.cells[place].source.splitlines()}
    unknown = changes.keys() - names
    if unknown:
        raise KeyError(f"{page}: {sorted(unknown)}, expected of {sorted(names)}")
    fewer = {name: value for name, value in FEWER.items() if name in names}
    if page == "20_baselines":
        del fewer["seeds"]  # those of its table: one already
    lines = [f"{name} = {value!r}" for name, value in (fewer | changes).items()]
    book.cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(lines)))
    return book


def stopped(book: nbformat.NotebookNode) -> str:
    """Run a notebook, and return where and why it stopped; nothing if it did not."""
    folder = {"metadata": {"path": str(NOTEBOOKS / "learn")}}
    client = NotebookClient(
        book,
        timeout=600,
        kernel_name="python3",
        resources=folder,
        coalesce_streams=True,
    )
    try:
        client.execute()
    except CellExecutionError as error:
        shown = [[o.output_type for o in c.get("outputs", [])] for c in book.cells]
        place = next(i for i, kinds in enumerate(shown) if "error" in kinds)
        return f"stops at cell {place}: {error.ename}: {error.evalue}"
    return ""


def main() -> None:
    """Try the pages named, or all."""
    os.environ.pop("FEDLIB_CI", None)
    failed = 0
    with own_kernel():
        for page in sys.argv[1:] or TRIES:
            for changes in TRIES[page]:
                found = stopped(with_changes(page, changes))
                print(f"{page} {changes}: {found or 'whole'}", flush=True)
                failed += bool(found)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
