"""Walkthroughs are tried with changed parameters, and a page that stops is named."""

import importlib.util

import nbformat
import pytest

from fedlib.rebuild.kernels import own_kernel
from fedlib.support.paths import NOTEBOOKS, ROOT

SPEC = importlib.util.spec_from_file_location(
    "try_parameters", ROOT / "tools" / "try_parameters.py"
)
assert SPEC is not None
assert SPEC.loader is not None
tries = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tries)


def test_every_page_has_three_changes_of_its_parameters():
    pages = {path.stem for path in NOTEBOOKS.glob("learn/*.ipynb")}
    assert set(tries.TRIES) == pages
    for page, changes in tries.TRIES.items():
        assert len(changes) == 3
        kept = nbformat.read(NOTEBOOKS / "learn" / f"{page}.ipynb", as_version=4)
        before = {cell.source for cell in kept.cells}
        for each in changes:
            book = tries.with_changes(page, each)
            added = [c.source for c in book.cells if c.source not in before]
            assert len(added) == 1
            for name, value in each.items():
                assert f"{name} = {value!r}" in added[0].splitlines()
    with pytest.raises(KeyError, match="00_start_here: \\['ruonds'\\]"):
        tries.with_changes("00_start_here", {"ruonds": 3})


@pytest.mark.slow
def test_a_page_that_stops_is_named_with_its_cell(monkeypatch):
    monkeypatch.delenv("FEDLIB_CI", raising=False)
    check = "from fedlib import notebook\nnotebook.check(1, near=2, tol=0)"

    def stopped(*sources: str) -> str:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        return tries.stopped(nbformat.v4.new_notebook(cells=cells))

    with own_kernel():
        assert stopped(check, "2") == ""
        found = stopped(check, "1 / 0", "2")
    assert found == "stops at cell 1: ZeroDivisionError: division by zero"
