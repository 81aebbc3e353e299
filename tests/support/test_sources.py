"""Keys: what is hashed of the code, through every form of import, and what is not."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType

import pytest

from fedlib import papers, registry
from fedlib.partitions import dirichlet
from fedlib.runs import address, runner
from fedlib.runs.spec import Spec
from fedlib.support import sources
from fedlib.support.paths import ROOT
from fedlib.support.sources import SourceError
from tests.conftest import TOY, TOY_TRAINING, copied, toy_net

METHODS = list(registry.METHODS)
SCHEMES = [
    {"scheme": "nway_kshot"},
    {"scheme": "lda", "alpha": 5.0},
    {"scheme": "two_class"},
]


def small(method: str = "fedmps", **changes) -> Spec:
    """Return a run of the digits."""
    toy = {"clients": 4, "rounds": 2, "net": toy_net(method)} | changes
    toy["hp"] = TOY.get(method, {}) | toy.get("hp", {})
    if method in TOY_TRAINING:
        toy.setdefault("training", TOY_TRAINING[method].model_dump())
    return papers.fedmps("digits", method, **toy)


def keys() -> dict[str, str]:
    """Return keys of all methods, and of one under other schemes."""
    found = {name: address.key(small(name)) for name in METHODS}
    for drawn in SCHEMES[1:]:
        found[drawn["scheme"]] = address.key(small("local", partition=drawn))
    return found


def codes() -> dict[str, str]:
    """Return hashes of the code of all methods, and of one with another net."""
    found = {name: address.code_of(small(name)).hash for name in METHODS}
    return found | {"digits_bn": address.code_of(small("local", net="digits_bn")).hash}


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return codes()


# Edits of fedlib


NO_NUMBER = [
    # a preset for a sixth paper, in the row of a baseline
    ("fedlib.papers.fedpg.presets", '"fedprox": {', '"fedprox": {"sixth": {}, '),
    ("fedlib.core.nets", "NETS = {", 'NETS = {\n    "more": _Kind(_lenet),'),
    ("fedlib.core.nets", "Linear(2048, classes)", "Linear(2049, classes)"),
    ("fedlib.registry", "METHODS = {", 'METHODS = {\n    "more": "fedlib.more",'),
    ("fedlib.core.losses", "def supcon", "def more():\n    return 1\n\ndef supcon"),
    ("fedlib.core.training", '"""How a client trains in', '"""How one trains in'),
    ("fedlib.core.local", "import torch\n", "import pandas\nimport torch\n"),
    ("fedlib.core.local", "from fedlib.core.tree import Tree, concat",
     "from fedlib.core.tree import State as Unused\n"
     "from fedlib.core.tree import Tree, concat"),
    ("fedlib.partitions.users", "def users(", "MORE = 1\n\n\ndef users("),
    ("fedlib.partitions.common", "RETRIES = 1000", "RETRIES = 999"),
    ("fedlib.support.paths", 'user_cache_path("fedlib")', 'user_cache_path("o")'),
]  # fmt: skip


def test_edits_that_move_no_number_change_no_key(before, edit):
    for each in NO_NUMBER:
        edit(*each)
    assert codes() == before


@pytest.mark.parametrize(
    ("module", "old", "new", "changed"),
    [
        ("fedlib.core.layers", "return ", "return 1 and ", None),
        ("fedlib.core.shards", "counted_from = 0 if", "counted_from = 1 if", None),
        ("fedlib.core.training", "Field(default=0.01", "Field(default=0.02", None),
        ("fedlib.core.rng", "return ", "return 1 and ", None),
        ("fedlib.core.losses", "logits / temperature", "logits * temperature",
         {"fedmps", "fedntd", "fedgkd", "fedgen", "fedgmkd"}),
        ("fedlib.baselines.fedprox", "default=0.01", "default=0.02", {"fedprox"}),
        ("fedlib.baselines.fedprox", "0.5 * ", "0.6 * ", {"fedprox"}),
        ("fedlib.core.nets", "partial(_digits, norm=True)", "partial(_digits, norm=1)",
         {"digits_bn"}),
    ],
)  # fmt: skip
def test_an_edit_of_what_computes_changes_these_keys(
    before, edit, module, old, new, changed
):
    edit(module, old, new)
    after = codes()
    found = {name for name in before if before[name] != after[name]}
    assert found == (set(before) if changed is None else changed)


def test_a_scheme_counts_by_the_partition_that_it_draws(monkeypatch):
    before, split = keys(), dirichlet.split_by
    monkeypatch.setattr(dirichlet, "split_by", lambda i, p: split(i[::-1], p))
    monkeypatch.setattr(address, "_drawn", {})
    after = keys()
    assert {name for name in before if before[name] != after[name]} == {"lda"}


def test_what_a_client_owns_is_of_its_partition(monkeypatch):
    drawn, before = (
        address.partition_of(small(), address.load("digits")),
        address.key(small()),
    )
    other = drawn._replace(owns=~drawn.owns)
    assert other.fingerprint == drawn.fingerprint
    monkeypatch.setattr(address, "partition_of", lambda *_: other)
    monkeypatch.setattr(address, "_drawn", {})
    assert address.key(small()) != before


def test_a_partition_that_cannot_be_drawn_has_a_key_and_no_run():
    spec = small(partition={"ways": 11})
    assert runner.pending([spec]) == [spec]
    with pytest.raises(ValueError, match="ways"):
        runner.run(spec)


# The strongest oracle: what runs is what is hashed

NOT_HASHED = {  # where things are stored, shown and checked; who draws and reads data
    "fedlib",
    "fedlib.runs.runner",
    "fedlib.runs.address",
    "fedlib.runs.checkpoints",
    "fedlib.runs.on_disk",
    "fedlib.runs.published",
    "fedlib.runs.checks",
    "fedlib.runs.device",
    "fedlib.runs.own",
    "fedlib.support.progress",
    "fedlib.support.paths",
    "fedlib.support.files",
    "fedlib.runs.spec",
    "fedlib.registry",
    "fedlib.partitions",
}
NOT_HASHED_ROOMS = ("fedlib.data.", "fedlib.partitions.", "fedlib.support.sources.")


@cache
def definitions(path: Path) -> dict[int, str]:
    """Return for each line the definition at the top level that it belongs to."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
        names = [t.id for t in targets if isinstance(t, ast.Name)]
        name = getattr(node, "name", None) or (names or [""])[0]
        marks = getattr(node, "decorator_list", [])
        begin = min([node.lineno, *(mark.lineno for mark in marks)])
        found |= dict.fromkeys(range(begin, (node.end_lineno or 0) + 1), name)
    return found


