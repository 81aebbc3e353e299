"""The rooms: imports run one way, and a line that breaks a rule is seen."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedlib.support.paths import ROOT

LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
ROOMS = {path.parent.name for path in ROOT.glob("fedlib/*/__init__.py")}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A copy of the library and its rules, to break."""
    home = tmp_path_factory.mktemp("rooms")
    shutil.copytree(
        ROOT / "fedlib", home / "fedlib", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "pyproject.toml", home)
    return home


def linted(home: Path) -> tuple[int, str]:
    """Return the exit code of the linter in a folder and what it says."""
    code = LINT.replace("lint_imports()", "lint_imports(cache_dir=None)")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_imports_run_one_way(copy: Path):
    code, said = linted(copy)
    assert code == 0, said


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/losses.py", "from fedlib.blocks import descent"),
        ("draw/plot.py", "from fedlib.runs import results"),
        ("blocks/descent.py", "import fedlib.data.types"),
        ("data/types.py", "def late():\n    from fedlib.runs.spec import Spec"),
        ("methods/fedpa.py", "from fedlib.methods.fedpg import METHOD as other"),
        ("baselines/fedgen.py", "import fedlib.methods.fedpa as other"),
        ("blocks/with_protos.py", "from fedlib.baselines.fedavg import METHOD"),
        ("runs/spec.py", "from fedlib.papers import study"),
        ("papers/gfpl/tables.py", "from fedlib.papers.fedpa import costs"),
    ],
)
def test_a_line_against_the_rules_is_found(copy: Path, file: str, line: str):
    path = copy / "fedlib" / file
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}\n{line}\n", encoding="utf-8")
    try:
        code, said = linted(copy)
    finally:
        path.write_text(text, encoding="utf-8")
    assert code == 1, said
    assert "BROKEN" in said


def test_there_are_thirteen_rooms_and_each_says_what_belongs_there():
    assert len(ROOMS) <= 13
    for room in ROOMS:
        text = (ROOT / "fedlib" / room / "__init__.py").read_text(encoding="utf-8")
        first = text.removeprefix("r").removeprefix('"""').split('"""')[0]
        assert first.split("\n\n")[0].endswith("."), room


def test_no_file_repeats_the_name_of_its_room():
    for path in ROOT.glob("fedlib/*/*.py"):
        room = path.parent.name
        assert path.stem not in (room, room.removesuffix("s")), path
        assert not path.stem.startswith(f"{room.removesuffix('s')}_"), path


def test_tests_stand_in_the_rooms_that_they_test():
    folders = {path.parent.name for path in ROOT.glob("tests/*/test_*.py")}
    assert folders <= ROOMS | {"project"}
    assert not [*ROOT.glob("tests/test_*.py")]
