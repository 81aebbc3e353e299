"""Parameters that have a value per data set: ``rounds = {"cifar10": 100}``.

A table of a notebook whose keys are data sets is one. A single value in its place
stands for all data sets that were chosen; a table must have each of these, and nothing
that is no data set.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedlib.data import DATASETS
from fedlib.papers.placing import of_dataset
from fedlib.rebuild import parameters
from fedlib.rebuild.parameters import Parameter
from fedlib.runs.spec import SettingError, suggestion

NOT_ONE = {"runs", "sweeps", "picture"}  # tables by something else, or drawn only


def resolve(
    known: Mapping[str, Parameter],
    of_paper: Iterable[str],
    *layers: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the value of every parameter, as ``parameters.resolve`` does.

    Parameters
    ----------
    known : mapping
        The parameters that a notebook declares.
    of_paper : iterable of str
        Data sets that may be chosen.
    *layers
        Values of some parameters; later ones win.

    Raises
    ------
    SettingError
        What ``parameters.resolve`` refuses; also another data set, and a table without
        a value for a chosen one, or with a key that is no data set.
    """
    tables = {
        name: _each(name, parameter)
        for name, parameter in known.items()
        if name not in NOT_ONE and _by_dataset(parameter.default)
    }
    datasets = _chosen(known, *layers)
    for dataset in datasets:
        if dataset not in DATASETS:
            hint = suggestion(dataset, list(DATASETS))
            raise SettingError(f"dataset: got {dataset!r}; {hint}")
        if dataset not in of_paper:
            wanted = f"expected one of {list(of_paper)}"
            raise SettingError(f"dataset: got {dataset!r}, {wanted}")
    spread = [
        {
            name: _spread(name, value, tables[name], datasets)
            if name in tables
            else value
            for name, value in layer.items()
        }
        for layer in layers
    ]
    any_value = {name: known[name]._replace(sample=None) for name in tables}
    values = parameters.resolve({**known, **any_value}, *spread)
    for name in tables:
        for dataset in datasets:
            of_dataset(name, values[name], dataset)
    return values


def _chosen(known: Mapping[str, Parameter], *layers: Mapping[str, Any]) -> list[str]:
    """Return the data sets that ``dataset`` or ``datasets`` name."""
    asked = {name: known[name] for name in ("dataset", "datasets") if name in known}
    given = [{n: layer[n] for n in asked if n in layer} for layer in layers]
    chosen = []
    for value in parameters.resolve(asked, *given).values():
        chosen += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(chosen))


def _by_dataset(default: Any) -> bool:
    return isinstance(default, dict) and bool(default) and default.keys() <= {*DATASETS}


def _each(name: str, parameter: Parameter) -> Parameter:
    """Return what a single value of a table is, by its annotation and its default."""
    value = next(iter(parameter.default.values()))
    match = re.fullmatch(r"dict\[str, (.+)\]", parameter.annotation)
    return parameters.parameter(name, value, match[1] if match else "")


def _spread(name: str, value: Any, single: Parameter, datasets: Sequence[str]) -> Any:
    """Return a table of values in their type, whether one was given or a value."""
    value = parameters.unpacked(value)
    if not isinstance(value, dict):
        one = parameters.coerced(name, value, single)
        return dict.fromkeys(datasets, one)
    for key in value:
        if key not in DATASETS:
            hint = suggestion(str(key), list(DATASETS))
            raise SettingError(f"{name}: got a value for {key!r}; {hint}")
    return {
        key: parameters.coerced(f"{name} of {key}", item, single)
        for key, item in value.items()
    }
