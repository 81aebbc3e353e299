"""What runs cost, before they are computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedlib.data import DataError
from fedlib.rebuild import artefacts
from fedlib.rebuild.artefacts import Artefact, prepare, select
from fedlib.runs import runner
from fedlib.runs.cost import kind
from fedlib.runs.spec import Spec


def text_of(spec: Spec) -> str:
    """Return what tells a run from others."""
    return spec.model_dump_json()


def distinct(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs without repetitions."""
    return list({text_of(spec): spec for spec in specs}.values())


class Speeds:
    """Seconds per round of runs of a kind."""

    def __init__(self, chosen: Sequence[Artefact]):
        self.known: dict[str, float] = {}
        for artefact in chosen:
            for spec in distinct(artefact.specs):
                try:
                    seconds = runner.seconds_per_round(spec)
                except DataError:
                    continue  # the artefact itself reports this
                if seconds is not None:
                    self.known[kind(spec)] = seconds

    def told(self, specs: Sequence[Spec]) -> str:
        """Return in words what runs cost, without measuring any."""
        timed = [spec for spec in specs if kind(spec) in self.known]
        words = f", about {duration(self.seconds(timed))}" if timed else ""
        if len(timed) < len(specs):
            words += f"; {len(specs) - len(timed)} of a kind never timed here"
            words += " (fedlib estimate times them)"
        return words

    def seconds(self, specs: Sequence[Spec]) -> float:
        """Return the seconds of whole runs; one of an unknown kind is measured."""
        total = 0.0
        for spec in specs:
            of = kind(spec)
            if of not in self.known:
                self.known[of] = runner.measure(spec)
            total += spec.rounds * self.known[of]
        return total


def estimate(
    names: Sequence[str],
    preset: str,
    overrides: Mapping[str, Any] | None = None,
    echo: Callable[[str], None] = lambda line: None,
) -> pd.DataFrame:
    """Return what the missing runs of artefacts cost in one process on this machine.

    Parameters
    ----------
    names, preset, overrides
        As for ``make.rebuild``.
    echo : callable
        Takes a line before each artefact, whose unknown kinds of runs are measured.

    Returns
    -------
    DataFrame
        ``name``, ``runs``, ``cached``, ``missing``, ``no_data`` (runs whose data set is
        not here, counted nowhere else), ``rounds`` and ``seconds`` of the missing runs;
        NaN seconds where all of them lack data, of which nothing is known.
        The speed is that of a finished run of the same kind, else of two rounds that
        are run for it.

    Raises
    ------
    SettingError
        Anything wrong with a name or parameter.
    """
    chosen = [prepare(name, preset, overrides) for name in select(names)]
    speeds, rows = Speeds(chosen), []
    for number, artefact in enumerate(chosen, 1):
        echo(f"{number} of {len(chosen)}: {artefact.name}")
        specs = distinct(artefact.specs)
        missing, no_data = [], 0
        for spec in specs:
            try:
                missing += runner.pending([spec])
            except DataError:
                no_data += 1
        counts = (len(specs) - len(missing) - no_data, len(missing), no_data)
        rounds = sum(spec.rounds for spec in missing)
        known = bool(missing) or not no_data
        seconds = speeds.seconds(missing) if known else float("nan")
        rows.append((artefact.name, len(specs), *counts, rounds, seconds))
    columns = ["name", "runs", "cached", "missing", "no_data", "rounds", "seconds"]
    return pd.DataFrame(rows, columns=columns)


def standing(name: str, preset: str) -> tuple[str, str]:
    """Return the state of an artefact in a word, and the time of all its runs.

    The word is ``current``, ``stale``, ``never`` (built) or ``no data``; the time is
    that of finished runs of the same kinds, ``?`` where there is none.

    Raises
    ------
    SettingError
        Anything wrong with a name or parameter.
    """
    artefact = prepare(name, preset)
    specs = distinct(artefact.specs)
    try:
        reasons = artefacts.why_stale(artefact)
    except DataError:
        return "no data", "?" if specs else "0 s"
    state = "never" if reasons == ["never built"] else "stale"
    speeds = Speeds([artefact])
    known = all(kind(spec) in speeds.known for spec in specs)
    return state if reasons else "current", (
        duration(speeds.seconds(specs)) if known else "?"
    )


def duration(seconds: float) -> str:
    """Return seconds for people: ``8 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
