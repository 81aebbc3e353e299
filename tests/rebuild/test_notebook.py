"""What notebooks call: live source, checks, tables, and files with provenance."""

import ast
import hashlib
import importlib
import inspect
import json
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from pydantic import BaseModel, ConfigDict

from fedlib import papers
from fedlib.core import losses
from fedlib.core.log import Log
from fedlib.core.method import Context
from fedlib.draw.looks import RC
from fedlib.draw.plot import bars
from fedlib.draw.tables import render
from fedlib.methods import fedhpro, fedmps, fedpa, fedpg
from fedlib.rebuild import notebook, our_runs, written
from fedlib.runs.notes import Note
from fedlib.runs.results import Result
from fedlib.runs.spec import SettingError, Spec
from fedlib.support import paths


@pytest.fixture(autouse=True)
def closed():
    """Draw off screen, and leave no figure open and no style set."""
    mpl.use("Agg")
    with mpl.rc_context(), warnings.catch_warnings():
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what is displayed, as Markdown."""
    texts: list[str] = []
    monkeypatch.setattr(notebook, "display", lambda item: texts.append(item.data))
    return texts


def test_setup_sets_the_style_and_silences_warnings_only_in_ci(monkeypatch):
    monkeypatch.delenv("FEDLIB_CI", raising=False)
    mpl.rcParams["font.size"] = 20
    notebook.setup()
    assert mpl.rcParams["font.size"] == RC["font.size"]
    with pytest.warns(UserWarning, match="loud"):
        warnings.warn("loud", stacklevel=1)
    monkeypatch.setenv("FEDLIB_CI", "1")
    with warnings.catch_warnings(record=True) as heard:
        notebook.setup()
        warnings.warn("quiet", stacklevel=1)
    assert heard == []


def test_show_displays_the_source_below_the_name_of_its_file(shown):
    notebook.show(losses.supcon, losses.kl_to_teacher)
    head, _, rest = shown[0].partition("\n\n")
    assert head == "`fedlib/core/losses.py`"
    assert rest.startswith("```python\ndef supcon(")
    assert rest.endswith("\n```")
    text = Path(losses.__file__).read_text(encoding="utf-8")
    for block in shown:
        source = block.split("```python\n")[1].removesuffix("\n```")
        assert source in text
    assert len(shown) == 2


def test_show_in_brief_has_fields_and_code_and_no_more_than_a_summary(shown):
    things = (Context, losses.supcon, fedmps.Down, fedpg.make_images)
    notebook.show(*things, brief=True, marks="labels")
    for thing, block in zip(things, shown, strict=True):
        brief = block.split("```python\n")[1].removesuffix("\n```")
        (given,) = ast.parse(inspect.getsource(thing)).body
        (left,) = ast.parse(brief).body
        summary = (ast.get_docstring(given) or "").split("\n\n")[0]
        assert ast.get_docstring(left) == summary
        lines = [ast.dump(part) for part in given.body[1:]]
        if isinstance(given, ast.ClassDef):
            lines = [line for line in lines if not line.startswith("FunctionDef")]
        assert [ast.dump(part) for part in left.body[1:]] == lines
        assert not re.search(r"\n\n\n|\n$", brief)
    assert "    hp: HP  # the method's hyper-parameters\n" in shown[0]
    assert "def " not in shown[0]
    assert "# <--" in shown[1]


def test_show_names_the_file_of_a_function_not_of_its_decorator(shown):
    notebook.show(fedpg.make_images)
    assert shown[0].startswith("`fedlib/methods/fedpg.py`\n")
    assert "@torch.no_grad()" in shown[0]


def test_show_puts_the_tables_that_a_function_reads_above_it(shown):
    notebook.show(fedpg.anchor_distance)
    tables, function = shown[0].split("\n\ndef anchor_distance(")
    assert [
        line.split(" ")[0] for line in tables.split("\n") if line[:1].isupper()
    ] == [
        "ABSENT",
        "OVER_CLASSES",
    ]
    assert '    "zeros": lambda logits, known: logits,\n' in tables
    assert "# Eq. (6)" in function


def marked(block: str) -> list[str]:
    """Return the lines behind which an arrow stands, without it."""
    lines = [line for line in block.splitlines() if line.endswith(" <--")]
    return [line.removesuffix(" <--").removesuffix("  #").strip() for line in lines]


def test_show_marks_the_statement_that_a_text_begins_or_ends(shown):
    """A line in the middle is marked alone; tables and docstrings are not."""
    notebook.show(fedpa.client, marks="Eq. (9)")
    term = '"supervised": cross_entropy(out.logits, batch.y),  # Eq. (9)'
    assert marked(shown[0]) == [term]
    notebook.show(fedmps.client, marks="Eq. (2)")
    assert marked(shown[1]) == [
        "total = (  # Eq. (2)",
        'terms["supervised"]',
        "+ hp.contrast_weight * contrastive",
        '+ hp.soft_weight * terms["soft"]',
        ")",
    ]
    notebook.show(fedmps.contrast, losses.supcon, marks=["Eq. (3)", "per_anchor = "])
    (line,) = marked(shown[2])
    assert line.endswith("# Eq. (3)")
    assert "SCALE = {  # Eq. (3)" in shown[2]  # the table, which has the text, too
    assert marked(shown[3]) == ["per_anchor = -log_share.sum(1) / count.clamp(min=1)"]
    notebook.show(losses.supcon, marks="labels")
    assert "    labels : Tensor\n        ``[M]`` class of each vector" in shown[4]


def test_show_marks_nothing_else(shown):
    notebook.show(fedpa.client)
    notebook.show(fedpa.client, marks="Eq. (9)")
    bare = [line.removesuffix(" <--") for line in shown[1].splitlines()]
    assert bare == shown[0].splitlines()
    assert shown[0] != shown[1]


def test_show_can_leave_out_what_is_not_marked(shown):
    """Signature, marked lines and those above them, in order; dots for the rest."""
    whole = inspect.getsource(fedhpro.class_gradients).splitlines()
    notebook.show(fedhpro.class_gradients, marks="Eq. (5)", above=2)
    lines = shown[0].split("```python\n")[1].removesuffix("\n```").splitlines()
    assert lines[:4] == [*whole[:3], "    ..."]
    assert whole[2].endswith(":")
    (place,) = [n for n, line in enumerate(whole) if "# Eq. (5)" in line]
    assert lines[4:] == [
        *whole[place - 2 : place],
        whole[place] + " <--",
        "    ...",
    ]
    notebook.show(fedhpro.mismatch, marks="Eq. (8)", above=99)  # its last line
    notebook.show(fedhpro.mismatch, marks="Eq. (8)")
    assert shown[1] == shown[2]


@pytest.mark.parametrize("given", [{"above": 1}, {"above": -1, "marks": "Eq. (5)"}])
def test_show_refuses_an_excerpt_of_nothing(shown, given):
    with pytest.raises(ValueError, match="^above: got .*, expected at least 0, and"):
        notebook.show(fedhpro.class_gradients, **given)
    assert shown == []


def test_show_refuses_a_mark_that_stands_nowhere(shown):
    with pytest.raises(ValueError, match=r"marks: \['Eq. \(99\)'\] stand in none"):
        notebook.show(fedpa.client, fedpa.fidelity, marks=["Eq. (5)", "Eq. (99)"])
    assert shown == []


@pytest.mark.parametrize(
    "backend", ["module://matplotlib_inline.backend_inline", "agg"]
)
def test_a_table_stands_below_what_its_cell_has_drawn(shown, monkeypatch, backend):
    """Where figures wait for the cell's end; elsewhere nothing is shown twice."""
    monkeypatch.setattr(plt, "get_backend", lambda: backend)
    monkeypatch.setattr(plt, "show", lambda: shown.append("figure"))
    notebook.table(pd.DataFrame({"a": [1]}))
    kinds = [text if text == "figure" else "table" for text in shown]
    assert kinds == ["figure", "table"][backend == "agg" :]


