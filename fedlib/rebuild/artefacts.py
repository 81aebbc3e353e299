"""Tables and figures: which there are, what each depends on, and why one is stale."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

from fedlib import papers, registry
from fedlib.data import DATASETS, facts
from fedlib.draw.tables import plain
from fedlib.papers import study
from fedlib.rebuild import parameters, per_dataset, printed
from fedlib.rebuild.parameters import Parameter
from fedlib.rebuild.presets import read_preset
from fedlib.runs import address, published
from fedlib.runs.spec import SettingError, Spec, suggestion
from fedlib.support import paths
from fedlib.support.files import sha256, write_text
from fedlib.support.paths import PRESETS
from fedlib.support.sources import Code, Place, code, home, used_by

SUFFIXES = {".png", ".pdf", ".csv", ".md", ".tex", ".json"}
STAMPED = {"notebook", "parameters", "runs", "code", "sources", "data", "inputs"}
STAMPED |= {"outputs"}


class Artefact(NamedTuple):
    """A table or figure at one preset, with all its settings checked."""

    name: str  # "<paper>/<notebook>"
    preset: str
    notebook: Path
    parameters: dict[str, Any]
    specs: list[Spec]  # the runs it needs


def names() -> list[str]:
    """Return the names of all artefacts, ``<paper>/<notebook>``."""
    return paths.artefact_names()


def select(wanted: Sequence[str]) -> list[str]:
    """Return the artefacts that names, papers or unique short names stand for.

    Raises
    ------
    SettingError
        An unknown name (the closest is suggested), or a short name of two artefacts.
    """
    everything = names()
    chosen = []
    for name in wanted:
        hits = [full for full in everything if name in (full, full.split("/")[0])]
        if not hits:
            hits = [full for full in everything if full.split("/")[1] == name]
            if len(hits) > 1:
                raise SettingError(f"artefact: got {name!r}, could be any of {hits}")
        if not hits and printed.said(name):
            raise SettingError(f"artefact: {printed.said(name)}")
        if not hits:
            paper = f"{name.partition('/')[0]}/"  # what another one has is no help
            near = [n for n in everything if n.startswith(paper)] or everything
            parts = {part for full in near for part in full.split("/")}
            known = [*near, *sorted(parts)]
            close = difflib.get_close_matches(name, known, 1)
            hint = suggestion(name, close or near)
            raise SettingError(f"artefact: got {name!r}; {hint}")
        chosen += hits
    return list(dict.fromkeys(chosen)) if wanted else everything


def _known_preset(preset: str) -> None:
    if preset not in PRESETS:
        hint = suggestion(preset, list(PRESETS))
        raise SettingError(f"preset: got {preset!r}; {hint}")


def prepare(
    name: str, preset: str, overrides: Mapping[str, Any] | None = None
) -> Artefact:
    """Return an artefact with its parameters resolved and its runs listed.

    Raises
    ------
    SettingError
        Anything that is wrong with a parameter or with the settings of a run.
    """
    _known_preset(preset)
    notebook = paths.NOTEBOOKS / "papers" / f"{name}.ipynb"
    known = parameters.declared(notebook)
    if "preset" not in known:
        raise SettingError(f"{name}: the notebook has no parameter 'preset'")
    file = paths.PARAMS / preset / f"{name}.yaml"
    layers = [read_preset(file), dict(overrides or {})]
    for layer in layers:
        if layer.get("preset", preset) != preset:
            raise SettingError(
                f"{name}: preset: got {layer['preset']!r}, expected the one asked for, "
                f"{preset!r}"
            )
    values, specs = resolved(name, known, *layers, {"preset": preset})
    return Artefact(name, preset, notebook, values, specs)


def resolved(
    name: str, known: Mapping[str, Parameter], *layers: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Spec]]:
    """Return every parameter of an artefact with its value, and the runs it needs.

    Parameters
    ----------
    name : str
        The artefact.
    known : mapping
        The parameters that its notebook declares.
    *layers
        Values of some of them; later ones win.

    Raises
    ------
    SettingError
        Anything that is wrong with a parameter or with the settings of a run.
    """
    try:
        of_paper = papers.PAPERS.get(name.split("/")[0], DATASETS)
        values = per_dataset.resolve(known, of_paper, *layers)
        _known_preset(values["preset"])
        for method in _listed(values, "method"):
            registry.method(method)
        _refuse_picture(values, known)
        return values, study.specs_for(name, values)
    except KeyError as error:
        _refuse_gap(name, values, known, error.args[0])
        raise SettingError(
            f"{name}: its runs need a parameter {error}, which the notebook lacks"
        ) from error
    except ValueError as error:
        raise SettingError(f"{name}: {error}") from error


def _refuse_gap(
    name: str,
    values: Mapping[str, Any],
    known: Mapping[str, parameters.Parameter],
    missing: Any,
) -> None:
    """Name the table that lacks what the runs look for, where one is known to have it.

    Raises
    ------
    SettingError
        With the table, the key that it lacks and a near one that it has.
    """
    for table, value in values.items():
        default = known[table].default
        if isinstance(value, dict) and isinstance(default, dict):
            if missing in default and missing not in value:
                hint = suggestion(str(missing), list(map(str, value)))
                raise SettingError(
                    f"{name}: {table}: got no {missing!r}, which its runs need; {hint}"
                )


def _refuse_picture(
    values: Mapping[str, Any], known: Mapping[str, parameters.Parameter]
) -> None:
    """Hold ``picture`` to its own keys: it is read after the runs, when it is too late.

    One whose keys are no names has words for panels, which depend on the data.

    Raises
    ------
    SettingError
        A key that it does not have, or one that it lacks.
    """
    given = values.get("picture")
    own = known["picture"].default if "picture" in known else None
    if not isinstance(given, dict) or not isinstance(own, dict):
        return
    if not all(str(key).isidentifier() for key in own):
        return
    for key in given:
        if key not in own:
            hint = suggestion(str(key), list(own))
            raise SettingError(f"picture: got {key!r}; {hint}")
    for key in own:
        if key not in given:
            raise SettingError(f"picture: got no {key!r}, expected {list(own)}")


def _listed(values: Mapping[str, Any], what: str) -> list[str]:
    """Return the texts in a parameter ``what`` and in its plural."""
    listed = []
    for value in (values.get(what), values.get(f"{what}s")):
        listed += value if isinstance(value, list) else [value]
    return [item for item in dict.fromkeys(listed) if isinstance(item, str)]


def used(notebook: Path) -> list[Place]:
    """Return the definitions of fedlib that a notebook's code cells use.

    Raises
    ------
    SyntaxError
        A cell is not Python, even after IPython's commands are translated.
    """
    cells = [c for c in parameters.read(notebook).cells if c.cell_type == "code"]
    translate = TransformerManager().transform_cell
    return used_by("\n".join(translate(cell.source) for cell in cells))


def _code(artefact: Artefact, methods: set[str]) -> Code:
    """Return the code of an artefact: of its runs, its papers' tables, its notebook."""
    groups = {name.split("/")[0] for name in (artefact.name, *reads(artefact))}
    chosen = groups & papers.PAPERS.keys() or papers.PAPERS.keys()
    tables = [Place(f"{papers.__name__}.{name}", "PAPER") for name in sorted(chosen)]
    records = [Place(registry.module(name), "METHOD") for name in sorted(methods)]
    return code([*address.ROOTS, *tables, *records, *used(artefact.notebook)])


