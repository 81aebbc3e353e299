"""The command ``fedlib``.

Commands import what they need themselves: torch, pandas and papermill take seconds, and
lists and ``--help`` need none of them.
"""

import functools
import importlib.metadata
import os
import platform
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedlib import registry
from fedlib.rebuild.cli_runs import export_run, runs_group
from fedlib.support import paths

if TYPE_CHECKING:
    import pandas as pd

    from fedlib.data.store import Policy

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn", "pandas")
PACKAGES += ("matplotlib", "seaborn", "papermill", "ipykernel", "jupyterlab")
PACKAGES += ("pydantic", "safetensors", "joblib", "numba", "click", "requests")

PRESETS = "|".join(paths.PRESETS)

Command = TypeVar("Command", bound=Callable[..., Any])


class Terminated(KeyboardInterrupt):
    """What a scheduler's SIGTERM raises: it ends a command as Ctrl-C does."""


@contextmanager
def _stoppable() -> Iterator[None]:
    """Say what is kept where Ctrl-C or SIGTERM ends a command; exit 130 or 143."""
    from fedlib.runs import many

    def terminated(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except KeyboardInterrupt as stop:
        click.echo(f"Stopped. {many.GO_ON}", err=True)
        sys.exit(143 if isinstance(stop, Terminated) else 130)
    finally:
        signal.signal(signal.SIGTERM, before)


class Plain(click.Group):
    """Commands whose errors are short: a wrong setting exits 2, missing data 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except FileNotFoundError as error:
            from fedlib.data import DataError

            if not isinstance(error, DataError):
                raise
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)
        except PermissionError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(1)
        except ValueError as error:
            click.echo("Error: " + " ".join(str(error).split()), err=True)
            ctx.exit(2)


def _table(frame: "pd.DataFrame", unknown: str = "") -> str:
    return frame.to_string(index=False, na_rep=unknown) if len(frame) else "none"


def _selection(command: Command) -> Command:
    """Add the arguments that choose artefacts and their settings."""
    for option in (
        click.option(
            "-p",
            "settings",
            type=(str, str),
            multiple=True,
            metavar="NAME VALUE",
            help="A parameter on top of the preset's; may be repeated.",
        ),
        click.option(
            "--preset",
            default="quick",
            show_default=True,
            metavar=PRESETS,
            help="Which folder of params/ to take.",
        ),
        click.argument("names", nargs=-1),
    ):
        command = option(command)
    return command


@click.group(cls=Plain)
@click.version_option(package_name="fedlib")
def main() -> None:
    """Five papers on federated prototype learning, rebuilt."""
    if os.environ.get("FEDLIB_OWN"):  # what is your own is known to every command
        from fedlib.runs import own

        own.use_named()


main.add_command(runs_group)
main.add_command(export_run)


@main.command("rebuild")
@_selection
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes of one thread for runs, and for notebooks; default FEDLIB_JOBS, "
    "else all cores, as long as there are 2 GiB for each (on GPUs one for each).",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="A Dask scheduler whose workers compute the runs; default FEDLIB_CLUSTER.",
)
@click.option("--dry-run", is_flag=True, help="Only say what is stale, and the cost.")
@click.option("--force", is_flag=True, help="Build also what is current.")
@click.option(
    "--recompute",
    is_flag=True,
    help="Build all as if no run were published, and compare with what is.",
)
def rebuild_command(
    names: tuple[str, ...],
    preset: str,
    settings: tuple[tuple[str, str], ...],
    jobs: int | None,
    cluster: str | None,
    dry_run: bool,
    force: bool,
    recompute: bool,
) -> None:
    """Rebuild tables and figures that are stale.

    NAMES are artefacts (fedmps/table3), papers (fedmps), or short names (table3) that
    only one artefact has; none means all.
    """
    paths.notebooks()  # where there are none, nothing large is imported
    from fedlib.rebuild import make
    from fedlib.runs import device, many

    device.chosen()  # a wrong name stops before the first artefact
    if not dry_run:
        many.reach(cluster)
    with _stoppable():
        outcomes = make.rebuild(
            names,
            preset,
            jobs,
            dry_run=dry_run,
            force=force,
            recompute=recompute,
            overrides=dict(settings),
            cluster=cluster,
            echo=click.echo,
        )
    count = Counter(outcome.status for outcome in outcomes)
    for outcome in outcomes:
        if outcome.status == "failed" and len(outcomes) > 1:
            click.echo(f"failed: {outcome.name}: {outcome.error}")
    if dry_run:
        click.echo(f"would build {count['planned']}")
    click.echo(", ".join(f"{s} {count[s]}" for s in ("built", "current", "failed")))
    sys.exit(1 if count["failed"] else 0)


@main.command("show")
@click.argument("names", nargs=-1, required=True)
@click.option("--preset", default="quick", show_default=True, metavar=PRESETS)
def show_command(names: tuple[str, ...], preset: str) -> None:
    """Print the tables of artefacts that were built, and the files they have written.

    NAMES are as for rebuild. A figure prints the tables beside it.
    """
    paths.notebooks()
    from fedlib.rebuild import artefacts

    texts = [artefacts.shown(name, preset) for name in artefacts.select(names)]
    click.echo("\n\n".join(texts))


@main.command("estimate")
@_selection
def estimate_command(
    names: tuple[str, ...], preset: str, settings: tuple[tuple[str, str], ...]
) -> None:
    """Say what the missing runs cost in one process on this machine.

    Where the data are not here, or where two rounds would take long to measure, the
    time is that of the clients' training alone, from the shapes of nets and images.
    """
    paths.notebooks()
    from fedlib.rebuild import costs

    say = functools.partial(click.echo, err=True)
    frame = costs.estimate(names, preset, dict(settings), say)
    hours = (frame["seconds"] / 3600).round(2)
    told = frame.assign(seconds=frame["seconds"].round(1), hours=hours)
    click.echo(_table(told, unknown="?"))
    counts = ["missing", "no_data", "by_shape", "unknown", "seconds"]
    missing, no_data, by_shape, unknown, seconds = frame[counts].sum()
    away = f" and {no_data:.0f} without data" if no_data else ""
    click.echo(f"{missing:.0f} runs missing{away}, about {costs.duration(seconds)}")
    if by_shape:
        click.echo(f"{by_shape:.0f} runs by their shapes: training alone, roughly")
    if unknown:
        click.echo(f"{unknown:.0f} runs not counted: nothing is known before the data")


@main.group("campaign")
def campaign_group() -> None:
    """Compute what the papers' numbers need, batch by batch (params/campaign.yaml)."""


@campaign_group.command("status")
@click.argument("names", nargs=-1, metavar="[BATCH]...")
def campaign_status(names: tuple[str, ...]) -> None:
    """Say what is done, running and missing, and the hours of one process left."""
    from fedlib.rebuild import campaign

    runs = campaign.plan(campaign.batches(names))
    click.echo(_table(campaign.status(runs, "batch")))
    click.echo()
    click.echo(_table(campaign.status(runs, "paper")))
    hours = sum(run.seconds for run in runs if run.state != "no data") / 3600
    missing = sum(run.state not in ("done", "no data") for run in runs)
    click.echo(f"{len(runs)} runs, {missing} to do, {hours:.1f} hours of one process")


@campaign_group.command("run")
@click.argument("names", nargs=-1, metavar="[BATCH]...")
@click.option("--jobs", type=click.IntRange(min=1), help="As for rebuild.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="End after so many; what is under way goes on the next time.",
)
def campaign_run(names: tuple[str, ...], jobs: int | None, hours: float | None) -> None:
    """Compute missing runs at the lowest priority, what tells most per hour first."""
    from fedlib.rebuild import campaign
    from fedlib.runs import device

    device.chosen()
    with _stoppable():
        done = campaign.run(campaign.batches(names), jobs, hours, click.echo)
    sys.exit(0 if done else 1)


@main.group("list")
def list_group() -> None:
    """List what there is."""


@list_group.command("artefacts")
@click.option(
    "--preset",
    metavar=PRESETS,
    help="Say also whether each is current there, and how long its runs take here.",
)
def list_artefacts(preset: str | None) -> None:
    """List tables and figures by their printed number, and what has no notebook."""
    from fedlib.rebuild import printed

    names = paths.artefact_names()
    wide = max(map(len, names), default=0)
    if preset is None:
        for name in names:
            click.echo(f"{name:<{wide}}  {printed.title(name)}")
        for name, found in printed.elsewhere().items():
            where = f"in {found.instead}: " if found.instead else "no notebook: "
            click.echo(f"{name:<{wide}}  {where}{found.why}")
        return
    from fedlib.rebuild import costs

    for name in names:
        state, time = costs.standing(name, preset)
        told = f"{name:<{wide}}  {state:<7}  {time:>7}  {printed.title(name)}"
        click.echo(told[:100])


@list_group.command("notebooks")
def list_notebooks() -> None:
    """List all notebooks."""
    for path in sorted(paths.notebooks().rglob("*.ipynb")):
        relative = path.relative_to(paths.NOTEBOOKS)
        if not any(part.startswith(".") for part in relative.parts):
            click.echo(relative.as_posix())


@list_group.command("methods")
def list_methods() -> None:
    """List methods."""
    for name in registry.METHODS:
        click.echo(f"{name}  ({registry.module(name)})")


@list_group.command("datasets")
def list_datasets() -> None:
    """List data sets and whether they are here."""
    from fedlib import data

    for name, entry in data.DATASETS.items():
        get = data.obtained(name)
        how = get if get == "built in" else f"fedlib data {get} {name}"
        state = "here" if get != "built in" and data.locate(name) else how
        click.echo(f"{name}  ({entry.title}; {state})")


@main.group("data")
def data_group() -> None:
    """Look after data sets."""


@data_group.command("status")
def data_status() -> None:
    """Say which data sets are here and from where, or how to get them."""
    import pandas as pd

    from fedlib import data
    from fedlib.data.download import human

    rows = []
    for found in data.status().to_dict("records"):
        here, get = found["present"], found["get"]
        state = get if get == "built in" else "present" if here else "missing"
        where = found["source"] if here else f"{get} {found['name']}"
        for folder in paths.data_dirs():  # they stand below the table
            where = where.removeprefix(f"{folder}{os.sep}")
        decoded = "yes" if found["decoded"] else "no"
        if found["decoded"] and found["skipped"]:
            decoded += f", {found['skipped']} left out"
        rows.append(
            {
                "name": found["name"],
                "title": found["title"],
                "state": state,
                "size": human(found["bytes"]) if found["bytes"] else "",
                "decoded": decoded,
                "where, or fedlib data": where[:29] + ("..." if where[29:] else ""),
            }
        )
    click.echo(_table(pd.DataFrame(rows)))
    click.echo("searched: " + ", ".join(str(folder) for folder in paths.data_dirs()))


@data_group.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--offline", is_flag=True, help="Only say what to download, from where.")
def data_fetch(names: tuple[str, ...], offline: bool) -> None:
    """Download data sets, and go on with what was interrupted."""
    from fedlib import data
    from fedlib.data.catalogue import entry_of

    for name in names:
        entry_of(name)  # a wrong name stops before the first download
    failed = False
    for name in names:
        try:
            data.fetch(name, offline=offline or None, echo=click.echo)
        except data.DataError as error:
            click.echo(f"Error: {error}", err=True)
            failed = True
    sys.exit(1 if failed else 0)


@data_group.command("check")
@click.argument("name")
@click.option(
    "--unreadable",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Name unreadable images and stop, or leave them out.",
)
def data_check(name: str, unreadable: "Policy") -> None:
    """Compare the number of images per class with the official one."""
    from fedlib import data

    click.echo(_table(data.check(name, unreadable=unreadable)))
    found = data.load(name, unreadable=unreadable)
    if found.sizes:
        click.echo(f"images found: {found.sizes} pixels")
    for skipped in found.skipped:
        click.echo(f"left out, unreadable: {skipped}")
    click.echo(f"{name}: ok")


@data_group.command("guide")
@click.argument("name")
def data_guide(name: str) -> None:
    """Print what a data set is and how to get it, step by step."""
    from fedlib import data

    click.echo(data.guide(name), nl=False)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cache_problem() -> str:
    """Return why the cache folder cannot be written to, or nothing."""
    try:
        paths.cache_dir().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=paths.cache_dir()):
            return ""
    except OSError as error:
        return str(error)


