"""A finished run as a folder that needs no fedlib to be read, for a supplement."""

import csv
import io
import json
from pathlib import Path

from safetensors.torch import save_file

from fedlib.runs.results import Result
from fedlib.runs.spec import Spec
from fedlib.runs.stored import Stored
from fedlib.runs.watching import by_round
from fedlib.support.files import atomic_write, write_text


def write(run: Stored, folder: Path) -> list[Path]:
    """Write a run to a new or empty folder, and return its files.

    They are ``settings.json``, ``provenance.json`` (key, data, partition, code,
    versions, device), ``rounds.csv`` (round, name, value), ``summary.csv`` and
    ``log.safetensors``, the whole log.

    Raises
    ------
    ValueError
        The folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"output: got {folder}, expected a new or empty folder")
    log, record = run.log(), dict(run.told)
    spec = record.pop("spec")
    result = Result(Spec.model_validate(spec), run.key, log)
    rounds = io.StringIO()
    table = csv.writer(rounds, lineterminator="\n")
    table.writerow(("round", "name", "value"))
    for number, numbers in by_round(result):
        table.writerows((number, name, value) for name, value in numbers.items())
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("settings", spec),
        ("provenance", {"key": run.key} | record),
    ):
        text = json.dumps(content, indent=1, sort_keys=True)
        write_text(folder / f"{name}.json", text + "\n")
    write_text(folder / "rounds.csv", rounds.getvalue())
    summary = result.summary().to_csv(index=False, lineterminator="\n")
    write_text(folder / "summary.csv", summary)
    with atomic_write(folder / "log.safetensors") as temporary:
        save_file({n: v.contiguous().clone() for n, v in log.flat().items()}, temporary)
    return sorted(folder.iterdir())
