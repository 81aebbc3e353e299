"""The measures of the walkthroughs are what a reader counts by hand."""

import nbformat
import pytest

from fedlib.support.paths import NOTEBOOKS
from tools import page_measures

DRAWN = """%config InlineBackend.figure_format = "png"
import matplotlib.pyplot as plt

fig, ax = plt.subplots()
for value in values:  # not drawn
    total = value + 1
    axes[0].plot(
        value,
        total,
    )
"""
PAGES = sorted(NOTEBOOKS.glob("learn/*.ipynb"))
SHOWN = "`a.py`\n\n```python\ndef f():\n    return 1\n```"
LONGER = '`b.py`\n\n````python\n"""A\n\n```\nb\n"""\n````'


def test_a_page_is_measured(tmp_path):
    new = nbformat.v4
    output = [
        new.new_output("display_data", {"text/markdown": text})
        for text in (SHOWN, LONGER)
    ]
    page = new.new_notebook(
        cells=[
            new.new_code_cell("seeds = [0]  # of the table\nasked_seeds = [1, 2, 3]"),
            new.new_markdown_cell("Two words of $x y$ and [a link](to.md#Two), `no`."),
            new.new_code_cell(DRAWN, outputs=output),
            new.new_markdown_cell("## Exercises\n\n1. First.\n2. Second.\n\n**End.**"),
        ]
    )
    answers = new.new_notebook(cells=[new.new_markdown_cell("## Exercise 1: first")])
    (tmp_path / "answers").mkdir()
    nbformat.write(page, tmp_path / "page.ipynb")
    nbformat.write(answers, tmp_path / "answers" / "page.ipynb")
    assert page_measures.measured(tmp_path / "page.ipynb") == {
        "page": "page",
        "seeds": "3, ",
        "plotting": "45 %",  # 5 of the 9 lines above and 2 of parameters
        "source": 5,
        "exercises": "1 of 2",
        "words": 10,
    }


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_exercise_has_an_answer(path):
    told, _, asked = page_measures.measured(path)["exercises"].partition(" of ")
    assert told == asked
    assert int(asked) >= 3
