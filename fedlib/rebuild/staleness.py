"""When an artefact is stale: what it depends on, and what it was stamped with."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager

from fedlib import papers, registry
from fedlib.data import facts
from fedlib.rebuild import parameters
from fedlib.rebuild.artefacts import Artefact, listed, outputs, reads
from fedlib.runs import address, published
from fedlib.runs.spec import Spec
from fedlib.support import paths
from fedlib.support.files import sha256, write_text
from fedlib.support.sources import Code, Place, code, home, used_by

STAMPED = {"notebook", "parameters", "runs", "code", "sources", "data", "inputs"}
STAMPED |= {"outputs"}


def used(notebook: Path) -> list[Place]:
    """Return the definitions of fedlib that a notebook's code cells use.

    Raises
    ------
    SyntaxError
        A cell is not Python, even after IPython's commands are translated.
    """
    cells = [c for c in parameters.read(notebook) if c.cell_type == "code"]
    translate = TransformerManager().transform_cell
    return used_by("\n".join(translate(cell.source) for cell in cells))


def code_of(artefact: Artefact, methods: set[str]) -> Code:
    """Return the code of an artefact: of its runs, its papers' tables, its notebook."""
    groups = {name.split("/")[0] for name in (artefact.name, *reads(artefact))}
    chosen = groups & papers.PAPERS.keys() or papers.PAPERS.keys()
    tables = [Place(f"{papers.__name__}.{name}", "PAPER") for name in sorted(chosen)]
    records = [Place(registry.module(name), "METHOD") for name in sorted(methods)]
    return code([*address.ROOTS, *tables, *records, *used(artefact.notebook)])


def _code_hash(notebook: Path) -> str:
    """Return a hash of the code cells; the parameters are compared by value."""
    cells = parameters.read(notebook)
    tagged = parameters.tagged_cell(notebook, cells)
    code = [
        cell.source
        for index, cell in enumerate(cells)
        if cell.cell_type == "code" and index != tagged
    ]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:16]


def _runs_hash(specs: Sequence[Spec]) -> str:
    """Return a hash of the settings of all runs, which may not be parameters."""
    text = json.dumps(sorted(spec.model_dump_json() for spec in specs))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _data(name: str) -> list:
    """Return what a run's numbers depend on in a data set."""
    about = facts(name)
    return [about.fingerprint, about.mean, about.std, about.augment]


def _references(artefact: Artefact) -> list[Path]:
    """Return the files with a paper's numbers that an artefact may read."""
    papers = {name.split("/")[0] for name in (artefact.name, *reads(artefact))}
    home = paths.PARAMS / "reference"
    return [
        path for paper in sorted(papers) for path in sorted(home.glob(f"{paper}/*.csv"))
    ]


