"""Who is shown a bar, and where."""

import sys
from types import ModuleType

import pytest

from fedlib.support import progress


@pytest.mark.parametrize(("notebook", "shown"), [(True, "out"), (False, "err")])
def test_a_notebook_has_its_bar_where_nothing_is_red(
    monkeypatch, capsys, notebook, shown
):
    monkeypatch.setattr(progress, "silent", lambda: False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if notebook:
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with progress.progress_bar(total=2) as bar:
        bar.update()
    there = capsys.readouterr()._asdict()
    assert "1/2" in there.pop(shown)
    assert [*there.values()] == [""]


def test_a_bar_can_be_off_and_is_where_runs_are_silent(monkeypatch, capsys):
    monkeypatch.setattr(progress, "progress_off", lambda: False)
    progress.progress_bar(True, total=1).close()
    monkeypatch.setattr(progress, "progress_off", lambda: True)
    progress.progress_bar(total=1).close()
    assert capsys.readouterr() == ("", "")
