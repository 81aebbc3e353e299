"""Notebook parameters: the tagged cell, typed values, refused names (A18, A19)."""

import ast
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from papermill.translators import PythonTranslator

from fedlib.rebuild import artefacts, parameters
from fedlib.rebuild.parameters import declared, resolve
from fedlib.runs.spec import SettingError
from fedlib.support import paths

SOURCE = """
preset: str = "quick"  # which folder of params/
rounds = 20  # T
lr: float = 0.1
deterministic = True
alphas = [0.1, 1.0]
seeds = [1, 2]
methods = ["fedmps"]
target = None
limit: float | None = None
extra: list[float] = []
"""


def notebook(folder: Path, *tagged: str) -> Path:
    """Write a notebook with one tagged cell per source."""
    cells = [nbformat.v4.new_code_cell("import os")]
    for source in tagged:
        cell = nbformat.v4.new_code_cell(source)
        cell.metadata["tags"] = ["parameters"]
        cells.append(cell)
    path = folder / "one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.fixture
def known(tmp_path: Path) -> dict[str, parameters.Parameter]:
    return declared(notebook(tmp_path, SOURCE))


def test_defaults_keep_order_and_type(known):
    assert list(resolve(known).items()) == [
        ("preset", "quick"),
        ("rounds", 20),
        ("lr", 0.1),
        ("deterministic", True),
        ("alphas", [0.1, 1.0]),
        ("seeds", [1, 2]),
        ("methods", ["fedmps"]),
        ("target", None),
        ("limit", None),
        ("extra", []),
    ]


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("lr", "1e-3", 0.001),
        ("lr", 1, 1.0),
        ("lr", "2", 2.0),
        ("rounds", "5", 5),
        ("rounds", "1e3", 1000),
        ("rounds", 7.0, 7),
        ("deterministic", "false", False),
        ("deterministic", "OFF", False),
        ("deterministic", "no", False),
        ("deterministic", 0, False),
        ("deterministic", "yes", True),
        ("deterministic", 1, True),
        ("alphas", "[0.1,0.5]", [0.1, 0.5]),
        ("alphas", "[1]", [1.0]),
        ("alphas", ["1e-3", 2], [0.001, 2.0]),
        ("alphas", "[]", []),
        ("alphas", np.array([0.5, 2]), [0.5, 2.0]),
        ("lr", np.float32(0.5), 0.5),
        ("seeds", np.array([3, 4]), [3, 4]),
        ("seeds", "[3, 4]", [3, 4]),
        ("methods", "['fedavg', 'local']", ["fedavg", "local"]),
        ("methods", "[fedavg, local]", ["fedavg", "local"]),
        ("preset", "5", "5"),
        ("target", "None", None),
        ("target", None, None),
        ("target", "0.5", 0.5),
        ("target", "plain", "plain"),
        ("limit", "None", None),
        ("limit", "1e-2", 0.01),
        ("extra", "[1]", [1.0]),
    ],
)
def test_values_take_the_type_of_the_default(known, name, given, wanted):
    value = resolve(known, {name: given})[name]
    assert value == wanted
    assert type(value) is type(wanted)
    if isinstance(wanted, list):
        assert [type(item) for item in value] == [type(item) for item in wanted]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("lr", "fast", "a finite number"),
        ("lr", "nan", "a finite number"),
        ("lr", True, "a finite number"),
        ("lr", None, "a finite number"),
        ("lr", "None", "a finite number"),
        ("lr", [0.1], "a finite number"),
        ("rounds", 5.5, "an integer"),
        ("rounds", "5.5", "an integer"),
        ("rounds", True, "an integer"),
        ("rounds", "five", "an integer"),
        ("deterministic", "maybe", "true or false"),
        ("deterministic", "", "true or false"),
        ("deterministic", 2, "true or false"),
        ("deterministic", 0.0, "true or false"),
        ("deterministic", None, "true or false"),
        ("alphas", 0.1, "a list, each a finite number"),
        ("alphas", "0.1,0.5", "a list, each a finite number"),
        ("alphas", (0.5,), "a list, each a finite number"),
        ("alphas", "(0.5,)", "a list, each a finite number"),
        ("alphas", ["a"], "a list, each a finite number"),
        ("seeds", [1, 2.5], "a list, each an integer"),
        ("methods", [1], "a list, each text"),
        ("methods", "fedavg", "a list, each text"),
        ("preset", 5, "text"),
        ("preset", None, "text"),
        ("limit", "high", "a finite number or None"),
        ("extra", "[x]", "a list, each a finite number"),
    ],
)
def test_what_does_not_fit_is_refused(known, name, given, expected):
    with pytest.raises(SettingError) as refused:
        resolve(known, {name: given})
    assert str(refused.value) == f"{name}: got {given!r}, expected {expected}"


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("seeds", [1, 2, 1], "got [1, 2, 1], in which 1 stands twice"),
        ("seeds", "[1, 1.0]", "got [1, 1], in which 1 stands twice"),
        ("methods", ["fedmps", "fedmps"], "in which 'fedmps' stands twice"),
    ],
)
def test_what_stands_twice_in_a_list_is_refused(known, name, given, words):
    """Two runs of one seed are one, and had a spread of 0 in a table of two."""
    with pytest.raises(SettingError, match=rf"^{name}: .*{re.escape(words)}"):
        resolve(known, {name: given})


