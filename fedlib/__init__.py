"""fedlib: five papers on federated prototype learning, reproducible in Jupyter."""

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
