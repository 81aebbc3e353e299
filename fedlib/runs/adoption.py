"""Stored runs under today's code: played again from the start, and vouched for.

A key stands for code, so an edit orphans the runs that it reaches, also where it moves
no number. ``adopt`` plays the first rounds of such a run again. Where they log what the
run has logged, it gets today's key, and its record says who vouches for it.

What acts later than the rounds that are played is not seen: a schedule that begins in
round 50, or rules that are evaluated every ten rounds. Play as many as a change needs.
"""

import datetime
import json
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import joblib

from fedlib.core.method import NonFiniteError
from fedlib.data import DataError
from fedlib.runs import address, compare, published, runner
from fedlib.runs.device import chosen, describe, kernel
from fedlib.runs.published import Voucher
from fedlib.runs.spec import Spec
from fedlib.runs.stored import Stored, spec_of
from fedlib.support.files import write_text
from fedlib.support.paths import cache_dir, figures_dir

ROUNDS = 3  # that are played where nobody says how many


class Outcome(NamedTuple):
    """What became of a stored run."""

    status: Literal["same", "current", "adopted", "stale"]
    key: str  # now
    words: str


class Difference(NamedTuple):
    """How far the first rounds of a run are from today's."""

    largest: float  # infinite where today's code or data cannot give such a run
    words: str  # what else is to say


def difference(run: Stored, rounds: int) -> Difference:
    """Return how far a run's first rounds are from today's.

    Parameters
    ----------
    rounds : int >= 1
        How many are played, at most.

    Raises
    ------
    DataError
        The data set is missing.
    """
    spec = Spec.model_validate(run.told["spec"])
    now = address.identity(spec)
    for name, what in (("data", "other data"), ("partition", "another partition")):
        if json.loads(json.dumps(now[name])) != run.told[name]:
            return Difference(float("inf"), what)
    try:
        played = published.compact(runner.first_rounds(spec, rounds))
    except NonFiniteError as error:
        return Difference(float("inf"), str(error))
    logs = (compare.first(log, rounds) for log in (run.log(), played))
    return Difference(compare.largest_difference(*logs), _elsewhere(run))


def _differences(
    runs: Sequence[Stored], rounds: int, jobs: int
) -> Iterator[Difference | DataError]:
    """Play runs' first rounds on several processes; errors come in their place."""
    work = (joblib.delayed(_difference_or_error)(run, rounds) for run in runs)
    played: Any = joblib.Parallel(jobs, return_as="generator")(work)
    return iter(played)


def _difference_or_error(run: Stored, rounds: int) -> Difference | DataError:
    try:
        return difference(run, rounds)
    except DataError as error:
        return error


def _elsewhere(run: Stored) -> str:
    """Return in words where a run was computed, if not as here."""
    here = (describe(chosen()), kernel())
    there = (run.told["device"], run.told.get("kernel") or here[1])
    if there == here:
        return ""
    return f"computed on {' with '.join(there)}, here {' with '.join(here)}"


def verify(
    runs: Sequence[Stored], rounds: int, jobs: int = 1
) -> Iterator[tuple[Stored, Outcome]]:
    """Play the first rounds of runs again, and compare all that they log.

    Parameters
    ----------
    rounds : int >= 1
        How many are played.
    jobs : int >= 1
        Processes that play.
    """
    for run, apart in zip(runs, _differences(runs, rounds, jobs), strict=True):
        if isinstance(apart, DataError):
            yield run, _without_data(run, apart)
        elif apart.largest == 0:
            count = _played(run, rounds)
            yield run, Outcome("same", run.key, f"same numbers in {count} rounds")
        else:
            yield run, Outcome("stale", run.key, _told(apart, run, rounds))


def _played(run: Stored, rounds: int) -> int:
    return min(rounds, run.told["spec"]["rounds"])


def _told(apart: Difference, run: Stored, rounds: int) -> str:
    infinite = apart.largest == float("inf")
    size = "other numbers" if infinite else f"differs by {apart.largest:.2g}"
    words = f"{size} in {_played(run, rounds)} rounds"
    return "; ".join(filter(None, [words, apart.words]))


def _without_data(run: Stored, error: DataError) -> Outcome:
    return Outcome("stale", run.key, " ".join(str(error).split()))


