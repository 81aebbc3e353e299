"""The methods by name; a method joins with one line here."""

import difflib
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from fedlib.sources import remember

if TYPE_CHECKING:  # a list of names needs no torch
    from fedlib.method import Method

METHODS = {
    "gfpl": "fedlib.methods.gfpl",
    "fedpa": "fedlib.methods.fedpa",
    "fedmps": "fedlib.methods.fedmps",
    "fedhpro": "fedlib.methods.fedhpro",
    "fedpg": "fedlib.methods.fedpg",
    "local": "fedlib.baselines.local",
    "fedavg": "fedlib.baselines.fedavg",
    "fedprox": "fedlib.baselines.fedprox",
    "fesem": "fedlib.baselines.fesem",
    "fedper": "fedlib.baselines.fedper",
    "fedrep": "fedlib.baselines.fedrep",
    "fedproto": "fedlib.baselines.fedproto",
    "fedfa": "fedlib.baselines.fedfa",
    "fedensemble": "fedlib.baselines.fedensemble",
    "fedgen": "fedlib.baselines.fedgen",
    "fedhkd": "fedlib.baselines.fedhkd",
    "moon": "fedlib.baselines.moon",
    "fedntd": "fedlib.baselines.fedntd",
    "fedgkd": "fedlib.baselines.fedgkd",
    "fedproc": "fedlib.baselines.fedproc",
    "fedtgp": "fedlib.baselines.fedtgp",
    "fedgmkd": "fedlib.baselines.fedgmkd",
    "fedrcl": "fedlib.baselines.fedrcl",
    "fedsa": "fedlib.baselines.fedsa",
    "vhl": "fedlib.baselines.vhl",
    "ccvr": "fedlib.baselines.ccvr",
}


def method(name: str) -> "Method":
    """Return a method's record.

    Raises
    ------
    ValueError
        Unknown name, and the closest one is suggested; or a method that has one
        function of a pair without the other.
    """
    if name not in METHODS:
        close = difflib.get_close_matches(name, METHODS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"method: got {name!r}, expected one of {list(METHODS)}{hint}")
    from fedlib.method import complete  # with torch, which a list of names needs not

    if METHODS[name] not in sys.modules:
        remember(METHODS[name])
    return complete(import_module(METHODS[name]).METHOD)