def test_what_stands_twice_in_a_table_of_lists_is_refused(tmp_path):
    source = 'sweeps: dict = {"ways": {"digits": [3]}}\n'
    inside = declared(notebook(tmp_path, source))
    with pytest.raises(SettingError, match="sweeps: ways: digits: .*3 stands twice"):
        resolve(inside, {"sweeps": {"ways": {"digits": [3, 3]}}})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("('\"', '\\\\')", "tuple"),
        ("[1, (2,)]", "tuple"),
        ("{'a': {'b': (1,)}}", "tuple"),
        ("{1, 2}", "set"),
        ("b'x'", "bytes"),
        ("1 + 2j", "complex"),
        ("{1: 2}", "dict"),
        ("{None: 2}", "dict"),
        ("1e999", "float"),
    ],
)
def test_only_what_json_holds_crosses_into_a_notebook(known, text, kind):
    with pytest.raises(SettingError, match=rf"^target: got .* of type {kind}; "):
        resolve(known, {"target": text})


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{[]: 1}", "9" * 5000, "-" * 100_000 + "1"]
)
def test_text_that_costs_more_than_it_shows_stays_text(known, text):
    assert resolve(known, {"target": text}) == resolve(known, {}) | {"target": text}


def test_values_without_end_are_refused_by_name(known):
    endless: list = []
    endless.append(endless)
    for value in (endless, 10**5000, "\ud800", ["\udfff"]):
        with pytest.raises(SettingError, match="^target: "):
            resolve(known, {"target": value})


def test_what_yaml_makes_of_dates_sets_and_bytes_is_refused(known):
    for line in ("2020-01-02", "!!set {a, b}", "!!binary aGVsbG8="):
        loaded = yaml.safe_load(f"target: {line}")
        with pytest.raises(SettingError, match="^target: got "):
            resolve(known, loaded)


HOSTILE = st.text("\"\\'\n\r\t #;(){}[],x\u2028\x00")
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | HOSTILE
NESTED = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(HOSTILE, inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(repr)
    ),
    max_leaves=8,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NESTED)
def test_what_papermill_writes_into_the_cell_is_a_literal_of_the_same_value(
    known, value
):
    """Nothing that a user types becomes code: it is refused, or comes back equal."""
    try:
        values = resolve(known, {"target": value})
    except SettingError:
        return
    cell = PythonTranslator.codify(values)
    found = {
        line.targets[0].id: ast.literal_eval(line.value)
        for line in ast.parse(cell).body
        if isinstance(line, ast.Assign)
    }
    assert found == values
    assert len(ast.parse(cell).body) == len(values)


