"""Write the end of each notebook in ``notebooks/papers``: picture, budget, links.

    python -m tools.conclusions              # what is generated
    python -m tools.conclusions --numbers    # the numbers in the sentences as well

Sentences behind it, in the cell ``sentences``, are written by hand; their numbers are
links, as in REPRODUCTION.md (``tools/claims.py``). ``--numbers`` puts in what the files
have now and prints each sentence that it changed: read those again, and write anew what
the numbers no longer bear.
"""

import json
import sys
from typing import Any

from fedlib.rebuild import closing, printed
from fedlib.support import paths
from fedlib.support.files import write_text
from tools import claims


def _cell(name: str, text: str) -> dict[str, Any]:
    lines = text.splitlines(keepends=True)
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines}


def written(notebook: dict[str, Any], ending: str, said: str) -> dict[str, Any]:
    """Return a notebook that closes with an ending, and with sentences if any."""
    cells = [c for c in notebook["cells"] if c.get("id") not in printed.CLOSING]
    cells.append(_cell(printed.CLOSING[0], ending))
    if said:
        cells.append(_cell(printed.CLOSING[1], said))
    return notebook | {"cells": cells}


def main(numbers: bool) -> None:
    """Write the end of all notebooks."""
    for name in paths.artefact_names():
        path = paths.NOTEBOOKS / "papers" / f"{name}.ipynb"
        notebook = json.loads(path.read_text("utf-8"))
        before = said = claims.sentences_of(notebook)
        if numbers:
            folder = path.parent.relative_to(paths.ROOT).as_posix()
            said = claims.refreshed(said, folder)
        for old, new in zip(before.splitlines(), said.splitlines(), strict=True):
            if old != new:
                print(f"{name}: " + claims.LINK.sub(r"\1", new))
        now = written(notebook, closing.ending(name), said)
        write_text(path, json.dumps(now, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main("--numbers" in sys.argv[1:])
