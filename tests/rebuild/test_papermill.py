"""papermill alone, as a user types it: each preset's results land in its own folder."""

from pathlib import Path

import pytest

from fedlib.data import DataError
from fedlib.rebuild import artefacts
from fedlib.runs import runner
from fedlib.support.paths import RESULTS, ROOT
from tools import try_papermill
from tools.try_papermill import SHORT, TRIES, typed

GOOD = TRIES["good"]


@pytest.fixture
def figures(tmp_path: Path, monkeypatch) -> Path:
    """Return a folder of figures, where no data are to be found."""
    (tmp_path / "none").mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("FEDLIB_RESULTS", str(RESULTS))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "figures").mkdir()
    return tmp_path / "figures"


@pytest.mark.slow
def test_a_quick_notebook_runs_and_lands_under_quick(figures):
    found = typed("fedmps/table3", "quick", [*SHORT["fedmps/table3"], *GOOD], figures)
    assert (found.status, found.printed) == (0, "")
    assert "quick/fedmps/table3.csv" in found.changed
    assert all(file.startswith("quick/fedmps/table3") for file in found.changed)
    assert '"preset": "quick"' in (figures / "quick/fedmps/table3.json").read_text()


@pytest.mark.slow
def test_a_cpu_notebook_is_drawn_from_published_runs_without_data(figures):
    try:
        stale = runner.pending(artefacts.prepare("fedpg/log", "cpu").specs)
    except DataError:
        stale = ["some"]
    if stale:
        pytest.skip("published runs are stale: fedlib runs adopt")
    found = typed("fedpg/log", "cpu", [], figures)
    assert (found.status, found.printed) == (0, "")
    assert "cpu/fedpg/log.csv" in found.changed
    assert all(file.startswith("cpu/fedpg/log") for file in found.changed)


@pytest.mark.slow
def test_a_paper_notebook_stops_where_data_are_missing_and_writes_nothing(figures):
    found = typed("fedmps/fig3", "paper", [], figures)
    assert found.status == 1
    assert found.printed.startswith("DataError: Flowers is not here")
    assert found.changed == []
    found = typed("fedmps/fig3", "paper", ["-y", "datasets: [digits]"], figures)
    assert (found.status, found.printed) == (0, "")
    assert "paper/fedmps/fig3.csv" in found.changed
    assert all(file.startswith("paper/fedmps/fig3") for file in found.changed)


def test_a_command_tells_its_error_its_files_and_what_is_gone(figures, monkeypatch):
    (figures / "old").touch()
    (figures / "gone").touch()
    program = (
        "import os, pathlib, sys; at = pathlib.Path(os.environ['FEDLIB_FIGURES']);"
        "(at / 'new').touch(); (at / 'gone').unlink();"
        "sys.exit('Traceback\\nSettingError: a: wrong\\npapermill.exceptions.X: cell')"
    )
    line = [try_papermill.sys.executable, "-c", program]
    monkeypatch.setattr(try_papermill, "command", lambda *_: line)
    found = typed("fedmps/fig3", "quick", [], figures)
    assert (found.status, found.printed) == (1, "SettingError: a: wrong")
    assert found.changed == ["gone", "new"]
