"""Tables and figures: which there are, their parameters, and what they write.

When one is stale, ``staleness`` says.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedlib import papers, registry
from fedlib.data import DATASETS
from fedlib.draw.tables import plain
from fedlib.papers import study
from fedlib.rebuild import parameters, per_dataset, printed
from fedlib.rebuild.parameters import Parameter
from fedlib.rebuild.presets import read_preset
from fedlib.runs.spec import SettingError, Spec, suggestion
from fedlib.support import paths
from fedlib.support.paths import PRESETS

COMMITTED = "cpu"  # whose files are in the repository
SUFFIXES = {".png", ".pdf", ".csv", ".md", ".tex", ".json"}


class Artefact(NamedTuple):
    """A table or figure at one preset, with all its settings checked."""

    name: str  # "<paper>/<notebook>"
    preset: str
    notebook: Path
    parameters: dict[str, Any]
    specs: list[Spec]  # the runs it needs
    folder: str  # of its files, below ``figures/``


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
        if not hits:
            raise _unknown(name, everything)
        chosen += hits
    return list(dict.fromkeys(chosen)) if wanted else everything


def _unknown(name: str, everything: list[str]) -> SettingError:
    """Return what an unknown name is refused with: where it is, or what is near."""
    if elsewhere := printed.said(name):
        return SettingError(f"artefact: {elsewhere}")
    paper = f"{name.partition('/')[0]}/"  # what another one has is no help
    near = [full for full in everything if full.startswith(paper)] or everything
    parts = {part for full in near for part in full.split("/")}
    close = difflib.get_close_matches(name, [*near, *sorted(parts)], 1)
    return SettingError(f"artefact: got {name!r}; {suggestion(name, close or near)}")


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
    return Artefact(name, preset, notebook, values, specs, folder(name, values))


def changed(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return the parameters with another value than their file of ``cpu`` gives them.

    None at another preset, where no file is committed, and of what is no artefact.
    """
    if values["preset"] != COMMITTED or name not in names():
        return []
    known = parameters.declared(paths.NOTEBOOKS / "papers" / f"{name}.ipynb")
    file = read_preset(paths.PARAMS / COMMITTED / f"{name}.yaml")
    own = per_dataset.resolve(known, _sets_of(name), file, {"preset": COMMITTED})
    # As text: the order of a table is that of rows
    return [key for key in own if repr(values.get(key)) != repr(own[key])]


def folder(name: str, values: Mapping[str, Any]) -> str:
    """Return the folder below ``figures/`` that an artefact's files go to: its preset.

    Changed parameters write elsewhere, so that a try takes no committed figure's place.
    """
    preset = values["preset"]
    return f"changed/{preset}" if changed(name, values) else preset


def place(name: str, where: str) -> str:
    """Return in words where the files of changed parameters are, and why."""
    home = _near(paths.figures_dir() / where / name.partition("/")[0])
    return f"{home}: parameters are not those of params/{COMMITTED}/{name}.yaml"


def _sets_of(name: str) -> Iterable[str]:
    """Return the data sets that an artefact may have."""
    return papers.PAPERS.get(name.split("/")[0], DATASETS)


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
        values = per_dataset.resolve(known, _sets_of(name), *layers)
        _known_preset(values["preset"])
        for method in listed(values, "method"):
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


def listed(values: Mapping[str, Any], what: str) -> list[str]:
    """Return the texts in a parameter ``what`` and in its plural."""
    listed = []
    for value in (values.get(what), values.get(f"{what}s")):
        listed += value if isinstance(value, list) else [value]
    return [item for item in dict.fromkeys(listed) if isinstance(item, str)]


def reads(artefact: Artefact) -> list[str]:
    """Return the artefacts whose output another one reads: its parameter ``reads``."""
    wanted = artefact.parameters.get("reads", [])
    return [name for name in select(wanted) if name != artefact.name] if wanted else []


def outputs(name: str, where: str) -> list[Path]:
    """Return an artefact's files in a folder: ``<name>.png``, ``<name>_part.csv``, ...

    A file that could belong to two artefacts (``fig1``, ``fig1_left``) is the longer
    name's.
    """
    paper, short = name.split("/")
    home = paths.figures_dir() / where / paper
    if not home.is_dir():
        return []
    shorts = [n.split("/")[1] for n in names() if n.startswith(f"{paper}/")]
    paths_there = []
    for path in sorted(home.iterdir()):
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
