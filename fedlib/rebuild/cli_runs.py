"""The commands ``fedlib runs``: what is stored, published, proven and vouched for."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedlib.support.paths import PRESETS

if TYPE_CHECKING:
    from fedlib.runs.adoption import Outcome
    from fedlib.runs.stored import Stored

Command = TypeVar("Command", bound=Callable[..., Any])


def _selection(command: Command) -> Command:
    """Add the arguments that choose runs."""
    preset = click.option(
        "--preset",
        default="cpu",
        show_default=True,
        metavar="|".join(PRESETS),
        help="Of the artefacts that are named.",
    )
    return click.argument("names", nargs=-1, metavar="[RUN|ARTEFACT]...")(
        preset(command)
    )


def _chosen(names: Sequence[str], preset: str) -> "list[Stored]":
    """Return the stored runs of keys and of artefacts; all where none is named."""
    from fedlib.rebuild.artefacts import prepare, select
    from fedlib.runs import stored

    keys = [name for name in names if not set(name) - set("0123456789abcdef")]
    rest = [name for name in names if name not in keys]
    by_key = {run.key: run for run in stored.select(keys)} if keys or not names else {}
    for artefact in select(rest) if rest else ():
        by_key |= {run.key: run for run in stored.of(prepare(artefact, preset).specs)}
    return list(by_key.values())


@click.group("runs")
def runs_group() -> None:
    """Look after finished runs: those in the cache, and the published ones.

    RUN is the beginning of a key. ARTEFACT is as for rebuild.
    """


@runs_group.command("list")
@_selection
def list_runs(names: tuple[str, ...], preset: str) -> None:
    """List what is stored, where, and whether today's code would find it."""
    import pandas as pd

    from fedlib.runs.stored import state

    rows = []
    for run in _chosen(names, preset):
        spec = run.told["spec"]
        variant = spec["hp"].get("variant", "paper")
        method = spec["method"] + (f":{variant}" if variant != "paper" else "")
        about = [spec["dataset"], method, spec["rounds"], spec["seed"]]
        rows.append((run.key, *about, run.where, run.bytes, state(run)))
    columns = ["key", "dataset", "method", "rounds", "seed", "where", "bytes", "state"]
    frame = pd.DataFrame(rows, columns=columns)
    click.echo(frame.to_string(index=False) if rows else "none")
    current = sum(row[-1] == "current" for row in rows)
    size = frame["bytes"].sum() / 1e6
    click.echo(f"{len(rows)} runs, {current} current, {size:.1f} MB")


@runs_group.command("show")
@click.argument("name", metavar="RUN")
def show_run(name: str) -> None:
    """Print a run's settings, where its numbers come from, and its last accuracies."""
    import json

    from fedlib.runs import stored
    from fedlib.runs.results import Result

    (run,) = stored.select([name])
    record = dict(run.told)
    spec = record.pop("spec")
    click.echo(f"{run}\nin {run.where}; {stored.state(run)}")
    click.echo(f"settings: {json.dumps(spec, ensure_ascii=False)}")
    for part in ("device", "kernel", "versions", "code", "data", "timing"):
        if record.get(part):
            value = record[part]
            click.echo(
                f"{part}: {value if isinstance(value, str) else json.dumps(value)}"
            )
    try:
        summary = Result(stored.spec_of(run.told), run.key, run.log()).summary()
    except ValueError as error:
        click.echo(f"accuracies: not read: {error}")
    else:
        columns = ["model", "rule", "data", "last", "best", "best_round", "over", "who"]
        shown = summary[columns].assign(paper=summary["is_paper_rule"])
        click.echo(shown.round(4).to_string())
    for voucher in record.get("vouchers", []):
        codes = f"code {voucher['code_before']} -> {voucher['code_after']}"
        click.echo(
            f"{voucher['date']}: {codes}, "
            f"{voucher['rounds']} rounds played, largest difference "
            f"{voucher['largest_difference']:g}, tolerance {voucher['tolerance']:g}"
        )


