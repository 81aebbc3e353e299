"""fedlib: five papers on federated prototype learning, reproducible in Jupyter.

The public surface, which notebooks import: what is in ``__all__`` stays where it is
when modules move. All else has its room (CONTRIBUTING.md says which).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedlib.support import sources as _sources

if TYPE_CHECKING:
    from fedlib import papers, registry
    from fedlib.draw import panels, plot
    from fedlib.papers import study
    from fedlib.rebuild import notebook
    from fedlib.runs import reports
    from fedlib.runs.federation import Federation, federation
    from fedlib.runs.many import run_many
    from fedlib.runs.results import Result
    from fedlib.runs.runner import final, run
    from fedlib.runs.spec import SettingError, Spec

__version__ = "0.1.0"
__all__ = [
    "Federation",
    "Result",
    "SettingError",
    "Spec",
    "federation",
    "final",
    "notebook",
    "panels",
    "papers",
    "plot",
    "registry",
    "reports",
    "run",
    "run_many",
    "study",
]

_sources.remember(__name__)  # the code as it is now: what follows imports no other

# What is imported when it is asked for: torch and all that stands on it take seconds.
_HOMES = {
    "Federation": "fedlib.runs.federation",
    "Result": "fedlib.runs.results",
    "SettingError": "fedlib.runs.spec",
    "Spec": "fedlib.runs.spec",
    "federation": "fedlib.runs.federation",
    "final": "fedlib.runs.runner",
    "notebook": "fedlib.rebuild",
    "panels": "fedlib.draw",
    "plot": "fedlib.draw",
    "reports": "fedlib.runs",
    "run": "fedlib.runs.runner",
    "run_many": "fedlib.runs.many",
    "study": "fedlib.papers",
}


def __getattr__(name: str) -> Any:
    """Import a name of the public surface, or a room of fedlib, when first used."""
    home = _HOMES.get(name, "fedlib")
    if home == "fedlib" and (name.startswith("_") or not find_spec(f"fedlib.{name}")):
        raise AttributeError(f"module 'fedlib' has no attribute {name!r}")
    value = getattr(import_module(home), name, None) if home != "fedlib" else None
    value = import_module(f"{home}.{name}") if value is None else value
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
