"""A20: kept outputs pass nbval in CI mode, and a change of code or number fails it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from fedlib.rebuild import kernels
from fedlib.support import paths

SHOWN = "def double(x):\n    return 2 * x\n"
CELLS = [
    "import warnings\n"
    "import pandas as pd, tqdm\n"
    "import fedlib, shown_by_test\n"
    "from fedlib import notebook, papers, plot\n"
    "notebook.setup()",
    "warnings.warn('loud')\n"
    "spec = papers.fedmps('digits', 'local', rounds=1)\n"
    "result = fedlib.run_many([spec, spec])[0]",
    "notebook.show(fedlib.core.losses.supcon)",
    "notebook.show(shown_by_test.double)",
    "notebook.check(len(result.readouts), near=4, tol=0)",
    "notebook.check(shown_by_test.double(0.4351), near=0.87, tol=0.01)",
    "notebook.check(shown_by_test.double(0.5) + 1e-9 * id(result), near=2, tol=1e9)",
    "notebook.table(result.summary()[['model', 'rule']])",
    "df = pd.DataFrame({'label': ['local'], 'value': [0.5]})\n"
    "fig, df = plot.bars(df, x='label', y='value')\n"
    "notebook.table(df)",
]


MARKER = "# NBVAL_IGNORE_OUTPUT"
BOOKS = sorted(paths.NOTEBOOKS.rglob("*.ipynb"))
BOOKS = [path for path in BOOKS if ".ipynb_checkpoints" not in path.parts]


@pytest.mark.parametrize(
    "path", BOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_marker_stands_alone_on_its_line(path: Path):
    """nbval reads a marker with words behind it as a comment, and compares the cell."""
    for cell in nbformat.read(path, as_version=4).cells:
        lines = cell.source.splitlines()
        named = [line for line in lines if re.search("nb_?val", line, re.IGNORECASE)]
        assert set(named) <= {MARKER}


@pytest.mark.slow
def test_kept_outputs_pass_and_drift_fails(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("FEDLIB_PROGRESS")
    monkeypatch.setenv("FEDLIB_CI", "1")
    module = tmp_path / "shown_by_test.py"
    module.write_text(SHOWN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(paths.ROOT), str(tmp_path)]))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS])
    with kernels.own_kernel():
        NotebookClient(book, kernel_name=kernels.KERNEL).execute(cwd=str(tmp_path))
    kept = [out for cell in book.cells for out in cell.outputs]
    assert [out.output_type for out in kept] == [
        "display_data",  # both sources shown
        "display_data",
        "stream",  # the three checks, of which the third is never the same
        "stream",
        "stream",
        "display_data",  # both tables and the figure
        "display_data",
        "display_data",
    ]
    assert "2 * x" in kept[1].data["text/markdown"]
    assert kept[3].text == "ok: measured 0.8702, expected 0.87 +- 0.01\n"
    nbformat.write(book, tmp_path / "kept.ipynb")

    module.write_text(SHOWN.replace("2 * x", "3 * x"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), "-rf", "--nbval"]
    command += ["--nbval-current-env", "--nbval-cell-timeout", "60"]
    command += ["--nbval-sanitize-with", str(paths.ROOT / "tests" / "nbval.cfg")]
    done = subprocess.run(
        [*command, "kept.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED kept\.ipynb::Cell (\d+)", done.stdout, re.MULTILINE)
    assert failed == ["3", "5"], done.stdout + done.stderr
    assert f"{len(CELLS) - 2} passed" in done.stdout