def test_show_follows_an_edit_and_dedents_methods(shown, tmp_path, monkeypatch):
    file = tmp_path / "edited_by_test.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file.write_text("def f():\n    return 1\n")
    module = importlib.import_module("edited_by_test")
    notebook.show(module.f)
    fence = "`" * 3
    later = f'class A:\n    def g(self):\n        """{fence}"""\n\n        return 2\n'
    file.write_text("def f():\n    return 12345\n\n\n" + later)
    importlib.reload(module)
    notebook.show(module.f, module.A.g)
    del sys.modules["edited_by_test"]
    assert "return 1\n```" in shown[0]
    assert "return 12345\n```" in shown[1]
    assert shown[2] == (
        f"`edited_by_test.py`\n\n````python\n"
        f'def g(self):\n    """{fence}"""\n\n    return 2\n````'
    )


def test_show_gives_no_host_path_and_refuses_what_has_no_source(shown):
    notebook.show(json.dumps)
    assert shown[0].startswith("`json`\n")
    with pytest.raises(TypeError, match=r"functions: got <built-in function len>"):
        notebook.show(len)  # pyright: ignore[reportArgumentType]


def test_check_prints_what_was_measured(capsys):
    notebook.check(0.8765, near=0.87, tol=0.02)
    notebook.check(torch.tensor(3), near=3, tol=0, label="clients")
    assert capsys.readouterr().out.splitlines() == [
        "ok: measured 0.8765, expected 0.87 +- 0.02",
        "ok: clients measured 3, expected 3 +- 0",
    ]


