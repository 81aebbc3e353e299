"""What notebooks call: live source, checks, tables and artefacts with provenance."""

import ast
import inspect
import json
import os
import platform
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from IPython.core.getipython import get_ipython
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from pydantic import BaseModel

import fedlib
from fedlib.draw import looks, saving
from fedlib.draw.tables import (
    Rendered,
    escape_markdown,
    is_missing,
    markdown_table,
    render,
)
from fedlib.rebuild import artefacts, captions
from fedlib.rebuild import parameters as parameters_of
from fedlib.runs.notes import Note, record
from fedlib.runs.results import measured
from fedlib.runs.spec import SettingError, Settings, validated
from fedlib.support import lock
from fedlib.support.files import write_text
from fedlib.support.paths import ROOT, figures_dir, private_path

if TYPE_CHECKING:
    from fedlib.data import Dataset, Facts

PRESETS = ("quick", "cpu", "paper")
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
        figures that cannot be written.
    """
    looks.use_style()
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
    Artefact(paper, name, values["preset"]).open()
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


def show(*functions: Callable[..., Any]) -> None:
    """Display the source of functions or classes as it runs, each under its file.

    Tables of lambdas in which a function looks something up stand above it.

    Raises
    ------
    TypeError
        Something without source of its own, such as a built-in or a value.
    """
    for function in functions:
        try:
            source = inspect.cleandoc("\n" + inspect.getsource(function))
        except (TypeError, OSError) as error:
            got = f"got {function!r}, expected a function or class with source"
            raise TypeError(f"functions: {got}") from error
        source = "\n\n".join([*_tables(function, source), source])
        ticks = max([2, *(len(run) for run in re.findall("`+", source))]) + 1
        fence = "`" * ticks
        display(Markdown(f"`{_home(function)}`\n\n{fence}python\n{source}\n{fence}"))


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


def table(df: pd.DataFrame, digits: int = 3) -> None:
    """Display a table as Markdown with fixed digits; a missing value is left empty."""
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


def _plain(value: Any) -> Any:
    """Return what JSON can hold for settings, numbers and containers of them."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, np.generic | torch.Tensor | np.ndarray):
        return value.tolist()
    raise TypeError(f"settings: got {type(value).__name__}, expected plain data")


