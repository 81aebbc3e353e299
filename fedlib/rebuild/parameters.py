"""Notebook parameters: read from the tagged cell, refused when unknown or mistyped.

papermill only warns about an unknown name, passes text on as text, and writes what it
does not know unescaped into a cell, where it runs as code. So all three are settled
here, before a kernel starts.
"""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from fedlib.rebuild.presets import read_yaml
from fedlib.runs.spec import SettingError, suggestion

TAG = "parameters"
WORDS = {"true": True, "yes": True, "on": True, "1": True}
WORDS |= {"false": False, "no": False, "off": False, "0": False}

# What an annotation stands for; it decides where the default alone cannot (None, []).
SAMPLES: dict[str, Any] = {"bool": False, "int": 0, "float": 0.0, "str": ""}
SAMPLES |= {f"list[{name}]": [sample] for name, sample in SAMPLES.items()}


MOST_BITS = 1024  # of an integer: 308 digits
PLAIN = "None, true or false, finite numbers, text, lists and tables of these"


class Parameter(NamedTuple):
    """A parameter of a notebook."""

    default: Any
    sample: Any  # a value of the expected type; None when any value is legal
    optional: bool  # whether None is legal
    annotation: str = ""


class Cell(NamedTuple):
    """A cell of a notebook."""

    cell_type: str  # "code", "markdown" or "raw"
    source: str
    tags: list[str]


class _Unfit(Exception):
    """A value does not have the expected type."""


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON gives them back: nothing else crosses into a notebook.

    papermill turns values into code. It escapes text, but the text of any other type
    (tuple, set, bytes) stands in the cell as it is, and can end its line and begin
    another.

    Raises
    ------
    SettingError
        A value that JSON has no type for, also inside a list or a table; a table with a
        key that is not text; NaN or infinity. Names the parameter and what is wrong.
    """
    for name, value in values.items():
        try:
            _refuse_stray(name, value, value)
            json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            raise SettingError(f"{name}: lists or tables nested too deep") from None
        except UnicodeEncodeError as error:
            raise SettingError(f"{name}: got {value!r}, no text: {error}") from None
    return json.loads(json.dumps(values, allow_nan=False))


def _refuse_stray(name: str, value: Any, part: Any) -> None:
    """Raise where some part of a value has no type in JSON."""
    match part:
        case None | bool() | str():
            pass
        case int():
            if part.bit_length() > MOST_BITS:
                raise SettingError(f"{name}: got an integer of more than 300 digits")
        case float() if math.isfinite(part):
            pass
        case list():
            for inner in part:
                _refuse_stray(name, value, inner)
        case dict() if all(isinstance(key, str) for key in part):
            for inner in part.values():
                _refuse_stray(name, value, inner)
        case _:
            raise SettingError(
                f"{name}: got {value!r}, in which {part!r} is of type "
                f"{type(part).__name__}; expected {PLAIN}, with text for keys"
            )


def read(notebook: Path) -> list[Cell]:
    """Return a notebook's cells.

    Raises
    ------
    SettingError
        The file is not a notebook of format 4.
    """
    try:  # nbformat takes seconds to import
        content = json.loads(notebook.read_text(encoding="utf-8"))
        if content["nbformat"] != 4:
            raise SettingError(f"{notebook.name}: not a notebook of format 4")
        return [
            Cell(
                cell["cell_type"],
                "".join(cell["source"]),
                cell["metadata"].get("tags", []),
            )
            for cell in content["cells"]
        ]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise SettingError(f"{notebook.name}: not a notebook") from error


def tagged_cell(notebook: Path, cells: Sequence[Cell]) -> int:
    """Return the index of the one code cell tagged ``parameters``.

    Raises
    ------
    SettingError
        There is none, or more than one.
    """
    tagged = [
        index
        for index, cell in enumerate(cells)
        if cell.cell_type == "code" and TAG in cell.tags
    ]
    if len(tagged) != 1:
        raise SettingError(
            f"{notebook.name}: got {len(tagged)} cells tagged {TAG!r}, expected one"
        )
    return tagged[0]


def declared(notebook: Path) -> dict[str, Parameter]:
    """Return the parameters that a notebook declares, in order.

    Raises
    ------
    SettingError
        Not exactly one tagged cell, or a line in it that is not ``name = literal``.
    """
    cells = read(notebook)
    return declared_in(cells[tagged_cell(notebook, cells)].source, notebook)


def declared_in(
    source: str, notebook: Path, *, literal: bool = True
) -> dict[str, Parameter]:
    """Return the parameters that the source of a tagged cell declares, in order.

    Parameters
    ----------
    source : str
    notebook : Path
        Whose name errors begin with.
    literal : bool
        Whether every value must be a literal; if not, one that is none may be anything.

    Raises
    ------
    SettingError
        A line that is not ``name = literal``.
    """
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise SettingError(
            f"{notebook.name}: parameters line {error.lineno}: {error.msg}"
        ) from error
    declared = {}
    for line in body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value):
                annotation = ""
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                annotation = ast.unparse(line.annotation).strip("'\"")
            case _:
                raise _not_literal(notebook, line)
        try:
            default = ast.literal_eval(value)
        except ValueError as error:
            if literal:
                raise _not_literal(notebook, line) from error
            default, annotation = None, ""
        declared[name] = parameter(name, default, annotation)
    return declared


def _not_literal(notebook: Path, line: ast.stmt) -> SettingError:
    return SettingError(
        f"{notebook.name}: parameters line {line.lineno}: got "
        f"{ast.unparse(line).splitlines()[0]!r}, expected name = literal"
    )


def parameter(name: str, default: Any, annotation: str) -> Parameter:
    """Return a parameter of a default and an annotation (none: empty).

    Raises
    ------
    SettingError
        The default is not of the annotated type.
    """
    # "int or None" in quotes says what int | None does: papermill's help reads no bar.
    kinds = re.split(r"\s*\|\s*|\s+or\s+", annotation)
    samples = [SAMPLES[kind] for kind in kinds if kind in SAMPLES]
    sample = samples[0] if samples else default
    optional = default is None or "None" in kinds
    made = Parameter(default, sample, optional, annotation)
    return made._replace(default=coerced(name, default, made))


def coerced(name: str, value: Any, parameter: Parameter) -> Any:
    """Return a value in the type of a parameter's default.

    Text is read as that type, as it comes from the command line or as YAML leaves it
    (``1e-3``). numpy's numbers and arrays become numbers and lists. ``None`` is legal
    where it is the default or in the annotation.

    Raises
    ------
    SettingError
        The value cannot be converted, or is not ``plain``, or something stands twice in
        a list; names the parameter, the value and the type.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if parameter.optional and (value is None or value == "None"):
        return None
    try:
        converted = plain({name: _converted(value, parameter.sample)})[name]
    except _Unfit:
        wanted = _kind(parameter.sample)
        wanted += " or None" if parameter.optional else ""
        raise SettingError(f"{name}: got {value!r}, expected {wanted}") from None
    _refuse_twice(name, converted)
    return converted