def executed(act: Callable[[], object]) -> set[tuple[str, str]]:
    """Return the functions of fedlib that run: (module, definition)."""
    package, codes, before = ROOT / "fedlib", set(), sys.gettrace()

    def note(frame: FrameType, event: str, _: object) -> None:  # of calls alone
        codes.add(frame.f_code)

    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(before)
    found = set()
    for code in codes:
        path = Path(code.co_filename)
        if code.co_name == "<module>" or not path.is_relative_to(package):
            continue
        inner = path.relative_to(package).with_suffix("").parts
        module = ".".join(("fedlib", *inner)).removesuffix(".__init__")
        found.add((module, definitions(path)[code.co_firstlineno]))
    return found


def variants(name: str) -> list[Spec]:
    """Return small runs of a method, one as published and one as released."""
    few = {"clients": 2, "partition": {"shots": 8, "test_shots": 4}}
    found = [small(name, **few)]
    if "variant" in registry.method(name).hp.model_fields:
        found.append(small(name, hp={"variant": "reference"}, **few))
    return found


@pytest.mark.parametrize("name", METHODS)
def test_every_function_that_a_run_executes_is_hashed(name):
    for spec in variants(name):
        address.key(spec)
        ran = executed(lambda spec=spec: runner.run(spec))
        parts = {re.sub(r"\[.*", "", part) for part in address.code_of(spec).parts}
        missing = {
            f"{module}.{definition}"
            for module, definition in ran
            if module not in NOT_HASHED and not module.startswith(NOT_HASHED_ROOMS)
        } - parts
        assert missing == set()
        method = {d for module, d in ran if module == registry.module(name)}
        assert method or name == "fedavg"  # which is made of a block


