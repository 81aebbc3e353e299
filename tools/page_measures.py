"""Measure the walkthroughs: a line a page, as a Markdown table.

    python tools/page_measures.py [page ...]

seeds
    Of the page's conclusions, and of its answers to the exercises; empty where nothing
    is drawn at random by a seed of its own.
plotting
    Share of the code's lines that call matplotlib.
source
    Lines of the longest source that the page shows.
exercises
    Those with an answer, of all.
words
    Of its text, without formulas, code and addresses.
"""

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pandas as pd

from fedlib.support.paths import NOTEBOOKS

CANVAS = {"plt", "mpl", "fig", "ax", "axes"}
NO_WORDS = [r"```.*?```", r"\$\$.*?\$\$", r"\$[^$]+\$", r"`[^`]+`", r"\]\([^)]*\)"]


def texts(path: Path, kind: str) -> list[str]:
    """Return the sources of a notebook's cells of one kind."""
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == kind]


def seeds(codes: Sequence[str]) -> int | None:
    """Return how many seeds the parameters have: ``asked_seeds`` before ``seeds``."""
    found = dict(re.findall(r"^(\w*seeds) = \[(.*?)\]", "\n".join(codes), re.M))
    given = found.get("asked_seeds", found.get("seeds"))
    return None if given is None else len(given.split(","))


def plotting(codes: Sequence[str]) -> float:
    """Return the share of lines, blank ones and comments left out, that draw.

    A simple statement draws with all its lines if it calls something of a figure or an
    axis by its usual name.
    """
    lines, drawn = 0, 0
    for code in codes:
        code = re.sub(r"^( *)[%!].*", r"\1pass", code, flags=re.M)  # not Python
        covered: dict[int, bool] = {}
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.stmt):
                continue
            compound = hasattr(node, "body")
            end = node.lineno if compound else node.end_lineno or node.lineno
            draws = not compound and any(
                isinstance(part, ast.Attribute)
                and isinstance(part.value, ast.Name | ast.Subscript)
                and ast.unparse(part.value).partition("[")[0] in CANVAS
                for part in ast.walk(node)
            )
            covered |= dict.fromkeys(range(node.lineno, end + 1), draws)
        lines += len(covered)
        drawn += sum(covered.values())
    return drawn / lines if lines else 0.0


def longest_source(path: Path) -> int:
    """Return the lines of the longest source among a notebook's outputs."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out for cell in cells for out in cell.get("outputs", [])]
    shown = [out.get("data", {}).get("text/markdown", "") for out in outputs]
    blocks = re.findall(r"^(`{3,})python\n(.*?)\n\1$", "\n".join(shown), re.M | re.S)
    return max((block.count("\n") + 1 for _, block in blocks), default=0)


def words(markdown: Sequence[str]) -> int:
    """Return how many words a text has, without formulas, code and addresses."""
    text = "\n".join(markdown)
    for pattern in NO_WORDS:
        text = re.sub(pattern, " ", text, flags=re.S)
    return len(re.findall(r"[^\W\d_][\w'-]*", text))


def measured(path: Path) -> dict[str, object]:
    """Return one page's row."""
    codes, markdown = texts(path, "code"), texts(path, "markdown")
    answers = path.parent / "answers" / path.name
    text = "\n".join(markdown).partition("## Exercises\n")[2]
    asked = len(re.findall(r"^\d+\. ", text, re.M))
    told = re.findall(r"^## Exercise \d+", "\n".join(texts(answers, "markdown")), re.M)
    both = [seeds(codes), seeds(texts(answers, "code"))]
    return {
        "page": path.stem,
        "seeds": ", ".join("" if n is None else str(n) for n in both),
        "plotting": f"{100 * plotting(codes):.0f} %",
        "source": longest_source(path),
        "exercises": f"{len(told)} of {asked}",
        "words": words(markdown),
    }


def main() -> None:
    """Print the table of the pages named, or of all."""
    every = sorted(NOTEBOOKS.glob("learn/*.ipynb"))
    named = set(sys.argv[1:]) or {path.stem for path in every}
    rows = pd.DataFrame([measured(path) for path in every if path.stem in named])
    print("| " + " | ".join(rows.columns) + " |")
    print("|---" * len(rows.columns) + "|")
    for row in rows.itertuples(index=False):
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