OFF = [0.9, 0.84, float("nan"), float("inf")]


@pytest.mark.parametrize("value", OFF)
def test_check_says_what_came_and_goes_on(value, capsys, monkeypatch):
    monkeypatch.delenv("FEDLIB_CI", raising=False)
    notebook.check(value, near=0.87, tol=0.02, label="accuracy")
    told = f"accuracy measured {value}, the text was written for 0.87 +- 0.02"
    assert capsys.readouterr().out == f"DIFFERENT: {told}\n"


@pytest.mark.parametrize("value", OFF)
def test_check_raises_in_ci(value, capsys, monkeypatch):
    monkeypatch.setenv("FEDLIB_CI", "1")
    with pytest.raises(AssertionError, match=f"accuracy got {value}, expected 0.87"):
        notebook.check(value, near=0.87, tol=0.02, label="accuracy")
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="tol: got -1"):
        notebook.check(1, near=1, tol=-1)


def test_table_has_fixed_digits_and_empty_cells(shown):
    df = pd.DataFrame(
        {
            "name": ["a|b", None],
            "n": [3, 4],
            "x": [0.12345, np.nan],
            "ok": [True, False],
        }
    ).rename_axis("round")
    notebook.table(df, digits=2)
    assert shown[0].splitlines() == [
        "| round | name | n | x | ok |",
        "| ---: | --- | ---: | ---: | ---: |",
        r"| 0 | a\|b | 3 | 0.12 | True |",
        "| 1 |  | 4 |  | False |",
    ]


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rounds: int = 3
    seeds: list[int] = [1]


def test_parameters_are_validated_with_a_suggestion():
    assert notebook.parameters(Settings, rounds="5").rounds == 5
    with pytest.raises(SettingError, match="did you mean 'rounds'"):
        notebook.parameters(Settings, ruonds=5)


CELL = 'preset = "quick"  # one\nrounds: int | None = 4  # T\nruns = {"a": 1}  # rows\n'


@pytest.fixture
def kernel(monkeypatch):
    """Give a shell that runs cells and keeps their text, as a kernel does."""
    # A shell puts itself in the place of ``__main__``, which new processes read.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    shell = InteractiveShell()

    def execute(*cells: str) -> dict[str, Any]:
        for cell in cells:
            shell.run_cell(cell, store_history=True)
        return notebook.settings(shell.user_ns)

    yield execute
    shell.reset()