def _written(name: str, preset: str) -> str:
    """Return a hash of what an artefact has written."""
    text = json.dumps([[path.name, sha256(path)] for path in outputs(name, preset)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _counts_runs(artefact: Artefact) -> bool:
    """Return whether an artefact that reads others' runs reads published ones, too."""
    return bool(reads(artefact)) and artefact.preset != "quick"


def _published() -> str:
    """Return a hash of what the published runs reached."""
    records = [[path.name, record.accuracy] for path, record in published.records()]
    return hashlib.sha256(json.dumps(records).encode()).hexdigest()[:16]


def state(artefact: Artefact) -> dict[str, Any]:
    """Return all that an artefact depends on, as text and numbers.

    Raises
    ------
    DataError
        A data set is missing.
    """
    specs = artefact.specs
    methods = {*listed(artefact.parameters, "method"), *(s.method for s in specs)}
    datasets = {*listed(artefact.parameters, "dataset"), *(s.dataset for s in specs)}
    built = code_of(artefact, methods)
    depends = {
        "notebook": _code_hash(artefact.notebook),
        "parameters": artefact.parameters,
        "runs": _runs_hash(specs),
        "code": built.hash,
        "sources": built.parts,
        "data": {name: _data(name) for name in sorted(datasets)},
        "inputs": {
            "/".join(path.parts[-2:]): sha256(path) for path in _references(artefact)
        }
        | {name: _written(name, artefact.preset) for name in reads(artefact)}
        | ({"results": _published()} if _counts_runs(artefact) else {}),
    }
    return json.loads(json.dumps(depends))


def stamp_file(artefact: Artefact) -> Path:
    """Return the stamp file of an artefact in this figures folder."""
    place = hashlib.sha256(str(paths.figures_dir()).encode()).hexdigest()[:8]
    stamps = paths.cache_dir() / "stamps" / artefact.folder
    return stamps / f"{artefact.name}-{place}.json"


def stamp(artefact: Artefact, depends: dict[str, Any], written: list[Path]) -> None:
    """Record what an artefact was built from, and the files it wrote."""
    record = depends | {"outputs": {path.name: sha256(path) for path in written}}
    text = json.dumps(record, indent=1) + "\n"  # a mapping's order is that of rows
    write_text(stamp_file(artefact), text)


def _stamped(artefact: Artefact) -> dict[str, Any] | None:
    """Return the record of the last build, or None when absent or unreadable."""
    file = stamp_file(artefact)
    try:
        stamp = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return stamp if isinstance(stamp, dict) and stamp.keys() == STAMPED else None


def why_stale(artefact: Artefact, now: dict[str, Any] | None = None) -> list[str]:
    """Return in words what changed since an artefact was built; empty when current.

    Parameters
    ----------
    now : dict, optional
        ``state(artefact)`` when the caller has it already.

    Raises
    ------
    DataError
        A data set is missing.
    """
    now = state(artefact) if now is None else now
    then = _stamped(artefact)
    if then is None:
        return ["never built"]
    words = [] if then["notebook"] == now["notebook"] else ["notebook changed"]
    parameters_changed = _changes(then["parameters"], now["parameters"])
    for name, (old, new) in parameters_changed:
        words.append(f"parameter {name}: {old} -> {new}")
    if then["runs"] != now["runs"] and not parameters_changed:
        words.append("settings of runs changed")
    if then["code"] != now["code"]:
        words += _code_changes(then["sources"], now["sources"])
    words += [
        f"data changed: {name}" for name, _ in _changes(then["data"], now["data"])
    ]
    words += [
        f"input changed: {name}" for name, _ in _changes(then["inputs"], now["inputs"])
    ]
    folder = paths.figures_dir() / artefact.folder / artefact.name.split("/")[0]
    for name, content in then["outputs"].items():
        if not (folder / name).exists():
            words.append(f"output missing: {name}")
        elif sha256(folder / name) != content:
            words.append(f"output edited: {name}")
    return words


def _changes(then: dict, now: dict) -> list[tuple[str, tuple[str, str]]]:
    """Return the names with a changed value, and both values as text."""
    changes = []
    for name in sorted({*then, *now}):
        old, new = (repr(d[name]) if name in d else "absent" for d in (then, now))
        if old != new:
            changes.append((name, (old, new)))
    return changes


def _code_changes(then: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return which definitions changed, by file; one that was only moved did not."""
    changed = [name for name, part in now.items() if part not in then.values()]
    changed += [name for name, part in then.items() if part not in now.values()]
    by_file: dict[str, list[str]] = {}
    for dotted in sorted(set(changed)):
        module, _, name = dotted.rpartition(".")
        by_file.setdefault(_shown(module), []).append(name)
    words = [f"code changed: {file} ({', '.join(n)})" for file, n in by_file.items()]
    return words or ["code changed: which definitions use which"]


def _shown(module: str) -> str:
    """Return a module's file relative to the package, ``fedlib/methods/fedmps.py``."""
    path, file = home(module), module.replace(".", "/")
    is_package = path is not None and path.name == "__init__.py"
    return f"{file}/__init__.py" if is_package else f"{file}.py"