@pytest.mark.parametrize(
    "changes",
    [
        {"min_count": 3},
        {"imbalance": 3.0},
        {"test": "full"},
        {"test": "pooled", "participation": 0.5},
        {"transform": {"padding": 1, "flip": True, "crop_test": True, "side": 8}},
    ],
    ids=str,
)
def test_every_function_that_other_settings_execute_is_hashed(changes):
    spec = small("fedproto", **changes)
    ran = executed(lambda: runner.run(spec))
    parts = {re.sub(r"\[.*", "", part) for part in address.code_of(spec).parts}
    hashed = [m for m in ran if m[0] not in NOT_HASHED]
    hashed = [m for m in hashed if not m[0].startswith(NOT_HASHED_ROOMS)]
    assert {".".join(each) for each in hashed} - parts == set()


def test_what_is_not_followed_exists():
    for dotted in sources.NOT_FOLLOWED:
        try:
            import_module(dotted)
        except ModuleNotFoundError:
            module, _, name = dotted.rpartition(".")
            assert hasattr(import_module(module), name), dotted


# A method of somebody else

METHOD = """
{line}
from fedlib.blocks import shared_model
from fedlib.core.losses import cross_entropy
from fedlib.core.method import Losses

{more}

def client(ctx, down, mine, shards):
    def loss(state, batch):
        {inside}
        logits = ctx.net(state, batch.x, train=True).logits
        total = ({use})(cross_entropy(logits, batch.y))
        return Losses(total, {{"supervised": total}}, {{}})

    return shared_model.client_with(ctx, down, mine, shards, loss)


METHOD = shared_model.BASE._replace(name="mine", source="nobody", client=client)
"""
FILES = {
    "__init__": "from {p}.again import scaled as handed_on",
    "helper": "WEIGHT = 0.5\n\n\ndef scaled(x):\n    return WEIGHT * x",
    "again": "from {p}.helper import scaled",
    "stars": "from .helper import *",
    "table": "TABLE = {{}}\n\n\ndef add(f):\n    TABLE['one'] = f\n    return f",
    "joins": "from .helper import scaled\nfrom .table import TABLE\n"
    "TABLE.update(one=scaled)",
    "decorated": "from .table import add\nfrom . import helper\n\n\n"
    "@add\ndef one(x):\n    return helper.scaled(x)",
    "called": "from .table import add\nfrom . import helper\n_ = add(helper.scaled)",
    "patches": "from . import helper, plain\nplain.scaled = helper.scaled",
    "plain": "def scaled(x):\n    return x",
    "base": "class Base:\n    all = []\n\n    def __init_subclass__(cls):\n"
    "        Base.all.append(cls)",
    "inherits": "from .base import Base\nfrom .helper import scaled\n\n\n"
    "class One(Base):\n    @staticmethod\n    def one(x):\n        return scaled(x)",
}
# import line, use, and what else stands in the module or inside the function
FORMS = [
    ("from {p}.helper import scaled", "scaled"),
    ("from {p}.helper import scaled as f", "f"),
    ("import {p}.helper as h", "h.scaled"),
    ("import {p}.helper", "{p}.helper.scaled"),
    ("from {p} import helper", "helper.scaled"),
    ("from .helper import scaled", "scaled"),
    ("from . import helper as h", "h.scaled"),
    ("from .helper import *", "scaled"),
    ("from {p}.again import scaled", "scaled"),
    ("from {p}.stars import scaled", "scaled"),
    ("from {p} import handed_on", "handed_on"),
    ("from {p} import again", "again.scaled"),
    ("import {p}", "{p}.handed_on"),
    ("from . import helper", "getattr(helper, 'sca' + 'led')"),
    ("import importlib", "importlib.import_module('{p}.helper').scaled"),
    ("from importlib import import_module as get", "get('{p}.helper').scaled"),
    ("import {p}_beside", "{p}_beside.scaled"),
    ("", "scaled", "", "from .helper import scaled"),
    ("", "h.scaled", "", "import {p}.helper as h"),
    ("try:\n    from .helper import scaled\nexcept ImportError:\n    scaled = abs",
     "scaled"),
    ("from . import helper", "ALIAS", "ALIAS = helper.scaled"),
    ("from . import helper", "ONE['f']", "ONE = {'f': helper.scaled}"),
    ("from . import helper", "ONE['f']", "ONE = {}\nONE['f'] = helper.scaled"),
    ("from . import helper", "(lambda x: g(x))",
     "def g(x, f=helper.scaled):\n    return f(x)"),
    ("from . import helper", "Kind.f", "class Kind:\n    f = helper.scaled"),
    ("from . import helper", "Kind.f", "class Up:\n    f = helper.scaled\n\n\n"
     "class Kind(Up):\n    pass"),
    ("from . import joins, table", "table.TABLE['one']"),
    ("from .table import TABLE\nfrom . import decorated", "TABLE['one']"),
    ("from .table import TABLE\nimport {p}.called", "TABLE['one']"),
    ("from . import plain, patches", "plain.scaled"),
    ("from .base import Base\nfrom . import inherits", "Base.all[0].one"),
]  # fmt: skip