def test_settings_are_the_parameters_as_they_stand_in_the_kernel(kernel):
    later = 'import math\nfedlib_x = 3\nprint("")', "width = 7", "%precision 3"
    found = kernel("scratch = 1", CELL, *later)
    assert found == {"preset": "quick", "rounds": 4, "runs": {"a": 1}}
    assert [*found] == ["preset", "rounds", "runs"]
    assert kernel("rounds = 9")["rounds"] == 9
    again = kernel(CELL.replace("rounds", "local_epochs"), *later)
    assert [*again] == ["preset", "local_epochs", "runs"]
    broken = kernel(CELL.replace("{", "{{"))  # no Python; the cell before holds
    assert broken == again


def test_settings_have_what_papermill_adds_known_or_not(kernel):
    injected = '# Parameters\npreset = "cpu"\nruonds = 3\n'
    found = kernel(CELL, injected, "unrelated = 1")
    assert found == {"preset": "cpu", "rounds": 4, "runs": {"a": 1}, "ruonds": 3}
    assert "ruonds" not in kernel(CELL, "x = 1", injected)  # not right behind it


def test_settings_need_an_executed_parameters_cell(kernel):
    with pytest.raises(SettingError, match="settings: found no executed cell"):
        kernel('preset = "quick"\nprint(preset)')
    with pytest.raises(SettingError, match="settings: found no executed cell"):
        notebook.settings()  # no kernel at all
    with pytest.raises(SettingError, match=r"settings: \['rounds'\] deleted"):
        kernel(CELL, "del rounds")


@pytest.fixture
def begun(kernel, monkeypatch):
    """Return what a parameters cell and papermill's leave behind ``setup``, as told."""

    def begin(artefact: str, cell: str, **injected: Any) -> dict[str, Any]:
        shell = InteractiveShell()
        monkeypatch.setattr(notebook, "get_ipython", lambda: shell)
        shell.run_cell(cell, store_history=True)
        if injected:
            code = "\n".join(f"{name} = {v!r}" for name, v in injected.items())
            shell.run_cell(f"# Parameters\n{code}", store_history=True)
        notebook.setup(artefact)
        return notebook.settings(shell.user_ns)

    return begin


TABLE = """preset: str = "quick"
datasets: list[str] = ["digits"]
runs: list[str] = ["local"]
seeds: list[int] = [1]
rounds: dict[str, int] = {"digits": 5}
local_epochs: "dict[str, int or None]" = {"digits": 1}
"""


@pytest.mark.parametrize(
    ("injected", "words"),
    [
        ({"rouns": 2}, "rouns: unknown parameter; did you mean 'rounds'"),
        ({"rounds": "many"}, "rounds: got 'many', expected an integer"),
        ({"rounds": {"digits": "many"}}, "rounds of digits: got 'many', expected an"),
        ({"rounds": {"digit": 3}}, "got a value for 'digit'; did you mean 'digits'"),
        ({"rounds": {"digits": 3, "fashoin": 3}}, "did you mean 'fashion'"),
        (
            {"datasets": ["digits", "fashion"]},
            "rounds has no value for 'fashion'; add one to {digits: 5}, or give one",
        ),
        ({"datasets": ["digts"]}, "dataset: got 'digts'; did you mean 'digits'"),
        ({"datasets": ["emnist"]}, "dataset: got 'emnist', expected one of"),
        ({"preset": "cpuu"}, "preset: got 'cpuu'; did you mean 'cpu'"),
        ({"runs": ["fedmsp"]}, "fedmsp"),
        ({"rounds": 0}, "rounds"),
    ],
)
def test_setup_stops_before_any_work_with_the_words_of_rebuild(begun, injected, words):
    with pytest.raises(SettingError, match=words.replace("{", "\\{")) as told:
        begun("fedmps/table3", TABLE, **injected)
    assert told.value._render_traceback_() == [f"SettingError: {told.value}"]
    assert str(told.value).startswith("fedmps/table3: ")
    assert not (paths.figures_dir() / "quick").exists()


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ({"per_clas": 5, "seed": 0}, "table3: picture: got 'per_clas'; did you mean"),
        ({"per_class": 5}, "table3: picture: got no 'seed', expected ['per_class"),
    ],
)
def test_a_wrong_key_of_a_picture_stops_before_the_runs(begun, picture, words):
    cell = TABLE + 'picture: dict = {"per_class": 40, "seed": 0}\n'
    with pytest.raises(SettingError, match=re.escape(words)):
        begun("fedmps/table3", cell, picture=picture)
    assert begun("fedmps/table3", cell, picture={"seed": 1, "per_class": 5})
    panels = TABLE + 'picture: dict = {"imbalance 1$": "no long tail"}\n'
    other = {"imbalance 9": "long tail"}
    assert begun("fedmps/table3", panels, picture=other)["picture"] == other