def _refuse_twice(name: str, value: Any) -> None:
    """Refuse a list in which something stands twice, at any depth.

    Two runs of one seed are one run, and their spread of 0 is none.
    """
    if isinstance(value, dict):
        for key, part in value.items():
            _refuse_twice(f"{name}: {key}", part)
    elif isinstance(value, list):
        twice = next((part for i, part in enumerate(value) if part in value[:i]), None)
        if twice is not None:
            raise SettingError(f"{name}: got {value}, in which {twice!r} stands twice")


def resolve(
    parameters: Mapping[str, Parameter], *layers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the value of every parameter; later layers win.

    Raises
    ------
    SettingError
        An unknown name (the closest known one is suggested), or a value of another
        type than the default.
    """
    values = {name: parameter.default for name, parameter in parameters.items()}
    for layer in layers:
        for name, value in layer.items():
            if name not in parameters:
                hint = suggestion(str(name), list(parameters))
                raise SettingError(f"{name}: unknown parameter; {hint}")
            values[name] = coerced(name, value, parameters[name])
    return values


def _converted(value: Any, sample: Any) -> Any:
    if sample is None:
        return _literal(value)
    if value is None or value == "None":
        raise _Unfit
    match sample:
        case bool():
            return _boolean(value)
        case int():
            return _integer(value)
        case float():
            return _number(value)
        case str():
            if not isinstance(value, str):
                raise _Unfit
            return value
        case dict():
            return _table(value, sample)
        case _:
            return _items(value, sample)


def _literal(value: Any) -> Any:
    """Return what text spells as a Python literal, else the text."""
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval(value.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value  # the last three: {[]: 1}, and brackets without end


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower() if isinstance(value, int | str) else ""
    if word not in WORDS:
        raise _Unfit
    return WORDS[word]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _Unfit
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise _Unfit from None
    if not math.isfinite(number):
        raise _Unfit
    return number


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass  # 1e3 is read as a number below
    number = _number(value)
    if not number.is_integer():
        raise _Unfit
    return int(number)


def _items(value: Any, sample: Any) -> list:
    value = unpacked(value)
    if not isinstance(value, list):
        raise _Unfit
    return [_converted(item, _item_sample(sample)) for item in value]


def _table(value: Any, sample: dict) -> dict:
    value = unpacked(value)
    if not isinstance(value, dict):
        raise _Unfit
    return {key: _converted(item, sample.get(key)) for key, item in value.items()}


def unpacked(value: Any) -> Any:
    """Return the list or table that text spells: ``[mnist, digits]``, ``{mnist: 2}``.

    Both the spellings of Python and JSON and those of YAML are read.
    """
    if not isinstance(value, str) or not value.strip().startswith(("[", "{")):
        return value
    value = _literal(value.strip())
    if isinstance(value, str) and value[0] == "{":
        try:
            return read_yaml(value, value)
        except yaml.YAMLError:
            return value
    if isinstance(value, str) and value[0] == "[" and value[-1] == "]":
        inner = value[1:-1].strip()
        return [item.strip() for item in inner.split(",")] if inner else []
    return value


def _item_sample(sample: Any) -> Any:
    """Return the type of a list's items; a float anywhere makes them all floats."""
    if not sample:
        return None
    floats = [item for item in sample if isinstance(item, float)]
    return floats[0] if floats else sample[0]


def _kind(sample: Any) -> str:
    match sample:
        case None:
            return "a value"
        case bool():
            return "true or false"
        case int():
            return "an integer"
        case float():
            return "a finite number"
        case str():
            return "text"
        case dict():
            return "a table of values like the default's"
        case _:
            inner = _item_sample(sample)
            return "a list" + ("" if inner is None else f", each {_kind(inner)}")