class Mine:
    """A package with a method, registered, and a module beside it."""

    count = 0

    def __init__(
        self, home: Path, line: str, use: str, more: str = "", inside: str = ""
    ):
        Mine.count += 1
        self.name, self.home = f"mine{Mine.count}", home / f"mine{Mine.count}"
        given = {"line": line, "use": use, "more": more, "inside": inside or "pass"}
        method = METHOD.format(**given).replace("{p}", self.name)
        self.home.mkdir()
        for name, text in (FILES | {"method": None}).items():
            text = method if text is None else text.replace("{{}}", "{}")
            text = text.replace("{p}", self.name)
            (self.home / f"{name}.py").write_text(text, encoding="utf-8")
        beside = home / f"{self.name}_beside.py"
        beside.write_text(f"from {self.name}.helper import scaled\n")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return a function that writes a package and registers its method."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(*form: str) -> Mine:
        made = Mine(tmp_path, *form)
        monkeypatch.setitem(registry.METHODS, "mine", ("Mine", f"{made.name}.method"))
        return made

    return write


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_helper_behind_every_form_of_import_is_hashed(mine, edit, form):
    made = mine(*form)
    before = address.code_of(small("mine")).hash
    assert import_module(f"{made.name}.method").METHOD.name == "mine"
    edit(f"{made.name}.helper", "WEIGHT * x", "WEIGHT + x")
    changed = address.code_of(small("mine")).hash
    assert changed != before
    edit(f"{made.name}.helper", "WEIGHT = 0.5", "WEIGHT = 0.25")
    assert address.code_of(small("mine")).hash not in (before, changed)


@pytest.mark.parametrize("form", [FORMS[0], FORMS[17]], ids=str)
def test_the_forms_compute(mine, form):
    """The packages above run: their halves of losses are what is logged."""
    mine(*form)
    half, whole = runner.run(small("mine")), runner.run(small("fedavg"))
    first = half.log.term["supervised"][0] / whole.log.term["supervised"][0]
    assert ((first > 0.4) & (first < 0.75)).all()


