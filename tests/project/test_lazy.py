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


def test_settings_of_papers_import_torch_and_no_library_of_a_reader_or_a_table():
    """``torch._dynamo``, torch's compiler, comes with torchvision's operators."""
    code = "from fedlib import Spec, papers; papers.fedmps('flowers', 'fedmps')"
    last = "import sys; print(' '.join(sys.modules))"
    found = set(fresh(f"{code}\n{last}").split())
    assert "torch" in found
    heavy = {"torchvision", "pandas", "scipy", "sklearn", "matplotlib", "pyarrow"}
    assert not found & (heavy | {"torch._dynamo", "papermill", "IPython"})


def test_a_run_imports_what_its_data_need_and_no_other_reader():
    code = "from fedlib import data; data.load('noise')"
    found = imported_by(code)
    assert "torch" in found
    assert not found & {"torchvision", "sklearn", "scipy", "pandas", "pyarrow"}


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


def test_every_public_name_is_there_and_of_its_home():
    code = "import fedlib; print([getattr(fedlib, n).__name__ for n in fedlib.__all__])"
    homes = {n: f"{fedlib._HOMES[n]}.{n}" for n in MODULES} | {
        "papers": "fedlib.papers"
    }
    homes["registry"] = "fedlib.registry"
    assert fresh(code) == f"{[homes.get(n, n) for n in fedlib.__all__]}\n"
    assert set(fedlib.__all__) <= set(dir(fedlib))


def test_modules_are_attributes_and_unknown_names_are_not():
    assert fresh("import fedlib; print(fedlib.core.__name__)") == "fedlib.core\n"
    assert not hasattr(fedlib, "lossses")
    with pytest.raises(ImportError, match="lossses"):
        exec("from fedlib import lossses")


@pytest.mark.parametrize(
    "first", ["import fedlib.runs.federation", "import fedlib.runs.runner"]
)
def test_federation_is_the_function_whatever_was_imported_before(first):
    name = "name = fedlib.federation.__name__"
    module = "from fedlib.runs.federation import Federation as F"
    told = "print(name, F is fedlib.Federation)"
    assert fresh("\n".join([first, name, module, told])) == "federation True\n"
