"""Run the walkthroughs in place and keep their outputs, cleaned of what changes.

    FEDLIB_CI=1 python tools/refresh_notebooks.py [notebook ...]

Each notebook runs from top to bottom in this interpreter. Anything on stderr is
refused, metadata is reduced to the kernel's name, cells are numbered anew.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from fedlib.rebuild.kernels import own_kernel
from fedlib.support.paths import NOTEBOOKS

METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def refresh(path: Path) -> None:
    """Execute one notebook in its own folder and write it back."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=600,  # of a cell, on a busy machine
        coalesce_streams=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:02d}"
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise SystemExit(f"{path.name}, cell {number}: {output['text']}")
    nbformat.write(notebook, path)


def main() -> None:
    """Refresh the notebooks named, or all walkthroughs and their answers."""
    os.environ["FEDLIB_CI"] = "1"
    named = [Path(name).resolve() for name in sys.argv[1:]]
    with own_kernel():
        pages = sorted(NOTEBOOKS.glob("learn/*.ipynb"))
        answers = sorted(NOTEBOOKS.glob("learn/answers/*.ipynb"))
        for path in named or pages + answers:
            refresh(path)
            print(path.name)


if __name__ == "__main__":
    main()