@main.command()
def doctor() -> None:
    """Check this installation; exits 1 when something is wrong."""
    import torch

    from fedlib.runs import device
    from fedlib.runs.many import jobs_of_machine
    from fedlib.support import lock

    problems = []
    click.echo(f"python       {platform.python_version()} ({sys.executable})")
    for package in PACKAGES:
        version = _version(package)
        click.echo(f"{package:<12} {version or 'missing'}")
        problems += [] if version else [f"{package} is not installed"]
    click.echo(f"lock         {lock.installed() or 'other versions than uv.lock'}")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    click.echo(
        f"cpu          {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    click.echo(f"gpu          {', '.join(gpus) or 'none'}")
    try:
        click.echo(f"device       {device.describe(device.chosen())}")
        click.echo(f"kernel       {device.kernel()}")
        click.echo(f"jobs         {jobs_of_machine()}")
    except ValueError as error:
        problems.append(str(error))
    for folder in paths.data_dirs():
        click.echo(f"data         {folder}{'' if folder.is_dir() else ' (absent)'}")
    problem = _cache_problem()
    click.echo(f"cache        {paths.cache_dir()} ({problem or 'writable'})")
    problems += [f"cache: {problem}"] if problem else []
    click.echo(f"figures      {paths.figures_dir()}")
    click.echo(f"results      {paths.results_dir() or 'none'}")
    click.echo("; ".join(problems) if problems else "all well")
    sys.exit(1 if problems else 0)