def test_setup_gives_each_parameter_its_type(begun):
    both = {"datasets": "[digits, fashion]", "local_epochs": None}
    found = begun("fedmps/table3", TABLE, rounds="3", **both)
    assert found["rounds"] == {"digits": 3, "fashion": 3}
    assert found["local_epochs"] == {"digits": None, "fashion": None}
    assert found["datasets"] == ["digits", "fashion"]
    yaml, json_ = "{digits: 2, fashion: 1e1}", '{"digits": 2, "fashion": 10}'
    spelled = [begun("fedmps/table3", TABLE, rounds=t, **both) for t in (yaml, json_)]
    assert spelled[0] == spelled[1]
    assert spelled[0]["rounds"] == {"digits": 2, "fashion": 10}
    own = begun("fedmps/table3", TABLE + "seeds = __import__('numpy').arange(2)\n")
    assert own["seeds"] == [0, 1]
    with pytest.raises(SettingError, match="seeds: got range"):
        begun("fedmps/table3", TABLE + "seeds = range(2)\n")


FIG3 = """preset: str = "quick"
datasets: list[str] = ["digits"]
ways: int = 3
seed: int = 1234
"""


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ({"preset": "cpu", "datasets": ["cifar10", "fashion"]}, "cpu"),
        ({"preset": "cpu", "datasets": "[cifar10, fashion]", "ways": "3"}, "cpu"),
        ({"preset": "cpu", "datasets": ["fashion", "cifar10"]}, "changed/cpu"),
        ({"preset": "cpu", "datasets": ["fashion"], "ways": 4}, "changed/cpu"),
        ({"ways": 4}, "quick"),
    ],
)
def test_changed_parameters_write_to_a_folder_of_their_own(
    begun, capsys, given, folder
):
    """``-p ways 4`` at the preset ``cpu`` drew over the committed figure."""
    preset = begun("fedmps/fig3", FIG3, **given)["preset"]
    home = paths.figures_dir() / folder / "fedmps"
    why = f"Files go to {home}: parameters are not those of params/cpu/fedmps/fig3.yaml"
    assert (why in capsys.readouterr().out) == (folder != preset)
    notebook.artefact("fedmps", "fig3", preset).table(pd.DataFrame({"n": [1]}))
    written = paths.figures_dir().rglob("*.csv")
    assert [*written] == [home / "fig3.csv"]
    mine = notebook.artefact("mine", "fig3", preset)  # of no notebook of ours
    assert mine._home() == paths.figures_dir() / preset / "mine"


