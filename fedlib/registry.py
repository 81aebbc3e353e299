"""The methods by name; a method joins with one line here."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from fedlib.support import spelling
from fedlib.support.sources import remember

if TYPE_CHECKING:  # a list of names needs no torch
    from fedlib.core.method import Method

# name -> how it is printed, and its module
METHODS = {
    "gfpl": ("GFPL", "fedlib.methods.gfpl"),
    "fedpa": ("FedPA", "fedlib.methods.fedpa"),
    "fedmps": ("FedMPS", "fedlib.methods.fedmps"),
    "fedhpro": ("FedHPro", "fedlib.methods.fedhpro"),
    "fedpg": ("FedPG", "fedlib.methods.fedpg"),
    "local": ("Local", "fedlib.baselines.local"),
    "fedavg": ("FedAvg", "fedlib.baselines.fedavg"),
    "fedprox": ("FedProx", "fedlib.baselines.fedprox"),
    "fesem": ("FeSEM", "fedlib.baselines.fesem"),
    "fedper": ("FedPer", "fedlib.baselines.fedper"),
    "fedrep": ("FedRep", "fedlib.baselines.fedrep"),
    "fedproto": ("FedProto", "fedlib.baselines.fedproto"),
    "fedfa": ("FedFA", "fedlib.baselines.fedfa"),
    "fedensemble": ("FedEnsemble", "fedlib.baselines.fedensemble"),
    "fedgen": ("FedGen", "fedlib.baselines.fedgen"),
    "fedhkd": ("FedHKD", "fedlib.baselines.fedhkd"),
    "moon": ("MOON", "fedlib.baselines.moon"),
    "fedntd": ("FedNTD", "fedlib.baselines.fedntd"),
    "fedgkd": ("FedGKD", "fedlib.baselines.fedgkd"),
    "fedproc": ("FedProc", "fedlib.baselines.fedproc"),
    "fedtgp": ("FedTGP", "fedlib.baselines.fedtgp"),
    "fedgmkd": ("FedGMKD", "fedlib.baselines.fedgmkd"),
    "fedrcl": ("FedRCL", "fedlib.baselines.fedrcl"),
    "fedsa": ("FedSA", "fedlib.baselines.fedsa"),
    "vhl": ("VHL", "fedlib.baselines.vhl"),
    "ccvr": ("CCVR", "fedlib.baselines.ccvr"),
}


def title(name: str) -> str:
    """Return the printed name of a method; another name, of a variant, stays."""
    return METHODS[name][0] if name in METHODS else name


def module(name: str) -> str:
    """Return the module of a method, by its dotted name."""
    return METHODS[name][1]


def method(name: str) -> "Method":
    """Return a method's record.

    Raises
    ------
    ValueError
        Unknown name, and the closest one is suggested; or a method that has one
        function of a pair without the other.
    """
    if name not in METHODS:
        raise ValueError(
            f"method: got {name!r}, expected one of {list(METHODS)}"
            f"{spelling.hint(name, METHODS)}"
        )
    from fedlib.core.method import (
        complete,  # with torch, which a list of names needs not
    )

    if module(name) not in sys.modules:
        remember(module(name))
    return complete(import_module(module(name)).METHOD)
