"""Rules for imports: which part of the library may build on which."""

import ast
from pathlib import Path

import pytest

from fedlib.paths import ROOT

BLOCKS = {"with_protos", "with_knowledge"}  # they stand among the baselines
FLAT = ("shared_model", "personal_layers", "with_generator", "virtual_data")
METHODS = [
    path.relative_to(ROOT)
    for room in ("methods", "baselines")
    for path in sorted((ROOT / "fedlib" / room).glob("*.py"))
    if path.stem != "__init__"
] + [Path("fedlib") / f"{block}.py" for block in FLAT]


def imported(source: str) -> set[str]:
    """Return the dotted names that code imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def siblings(source: str) -> set[str]:
    """Return the methods and baselines among what code imports."""
    found = set()
    for name in imported(source):
        room, _, rest = name.removeprefix("fedlib.").partition(".")
        if name.startswith(".") or room in ("methods", "baselines", "registry"):
            found.add(name)
            if room == "baselines" and rest.split(".")[0] in BLOCKS:
                found.remove(name)
    return found


@pytest.mark.parametrize("path", METHODS, ids=str)
def test_neither_a_method_nor_a_block_imports_a_method(path: Path):
    """What two methods share is a block: an edit of one moves no number of another."""
    assert siblings((ROOT / path).read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "line",
    [
        "import fedlib.methods.fedpa",
        "from fedlib.methods import fedpa",
        "from fedlib.baselines import fedavg, with_protos",
        "from fedlib.baselines.fedavg import Client",
        "def late():\n    from fedlib.baselines.fedavg import METHOD",
        "from . import fedavg",
        "from ..methods.fedpa import merge",
        "from fedlib import registry",
        "from fedlib import methods",
    ],
)
def test_every_form_of_import_is_seen(line):
    assert siblings(line)


def test_blocks_are_no_siblings():
    assert not siblings("from fedlib.baselines import with_protos, with_knowledge")
    assert not siblings("from fedlib.baselines.with_protos import Client")
    assert not siblings("from fedlib import shared_model, protos\nimport torch")