def _code_hash(notebook: Path) -> str:
    """Return a hash of the code cells; the parameters are compared by value."""
    content = parameters.read(notebook)
    tagged = parameters.tagged_cell(notebook, content)
    code = [
        cell.source
        for index, cell in enumerate(content.cells)
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


def reads(artefact: Artefact) -> list[str]:
    """Return the artefacts whose output another one reads: its parameter ``reads``."""
    wanted = artefact.parameters.get("reads", [])
    return [name for name in select(wanted) if name != artefact.name] if wanted else []


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
    methods = {*_listed(artefact.parameters, "method"), *(s.method for s in specs)}
    datasets = {*_listed(artefact.parameters, "dataset"), *(s.dataset for s in specs)}
    built = _code(artefact, methods)
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


def outputs(name: str, preset: str) -> list[Path]:
    """Return the files of an artefact: ``<name>.png``, ``<name>_<part>.csv``, ...

    A file that could belong to two artefacts (``fig1``, ``fig1_left``) is the longer
    name's.
    """
    paper, short = name.split("/")
    folder = paths.figures_dir() / preset / paper
    if not folder.is_dir():
        return []
    shorts = [n.split("/")[1] for n in names() if n.startswith(f"{paper}/")]
    paths_there = []
    for path in sorted(folder.iterdir()):
        claims = [
            s for s in shorts if path.name.startswith((f"{s}.", f"{s}_", f"{s}-"))
        ]
        if path.suffix in SUFFIXES and max(claims, key=len, default=None) == short:
            paths_there.append(path)
    return paths_there


def shown(name: str, preset: str) -> str:
    """Return an artefact as text: its table, and the files that it has written.

    One that has no table of its own name, such as a figure, shows those of its parts.

    Raises
    ------
    SettingError
        An unknown preset, or an artefact that was not built.
    """
    _known_preset(preset)
    files = outputs(name, preset)
    if not files:
        build = f"fedlib rebuild {name} --preset {preset}"
        raise SettingError(f"{name}: got no file at {preset}; expected `{build}` first")
    own = name.split("/")[1]
    written = [path for path in files if path.suffix == ".md"]
    written = [path for path in written if path.stem == own] or written
    texts = [f"{path.stem}\n\n{plain(path.read_text('utf-8'))}" for path in written]
    ends: dict[Path, list[str]] = {}
    for path in files:
        ends.setdefault(path.with_suffix(""), []).append(path.suffix[1:])
    lines = [
        f"{_near(base)}.{{{','.join(suffixes)}}}" for base, suffixes in ends.items()
    ]
    return "\n".join([*texts, *lines])


def _near(path: Path) -> Path:
    """Return a path as seen from the working directory, where it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _stamp_file(artefact: Artefact) -> Path:
    """Return the stamp file of an artefact in this figures folder."""
    place = hashlib.sha256(str(paths.figures_dir()).encode()).hexdigest()[:8]
    stamps = paths.cache_dir() / "stamps" / artefact.preset
    return stamps / f"{artefact.name}-{place}.json"


def stamp(artefact: Artefact, depends: dict[str, Any], written: list[Path]) -> None:
    """Record what an artefact was built from, and the files it wrote."""
    record = depends | {"outputs": {path.name: sha256(path) for path in written}}
    text = json.dumps(record, indent=1) + "\n"  # a mapping's order is that of rows
    write_text(_stamp_file(artefact), text)


def _stamped(artefact: Artefact) -> dict[str, Any] | None:
    """Return the record of the last build, or None when absent or unreadable."""
    file = _stamp_file(artefact)
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
    folder = paths.figures_dir() / artefact.preset / artefact.name.split("/")[0]
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
