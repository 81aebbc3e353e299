"""What notebooks call: their settings, live source, checks, tables, and artefacts."""

import ast
import inspect
import io
import os
import re
import tokenize
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.core.getipython import get_ipython
from IPython.display import Markdown, display

from fedlib.draw import looks
from fedlib.draw.tables import escape_markdown, is_missing, markdown_table
from fedlib.rebuild import artefacts
from fedlib.rebuild import parameters as parameters_of
from fedlib.rebuild.written import Written
from fedlib.runs import own
from fedlib.runs.spec import SettingError, Settings, validated
from fedlib.support.paths import ROOT

MARK = "<--"  # behind the lines of a shown source that are under discussion
LEFT_OUT = "    ..."  # for the lines that an excerpt does not have
INJECTED = "# Parameters"  # how the cell begins that papermill puts behind the tagged


def setup(artefact: str = "") -> None:
    """Check the parameters, set the figure style and one thread; silence under CI.

    It stands in the first cell behind the parameters, so that a wrong one stops before
    any work, with the words of ``fedlib rebuild``, whoever executes the notebook. Each
    parameter gets its default's type: text that papermill passes on, numpy's numbers.

    The nets are small: one thread is faster than several, and sums keep their order.

    Under ``FEDLIB_CI`` warnings are silent and progress bars off
    (``fedlib.support.progress.progress_off``).

    Parameters
    ----------
    artefact : str
        Which table or figure the notebook is, ``"fedmps/table3"``; none for others,
        whose injected parameters are checked by name and type alone.

    Raises
    ------
    SettingError
        An unknown or illegal parameter, or one that no run of this artefact can have;
        figures that cannot be written; a module of ``FEDLIB_OWN`` that is not there.
    """
    looks.use_style()
    own.use_named()
    torch.set_num_threads(1)
    if os.environ.get("FEDLIB_CI"):
        warnings.simplefilter("ignore")
    shell = get_ipython()
    if shell is not None:
        try:
            shell.user_ns |= _checked(artefact, shell.user_ns)
        except SettingError as error:
            # IPython's way to show an error without the way through our code
            words = [f"{type(error).__name__}: {error}"]
            error.__dict__["_render_traceback_"] = lambda: words
            raise


