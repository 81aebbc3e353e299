"""Rules for notebooks, and equations in their three places."""

import ast
import base64
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import papermill
import pytest
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from nbconvert import SlidesExporter
from PIL import Image

import fedlib
from fedlib import registry
from fedlib.papers import study
from fedlib.papers.ours import leaderboard, min_counts
from fedlib.rebuild import artefacts, notebook, parameters
from fedlib.support.paths import NOTEBOOKS, PARAMS, ROOT
from tools import refresh_notebooks

PAGES = sorted(NOTEBOOKS.glob("learn/*.ipynb"))
LEARN = PAGES + sorted(NOTEBOOKS.glob("learn/answers/*.ipynb"))
PAPERS = sorted(NOTEBOOKS.glob("papers/*/*.ipynb"))
PRESETS = ["quick", "cpu", "paper"]
# They step through runs themselves, so that the rebuild has none to make before.
MEASURED = {"fedpa/table5", "fedpg/table3"}
FORBIDDEN = re.compile(
    r"\.backward\(|optimi[sz]er\.step|sys\.path|!pip|%pip|[\"'](?:/|[A-Z]:\\)\w"
)


def names(paths: list[Path]) -> list[str]:
    return [p.relative_to(NOTEBOOKS).as_posix() for p in paths]


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize(("alpha", "smaller"), [(255, True), (254, False)])
def test_a_stored_picture_loses_an_idle_channel_and_no_pixel(alpha, smaller):
    noise = np.random.default_rng(0).integers(0, 256, (64, 48, 4), dtype=np.uint8)
    noise[..., 3] = 255
    noise[0, 0, 3] = alpha
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    png = base64.b64encode(file.getvalue()).decode()
    lean = refresh_notebooks.lean(png)
    assert (lean == png) != smaller
    shown = Image.open(io.BytesIO(base64.b64decode(lean))).convert("RGBA")
    assert np.array_equal(np.asarray(shown), noise)
    assert len(lean) < len(png) or not smaller


def test_there_are_notebooks():
    assert {"learn/00_start_here.ipynb", "learn/01_one_round.ipynb"} <= set(
        names(LEARN)
    )
    assert len(PAPERS) >= 3


@pytest.mark.parametrize("name", names(LEARN + PAPERS))
def test_rules(name):
    notebook = read(name)
    assert notebook.metadata.kernelspec.name == "python3"
    limit = 700_000 if name.startswith("learn/") else 200_000  # figures or none
    assert (NOTEBOOKS / name).stat().st_size <= limit
    parameters.declared(NOTEBOOKS / name)  # one tagged cell, literals only
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "code" and name.startswith("learn/"):
            assert before.cell_type == "markdown", cell.source
    for cell in code(notebook):
        source = TransformerManager().transform_cell(cell.source)
        assert not FORBIDDEN.search(cell.source), cell.source
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 5, f"{node.name} has {length} lines"
        if "parameters" in cell.metadata.get("tags", []):
            lines = cell.source.splitlines()
            ends = [node.end_lineno or 0 for node in ast.parse(source).body]
            assert all("#" in lines[end - 1] for end in ends)
        else:
            lines = [line for line in cell.source.splitlines() if line.strip()]
            assert len(lines) <= 20, cell.source


@pytest.mark.parametrize("name", names(LEARN + PAPERS))
def test_notebooks_import_what_is_pinned_or_from_its_room(name):
    rooms = {path.parent.name for path in ROOT.glob("fedlib/*/__init__.py")}
    for cell in code(read(name)):
        tree = ast.parse(TransformerManager().transform_cell(cell.source))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "fedlib":
                assert {a.name for a in node.names} <= {*fedlib.__all__, *rooms}


@pytest.mark.parametrize("name", names(LEARN))
def test_walkthroughs_keep_outputs_in_order(name):
    cells = code(read(name))
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert all(o.get("name") != "stderr" for o in cell.outputs)
        assert all(o.output_type != "error" for o in cell.outputs)
        shown = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert bool(shown) == ("fig, " in cell.source), cell.source


@pytest.mark.parametrize("name", names(LEARN))
def test_cells_that_mostly_draw_are_folded(name):
    for cell in read(name).cells:
        hidden = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert hidden == refresh_notebooks.folded(cell), cell.source


