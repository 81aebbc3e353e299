"""Where a notebook's table has our number beside a printed one.

Gains, counts, ratios and distances stand in the table of one notebook, which has put
the paper's number and ours into one row. It is found by its settings, and must hold
that number.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedlib import papers, registry
from fedlib.papers.source import Source

SETTINGS = (
    *("dataset", "domain", "partition", "alpha", "imbalance", "participation", "ways"),
    *("spread", "shot_spread", "virtual_per_class", "round"),
)


def reduced(path: Path) -> bool:
    """Return whether a table's provenance says that its budget was cut."""
    if not path.exists():
        return False
    notes = json.loads(path.read_text(encoding="utf-8"))["notes"]
    return any(note["kind"] == "reduced" for note in notes)


def _equal(column: pd.Series, value: Any) -> pd.Series:
    """Return where a column has a value; an empty cell goes with any."""
    if isinstance(value, str):
        return column.isna() | (column.astype(str) == value)
    return column.isna() | np.isclose(pd.to_numeric(column, "coerce"), value)


def _label(source: Source, wanted: pd.Series) -> str:
    """Return by what name a notebook's table has the row of a method or a variant."""
    variant = wanted.get("variant")
    if pd.isna(variant):
        return wanted["method"]
    label = source.labels.get(variant, variant)
    return label.format(method=registry.title(wanted["method"]))


def row_of(source: Source, wanted: pd.Series, there: pd.DataFrame) -> pd.Series | None:
    """Return the row of a notebook's table with the settings of a paper's number.

    The notebook has put that number into it; a row without one is beside no number.

    Raises
    ------
    ValueError
        Several rows could be meant, or the row's own number of the paper is another.
    """
    shared = [name for name in (*SETTINGS, "cost") if name in wanted and name in there]
    equal = {name: wanted[name] for name in shared}
    if "method" in wanted and "method" in there:
        equal["method"] = _label(source, wanted)
    same = pd.Series(True, there.index)
    for name, value in equal.items():
        if not pd.isna(value):
            same = same & _equal(there[name], value)
    hits = there[same].dropna(subset=[source.theirs, source.ours])
    if "value" in there:
        protocol = _protocol(source.paper, wanted["dataset"])
        rows = hits[["setting", "value"]].to_dict("records")
        swept = [_swept(row, wanted, protocol) for row in rows]
        hits = hits.loc[np.array(swept, bool)]
    where = f"{source.paper}/{source.table}: {source.column} {wanted['number']}"
    if hits[source.ours].nunique() > 1:
        raise ValueError(
            f"{where} has the settings of {len(hits)} rows of what its notebook wrote"
        )
    theirs = pd.to_numeric(hits[source.theirs], "coerce")
    if not np.isclose(theirs, wanted["number"]).all():
        raise ValueError(
            f"{where}: its notebook wrote {theirs.iloc[0]} beside these settings"
        )
    return hits.iloc[0] if len(hits) else None


def _protocol(paper: str, dataset: str) -> dict[str, Any]:
    """Return the settings that a paper's protocol has where a table tells none."""
    spec = papers.BUILDERS[paper](dataset, "fedavg")
    rest = {"imbalance": spec.imbalance, "participation": spec.participation}
    return rest | dict(spec.partition) | {"partition": spec.partition.scheme}


def _swept(row: Mapping[str, Any], wanted: pd.Series, protocol: dict) -> bool:
    """Return whether a row of a sweep has the settings of a paper's row.

    Parameters
    ----------
    row : mapping
        Its ``setting`` and ``value``.
    wanted : Series
        Settings; an empty one goes with any.
    protocol : dict
        Values of the settings that this row does not sweep.
    """
    name = {"scheme": "partition"}.get(row["setting"], row["setting"])
    own = {} if pd.isna(row["value"]) else {name: row["value"]}
    for name, value in (protocol | own).items():
        asked = wanted.get(name)
        if pd.isna(asked):
            continue
        same = (
            value == asked
            if isinstance(asked, str)
            else np.isclose(float(value), asked)
        )
        if not same:
            return False
    return True
