"""Type papermill commands as a user would: what each prints, takes, and leaves behind.

    python -m tools.try_papermill [fedmps/table3 ...]

Six commands for each of a table, a curve and a picture: a good one, a mistyped name, a
mistyped value, a wrong key, a wrong preset, a data set that the preset has no values
for. They write to a copy of ``figures/``, and of the wrong ones none may write at all.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from fedlib.support.files import sha256
from fedlib.support.paths import NOTEBOOKS, PARAMS, ROOT

SHORT = {
    "fedmps/table3": ["-y", "runs: [local, fedmps]", "-p", "seeds", "[0]"],
    "fedmps/fig4": ["-y", "runs: [local, fedmps]"],
    "fedhpro/fig1": ["-p", "local_epochs", "1", "-y", "runs: {fedavg: fedavg}"],
}
TRIES = {
    "good": ["-p", "rounds", "1"],
    "mistyped name": ["-p", "rouns", "2"],
    "mistyped value": ["-p", "rounds", "many"],
    "wrong key": ["-y", "rounds: {digit: 1}"],
    "wrong preset": ["-p", "preset", "cpuu"],
    "other data set": ["-y", "datasets: [digits, fashion]"],
}
# Where a picture's parameters are others.
OWN = {
    ("fedhpro/fig1", "wrong key"): ["-y", "picture: {per_clas: 5, seed: 0}"],
    ("fedhpro/fig1", "other data set"): ["-p", "dataset", "fashion"],
}
ERROR = re.compile(r"^(?:\w+Error|papermill\.exceptions\.\w+): .*", re.MULTILINE)


class Tried(NamedTuple):
    """What became of a command."""

    status: int  # of the process
    printed: str  # the last error, or the last line
    seconds: float
    changed: list[str]  # files of figures that are new or others


def command(name: str, preset: str, given: list[str], out: Path) -> list[str]:
    """Return a papermill command for a notebook with a preset's parameters."""
    notebook = NOTEBOOKS / "papers" / f"{name}.ipynb"
    file = PARAMS / preset / f"{name}.yaml"
    start = [sys.executable, "-m", "papermill", "--no-progress-bar", "-k", "python3"]
    return [*start, str(notebook), str(out), "-f", str(file), *given]


def _hashes(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): sha256(path) for path in files}


def typed(name: str, preset: str, given: list[str], figures: Path) -> Tried:
    """Execute a papermill command and say what it printed and which files it changed.

    The notebook that papermill writes is thrown away; ``figures`` is where the notebook
    keeps its artefact.
    """
    before = _hashes(figures)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        line = command(name, preset, given, Path(folder) / "out.ipynb")
        places = os.environ | {"FEDLIB_FIGURES": str(figures)}
        done = subprocess.run(
            line, env=places, cwd=ROOT, capture_output=True, text=True, check=False
        )
    seconds = time.perf_counter() - begun
    after = _hashes(figures)
    told = [*ERROR.findall(done.stderr), *done.stderr.strip().splitlines()[-1:]]
    errors = [text for text in told if not text.startswith("papermill.")]
    words = errors[0] if done.returncode and errors else ""
    changed = [file for file, known in after.items() if before.get(file) != known]
    gone = [file for file in before if file not in after]
    return Tried(done.returncode, words, seconds, sorted([*changed, *gone]))


def main() -> None:
    """Try all commands; the exit status is 1 where a wrong one wrote anything."""
    wrong = 0
    print("| notebook | command | printed | s | files changed |")
    print("|---|---|---|---:|---|")
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        shutil.copytree(ROOT / "figures", figures)
        os.environ["FEDLIB_CACHE"] = str(Path(folder) / "cache")
        for name in sys.argv[1:] or SHORT:
            for what, given in TRIES.items():
                given = OWN.get((name, what), given)
                found = typed(name, "quick", [*SHORT[name], *given], figures)
                others = [f for f in found.changed if not f.startswith(f"quick/{name}")]
                bad = (what == "good") == bool(found.status) or bool(others)
                bad |= what != "good" and bool(found.changed)
                wrong += bad
                told = found.printed.replace("|", "\\|") or "done"
                files = f"{len(found.changed)} of its own" if found.changed else "none"
                print(
                    f"| {name} | {what}: `{' '.join(given)}` | {told} | "
                    f"{found.seconds:.0f} | {'WRONG: ' * bad}{files} |",
                    flush=True,
                )
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