@pytest.mark.parametrize("name", names(PAGES))
def test_pages_say_what_their_cells_are_in_a_talk(name):
    cells = read(name).cells
    kinds = [cell.metadata.slideshow.slide_type for cell in cells]
    assert kinds == [refresh_notebooks.slide_type(cell) for cell in cells]
    assert kinds[0] == "slide"
    assert kinds.count("slide") >= 8
    assert kinds.count("subslide") >= 1


def test_a_page_becomes_a_talk():
    """Each slide is a section, and each that lies below it another one inside."""
    name = "learn/00_start_here.ipynb"
    kinds = [cell.metadata.slideshow.slide_type for cell in read(name).cells]
    talk, _ = SlidesExporter(exclude_input=True).from_filename(str(NOTEBOOKS / name))
    stacks = kinds.count("slide")
    assert talk.count("<section>") == 2 * stacks + kinds.count("subslide")
    assert talk.count('src="data:image/png') == kinds.count("subslide")


def words(name: str) -> str:
    cells = read(name).cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def answered() -> list[str]:
    return sorted(path.name for path in NOTEBOOKS.glob("learn/answers/*.ipynb"))


def test_answers_belong_to_walkthroughs():
    assert set(answered()) <= {path.name for path in PAGES}


@pytest.mark.parametrize("page", answered())
def test_every_exercise_has_a_computed_answer(page):
    asked = words(f"learn/{page}").split("\n## Exercises\n")[1]
    numbers = re.findall(r"^(\d+)\. ", asked, re.MULTILINE)
    assert numbers
    computed: dict[str, int] = {}
    number = ""
    for cell in read(f"learn/answers/{page}").cells:
        if heading := re.match(r"## Exercise (\d+): ", cell.source):
            number = heading[1]
            computed[number] = 0
        if number and cell.cell_type == "code":
            computed[number] += 1
    assert [*computed] == numbers
    assert all(computed.values())


@pytest.mark.parametrize("name", names(PAGES))
def test_pages_close_with_what_they_showed(name):
    """A method's page also draws who sends what, and has its cheat sheet."""
    headings = re.findall(r"^## (.*)$", words(name), re.MULTILINE)
    assert headings.index("In short") == headings.index("Exercises") - 1
    sources = [cell.source for cell in code(read(name))]
    of_method = (ROOT / "fedlib/methods" / Path(name).name).with_suffix(".py").exists()
    for call in ("sheet(", "fig, travels = exchange("):
        assert sum(s.startswith(call) for s in sources) == of_method, call


LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)")


@pytest.mark.parametrize("name", names(LEARN))
def test_links_lead_somewhere(name):
    here = (NOTEBOOKS / name).parent
    for target in LINK.findall(words(name)):
        assert (here / target).exists(), target


def test_pages_are_one_walk_from_the_first():
    """Each says at its top and its end where to go on, and every page is met once."""
    met, page = [], "00_start_here.ipynb"
    while page not in met:
        met.append(page)
        text = [c.source for c in read(f"learn/{page}").cells]
        following = [re.findall(r"Next: \[[^]]*\]\((.*?)\)", text[i]) for i in (0, -1)]
        assert following[0] == following[1]
        if page in answered():
            assert all(f"(answers/{page})" in text[i] for i in (0, -1))
            assert f"(../{page}" in words(f"learn/answers/{page}")
        (page,) = following[0]
    assert sorted(met) == [path.name for path in PAGES]
    start = words("learn/00_start_here.ipynb")
    assert all(f"({name})" in start for name in met[1:])


@pytest.mark.parametrize("name", names(PAPERS))
def test_artefact_notebooks_are_stripped(name):
    for cell in code(read(name)):
        assert cell.execution_count is None
        assert cell.outputs == []


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", artefacts.names())
def test_presets_fit_their_notebook_and_resolve_their_runs(name, preset):
    """Unknown keys and wrong types are refused; every run is a legal spec."""
    found = yaml.safe_load((PARAMS / preset / f"{name}.yaml").read_text())
    assert set(found) <= set(
        parameters.declared(NOTEBOOKS / "papers" / f"{name}.ipynb")
    )
    assert artefacts.prepare(name, preset).parameters["preset"] == preset


