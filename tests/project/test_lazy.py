"""What costs seconds is imported when it is needed, not before."""

import resource
import subprocess
import sys

import pytest

import fedlib
from fedlib.support import paths

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


FORKS = """
import os, sys, torch
for code in {codes}:
    child = os.fork()
    if child == 0:
        exec(code, {{}})
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def after_torch(*codes: str) -> list[str]:
    """Return the lines that processes print which have imported torch alone."""
    return fresh(FORKS.format(codes=codes)).splitlines()


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
        ["list", "datasets"],
        ["data", "guide", "cifar10"],
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


def test_settings_and_runs_import_no_library_of_another_reader_or_a_table():
    """``torch._dynamo``, torch's compiler, comes with torchvision's operators."""
    settings = "from fedlib import Spec, papers; papers.fedmps('flowers', 'fedmps')"
    loads = "from fedlib import data; data.load('noise')"
    last = "import sys; print(' '.join(sys.modules))"
    told = after_torch(f"{settings}\n{last}", f"{loads}\n{last}")
    papers, run = (set(line.split()) for line in told)
    readers = {"torchvision", "pandas", "scipy", "sklearn", "pyarrow"}
    assert "torch" in papers & run
    assert not (papers | run) & readers
    assert not papers & {"torch._dynamo", "matplotlib", "papermill", "IPython"}


def test_what_is_current_is_found_without_what_executes_notebooks():
    found = imported_by("from fedlib.rebuild import make")
    assert "torch" in found
    assert not found & {"papermill", "nbformat", "scipy", "sklearn", "matplotlib"}


@pytest.mark.parametrize("what", ["artefacts", "notebooks", "methods", "datasets"])
def test_a_list_takes_less_than_two_seconds_of_the_processor(what):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    fresh(f"from fedlib.cli import main; main(['list', '{what}'])")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent < 2  # a quarter of a second where nothing heavy is imported


def test_python_m_fedlib_is_the_command():
    command = [sys.executable, "-m", "fedlib", "list", "methods"]
    done = subprocess.run(
        command, cwd=paths.ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("gfpl  (fedlib.methods.gfpl)\n")


# What notebooks may import from ``fedlib`` itself, wherever it stands.
FUNCTIONS = ["federation", "final", "run", "run_many"]
MODULES = ["notebook", "panels", "plot", "reports", "study"]
PINNED = ["Federation", "Result", "SettingError", "Spec", "papers", "registry"]


def test_the_public_surface_is_pinned():
    assert fedlib.__all__ == sorted(FUNCTIONS + MODULES + PINNED)


def test_every_public_name_is_of_its_home_whatever_was_imported_before():
    code = "import fedlib; print([getattr(fedlib, n).__name__ for n in fedlib.__all__])"
    name = "name = fedlib.federation.__name__"
    module = "from fedlib.runs.federation import Federation as F"
    told = "print(name, F is fedlib.Federation)"
    first = ["import fedlib.runs.federation", "import fedlib.runs.runner"]
    others = ["\n".join([line, name, module, told]) for line in first]
    names, *federations = after_torch(code, *others)
    assert federations == ["federation True"] * 2
    homes = {n: f"{fedlib._HOMES[n]}.{n}" for n in MODULES} | {
        "papers": "fedlib.papers"
    }
    homes["registry"] = "fedlib.registry"
    assert names == str([homes.get(n, n) for n in fedlib.__all__])
    assert set(fedlib.__all__) <= set(dir(fedlib))


def test_modules_are_attributes_and_unknown_names_are_not():
    assert fresh("import fedlib; print(fedlib.core.__name__)") == "fedlib.core\n"
    assert not hasattr(fedlib, "lossses")
    with pytest.raises(ImportError, match="lossses"):
        exec("from fedlib import lossses")
