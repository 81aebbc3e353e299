"""What costs seconds is imported when it is needed, not before."""

import subprocess
import sys

import pytest

import fedlib
from fedlib import paths

HEAVY = {"torch", "torchvision", "pandas", "scipy", "sklearn", "skimage", "matplotlib"}
HEAVY |= {"seaborn", "papermill", "IPython", "nbformat", "pydantic", "joblib"}


def fresh(code: str) -> str:
    """Return what a process of its own prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(code: str) -> set[str]:
    last = "\nimport sys; print(' '.join({n.split('.')[0] for n in sys.modules}))"
    return set(fresh(code + last).splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["rebuild", "--help"],
        ["list", "artefacts"],
        ["list", "notebooks"],
        ["list", "methods"],
    ],
    ids=" ".join,
)
def test_a_command_imports_no_more_than_it_needs(arguments):
    code = f"from fedlib.cli import main; main({arguments}, standalone_mode=False)"
    found = imported_by(code)
    assert "click" in found
    assert not found & HEAVY


def test_fedlib_alone_imports_nothing_heavy():
    found = imported_by("import fedlib")
    assert "fedlib" in found
    assert not found & HEAVY


def test_python_m_fedlib_is_the_command():
    command = [sys.executable, "-m", "fedlib", "list", "methods"]
    done = subprocess.run(
        command, cwd=paths.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("gfpl  (fedlib.methods.gfpl)\n")


def test_every_public_name_is_there_and_of_its_home():
    code = "import fedlib; print([getattr(fedlib, n).__name__ for n in fedlib.__all__])"
    names = [n if n != "papers" else "fedlib.papers" for n in fedlib.__all__]
    assert fresh(code) == f"{names}\n"
    assert set(fedlib.__all__) <= set(dir(fedlib))


def test_modules_are_attributes_and_unknown_names_are_not():
    assert fresh("import fedlib; print(fedlib.losses.__name__)") == "fedlib.losses\n"
    assert not hasattr(fedlib, "lossses")
    with pytest.raises(ImportError, match="lossses"):
        exec("from fedlib import lossses")


@pytest.mark.parametrize("first", ["import fedlib.federation", "import fedlib.runs"])
def test_federation_is_the_function_whatever_was_imported_before(first):
    name = "name = fedlib.federation.__name__"
    module = "from fedlib.federation import Federation as F"
    told = "print(name, F is fedlib.Federation)"
    assert fresh("\n".join([first, name, module, told])) == "federation True\n"