@pytest.mark.parametrize("name", artefacts.names())
def test_papermill_alone_keeps_presets_apart_and_helps(name):
    """Its files name their preset, and its help shows a type and words for each."""
    for preset in PRESETS:
        found = yaml.safe_load((PARAMS / preset / f"{name}.yaml").read_text())
        assert found["preset"] == preset
    path = NOTEBOOKS / "papers" / f"{name}.ipynb"
    shown = papermill.inspect_notebook(path)
    assert [*shown] == [*parameters.declared(path)]
    for each in shown.values():
        assert each["help"]
        assert each["inferred_type_name"] != "None"
    assert f'notebook.setup("{name}")' in code(read(f"papers/{name}.ipynb"))[1].source


def asked_for(name: str, p: dict) -> list:
    """Return the runs that a notebook's own cells ask the study for, given parameters.

    Its calls are evaluated with ``settings`` as a kernel would have it after papermill
    injected ``p``; nothing is trained.
    """
    cells = [cell.source for cell in code(read(f"papers/{name}.ipynb"))]
    injected = "# Parameters\n" + "\n".join(f"{k} = {v!r}" for k, v in p.items())
    settings = notebook.settings(p | {"In": ["", cells[0], injected, *cells[1:]]})
    sources = {
        "study.study": lambda paper, p: study.grid(paper, p).specs,
        "study.pooled": study.pooled,
        "study.specs_for": study.specs_for,
        "leaderboard.specs": leaderboard.specs,
        "keeping.specs": min_counts.specs,
    }
    found = []
    for node in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in sources:
            *paper, told = node.args
            assert ast.unparse(told) == "settings", ast.unparse(node)
            known = sources[ast.unparse(node.func)]
            found.append(known(*map(ast.literal_eval, paper), settings))
    return [spec for specs in found for spec in specs]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", artefacts.names())
def test_a_notebook_makes_the_runs_that_the_rebuild_plans(name, preset):
    planned = artefacts.prepare(name, preset)
    asked = asked_for(name, planned.parameters)
    assert asked == planned.specs
    assert asked or "runs" not in planned.parameters


@pytest.mark.parametrize("name", artefacts.names())
def test_a_notebook_reads_its_parameters_by_one_call(name):
    """No copy of them: a key that it lacked would make other runs."""
    cells = code(read(f"papers/{name}.ipynb"))
    trees = [ast.parse(cell.source) for cell in cells[1:]]
    bound = [
        ast.unparse(node)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        and "settings" in ast.unparse(getattr(node, "targets", [node])[0])
    ]
    assert set(bound) <= {"settings = notebook.settings()"}
    texts = [cell.source for cell in cells]
    assert sum(text.count("notebook.settings()") for text in texts) == 1
    assert sum("study.grid(" in text for text in texts) == (name in MEASURED)


def test_no_preset_without_a_notebook():
    files = [p for preset in PRESETS for p in (PARAMS / preset).glob("*/*.yaml")]
    found = {f"{p.parent.name}/{p.stem}" for p in files}
    assert found == set(artefacts.names())


@pytest.mark.parametrize(
    "path",
    [Path(registry.module(name)) for name in registry.METHODS],
    ids=str,
)
def test_equations_stand_in_table_file_and_notebook(path):
    """Every number of the symbols table is tagged on a line of code, and taught."""
    module = str(path)
    text = (ROOT / (module.replace(".", "/") + ".py")).read_text()
    docstring, body = text.split('"""', 2)[1:]
    symbols = docstring.split("Box")[0]
    numbers = set(re.findall(r"\((\d+)\)", symbols))
    tags = set(re.findall(r"# Eq\. \((\d+)\)", body))
    tags |= set(re.findall(r"# Eq\. \(\d+\), Eq\. \((\d+)\)", body))
    assert numbers <= tags
    notebook = NOTEBOOKS / "learn" / f"{module.rsplit('.', 1)[1]}.ipynb"
    if module.startswith("fedlib.methods."):
        assert numbers
        taught = words(f"learn/{notebook.name}")
        assert numbers <= set(re.findall(r"Eq\. \((\d+)\)", taught))