def _checked(artefact: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a notebook in their types, all of them legal."""
    tagged, injected = _cells(known, "preset" if artefact else "")
    if tagged is None:
        if artefact:
            raise _no_cell("setup")
        return {}
    at = Path(artefact or "notebook")
    declared = parameters_of.declared_in(tagged, at, literal=False)
    given = {n: known[n] for n in [*declared, *_assigned(injected)] if n in known}
    if not artefact:
        return parameters_of.resolve(declared, given)
    values, _ = artefacts.resolved(artefact, declared, given)
    paper, _, name = artefact.partition("/")
    where = artefacts.folder(artefact, values)
    Written(paper, name, values["preset"], where).open()
    if where != values["preset"]:
        print(f"Files go to {artefacts.place(artefact, where)}")
    return values


def _home(thing: Any) -> str:
    """Return a source file relative to the repository, else only its module."""
    source = inspect.getsourcefile(inspect.unwrap(thing))  # not the decorator's
    path = Path(source or "").resolve()
    if path.is_relative_to(ROOT):
        return path.relative_to(ROOT).as_posix()
    return thing.__module__


def _tables(function: Callable[..., Any], source: str) -> list[str]:
    """Return the source of its module's tables of lambdas that a function reads."""
    read = {
        ast.unparse(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Subscript)
    }
    module = inspect.getmodule(function) if any(map(str.isupper, read)) else None
    text = inspect.getsource(module) if module else ""
    return [
        ast.get_source_segment(text, node) or ""
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in read
        if any(isinstance(part, ast.Lambda) for part in ast.walk(node))
    ]


def _marked(source: str, texts: Sequence[str]) -> tuple[str, set[str]]:
    """Return a source with an arrow behind the lines of some texts, and which it has.

    The whole statement is marked where a text stands on its first or last line, else
    the line alone. Docstrings are not looked at.
    """
    lines = source.splitlines()
    places = [
        (number, t) for number, line in enumerate(lines, 1) for t in texts if t in line
    ]
    marked, docstrings = {number for number, _ in places}, set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                docstrings |= {*span}
            elif {span[0], span[-1]} & marked:
                marked |= {*span}
    marked -= docstrings
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    commented = {t.start[0] for t in tokens if t.type == tokenize.COMMENT}
    for number in marked:
        lines[number - 1] += f" {MARK}" if number in commented else f"  # {MARK}"
    seen = {text for number, text in places if number in marked}
    return "\n".join(lines), seen


def _brief(source: str) -> str:
    """Return a source without a class's methods, and of its docstring the summary."""
    lines = source.splitlines()
    node = ast.parse(source).body[0]
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return source
    gone: set[int] = set()
    for part in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(part, ast.FunctionDef):
            first = min([part.lineno, *(d.lineno for d in part.decorator_list)])
            gone |= {*range(first, (part.end_lineno or first) + 1)}
    if summary := ast.get_docstring(node):
        at, (said, *_) = node.body[0], summary.split("\n\n")
        end = at.lineno + said.count("\n")
        gone |= {*range(end + 1, (at.end_lineno or end) + 1)}
        if not lines[end - 1].rstrip().endswith('"""'):
            lines[end - 1] += '"""'
    left = [line for number, line in enumerate(lines, 1) if number not in gone]
    return re.sub(r"\n{2,}(?=\n\n)|\n+$", "", "\n".join(left))


def _excerpt(source: str, above: int) -> str:
    """Return a signature and the marked lines, with some above them; else dots."""
    lines = source.splitlines()
    body = ast.parse(source).body[0].__dict__["body"]  # of a function or class
    first = body[0].lineno - 1
    visible = {*range(first)}
    for number, line in enumerate(lines):
        if line.endswith(MARK):
            visible |= {*range(max(first, number - above), number + 1)}
    text: list[str] = []
    for number, line in enumerate(lines):
        if number in visible:
            text.append(line)
        elif text[-1] != LEFT_OUT:
            text.append(LEFT_OUT)
    return "\n".join(text)


def show(
    *functions: Callable[..., Any],
    marks: str | Sequence[str] = (),
    brief: bool = False,
    above: int | None = None,
) -> None:
    """Display the source of functions or classes as it runs, each under its file.

    Tables of lambdas in which a function looks something up stand above it.

    Parameters
    ----------
    brief : bool
        Whether classes are shown without their methods, and of every docstring its
        first paragraph alone.
    marks : str or sequence of str
        Texts of the lines under discussion, such as ``"Eq. (3)"``: an arrow follows
        the statements that they stand in, or begin or end. Tables are not marked.
    above : int, optional
        Show the marked lines alone, with so many above each, below the signature; dots
        stand for the others. By default all lines are shown.

    Raises
    ------
    TypeError
        Something without source of its own, such as a built-in or a value.
    ValueError
        A mark that stands in none of the functions; ``above`` without marks.
    """
    if above is not None and not (marks and above >= 0):
        raise ValueError(f"above: got {above}, expected at least 0, and marks with it")
    texts = [marks] if isinstance(marks, str) else [*marks]
    missing = {*texts}
    blocks = []
    for function in functions:
        try:
            source = inspect.cleandoc("\n" + inspect.getsource(function))
        except (TypeError, OSError) as error:
            got = f"got {function!r}, expected a function or class with source"
            raise TypeError(f"functions: {got}") from error
        tables = _tables(function, source)
        source = _brief(source) if brief else source
        if texts:
            source, seen = _marked(source, texts)
            missing -= seen
        if above is not None:
            source = _excerpt(source, above)
        blocks.append((_home(function), "\n\n".join([*tables, source])))
    if missing:
        raise ValueError(f"marks: {sorted(missing)} stand in none of the functions")
    for home, source in blocks:
        ticks = max([2, *(len(run) for run in re.findall("`+", source))]) + 1
        fence = "`" * ticks
        display(Markdown(f"`{home}`\n\n{fence}python\n{source}\n{fence}"))


def check(value: Any, near: float, tol: float, label: str = "") -> None:
    """Print a value beside the one that the text was written for.

    A value that is further away, or is NaN, is told as such, and the notebook
    continues: a changed parameter empties no page. Under ``FEDLIB_CI`` it is an error.

    Raises
    ------
    AssertionError
        Under ``FEDLIB_CI``, and the value is further from ``near`` than ``tol``.
    """
    if not tol >= 0:
        raise ValueError(f"tol: got {tol}, expected at least 0")
    number = float(value)
    name = f"{label} " if label else ""
    if abs(number - near) <= tol:
        print(f"ok: {name}measured {number:.5g}, expected {near} +- {tol}")
        return
    if os.environ.get("FEDLIB_CI"):
        raise AssertionError(f"{name}got {number}, expected {near} +- {tol}")
    text = f"the text was written for {near} +- {tol}"
    print(f"DIFFERENT: {name}measured {number:.5g}, {text}")


def _text(value: Any, digits: int) -> str:
    if is_missing(value):
        return ""
    if isinstance(value, float | np.floating):
        return f"{value:z.{digits}f}"
    return str(value)


def _figures_first() -> None:
    """Show what a cell has drawn so far, where figures wait for the cell's end."""
    from matplotlib import pyplot

    if "inline" in pyplot.get_backend():
        pyplot.show()


def table(df: pd.DataFrame, digits: int = 3) -> None:
    """Display a table as Markdown with fixed digits; a missing value is left empty.

    Figures that the cell has drawn come before it.
    """
    _figures_first()
    frame = df.reset_index() if df.index.name is not None else df
    rows = [
        [escape_markdown(_text(value, digits)) for value in row]
        for row in zip(*(frame[c] for c in frame), strict=True)
    ]
    number = pd.api.types.is_numeric_dtype
    right = {i for i, c in enumerate(frame) if number(frame[c])}
    header = [escape_markdown(str(c)) for c in frame]
    display(Markdown(markdown_table(header, rows, right)))


def parameters(model: type[Settings], **values: Any) -> Settings:
    """Return the validated parameters of a notebook, or explain what is wrong."""
    return validated(model, values)


def _assigned(source: str) -> list[str]:
    """Return the names that a cell binds; none if it does anything else."""
    try:
        body = ast.parse(source).body
    except SyntaxError:  # the kernel keeps cells that it refused, too
        return []
    names = []
    for line in body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case _:
                return []
    return names


def settings(namespace: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return every parameter of the running notebook with its value as it stands now.

    A kernel does not see tags. The parameters cell is the last executed one that only
    assigns, and assigns ``preset``; names that papermill adds in a cell behind it count
    as well, so that a study can refuse those it does not know.

    Parameters
    ----------
    namespace : mapping, optional
        The kernel's names, with the executed cells' source as ``In``; by default those
        of the kernel that runs this.

    Raises
    ------
    SettingError
        No such cell was executed, or a name of it was deleted since.
    """
    shell = get_ipython()
    known = namespace if namespace is not None else shell.user_ns if shell else {}
    tagged, injected = _cells(known, "preset")
    if tagged is None:
        raise _no_cell("settings")
    wanted = [*_assigned(tagged), *_assigned(injected)]
    gone = [name for name in wanted if name not in known]
    if gone:
        raise SettingError(f"settings: {gone} deleted, expected each parameter's value")
    return {name: known[name] for name in wanted}


def _no_cell(caller: str) -> SettingError:
    return SettingError(
        f"{caller}: found no executed cell of assignments with preset among them, "
        "expected the one tagged 'parameters'"
    )


def _cells(known: Mapping[str, Any], name: str) -> tuple[str | None, str]:
    """Return the executed cell of parameters, and the one papermill put behind it.

    Parameters
    ----------
    known : mapping
        A kernel's names.
    name : str
        What the cell must assign; empty: a cell that papermill put one behind.
    """
    cells = [str(source) for source in known.get("In", [])]
    injected = [source.lstrip().startswith(INJECTED) for source in cells]
    after = {i: i + 1 < len(cells) and injected[i + 1] for i in range(len(cells))}
    for i in reversed(range(len(cells))):
        bound = [] if injected[i] else _assigned(cells[i])
        if bound and (name in bound if name else after[i]):
            return cells[i], cells[i + 1] if after[i] else ""
    return None, ""


def artefact(paper: str, name: str, preset: str) -> Written:
    """Return the writer of one artefact, ``figures/<preset>/<paper>/<name>.*``.

    In a notebook whose parameters are not those of the committed files it writes to
    ``figures/changed/<preset>/``.
    """
    shell = get_ipython()
    values = {"preset": preset}
    if shell is not None and _cells(shell.user_ns, "preset")[0] is not None:
        values = settings(shell.user_ns) | values
        return Written(paper, name, preset, artefacts.folder(f"{paper}/{name}", values))
    return Written(paper, name, preset)
