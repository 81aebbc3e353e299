"""Where a notebook's parameter goes: spec, partition, training or hyper-parameters."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from fedlib import papers, registry
from fedlib.core.training import Training
from fedlib.partitions import SCHEMES
from fedlib.runs.spec import SettingError, Spec, refuse_unknown, suggestion
from fedlib.support import spelling

# Parameters of a notebook that span the grid, or that no run sees.
SPANNING = {
    "preset",
    "dataset",
    "datasets",
    "runs",
    "sweeps",
    "seed",
    "seeds",
    "picture",
}
COMPOUND = {"dataset", "method", "hp", "partition", "training", "transform", "seed"}


def parsed(text: str) -> tuple[str, dict[str, str]]:
    """Return method and hyper-parameters of a run's text.

    It is ``method``, ``method:variant``, or ``method:switch:value``, with more pairs
    of switch and value behind. A switch may also be a setting of training, of the run
    or of the paper's function, such as ``learning_rate`` or ``local_unit``
    (``switched``).

    Raises
    ------
    ValueError
        A switch without its value.
    """
    name, *rest = text.split(":")
    if len(rest) == 1:
        return name, {"variant": rest[0]}
    if len(rest) % 2:
        raise ValueError(
            f"runs: got {text!r}, expected method, method:variant or "
            "method:switch:value, with more pairs behind"
        )
    return name, dict(zip(rest[::2], rest[1::2], strict=True))


def labelled(runs: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Return label -> text of each run; a list's runs label themselves.

    A method's label is its name; a variant's is as printed, ``FedPA (reference)``.
    """
    if isinstance(runs, Mapping):
        return dict(runs)
    by_label = {}
    for text in runs:
        name, hp = parsed(text)
        switches = ", ".join(v if k == "variant" else f"{k}={v}" for k, v in hp.items())
        by_label[f"{registry.title(name)} ({switches})" if switches else name] = text
    return by_label


@cache
def _hp_names() -> frozenset[str]:
    """Return the names of all methods' hyper-parameters."""
    fields = (registry.method(name).hp.model_fields for name in registry.METHODS)
    return frozenset(name for names in fields for name in names)


def switched(paper: str, method: str, switches: Mapping[str, str]) -> tuple[dict, dict]:
    """Return what a run's text says of training and length, and of its method.

    Raises
    ------
    SettingError
        A variant of a method that has none.
    """
    own = registry.method(method).hp.model_fields
    if "variant" in switches and "variant" not in own:
        raise SettingError(
            f"runs: got {method}:{switches['variant']}, but {method} has no variants; "
            f"its switches are {sorted(own)}, as {method}:switch:value"
        )
    outside = ({*Training.model_fields} | of_protocol(paper)) - {*own}
    general = {n: v for n, v in switches.items() if n in outside}
    return general, {n: v for n, v in switches.items() if n not in outside}


def of_protocol(paper: str) -> set[str]:
    """Return the settings of a whole run: fields of a spec, arguments of a paper's."""
    own = {*inspect.signature(papers.BUILDERS[paper]).parameters}
    own -= {"dataset", "method", "changes", "ways"}
    return own | ({*Spec.model_fields} - COMPOUND)


def setting_names(paper: str) -> set[str]:
    """Return the names of all settings, whatever scheme or method they are of."""
    models = [Training, *SCHEMES.values()]
    fields = {name for model in models for name in model.model_fields}
    return fields | of_protocol(paper) | _hp_names()


def placed(
    paper: str, dataset: str, method: str, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings as changes of a paper's protocol, each where its field is.

    None stands for the paper's own value. A hyper-parameter that only other methods
    have is left out.

    Raises
    ------
    ValueError
        A name that is no setting of anything; the closest is suggested.
    """
    protocols = papers.PAPERS[paper]
    if dataset not in protocols:
        raise ValueError(
            f"dataset: got {dataset!r}, expected one of {list(protocols)}"
            f"{spelling.hint(dataset, protocols)}"
        )
    given = {name: value for name, value in settings.items() if value is not None}
    scheme = given.get("scheme", protocols[dataset].partition.scheme)
    if scheme not in SCHEMES:
        raise ValueError(f"scheme: got {scheme!r}; {suggestion(scheme, list(SCHEMES))}")
    plain = of_protocol(paper)
    parts: dict[str, Iterable[str]] = {
        "partition": SCHEMES[scheme].model_fields,
        "training": Training.model_fields,
        "hp": registry.method(method).hp.model_fields,
    }
    known = {name for fields in parts.values() for name in fields} | plain | _hp_names()
    changes: dict[str, Any] = {}
    for name, value in given.items():
        refuse_unknown([name], known)
        if name in plain:
            changes[name] = value
            continue
        for part, fields in parts.items():
            if name in fields:
                changes.setdefault(part, {})[name] = value
                break
    return changes


def several(p: Mapping[str, Any], name: str) -> list:
    """Return what a parameter lists, or the one thing that its singular names."""
    if name in p and f"{name}s" in p:
        raise SettingError(f"{name}: got {name} and {name}s, expected one of the two")
    return p[f"{name}s"] if f"{name}s" in p else [p[name]]


def of_dataset(name: str, value: Any, dataset: str) -> Any:
    """Return a setting's value for a data set: of its table, or the one for all.

    Raises
    ------
    SettingError
        The table lacks the data set.
    """
    if not isinstance(value, Mapping):
        return value
    if dataset not in value:
        table = ", ".join(f"{key}: {one}" for key, one in value.items())
        raise SettingError(
            f"{name} has no value for {dataset!r}; add one to {{{table}}}, or give one "
            "value for all data sets"
        )
    return value[dataset]
