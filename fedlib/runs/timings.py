"""How long a round of a finished run took."""

import json

from fedlib.runs import published
from fedlib.runs.address import folder, key
from fedlib.runs.checks import (
    is_timing,
)
from fedlib.runs.spec import Spec


def _timing(spec: Spec) -> dict[str, float] | None:
    path = folder(spec) / "timing.json"
    try:
        timing = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    except (ValueError, RecursionError):  # damaged; only a forecast needs it
        timing = None
    return timing if is_timing(timing) else published.timing(spec, key(spec))


def seconds_per_round(spec: Spec) -> float | None:
    """Return the measured seconds of one round of a finished run, else None."""
    timing = _timing(spec)
    if timing is None:
        return None
    return timing["train_seconds_per_round"] + timing["evaluate_seconds_per_round"]


def cpu_seconds_per_round(spec: Spec) -> float | None:
    """Return the processor's seconds of one round of a finished run, else None.

    They do not depend on what else the machine did, and leave out a GPU's work. Runs of
    earlier versions have not recorded them; seconds on the clock stand in.
    """
    timing = _timing(spec) or {}
    return timing.get("cpu_seconds_per_round", seconds_per_round(spec))