def test_setup_says_when_figures_cannot_be_written(begun, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLIB_FIGURES", str(tmp_path / "file"))
    with pytest.raises(SettingError, match="figures: cannot write to"):
        begun("fedmps/table3", TABLE)


def test_setup_of_a_walkthrough_checks_what_papermill_adds(begun, monkeypatch):
    monkeypatch.setattr(notebook, "settings", lambda known: known)
    cell = "rounds = 3\nwidth = 0.5\n"
    assert "width" in begun("", cell)
    assert begun("", cell, rounds="4")["rounds"] == 4
    with pytest.raises(SettingError, match="ronds: unknown parameter; did you mean"):
        begun("", cell, ronds=2)


def fake_result(seed: int) -> Any:
    """Return a run of ten clients, right in 1, 3 and 2 of 4 samples in its rounds."""
    spec = papers.fedmps("digits", "fedmps", seed=seed, rounds=4)
    right = torch.tensor([[1], [3], [2]]).expand(3, 10)
    log = {
        "evaluated": torch.tensor([1, 2, 4]),
        "samples": torch.full((1, 10), 4),
        "accuracy/personal/nearest_own": right,
        "accuracy/personal/head_all": right * 0,
    }
    return Result(spec, f"key{seed}", Log.of(log))


DATA: Any = SimpleNamespace(name="digits", title="Digits", fingerprint="abc")


def write_all(settings: Any) -> dict[str, str]:
    art = notebook.artefact("fedmps", "table3", "quick")
    df = pd.DataFrame({"method": ["fedmps", "local"], "accuracy": [0.8, 0.5]})
    art.figure(*bars(df, x="method", y="accuracy"), suffix="bars")
    art.table(df)
    results = [fake_result(2), fake_result(1)]
    art.provenance(
        results,
        settings,
        [DATA],
        notes=[Note("reduced", "4 of 500 rounds"), "a remark"],
    )
    home = paths.figures_dir() / "quick" / "fedmps"
    files = sorted(p for p in home.iterdir())
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_artefact_writes_the_named_files_with_equal_bytes_each_time():
    first = write_all({"rounds": 4})
    assert list(first) == [
        "table3.csv",
        "table3.json",
        "table3.md",
        "table3.tex",
        "table3_bars.csv",
        "table3_bars.pdf",
        "table3_bars.png",
    ]
    assert write_all({"rounds": 4}) == first


def test_provenance_says_where_the_numbers_come_from():
    write_all(Settings(rounds=4, seeds=[1, 2]))
    path = paths.figures_dir() / "quick" / "fedmps" / "table3.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    versions = record.pop("versions")
    assert set(versions) == {"python", "torch", "numpy", "fedlib", "lock"}
    assert versions["torch"] == torch.__version__
    run = {"dataset": "digits", "method": "fedmps", "rounds": 4}
    run["accuracy"] = {
        **{"model": "personal", "rule": "nearest_own", "data": "clients"},
        **{"last": 50.0, "best": 75.0, "best_round": 2, "mean_last5": 50.0},
    }
    for found in record["runs"]:  # all settings: the same run can be made again of them
        assert Spec.of(**found.pop("spec")) == fake_result(found["seed"]).spec
    assert record == {
        "artefact": "fedmps/table3",
        "preset": "quick",
        "settings": {"rounds": 4, "seeds": [1, 2]},
        "notes": [
            {"kind": "reduced", "text": "4 of 500 rounds"},
            {"kind": "remark", "text": "a remark"},
        ],
        "seeds": [1, 2],
        "runs": [run | {"key": "key2", "seed": 2}, run | {"key": "key1", "seed": 1}],
        "data": [{"name": "digits", "title": "Digits", "fingerprint": "abc"}],
    }


def test_runs_that_count_messages_have_no_accuracy_to_count():
    """Two rounds of two hundred stood on the scoreboard as a cut run of Table II."""
    art = notebook.artefact("fedpa", "communication", "quick")
    art.provenance([fake_result(1)], messages_only=True)
    path = paths.figures_dir() / "quick" / "fedpa" / "communication.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert [run["accuracy"] for run in record["runs"]] == [None]
    assert our_runs.runs("quick") == {}
    art.provenance([fake_result(1)])
    assert list(our_runs.runs("quick")) == ["digits"]


def test_provenance_refuses_host_paths_and_objects():
    art = notebook.artefact("fedmps", "table3", "quick")
    with pytest.raises(ValueError, match="got a path below"):
        art.provenance(settings={"file": str(paths.ROOT / "params" / "a.yaml")})
    with pytest.raises(TypeError, match="got object, expected plain data"):
        art.provenance(settings={"x": object()})
    with pytest.raises(TypeError, match="notes: got 'reduced'"):
        art.provenance(notes="reduced")
    assert not paths.figures_dir().exists()


PRIVATE = [
    *(  # not spelled out: no tracked file may have a path of a person's machine
        text.replace("|", "/")
        for text in (
            "|home|someone|data|mnist.zip",
            "see |Users|someone|x.csv",
            "|root|.cache|fedlib",
            "|mnt|c|Users|someone",
        )
    ),
    "~/data",
    "~someone/data",
    "C:\\Users\\someone\\data",
    "d:/data/mnist",
    "\\\\server\\share\\data",
    "/Volumes/disk/data",
    "file:///etc/passwd",
]
PLAIN = ["w/o labels", "1/2", "a: b", "fedmps/table3", "x:\n1", "10 and/or 20", "~ 5"]
PLAIN += ["https://example.org/home/x", "a.b/root/c", "3:/4", "Eq. (3)/(4)"]


@pytest.mark.parametrize("text", PRIVATE)
def test_provenance_hides_everyones_paths(text):
    art = notebook.artefact("fedmps", "table3", "quick")
    for settings in ({"file": text}, {"files": [{text: 1}]}):
        with pytest.raises(ValueError, match="got a path below"):
            art.provenance(settings=settings)
    with pytest.raises(ValueError, match="got a path below"):
        art.provenance(notes=[f"data of {text}"])


def test_provenance_hides_the_places_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "of data"))
    art = notebook.artefact("fedmps", "table3", "quick")
    places = [*paths.data_dirs(), paths.cache_dir(), paths.figures_dir(), paths.ROOT]
    for place in places:
        for text in (str(place), f"{place}/a"):
            with pytest.raises(ValueError, match="got a path below"):
                art.provenance(notes=[text])


