"""The methods by name; a method joins with one line here."""

import difflib
from importlib import import_module

from fedlib.method import Method

METHODS = {
    "gfpl": "fedlib.methods.gfpl",
    "fedpa": "fedlib.methods.fedpa",
    "fedmps": "fedlib.methods.fedmps",
    "fedhpro": "fedlib.methods.fedhpro",
    "fedpg": "fedlib.methods.fedpg",
    "local": "fedlib.baselines.local",
    "fedavg": "fedlib.baselines.fedavg",
    "fedproto": "fedlib.baselines.fedproto",
    "fedproc": "fedlib.baselines.fedproc",
    "fedhkd": "fedlib.baselines.fedhkd",
    "fedgmkd": "fedlib.baselines.fedgmkd",
    "fedtgp": "fedlib.baselines.fedtgp",
    "fedsa": "fedlib.baselines.fedsa",
    "fedprox": "fedlib.baselines.fedprox",
    "moon": "fedlib.baselines.moon",
    "fedntd": "fedlib.baselines.fedntd",
    "fedgkd": "fedlib.baselines.fedgkd",
    "fedensemble": "fedlib.baselines.fedensemble",
    "fedgen": "fedlib.baselines.fedgen",
    "ccvr": "fedlib.baselines.ccvr",
    "vhl": "fedlib.baselines.vhl",
    "fedper": "fedlib.baselines.fedper",
    "fedrep": "fedlib.baselines.fedrep",
    "fesem": "fedlib.baselines.fesem",
    "fedfa": "fedlib.baselines.fedfa",
    "fedrcl": "fedlib.baselines.fedrcl",
}


def method(name: str) -> Method:
    """Return a method's record.

    Raises
    ------
    ValueError
        Unknown name; the closest one is suggested.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"method: got {name!r}, expected one of {list(METHODS)}{hint}")
    return import_module(METHODS[name]).METHOD


def presets(name: str, paper: str, dataset: str, table: str = "PRESETS") -> dict:
    """Return the settings that a paper uses for a method on a data set.

    Parameters
    ----------
    table : "PRESETS" or "TRAINING"
        Hyper-parameters, or how clients train where it is not as all others do.
    """
    found = getattr(import_module(METHODS[name]), table, {}).get(paper, {})
    return found.get("*", {}) | found.get(dataset, {})
