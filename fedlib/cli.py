"""The command ``fedlib``."""

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import click
import pandas as pd
import torch

from fedlib import artefacts, data, paths, rebuild, registry
from fedlib.data import DataError
from fedlib.runs import jobs_default

PACKAGES = ("torch", "torchvision", "numpy", "scipy", "scikit-learn", "pandas")
PACKAGES += ("matplotlib", "seaborn", "papermill", "ipykernel", "jupyterlab", "nbval")
PACKAGES += ("pydantic", "safetensors", "joblib", "click")

Command = TypeVar("Command", bound=Callable[..., Any])


class Plain(click.Group):
    """Commands whose errors are one line: a wrong setting exits 2, missing data 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (DataError, ValueError) as error:
            click.echo("Error: " + " ".join(str(error).split()), err=True)
            ctx.exit(1 if isinstance(error, DataError) else 2)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_string(index=False, na_rep="") if len(frame) else "none"


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
            metavar="|".join(artefacts.PRESETS),
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


@main.command("rebuild")
@_selection
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes for missing runs; default FEDLIB_JOBS or 1.",
)
@click.option("--dry-run", is_flag=True, help="Only say what is stale, and the cost.")
@click.option("--force", is_flag=True, help="Build also what is current.")
def rebuild_command(
    names: tuple[str, ...],
    preset: str,
    settings: tuple[tuple[str, str], ...],
    jobs: int | None,
    dry_run: bool,
    force: bool,
) -> None:
    """Rebuild tables and figures that are stale.

    NAMES are artefacts (fedmps/table3), papers (fedmps), or short names (table3) that
    only one artefact has; none means all.
    """
    outcomes = rebuild.rebuild(
        names,
        preset,
        jobs,
        dry_run=dry_run,
        force=force,
        overrides=dict(settings),
        echo=click.echo,
    )
    count = Counter(outcome.status for outcome in outcomes)
    if dry_run:
        click.echo(f"would build {count['planned']}")
    click.echo(", ".join(f"{s} {count[s]}" for s in ("built", "current", "failed")))
    sys.exit(1 if count["failed"] else 0)


@main.command("estimate")
@_selection
def estimate_command(
    names: tuple[str, ...], preset: str, settings: tuple[tuple[str, str], ...]
) -> None:
    """Say what the missing runs cost in one process on this machine."""
    frame = rebuild.estimate(names, preset, dict(settings))
    click.echo(_table(frame.round({"seconds": 1})))
    missing, seconds = frame[["missing", "seconds"]].sum()
    click.echo(f"{missing:.0f} runs missing, about {rebuild.duration(seconds)}")


@main.group("list")
def list_group() -> None:
    """List what there is."""


@list_group.command("artefacts")
def list_artefacts() -> None:
    """List tables and figures, with the presets that they have."""
    for name in artefacts.names():
        has = [
            preset
            for preset in artefacts.PRESETS
            if (paths.PARAMS / preset / f"{name}.yaml").exists()
        ]
        click.echo(f"{name}  ({', '.join(has) or 'no preset'})")


@list_group.command("notebooks")
def list_notebooks() -> None:
    """List all notebooks."""
    for path in sorted(paths.NOTEBOOKS.rglob("*.ipynb")):
        relative = path.relative_to(paths.NOTEBOOKS)
        if not any(part.startswith(".") for part in relative.parts):
            click.echo(relative.as_posix())


@list_group.command("methods")
def list_methods() -> None:
    """List methods."""
    for name, module in registry.METHODS.items():
        click.echo(f"{name}  ({module})")


@list_group.command("datasets")
def list_datasets() -> None:
    """List data sets and whether they are here."""
    click.echo(_table(data.status().drop(columns=["source", "bytes"])))


@main.group("data")
def data_group() -> None:
    """Look after data sets."""


@data_group.command("status")
def data_status() -> None:
    """Say which data sets are here, and from where."""
    click.echo(_table(data.status()))
    click.echo("searched: " + ", ".join(str(folder) for folder in paths.data_dirs()))


@data_group.command("fetch")
@click.argument("name")
def data_fetch(name: str) -> None:
    """Download a data set."""
    click.echo(f"{name} is in {data.fetch(name)}")


@data_group.command("check")
@click.argument("name")
def data_check(name: str) -> None:
    """Compare the number of images per class with the official one."""
    click.echo(_table(data.check(name)))
    click.echo(f"{name}: ok")


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
    problems = []
    click.echo(f"python       {platform.python_version()} ({sys.executable})")
    for package in PACKAGES:
        version = _version(package)
        click.echo(f"{package:<12} {version or 'missing'}")
        problems += [] if version else [f"{package} is not installed"]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    click.echo(
        f"cpu          {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    click.echo(f"gpu          {', '.join(gpus) or 'none'}")
    click.echo(f"jobs         {jobs_default()}")
    for folder in paths.data_dirs():
        click.echo(f"data         {folder}{'' if folder.is_dir() else ' (absent)'}")
    problem = _cache_problem()
    click.echo(f"cache        {paths.cache_dir()} ({problem or 'writable'})")
    problems += [f"cache: {problem}"] if problem else []
    click.echo(f"figures      {paths.figures_dir()}")
    click.echo("; ".join(problems) if problems else "all well")
    sys.exit(1 if problems else 0)