@pytest.mark.parametrize("text", PLAIN)
def test_provenance_keeps_what_is_no_path(text):
    notebook.artefact("fedmps", "table3", "quick").provenance(notes=[text])


def test_no_committed_provenance_has_a_private_path():
    found = sorted((paths.ROOT / "figures").glob("*/*/*.json"))
    assert len(found) > 9
    for path in found:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert not any(map(paths.private_path, written._texts(content))), path


def test_artefact_refuses_bad_names_and_a_table_over_a_figure():
    for paper, name, preset, argument in [
        ("../x", "a", "quick", "paper"),
        ("fedmps", "a/b", "quick", "name"),
        ("fedmps", "a", "fast", "preset"),
    ]:
        with pytest.raises(ValueError, match=f"^{argument}: got"):
            notebook.artefact(paper, name, preset)
    art = notebook.artefact("fedmps", "fig4", "cpu")
    df = pd.DataFrame({"method": ["local"], "accuracy": [0.5]})
    drawn = bars(df, x="method", y="accuracy")
    art.figure(*drawn)
    art.figure(*drawn)  # a cell that runs twice
    with pytest.raises(ValueError, match="for a table, which a figure has already"):
        art.table(df)
    with pytest.raises(ValueError, match="suffix: got '../a'"):
        art.table(df, suffix="../a")


def test_artefact_tables_take_options_or_a_finished_table():
    art = notebook.artefact("fedmps", "table6", "cpu")
    df = pd.DataFrame({"method": ["a", "b"], "v": [0.5, 0.25], "n": [1, 2]})
    plain = art.table(df)
    assert plain.markdown.splitlines()[2:] == ["| a | 0.50 | 1 |", "| b | 0.25 | 2 |"]
    look = {"values": ["v"], "sd": {"v": "sd"}, "best": ["v"], "digits": 1}
    made = art.table(df.assign(sd=0.1), **look)
    assert "**0.5 ± 0.1**" in made.markdown
    assert art.table(made) is made
    home = paths.figures_dir() / "cpu" / "fedmps"
    assert (home / "table6.md").read_text(encoding="utf-8") == made._repr_markdown_()
    assert (home / "table6.tex").read_text(encoding="utf-8") == made.latex
    assert (home / "table6.csv").read_text(encoding="utf-8") == made.csv
    with pytest.raises(ValueError, match="options: got"):
        art.table(render(df, ["v"]), digits=1)
