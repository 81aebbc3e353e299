"""fedlib: five papers on federated prototype learning, reproducible in Jupyter."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedlib import sources as _sources

if TYPE_CHECKING:
    from fedlib import papers
    from fedlib.federation import Federation, federation
    from fedlib.results import Result
    from fedlib.runs import run, run_many
    from fedlib.spec import SettingError, Spec

__version__ = "0.1.0"
__all__ = [
    "Federation",
    "Result",
    "SettingError",
    "Spec",
    "federation",
    "papers",
    "run",
    "run_many",
]

_sources.remember(__name__)  # the code as it is now: what follows imports no other

# What is imported when it is asked for: torch and all that stands on it take seconds.
_HOMES = {
    "Federation": "fedlib.federation",
    "Result": "fedlib.results",
    "SettingError": "fedlib.spec",
    "Spec": "fedlib.spec",
    "federation": "fedlib.federation",
    "run": "fedlib.runs",
    "run_many": "fedlib.runs",
}


def __getattr__(name: str) -> Any:
    """Import a name of the public surface, or a module of fedlib, when first used."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and find_spec(f"fedlib.{name}"):
        value = import_module(f"fedlib.{name}")
    else:
        raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """``fedlib.federation`` is the function also after the module was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
