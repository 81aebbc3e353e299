"""What runs cost, before they are computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from fedlib.data import DataError
from fedlib.rebuild import staleness
from fedlib.rebuild.artefacts import Artefact, prepare, select
from fedlib.runs import runner, shapes, timings
from fedlib.runs.cost import kind
from fedlib.runs.spec import Spec

PATIENCE = 3.0  # seconds of a round, by its shapes, up to which it is measured


def text_of(spec: Spec) -> str:
    """Return what tells a run from others."""
    return spec.model_dump_json()


def distinct(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs without repetitions."""
    return list({text_of(spec): spec for spec in specs}.values())


def roughly(spec: Spec) -> float | None:
    """Return the seconds of a whole run by its shapes alone; None: nothing is known."""
    per_round = shapes.seconds_per_round(spec)
    return None if per_round is None else spec.rounds * per_round


class Speeds:
    """Seconds per round of runs of a kind."""

    def __init__(self, chosen: Sequence[Artefact]):
        self.known: dict[str, float] = {}
        for artefact in chosen:
            for spec in distinct(artefact.specs):
                try:
                    seconds = timings.seconds_per_round(spec)
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

    def long(self, specs: Sequence[Spec]) -> list[Spec]:
        """Return the runs of unknown kinds that would take long to measure."""
        return [
            spec
            for spec in specs
            if kind(spec) not in self.known
            and (shapes.seconds_per_round(spec) or 0.0) > PATIENCE
        ]

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
        not here, and that are not counted as missing), ``rounds`` and ``seconds`` of
        the missing runs and of those without data. The speed is that of a finished run
        of the same kind, else of two rounds that are run for it. ``by_shape`` counts
        the runs that have no data or whose two rounds would take long: of them only the
        clients' training is known, from their shapes (``shapes.seconds_per_round``).
        ``unknown`` counts those of which nothing is known; NaN seconds where that is
        all of them, or where no run is kept: what a notebook computes is not known.

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
        missing, no_data = [], []
        for spec in specs:
            try:
                missing += runner.pending([spec])
            except DataError:
                no_data.append(spec)
        todo = [*missing, *no_data]
        long = speeds.long(missing)
        rough = [roughly(spec) for spec in [*no_data, *long]]
        known = [seconds for seconds in rough if seconds is not None]
        seconds = speeds.seconds([spec for spec in missing if spec not in long])
        unknown = len(rough) - len(known)
        nothing = not specs or (bool(unknown) and unknown == len(todo))
        rows.append(
            {
                "name": artefact.name,
                "runs": len(specs),
                "cached": len(specs) - len(todo),
                "missing": len(missing),
                "no_data": len(no_data),
                "by_shape": len(known),
                "unknown": unknown,
                "rounds": sum(spec.rounds for spec in todo),
                "seconds": float("nan") if nothing else seconds + sum(known),
            }
        )
    return pd.DataFrame(rows)


def standing(name: str, preset: str) -> tuple[str, str]:
    """Return the state of an artefact in a word, and the time of all its runs.

    The word is ``current``, ``stale``, ``never`` (built) or ``no data``; the time is
    that of finished runs of the same kinds, ``?`` where there is none or where no run
    is kept.

    Raises
    ------
    SettingError
        Anything wrong with a name or parameter.
    """
    artefact = prepare(name, preset)
    specs = distinct(artefact.specs)
    try:
        reasons = staleness.why_stale(artefact)
    except DataError:
        return "no data", "?"
    state = "never" if reasons == ["never built"] else "stale"
    speeds = Speeds([artefact])
    known = specs and all(kind(spec) in speeds.known for spec in specs)
    return state if reasons else "current", (
        duration(speeds.seconds(specs)) if known else "?"
    )


def duration(seconds: float) -> str:
    """Return seconds for people: ``8 s``, ``3 min``, ``2.5 h``, ``1,200 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:,.{int(seconds < 360_000)}f} h"