def test_yaml_and_command_line_agree(known):
    """A18: YAML reads ``1e-3`` as text, the command line everything."""
    text = "lr: 1e-3\ndeterministic: false\nalphas: [0.1, 0.5]\ntarget: null\n"
    spelled = {"lr": "1e-3", "deterministic": "false"}
    spelled |= {"alphas": "[0.1,0.5]", "target": "None"}
    loaded = yaml.safe_load(text)
    assert loaded["lr"] == "1e-3"
    both = [resolve(known, layer) for layer in (loaded, spelled)]
    assert both[0] == both[1]
    assert both[0]["lr"] == 0.001
    assert both[0]["deterministic"] is False


def test_later_layers_win(known):
    assert resolve(known, {"rounds": 30, "lr": 1}, {"rounds": "40"})["rounds"] == 40


def test_unknown_name_is_refused_with_a_suggestion(known):
    with pytest.raises(SettingError, match="ruonds: .*did you mean 'rounds'"):
        resolve(known, {"ruonds": 5})


@pytest.mark.parametrize("sources", [[], ["a = 1", "b = 2"]])
def test_exactly_one_tagged_cell(tmp_path, sources):
    with pytest.raises(SettingError, match=f"got {len(sources)} cells tagged"):
        declared(notebook(tmp_path, *sources))


@pytest.mark.parametrize(
    "line",
    ["b = a * 2", "b = open('x')", "import os", "a += 1", "a, b = 1, 2", "b: int"],
)
def test_only_literals(tmp_path, line):
    with pytest.raises(SettingError, match="line 2: .*expected name = literal"):
        declared(notebook(tmp_path, f"a = 1\n{line}"))


def test_default_against_its_own_annotation(tmp_path):
    with pytest.raises(SettingError, match="a: got 'x', expected an integer"):
        declared(notebook(tmp_path, "a: int = 'x'"))


def test_none_is_legal_where_the_annotation_says_so(tmp_path):
    found = declared(notebook(tmp_path, "a: float | None = 0.5\nb: float = 0.5"))
    assert resolve(found, {"a": "None"})["a"] is None
    assert resolve(found, {"a": None})["a"] is None
    assert resolve(found, {"a": "1e-3"}) == {"a": 0.001, "b": 0.5}
    with pytest.raises(SettingError, match="a: got 'x', expected a finite number or"):
        resolve(found, {"a": "x"})
    with pytest.raises(SettingError, match="b: got 'None', expected a finite number$"):
        resolve(found, {"b": "None"})


def test_broken_files_are_refused(tmp_path):
    with pytest.raises(SettingError, match="parameters line 1"):
        declared(notebook(tmp_path, "a = = 1"))
    path = tmp_path / "text.ipynb"
    path.write_text("not json")
    with pytest.raises(SettingError, match=r"text\.ipynb: not a notebook"):
        declared(path)


def test_every_notebook_of_the_project_declares_its_parameters():
    files = [
        path
        for path in paths.NOTEBOOKS.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts
    ]
    for path in files:
        declared(path)


def test_every_artefact_of_the_project_is_complete_at_every_preset():
    for name in artefacts.names():
        for preset in artefacts.PRESETS:
            artefact = artefacts.prepare(name, preset)
            assert artefact.parameters["preset"] == preset
            assert artefact.folder == preset


def test_a_key_that_a_table_lacks_is_named_with_a_near_one():
    """C10: "its runs need a parameter 'digits', which the notebook lacks"."""
    told = "rounds: got a value for 'digitz'; did you mean 'digits'"
    with pytest.raises(SettingError, match=told):
        artefacts.prepare("fedmps/table3", "quick", {"rounds": '{"digitz": 40}'})


@pytest.mark.parametrize("text", ["010", "1_0", "&a 5", "5, digits: 6"])
def test_what_a_file_may_not_say_the_command_line_may_not_either(text):
    """C-style 010 would be 8 rounds."""
    with pytest.raises(SettingError, match=r"line 1: .*expected|digits stands twice"):
        artefacts.prepare("fedmps/table3", "quick", {"rounds": f"{{digits: {text}}}"})


def test_numpys_numbers_are_taken_as_numbers():
    """C11: "the truth value of an array is ambiguous"."""
    seeds = np.array([1, 2])
    found = artefacts.prepare("fedmps/table3", "quick", {"seeds": seeds})
    assert found.parameters["seeds"] == [1, 2]