@click.command("export")
@click.argument("name", metavar="RUN")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False),
    help="The folder, which is made; method, data set, seed and key name it without.",
)
def export_run(name: str, output: str | None) -> None:
    """Write a finished run as a folder: its log, its settings, where it comes from.

    RUN is the beginning of a key. Exits 2 where the folder holds something already.
    """
    from pathlib import Path

    from fedlib.runs import export, stored

    (run,) = stored.select([name])
    spec = run.told["spec"]
    own = f"{spec['method']}-{spec['dataset']}-seed{spec['seed']}-{run.key[:8]}"
    folder = Path(output or own)
    for file in export.write(run, folder):
        click.echo(file)


@runs_group.command("publish")
@_selection
def publish_runs(names: tuple[str, ...], preset: str) -> None:
    """Copy finished runs of the cache into the folder of published runs.

    A run that is named by its key is published as it is; of artefacts, and of the whole
    cache, those that today's code finds.
    """
    from fedlib.runs import published
    from fedlib.runs.stored import why_stale

    count = Counter()
    for run in _chosen(names, preset):
        by_key = any(run.key.startswith(name) for name in names)
        stale = "" if by_key else why_stale(run.told)
        if run.cache is None or run.results is not None:
            count["there already"] += 1
        elif stale:
            count["stale"] += 1
            click.echo(f"{run}: stale: {stale}; fedlib runs adopt {run.key}")
        else:
            path = published.publish(run.key)
            count["published"] += 1
            click.echo(f"{run}: {path.name}")
    if not count:
        click.echo("no run of these is stored; fedlib rebuild computes them")
    _end(count, ("published", "there already", "stale"))


_jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes that play. Default: FEDLIB_JOBS, else all cores.",
)


@runs_group.command("verify")
@_selection
@_jobs
@click.option("--sample", type=click.IntRange(min=1), help="So many of them, drawn.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Played."
)
def verify_runs(
    names: tuple[str, ...],
    preset: str,
    jobs: int | None,
    sample: int | None,
    rounds: int,
) -> None:
    """Play the first rounds of stored runs again, and compare what they log.

    Stale runs are left out. Exits 1 where a number differs.
    """
    from fedlib.runs import adoption
    from fedlib.runs.stored import why_stale

    chosen = _chosen(names, preset)
    current = [run for run in chosen if not why_stale(run.told)]
    if len(current) < len(chosen):
        click.echo(f"{len(chosen) - len(current)} stale runs are left out")
    drawn = random.sample(current, min(sample or len(current), len(current)))
    _tell(adoption.verify(drawn, rounds, _processes(jobs)), ("same", "stale"))


@runs_group.command("adopt")
@_selection
@_jobs
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Played."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=0.0,
    help="How far numbers may be apart, where arithmetic was changed; default: not.",
)
def adopt_runs(
    names: tuple[str, ...], preset: str, jobs: int | None, rounds: int, tolerance: float
) -> None:
    """File runs of older code under today's keys, where their first rounds are today's.

    What acts later than these rounds is not seen. Exits 1 where a run stays stale.
    """
    from fedlib.runs import adoption

    outcomes = adoption.adopt(
        _chosen(names, preset), rounds, tolerance, _processes(jobs)
    )
    _tell(outcomes, ("adopted", "current", "stale"))


def _processes(jobs: int | None) -> int:
    from fedlib.runs.many import jobs_of_machine

    return jobs or jobs_of_machine()


def _tell(
    outcomes: "Iterable[tuple[Stored, Outcome]]", statuses: Sequence[str]
) -> None:
    """Say what came of each run as it comes, and exit 1 if one is stale."""
    count = Counter()
    for run, (status, _, words) in outcomes:
        count[status] += 1
        if status != "current":
            click.echo(f"{run}: {status}: {words}")
    _end(count, statuses)


def _end(count: Counter[str], statuses: Sequence[str]) -> None:
    click.echo(", ".join(f"{status} {count[status]}" for status in statuses))
    sys.exit(1 if count["stale"] else 0)
