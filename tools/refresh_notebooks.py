"""Run the walkthroughs in place and keep their outputs, cleaned of what changes.

    FEDLIB_CI=1 python -m tools.refresh_notebooks [notebook ...]

Each notebook runs from top to bottom in this interpreter. Anything on stderr is
refused, metadata is reduced to the kernel's name, to tags and to what a cell is in a
talk (``make slides``), cells that mostly draw are folded, all are numbered anew.
"""

import base64
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from fedlib.rebuild.kernels import own_kernel
from fedlib.support.paths import NOTEBOOKS
from tools.page_measures import plotting

FOLDED = 0.4  # share of lines that draw, from which on a cell is folded
METADATA = {
    "kernelspec": {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def slide_type(cell: nbformat.NotebookNode) -> str:
    """Return what a cell is in a talk, as ``jupyter nbconvert --to slides`` reads it.

    A heading begins a slide, or one below it; so does a picture. Other text goes on,
    and code that draws nothing is left out.
    """
    if cell.cell_type == "markdown":
        depth = len(cell.source) - len(cell.source.lstrip("#"))
        return {0: "-", 1: "slide", 2: "slide"}.get(depth, "subslide")
    shown = [out.get("data", {}) for out in cell.get("outputs", [])]
    drawn = [
        "image/png" in data or "<img" in data.get("text/html", "") for data in shown
    ]
    return "subslide" if any(drawn) else "skip"


def folded(cell: nbformat.NotebookNode) -> bool:
    """Return whether a cell mostly draws, so that a page shows what it drew alone."""
    return cell.cell_type == "code" and plotting([cell.source]) >= FOLDED


def tag(cell: nbformat.NotebookNode, *, talk: bool) -> None:
    """Reduce metadata to a cell's tags, its fold, and what it is in a talk."""
    tags = cell.metadata.get("tags")
    kept = {"slideshow": {"slide_type": slide_type(cell)}} if talk else {}
    kept |= {"jupyter": {"source_hidden": True}} if folded(cell) else {}
    cell.metadata = nbformat.from_dict(kept | ({"tags": tags} if tags else {}))


def lean(png: str) -> str:
    """Return a picture, in base64, with the same pixels and without an idle channel.

    matplotlib's pictures are opaque, and their alpha is an eighth of their size.
    """
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode != "RGBA" or picture.getchannel("A").getextrema() != (255, 255):
        return png
    kept = io.BytesIO()
    picture.convert("RGB").save(kept, "png", optimize=True, dpi=picture.info.get("dpi"))
    return base64.b64encode(kept.getvalue()).decode()


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
        tag(cell, talk=path.parent.name == "learn")
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise SystemExit(f"{path.name}, cell {number}: {output['text']}")
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = lean(output.data["image/png"])
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