class Artefact:
    """The files of one figure or table of a paper, under one preset."""

    def __init__(self, paper: str, name: str, preset: str):
        for argument, value in (("paper", paper), ("name", name)):
            if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", value):
                raise ValueError(
                    f"{argument}: got {value!r}, expected a-z, 0-9, _ and -"
                )
        if preset not in PRESETS:
            raise ValueError(f"preset: got {preset!r}, expected one of {PRESETS}")
        self.paper, self.name, self.preset = paper, name, preset
        self._kinds: dict[str, str] = {}
        self._drawn: list[tuple[Figure, pd.DataFrame, Path]] = []

    def _base(self, suffix: str, kind: str) -> Path:
        """Return the path without ending; a figure and a table cannot share it."""
        if not re.fullmatch(r"[a-z0-9_-]*", suffix):
            raise ValueError(f"suffix: got {suffix!r}, expected a-z, 0-9, _ and -")
        before = self._kinds.setdefault(suffix, kind)
        if before != kind:
            raise ValueError(
                f"suffix: got {suffix!r} for a {kind}, which a {before} has already; "
                "expected another one"
            )
        name = f"{self.name}_{suffix}" if suffix else self.name
        return figures_dir() / self.preset / self.paper / name

    def open(self) -> None:
        """See to it that the files can be written, before anything is computed.

        Raises
        ------
        SettingError
            The folder of figures cannot be made or written to.
        """
        folder = figures_dir() / self.preset / self.paper
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise SettingError(f"figures: cannot write to {folder}: {error}") from error

    def figure(self, fig: Figure, df: pd.DataFrame, suffix: str = "") -> None:
        """Write a figure as PNG and PDF, and its numbers as CSV.

        ``provenance`` writes data, budget and seeds below it.
        """
        self._drawn.append((fig, df, self._base(suffix, "figure")))
        saving.save(*self._drawn[-1])

    def table(
        self, content: pd.DataFrame | Rendered, suffix: str = "", **options: Any
    ) -> Rendered:
        """Write a table as CSV, Markdown and LaTeX, and return it for display.

        Parameters
        ----------
        content : DataFrame or Rendered
            A DataFrame is rendered with ``options``; by default its numbers are the
            float columns.
        """
        if not isinstance(content, Rendered):
            floats = [c for c in content if pd.api.types.is_float_dtype(content[c])]
            content = render(content, options.pop("values", floats), **options)
        elif options:
            raise ValueError(f"options: got {list(options)} for a finished table")
        base = self._base(suffix, "table")
        for ending, text in (
            ("csv", content.csv),
            ("md", content.markdown),
            ("tex", content.latex),
        ):
            write_text(base.with_name(f"{base.name}.{ending}"), text)
        return content

    def provenance(
        self,
        results: Sequence["fedlib.Result"] = (),
        settings: BaseModel | dict[str, Any] | None = None,
        datasets: Sequence["Dataset | Facts"] = (),
        notes: Sequence[Note | str] = (),
        *,
        messages_only: bool = False,
    ) -> None:
        """Write where the numbers come from, as JSON without times or places.

        Parameters
        ----------
        results : list of Result
            The runs behind the artefact. Each is written with all its settings and its
            accuracy, so that it counts wherever a paper prints a number for them.
        settings : dict or model
            The notebook's parameters.
        datasets : list of Dataset or Facts
        notes : list of Note or str
            What a reader must know, such as ``Note("reduced", "20 of 500 rounds")``;
            plain text is a remark.
        messages_only : bool
            The runs are as short as it takes to count their messages: their accuracy
            is left out, and counts nowhere.
        """
        if isinstance(notes, str):
            raise TypeError(f"notes: got {notes!r}, expected a list of notes")
        runs = [
            {
                "key": r.key,
                "dataset": r.spec.dataset,
                "method": r.spec.method,
                "seed": r.spec.seed,
                "rounds": r.spec.rounds,
                "spec": r.spec.model_dump(mode="json"),
                "accuracy": None if messages_only else measured(r),
            }
            for r in results
        ]
        content = {
            "artefact": f"{self.paper}/{self.name}",
            "preset": self.preset,
            "settings": settings or {},
            "notes": [record(note) for note in notes],
            "seeds": sorted({r.spec.seed for r in results}),
            "runs": runs,
            "data": [
                {"name": d.name, "title": d.title, "fingerprint": d.fingerprint}
                for d in datasets
            ],
            "versions": {
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "fedlib": fedlib.__version__,
                "lock": lock.installed(),
            },
        }
        text = json.dumps(
            content, indent=1, sort_keys=True, ensure_ascii=False, default=_plain
        )
        for part in _texts(json.loads(text)):
            if private := private_path(part):
                raise ValueError(f"settings, notes: got a path below {private}")
        base = figures_dir() / self.preset / self.paper / self.name
        write_text(base.with_name(f"{base.name}.json"), text + "\n")
        for fig, df, path in self._drawn:
            saving.footnote(fig, captions.budget(content, "sd" in df))
            saving.save(fig, df, path)
        self._drawn.clear()


def _texts(content: Any) -> Iterator[str]:
    """Yield every text of a JSON document, names of fields included."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict | list):
        for part in content:
            yield from _texts(part)
        for part in content.values() if isinstance(content, dict) else ():
            yield from _texts(part)


def artefact(paper: str, name: str, preset: str) -> Artefact:
    """Return the writer of one artefact, ``figures/<preset>/<paper>/<name>.*``."""
    return Artefact(paper, name, preset)