def adopt(
    runs: Sequence[Stored],
    rounds: int = ROUNDS,
    tolerance: float = 0.0,
    jobs: int = 1,
) -> Iterator[tuple[Stored, Outcome]]:
    """File runs under today's keys where their first rounds are today's, too.

    The published record of a run is replaced. In the cache it is copied, without its
    models where numbers have moved. Figures that name it by its key name the new one.

    Parameters
    ----------
    rounds : int >= 1
        How many are played.
    tolerance : float >= 0
        How far numbers may be apart (``compare.largest_difference``), for a change of
        arithmetic that was meant; 0: not at all.
    jobs : int >= 1
        Processes that play. This one files what they found, run by run.
    """
    open_runs = [run for run in runs if _settled(run) is None]
    played = _differences(open_runs, rounds, jobs)
    waiting = {run.key for run in open_runs}
    for run in runs:
        apart = next(played) if run.key in waiting else None
        settled = _settled(run)  # again: a run before it may have taken its key
        if settled is not None:
            yield run, settled
        elif isinstance(apart, DataError):
            yield run, _without_data(run, apart)
        else:
            assert apart is not None
            yield run, _filed(run, apart, rounds, tolerance)


def _filed(run: Stored, apart: Difference, rounds: int, tolerance: float) -> Outcome:
    """File a run whose first rounds were played under today's key, if they agree."""
    if apart.largest > tolerance:
        return Outcome("stale", run.key, _told(apart, run, rounds))
    spec = Spec.model_validate(run.told["spec"])
    now = json.loads(json.dumps(address.identity(spec)))
    key = published.key_of(now)
    count = _played(run, rounds)
    voucher = Voucher(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        key_before=_key_told(run),
        code_before=run.told["code"],
        code_after=now["code"],
        rounds=count,
        largest_difference=apart.largest,
        tolerance=tolerance,
    )
    if run.results:
        _republish(run, now, key, voucher)
    if run.cache:
        _carry(run, now, key, voucher)
    figures = _rename_in_figures(run.key, key)
    same = f"same numbers in {count} rounds"
    words = _told(Difference(apart.largest, ""), run, rounds) if apart.largest else same
    words += f", named in {figures} figures" if figures else ""
    return Outcome("adopted", key, f"{words}; now {key}")


def _settled(run: Stored) -> Outcome | None:
    """Return what is to say of a run that need not be played, else None."""
    try:
        spec = spec_of(run.told)
    except ValueError as error:
        return Outcome("stale", run.key, str(error))
    key = address.key(spec)
    if key == run.key and _key_told(run) == key:
        return Outcome("current", key, "current")
    if run.results and published.has(spec, key):
        return Outcome("stale", run.key, f"today's code has a run of its own, {key}")
    carried = (cache_dir() / "runs" / key / "result.safetensors").exists()
    if not run.results and carried and key != run.key:
        return Outcome("current", key, f"the cache has it as {key}")
    return None


def _key_told(run: Stored) -> str:
    """Return the key of what is told of a run: another one where it was only copied."""
    names = ("format", "spec", "data", "partition", "code")
    return published.key_of({name: run.told[name] for name in names})


def _republish(run: Stored, now: dict[str, Any], key: str, voucher: Voucher) -> None:
    """Write a published run under its new key, and remove it under the old one."""
    assert run.results is not None
    record = published.read_record(run.results)
    changed = {
        "key": key,
        "spec": now["spec"],
        "log_format": now["format"],
        "data": now["data"],
        "partition": now["partition"],
        "code": now["code"],
        "vouchers": [*record.vouchers, voucher],
    }
    log = published.read_log(run.results, record)
    published.write(record.model_copy(update=changed), log)
    published.remove(run.results)


def _carry(run: Stored, now: dict[str, Any], key: str, voucher: Voucher) -> None:
    """Copy a run in the cache to its new key."""
    assert run.cache is not None
    here = cache_dir() / "runs" / key
    if here.exists() and here != run.cache:
        return
    left_out = [".lock", *(["final*"] if voucher.largest_difference else [])]
    scratch = here.with_name(f"{key}.adopted")
    shutil.copytree(run.cache, scratch, ignore=shutil.ignore_patterns(*left_out))
    record = json.loads((scratch / "spec.json").read_text(encoding="utf-8")) | now
    record["sources"] = address.code_of(Spec.model_validate(now["spec"])).parts
    record["vouchers"] = [*record.get("vouchers", []), voucher.model_dump()]
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    write_text(scratch / "spec.json", text)
    if here == run.cache:
        shutil.rmtree(here)
    scratch.rename(here)


def _rename_in_figures(before: str, after: str) -> int:
    """Write a run's new key into the figures that name it; return how many do."""
    count = 0
    for path in sorted(figures_dir().rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        if f'"{before}"' in text:
            write_text(path, text.replace(f'"{before}"', f'"{after}"'))
            count += 1
    return count