@pytest.mark.parametrize(
    ("line", "use", "told"),
    [
        ("import importlib", "importlib.import_module('{p}.' + 'helper').scaled",
         r"method.client: uses importlib.import_module"),
        ("from importlib import import_module as get", "get(str(1)).scaled",
         r"method.client: uses importlib.import_module"),
        ("import sys", "sys.modules['{p}.helper'].scaled", "uses sys.modules"),
        ("from . import helper", "eval('helper.scaled')", "uses eval"),
        ("from . import helper", "globals()['helper'].scaled", "uses globals"),
    ],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_by_name(mine, line, use, told):
    mine(line, use)
    with pytest.raises(SourceError, match=told):
        address.key(small("mine"))


def test_reading_a_version_hides_no_code(mine):
    mine("import importlib.metadata", "len(importlib.metadata.version('torch')) or min")
    assert address.code_of(small("mine")).hash


def test_moved_code_with_other_imports_has_the_same_key(mine):
    """The same definitions under other names of modules and forms of import."""
    one = mine("from {p}.helper import scaled", "scaled")
    before = address.key(small("mine"))
    again = mine("import {p}.inner.deep as d\nimport os", "d.scaled")
    assert again.name != one.name
    (again.home / "inner").mkdir()
    (again.home / "helper.py").rename(again.home / "inner" / "deep.py")
    (again.home / "helper.py").write_text("from .inner.deep import scaled\n")
    assert address.key(small("mine")) == before


def test_functions_that_change_places_change_the_key(mine):
    mine("from .helper import scaled\nfrom .plain import scaled as other", "scaled")
    before = address.key(small("mine"))
    mine("from .helper import scaled as other\nfrom .plain import scaled", "scaled")
    assert address.key(small("mine")) != before


# Files that change under a live process


def test_a_file_that_was_edited_after_its_import_is_refused(mine, own_cache):
    made = mine("import {p}.helper as helper", "helper.scaled")
    first = runner.run(small("mine"))
    helper = made.home / "helper.py"
    text = helper.read_text()
    helper.write_text('"""Another comment."""\n' + text)
    assert runner.run(small("mine")).key == first.key
    helper.write_text(text.replace("0.5", "0.75"))
    for ask in (runner.run, address.key, address.folder):
        with pytest.raises(SourceError, match=r"helper.py: changed since .* restart"):
            ask(small("mine"))
    assert address.key(small("fedavg"))  # which does not depend on it
    helper.write_text(text)
    assert runner.run(small("mine")).key == first.key
    helper.unlink()
    with pytest.raises(SourceError, match=r"helper.py: changed since"):
        address.key(small("mine"))


def test_a_module_that_was_edited_before_it_is_first_asked_for_is_refused(mine):
    made = mine("import {p}.helper as helper", "helper.scaled")
    import_module(f"{made.name}.method")  # by the user, unseen by the registry
    (made.home / "helper.py").write_text("def scaled(x):\n    return 2 * x\n")
    with pytest.raises(SourceError, match="changed since this process imported it"):
        address.key(small("mine"))


LIVE = """
import sys
from pathlib import Path
from fedlib import papers
from fedlib.runs import address

spec = papers.fedmps("digits", "fedprox", clients=4, rounds=1)
before = address.key(spec)
path = Path(sys.modules["fedlib.core.losses"].__file__)
text = path.read_text()
path.write_text(text.replace("count.clamp(min=1)", "count.clamp(min=2)", 1))
other = papers.fedmps("digits", "local", clients=4, rounds=1)
for spec, name in ((spec, "fedprox"), (other, "local")):
    try:
        print(name, address.key(spec) == before)
    except RuntimeError as error:
        print(name, error)
"""


def run_there(home: Path, code: str) -> list[str]:
    """Return the lines that code prints which imports the fedlib in a folder."""
    environment = os.environ | {"PYTHONPATH": str(home), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_live_process_refuses_edited_files_of_fedlib(tmp_path):
    copied(tmp_path)
    one, other = run_there(tmp_path, LIVE)
    told = "losses.py: changed since this process imported it: restart the kernel"
    assert told in one
    assert told in other


PRINTED = """
import json
from fedlib import papers, registry
from fedlib.runs import address
found = {name: address.key(papers.fedmps("digits", name)) for name in registry.METHODS}
print(json.dumps(found))
"""


def test_moving_a_module_to_a_sub_package_changes_no_key(tmp_path):
    """All modules that are imported from ``fedlib`` follow the one that moves."""
    here = {name: address.key(papers.fedmps("digits", name)) for name in METHODS}
    package = copied(tmp_path)
    (package / "attic").mkdir()
    (package / "attic" / "__init__.py").write_text('"""A room."""\n')
    moved = {"losses": "core", "shared_model": "blocks"}
    for name, room in moved.items():
        (package / room / f"{name}.py").rename(package / "attic" / f"{name}.py")

    def line_each(found: re.Match[str]) -> str:
        names = [name.strip() for name in found[2].strip("()").split(",")]
        rooms = ["attic" if n in moved else found[1] for n in names]
        pairs = zip(rooms, names, strict=True)
        return "".join(f"from fedlib.{room} import {n}\n" for room, n in pairs if n)

    for path in package.rglob("*.py"):
        text = before = path.read_text(encoding="utf-8")
        told = r"fedlib\.(?:core|blocks)\.(losses|shared_model)\b"
        text = re.sub(told, r"fedlib.attic.\1", text)
        told = r"^from fedlib\.(core|blocks) import (\([^)]*\)|.*)\n"
        text = re.sub(told, line_each, text, flags=re.MULTILINE)
        if text != before:
            path.write_text(text, encoding="utf-8")
    assert json.loads(run_there(tmp_path, PRINTED)[0]) == here
