"""The README's generated section."""

import importlib.util

import pytest

from fedlib.support.paths import ROOT

found = importlib.util.spec_from_file_location(
    "readme_results", ROOT / "tools" / "readme_results.py"
)
assert found is not None
assert found.loader is not None
tool = importlib.util.module_from_spec(found)
found.loader.exec_module(tool)


def test_results_are_those_of_the_committed_scoreboard():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert tool.written(readme, tool.section()) == readme, "run `make results`"


def test_only_what_is_between_the_marks_changes():
    before = f"a\n{tool.BEGIN}old\n{tool.END}b\n"
    assert tool.written(before, "new\n") == f"a\n{tool.BEGIN}new\n{tool.END}b\n"
    with pytest.raises(ValueError, match="got 0 of"):
        tool.written("a\n", "new\n")
