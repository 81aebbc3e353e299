"""SOURCES.md: whose code is followed, for every method."""

import re

import pytest

from fedlib import registry
from fedlib.support.paths import ROOT

TEXT = (ROOT / "SOURCES.md").read_text("utf-8")
HEAD = ["method", "repository", "commit", "files", "followed"]


def rows() -> dict[str, list[str]]:
    """Return the cells of each method's row, its name first."""
    found = {}
    for line in TEXT.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if name := re.fullmatch(r"\|? ?`([a-z]+)`", cells[0]):
            assert name[1] not in found, f"{name[1]} has two rows"
            found[name[1]] = line.strip().strip("|").split("|")
    return found


def test_every_method_has_a_row_and_no_row_is_of_nothing():
    assert {*rows()} == {*registry.METHODS}


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_row_names_repository_commit_and_files_or_says_that_there_are_none(name):
    cells = [cell.strip() for cell in rows()[name]]
    assert len(cells) == len(HEAD), cells
    _, repository, commit, files, followed = cells
    assert followed
    if repository.startswith("none") and "/" not in repository:
        assert (commit, files) == ("", "")
        return
    assert "/" in repository or "above" in repository
    assert re.search(r"\b[0-9a-f]{7}\b|not determined", commit)
    assert "`" in files


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_with_a_reference_has_a_repository(name):
    if "variant" in registry.method(name).hp.model_fields:
        cells = rows()[name]
        assert "/" in cells[1], name
        assert 'variant="reference"' in cells[4]


def test_the_reupload_is_named_where_the_code_is():
    assert "re-upload" in rows()["fedmps"][1]
    assert "re-uploaded" in (registry.method("fedmps").init.__globals__["__doc__"])


def test_the_page_is_linked():
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "](SOURCES.md)" in (ROOT / page).read_text("utf-8"), page
